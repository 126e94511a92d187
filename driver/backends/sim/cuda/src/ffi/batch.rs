//! Batches of copies and prefetches, and copies with attributes.

use super::copy::{go, unified};
use super::pointer::{In, Out};
use crate::array::ARRAYS;
use crate::code::{Answer, INVALID_VALUE};
use crate::copy::{Copy, End};
use crate::graph::WorkKind;
use crate::memory;
use crate::stream::{self, Wait};
use crate::table::Mode;

/// One side of a copy of a box: memory in rows, or an array with where in it.
#[derive(Clone, Copy)]
#[repr(C)]
struct BoxSide {
    kind: u32,
    padding: u32,
    place: u64,
    /// Elements of a row, elements of a layer, and a hint; or the three parts of where in an array.
    inside: [u64; 3],
}

/// The vendor's copy of a box, its extent in elements: those of an array, where one of the two is one, else bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Box3d {
    source: BoxSide,
    target: BoxSide,
    extent: [u64; 3],
    order: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Box3d>() == 112);

/// Kinds of sides.
const POINTER: u32 = 1;
const ARRAY: u32 = 2;

impl BoxSide {
    fn element(&self) -> Answer<Option<u64>> {
        if self.kind == ARRAY { ARRAYS.get(self.place)?.shape.element().map(Some) } else { Ok(None) }
    }

    /// Where it is, and the distances of its rows and layers.
    fn end(&self, extent: [u64; 3], element: u64) -> Answer<(End, (u64, u64))> {
        let [width, height, depth] = extent;
        let times = |a: u64, b: u64| a.checked_mul(b).ok_or(INVALID_VALUE);
        let (row, layer) = match self.kind {
            POINTER => {
                let [row, layer, _] = self.inside;
                (times(row.max(width), element)?, layer.max(height))
            }
            ARRAY => {
                let shape = ARRAYS.get(self.place)?.shape;
                let room = [shape.width, shape.height.max(1), shape.depth.max(1)];
                let fits =
                    |at: usize| self.inside[at].checked_add(extent[at]).is_some_and(|end| end <= room[at]);
                if !(0..3).all(fits) {
                    return Err(INVALID_VALUE);
                }
                (times(shape.width, element)?, shape.height.max(1))
            }
            _ => return Err(INVALID_VALUE),
        };
        let slice = times(row, layer)?;
        let span = times(depth - 1, slice)?.checked_add(times(height - 1, row)?).ok_or(INVALID_VALUE)?;
        let bytes = span.checked_add(times(width, element)?).ok_or(INVALID_VALUE)?;
        let end = if self.kind == POINTER {
            End::of(self.place, bytes)?
        } else {
            let [x, y, z] = self.inside;
            let rows = times(y, row)?.checked_add(times(z, slice)?).ok_or(INVALID_VALUE)?;
            End::array(self.place, rows.checked_add(times(x, element)?).ok_or(INVALID_VALUE)?)?
        };
        Ok((end, (row, slice)))
    }
}

impl Box3d {
    fn parse(&self) -> Answer<Copy> {
        if self.extent.contains(&0) {
            return Err(INVALID_VALUE);
        }
        let element = self.source.element()?.or(self.target.element()?).unwrap_or(1);
        let (source, source_pitch) = self.source.end(self.extent, element)?;
        let (target, target_pitch) = self.target.end(self.extent, element)?;
        let [width, height, depth] = self.extent;
        let width = width.checked_mul(element).ok_or(INVALID_VALUE)?;
        Ok(Copy { target, source, width, height, depth, target_pitch, source_pitch })
    }
}

/// Makes `count` copies, all of which are checked before the first is made; `failed` receives the index of
/// the invalid one.
fn all(
    count: u64,
    failed: Out<u64>,
    stream: u64,
    mode: Mode,
    copy: impl Fn(usize) -> Answer<Copy>,
) -> Answer {
    // The legacy default stream is no place for batches.
    if count == 0 || (stream == 0 && mode == Mode::Legacy) {
        return Err(INVALID_VALUE);
    }
    let count = usize::try_from(count).map_err(|_| INVALID_VALUE)?;
    let mut copies = Vec::new();
    for at in 0..count {
        match copy(at) {
            Ok(copy) => copies.push(copy),
            Err(error) => {
                failed.set_if_wanted(u64::try_from(at).unwrap_or(u64::MAX));
                return Err(error);
            }
        }
    }
    copies.into_iter().try_for_each(|copy| go(Ok(copy), stream, mode, Wait::No))
}

