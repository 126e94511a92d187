//! What a card says of itself.

use super::pointer::Out;
use super::system::whole_text;
use crate::code::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::library;

/// What all versions of the vendor's PCI information begin with; the first one.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfo1 {
    legacy_address: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
}

/// The second version, less what it reserves behind.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfo2 {
    first: PciInfo1,
    subsystem_id: u32,
}

/// The third version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfo {
    second: PciInfo2,
    address: [u8; 32],
}

const _: () =
    assert!(size_of::<PciInfo1>() == 32 && size_of::<PciInfo2>() == 36 && size_of::<PciInfo>() == 68);

/// The card's PCI information, of which older versions of the call give the beginning.
fn pci_info(handle: u64) -> Answer<PciInfo> {
    let facts = library::card(handle)?.facts();
    let place = facts.pci();
    let first = PciInfo1 {
        legacy_address: text_into(&place.text(4)),
        domain: place.domain,
        bus: place.bus,
        device: place.slot,
        device_id: facts.pci_id,
    };
    let second = PciInfo2 { first, subsystem_id: facts.pci_id };
    Ok(PciInfo { second, address: text_into(&place.text(8)) })
}

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

/// A card that belongs to the machine, not to a guest or a host of virtual ones.
const BARE_METAL: u32 = 0;

/// The vendor's number of an architecture, by its compute capability; what is not listed is unknown.
fn architecture(major: u32, minor: u32) -> u32 {
    match (major, minor) {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 0 | 2) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10..=12, _) => 10,
        _ => u32::MAX,
    }
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
    fn nvmlDeviceGetPciInfo(handle: u64, info: Out<PciInfo1>) { info.set(pci_info(handle)?.second.first) }
    fn nvmlDeviceGetPciInfo_v2(handle: u64, info: Out<PciInfo2>) { info.set(pci_info(handle)?.second) }
    fn nvmlDeviceGetPciInfo_v3(handle: u64, info: Out<PciInfo>) { info.set(pci_info(handle)?) }
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
    fn nvmlDeviceGetArchitecture(handle: u64, number: Out<u32>) {
        let facts = library::card(handle)?.facts();
        number.set(architecture(facts.major, facts.minor))
    }
    fn nvmlDeviceGetVirtualizationMode(handle: u64, mode: Out<u32>) { constant(handle, mode, BARE_METAL) }
}
