//! Copies, fills and prefetches: they take the card's time as kernels do, by kind and size.

// UNSAFETY: copy descriptions of the caller are read.
#![expect(unsafe_code, reason = "the caller's structures are raw")]

pub mod array;
pub mod batch;
pub mod first;

use aliquot_enforce::cost::Shape;

use crate::compute::pacing::{self, host_wait};
use crate::loader::vendor::{StreamMode, Target};

/// The vendor's description of a copy of rows: the head, which tells where, and the extent.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Flat {
    places: [u64; 14],
    width: usize,
    height: usize,
}

/// The same of a copy of layers of rows.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Deep {
    places: [u64; 22],
    width: usize,
    height: usize,
    depth: usize,
}

const _: () = assert!(size_of::<Flat>() == 128 && size_of::<Deep>() == 200);

/// What runs at a rate of its own.
#[derive(Clone, Copy)]
enum RateClass {
    ToDevice = 1,
    FromDevice,
    Inside,
    /// The driver finds out.
    Any,
    Set,
    Prefetch,
    Array,
    Batch,
    Boxes,
    Discard,
    Unpack,
    Fabric,
}

/// The legacy default stream.
const DEFAULT: Target = on(0);
/// The default stream of the calling thread.
const THREAD: Target = on_thread(0);

const fn on(stream: u64) -> Target {
    Target { stream, mode: StreamMode::Legacy }
}

const fn on_thread(stream: u64) -> Target {
    Target { stream, mode: StreamMode::PerThread }
}

/// Bytes that a description says; a wrong one is the driver's to refuse.
trait Extent: Copy {
    fn bytes(self) -> usize;
}

impl Extent for Flat {
    fn bytes(self) -> usize {
        self.width.saturating_mul(self.height)
    }
}

impl Extent for Deep {
    fn bytes(self) -> usize {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }
}

fn extent<T: Extent>(copy: *const T) -> usize {
    if copy.is_null() {
        return 0;
    }
    // SAFETY: the caller's description, which the vendor reads, too.
    unsafe { copy.read_unaligned() }.bytes()
}

fn moved(kind: RateClass, bytes: usize, target: Target, real: impl FnOnce() -> i32) -> i32 {
    let shape = Shape::bytes(kind as u64, u64::try_from(bytes).unwrap_or(u64::MAX));
    let launch = || pacing::launch(shape.key, target, || shape, real);
    // Copies on a default stream return as a rule when they are done, and with them all that was launched there.
    if target.stream == 0 { host_wait::ask(target, launch) } else { launch() }
}

/// A copy that has returned when it is done.
fn arrived(kind: RateClass, bytes: usize, target: Target, real: impl FnOnce() -> i32) -> i32 {
    host_wait::copy(target, || moved(kind, bytes, target, real))
}

