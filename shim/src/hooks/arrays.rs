//! Arrays and mipmapped arrays: reserved before they are made, by what the driver says that they need.
//!
//! It says so of arrays whose memory is mapped later, and of no others: so a twin of that kind, which takes no memory, is made,
//! asked and destroyed. Cards lay arrays out in blocks; where the driver has no answer (before 11.6) the most that they can take
//! stands, in the largest blocks that fit.

// UNSAFETY: out-parameters and structures of the caller.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use crate::accounting::account::{self, Account, Bytes};
use crate::accounting::alloc_map::{AllocMap, Key};
use crate::accounting::contexts;
use crate::loader::vendor::{self, SUCCESS};
use crate::memory::external::{self, Mapping};
use crate::memory::plain::{self, ARRAYS, Charge, MIPMAPPED, VendorAllocation};
use crate::sys::KeepErrno;

/// Unit to which a driver that does not say what an array needs is taken to round it.
const ARRAY_BYTES: u64 = 64 << 10;
/// CUDA_ARRAY3D_LAYERED and CUDA_ARRAY3D_CUBEMAP: the depth counts layers, which no level shrinks.
const LAYERS: u32 = 0x05;
/// CUDA_ARRAY3D_SPARSE and CUDA_ARRAY3D_DEFERRED_MAPPING: the memory is mapped later, from a handle that is charged.
const UNBACKED: u32 = 0xc0;
/// CUDA_ARRAY3D_DEFERRED_MAPPING
const DEFERRED: u32 = 0x80;
/// A card lays an array out in groups of 64 bytes by 8 rows, and these in blocks of up to 16 by height and 32 by depth; a block
/// is no larger than the next power of two.
const GROUP_BYTES: u64 = 64;
const GROUP_ROWS: u64 = 8;
const BLOCK_GROUPS_MAX: u64 = 16;
const BLOCK_DEPTH_MAX: u64 = 32;
/// Channels of an element at most; what no card has of a side; CUDA_ARRAY3D_CUBEMAP, and how many sides make one.
const CHANNELS_MAX: u32 = 4;
const EXTENT_MAX: u64 = 1 << 28;
const CUBES: u32 = 0x04;
const CUBE_SIDES: u64 = 6;
/// Most levels of a mipmapped array: extents have 32 bits.
const LEVELS_MAX: u32 = 32;
/// Bytes of the largest element there is; taken for a format that is not known, and for the blocks of compressed ones.
const ELEMENT_MAX: u64 = 16;

/// `CUDA_ARRAY_DESCRIPTOR`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Flat {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Deep {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Requirements {
    bytes: u64,
    alignment: u64,
    reserved: [u32; 4],
}

calls! {
    Cuda;
    /// What an array takes; drivers before 11.6 lack it, and it answers for arrays of deferred mapping only.
    fn cuArrayGetMemoryRequirements(answer: *mut Requirements, array: u64, device: i32);
    /// What all levels take.
    fn cuMipmappedArrayGetMemoryRequirements(answer: *mut Requirements, array: u64, device: i32);
}

hooks! {
    Cuda, Memory;
    fn cuArrayCreate_v2(array: *mut u64, shape: *const Flat) {
        make(&ARRAYS, array, Shape::of(array, shape, 1), cuArrayDestroy::real, |made| cuArrayCreate_v2::real(made, shape))
    }
    fn cuArray3DCreate_v2(array: *mut u64, shape: *const Deep) {
        make(&ARRAYS, array, Shape::of(array, shape, 1), cuArrayDestroy::real, |made| cuArray3DCreate_v2::real(made, shape))
    }
    fn cuMipmappedArrayCreate(array: *mut u64, shape: *const Deep, levels: u32) {
        let call = |made| cuMipmappedArrayCreate::real(made, shape, levels);
        make(&MIPMAPPED, array, Shape::of(array, shape, levels), cuMipmappedArrayDestroy::real, call)
    }
    fn cuArrayDestroy(array: u64) {
        destroy(&ARRAYS, array, || cuArrayDestroy::real(array))
    }
    fn cuMipmappedArrayDestroy(array: u64) {
        destroy(&MIPMAPPED, array, || cuMipmappedArrayDestroy::real(array))
    }
}

/// An array as it is described.
#[derive(Clone, Copy, Debug)]
struct Shape {
    extent: [u64; 3],
    format: u32,
    channels: u32,
    flags: u32,
    levels: u32,
}

impl Shape {
    /// `None`: there is no description, or no place for the array, and the driver will refuse.
    fn of<D: Into<Shape> + Copy>(place: *mut u64, description: *const D, levels: u32) -> Option<Self> {
        if place.is_null() || description.is_null() {
            return None;
        }
        // SAFETY: the caller's structure, which the driver reads, too.
        let shape: Shape = unsafe { description.read_unaligned() }.into();
        Some(Self { levels, ..shape })
    }

