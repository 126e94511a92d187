//! Multicast objects, and what keeps memory behind an exported range of addresses.

// UNSAFETY: an out-parameter of the caller.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use core::ffi::c_void;

use super::memory::base_of;
use crate::multicast::{self, Part};
use crate::physical::{self, Number};
use crate::ranges;
use crate::sys::KeepErrno;
use crate::vendor::{Device, SUCCESS};

hooks! {
    Cuda, Memory;
    fn cuMulticastCreate(object: *mut u64, properties: *const c_void) {
        let answer = cuMulticastCreate::real(object, properties);
        if answer == SUCCESS && !object.is_null() {
            // SAFETY: the driver has just written there.
            physical::multicast(unsafe { object.read_unaligned() });
        }
        answer
    }
    fn cuMulticastBindMem(object: u64, from: usize, handle: u64, offset: usize, bytes: usize, flags: u64) {
        let real = || cuMulticastBindMem::real(object, from, handle, offset, bytes, flags);
        multicast::bind((object, wide(from)), &mut core::iter::once(Number::of(handle)), real)
    }
    fn cuMulticastBindMem_v2(
        object: u64,
        device: i32,
        from: usize,
        handle: u64,
        offset: usize,
        bytes: usize,
        flags: u64,
    ) {
        let real = || cuMulticastBindMem_v2::real(object, device, from, handle, offset, bytes, flags);
        multicast::bind((object, wide(from)), &mut core::iter::once(Number::of(handle)), real)
    }
    fn cuMulticastBindAddr(object: u64, from: usize, address: u64, bytes: usize, flags: u64) {
        let real = || cuMulticastBindAddr::real(object, from, address, bytes, flags);
        multicast::bind((object, wide(from)), &mut physical::mapped_in(address, wide(bytes)), real)
    }
    fn cuMulticastBindAddr_v2(object: u64, device: i32, from: usize, address: u64, bytes: usize, flags: u64) {
        let real = || cuMulticastBindAddr_v2::real(object, device, from, address, bytes, flags);
        multicast::bind((object, wide(from)), &mut physical::mapped_in(address, wide(bytes)), real)
    }
    fn cuMulticastUnbind(object: u64, device: i32, from: usize, bytes: usize) {
        let part = Part { object, from: wide(from), bytes: wide(bytes) };
        multicast::unbind(part, Device(device), || cuMulticastUnbind::real(object, device, from, bytes))
    }
    fn cuMemGetHandleForAddressRange(handle: *mut c_void, address: u64, bytes: usize, kind: u32, flags: u64) {
        let answer = cuMemGetHandleForAddressRange::real(handle, address, bytes, kind, flags);
        // Nobody else has it before the caller.
        if answer == SUCCESS && !physical::share_mapped(address, wide(bytes)) {
            let _errno = KeepErrno::new();
            ranges::export(base_of(address));
        }
        answer
    }
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
