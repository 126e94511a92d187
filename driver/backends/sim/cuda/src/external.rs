//! Memory that another interface to the card made: imported by its descriptor, and mapped here as buffers and mipmapped arrays.
//!
//! It is on the card as long as its descriptor is open or a process has it imported or mapped
//! ([`crate::shared`]). Its creator pays for it. Mappings outlive the object that they were made of, and are
//! freed one by one.

use crate::array::{self, Shape};
use crate::code::{Answer, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::handle::{Registry, Tag};
use crate::heap::{self, BIG_PAGE, Backing};
use crate::memory::{self, Allocation, Payer};
use crate::process;
use crate::shared::{self, Import, Maker};

/// CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
const DESCRIPTOR: u32 = 1;
/// CUDA_EXTERNAL_MEMORY_DEDICATED
const DEDICATED: u32 = 1;

/// An imported object.
pub(crate) struct External {
    pub(crate) device: usize,
    pub(crate) context: u64,
    bytes: u64,
    backing: Backing,
    #[expect(dead_code, reason = "its lock is what counts")]
    import: Import,
}

static OBJECTS: Registry<External> = Registry::new(Tag::External, INVALID_HANDLE);

impl External {
    /// Part of it.
    pub(crate) fn part(&self, offset: u64, bytes: u64) -> Answer<Backing> {
        let is_inside = bytes > 0 && offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let backing = self.backing.clone();
        is_inside.then(|| Backing { offset: backing.offset + offset, ..backing }).ok_or(INVALID_VALUE)
    }
}

/// cuImportExternalMemory: the descriptor is the driver's from now on.
pub(crate) fn import(kind: u32, descriptor: i32, bytes: u64, flags: u32) -> Answer<u64> {
    let context = process::current()?;
    if kind != DESCRIPTOR {
        return Err(NOT_SUPPORTED);
    }
    let (told, import) = shared::import(descriptor, Maker::Interface)?;
    if told.bytes != bytes || flags & !DEDICATED != 0 {
        return Err(INVALID_VALUE);
    }
    let ours = context.card()?;
    if !told.is_on(&ours.card) {
        return Err(INVALID_DEVICE);
    }
    let backing = told.backing(&ours.card)?;
    heap::close(descriptor);
    let (device, context) = (context.device, context.home);
    Ok(OBJECTS.add(|_| External { device, context, bytes, backing, import }).0)
}

/// cuExternalMemoryGetMappedBuffer.
pub(crate) fn map_buffer(handle: u64, offset: u64, bytes: u64) -> Answer<u64> {
    process::cards()?;
    let external = OBJECTS.get(handle)?;
    let backing = external.part(offset, bytes)?;
    let address = heap::reserve(bytes.next_multiple_of(BIG_PAGE))?;
    let (device, context, payer) = (external.device, external.context, Payer::Interface(external));
    let _id = memory::insert(Allocation { address, bytes, device, context, payer, backing, id: 0 });
    Ok(address)
}

/// cuExternalMemoryGetMappedMipmappedArray.
pub(crate) fn map_array(handle: u64, shape: Shape, levels: u32, offset: u64) -> Answer<u64> {
    process::cards()?;
    array::map_mipmapped(&OBJECTS.get(handle)?, shape, levels, offset)
}

/// cuDestroyExternalMemory.
pub(crate) fn destroy(handle: u64) -> Answer {
    process::cards()?;
    OBJECTS.remove(handle).map(|_| ())
}

/// A context goes: with it what was imported in it.
pub(crate) fn destroy_all_of(context: u64) {
    for (handle, _) in OBJECTS.select(|external| external.context == context) {
        OBJECTS.forget(handle);
    }
}
