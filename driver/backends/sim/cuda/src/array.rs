//! Arrays: charged as cards lay them out, in blocks of 64 bytes by 8 rows, each level and layer for itself; their content lies in
//! rows one behind the other.

use crate::code::{Answer, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY};
use crate::external::External;
use crate::handle::{Registry, Tag};
use crate::heap::Backing;
use crate::process;
use crate::room::{self, Footprint};
use aliquot_sim_device::MemoryKind;
use std::sync::Arc;

/// Unit to which arrays are rounded, in bytes.
pub(crate) const ARRAY_BYTES: u64 = 64 << 10;
/// CUDA_ARRAY3D_SPARSE and CUDA_ARRAY3D_DEFERRED_MAPPING: memory comes from elsewhere, later.
const UNBACKED: u32 = 0xc0;
/// CUDA_ARRAY3D_DEFERRED_MAPPING
const DEFERRED: u32 = 0x80;
/// Bytes and rows of a block.
const BLOCK: (u64, u64) = (64, 8);
/// Arrays are never IPC-shared: no allocation has this number.
const NO_ALLOCATION: u64 = 0;
/// Every array has as many faces when it is a cube map.
const CUBE_FACES: u64 = 6;

/// Extent and element, as the caller gave them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// An array, or all levels of a mipmapped one.
pub(crate) struct Array {
    pub(crate) shape: Shape,
    device: usize,
    context: u64,
    /// As the requirements query says.
    bytes: u64,
    pub(crate) backing: Backing,
    place: ArrayMemory,
}

/// Where the memory of an array is.
enum ArrayMemory {
    /// On the card.
    Card(Footprint),
    /// It comes later, from elsewhere.
    Later,
    /// In an object of another interface.
    External(#[expect(dead_code, reason = "it is there as long as this is")] Arc<External>),
}

/// All arrays.
pub(crate) static ARRAYS: Registry<Array> = Registry::new(Tag::Array, INVALID_HANDLE);
/// All mipmapped arrays.
pub(crate) static MIPMAPPED: Registry<Array> = Registry::new(Tag::Mipmapped, INVALID_HANDLE);

impl Shape {
    /// Bytes of one element.
    pub(crate) fn element(&self) -> Answer<u64> {
        let component = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => return Err(INVALID_VALUE),
        };
        match self.channels {
            1 | 2 | 4 => Ok(component * u64::from(self.channels)),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Bytes of one level; a missing height or depth counts as one.
    fn level_bytes(&self, level: u32) -> Answer<u64> {
        let shrunk = |extent: u64| extent.checked_shr(level).unwrap_or(0).max(1);
        // In layered arrays and cube maps the depth counts layers, which do not shrink.
        let layered = self.flags & 0x05 != 0;
        let depth = if layered { self.depth.max(1) } else { shrunk(self.depth) };
        let row = shrunk(self.width).checked_mul(self.element()?);
        let row = row.and_then(|row| row.checked_next_multiple_of(BLOCK.0)).ok_or(OUT_OF_MEMORY)?;
        let rows = shrunk(self.height).checked_next_multiple_of(BLOCK.1).ok_or(OUT_OF_MEMORY)?;
        row.checked_mul(rows).and_then(|slice| slice.checked_mul(depth)).ok_or(OUT_OF_MEMORY)
    }

    fn check(&self) -> Answer {
        let cube = self.flags & 0x04 != 0;
        if self.width == 0 || (cube && !self.depth.is_multiple_of(CUBE_FACES)) {
            return Err(INVALID_VALUE);
        }
        self.element().map(|_| ())
    }
}

/// What so many levels take.
fn bytes_of(shape: Shape, levels: u32) -> Answer<u64> {
    shape.check()?;
    let mut bytes = 0_u64;
    for level in 0..levels {
        bytes = bytes.checked_add(shape.level_bytes(level)?).ok_or(OUT_OF_MEMORY)?;
    }
    bytes.checked_next_multiple_of(ARRAY_BYTES).ok_or(OUT_OF_MEMORY)
}

fn create(shape: Shape, levels: u32, registry: &Registry<Array>) -> Answer<u64> {
    let context = process::current()?;
    let bytes = bytes_of(shape, levels)?;
    let ours = context.card()?;
    let (device, context) = (context.device, context.home);
    let (backing, place) = if shape.flags & UNBACKED == 0 {
        let (_, backing, room) = room::take(ours, (device, context), MemoryKind::Array, bytes)?;
        (backing, ArrayMemory::Card(room))
    } else {
        (ours.heap()?.take(bytes)?.1, ArrayMemory::Later)
    };
    let (handle, _) = registry.add(|_| Array { shape, device, context, bytes, backing, place });
    if let Err(gone) = process::must_live(context) {
        // The call that ended the context may have destroyed it already.
        let _gone_already = destroy(handle, registry);
        return Err(gone);
    }
    Ok(handle)
}

/// cuExternalMemoryGetMappedMipmappedArray: all levels lie in the object from `offset` on.
pub(crate) fn map_mipmapped(external: &Arc<External>, shape: Shape, levels: u32, offset: u64) -> Answer<u64> {
    let bytes = bytes_of(shape, levels)?;
    let backing = external.part(offset, bytes)?;
    let (device, context) = (external.device, external.context);
    let place = ArrayMemory::External(Arc::clone(external));
    Ok(MIPMAPPED.add(|_| Array { shape, device, context, bytes, backing, place }).0)
}

/// cuArrayCreate, cuArray3DCreate.
pub(crate) fn create_array(shape: Shape) -> Answer<u64> {
    create(shape, 1, &ARRAYS)
}

/// cuMipmappedArrayCreate: no more levels than halvings of the longest side.
pub(crate) fn create_mipmapped(shape: Shape, levels: u32) -> Answer<u64> {
    let longest = shape.width.max(shape.height).max(shape.depth).max(1);
    create(shape, levels.clamp(1, longest.ilog2() + 1), &MIPMAPPED)
}

/// cuArrayDestroy, cuMipmappedArrayDestroy.
pub(crate) fn destroy(handle: u64, registry: &Registry<Array>) -> Answer {
    process::cards()?;
    let array = registry.remove(handle)?;
    crate::sparse::array_gone(handle);
    let ours = process::cards()?.get(array.device).ok_or(INVALID_DEVICE)?;
    match array.place {
        ArrayMemory::Card(room) => room::give(ours, MemoryKind::Array, (NO_ALLOCATION, room, &array.backing)),
        ArrayMemory::Later => ours.heap()?.give(array.bytes, &array.backing),
        ArrayMemory::External(_) => {}
    }
    Ok(())
}

/// A context goes: with it its arrays.
pub(crate) fn destroy_all_of(context: u64) {
    for registry in [&ARRAYS, &MIPMAPPED] {
        for (handle, _) in registry.select(|array| array.context == context) {
            // Another thread may destroy it first.
            let _gone_already = destroy(handle, registry);
        }
    }
}

/// cuArrayGetMemoryRequirements: bytes and alignment; of arrays without memory of their own alone.
pub(crate) fn requirements(handle: u64, registry: &Registry<Array>) -> Answer<(u64, u64)> {
    process::cards()?;
    let array = registry.get(handle)?;
    if array.shape.flags & DEFERRED == 0 {
        return Err(INVALID_VALUE);
    }
    Ok((array.bytes, ARRAY_BYTES))
}
