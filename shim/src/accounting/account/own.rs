//! The slot of this process in a grant, and its accounting.

use core::sync::atomic::Ordering;

use aliquot_abi::view::SlotView;
use aliquot_enforce::memory::{MemoryAccounting, Reservation};

use super::residue::see_lowered;
use super::{FROZEN_STEPS_MAX, Ledger, Private, REGISTERING, private};
use crate::accounting::life;
use crate::accounting::listeners::listeners;
use crate::sys::{self, KeepErrno};

/// Turns of the processor given away while another thread takes a slot.
const REGISTERING_TURNS_MAX: u32 = 100_000;

impl Ledger {
    /// Accounting of this process in this grant; `None` while it can have none.
    pub(super) fn books(self) -> Option<MemoryAccounting<'static>> {
        let (private, slot) = (private(self.grant.number)?, self.slot()?);
        see_lowered(private, slot);
        Some(self.books_in(private, slot))
    }

    /// The same, without taking a slot for it.
    pub(super) fn books_had(self) -> Option<MemoryAccounting<'static>> {
        let private = private(self.grant.number)?;
        let slot = self.own_slot(private, private.slot.load(Ordering::Acquire))?;
        Some(self.books_in(private, slot))
    }

    #[inline]
    pub(super) fn slot(self) -> Option<SlotView<'static>> {
        let private = private(self.grant.number)?;
        match self.own_slot(private, private.slot.load(Ordering::Acquire)) {
            Some(slot) => Some(slot),
            None => self.register(private),
        }
    }

    fn books_in(self, private: &'static Private, slot: SlotView<'static>) -> MemoryAccounting<'static> {
        let view = self.usage.view;
        MemoryAccounting {
            total: view.total(),
            high_water: view.high_water(),
            inside: slot.inside(),
            used: slot.used(),
            own: &private.own,
            apart: &private.apart,
            owed: slot.owed(),
        }
    }

    /// The slot, if it is still this process's: it may have been taken for dead, or written over.
    #[inline]
    pub(super) fn own_slot(self, private: &Private, number: u32) -> Option<SlotView<'static>> {
        if matches!(number, 0 | REGISTERING) {
            return None;
        }
        let slot = self.usage.view.slot(usize::try_from(number - 1).ok()?)?;
        let owner = slot.owner().load(Ordering::Acquire);
        (owner == private.owner.load(Ordering::Acquire)).then_some(slot)
    }

    #[cold]
    pub(super) fn register(self, private: &'static Private) -> Option<SlotView<'static>> {
        let _errno = KeepErrno::new();
        let mut turns = 0;
        loop {
            let seen = private.slot.load(Ordering::Acquire);
            if let Some(slot) = self.own_slot(private, seen) {
                return Some(slot);
            }
            if seen == REGISTERING {
                turns += 1;
                if turns == REGISTERING_TURNS_MAX {
                    return None;
                }
                sys::yield_now();
                continue;
            }
            let ours = private.slot.compare_exchange(seen, REGISTERING, Ordering::AcqRel, Ordering::Acquire);
            if ours.is_ok() {
                break;
            }
        }
        let look = || self.wait_for_reaper();
        let taken = life::take_slot(*self.usage, self.part(), &private.reaping, look);
        let slot = taken.and_then(|taken| {
            let slot = self.usage.view.slot(usize::try_from(taken.number).ok()?)?;
            private.owner.store(taken.owner, Ordering::Release);
            self.restore(&self.books_in(private, slot));
            slot.presumed().store(private.presumed.load(Ordering::Acquire), Ordering::Release);
            Some(slot)
        });
        let number = taken.filter(|_| slot.is_some()).map_or(0, |taken| taken.number + 1);
        private.slot.store(number, Ordering::Release);
        if slot.is_some() {
            // The agent does not read a share without a process.
            self.usage.touch();
        }
        slot
    }

    /// What this process holds goes into its new slot, if its earlier one was taken away; what it lends, only where that has no
    /// slot of its own any more.
    fn restore(self, books: &MemoryAccounting<'_>) {
        if let Some(listeners) = listeners() {
            (listeners.on_new_slot)(self, &|bytes| books.join(bytes.0));
        }
        for _ in 0..FROZEN_STEPS_MAX {
            if books.restore() != Reservation::Frozen {
                return;
            }
            self.wait_for_reaper();
        }
    }
}
