//! Multicast objects and logical endpoints, and what keeps memory behind an exported range of addresses.

// UNSAFETY: an out-parameter of the caller.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use core::ffi::c_void;

use super::memory::base_of;
use crate::loader::vendor::{Device, SUCCESS};
use crate::memory::multicast::{self, Part};
use crate::memory::physical::{self, Number};
use crate::memory::ranges;
use crate::sys::KeepErrno;

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
    fn cuLogicalEndpointCreate(id: u32, properties: *const c_void) {
        begins(id, cuLogicalEndpointCreate::real(id, properties))
    }
    fn cuLogicalEndpointImport(id: u32, handle: *const c_void, kind: u32) {
        begins(id, cuLogicalEndpointImport::real(id, handle, kind))
    }
    fn cuLogicalEndpointDestroy(id: u32) {
        physical::release(endpoint(id), || cuLogicalEndpointDestroy::real(id))
    }
    fn cuLogicalEndpointBindMem(
        id: u32,
        device: i32,
        from: u64,
        handle: u64,
        offset: u64,
        bytes: u64,
        flags: u64,
    ) {
        let real = || cuLogicalEndpointBindMem::real(id, device, from, handle, offset, bytes, flags);
        multicast::bind((endpoint(id), from), &mut core::iter::once(Number::of(handle)), real)
    }
    fn cuLogicalEndpointBindAddr(id: u32, device: i32, from: u64, address: *mut c_void, bytes: u64, flags: u64) {
        let real = || cuLogicalEndpointBindAddr::real(id, device, from, address, bytes, flags);
        let address = wide(address.expose_provenance());
        multicast::bind((endpoint(id), from), &mut physical::mapped_in(address, bytes), real)
    }
    fn cuLogicalEndpointUnbind(id: u32, device: i32, from: u64, bytes: u64) {
        let part = Part { object: endpoint(id), from, bytes };
        multicast::unbind(part, Device(device), || cuLogicalEndpointUnbind::real(id, device, from, bytes))
    }
    fn cuMemGetHandleForAddressRange(handle: *mut c_void, address: u64, bytes: usize, kind: u32, flags: u64) {
        let answer = cuMemGetHandleForAddressRange::real(handle, address, bytes, kind, flags);
        // No other thread has it before this call returns.
        if answer == SUCCESS && !physical::share_mapped(address, wide(bytes)) {
            let _errno = KeepErrno::new();
            ranges::export(base_of(address));
        }
        answer
    }
}

/// What stands for an endpoint among handles, which are addresses: with its end all that this process bound is unbound, even
/// if another process has it.
fn endpoint(id: u32) -> u64 {
    1 << 62 | u64::from(id)
}

fn begins(id: u32, answer: i32) -> i32 {
    if answer == SUCCESS {
        physical::multicast(endpoint(id));
    }
    answer
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
