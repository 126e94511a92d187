//! Physical memory and its holders: `cuMemCreate`, `cuMemRelease`, `cuMemMap`, `cuMemUnmap`, `cuMemRetainAllocationHandle`,
//! `cuMemExportToShareableHandle`, `cuMemImportFromShareableHandle`, `cuMemMapArrayAsync`.

// UNSAFETY: out-parameters and a structure of the caller.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use crate::accounting::account::{self, Account, Bytes, UnaccountedRelease};
use crate::memory::closed;
use crate::memory::ipc_memory::DescriptorMark;
use aliquot_abi::refusal::RefusedKind;
use core::ffi::{c_int, c_void};

use crate::loader::vendor::{self, Device, SUCCESS};
use crate::memory::physical::{self, Number};
use crate::sys;

/// The head of the vendor's `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location_type: u32,
    /// The card's number; of a locality domain, in its lowest byte.
    location: i32,
}

/// The vendor's `CUarrayMapInfo`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MapInfo {
    resource_kind: u32,
    array: u64,
    part_kind: u32,
    padding: u32,
    part: [u32; 8],
    operation: u32,
    handle_kind: u32,
    handle: u64,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

const _: () = assert!(size_of::<MapInfo>() == 96 && core::mem::offset_of!(MapInfo, handle) == 64);

/// CU_MEM_OPERATION_TYPE_MAP
const MAP: u32 = 1;
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
const DESCRIPTOR: u32 = 1;
/// 64-bit words of the longest handle of another kind, a fabric handle, and as many again.
const OTHER_HANDLE_WORDS: usize = 16;

hooks! {
    // No context is needed: so cards that are closed are looked at here whatever the grants limit.
    Cuda, Use;
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) {
        let device = if handle.is_null() { None } else { device_of(properties) };
        let Some(device) = device else {
            let answer = cuMemCreate::real(handle, bytes, properties, flags);
            if answer == SUCCESS && !handle.is_null() {
                // SAFETY: the driver has just written there.
                physical::uncharged(unsafe { handle.read_unaligned() });
            }
            return answer;
        };
        let make = || made(|handle| cuMemCreate::real(handle, bytes, properties, flags));
        let account = account::of(device);
        if matches!(account, Account::Closed) {
            return closed::refuse(device, make, cuMemRelease::real);
        }
        let size = Bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
        let first = if is_known(account, size, properties, flags) { size } else { Bytes(0) };
        answer(handle, physical::create(account, (first, size), make, cuMemRelease::real))
    }
    fn cuMemRelease(handle: u64) {
        physical::release(handle, || cuMemRelease::real(handle))
    }
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut u8) {
        if handle.is_null() {
            return cuMemRetainAllocationHandle::real(handle, address);
        }
        let call = || made(|handle| cuMemRetainAllocationHandle::real(handle, address));
        answer(handle, physical::retain(u64::try_from(address.addr()).unwrap_or(0), call))
    }
    fn cuMemExportToShareableHandle(shareable: *mut c_void, handle: u64, kind: u32, flags: u64) {
        // Before any caller can have it.
        Number::of(handle).share();
        if kind != DESCRIPTOR || shareable.is_null() {
            let Some(ledger) = Number::of(handle).ledger().filter(|_| !shareable.is_null()) else {
                return cuMemExportToShareableHandle::real(shareable, handle, kind, flags);
            };
            // Nothing would show whether a process has what was exported so: it is not told.
            let mut untold = [0_u64; OTHER_HANDLE_WORDS];
            let answer = cuMemExportToShareableHandle::real(untold.as_mut_ptr().cast(), handle, kind, flags);
            return if answer == SUCCESS { ledger.refuse(RefusedKind::Physical.untraceable()) } else { answer };
        }
        let mut descriptor: c_int = -1;
        let answer = cuMemExportToShareableHandle::real((&raw mut descriptor).cast(), handle, kind, flags);
        if answer != SUCCESS {
            return answer;
        }
        let lent = physical::exported_as(handle, descriptor);
        match lent {
            // SAFETY: the caller's place, which the vendor would write, too.
            Ok(()) => unsafe { shareable.cast::<c_int>().write_unaligned(descriptor) },
            Err(_) => sys::close(descriptor),
        }
        code(lent)
    }
    fn cuMemImportFromShareableHandle(handle: *mut u64, shareable: *mut c_void, kind: u32) {
        if handle.is_null() {
            return cuMemImportFromShareableHandle::real(handle, shareable, kind);
        }
        let call = || made(|handle| cuMemImportFromShareableHandle::real(handle, shareable, kind));
        // A descriptor is given as a pointer of its number.
        let descriptor = c_int::try_from(shareable.addr()).ok().filter(|_| kind == DESCRIPTOR);
        answer(handle, physical::import(descriptor.and_then(DescriptorMark::of), call))
    }
    fn cuMemMapArrayAsync(parts: *mut MapInfo, count: u32, stream: u64) {
        put_behind_arrays(parts, count);
        cuMemMapArrayAsync::real(parts, count, stream)
    }
    fn cuMemMapArrayAsync_ptsz(parts: *mut MapInfo, count: u32, stream: u64) {
        put_behind_arrays(parts, count);
        cuMemMapArrayAsync_ptsz::real(parts, count, stream)
    }
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let range = (address, u64::try_from(bytes).unwrap_or(u64::MAX));
        let call = || cuMemMap::real(address, bytes, offset, handle, flags);
        physical::map(range, handle, call, || cuMemUnmap::real(address, bytes))
    }
    fn cuMemUnmap(address: u64, bytes: usize) {
        let size = u64::try_from(bytes).unwrap_or(u64::MAX);
        physical::unmap(address, size, || cuMemUnmap::real(address, bytes))
    }
}

