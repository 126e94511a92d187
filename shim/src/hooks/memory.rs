//! Plain device memory: `cuMemAlloc`, pitched, managed, `cuMemFree`, and what other processes open of it.

// UNSAFETY: out-parameters of the caller are written.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use aliquot_abi::limits::ManagedPolicy;

use crate::accounting::account::{self, Account, Bytes};
use crate::accounting::alloc_map::Key;
use crate::accounting::contexts;
use crate::loader::vendor::{NOT_SUPPORTED, SUCCESS};
use crate::memory::external::{self, Mapping};
use crate::memory::graphs;
use crate::memory::ipc_memory::{self, Tag};
use crate::memory::plain::{self, Charge, POINTERS, VendorAllocation};
use crate::memory::pools;
use crate::memory::ranges;

/// Alignment of pitched rows, as CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT says of every card. What a driver takes beyond it is
/// settled after the call.
const PITCH_BYTES: u64 = 512;
/// CU_MEM_ATTACH_GLOBAL and HOST.
const GLOBAL: u32 = 1;
const HOST: u32 = 2;
/// Nothing is reserved for what no driver is known to make, so that it says itself what is wrong; what it makes all the same is
/// charged, or unmade.
const ASKED_FIRST: Option<Bytes> = Some(Bytes(0));

hooks! {
    Cuda, Memory;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        if address.is_null() {
            return cuMemAlloc_v2::real(address, bytes);
        }
        answer(address, plain(bytes, |made| cuMemAlloc_v2::real(made, bytes)))
    }
    fn cuMemAllocPitch_v2(address: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) {
        if address.is_null() || pitch.is_null() {
            return cuMemAllocPitch_v2::real(address, pitch, width, height, element);
        }
        let call = |made: *mut u64, apart: *mut usize| {
            cuMemAllocPitch_v2::real(made, apart, width, height, element)
        };
        match pitched((width, height), element, call) {
            Ok((key, apart)) => {
                // SAFETY: the caller's place, which the vendor would write, too.
                unsafe { pitch.write_unaligned(apart) };
                answer(address, Ok(key))
            }
            Err(error) => error,
        }
    }
    // Calls of before CUDA 3.2, with addresses and sizes of 32 bits: no program of today is compiled to them, and they would be
    // a way past the limit. Their copies, fills and frees pass.
    fn cuMemAlloc(_address: *mut u32, _bytes: u32) { unsupported(1) }
    fn cuMemAllocPitch(_address: *mut u32, _pitch: *mut u32, _width: u32, _height: u32, _element: u32) { unsupported(2) }
    fn cuArrayCreate(_array: *mut u64, _shape: usize) { unsupported(3) }
    fn cuArray3DCreate(_array: *mut u64, _shape: usize) { unsupported(4) }
    fn cuMemAllocManaged(address: *mut u64, bytes: usize, flags: u32) {
        if address.is_null() || !managed_is_charged() {
            return cuMemAllocManaged::real(address, bytes, flags);
        }
        let call = |made: *mut u64| cuMemAllocManaged::real(made, bytes, flags);
        let first = if matches!(flags, GLOBAL | HOST) { as_bytes(bytes) } else { ASKED_FIRST };
        answer(address, reserved(first, bytes, call))
    }
    fn cuMemFree_v2(address: u64) {
        free(address, || cuMemFree_v2::real(address))
    }
    fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64) {
        let mut made = IpcHandle { bytes: [0; 64] };
        if handle.is_null() {
            return cuIpcGetMemHandle::real(handle, address);
        }
        let answer = cuIpcGetMemHandle::real(&raw mut made, address);
        if answer != SUCCESS {
            return answer;
        }
        match ipc_memory::lend(base_of(address), Tag::of(&made.bytes)) {
            Ok(()) => {
                // SAFETY: the caller's place, which the vendor would write, too.
                unsafe { handle.write_unaligned(made) };
                SUCCESS
            }
            Err(error) => error,
        }
    }
    fn cuIpcOpenMemHandle(address: *mut u64, handle: IpcHandle, flags: u32) {
        let call = |made: *mut u64| cuIpcOpenMemHandle::real(made, handle, flags);
        opened(address, &handle, call)
    }
    fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: IpcHandle, flags: u32) {
        let call = |made: *mut u64| cuIpcOpenMemHandle_v2::real(made, handle, flags);
        opened(address, &handle, call)
    }
    fn cuIpcCloseMemHandle(address: u64) {
        ipc_memory::close(address, || cuIpcCloseMemHandle::real(address))
    }
}

calls! {
    Cuda;
    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64);
}

