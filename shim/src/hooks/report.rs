//! What CUDA tells a container about its memory: see `shim/src/shown.rs`. No device attribute holds an amount of memory.

// UNSAFETY: out-parameters of the caller are read and written.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use crate::accounting::account::{self, Bytes};
use crate::loader::vendor::{self, Device, SUCCESS};
use crate::memory::pools;
use crate::reporting::shown::Memory;

hooks! {
    Cuda, Memory;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let answer = cuMemGetInfo_v2::real(free, total);
        if answer == SUCCESS {
            show(vendor::current_device(), free, total);
        }
        answer
    }
    fn cuMemGetInfo(free: *mut u32, total: *mut u32) {
        let answer = cuMemGetInfo::real(free, total);
        if answer == SUCCESS {
            show(vendor::current_device(), free, total);
        }
        answer
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) {
        let answer = cuDeviceTotalMem_v2::real(bytes, device);
        if answer == SUCCESS {
            show_total(Device(device), bytes);
        }
        answer
    }
    fn cuDeviceTotalMem(bytes: *mut u32, device: i32) {
        let answer = cuDeviceTotalMem::real(bytes, device);
        if answer == SUCCESS {
            show_total(Device(device), bytes);
        }
        answer
    }
}

/// A width in which the driver tells bytes.
trait Width: Copy {
    fn bytes(self) -> Bytes;
    /// As many as fit.
    fn of(bytes: Bytes) -> Self;
}

impl Width for usize {
    fn bytes(self) -> Bytes {
        Bytes(u64::try_from(self).unwrap_or(u64::MAX))
    }
    fn of(bytes: Bytes) -> Self {
        Self::try_from(bytes.0).unwrap_or(Self::MAX)
    }
}

impl Width for u32 {
    fn bytes(self) -> Bytes {
        Bytes(u64::from(self))
    }
    fn of(bytes: Bytes) -> Self {
        Self::try_from(bytes.0).unwrap_or(Self::MAX)
    }
}

fn show<W: Width>(device: Option<Device>, free: *mut W, total: *mut W) {
    let Some(device) = device.filter(|_| !free.is_null() && !total.is_null()) else { return };
    // Pools shrink when a caller synchronises: what they gave back is free.
    pools::refresh();
    // SAFETY: not null, and the driver has just written both.
    let card = unsafe { Memory { total: total.read().bytes(), free: free.read().bytes() } };
    let Some(shown) = card.as_granted(account::of(device)) else { return };
    // SAFETY: not null: the caller's out-parameter.
    unsafe { free.write(W::of(shown.free)) };
    // SAFETY: not null: the caller's out-parameter.
    unsafe { total.write(W::of(shown.total)) };
}

fn show_total<W: Width>(device: Device, bytes: *mut W) {
    if bytes.is_null() {
        return;
    }
    // SAFETY: not null, and the driver has just written there.
    let total = unsafe { bytes.read() }.bytes();
    let Some(shown) = (Memory { total, free: total }).as_granted(account::of(device)) else { return };
    // SAFETY: not null: the caller's out-parameter.
    unsafe { bytes.write(W::of(shown.total)) };
}
