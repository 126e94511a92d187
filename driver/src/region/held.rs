//! Bytes in the slots of a usage file around one look at the driver, and presumptions lowered to what the driver shows.
//!
//! The arithmetic, and what a presumption is, are in [`aliquot_enforce::residue`]. A presumption leaves its slot, then the
//! total, by a recount: killed in between, the total is too high until the next one.

use std::io;
use std::sync::atomic::Ordering;

use aliquot_core::units::Bytes;
use aliquot_enforce::memory::bytes_in;
use aliquot_enforce::residue::{self, Calls};
use aliquot_enforce::units::Ppm;

use super::liveness::{OwnedSlot, own_namespace};
use super::watched::taken;
use super::{ReapOutcome, UsageFile};

/// Bytes of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotBytes {
    number: usize,
    owner: u64,
    /// The owner's pid in this process's namespace; `None`: of shared memory, or not known here.
    pub(crate) pid: Option<u32>,
    /// Reserved.
    pub(crate) used: u64,
    /// Of these, presumed.
    pub(crate) presumed: u64,
    /// Whether it is of memory that several processes may have open.
    pub(crate) is_shared: bool,
    /// Calls that began so far.
    begun: u32,
    /// Whether a call was under way when it was read, after its bytes.
    pub(crate) calls: Calls,
}

/// The total after presumptions were lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TotalState {
    /// It is the sum of the slots.
    Exact,
    /// It still has some of what was taken off: recount later.
    TooHigh,
}

// === impl UsageFile ===

impl UsageFile {
    /// Bytes that all processes have reserved.
    pub(crate) fn total(&self) -> u64 {
        self.view().map_or(0, |view| bytes_in(view.total().load(Ordering::SeqCst)))
    }

    /// The slots with an owner. The order of loads matters: a presumption that is read here, of a process without a call, was
    /// made for memory that the driver had given by then.
    pub(crate) fn slot_bytes(&self) -> Vec<SlotBytes> {
        let here = own_namespace();
        let read = |taken: OwnedSlot<'_>| {
            let presumed = taken.slot.presumed().load(Ordering::SeqCst);
            let ended = taken.slot.ended().load(Ordering::SeqCst);
            let begun = taken.slot.begun().load(Ordering::SeqCst);
            let is_shared = taken.is_lent();
            SlotBytes {
                number: taken.number,
                owner: taken.owner,
                pid: if is_shared { None } else { taken.pid_here(self.of_locks(), here) },
                used: taken.slot.used().load(Ordering::SeqCst),
                presumed,
                is_shared,
                begun,
                calls: if begun == ended { Calls::None } else { Calls::UnderWay },
            }
        };
        self.view().into_iter().flat_map(taken).map(read).collect()
    }

    /// Takes so much off the presumptions of these slots, of which the driver shows less. Without any it changes nothing.
    ///
    /// # Errors
    /// As for [`Self::reap`].
    pub(crate) fn lower_presumptions<'s>(
        &self,
        part: Ppm,
        slots: impl Iterator<Item = (&'s SlotBytes, Bytes)>,
    ) -> io::Result<TotalState> {
        let view = self.view()?;
        let mut lowered = 0_u64;
        for (seen, less) in slots.filter(|(_, less)| less.0 > 0) {
            let Some(slot) = view.slot(seen.number) else { continue };
            if slot.owner().load(Ordering::SeqCst) == seen.owner {
                lowered = lowered.saturating_add(residue::lower(slot.presumed(), slot.used(), less.0));
            }
        }
        if lowered == 0 { Ok(TotalState::Exact) } else { self.recount_total(part) }
    }

    /// Sets the total to the sum of the slots.
    ///
    /// # Errors
    /// As for [`Self::reap`].
    pub(crate) fn recount_total(&self, part: Ppm) -> io::Result<TotalState> {
        Ok(match self.recounted_to_size(part)?.0 {
            ReapOutcome::NoneExited | ReapOutcome::Dead { .. } => TotalState::Exact,
            ReapOutcome::Later | ReapOutcome::Torn => TotalState::TooHigh,
        })
    }
}

// === impl SlotBytes ===

impl SlotBytes {
    /// The slot and its owner.
    pub(crate) const fn identity(&self) -> (usize, u64) {
        (self.number, self.owner)
    }

    /// Whether a call began since this earlier reading of the slots, or another owner has it.
    pub(crate) fn has_moved_since(&self, earlier: &[Self]) -> bool {
        let same = |slot: &&Self| slot.identity() == self.identity();
        earlier.iter().find(same).is_none_or(|slot| slot.begun != self.begun)
    }

    /// The least of its bytes at this reading and at a later one; none if another process has the slot by then.
    pub(crate) fn least_used(&self, later: &[Self]) -> u64 {
        let same = later.iter().find(|slot| slot.identity() == self.identity());
        same.map_or(0, |same| same.used.min(self.used))
    }

    /// Whether it has presumed bytes alone, at this reading and at a later one, and no call was under way or began in between: then
    /// what a driver said meanwhile is of them.
    pub(crate) fn is_presumed_alone(&self, later: &[Self]) -> bool {
        let is_alone = |slot: &Self| slot.used == slot.presumed;
        let same = later.iter().find(|slot| slot.identity() == self.identity() && slot.begun == self.begun);
        self.calls == Calls::None && is_alone(self) && same.is_some_and(is_alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_counts_with_the_smaller_of_two_readings() {
        let slot = SlotBytes {
            number: 3,
            owner: 7,
            pid: Some(1),
            used: 10,
            presumed: 4,
            is_shared: false,
            begun: 5,
            calls: Calls::None,
        };
        let (other, more) = (SlotBytes { owner: 8, used: 1, ..slot }, SlotBytes { used: 12, ..slot });
        assert_eq!(slot.least_used(&[other, more]), 10, "taken after the driver's answer");
        assert_eq!(more.least_used(&[slot]), 10, "given back before it, perhaps");
        assert_eq!(slot.least_used(&[other]), 0, "another process has it");
    }

    #[test]
    fn slot_has_presumed_bytes_alone_while_nothing_moves() {
        let slot = SlotBytes {
            number: 3,
            owner: 7,
            pid: Some(1),
            used: 4,
            presumed: 4,
            is_shared: false,
            begun: 5,
            calls: Calls::None,
        };
        assert!(slot.is_presumed_alone(&[slot]));
        for (before, after) in [
            (SlotBytes { used: 6, ..slot }, slot),
            (slot, SlotBytes { used: 6, ..slot }),
            (slot, SlotBytes { begun: 6, ..slot }),
            (slot, SlotBytes { owner: 8, ..slot }),
            (SlotBytes { calls: Calls::UnderWay, ..slot }, slot),
        ] {
            assert!(!before.is_presumed_alone(&[after]), "{before:?} {after:?}");
        }
    }
}
