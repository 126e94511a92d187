//! Multicast objects, logical endpoints and exported ranges of addresses: each may hold memory beside its references and mappings.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::c_void;

use super::memory::base_of;
use crate::loader::vendor::{Device, SUCCESS};
use crate::memory::physical::{self, Number};
use crate::memory::ranges;
use crate::sys::KeepErrno;

hooks! {
    Cuda, Memory;
    fn cuMulticastBindMem(object: u64, from: usize, handle: u64, offset: usize, bytes: usize, flags: u64) {
        let real = || cuMulticastBindMem::real(object, from, handle, offset, bytes, flags);
        physical::bind(core::iter::once(Number::of(handle)), real)
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
        physical::bind(core::iter::once(Number::of(handle)), real)
    }
    fn cuMulticastBindAddr(object: u64, from: usize, address: u64, bytes: usize, flags: u64) {
        let real = || cuMulticastBindAddr::real(object, from, address, bytes, flags);
        physical::bind(physical::mapped_in(address, wide(bytes)), real)
    }
    fn cuMulticastBindAddr_v2(object: u64, device: i32, from: usize, address: u64, bytes: usize, flags: u64) {
        let real = || cuMulticastBindAddr_v2::real(object, device, from, address, bytes, flags);
        physical::bind(physical::mapped_in(address, wide(bytes)), real)
    }
    fn cuMulticastUnbind(object: u64, device: i32, from: usize, bytes: usize) {
        physical::unbind(Some(Device(device)), || cuMulticastUnbind::real(object, device, from, bytes))
    }
    fn cuLogicalEndpointDestroy(id: u32) {
        physical::unbind(None, || cuLogicalEndpointDestroy::real(id))
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
        physical::bind(core::iter::once(Number::of(handle)), real)
    }
    fn cuLogicalEndpointBindAddr(id: u32, device: i32, from: u64, address: *mut c_void, bytes: u64, flags: u64) {
        let real = || cuLogicalEndpointBindAddr::real(id, device, from, address, bytes, flags);
        let address = wide(address.expose_provenance());
        physical::bind(physical::mapped_in(address, bytes), real)
    }
    fn cuLogicalEndpointUnbind(id: u32, device: i32, from: u64, bytes: u64) {
        physical::unbind(Some(Device(device)), || cuLogicalEndpointUnbind::real(id, device, from, bytes))
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

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
