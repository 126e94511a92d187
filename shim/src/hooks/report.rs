//! What the container is told about its memory: the grant, and the same in every call.

// UNSAFETY: out-parameters of the caller are written.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use crate::account::{self, Account, Bytes};
use crate::vendor::{self, Device, SUCCESS};

hooks! {
    Cuda, Memory;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let answer = cuMemGetInfo_v2::real(free, total);
        if answer == SUCCESS && !free.is_null() && !total.is_null() {
            show(vendor::current_device(), free, total);
        }
        answer
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) {
        let answer = cuDeviceTotalMem_v2::real(bytes, device);
        if answer == SUCCESS && !bytes.is_null() {
            let mut free = 0;
            show(Some(Device(device)), &raw mut free, bytes);
        }
        answer
    }
}

/// Puts the grant in place of the card: as total the limit, as free what is left of it, neither more than the card has.
fn show(device: Option<Device>, free: *mut usize, total: *mut usize) {
    let Some(device) = device else { return };
    // Pools shrink when somebody synchronises: what they gave back is free.
    crate::pools::refresh();
    let (limit, left) = match account::of(device) {
        Account::Uncounted => return,
        Account::Counted(ledger) => (ledger.limit(), ledger.free()),
        Account::Closed => (Bytes(0), Bytes(0)),
    };
    let at_most = |place: *mut usize, bound: Bytes| {
        let bound = usize::try_from(bound.0).unwrap_or(usize::MAX);
        // SAFETY: the driver has just written there, or the place is a local of the caller.
        let found = unsafe { place.read() };
        // SAFETY: as above.
        unsafe { place.write(found.min(bound)) };
    };
    at_most(total, limit);
    at_most(free, left);
}