/// Whether groups of entries begin with the first entry, rise, and end inside the batch.
fn grouped(count: u64, groups: u64, first: In<u64>) -> Answer {
    if groups == 0 || groups > count || first.get()? != 0 {
        return Err(INVALID_VALUE);
    }
    let mut last = 0;
    for at in 1..usize::try_from(groups).map_err(|_| INVALID_VALUE)? {
        let next = first.get_at(at)?;
        if next <= last || next >= count {
            return Err(INVALID_VALUE);
        }
        last = next;
    }
    Ok(())
}

/// Addresses and sizes of a batch of copies.
struct Lists {
    targets: In<u64>,
    sources: In<u64>,
    sizes: In<u64>,
    count: u64,
}

fn flat(
    lists: &Lists,
    attributes: In<u64>,
    groups: (u64, In<u64>),
    to: (Out<u64>, u64),
    mode: Mode,
) -> Answer {
    attributes.get()?;
    grouped(lists.count, groups.0, groups.1)?;
    all(lists.count, to.0, to.1, mode, |at| {
        unified(lists.targets.get_at(at)?, lists.sources.get_at(at)?, lists.sizes.get_at(at)?)
    })
}

/// Ranges of memory for an operation that takes no time here.
fn ranges(addresses: In<u64>, sizes: In<u64>, count: u64, stream: u64, mode: Mode) -> Answer {
    for at in 0..usize::try_from(count).map_err(|_| INVALID_VALUE)? {
        memory::range(addresses.get_at(at)?, sizes.get_at(at)?)?;
    }
    stream::find(stream, mode)?.run(WorkKind::Order, 0, None)
}

streamed! {
    fn cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz |mode| (
        targets: In<u64>, sources: In<u64>, sizes: In<u64>, count: u64, attributes: In<u64>, firsts: In<u64>,
        groups: u64, failed: Out<u64>, stream: u64
    ) {
        flat(&Lists { targets, sources, sizes, count }, attributes, (groups, firsts), (failed, stream), mode)
    }
    fn cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz |mode| (
        targets: In<u64>, sources: In<u64>, sizes: In<u64>, count: u64, attributes: In<u64>, firsts: In<u64>,
        groups: u64, stream: u64
    ) {
        flat(&Lists { targets, sources, sizes, count }, attributes, (groups, firsts), (Out::none(), stream), mode)
    }
    fn cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz |mode| (
        count: u64, list: In<Box3d>, failed: Out<u64>, _flags: u64, stream: u64
    ) {
        all(count, failed, stream, mode, |at| list.get_at(at)?.parse())
    }
    fn cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz |mode| (
        count: u64, list: In<Box3d>, _flags: u64, stream: u64
    ) {
        all(count, Out::none(), stream, mode, |at| list.get_at(at)?.parse())
    }
    fn cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz |mode| (
        target: u64, source: u64, bytes: u64, attributes: In<u64>, stream: u64
    ) {
        attributes.get()?;
        go(unified(target, source, bytes), stream, mode, Wait::No)
    }
    fn cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz |mode| (
        copy: In<Box3d>, _flags: u64, stream: u64
    ) {
        go(copy.get()?.parse(), stream, mode, Wait::No)
    }
    fn cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz |mode| (
        addresses: In<u64>, sizes: In<u64>, count: u64, places: In<u64>, firsts: In<u64>, groups: u64, _flags: u64,
        stream: u64
    ) {
        places.get()?;
        grouped(count, groups, firsts)?;
        ranges(addresses, sizes, count, stream, mode)
    }
    fn cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz |mode| (
        addresses: In<u64>, sizes: In<u64>, count: u64, places: In<u64>, firsts: In<u64>, groups: u64, _flags: u64,
        stream: u64
    ) {
        places.get()?;
        grouped(count, groups, firsts)?;
        ranges(addresses, sizes, count, stream, mode)
    }
    fn cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz |mode| (
        addresses: In<u64>, sizes: In<u64>, count: u64, _flags: u64, stream: u64
    ) {
        ranges(addresses, sizes, count, stream, mode)
    }
}
