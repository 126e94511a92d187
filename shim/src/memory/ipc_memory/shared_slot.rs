//! What a process lends while slots are short: one slot for all of it, so that processes still find some.
//!
//! ```text
//!   export ─▶ the bytes move into the maker's shared slot, which lives as long as the maker and as any process has some of a shared slot open
//!   open, of what has no slot of its own ─▶ a shared lock on one byte, which the maker does not take
//!   free   ─▶ left in the shared slot ─▶ once no process has that lock: credited, when the maker looks
//! ```
//!
//! It is unknown which memory of a shared slot an opener has: what was freed stays charged while any process has some of it
//! open, and then until its maker is about to be refused, asks what is free, frees or lends some more, or ends.

use core::sync::atomic::{AtomicU32, Ordering};

use aliquot_abi::layout::slot::{CROWD, freed};

use super::{IpcSlot, SlotUse};
use crate::accounting::account::{self, Account, Bytes, Ledger};
use crate::accounting::alloc_map::{AllocMap, Key};
use crate::accounting::life::{self, AcquiredSlot};
use crate::grants;
use crate::sys::KeepErrno;

/// The shared slot of this process in a grant.
#[derive(Clone, Copy, Debug)]
struct SharedSlot {
    owner: u64,
    /// In it, and freed.
    left: Bytes,
    number: u32,
}

/// By the number of the grant.
static SHARED_SLOTS: AllocMap<SharedSlot> = AllocMap::new();
/// 1: something is left in one; after a fork for as long as no process looked.
static IS_LEFT: AtomicU32 = AtomicU32::new(0);

/// Accounting of this process.
pub(super) fn ledgers() -> impl Iterator<Item = Ledger> {
    grants::all().filter_map(|grant| match account::of_grant(grant) {
        Account::Counted(ledger) => Some(ledger),
        _ => None,
    })
}

fn key(ledger: Ledger) -> Key {
    Key(u64::try_from(ledger.number()).unwrap_or(u64::MAX - 1))
}

impl SharedSlot {
    fn lent(&self, ledger: Ledger) -> IpcSlot {
        IpcSlot { usage: ledger.usage(), number: self.number, owner: self.owner, room: SlotUse::Shared }
    }
}

/// Whether a slot is this process's shared slot.
pub(super) fn is_own(lent: IpcSlot) -> bool {
    let its = SHARED_SLOTS.get(Key(lent.usage.number()));
    lent.room == SlotUse::Shared
        && its.is_some_and(|shared| (shared.number, shared.owner) == (lent.number, lent.owner))
}

/// Whether this process has one.
pub(super) fn is_there(ledger: Ledger) -> bool {
    SHARED_SLOTS.get(key(ledger)).is_some_and(|shared| shared.lent(ledger).slot().is_some())
}

/// This process's shared slot, which begins if there is none; the caller keeps other threads out. `None`: there is no slot for
/// it.
pub(super) fn of(ledger: Ledger) -> Option<IpcSlot> {
    // Openers are seen by their locks.
    ledger.usage().file()?;
    if let Some(known) = SHARED_SLOTS.get(key(ledger)).map(|shared| shared.lent(ledger))
        && known.slot().is_some()
    {
        return Some(known);
    }
    // Noted before any process sees the slot, as its own process's reaper knows it by this alone. What an earlier one had left
    // was taken away with it.
    let mut note = |taken: AcquiredSlot| {
        let shared = SharedSlot { owner: freed(taken.owner), left: Bytes(0), number: taken.number };
        SHARED_SLOTS.insert(key(ledger), shared).is_ok()
    };
    let taken = life::take_for_lent(ledger.usage(), CROWD, &mut note);
    if taken.is_none() {
        SHARED_SLOTS.take(key(ledger));
    }
    taken.and_then(|_| Some(SHARED_SLOTS.get(key(ledger))?.lent(ledger)))
}

/// The vendor freed what was in a shared slot of this process.
pub(super) fn leave(lent: IpcSlot, bytes: Bytes) {
    SHARED_SLOTS.update(Key(lent.usage.number()), |shared| {
        if (shared.number, shared.owner) == (lent.number, lent.owner) {
            shared.left.0 = shared.left.0.saturating_add(bytes.0);
        }
    });
    IS_LEFT.store(1, Ordering::Release);
    settle();
}

/// What was left in this process's shared slots goes back, where no process has any shared slot open.
#[inline]
pub(crate) fn settle() {
    if IS_LEFT.load(Ordering::Acquire) != 0 {
        settle_all();
    }
}

#[cold]
fn settle_all() {
    let _errno = KeepErrno::new();
    IS_LEFT.store(0, Ordering::Release);
    for ledger in ledgers() {
        // A slot for this process is taken before other threads are kept from taking one.
        if SHARED_SLOTS.get(key(ledger)).is_some() && (!ledger.has_books() || !settle_in(ledger)) {
            IS_LEFT.store(1, Ordering::Release);
        }
    }
}

/// False: something stays.
fn settle_in(ledger: Ledger) -> bool {
    life::one_at_a_time(|| {
        let Some(shared) = SHARED_SLOTS.get(key(ledger)) else { return true };
        let lent = shared.lent(ledger);
        // Taken out before the lock is looked at: a process that opened any of it did so before it was freed, and still has
        // the lock.
        let left = SHARED_SLOTS.update(key(ledger), |shared| core::mem::replace(&mut shared.left, Bytes(0)));
        let left = left.unwrap_or(Bytes(0));
        let is_back = left.0 == 0
            || lent
                .slot()
                .is_none_or(|slot| !lent.is_held_elsewhere() && ledger.take_part(left, slot.used()));
        if !is_back {
            SHARED_SLOTS.update(key(ledger), |shared| shared.left.0 = shared.left.0.saturating_add(left.0));
        }
        is_back
    })
}

/// The lock of all shared slots of a grant.
fn lock_in(ledger: Ledger) -> IpcSlot {
    IpcSlot { usage: ledger.usage(), number: u32::MAX, owner: 0, room: SlotUse::Shared }
}

/// Holds the shared slots of all grants, if there is any: memory without a slot of its own may be in each. False: there is
/// none, or it cannot be held.
pub(super) fn hold_all() -> bool {
    if !ledgers().any(|ledger| life::lent(ledger.usage(), CROWD).is_some()) {
        return false;
    }
    // The sign of this process is shown before it has a lock.
    ledgers().for_each(|ledger| {
        let _sign = ledger.has_books();
    });
    life::one_at_a_time(|| {
        let held = ledgers().take_while(|ledger| lock_in(*ledger).hold()).count();
        let is_all = held == ledgers().count();
        if !is_all {
            ledgers().take(held).for_each(|ledger| drop_one(lock_in(ledger)));
        }
        is_all
    })
}

/// One hold less of them.
pub(super) fn drop_all() {
    life::one_at_a_time(|| ledgers().for_each(|ledger| drop_one(lock_in(ledger))));
}

fn drop_one(lent: IpcSlot) {
    if lent.is_last_hold() {
        lent.unlock();
    }
}
