//! What a card says of itself.

use super::pointer::Out;
use super::system::whole_text;
use crate::code::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::library;

/// The vendor's PCI information, third version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfo {
    legacy_address: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
    subsystem_id: u32,
    address: [u8; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68);

/// Power of an idle and of a fully used card, in milliwatts.
const POWER: (u64, u64) = (70_000, 700_000);
/// Temperature of the same, in degrees Celsius.
const TEMPERATURE: (u64, u64) = (32, 68);

/// A figure that goes from idle to busy with the utilisation.
fn between(handle: u64, (idle, busy): (u64, u64)) -> Answer<u32> {
    let percent = u64::from(library::card(handle)?.utilization());
    u32::try_from(idle + (busy - idle) * percent / 100).map_err(|_| INVALID_VALUE)
}

fn text_into<const SIZE: usize>(text: &str) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for (place, byte) in bytes.iter_mut().take(SIZE - 1).zip(text.bytes()) {
        *place = byte;
    }
    bytes
}

/// Clocks by the vendor's numbers: graphics, multiprocessors, memory, video; in MHz.
fn clock(number: u32) -> Answer<u32> {
    match number {
        0 | 1 => Ok(1_980),
        2 => Ok(2_619),
        3 => Ok(1_545),
        _ => Err(INVALID_VALUE),
    }
}

fn constant<T: Copy>(handle: u64, target: Out<T>, value: T) -> Answer {
    library::card(handle)?;
    target.set(value)
}

exports! {
    fn nvmlDeviceGetName(handle: u64, name: Out<u8>, size: u32) {
        whole_text(name, size, &library::part(handle)?.0.facts().name)
    }
    fn nvmlDeviceGetUUID(handle: u64, uuid: Out<u8>, size: u32) {
        whole_text(uuid, size, &library::part(handle)?.0.facts().uuid)
    }
    fn nvmlDeviceGetSerial(handle: u64, serial: Out<u8>, size: u32) {
        whole_text(serial, size, &library::card(handle)?.facts().serial)
    }
    fn nvmlDeviceGetIndex(handle: u64, index: Out<u32>) {
        index.set(u32::try_from(library::card(handle)?.index()).unwrap_or(0))
    }
    fn nvmlDeviceGetMinorNumber(handle: u64, minor: Out<u32>) {
        minor.set(u32::try_from(library::card(handle)?.index()).unwrap_or(0))
    }
    fn nvmlDeviceGetPciInfo_v3(handle: u64, info: Out<PciInfo>) {
        let facts = library::card(handle)?.facts();
        info.set(PciInfo {
            legacy_address: text_into(&format!("0000:{:02X}:00.0", facts.bus)),
            domain: 0,
            bus: facts.bus,
            device: 0,
            device_id: facts.pci_id,
            subsystem_id: facts.pci_id,
            address: text_into(&facts.pci()),
        })
    }
    fn nvmlDeviceGetCudaComputeCapability(handle: u64, major: Out<i32>, minor: Out<i32>) {
        let facts = library::card(handle)?.facts();
        major.set(i32::try_from(facts.major).unwrap_or(0))?;
        minor.set(i32::try_from(facts.minor).unwrap_or(0))
    }
    fn nvmlDeviceGetPersistenceMode(handle: u64, mode: Out<u32>) { constant(handle, mode, 1) }
    fn nvmlDeviceGetComputeMode(handle: u64, mode: Out<u32>) {
        mode.set(library::card(handle)?.facts().compute_mode as u32)
    }
    fn nvmlDeviceGetDisplayMode(handle: u64, mode: Out<u32>) { constant(handle, mode, 0) }
    fn nvmlDeviceGetDisplayActive(handle: u64, mode: Out<u32>) { constant(handle, mode, 0) }
    fn nvmlDeviceGetEccMode(handle: u64, current: Out<u32>, pending: Out<u32>) {
        constant(handle, current, 1)?;
        pending.set(1)
    }
    fn nvmlDeviceGetPerformanceState(handle: u64, state: Out<u32>) { constant(handle, state, 0) }
    fn nvmlDeviceGetPowerState(handle: u64, state: Out<u32>) { constant(handle, state, 0) }
    fn nvmlDeviceGetPowerUsage(handle: u64, milliwatts: Out<u32>) { milliwatts.set(between(handle, POWER)?) }
    fn nvmlDeviceGetPowerManagementLimit(handle: u64, milliwatts: Out<u32>) { constant(handle, milliwatts, 700_000) }
    fn nvmlDeviceGetPowerManagementDefaultLimit(handle: u64, milliwatts: Out<u32>) {
        constant(handle, milliwatts, 700_000)
    }
    fn nvmlDeviceGetEnforcedPowerLimit(handle: u64, milliwatts: Out<u32>) { constant(handle, milliwatts, 700_000) }
    fn nvmlDeviceGetTemperature(handle: u64, sensor: u32, degrees: Out<u32>) {
        if sensor != 0 {
            return Err(NOT_SUPPORTED);
        }
        degrees.set(between(handle, TEMPERATURE)?)
    }
    fn nvmlDeviceGetClockInfo(handle: u64, number: u32, megahertz: Out<u32>) {
        constant(handle, megahertz, clock(number)?)
    }
    fn nvmlDeviceGetMaxClockInfo(handle: u64, number: u32, megahertz: Out<u32>) {
        constant(handle, megahertz, clock(number)?)
    }
    fn nvmlDeviceGetMemoryBusWidth(handle: u64, bits: Out<u32>) { constant(handle, bits, 5_120) }
    fn nvmlDeviceGetNumGpuCores(handle: u64, cores: Out<u32>) {
        cores.set(library::card(handle)?.facts().sms * 128)
    }
    fn nvmlDeviceGetBrand(handle: u64, brand: Out<u32>) { constant(handle, brand, 14) }
    fn nvmlDeviceGetArchitecture(handle: u64, architecture: Out<u32>) { constant(handle, architecture, 9) }
}
