//! Address ranges for other devices (`cuMemGetHandleForAddressRange`). An open descriptor keeps the memory
//! behind it on the card, even after it is freed here.

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::memory::{self, Allocation, Payer};
use crate::process::{self, lock};
use crate::room::{self, Footprint};
use crate::shared::{self, Export, ExportDescription, Maker};
use crate::vmm;
use aliquot_sim_device::MemoryKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
const DESCRIPTOR: u32 = 1;
/// CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE
const OVER_PCIE: u64 = 1;
/// Ranges begin and end at pages of the host.
const PAGE: u64 = 4096;

/// By the allocation's own number, descriptors of ranges of it.
static EXPORTED: Mutex<Vec<(u64, Export)>> = Mutex::new(Vec::new());
/// What was freed and is on the card still: the allocation, and what it takes.
static FREED: Mutex<Vec<(Allocation, Footprint)>> = Mutex::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// cuMemGetHandleForAddressRange.
pub(crate) fn export((address, bytes): (u64, u64), kind: u32, flags: u64) -> Answer<i32> {
    process::cards()?;
    if kind != DESCRIPTOR {
        return Err(NOT_SUPPORTED);
    }
    let is_even = address.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && bytes > 0;
    if !is_even || flags & !OVER_PCIE != 0 {
        return Err(INVALID_VALUE);
    }
    if let Some(descriptor) = vmm::export_range(address, bytes)? {
        return Ok(descriptor);
    }
    let found = memory::find(address).ok_or(INVALID_VALUE)?;
    let (Payer::Card(MemoryKind::Plain, _), Ok((_, at))) = (&found.payer, memory::range(address, bytes))
    else {
        return Err(INVALID_VALUE);
    };
    let seat = process::cards()?.get(found.device).ok_or(INVALID_DEVICE)?.seat()?;
    let (descriptor, export) =
        shared::export(&ExportDescription::of(seat, Maker::Range, (found.backing.offset + at, bytes)))?;
    lock(&EXPORTED).push((found.id, export));
    ANY.store(true, Ordering::Release);
    Ok(shared::give_away(descriptor))
}

fn is_open(id: u64) -> bool {
    let mut exported = lock(&EXPORTED);
    exported.retain(|(_, export)| export.is_open());
    exported.iter().any(|(other, _)| *other == id)
}

/// Whether a descriptor of freed memory is still open: the memory then stays on the card until it closes.
pub(crate) fn keeps(freed: &Allocation, room: Footprint) -> bool {
    let keeps = ANY.load(Ordering::Acquire) && is_open(freed.id);
    if keeps {
        lock(&FREED).push((freed.clone(), room));
    }
    keeps
}

/// Gives back freed memory after its last descriptor closes.
pub(crate) fn collect() {
    if !ANY.load(Ordering::Acquire) {
        return;
    }
    let gone = lock(&FREED).extract_if(.., |(freed, _)| !is_open(freed.id)).collect::<Vec<_>>();
    for (freed, room) in gone {
        let Some(ours) = process::cards().ok().and_then(|cards| cards.get(freed.device)) else { continue };
        room::give(ours, MemoryKind::Plain, (freed.id, room, &freed.backing));
    }
}