hooks! {
    Cuda, Compute;
    fn cuMemcpy(target: u64, source: u64, bytes: usize) {
        arrived(RateClass::Any, bytes, DEFAULT, || cuMemcpy::real(target, source, bytes))
    }
    fn cuMemcpy_ptds(target: u64, source: u64, bytes: usize) {
        arrived(RateClass::Any, bytes, THREAD, || cuMemcpy_ptds::real(target, source, bytes))
    }
    fn cuMemcpyHtoD_v2(target: u64, source: u64, bytes: usize) {
        arrived(RateClass::ToDevice, bytes, DEFAULT, || cuMemcpyHtoD_v2::real(target, source, bytes))
    }
    fn cuMemcpyHtoD_v2_ptds(target: u64, source: u64, bytes: usize) {
        arrived(RateClass::ToDevice, bytes, THREAD, || cuMemcpyHtoD_v2_ptds::real(target, source, bytes))
    }
    fn cuMemcpyDtoH_v2(target: u64, source: u64, bytes: usize) {
        arrived(RateClass::FromDevice, bytes, DEFAULT, || cuMemcpyDtoH_v2::real(target, source, bytes))
    }
    fn cuMemcpyDtoH_v2_ptds(target: u64, source: u64, bytes: usize) {
        arrived(RateClass::FromDevice, bytes, THREAD, || cuMemcpyDtoH_v2_ptds::real(target, source, bytes))
    }
    fn cuMemcpyDtoD_v2(target: u64, source: u64, bytes: usize) {
        arrived(RateClass::Inside, bytes, DEFAULT, || cuMemcpyDtoD_v2::real(target, source, bytes))
    }
    fn cuMemcpyDtoD_v2_ptds(target: u64, source: u64, bytes: usize) {
        arrived(RateClass::Inside, bytes, THREAD, || cuMemcpyDtoD_v2_ptds::real(target, source, bytes))
    }
    fn cuMemcpyAsync(target: u64, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::Any, bytes, on(stream), || cuMemcpyAsync::real(target, source, bytes, stream))
    }
    fn cuMemcpyAsync_ptsz(target: u64, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::Any, bytes, on_thread(stream), || cuMemcpyAsync_ptsz::real(target, source, bytes, stream))
    }
    fn cuMemcpyHtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::ToDevice, bytes, on(stream), || cuMemcpyHtoDAsync_v2::real(target, source, bytes, stream))
    }
    fn cuMemcpyHtoDAsync_v2_ptsz(target: u64, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::ToDevice, bytes, on_thread(stream), || cuMemcpyHtoDAsync_v2_ptsz::real(target, source, bytes, stream))
    }
    fn cuMemcpyDtoHAsync_v2(target: u64, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::FromDevice, bytes, on(stream), || cuMemcpyDtoHAsync_v2::real(target, source, bytes, stream))
    }
    fn cuMemcpyDtoHAsync_v2_ptsz(target: u64, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::FromDevice, bytes, on_thread(stream), || cuMemcpyDtoHAsync_v2_ptsz::real(target, source, bytes, stream))
    }
    fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::Inside, bytes, on(stream), || cuMemcpyDtoDAsync_v2::real(target, source, bytes, stream))
    }
    fn cuMemcpyDtoDAsync_v2_ptsz(target: u64, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::Inside, bytes, on_thread(stream), || cuMemcpyDtoDAsync_v2_ptsz::real(target, source, bytes, stream))
    }
    fn cuMemcpyPeer(target: u64, to: u64, source: u64, from: u64, bytes: usize) {
        arrived(RateClass::Any, bytes, DEFAULT, || cuMemcpyPeer::real(target, to, source, from, bytes))
    }
    fn cuMemcpyPeer_ptds(target: u64, to: u64, source: u64, from: u64, bytes: usize) {
        arrived(RateClass::Any, bytes, THREAD, || cuMemcpyPeer_ptds::real(target, to, source, from, bytes))
    }
    fn cuMemcpyPeerAsync(target: u64, to: u64, source: u64, from: u64, bytes: usize, stream: u64) {
        moved(RateClass::Any, bytes, on(stream), || cuMemcpyPeerAsync::real(target, to, source, from, bytes, stream))
    }
    fn cuMemcpyPeerAsync_ptsz(target: u64, to: u64, source: u64, from: u64, bytes: usize, stream: u64) {
        moved(RateClass::Any, bytes, on_thread(stream), || cuMemcpyPeerAsync_ptsz::real(target, to, source, from, bytes, stream))
    }
    fn cuMemcpy2D_v2(copy: *const Flat) {
        arrived(RateClass::Any, extent(copy), DEFAULT, || cuMemcpy2D_v2::real(copy))
    }
    fn cuMemcpy2D_v2_ptds(copy: *const Flat) {
        arrived(RateClass::Any, extent(copy), THREAD, || cuMemcpy2D_v2_ptds::real(copy))
    }
    fn cuMemcpy2DUnaligned_v2(copy: *const Flat) {
        arrived(RateClass::Any, extent(copy), DEFAULT, || cuMemcpy2DUnaligned_v2::real(copy))
    }
    fn cuMemcpy2DUnaligned_v2_ptds(copy: *const Flat) {
        arrived(RateClass::Any, extent(copy), THREAD, || cuMemcpy2DUnaligned_v2_ptds::real(copy))
    }
    fn cuMemcpy3D_v2(copy: *const Deep) {
        arrived(RateClass::Any, extent(copy), DEFAULT, || cuMemcpy3D_v2::real(copy))
    }
    fn cuMemcpy3D_v2_ptds(copy: *const Deep) {
        arrived(RateClass::Any, extent(copy), THREAD, || cuMemcpy3D_v2_ptds::real(copy))
    }
    fn cuMemcpy2DAsync_v2(copy: *const Flat, stream: u64) {
        moved(RateClass::Any, extent(copy), on(stream), || cuMemcpy2DAsync_v2::real(copy, stream))
    }
    fn cuMemcpy2DAsync_v2_ptsz(copy: *const Flat, stream: u64) {
        moved(RateClass::Any, extent(copy), on_thread(stream), || cuMemcpy2DAsync_v2_ptsz::real(copy, stream))
    }
    fn cuMemcpy3DAsync_v2(copy: *const Deep, stream: u64) {
        moved(RateClass::Any, extent(copy), on(stream), || cuMemcpy3DAsync_v2::real(copy, stream))
    }
    fn cuMemcpy3DAsync_v2_ptsz(copy: *const Deep, stream: u64) {
        moved(RateClass::Any, extent(copy), on_thread(stream), || cuMemcpy3DAsync_v2_ptsz::real(copy, stream))
    }
    fn cuMemsetD8_v2(address: u64, value: u8, count: usize) {
        moved(RateClass::Set, count, DEFAULT, || cuMemsetD8_v2::real(address, value, count))
    }
    fn cuMemsetD8_v2_ptds(address: u64, value: u8, count: usize) {
        moved(RateClass::Set, count, THREAD, || cuMemsetD8_v2_ptds::real(address, value, count))
    }
    fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: u64) {
        moved(RateClass::Set, count, on(stream), || cuMemsetD8Async::real(address, value, count, stream))
    }
    fn cuMemsetD8Async_ptsz(address: u64, value: u8, count: usize, stream: u64) {
        moved(RateClass::Set, count, on_thread(stream), || cuMemsetD8Async_ptsz::real(address, value, count, stream))
    }
    fn cuMemsetD2D8_v2(address: u64, pitch: usize, value: u8, width: usize, height: usize) {
        moved(RateClass::Set, width.saturating_mul(height), DEFAULT, || cuMemsetD2D8_v2::real(address, pitch, value, width, height))
    }
    fn cuMemsetD2D8_v2_ptds(address: u64, pitch: usize, value: u8, width: usize, height: usize) {
        moved(RateClass::Set, width.saturating_mul(height), THREAD, || cuMemsetD2D8_v2_ptds::real(address, pitch, value, width, height))
    }
    fn cuMemsetD2D8Async(address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64) {
        moved(RateClass::Set, width.saturating_mul(height), on(stream), || cuMemsetD2D8Async::real(address, pitch, value, width, height, stream))
    }
    fn cuMemsetD2D8Async_ptsz(address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64) {
        moved(RateClass::Set, width.saturating_mul(height), on_thread(stream), || cuMemsetD2D8Async_ptsz::real(address, pitch, value, width, height, stream))
    }
    fn cuMemsetD16_v2(address: u64, value: u16, count: usize) {
        moved(RateClass::Set, count.saturating_mul(2), DEFAULT, || cuMemsetD16_v2::real(address, value, count))
    }
    fn cuMemsetD16_v2_ptds(address: u64, value: u16, count: usize) {
        moved(RateClass::Set, count.saturating_mul(2), THREAD, || cuMemsetD16_v2_ptds::real(address, value, count))
    }
    fn cuMemsetD16Async(address: u64, value: u16, count: usize, stream: u64) {
        moved(RateClass::Set, count.saturating_mul(2), on(stream), || cuMemsetD16Async::real(address, value, count, stream))
    }
    fn cuMemsetD16Async_ptsz(address: u64, value: u16, count: usize, stream: u64) {
        moved(RateClass::Set, count.saturating_mul(2), on_thread(stream), || cuMemsetD16Async_ptsz::real(address, value, count, stream))
    }
    fn cuMemsetD2D16_v2(address: u64, pitch: usize, value: u16, width: usize, height: usize) {
        moved(RateClass::Set, width.saturating_mul(height).saturating_mul(2), DEFAULT, || cuMemsetD2D16_v2::real(address, pitch, value, width, height))
    }
    fn cuMemsetD2D16_v2_ptds(address: u64, pitch: usize, value: u16, width: usize, height: usize) {
        moved(RateClass::Set, width.saturating_mul(height).saturating_mul(2), THREAD, || cuMemsetD2D16_v2_ptds::real(address, pitch, value, width, height))
    }
    fn cuMemsetD2D16Async(address: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64) {
        moved(RateClass::Set, width.saturating_mul(height).saturating_mul(2), on(stream), || cuMemsetD2D16Async::real(address, pitch, value, width, height, stream))
    }
    fn cuMemsetD2D16Async_ptsz(address: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64) {
        moved(RateClass::Set, width.saturating_mul(height).saturating_mul(2), on_thread(stream), || cuMemsetD2D16Async_ptsz::real(address, pitch, value, width, height, stream))
    }
    fn cuMemsetD32_v2(address: u64, value: u32, count: usize) {
        moved(RateClass::Set, count.saturating_mul(4), DEFAULT, || cuMemsetD32_v2::real(address, value, count))
    }
    fn cuMemsetD32_v2_ptds(address: u64, value: u32, count: usize) {
        moved(RateClass::Set, count.saturating_mul(4), THREAD, || cuMemsetD32_v2_ptds::real(address, value, count))
    }
    fn cuMemsetD32Async(address: u64, value: u32, count: usize, stream: u64) {
        moved(RateClass::Set, count.saturating_mul(4), on(stream), || cuMemsetD32Async::real(address, value, count, stream))
    }
    fn cuMemsetD32Async_ptsz(address: u64, value: u32, count: usize, stream: u64) {
        moved(RateClass::Set, count.saturating_mul(4), on_thread(stream), || cuMemsetD32Async_ptsz::real(address, value, count, stream))
    }
    fn cuMemsetD2D32_v2(address: u64, pitch: usize, value: u32, width: usize, height: usize) {
        moved(RateClass::Set, width.saturating_mul(height).saturating_mul(4), DEFAULT, || cuMemsetD2D32_v2::real(address, pitch, value, width, height))
    }
    fn cuMemsetD2D32_v2_ptds(address: u64, pitch: usize, value: u32, width: usize, height: usize) {
        moved(RateClass::Set, width.saturating_mul(height).saturating_mul(4), THREAD, || cuMemsetD2D32_v2_ptds::real(address, pitch, value, width, height))
    }
    fn cuMemsetD2D32Async(address: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64) {
        moved(RateClass::Set, width.saturating_mul(height).saturating_mul(4), on(stream), || cuMemsetD2D32Async::real(address, pitch, value, width, height, stream))
    }
    fn cuMemsetD2D32Async_ptsz(address: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64) {
        moved(RateClass::Set, width.saturating_mul(height).saturating_mul(4), on_thread(stream), || cuMemsetD2D32Async_ptsz::real(address, pitch, value, width, height, stream))
    }
    fn cuMemPrefetchAsync(address: u64, bytes: usize, device: i32, stream: u64) {
        moved(RateClass::Prefetch, bytes, on(stream), || cuMemPrefetchAsync::real(address, bytes, device, stream))
    }
    fn cuMemPrefetchAsync_v2(address: u64, bytes: usize, location: u64, flags: u32, stream: u64) {
        moved(RateClass::Prefetch, bytes, on(stream), || cuMemPrefetchAsync_v2::real(address, bytes, location, flags, stream))
    }
    fn cuMemPrefetchAsync_ptsz(address: u64, bytes: usize, device: i32, stream: u64) {
        moved(RateClass::Prefetch, bytes, on_thread(stream), || cuMemPrefetchAsync_ptsz::real(address, bytes, device, stream))
    }
    fn cuMemPrefetchAsync_v2_ptsz(address: u64, bytes: usize, location: u64, flags: u32, stream: u64) {
        moved(RateClass::Prefetch, bytes, on_thread(stream), || cuMemPrefetchAsync_v2_ptsz::real(address, bytes, location, flags, stream))
    }
}
