//! The reaper: finds exited processes, and gives back what they held.
//!
//! ```text
//!   look: a slot of a dead owner is marked so, for good ─▶ any marked, or accounting closed, or too high?
//!        └─▶ manners: the lock of all reapers, or a wait for the process that has it, not for long
//!             └─▶ close accounting ─▶ recount: marked slots are free ─▶ open
//! ```
//!
//! A process that is at it may be stopped anywhere, and go on at any time: others do the same work over, and nothing that it
//! does then harms them ([`aliquot_enforce::reap`]). The lock keeps two from doing it at once, no more. A mark is put on the
//! word that was looked at before the owner was: a holder of IPC-shared memory that came since has changed it.

use core::sync::atomic::{AtomicU32, Ordering};

use aliquot_abi::layout::slot::{GONE, LET_GO, freed};
use aliquot_abi::view::SlotView;
use aliquot_enforce::bucket::Bucket;
use aliquot_enforce::cells::Cells;
use aliquot_enforce::memory::FREEZE;
use aliquot_enforce::reap::{AccountingFreeze, Owner, Recount, Slot};
use aliquot_enforce::unbilled;
use aliquot_enforce::units::{Nanos, Ppm};

use super::{Identity, OwnSlot, is_dead, is_lent, is_unbilled, lock_place, pid_in, pid_of, slots};
use crate::accounting::liveness;
use crate::grants::Usage;
use crate::sys;

/// Byte of the usage file; its lock makes a reaper.
const REAPER: u64 = 0;
/// Longest wait for a living thread inside; it is there for some nanoseconds, unless it was stopped or has no processor.
const BUSY_NANOS_MAX: u64 = 5_000_000;
/// The same for the process that does another's work over, which waited already: less than any process waits for it, or none
/// would end.
const BUSY_AGAIN_NANOS_MAX: u64 = 1_000_000;

/// What came of a look at exited processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// Accounting is right, as far as any process can tell.
    Done,
    /// Another process is at it.
    Elsewhere,
}

/// What is done where another process is at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contention {
    /// It is left to him.
    Waits,
    /// The same again: he may have been stopped.
    Goes,
}

/// Gives back what exited processes held, bills what they left on the card, of which `part` is the tenant's, and opens
/// accounting that a reaper left closed. `reaping` keeps the threads of this process apart, which record locks do not.
pub(crate) fn reap(
    usage: Usage,
    part: Ppm,
    own: OwnSlot,
    (reaping, manners): (&AtomicU32, Contention),
) -> Reaped {
    let Some(file) = usage.file() else { return Reaped::Done };
    if reaping.swap(1, Ordering::AcqRel) != 0 && manners == Contention::Waits {
        return Reaped::Elsewhere;
    }
    let answer = look(usage, part, (file, manners), own);
    reaping.store(0, Ordering::Release);
    answer
}

/// The lock is taken where there is something to do, and nowhere else.
fn look(usage: Usage, part: Ppm, (file, manners): (i32, Contention), own: OwnSlot) -> Reaped {
    let me = Identity::own();
    if let OwnSlot::Slot(number) = own {
        // A program that closed all descriptors lost its lock with them.
        sys::lock_byte(file, lock_place(usize::try_from(number).unwrap_or(usize::MAX)));
    }
    let mut any = false;
    for (number, slot) in slots(usage) {
        any |= match fate(usage, file, (number, slot), me, own) {
            Fate::Stays => false,
            Fate::Left => {
                leave(usage, part, slot);
                false
            }
            Fate::Gone => true,
        };
    }
    if !any && usage.view.total().load(Ordering::Acquire) & FREEZE == 0 && !is_too_high(usage) {
        return Reaped::Done;
    }
    let has_lock = sys::lock_byte(file, REAPER);
    if !has_lock && manners == Contention::Waits {
        return Reaped::Elsewhere;
    }
    let answer = settle(usage, part, (file, manners, me), own);
    if has_lock {
        sys::unlock_byte(file, REAPER);
    }
    sys::wake_all(usage.view.wake());
    answer
}

/// What is to become of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Free, or of a process that lives.
    Stays,
    /// Its owner is dead, and the memory is where it was.
    Left,
    /// It goes, with all it has; it is marked.
    Gone,
}

