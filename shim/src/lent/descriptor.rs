//! Physical memory that others may have by descriptors (`cuMemExportToShareableHandle`). A driver keeps it until its maker has let
//! go of it, every importer has, and the last copy of each descriptor is closed; whoever dies first.
//!
//! ```text
//!   export ─▶ a slot of its own, as for memory that is lent by a handle; and a mark on the descriptor
//!   import ─▶ the mark says which slot: held until the import ends
//!        └──▶ no such slot, though of this grant: its maker is gone, nobody had it: charged anew, in a slot of its own
//! ```
//!
//! The mark is a lock of the descriptor's open file description, on a byte far behind every file: it goes wherever copies of the
//! descriptor go, and the kernel tells of it in `/proc/self/fdinfo`. Where a descriptor takes no lock, or is none (a fabric handle),
//! the memory is one of a crowd, and an importer of what has no mark holds all crowds.

use core::ffi::c_int;

use super::{Entry, Lent, MADE, Room, Tag, move_bytes, move_out, take_any, take_slot};
use crate::account::{Bytes, Ledger};
use crate::alloc_map::{Key, Tie};
use crate::grants::Usage;
use crate::life;
use crate::measured::wait_at_door;
use crate::plain;
use crate::process;
use crate::sys::{self, KeepErrno};
use crate::vendor::OUT_OF_MEMORY;

use aliquot_abi::layout::slot::LET_GO;
use core::sync::atomic::Ordering;

/// The byte that is locked: which slot of which grant had the memory, and how much it is.
///
/// Bit 62; 26 bits of [`UNIT`]s; 12 of the usage file; 14 of the slot's generation, 10 of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

const MARKED: u64 = 1 << 62;
/// Bytes of physical memory come in multiples of it.
const UNIT: u64 = 64 << 10;
const UNITS_MAX: u64 = (1 << 26) - 1;
/// Turns given away for a thread that exports the same memory for the first time.
const TURNS_MAX: u32 = 10_000;

/// Bits of a usage file.
fn grant_of(usage: Usage) -> u64 {
    usage.inode().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52
}

impl Mark {
    fn new(lent: Lent, bytes: Bytes) -> Self {
        let units = bytes.0.div_ceil(UNIT).min(UNITS_MAX);
        let slot = (lent.owner >> 32 & 0x3fff) << 10 | u64::from(lent.number & 1023);
        Self(MARKED | units << 36 | grant_of(lent.usage) << 24 | slot)
    }

    /// What a descriptor has, if it was exported with a mark.
    pub(crate) fn of(descriptor: c_int) -> Option<Self> {
        let _errno = KeepErrno::new();
        process::lock_of(descriptor, MARKED..MARKED << 1).map(Self)
    }

    /// That of the slot.
    pub(super) fn tag(self) -> Tag {
        Tag(self.0)
    }

    fn bytes(self) -> Bytes {
        Bytes((self.0 >> 36 & UNITS_MAX) * UNIT)
    }

    fn is_of(self, usage: Usage) -> bool {
        self.0 >> 24 & 0xfff == grant_of(usage)
    }

    /// Puts it on a descriptor. False: that takes none.
    fn put(self, descriptor: c_int) -> bool {
        sys::share_description(descriptor, self.0) && Self::of(descriptor) == Some(self)
    }
}

/// Whether a descriptor takes a mark.
fn takes_marks(descriptor: c_int) -> bool {
    let trial = Mark(MARKED);
    let takes = trial.put(descriptor);
    sys::unlock_description(descriptor, trial.0);
    takes
}

/// Physical memory of this process that others may import from now on, by a descriptor if it is one. An error: that cannot be written down.
pub(crate) fn lend_physical(
    entry: &impl Entry,
    key: Key,
    (bytes, grant): (Bytes, u32),
    descriptor: Option<c_int>,
) -> Result<(), i32> {
    let _errno = KeepErrno::new();
    let Some(ledger) = plain::ledger(grant) else { return Ok(()) };
    let has_mark = descriptor.is_some_and(takes_marks);
    // Nobody finds it by this: the slot's own comes once it is known which.
    let first = has_mark.then_some(Tag(MARKED));
    let Some(lent) = take_any(ledger, first) else { return Err(ledger.refuse()) };
    if let (Room::One, Some(slot)) = (lent.room, lent.slot()) {
        slot.tag().store(Mark::new(lent, bytes).0, Ordering::SeqCst);
    }
    move_out(entry, key, (ledger, lent), lent.place(ledger, bytes, Tie(0)))?;
    mark_again(key, descriptor)
}

/// One more descriptor of what is lent under this key.
pub(crate) fn mark_again(key: Key, descriptor: Option<c_int>) -> Result<(), i32> {
    let Some(descriptor) = descriptor else { return Ok(()) };
    let _errno = KeepErrno::new();
    let mut turns = 0..TURNS_MAX;
    let place = loop {
        match MADE.get(key) {
            Some(place) => break place,
            None if turns.next().is_none() => return Err(OUT_OF_MEMORY),
            None => sys::yield_now(),
        }
    };
    match place.lent() {
        Some((lent, ledger)) if lent.room == Room::One => {
            Mark::new(lent, place.bytes).put(descriptor).then_some(()).ok_or_else(|| ledger.refuse())
        }
        _ => Ok(()),
    }
}

/// Memory of this container that nobody had when its maker ended: who imports it pays. `None`: it is of another one.
pub(super) fn adopt(
    mark: Mark,
    mut ledgers: impl Iterator<Item = Ledger>,
) -> Result<Option<(Lent, Ledger)>, i32> {
    let Some(ledger) = ledgers.find(|ledger| mark.is_of(ledger.usage())) else { return Ok(None) };
    wait_at_door(ledger);
    let _moving = ledger.moving();
    ledger.reserve(mark.bytes()).map_err(|_| ledger.refuse())?;
    let lent = life::one_at_a_time(|| take_slot(ledger.usage(), mark.tag()));
    let Some(lent) = lent.filter(|lent| move_bytes(ledger, *lent, mark.bytes())) else {
        ledger.release(mark.bytes());
        lent.into_iter().for_each(|lent| lent.let_go(ledger));
        return Err(ledger.refuse());
    };
    ledger.let_go(mark.bytes());
    if let Some(slot) = lent.slot() {
        slot.kind().store(LET_GO, Ordering::SeqCst);
    }
    Ok(Some((lent, ledger)))
}