    /// Whether there may be such an array on any card.
    #[inline(never)]
    fn is_known(&self) -> bool {
        let [width, height, depth] = self.extent;
        let is_extent = |extent: u64| extent <= EXTENT_MAX;
        let is_whole = self.flags & CUBES == 0 || depth.is_multiple_of(CUBE_SIDES);
        let is_described = width != 0 && (1..=CHANNELS_MAX).contains(&self.channels);
        is_described && is_whole && [width, height, depth].into_iter().all(is_extent)
    }

    /// Bytes of an element. A component's size is fixed by its format; semi-planar and packed ones take at most as much.
    fn element(&self) -> u64 {
        let component = match self.format {
            0x01 | 0x08 | 0x50..=0x53 | 0x55 | 0x57 | 0x59 | 0x5b | 0x5d => 1,
            0xa2 | 0xa5 | 0xa8 | 0xb0 | 0xb2 | 0xb4 | 0xc0..=0xc2 | 0xc6..=0xc8 => 1,
            0x02 | 0x09 | 0x10 | 0x54 | 0x56 | 0x58 | 0x5a | 0x5c | 0x5e => 2,
            0x9f
            | 0xa1
            | 0xa3
            | 0xa4
            | 0xa6
            | 0xa7
            | 0xa9
            | 0xb1
            | 0xb3
            | 0xb5
            | 0xc3..=0xc5
            | 0xc9..=0xcb => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => ELEMENT_MAX,
        };
        (component * u64::from(self.channels.max(1))).min(ELEMENT_MAX)
    }

    /// The most bytes of one level; an extent of 0 counts as 1.
    fn level(&self, level: u32) -> Option<u64> {
        let [width, height, depth] = self.extent;
        let shrunk = |extent: u64| extent.checked_shr(level).unwrap_or(0).max(1);
        let row = shrunk(width).checked_mul(self.element())?.checked_next_multiple_of(GROUP_BYTES)?;
        let groups = blocks(shrunk(height).div_ceil(GROUP_ROWS), BLOCK_GROUPS_MAX)?;
        let depth =
            if self.flags & LAYERS == 0 { blocks(shrunk(depth), BLOCK_DEPTH_MAX)? } else { depth.max(1) };
        row.checked_mul(groups.checked_mul(GROUP_ROWS)?)?.checked_mul(depth)
    }

    /// The most bytes of all levels, no more than there are halvings of the longest side. `None`: more than there are numbers.
    fn most(&self) -> Option<Bytes> {
        if self.flags & UNBACKED != 0 {
            return Some(Bytes(0));
        }
        let longest = self.extent.into_iter().fold(1, u64::max);
        let levels = self.levels.clamp(1, longest.ilog2() + 1).min(LEVELS_MAX);
        let sum = (0..levels).try_fold(0_u64, |sum, level| sum.checked_add(self.level(level)?))?;
        sum.checked_next_multiple_of(ARRAY_BYTES).map(Bytes)
    }
}

/// Whole blocks of `count`, of `most` each or of the next power of two.
fn blocks(count: u64, most: u64) -> Option<u64> {
    count.checked_next_multiple_of(count.checked_next_power_of_two()?.min(most))
}

fn wide(extent: usize) -> u64 {
    u64::try_from(extent).unwrap_or(u64::MAX)
}

impl From<Flat> for Shape {
    fn from(flat: Flat) -> Self {
        let extent = [wide(flat.width), wide(flat.height), 0];
        Self { extent, format: flat.format, channels: flat.channels, flags: 0, levels: 1 }
    }
}

impl From<Deep> for Shape {
    fn from(deep: Deep) -> Self {
        let extent = [deep.width, deep.height, deep.depth].map(wide);
        Self { extent, format: deep.format, channels: deep.channels, flags: deep.flags, levels: 1 }
    }
}

/// What an array of this shape takes on the current card. `None`: more than there are numbers.
fn needed(map: &'static AllocMap, shape: &Shape) -> Option<Bytes> {
    let is_counted = || {
        let current = contexts::current();
        current.is_some_and(|current| matches!(account::of(current.device), Account::Counted(_)))
    };
    let _errno = KeepErrno::new();
    let told = if shape.flags & UNBACKED == 0 && is_counted() { told(map, shape) } else { None };
    told.or_else(|| shape.most())
}

/// What the driver says of a twin that takes nothing; `None`: it does not say.
fn told(map: &'static AllocMap, shape: &Shape) -> Option<Bytes> {
    let device = vendor::current_device()?.0;
    let [width, height, depth] = shape.extent;
    let narrow = |extent: u64| usize::try_from(extent).ok();
    let (width, height, depth) = (narrow(width)?, narrow(height)?, narrow(depth)?);
    let (format, channels, flags) = (shape.format, shape.channels, shape.flags | DEFERRED);
    let described = Deep { width, height, depth, format, channels, flags };
    let (mut twin, mut found) = (0, Requirements { bytes: 0, alignment: 0, reserved: [0; 4] });
    let answer = if core::ptr::eq(map, &raw const ARRAYS) {
        if cuArray3DCreate_v2::real(&raw mut twin, &raw const described) != SUCCESS {
            return None;
        }
        let answer = cuArrayGetMemoryRequirements(&raw mut found, twin, device);
        let _destroyed = cuArrayDestroy::real(twin);
        answer
    } else {
        if cuMipmappedArrayCreate::real(&raw mut twin, &raw const described, shape.levels) != SUCCESS {
            return None;
        }
        let answer = cuMipmappedArrayGetMemoryRequirements(&raw mut found, twin, device);
        let _destroyed = cuMipmappedArrayDestroy::real(twin);
        answer
    };
    (answer == Some(SUCCESS)).then_some(Bytes(found.bytes))
}

