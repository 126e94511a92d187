//! Stream-ordered memory.

// UNSAFETY: out-parameters and descriptions of the caller are read.
#![expect(unsafe_code, reason = "the caller's structures are raw")]

use crate::accounting::alloc_map::Key;
use crate::loader::vendor::{self, SUCCESS, StreamMode};
use crate::memory::address_out::AddressOut;
use crate::memory::deferred_free;
use crate::memory::graphs;
use crate::memory::plain::{self, POINTERS};
use crate::memory::pools::{self, Location, Request};
use crate::memory::ranges;

/// The vendor's description of a pool: the head of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PoolProps {
    allocation: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
}

hooks! {
    Cuda, Memory;
    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: u64) {
        let source = pools::of_stream(stream, StreamMode::Legacy);
        let request = Request { bytes, address: AddressOut(address) };
        let back = |address| cuMemFreeAsync::real(address, stream);
        pools::allocate(source, request, || cuMemAllocAsync::real(address, bytes, stream), back)
    }
    fn cuMemAllocAsync_ptsz(address: *mut u64, bytes: usize, stream: u64) {
        let source = pools::of_stream(stream, StreamMode::PerThread);
        let request = Request { bytes, address: AddressOut(address) };
        let back = |address| cuMemFreeAsync_ptsz::real(address, stream);
        pools::allocate(source, request, || cuMemAllocAsync_ptsz::real(address, bytes, stream), back)
    }
    fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: u64, stream: u64) {
        let source = pools::of_pool(pool, stream, StreamMode::Legacy);
        let request = Request { bytes, address: AddressOut(address) };
        let back = |address| cuMemFreeAsync::real(address, stream);
        let real = || cuMemAllocFromPoolAsync::real(address, bytes, pool, stream);
        pools::allocate(source, request, real, back)
    }
    fn cuMemAllocFromPoolAsync_ptsz(address: *mut u64, bytes: usize, pool: u64, stream: u64) {
        let source = pools::of_pool(pool, stream, StreamMode::PerThread);
        let request = Request { bytes, address: AddressOut(address) };
        let back = |address| cuMemFreeAsync_ptsz::real(address, stream);
        let real = || cuMemAllocFromPoolAsync_ptsz::real(address, bytes, pool, stream);
        pools::allocate(source, request, real, back)
    }
    fn cuMemFreeAsync(address: u64, stream: u64) {
        free(address, (stream, StreamMode::Legacy), || cuMemFreeAsync::real(address, stream))
    }
    fn cuMemFreeAsync_ptsz(address: u64, stream: u64) {
        free(address, (stream, StreamMode::PerThread), || cuMemFreeAsync_ptsz::real(address, stream))
    }
    fn cuMemPoolCreate(pool: *mut u64, props: *const PoolProps) {
        let answer = cuMemPoolCreate::real(pool, props);
        if answer == SUCCESS && !pool.is_null() && !props.is_null() {
            // SAFETY: the driver read the one and wrote the other.
            let (handle, props) = unsafe { (pool.read_unaligned(), props.read_unaligned()) };
            let PoolProps { allocation, location_kind, location, .. } = props;
            pools::created(handle, Location { kind: location_kind, number: location, allocation });
        }
        answer
    }
    fn cuMemPoolDestroy(pool: u64) {
        pools::destroy(pool, || cuMemPoolDestroy::real(pool))
    }
    fn cuMemPoolTrimTo(pool: u64, keep: usize) {
        let answer = cuMemPoolTrimTo::real(pool, keep);
        pools::trimmed(pool);
        answer
    }
}

/// Frees always reach the vendor. In a capture nothing is freed yet, whatever the answer; else the stream says when it is.
fn free(address: u64, (stream, mode): (u64, StreamMode), real: impl FnOnce() -> i32) -> i32 {
    graphs::freeing(address);
    let Some(freeing) = plain::before_free(&POINTERS, Key(address)) else {
        if let Some(range) = ranges::take(address) {
            return if vendor::is_capturing(stream, mode) {
                range.stays(address, real)
            } else {
                range.free(address, real)
            };
        }
        let answer = real();
        pools::freed_in_order();
        return answer;
    };
    let written_down = vendor::is_capturing(stream, mode);
    let answer = real();
    if written_down || answer != SUCCESS {
        freeing.stays();
    } else {
        deferred_free::freed(freeing, stream, mode);
    }
    answer
}
