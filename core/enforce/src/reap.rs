//! The holding of dead processes goes back: close the books, wait until no living thread is inside, recount, open.
//!
//! ```text
//!   close ──▶ nobody inside ──▶ sum over the living ──▶ dead slots are free ──▶ open, with the sum
//!     ▲                                                                          │
//!     └───── closed anew by another reaper: what this one does is in vain ◀──────┘
//! ```
//!
//! Whoever reaps may be killed anywhere, or stopped for hours and go on then. So there is no lock: the next one closes the books once
//! more, and the earlier one's sum is not taken, as they are not closed as it closed them. Nothing else that a reaper writes can
//! harm who came after it: it frees slots of whoever is dead, if they are still theirs, and empties none. Reapers may keep each
//! other waiting for manners.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::memory::{BYTES, FREEZE, bytes_in};

/// One process slot as a reaper sees it.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Threads inside.
    pub inside: &'a AtomicU32,
    /// Bytes reserved.
    pub used: &'a AtomicU64,
    /// The word that says whose it is.
    pub word: &'a AtomicU64,
    /// What it said when that was looked at.
    pub seen: u64,
    /// Whether the owner lives, as the caller found out.
    pub owner: Owner,
}

/// Whether the owner of a slot lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It does, or nobody can tell: its holding stays.
    Alive,
    /// It is dead, and its holding stays where it is.
    Left,
    /// It is gone for sure; the word is this when the slot is free.
    Dead(u64),
}

/// How far a recount came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recount {
    /// The books are right and open again.
    Done {
        /// Bytes held by the living.
        total: u64,
        /// Bytes given back for the dead.
        returned: u64,
    },
    /// A living thread is inside: call [`Closing::recount`] again after a moment, or [`Closing::give_back`] and leave it for later.
    Busy,
    /// Somebody else closed the books since, or opened them.
    Overtaken,
}

/// One closing of the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing(u64);

impl Closing {
    /// Closes the books: from now on nobody gets in. Who had closed them before has no say in it any more.
    pub fn begin(total: &AtomicU64, closings: &AtomicU64) -> Self {
        let count = closings.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let closing = Self(FREEZE | (count << 48) & !FREEZE);
        let closed = |seen: u64| Some(closing.0 | bytes_in(seen).min(BYTES));
        let _before = total.fetch_update(Ordering::SeqCst, Ordering::SeqCst, closed);
        closing
    }

    /// Recounts: the slots of the dead are free, `total` becomes the sum over the others, the books open. `slots` are all that
    /// have an owner now, whenever it is asked.
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

    /// Opens the books with what the dead had recorded off the total, for when one of the living stays inside (it was stopped). What
    /// somebody dead had not recorded yet stays in the total until a recount. Answers the bytes given back.
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

    /// Opens the books without recounting: what was too high stays too high.
    pub fn open_as_they_are(self, total: &AtomicU64) {
        self.open(total, |bytes| bytes);
    }

    fn is_in_force(self, total: &AtomicU64) -> bool {
        total.load(Ordering::SeqCst) & !BYTES == self.0
    }

    /// False: somebody else closed or opened them.
    fn open(self, total: &AtomicU64, with: impl Fn(u64) -> u64) -> bool {
        let opened = |seen: u64| (seen & !BYTES == self.0).then(|| with(seen & BYTES));
        total.fetch_update(Ordering::SeqCst, Ordering::SeqCst, opened).is_ok()
    }
}

impl Slot<'_> {
    /// Frees the slot of a dead owner, if it is still its; what that gives back. Its bytes stay there: who takes the slot begins with none.
    fn free(&self, free: u64, used: u64) -> u64 {
        let freed = self.word.compare_exchange(self.seen, free, Ordering::SeqCst, Ordering::SeqCst);
        if freed.is_ok() { used } else { 0 }
    }
}