fn make(
    map: &'static AllocMap,
    place: *mut u64,
    shape: Option<Shape>,
    unmake: impl FnOnce(u64) -> i32,
    call: impl FnOnce(*mut u64) -> i32,
) -> i32 {
    let Some(shape) = shape else { return call(place) };
    let needed = needed(map, &shape);
    // Of what no driver is known to make it is asked first; what it makes all the same is charged, or unmade.
    let most = if shape.is_known() { needed } else { Some(Bytes(0)) };
    let make = || {
        let mut made = 0;
        match call(&raw mut made) {
            SUCCESS => Ok(VendorAllocation { key: Key(made), bytes: needed.unwrap_or(Bytes(u64::MAX)) }),
            error => Err(error),
        }
    };
    match plain::make((map, Charge::Whole), most, make, |key| unmake(key.0)) {
        Ok(key) => {
            // SAFETY: the caller's place, which the vendor would write, too.
            unsafe { place.write_unaligned(key.0) };
            SUCCESS
        }
        Err(error) => error,
    }
}

fn destroy(map: &'static AllocMap, array: u64, call: impl FnOnce() -> i32) -> i32 {
    let freeing = plain::before_free(map, Key(array));
    let mapped = if freeing.is_none() { external::before_free(Mapping::Array, Key(array)) } else { None };
    let answer = call();
    if let Some(freeing) = freeing {
        freeing.settle(answer);
    }
    if let Some(mapped) = mapped {
        mapped.settle(answer);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(extent: [u64; 3], format: u32, channels: u32, flags: u32, levels: u32) -> Option<Bytes> {
        Shape { extent, format, channels, flags, levels }.most()
    }

    #[test]
    fn an_array_takes_no_more_than_whole_blocks_of_its_elements() {
        let units = |count: u64| Some(Bytes(count * ARRAY_BYTES));
        assert_eq!(shape([1, 0, 0], 0x01, 1, 0, 1), units(1));
        assert_eq!(shape([1024, 1024, 0], 0x20, 4, 0, 1), units(256));
        assert_eq!(shape([1024, 1024, 0], 0x10, 2, 0, 1), units(64));
        assert_eq!(shape([1, 1 << 16, 0], 0x01, 1, 0, 1), units(64), "64 bytes for each byte");
        assert_eq!(shape([1 << 16, 1, 0], 0x01, 1, 0, 1), units(8), "eight rows for one");
        assert_eq!(shape([64, 129, 0], 0x01, 1, 0, 1), units(1));
        assert_eq!(shape([1 << 10, 129, 0], 0x01, 1, 0, 1), units(4), "256 rows for 129");
        assert_eq!(shape([1 << 10, 64, 33], 0x01, 1, 0, 1), units(64), "64 slices for 33");
        assert_eq!(shape([1 << 10, 64, 33], 0x01, 1, 0x01, 1), units(33), "layers are not in blocks");
        assert_eq!(shape([256, 256, 6], 0x20, 1, 0x04, 1), units(24));
        assert_eq!(shape([1024, 1024, 0], 0x20, 1, 0xc0, 1), Some(Bytes(0)));
        assert_eq!(shape([1024, 1024, 0], 0x7777, 4, 0, 1), units(256));
        assert_eq!(shape([u64::MAX, u64::MAX, 2], 0x01, 1, 0, 1), None);
    }

    #[test]
    fn levels_shrink_in_every_direction_but_layers_do_not() {
        let all = |flags| {
            let mut sum = 0;
            for level in 0..11_u32 {
                let depth = if flags & LAYERS == 0 { (16 >> level).max(1) } else { 16 };
                // Sides are powers of two, and so are their blocks.
                sum += (4 * (1024_u64 >> level)).max(64) * (512_u64 >> level).max(8) * depth;
            }
            Some(Bytes(sum.next_multiple_of(ARRAY_BYTES)))
        };
        assert_eq!(shape([1024, 512, 16], 0x20, 1, 0, 99), all(0));
        assert_eq!(shape([1024, 512, 16], 0x20, 1, 0x01, 11), all(0x01));
        assert_eq!(shape([1024, 512, 0], 0x20, 1, 0, 0), shape([1024, 512, 0], 0x20, 1, 0, 1));
    }
}
