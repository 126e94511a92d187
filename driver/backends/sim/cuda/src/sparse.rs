//! Sparse arrays: physical memory behind parts of them, put there and taken away part by part.
//!
//! A part is a box of a level and layer, or a range of a layer's tail of small levels. Parts are mapped and unmapped whole: a
//! box that covers several takes them all, one that cuts a part is refused. A call takes effect when it returns.

use crate::array::{ARRAYS, MIPMAPPED};
use crate::code::{Answer, INVALID_VALUE};
use crate::process::{self, lock};
use crate::vmm::{self, Hold};
use std::sync::Mutex;

/// CUDA_ARRAY3D_SPARSE
const SPARSE: u32 = 0x40;
/// Unit in which memory is put behind an array, in bytes.
const TILE_BYTES: u64 = 64 << 10;

/// Part of an array: the same level, layer and kind, and a range in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrayRegion {
    pub(crate) array: u64,
    /// Subresource type, level, layer.
    pub(crate) of: [u32; 3],
    pub(crate) from: [u64; 3],
    pub(crate) to: [u64; 3],
}

/// What is behind a part from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behind {
    /// What this handle names, from so many bytes on.
    Physical { handle: u64, offset: u64 },
    /// Nothing.
    Nothing,
}

struct SparseBinding {
    part: ArrayRegion,
    hold: Hold,
}

static BOUND: Mutex<Vec<SparseBinding>> = Mutex::new(Vec::new());

impl ArrayRegion {
    fn is_empty(&self) -> bool {
        self.from.iter().zip(self.to).any(|(from, to)| *from >= to)
    }

    fn covers(&self, other: &Self) -> bool {
        let starts = self.from.iter().zip(other.from).all(|(own, other)| *own <= other);
        let ends = self.to.iter().zip(other.to).all(|(own, other)| *own >= other);
        self.same_level(other) && starts && ends
    }

    fn meets(&self, other: &Self) -> bool {
        let before = self.from.iter().zip(other.to).all(|(from, to)| *from < to);
        let behind = self.to.iter().zip(other.from).all(|(to, from)| *to > from);
        self.same_level(other) && before && behind
    }

    fn same_level(&self, other: &Self) -> bool {
        (self.array, self.of) == (other.array, other.of)
    }
}

/// One entry of cuMemMapArrayAsync.
pub(crate) fn change(part: ArrayRegion, behind: Behind) -> Answer {
    process::cards()?;
    let array = ARRAYS.get(part.array).or_else(|_| MIPMAPPED.get(part.array)).map_err(|_| INVALID_VALUE)?;
    if array.shape.flags & SPARSE == 0 || part.is_empty() {
        return Err(INVALID_VALUE);
    }
    let mut bound = lock(&BOUND);
    if bound.iter().any(|other| part.meets(&other.part) && !part.covers(&other.part)) {
        return Err(INVALID_VALUE);
    }
    let hold = match behind {
        Behind::Physical { handle, offset } => {
            let hold = vmm::hold(handle)?;
            if offset >= hold.1.bytes() || !offset.is_multiple_of(TILE_BYTES) {
                vmm::drop_hold(&hold);
                return Err(INVALID_VALUE);
            }
            Some(hold)
        }
        Behind::Nothing => None,
    };
    let taken = bound.extract_if(.., |other| part.covers(&other.part)).collect::<Vec<_>>();
    bound.extend(hold.map(|hold| SparseBinding { part, hold }));
    drop(bound);
    taken.iter().for_each(|bound| vmm::drop_hold(&bound.hold));
    Ok(())
}

/// An array goes, and lets go of what is behind it.
pub(crate) fn array_gone(array: u64) {
    let taken = lock(&BOUND).extract_if(.., |bound| bound.part.array == array).collect::<Vec<_>>();
    taken.iter().for_each(|bound| vmm::drop_hold(&bound.hold));
}
