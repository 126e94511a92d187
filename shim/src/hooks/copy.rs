//! Copies, fills and prefetches: they take the card's time as kernels do, by kind and size.

// UNSAFETY: copy descriptions of the caller are read.
#![expect(unsafe_code, reason = "the caller's structures are raw")]

pub mod array;
pub mod batch;

use aliquot_enforce::cost::Shape;

use crate::compute::pacing::{self, host_wait};
use crate::loader::vendor::Target;

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

stream_hooks! {
    Compute; {}
    cuMemcpy, cuMemcpy_ptds: (target: u64, source: u64, bytes: usize)
        => |real, on| arrived(RateClass::Any, bytes, on(0), real);
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds: (target: u64, source: u64, bytes: usize)
        => |real, on| arrived(RateClass::ToDevice, bytes, on(0), real);
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds: (target: u64, source: u64, bytes: usize)
        => |real, on| arrived(RateClass::FromDevice, bytes, on(0), real);
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds: (target: u64, source: u64, bytes: usize)
        => |real, on| arrived(RateClass::Inside, bytes, on(0), real);
    cuMemcpyAsync, cuMemcpyAsync_ptsz: (target: u64, source: u64, bytes: usize, stream: u64)
        => |real, on| moved(RateClass::Any, bytes, on(stream), real);
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz:
        (target: u64, source: u64, bytes: usize, stream: u64)
        => |real, on| moved(RateClass::ToDevice, bytes, on(stream), real);
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz:
        (target: u64, source: u64, bytes: usize, stream: u64)
        => |real, on| moved(RateClass::FromDevice, bytes, on(stream), real);
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz:
        (target: u64, source: u64, bytes: usize, stream: u64)
        => |real, on| moved(RateClass::Inside, bytes, on(stream), real);
    cuMemcpyPeer, cuMemcpyPeer_ptds: (target: u64, to: u64, source: u64, from: u64, bytes: usize)
        => |real, on| arrived(RateClass::Any, bytes, on(0), real);
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz:
        (target: u64, to: u64, source: u64, from: u64, bytes: usize, stream: u64)
        => |real, on| moved(RateClass::Any, bytes, on(stream), real);
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds: (copy: *const Flat)
        => |real, on| arrived(RateClass::Any, extent(copy), on(0), real);
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds: (copy: *const Flat)
        => |real, on| arrived(RateClass::Any, extent(copy), on(0), real);
    cuMemcpy3D_v2, cuMemcpy3D_v2_ptds: (copy: *const Deep)
        => |real, on| arrived(RateClass::Any, extent(copy), on(0), real);
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz: (copy: *const Flat, stream: u64)
        => |real, on| moved(RateClass::Any, extent(copy), on(stream), real);
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz: (copy: *const Deep, stream: u64)
        => |real, on| moved(RateClass::Any, extent(copy), on(stream), real);
    cuMemsetD8_v2, cuMemsetD8_v2_ptds: (address: u64, value: u8, count: usize)
        => |real, on| moved(RateClass::Set, count, on(0), real);
    cuMemsetD8Async, cuMemsetD8Async_ptsz: (address: u64, value: u8, count: usize, stream: u64)
        => |real, on| moved(RateClass::Set, count, on(stream), real);
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds:
        (address: u64, pitch: usize, value: u8, width: usize, height: usize)
        => |real, on| moved(RateClass::Set, width.saturating_mul(height), on(0), real);
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz:
        (address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64)
        => |real, on| moved(RateClass::Set, width.saturating_mul(height), on(stream), real);
    cuMemsetD16_v2, cuMemsetD16_v2_ptds: (address: u64, value: u16, count: usize)
        => |real, on| moved(RateClass::Set, count.saturating_mul(2), on(0), real);
    cuMemsetD16Async, cuMemsetD16Async_ptsz: (address: u64, value: u16, count: usize, stream: u64)
        => |real, on| moved(RateClass::Set, count.saturating_mul(2), on(stream), real);
    cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds:
        (address: u64, pitch: usize, value: u16, width: usize, height: usize)
        => |real, on| moved(RateClass::Set, width.saturating_mul(height).saturating_mul(2), on(0), real);
    cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz:
        (address: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64)
        => |real, on| moved(RateClass::Set, width.saturating_mul(height).saturating_mul(2), on(stream), real);
    cuMemsetD32_v2, cuMemsetD32_v2_ptds: (address: u64, value: u32, count: usize)
        => |real, on| moved(RateClass::Set, count.saturating_mul(4), on(0), real);
    cuMemsetD32Async, cuMemsetD32Async_ptsz: (address: u64, value: u32, count: usize, stream: u64)
        => |real, on| moved(RateClass::Set, count.saturating_mul(4), on(stream), real);
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds:
        (address: u64, pitch: usize, value: u32, width: usize, height: usize)
        => |real, on| moved(RateClass::Set, width.saturating_mul(height).saturating_mul(4), on(0), real);
    cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz:
        (address: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64)
        => |real, on| moved(RateClass::Set, width.saturating_mul(height).saturating_mul(4), on(stream), real);
    cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz:
        (address: u64, bytes: usize, device: i32, stream: u64)
        => |real, on| moved(RateClass::Prefetch, bytes, on(stream), real);
    cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz:
        (address: u64, bytes: usize, location: u64, flags: u32, stream: u64)
        => |real, on| moved(RateClass::Prefetch, bytes, on(stream), real);
}
