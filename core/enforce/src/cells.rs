//! Recent device time, in cells of about a millisecond: no cell is charged more than its length.
//!
//! Processes of one tenant report the stretches in which they had work on the card, in any order and late. Stretches of processes
//! that take turns overlap; their charged sum is at most the elapsed time.
//!
//! ```text
//!   P1 reports   [──────────────]            cell:   0.4 │ 1.0 │ 0.6
//!   P2 reports          [─────────────]      adds:         0.0 │ 0.4 │ 0.9      charged: what was added
//! ```
//!
//! A cell holds the number of its turn round the ring and the nanoseconds charged. The tenant can write the cells:
//! an invalid value reads as full or as empty.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::units::Nanos;

/// Bits of a cell's length in nanoseconds.
const CELL_BITS: u32 = 20;
/// Length of a cell.
pub const CELL: Nanos = Nanos(1 << CELL_BITS);
/// Bits that hold the nanoseconds charged: a whole cell is one more than its offsets.
const FILL_BITS: u32 = CELL_BITS + 1;
const FILL_MASK: u32 = (1 << FILL_BITS) - 1;
const TURN_MASK: u32 = u32::MAX >> FILL_BITS;
/// Turns by which a cell may be later than a report: kernels of many turns end long before the process asks about them. A cell
/// that appears later by more is stale, and free.
const LATER_MAX: u32 = 64;

/// A stretch of time in which a process had work on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// From when, on the monotonic clock.
    pub start: Nanos,
    /// Till when.
    pub end: Nanos,
    /// Card time to charge for it.
    pub amount: Nanos,
    /// What lies before this is charged only as far as the ring goes back; zero charges all of it.
    pub counted_until: Nanos,
}

/// The ring of cells.
#[derive(Clone, Copy, Debug)]
pub struct Cells<'a>(&'a [AtomicU32]);

/// `part` of `whole` as a fraction of `amount`.
fn scaled(amount: Nanos, part: u64, whole: u64) -> u64 {
    // Stretches of seconds: one division of words, a tenth of what the wide one costs.
    if let Some(product) = amount.0.checked_mul(part) {
        return product.checked_div(whole).unwrap_or(0);
    }
    let share = (u128::from(amount.0) * u128::from(part)).checked_div(u128::from(whole));
    share.and_then(|share| u64::try_from(share).ok()).unwrap_or(0)
}

impl<'a> Cells<'a> {
    /// Over a ring of any length; a power of two keeps it cheap.
    #[must_use]
    pub const fn new(ring: &'a [AtomicU32]) -> Self {
        Self(ring)
    }

    /// Charges a stretch; returns how much of it was new. The amount is spread evenly; the excess of a full cell goes to cells
    /// of the stretch with room. Time older than the ring is charged without reading cells.
    #[must_use]
    pub fn charge(&self, stretch: &Stretch) -> Nanos {
        let Stretch { start, end, amount, counted_until } = *stretch;
        let whole = end.minus(start).0;
        let amount = amount.min(Nanos(whole));
        let ring = u64::try_from(self.0.len()).unwrap_or(0);
        let oldest = (end.0 >> CELL_BITS).saturating_sub(ring.saturating_sub(1)) << CELL_BITS;
        let oldest = self.taken_until(start.0.max(oldest), end.0).unwrap_or(oldest);
        let old = oldest.saturating_sub(start.0);
        let charged = scaled(amount, oldest.saturating_sub(start.0.max(counted_until.0)), whole);
        let first = start.0.max(oldest);
        let due = amount.0 - scaled(amount, old, whole);
        let mut placed = 0;
        let mut at = first;
        while at < end.0 {
            let stop = end.0.min(((at >> CELL_BITS) + 1) << CELL_BITS);
            // Up to here, rounded down: the parts add up to the amount.
            let part = scaled(Nanos(due), stop - first, end.0 - first);
            let before = scaled(Nanos(due), at - first, end.0 - first);
            placed += self.fill(at >> CELL_BITS, part - before);
            at = stop;
        }
        at = first;
        while at < end.0 && placed < due {
            placed += self.fill(at >> CELL_BITS, due - placed);
            at = ((at >> CELL_BITS) + 1) << CELL_BITS;
        }
        Nanos(charged + placed)
    }

    /// End of the last cell in that time that already holds a later turn, if any: another process reported later time first.
    fn taken_until(&self, from: u64, till: u64) -> Option<u64> {
        let later = |number: &u64| {
            let (cell, turn) = self.place(*number)?;
            let ahead = (cell.load(Ordering::Acquire) >> FILL_BITS).wrapping_sub(turn) & TURN_MASK;
            (1..=LATER_MAX).contains(&ahead).then_some(())
        };
        let mut numbers = (from >> CELL_BITS..till.div_ceil(CELL.0)).rev();
        let last = numbers.find(|number| later(number).is_some())?;
        Some(((last + 1) << CELL_BITS).min(till))
    }

    /// The cell of that number, and its turn round the ring.
    fn place(&self, number: u64) -> Option<(&AtomicU32, u32)> {
        let length = u64::try_from(self.0.len()).ok()?;
        let (place, turn) = (number.checked_rem(length)?, number.checked_div(length)?);
        let cell = usize::try_from(place).ok().and_then(|place| self.0.get(place))?;
        Some((cell, u32::try_from(turn & u64::from(TURN_MASK)).unwrap_or(0)))
    }

    /// Adds to one cell; what was added.
    fn fill(&self, number: u64, amount: u64) -> u64 {
        let Some((cell, turn)) = self.place(number) else { return amount };
        let mut added = 0;
        // Always succeeds: the closure never says no.
        let _always = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let held = if word >> FILL_BITS == turn { u64::from(word & FILL_MASK).min(CELL.0) } else { 0 };
            let full = held.saturating_add(amount).min(CELL.0);
            added = full - held;
            Some(turn << FILL_BITS | u32::try_from(full).unwrap_or(0))
        });
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_report_is_charged_once_and_erases_nothing() {
        let ring = [const { AtomicU32::new(0) }; 16];
        let cells = Cells::new(&ring);
        let at = |cell: u64| Nanos(cell * CELL.0);
        let charge = |from: u64, till: u64, counted: u64| {
            let (start, end) = (at(from), at(till));
            let stretch = Stretch { start, end, amount: end.minus(start), counted_until: at(counted) };
            cells.charge(&stretch).0 / CELL.0
        };
        assert_eq!([charge(1000, 1010, 0), charge(1000, 1024, 1010)], [10, 14]);
        // Cells of 1000 to 1008 are those of 1016 to 1024 by now.
        assert_eq!(charge(1000, 1012, 1024), 0);
        assert_eq!(charge(1000, 1024, 1024), 0);
        assert_eq!(
            charge(990, 1020, 995),
            13,
            "before the ring begins all time that was not counted is charged"
        );
        // Seconds later the ring is its own again.
        assert_eq!([charge(2000, 2010, 1024), charge(2000, 2010, 2010)], [10, 0]);
    }
}