/// The vendor's `CUipcMemHandle`, which calls take by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle {
    bytes: [u8; 64],
}

/// The number keeps functions of one signature from becoming one: each export has an address of its own.
#[inline(never)]
fn unsupported(number: u32) -> i32 {
    let _number = core::hint::black_box(number);
    NOT_SUPPORTED
}

/// Where the allocation begins that holds an address.
pub(super) fn base_of(address: u64) -> u64 {
    let mut base = 0;
    let found = cuMemGetAddressRange_v2(&raw mut base, core::ptr::null_mut(), address) == Some(SUCCESS);
    if found { base } else { address }
}

fn opened(address: *mut u64, handle: &IpcHandle, call: impl FnOnce(*mut u64) -> i32) -> i32 {
    if address.is_null() {
        return call(address);
    }
    let call = || {
        let mut made = 0;
        match call(&raw mut made) {
            SUCCESS => Ok(made),
            error => Err(error),
        }
    };
    answer(address, ipc_memory::open(Tag::of(&handle.bytes), call, cuIpcCloseMemHandle::real).map(Key))
}

/// `None`: more than there are numbers.
fn as_bytes(bytes: usize) -> Option<Bytes> {
    u64::try_from(bytes).ok().map(Bytes)
}

/// An allocation of so many bytes by a call that writes its address.
fn plain(bytes: usize, call: impl FnOnce(*mut u64) -> i32) -> Result<Key, i32> {
    reserved(as_bytes(bytes), bytes, call)
}

/// The same, where so much is reserved before it.
fn reserved(most: Option<Bytes>, bytes: usize, call: impl FnOnce(*mut u64) -> i32) -> Result<Key, i32> {
    let make = || {
        let mut made = 0;
        match call(&raw mut made) {
            SUCCESS => {
                Ok(VendorAllocation { key: Key(made), bytes: as_bytes(bytes).unwrap_or(Bytes(u64::MAX)) })
            }
            error => Err(error),
        }
    };
    plain::make((&POINTERS, Charge::Covered), most, make, unmake)
}

/// Rows of `width` bytes, each as far from the next as the driver likes: the key and that distance.
fn pitched(
    (width, height): (usize, usize),
    element: u32,
    call: impl FnOnce(*mut u64, *mut usize) -> i32,
) -> Result<(Key, usize), i32> {
    let wide = u64::try_from(width).ok().and_then(|width| width.checked_next_multiple_of(PITCH_BYTES));
    let rows = u64::try_from(height).unwrap_or(u64::MAX);
    let most = wide.and_then(|wide| wide.checked_mul(rows)).map(Bytes);
    let most = if matches!(element, 4 | 8 | 16) { most } else { ASKED_FIRST };
    let mut apart = 0_usize;
    let make = || {
        let mut made = 0;
        match call(&raw mut made, &raw mut apart) {
            SUCCESS => {
                let bytes = apart.checked_mul(height).and_then(as_bytes);
                Ok(VendorAllocation { key: Key(made), bytes: bytes.unwrap_or(Bytes(u64::MAX)) })
            }
            error => Err(error),
        }
    };
    let key = plain::make((&POINTERS, Charge::Covered), most, make, unmake)?;
    Ok((key, apart))
}

fn unmake(key: Key) -> i32 {
    cuMemFree_v2::real(key.0)
}

fn answer(address: *mut u64, made: Result<Key, i32>) -> i32 {
    match made {
        Ok(key) => {
            // SAFETY: the caller's place, which the vendor would write, too.
            unsafe { address.write_unaligned(key.0) };
            SUCCESS
        }
        Err(error) => error,
    }
}

/// Frees always reach the vendor.
fn free(address: u64, call: impl FnOnce() -> i32) -> i32 {
    graphs::freeing(address);
    let Some(freeing) = plain::before_free(&POINTERS, Key(address)) else {
        if let Some(range) = ranges::take(address) {
            return range.free(address, call);
        }
        let mapped = external::before_free(Mapping::Buffer, Key(address));
        let answer = call();
        match mapped {
            Some(mapped) => mapped.settle(answer),
            // A block of a pool, perhaps.
            None => pools::freed(),
        }
        return answer;
    };
    let answer = call();
    freeing.settle(answer);
    answer
}

/// Whether managed memory is charged on the current card.
fn managed_is_charged() -> bool {
    match contexts::current().map(|current| account::of(current.device)) {
        Some(Account::Counted(ledger)) => ledger.managed() == ManagedPolicy::Charge,
        Some(Account::Closed | Account::Uncounted) | None => true,
    }
}
