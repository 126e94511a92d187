//! Which pages of the card an allocation takes.
//!
//! ```text
//!   request > half a slab ──▶ whole pages of its own
//!   smaller request       ──▶ a slab, by default one page: shared by small allocations of one kind and context,
//!                             on the card until the last of them is freed
//!   slab and page_bytes <= alloc_bytes: requests take units of alloc_bytes, and there are no slabs
//! ```

use crate::code::{Answer, OUT_OF_MEMORY};
use crate::heap::Backing;
use crate::ipc;
use crate::process::{OurCard, lock};
use aliquot_sim_device::{LetGo, MemoryKind};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Managed memory in slabs is mapped for the host in pages of this many bytes.
const HOST_PAGE: u64 = 4096;
/// Set in a slab's number: no allocation has such a number.
const SLAB: u64 = 1 << 63;

/// What an allocation takes of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Footprint {
    /// So many bytes of its own.
    Own(u64),
    /// A part of a slab.
    Slab {
        /// Its number.
        slab: u64,
        /// Where the part begins, in bytes.
        at: u64,
        /// Bytes of the part.
        bytes: u64,
    },
}

/// What small allocations must have in common to share a slab.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SlabOwner {
    device: usize,
    context: u64,
    kind: MemoryKind,
}

/// Pages in parts.
struct Slab {
    owner: SlabOwner,
    bytes: u64,
    address: u64,
    backing: Backing,
    /// Free parts: where each begins, and its bytes.
    free: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct Slabs {
    all: BTreeMap<u64, Slab>,
    /// Those with free parts, in the order in which they are tried.
    open: BTreeMap<u64, ()>,
}

static SLABS: Mutex<Slabs> = Mutex::new(Slabs { all: BTreeMap::new(), open: BTreeMap::new() });
static NEXT: AtomicU64 = AtomicU64::new(SLAB | 1);

impl Slab {
    /// A part of so many bytes: where it begins.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (at, free) = self.free.iter().find(|(_, free)| **free >= bytes).map(|(at, free)| (*at, *free))?;
        self.free.remove(&at);
        if free > bytes {
            self.free.insert(at + bytes, free - bytes);
        }
        Some(at)
    }

    fn give(&mut self, (mut at, mut bytes): (u64, u64)) {
        if let Some(behind) = self.free.remove(&(at + bytes)) {
            bytes += behind;
        }
        if let Some((before, free)) = self.free.range(..at).next_back().map(|(at, free)| (*at, *free))
            && before + free == at
        {
            (at, bytes) = (before, bytes + free);
        }
        self.free.insert(at, bytes);
    }

    fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&self.bytes)
    }

    fn part(&self, number: u64, at: u64, bytes: u64) -> (u64, Backing, Footprint) {
        let backing = self.backing.part(at);
        (self.address + at, backing, Footprint::Slab { slab: number, at, bytes })
    }
}

impl Slabs {
    fn take(&mut self, owner: SlabOwner, bytes: u64) -> Option<(u64, Backing, Footprint)> {
        let (number, at) = self.open.keys().find_map(|number| {
            let slab = self.all.get_mut(number).filter(|slab| slab.owner == owner)?;
            slab.take(bytes).map(|at| (*number, at))
        })?;
        let slab = self.all.get(&number)?;
        if slab.free.is_empty() {
            self.open.remove(&number);
        }
        Some(slab.part(number, at, bytes))
    }

    /// The slab itself, where its last part was given back.
    fn give(&mut self, number: u64, part: (u64, u64)) -> Option<Slab> {
        let slab = self.all.get_mut(&number)?;
        slab.give(part);
        self.open.insert(number, ());
        if !slab.is_empty() {
            return None;
        }
        self.open.remove(&number);
        self.all.remove(&number)
    }
}

/// Room for `bytes` on a card: the address, the content, and what it takes.
pub(crate) fn take(
    ours: &OurCard,
    (device, context): (usize, u64),
    kind: MemoryKind,
    bytes: u64,
) -> Answer<(u64, Backing, Footprint)> {
    let (unit, page) = (ours.card.node().alloc_bytes, ours.card.node().page_bytes);
    let slab_bytes = ours.card.node().slab();
    if slab_bytes <= unit || bytes > slab_bytes / 2 {
        let charged = bytes.checked_next_multiple_of(page.max(unit)).ok_or(OUT_OF_MEMORY)?;
        ours.take(kind, charged)?;
        let taken = ours.heap().and_then(|heap| heap.take(charged));
        let (address, backing) = taken.inspect_err(|_| ours.give(kind, charged))?;
        return Ok((address, backing, Footprint::Own(charged)));
    }
    let unit = if kind == MemoryKind::Managed { unit.max(HOST_PAGE) } else { unit };
    let (bytes, owner) =
        (bytes.max(1).next_multiple_of(unit).min(slab_bytes), SlabOwner { device, context, kind });
    ours.well()?;
    if let Some(found) = lock(&SLABS).take(owner, bytes) {
        return Ok(found);
    }
    ours.take(kind, slab_bytes)?;
    let taken = ours.heap().and_then(|heap| heap.take(slab_bytes));
    let (address, backing) = taken.inspect_err(|_| ours.give(kind, slab_bytes))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut slab =
        Slab { owner, bytes: slab_bytes, address, backing, free: BTreeMap::from([(0, slab_bytes)]) };
    let at = slab.take(bytes).ok_or(OUT_OF_MEMORY)?;
    let part = slab.part(number, at, bytes);
    let mut slabs = lock(&SLABS);
    if !slab.free.is_empty() {
        slabs.open.insert(number, ());
    }
    slabs.all.insert(number, slab);
    Ok(part)
}

/// Gives room back to the card; a slab with its last part.
pub(crate) fn give(ours: &OurCard, kind: MemoryKind, (id, room, backing): (u64, Footprint, &Backing)) {
    let Ok(heap) = ours.heap() else { return };
    match room {
        Footprint::Own(charged) => {
            if ipc::give(ours, id, (kind, charged)) == LetGo::Gone {
                heap.give(charged, backing);
            }
        }
        Footprint::Slab { slab, at, bytes } => {
            backing.forget(bytes);
            let Some(gone) = lock(&SLABS).give(slab, (at, bytes)) else { return };
            if ipc::give(ours, slab, (kind, gone.bytes)) == LetGo::Gone {
                heap.give(gone.bytes, &gone.backing);
            }
        }
    }
}

impl Footprint {
    /// What other processes open with an allocation of this room, and its bytes: all of a slab.
    pub(crate) fn lent(self, id: u64) -> (u64, u64) {
        match self {
            Self::Own(charged) => (id, charged),
            Self::Slab { slab, .. } => (slab, lock(&SLABS).all.get(&slab).map_or(0, |slab| slab.bytes)),
        }
    }
}
