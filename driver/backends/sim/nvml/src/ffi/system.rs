//! Initialisation, versions, and the search for cards.

use super::pointer::{Out, Text, write_text};
use crate::code::{INSUFFICIENT_SIZE, INVALID_VALUE, NOT_FOUND, text};
use crate::{events, library};
use aliquot_sim_device::PciPlace;
use std::ffi::c_char;

/// Fills a text in, which is never cut here.
pub(super) fn whole_text(target: Out<u8>, size: u32, text: &str) -> crate::code::Answer {
    let room = usize::try_from(size).map_err(|_| INVALID_VALUE)?;
    target.check()?;
    if room <= text.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    write_text(target, i32::try_from(size).unwrap_or(i32::MAX), text)
}

/// The description of a code: the one export that answers no code.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    text(code).as_ptr()
}

exports! {
    fn nvmlInit() { library::init() }
    fn nvmlInit_v2() { library::init() }
    fn nvmlInitWithFlags(_flags: u32) { library::init() }
    fn nvmlShutdown() {
        if library::shutdown()? {
            events::free_all();
        }
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(version: Out<u8>, size: u32) {
        whole_text(version, size, &library::device()?.node().driver)
    }
    fn nvmlSystemGetNVMLVersion(version: Out<u8>, size: u32) {
        let node = library::device()?.node();
        whole_text(version, size, &format!("{}.{}", node.cuda_version / 1000, node.driver))
    }
    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) {
        version.set(i32::try_from(library::device()?.node().cuda_version).unwrap_or(0))
    }
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        version.set(i32::try_from(library::device()?.node().cuda_version).unwrap_or(0))
    }
    fn nvmlSystemGetProcessName(pid: u32, name: Out<u8>, size: u32) {
        library::device()?;
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| NOT_FOUND)?;
        name.check()?;
        write_text(name, i32::try_from(size).unwrap_or(i32::MAX), &path.to_string_lossy())
    }

    fn nvmlDeviceGetCount(count: Out<u32>) {
        count.set(u32::try_from(library::device()?.cards().len()).unwrap_or(0))
    }
    fn nvmlDeviceGetCount_v2(count: Out<u32>) {
        count.set(u32::try_from(library::device()?.cards().len()).unwrap_or(0))
    }
    fn nvmlDeviceGetHandleByIndex(index: u32, handle: Out<u64>) { by_index(index, handle) }
    fn nvmlDeviceGetHandleByIndex_v2(index: u32, handle: Out<u64>) { by_index(index, handle) }
    fn nvmlDeviceGetHandleByUUID(uuid: Text, handle: Out<u64>) {
        let uuid = uuid.get()?;
        handle.set(library::by_uuid(uuid.as_bytes())?)
    }
    fn nvmlDeviceGetHandleBySerial(serial: Text, handle: Out<u64>) {
        let serial = serial.get()?;
        handle.set(library::handle(library::find(|card| card.facts().serial.as_bytes() == serial.as_bytes())?))
    }
    fn nvmlDeviceGetHandleByPciBusId(address: Text, handle: Out<u64>) { by_address(address, handle) }
    fn nvmlDeviceGetHandleByPciBusId_v2(address: Text, handle: Out<u64>) { by_address(address, handle) }
}

fn by_index(index: u32, handle: Out<u64>) -> crate::code::Answer {
    handle.check()?;
    let index = usize::try_from(index).map_err(|_| INVALID_VALUE)?;
    handle.set(library::handle(library::device()?.card(index).ok_or(INVALID_VALUE)?))
}

fn by_address(address: Text, handle: Out<u64>) -> crate::code::Answer {
    let asked = PciPlace::parse(&address.get()?.to_string_lossy()).ok_or(NOT_FOUND)?;
    handle.set(library::handle(library::find(|card| card.facts().pci() == asked)?))
}
