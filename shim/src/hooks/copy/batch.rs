//! Batches of copies, prefetches and discards, copies with attributes, and what else comes as a list: one piece of work each,
//! known by how many entries it has and how much they move.

use aliquot_enforce::cost::Shape;

use super::{Extent, RateClass, extent, moved};
use crate::compute::pacing;
use crate::loader::vendor::Target;
use crate::sys;

/// A copy of a box between two places, and its extent: in bytes, or in elements where one of the two is an array.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Box3d {
    places: [u64; 10],
    width: usize,
    height: usize,
    depth: usize,
    order: u64,
}

/// Something compressed.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Packed {
    source_bytes: usize,
    target_bytes: usize,
    places: [u64; 6],
}

/// A copy over a fabric.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Fabric {
    places: [u64; 6],
    bytes: usize,
    flags: u64,
}

const _: () = assert!(size_of::<Box3d>() == 112 && core::mem::offset_of!(Box3d, width) == 80);
const _: () = assert!(size_of::<Packed>() == 64 && size_of::<Fabric>() == 64);

impl Extent for Box3d {
    fn bytes(self) -> usize {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }
}

impl Extent for Packed {
    fn bytes(self) -> usize {
        self.source_bytes.max(self.target_bytes)
    }
}

impl Extent for Fabric {
    fn bytes(self) -> usize {
        self.bytes
    }
}

impl Extent for usize {
    fn bytes(self) -> usize {
        self
    }
}

/// The sizes of a batch, and how many groups of entries it says something about.
struct Sizes {
    list: *const usize,
    count: usize,
    groups: usize,
}

/// A batch of single lists; one that lacks any of them, or has more groups than entries, is the driver's to refuse unread.
fn batch(
    kind: RateClass,
    sizes: &Sizes,
    lists: &[*const u64],
    target: Target,
    real: impl FnOnce() -> i32,
) -> i32 {
    if lists.iter().any(|list| list.is_null()) || sizes.groups == 0 || sizes.groups > sizes.count {
        return real();
    }
    listed(kind, sizes.list, sizes.count, target, real)
}

/// A list of descriptions.
fn listed<T: Extent>(
    kind: RateClass,
    list: *const T,
    count: usize,
    target: Target,
    real: impl FnOnce() -> i32,
) -> i32 {
    // A list that is not all there is the driver's to refuse.
    if !sys::is_list(list, count) {
        return real();
    }
    let sum = (0..count).map(|at| extent(list.wrapping_add(at))).fold(0, usize::saturating_add);
    // Each entry costs time of its own: many small ones are not what one of their size is.
    let magnitude = u64::from(usize::BITS - count.leading_zeros());
    let shape = Shape::bytes(kind as u64 | magnitude << 8, u64::try_from(sum).unwrap_or(u64::MAX));
    pacing::launch(shape.key, target, || shape, real)
}

stream_hooks! {
    Compute; {}
    cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz:
        (targets: *const u64, sources: *const u64, sizes: *const usize, count: usize, attributes: *const u64, firsts: *const usize, attribute_count: usize, failed: *mut usize, stream: u64)
        => |real, on| batch(RateClass::Batch, &Sizes { list: sizes, count, groups: attribute_count }, &[targets, sources, attributes, firsts.cast()], on(stream), real);
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz:
        (targets: *const u64, sources: *const u64, sizes: *const usize, count: usize, attributes: *const u64, firsts: *const usize, attribute_count: usize, stream: u64)
        => |real, on| batch(RateClass::Batch, &Sizes { list: sizes, count, groups: attribute_count }, &[targets, sources, attributes, firsts.cast()], on(stream), real);
    cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz:
        (count: usize, list: *const Box3d, failed: *mut usize, flags: u64, stream: u64)
        => |real, on| listed(RateClass::Boxes, list, count, on(stream), real);
    cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz:
        (count: usize, list: *const Box3d, flags: u64, stream: u64)
        => |real, on| listed(RateClass::Boxes, list, count, on(stream), real);
    cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz:
        (target: u64, source: u64, bytes: usize, attributes: *const u64, stream: u64)
        => |real, on| moved(RateClass::Any, bytes, on(stream), real);
    cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz:
        (copy: *const Box3d, flags: u64, stream: u64)
        => |real, on| listed(RateClass::Boxes, copy, 1, on(stream), real);
    cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz:
        (addresses: *const u64, sizes: *const usize, count: usize, places: *const u64, firsts: *const usize, place_count: usize, flags: u64, stream: u64)
        => |real, on| batch(RateClass::Prefetch, &Sizes { list: sizes, count, groups: place_count }, &[addresses, places, firsts.cast()], on(stream), real);
    cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz:
        (addresses: *const u64, sizes: *const usize, count: usize, places: *const u64, firsts: *const usize, place_count: usize, flags: u64, stream: u64)
        => |real, on| batch(RateClass::Prefetch, &Sizes { list: sizes, count, groups: place_count }, &[addresses, places, firsts.cast()], on(stream), real);
    cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz:
        (addresses: *const u64, sizes: *const usize, count: usize, flags: u64, stream: u64)
        => |real, on| batch(RateClass::Discard, &Sizes { list: sizes, count, groups: count }, &[addresses], on(stream), real);
    cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz:
        (list: *const Packed, count: usize, flags: u32, failed: *mut usize, stream: u64)
        => |real, on| listed(RateClass::Unpack, list, count, on(stream), real);
    cuFabricCpyBatchAsync, cuFabricCpyBatchAsync_ptsz:
        (count: usize, list: *const Fabric, flags: u64, stream: u64)
        => |real, on| listed(RateClass::Fabric, list, count, on(stream), real);
}