fn fate(usage: Usage, file: i32, (number, slot): (usize, SlotView<'_>), me: Identity, own: OwnSlot) -> Fate {
    let owner = slot.owner().load(Ordering::SeqCst);
    if pid_in(owner).0 == 0 {
        return Fate::Stays;
    }
    if owner & GONE != 0 {
        return Fate::Gone;
    }
    if !is_dead(usage, file, (number, slot, owner), me, own) {
        return Fate::Stays;
    }
    if pid_in(owner) != me.pid && leaves_files(file, slot) {
        // Of a slot that another has by now nothing was found out.
        return if slot.owner().load(Ordering::SeqCst) == owner { Fate::Left } else { Fate::Stays };
    }
    // A process that took hold of IPC-shared memory since has changed the word; so has the process that freed it, and the one
    // that has it now.
    let marked = slot.owner().compare_exchange(owner, owner | GONE, Ordering::SeqCst, Ordering::SeqCst);
    if marked.is_ok() { Fate::Gone } else { Fate::Stays }
}

/// Recounts, with all that are marked left out.
fn settle(usage: Usage, part: Ppm, (file, manners, me): (i32, Contention, Identity), own: OwnSlot) -> Reaped {
    let (total, begun) = (usage.view.total(), sys::now());
    let busy_max = match manners {
        Contention::Waits => BUSY_NANOS_MAX,
        Contention::Goes => BUSY_AGAIN_NANOS_MAX,
    };
    bill_gone(usage, part);
    let all = slots(usage).filter_map(|(number, slot)| {
        let seen = slot.owner().load(Ordering::SeqCst);
        let is_inside = || slot.inside().load(Ordering::SeqCst) != 0;
        let owner = match pid_in(seen).0 {
            0 => return None,
            _ if seen & GONE != 0 => Owner::Dead(freed(seen)),
            _ if is_inside() && is_dead(usage, file, (number, slot, seen), me, own) => Owner::Left,
            _ => Owner::Alive,
        };
        Some(Slot { inside: slot.inside(), used: slot.used(), word: slot.owner(), seen, owner })
    });
    let closing = AccountingFreeze::begin(total, usage.view.closings());
    loop {
        match closing.recount(total, all.clone()) {
            Recount::Done { .. } => return Reaped::Done,
            Recount::Overtaken => return Reaped::Elsewhere,
            Recount::Busy => {}
        }
        if sys::now().saturating_sub(begun) > busy_max {
            // A process was stopped inside: what exited processes had recorded goes back all the same.
            closing.give_back(total, all);
            return Reaped::Done;
        }
        sys::yield_now();
    }
}

/// Counts exited processes, and puts into accounting what they left on the card. Before their slots are free: a process that
/// finds one so finds that a process died.
fn bill_gone(usage: Usage, part: Ppm) {
    let (mut pass, books, mut count) = (unbilled::UnbilledScan::new(Nanos(sys::now())), billed(usage), 0);
    for (_, slot) in slots(usage) {
        let owner = slot.owner().load(Ordering::SeqCst);
        if pid_in(owner).0 != 0 && owner & GONE != 0 {
            pass.bill(slot.unbilled_since(), part, &books);
            count += u64::from(!is_lent(slot));
        }
    }
    usage.view.reaped().fetch_add(count, Ordering::SeqCst);
}

/// Its owner is in no call any more, and what it had put on the card is billed.
fn leave(usage: Usage, part: Ppm, slot: SlotView<'_>) {
    let (begun, ended) = (slot.begun().load(Ordering::SeqCst), slot.ended().load(Ordering::SeqCst));
    let _is_another_owners = slot.ended().compare_exchange(ended, begun, Ordering::SeqCst, Ordering::SeqCst);
    if is_unbilled(slot) {
        unbilled::UnbilledScan::new(Nanos(sys::now())).bill(slot.unbilled_since(), part, &billed(usage));
    }
}

fn billed(usage: Usage) -> unbilled::ComputeAccounting<'static> {
    let view = usage.view;
    unbilled::ComputeAccounting {
        bucket: Bucket { credit: view.credit_nanos(), refilled_at: view.refilled_at() },
        cells: Cells::new(view.cells()),
        device_nanos: view.device_nanos(),
    }
}

/// Whether the memory of a dead owner is where it was: a forked child has the driver's files, or the owner's address space
/// outlives it, as a reader of `/proc/<pid>/maps` has it, and with it the driver's mappings of these files.
fn leaves_files(file: i32, slot: SlotView<'_>) -> bool {
    let sign = slot.sign().load(Ordering::Acquire);
    slot.kind().load(Ordering::Acquire) != LET_GO
        && (liveness::has_files(file, sign) || liveness::is_shown(file, sign))
}

/// Whether the total is more than all slots together, while no process is on the way: a reaper gave up once, or a process
/// wrote there.
fn is_too_high(usage: Usage) -> bool {
    let total = usage.view.total().load(Ordering::SeqCst);
    let mut sum = 0_u64;
    for (_, slot) in slots(usage) {
        if pid_of(slot).0 == 0 {
            continue;
        }
        if slot.inside().load(Ordering::SeqCst) != 0 {
            return false;
        }
        sum = sum.saturating_add(slot.used().load(Ordering::SeqCst));
    }
    total > sum && usage.view.total().load(Ordering::SeqCst) == total
}
