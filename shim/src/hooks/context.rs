//! Contexts, primary and the program's own, and green ones: what they take is charged, and markers end with them.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::c_void;

use crate::loader::vendor::Device;
use crate::memory::address_out::AddressOut;
use crate::memory::context_accounting::{self, Holder, PrimaryRelease};
use crate::memory::green;
use crate::memory::stacks::{self, Change};

hooks! {
    Cuda, Use;
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) {
        let real = || cuDevicePrimaryCtxRetain::real(context, device);
        context_accounting::retain(Device(device), (Holder::Program, AddressOut(context)), real, |_| release(device))
    }
    fn cuDevicePrimaryCtxRelease(device: i32) {
        context_accounting::let_go(Device(device), PrimaryRelease::Release, || cuDevicePrimaryCtxRelease::real(device))
    }
    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        context_accounting::let_go(Device(device), PrimaryRelease::Release, || cuDevicePrimaryCtxRelease_v2::real(device))
    }
    fn cuDevicePrimaryCtxReset(device: i32) {
        context_accounting::let_go(Device(device), PrimaryRelease::Reset, || cuDevicePrimaryCtxReset::real(device))
    }
    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        context_accounting::let_go(Device(device), PrimaryRelease::Reset, || cuDevicePrimaryCtxReset_v2::real(device))
    }

    fn cuCtxCreate(context: *mut u64, flags: u32, device: i32) {
        context_accounting::create(Device(device), AddressOut(context), || cuCtxCreate::real(context, flags, device), destroy)
    }
    fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: i32) {
        context_accounting::create(Device(device), AddressOut(context), || cuCtxCreate_v2::real(context, flags, device), destroy)
    }
    fn cuCtxCreate_v3(context: *mut u64, affinities: *mut c_void, count: i32, flags: u32, device: i32) {
        let real = || cuCtxCreate_v3::real(context, affinities, count, flags, device);
        context_accounting::create(Device(device), AddressOut(context), real, destroy)
    }
    fn cuCtxCreate_v4(context: *mut u64, parameters: *mut c_void, flags: u32, device: i32) {
        let real = || cuCtxCreate_v4::real(context, parameters, flags, device);
        context_accounting::create(Device(device), AddressOut(context), real, destroy)
    }
    fn cuCtxDestroy(context: u64) {
        context_accounting::destroy(context, || cuCtxDestroy::real(context))
    }
    fn cuCtxDestroy_v2(context: u64) {
        context_accounting::destroy(context, || cuCtxDestroy_v2::real(context))
    }
    fn cuCtxAttach(context: *mut u64, flags: u32) {
        context_accounting::attach(AddressOut(context), || cuCtxAttach::real(context, flags))
    }
    fn cuCtxDetach(context: u64) {
        context_accounting::detach(context, || cuCtxDetach::real(context))
    }
    fn cuGreenCtxCreate(green: *mut u64, described: u64, device: i32, flags: u32) {
        let real = || cuGreenCtxCreate::real(green, described, device, flags);
        green::create(Device(device), AddressOut(green), real, cuGreenCtxDestroy::real)
    }
    fn cuGreenCtxDestroy(green: u64) {
        green::destroy(green, || cuGreenCtxDestroy::real(green))
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        let undo = |before| cuCtxSetLimit::real(limit, before);
        stacks::limit(Change { limit, value }, || cuCtxSetLimit::real(limit, value), undo)
    }
}

fn release(device: i32) -> i32 {
    cuDevicePrimaryCtxRelease_v2::real(device)
}

fn destroy(context: u64) -> i32 {
    cuCtxDestroy_v2::real(context)
}
