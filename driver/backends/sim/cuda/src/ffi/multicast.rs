//! Multicast objects, and ranges for other devices.

use super::pointer::{In, Out};
use crate::code::{Answer, INVALID_VALUE};
use crate::heap::BIG_PAGE;
use crate::multicast::{self, MemoryToBind, MulticastRange};
use crate::process;
use crate::range;

/// The vendor's description of a multicast object.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MulticastProp {
    devices: u32,
    bytes: u64,
    handle_types: u64,
    flags: u64,
}

const _: () = assert!(size_of::<MulticastProp>() == 32);

fn none(flags: u64) -> Answer {
    if flags == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

exports! {
    fn cuMulticastCreate(object: Out<u64>, prop: In<MulticastProp>) {
        object.check()?;
        let MulticastProp { devices, bytes, handle_types, flags } = prop.get()?;
        none(flags)?;
        let handle_types = u32::try_from(handle_types).map_err(|_| INVALID_VALUE)?;
        object.set(multicast::create(devices, bytes, handle_types)?)
    }
    fn cuMulticastAddDevice(object: u64, device: i32) { multicast::add(object, device) }
    fn cuMulticastGetGranularity(bytes: Out<u64>, _prop: In<MulticastProp>, _option: u32) {
        process::cards()?;
        bytes.set(BIG_PAGE)
    }
    fn cuMulticastBindMem(object: u64, from: u64, handle: u64, offset: u64, bytes: u64, flags: u64) {
        none(flags)?;
        multicast::bind(MulticastRange { object, from, bytes }, None, &MemoryToBind::Handle(handle), offset)
    }
    fn cuMulticastBindMem_v2(
        object: u64, device: i32, from: u64, handle: u64, offset: u64, bytes: u64, flags: u64
    ) {
        none(flags)?;
        multicast::bind(MulticastRange { object, from, bytes }, Some(device), &MemoryToBind::Handle(handle), offset)
    }
    fn cuMulticastBindAddr(object: u64, from: u64, address: u64, bytes: u64, flags: u64) {
        none(flags)?;
        multicast::bind(MulticastRange { object, from, bytes }, None, &MemoryToBind::Address(address), 0)
    }
    fn cuMulticastBindAddr_v2(object: u64, device: i32, from: u64, address: u64, bytes: u64, flags: u64) {
        none(flags)?;
        multicast::bind(MulticastRange { object, from, bytes }, Some(device), &MemoryToBind::Address(address), 0)
    }
    fn cuMulticastUnbind(object: u64, device: i32, from: u64, bytes: u64) {
        multicast::unbind(MulticastRange { object, from, bytes }, device)
    }
    fn cuMemGetHandleForAddressRange(handle: Out<i32>, address: u64, bytes: u64, kind: u32, flags: u64) {
        handle.check()?;
        handle.set(range::export((address, bytes), kind, flags)?)
    }
}
