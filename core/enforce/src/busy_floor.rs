//! Time in which the card certainly worked for the tenant, in steps of an eighth of a millisecond: a floor under the bills.
//!
//! A process knows when its work kept the card busy, but not whether a sibling process reported the same time. Here each recent
//! step is marked once, by the first process that reports it, in any order and however late.
//!
//! A word holds the number of its turn round the ring, and one bit for each of its steps. The tenant can write the words:
//! an invalid value reads as marked or as not.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::units::Nanos;

/// Bits of a step's length in nanoseconds.
const STEP_BITS: u32 = 17;
/// Length of a step. A stretch covers a step when it covers its middle, so stretches end to end cover each step once.
pub const STEP: Nanos = Nanos(1 << STEP_BITS);
/// Steps of a word; the other half is the turn.
const STEPS: u64 = 32;

/// Turns by which a word may be later than a report. A word that is later by more is corrupt.
const LATER_MAX: u64 = 64;

/// The ring of words.
#[derive(Clone, Copy, Debug)]
pub struct BusyFloor<'a>(&'a [AtomicU64]);

impl<'a> BusyFloor<'a> {
    /// Over a ring of any length.
    #[must_use]
    pub const fn new(ring: &'a [AtomicU64]) -> Self {
        Self(ring)
    }

    /// Marks the time from `start` to `end`; returns how much of it was not marked before. Time older than the ring is left out.
    #[must_use]
    pub fn mark(&self, start: Nanos, end: Nanos) -> Nanos {
        let step = |at: Nanos| at.0.saturating_add(STEP.0 / 2) >> STEP_BITS;
        let ring = u64::try_from(self.0.len()).unwrap_or(0);
        let (mut at, end) = (step(start), step(end));
        at = at.max(((end / STEPS).saturating_sub(ring.saturating_sub(1))) * STEPS);
        let mut fresh = 0;
        while at < end {
            let number = at / STEPS;
            let stop = end.min((number + 1) * STEPS);
            fresh += u64::from(self.set(number, bits(at % STEPS, stop - at)));
            at = stop;
        }
        Nanos(fresh << STEP_BITS)
    }

    /// Sets bits of one word; how many were not set.
    fn set(&self, number: u64, bits: u32) -> u32 {
        let length = u64::try_from(self.0.len()).unwrap_or(0);
        let (Some(place), Some(turn)) = (number.checked_rem(length), number.checked_div(length)) else {
            return 0;
        };
        let Some(word) = usize::try_from(place).ok().and_then(|place| self.0.get(place)) else { return 0 };
        let turn = turn & u64::from(u32::MAX);
        let mut fresh = 0;
        // What is older than the ring is left out.
        let _marked = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let ahead = (word >> 32).wrapping_sub(turn);
            fresh = 0;
            if (1..=LATER_MAX).contains(&ahead) {
                return None;
            }
            let held = if ahead == 0 { word & u64::from(u32::MAX) } else { 0 };
            fresh = (u64::from(bits) & !held).count_ones();
            Some(turn << 32 | held | u64::from(bits))
        });
        fresh
    }
}

/// `count` ones from bit `first` on.
fn bits(first: u64, count: u64) -> u32 {
    let ones = if count >= STEPS { u64::from(u32::MAX) } else { (1 << count) - 1 };
    u32::try_from((ones << first) & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_report_marks_once_and_erases_nothing() {
        let ring = [const { AtomicU64::new(0) }; 4];
        let sure = BusyFloor::new(&ring);
        let mark = |from: u64, till: u64| sure.mark(Nanos(from * STEP.0), Nanos(till * STEP.0)).0 / STEP.0;
        let turn = STEPS * 4;
        assert_eq!([mark(10 * turn, 10 * turn + 20), mark(11 * turn, 11 * turn + 20)], [20, 20]);
        // The word of both is the later one's.
        assert_eq!(mark(10 * turn, 10 * turn + 30), 0);
        assert_eq!([mark(11 * turn, 11 * turn + 20), mark(11 * turn, 11 * turn + 30)], [0, 10]);
        // A corrupt word does not block its steps for ever.
        ring[0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(mark(12 * turn, 12 * turn + 20), 20);
    }
}
