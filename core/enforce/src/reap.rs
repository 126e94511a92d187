//! Releases the leaked memory of exited processes: freeze, wait until no thread of a live process is inside, recount, unfreeze.
//!
//! ```text
//!   freeze ──▶ no thread inside ──▶ sum over live processes ──▶ free other slots ──▶ unfreeze, with the sum
//!     ▲                                                                              │
//!     └───── another reaper froze again: this reaper's result is discarded ◀─────────┘
//! ```
//!
//! A reaper may be killed anywhere, or stopped for hours and then continue. So there is no lock: the next reaper freezes again
//! with a higher number, which invalidates the earlier reaper's sum. A late reaper's other writes are harmless: it frees slots of
//! exited processes if they still own them, and empties none. Reapers take turns best-effort.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::memory::{BYTES, FREEZE, bytes_in};

/// One process slot as a reaper reads it.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Threads inside.
    pub inside: &'a AtomicU32,
    /// Bytes reserved.
    pub used: &'a AtomicU64,
    /// The owner word.
    pub word: &'a AtomicU64,
    /// Its value at the liveness check.
    pub seen: u64,
    /// The result of that check.
    pub owner: Owner,
}

/// Whether the owner of a slot is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It is, or its state is unknown: its memory stays accounted.
    Alive,
    /// It exited, and its memory stays accounted in this slot.
    Left,
    /// It certainly exited; the owner word takes this value when the slot is free.
    Dead(u64),
}

/// How far a recount came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recount {
    /// The accounting is exact and unfrozen.
    Done {
        /// Bytes of live processes.
        total: u64,
        /// Bytes released for exited processes.
        returned: u64,
    },
    /// A thread of a live process is inside: call [`AccountingFreeze::recount`] again after a moment, or [`AccountingFreeze::give_back`] and recount
    /// later.
    Busy,
    /// Another process froze or unfroze the accounting since.
    Overtaken,
}

/// One freeze of the accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountingFreeze(u64);

impl AccountingFreeze {
    /// Freezes the accounting: from now on no reservation succeeds. This invalidates an earlier freeze.
    pub fn begin(total: &AtomicU64, closings: &AtomicU64) -> Self {
        let count = closings.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let closing = Self(FREEZE | (count << 48) & !FREEZE);
        let closed = |seen: u64| Some(closing.0 | bytes_in(seen).min(BYTES));
        let _before = total.fetch_update(Ordering::SeqCst, Ordering::SeqCst, closed);
        closing
    }

    /// Recounts: frees the slots of exited processes, sets `total` to the sum over the others, unfreezes. `slots` yields all slots
    /// with an owner at the time of each iteration.
    pub fn recount<'a>(self, total: &AtomicU64, slots: impl Iterator<Item = Slot<'a>> + Clone) -> Recount {
        let busy =
            slots.clone().any(|slot| slot.owner == Owner::Alive && slot.inside.load(Ordering::SeqCst) != 0);
        if busy {
            return if self.is_in_force(total) { Recount::Busy } else { Recount::Overtaken };
        }
        let (mut sum, mut returned) = (0_u64, 0_u64);
        for slot in slots {
            let used = slot.used.load(Ordering::SeqCst);
            match slot.owner {
                Owner::Alive | Owner::Left => sum = sum.saturating_add(used),
                Owner::Dead(free) => returned = returned.saturating_add(slot.free(free, used)),
            }
        }
        // A hostile slot may claim anything.
        let sum = sum.min(BYTES);
        match self.open(total, |_| sum) {
            true => Recount::Done { total: sum, returned },
            false => Recount::Overtaken,
        }
    }

    /// Unfreezes with the recorded bytes of exited processes subtracted, for when a thread of a live, stopped process stays inside.
    /// Bytes that an exited process had not recorded stay in the total until a recount. Returns the released bytes.
    pub fn give_back<'a>(self, total: &AtomicU64, slots: impl Iterator<Item = Slot<'a>>) -> u64 {
        let mut returned = 0_u64;
        for slot in slots {
            // Recorded bytes are in the total: they are added to it before and taken off it after.
            if let Owner::Dead(free) = slot.owner {
                returned = returned.saturating_add(slot.free(free, slot.used.load(Ordering::SeqCst)));
            }
        }
        match self.open(total, |bytes| bytes.saturating_sub(returned)) {
            true => returned,
            false => 0,
        }
    }

    /// Unfreezes without a recount: a total that was too high stays too high.
    pub fn open_as_they_are(self, total: &AtomicU64) {
        self.open(total, |bytes| bytes);
    }

    fn is_in_force(self, total: &AtomicU64) -> bool {
        total.load(Ordering::SeqCst) & !BYTES == self.0
    }

    /// False: another process froze or unfroze the accounting.
    fn open(self, total: &AtomicU64, with: impl Fn(u64) -> u64) -> bool {
        let opened = |seen: u64| (seen & !BYTES == self.0).then(|| with(seen & BYTES));
        total.fetch_update(Ordering::SeqCst, Ordering::SeqCst, opened).is_ok()
    }
}

impl Slot<'_> {
    /// Frees the slot of an exited owner, if it still owns it; returns the released bytes. The slot's bytes stay: the next owner
    /// sets them to zero.
    fn free(&self, free: u64, used: u64) -> u64 {
        let freed = self.word.compare_exchange(self.seen, free, Ordering::SeqCst, Ordering::SeqCst);
        if freed.is_ok() { used } else { 0 }
    }
}