calls! {
    Cuda;
    /// What sizes of such memory are whole multiples of.
    fn cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const Properties, option: u32);
}

/// Whether there may be such memory. What does not fit as it is and is not known to be right is asked for first: what the driver
/// makes all the same is charged, or unmade.
#[inline(never)]
fn is_known(account: Account, Bytes(size): Bytes, properties: *const Properties, flags: u64) -> bool {
    let Account::Counted(ledger) = account else { return true };
    if size <= ledger.free().0 {
        return true;
    }
    let mut whole = 0;
    let answer = cuMemGetAllocationGranularity(&raw mut whole, properties, 0);
    let whole = u64::try_from(whole).unwrap_or(0).max(1);
    answer.is_none_or(|answer| answer == SUCCESS && flags == 0 && size != 0 && size.is_multiple_of(whole))
}

/// The card that pays; `None`: none does, or the driver will refuse.
fn device_of(properties: *const Properties) -> Option<Device> {
    if properties.is_null() {
        return None;
    }
    // SAFETY: a structure of the caller, which begins like this in every version.
    let properties = unsafe { properties.read_unaligned() };
    vendor::card_of(properties.location_type, properties.location)
}

/// What a caller's list puts behind sparse arrays may be held by them, and leaves the card when a stream says so.
fn put_behind_arrays(parts: *const MapInfo, count: u32) {
    // Of what is no list the driver says what is wrong.
    let Some(count) = usize::try_from(count).ok().filter(|count| sys::is_list(parts, *count)) else { return };
    for index in 0..count {
        // SAFETY: a list of that length by the vendor's contract, which the driver reads, too; unaligned is allowed for.
        let MapInfo { operation, handle, .. } = unsafe { parts.add(index).read_unaligned() };
        if operation == MAP {
            let number = Number::of(handle);
            number.ledger().into_iter().for_each(|ledger| ledger.loosen(UnaccountedRelease::Memory));
            number.bind();
        }
    }
}

fn code(answer: Result<(), i32>) -> i32 {
    answer.err().unwrap_or(SUCCESS)
}

/// What a call of the vendor's made, which writes it to a place.
pub(super) fn made(call: impl FnOnce(*mut u64) -> i32) -> Result<u64, i32> {
    let mut made = 0;
    match call(&raw mut made) {
        SUCCESS => Ok(made),
        error => Err(error),
    }
}

/// Tells the caller what was made.
pub(super) fn answer(place: *mut u64, made: Result<u64, i32>) -> i32 {
    match made {
        Ok(handle) => {
            // SAFETY: the caller's place, which the vendor would write, too.
            unsafe { place.write_unaligned(handle) };
            SUCCESS
        }
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_pointers_may_be_unaligned() {
        let mut bytes = [0_u8; 40];
        assert_eq!(answer(bytes[1..].as_mut_ptr().cast(), Ok(5)), SUCCESS);
        assert_eq!(bytes[..10], [0, 5, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes[1 + 8] = 1;
        assert_eq!(device_of(bytes[1..].as_ptr().cast()), Some(Device(0)));
    }
}
