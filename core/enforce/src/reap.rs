//! The holding of dead processes goes back: freeze, wait until no living thread is inside, recount, thaw.
//!
//! Whoever calls this holds the region's kernel lock, so there is one reaper; a reaper that dies loses that lock, and the
//! next one finds the books frozen and simply starts again. Every step may be repeated. What the living gave back meanwhile is
//! taken off with the rest.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::memory::{FREEZE, saturating_take};

/// One process slot as a reaper sees it.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Threads inside.
    pub inside: &'a AtomicU32,
    /// Bytes reserved.
    pub used: &'a AtomicU64,
    /// Of them, bytes that the owner gave back while the books were closed.
    pub owed: &'a AtomicU64,
    /// Whether the owner lives, as the caller found out.
    pub owner: Owner,
}

/// Whether the owner of a slot lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It does, or nobody can tell: its holding stays.
    Alive,
    /// It is gone for sure.
    Dead,
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
    /// A living thread is inside: call [`recount`] again after a moment, or [`thaw`] and leave it for later.
    Busy,
}

/// Closes the books: from now on nobody gets in. Idempotent.
pub fn freeze(total: &AtomicU64) {
    total.fetch_or(FREEZE, Ordering::SeqCst);
}

/// Opens the books without recounting: what was too high stays too high. Idempotent.
pub fn thaw(total: &AtomicU64) {
    total.fetch_and(!FREEZE, Ordering::SeqCst);
}

/// Recounts frozen books: dead slots are emptied, `total` becomes the sum over the living, the books open.
///
/// The caller marks dead slots free afterwards; until then they count as empty.
pub fn recount<'a>(total: &AtomicU64, slots: impl Iterator<Item = Slot<'a>> + Clone) -> Recount {
    freeze(total);
    let busy =
        slots.clone().any(|slot| slot.owner == Owner::Alive && slot.inside.load(Ordering::SeqCst) != 0);
    if busy {
        return Recount::Busy;
    }
    let (mut sum, mut returned) = (0_u64, 0_u64);
    for slot in slots {
        match slot.owner {
            Owner::Alive => {
                // The owner is outside, and cannot get in to pay it. Killed in between, we leave too much on the books.
                let owed = slot.owed.swap(0, Ordering::SeqCst);
                let used = slot.used.load(Ordering::SeqCst).saturating_sub(owed);
                if owed > 0 {
                    slot.used.store(used, Ordering::SeqCst);
                }
                sum = sum.saturating_add(used);
            }
            Owner::Dead => {
                slot.owed.store(0, Ordering::SeqCst);
                returned = returned.saturating_add(slot.used.swap(0, Ordering::SeqCst));
                slot.inside.store(0, Ordering::SeqCst);
            }
        }
    }
    // A hostile slot may claim anything; the freeze bit is ours.
    let sum = sum.min(FREEZE - 1);
    total.store(sum, Ordering::SeqCst);
    Recount::Done { total: sum, returned }
}

/// Takes what the dead had recorded off the total while the living go on, for when one of them stays inside (it was stopped).
/// What somebody dead had not recorded yet stays in the total until a [`recount`]. Answers the bytes given back.
pub fn give_back<'a>(total: &AtomicU64, slots: impl Iterator<Item = Slot<'a>>) -> u64 {
    let mut returned = 0_u64;
    for slot in slots.filter(|slot| slot.owner == Owner::Dead) {
        // Recorded bytes are in the total: they are added to it before and taken off it after.
        let used = slot.used.swap(0, Ordering::SeqCst);
        slot.inside.store(0, Ordering::SeqCst);
        saturating_take(total, used);
        returned = returned.saturating_add(used);
    }
    returned
}
