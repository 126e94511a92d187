//! Work that a process left on the card when it died: nobody can ask its markers any more, so the clock is the bill.
//!
//! ```text
//!   living:  launch ─▶ since ──────────▶ settled ─▶ 0
//!   dead:    launch ─▶ since ───── ✝ ──▶ reaper: now − since goes onto the books
//! ```
//!
//! A process says since when it may have work that is not on the books; whoever reaps its slot calls [`bill`]. The word lies
//! where the tenant can write it: it moves the tenant's own books alone, and by no more than [`LONGEST`] for a process.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::bucket::Bucket;
use crate::cells::{Cells, Stretch};
use crate::units::{Nanos, Ppm};

/// Most that is billed for one dead process: a program may die long after it last asked the driver anything.
pub const LONGEST: Nanos = Nanos::from_millis(20_000);

/// The books of a tenant.
#[derive(Clone, Copy, Debug)]
pub struct Books<'a> {
    /// Credit.
    pub bucket: Bucket<'a>,
    /// Recent device time.
    pub cells: Cells<'a>,
    /// Device time used by the tenant.
    pub device_nanos: &'a AtomicU64,
}

/// Puts onto the books what a process left that is dead by `now`; `own` is the tenant's part of the card. What was billed
/// already for the same moments is not billed again. Once: the word is emptied.
pub fn bill(now: Nanos, since: &AtomicU64, own: Ppm, books: &Books<'_>) -> Nanos {
    let start = Nanos(since.swap(0, Ordering::AcqRel));
    if start == Nanos::ZERO || start >= now {
        return Nanos::ZERO;
    }
    let start = start.0.max(now.minus(LONGEST).0);
    let amount = own.times(now.minus(Nanos(start)));
    let stretch = Stretch { start: Nanos(start), end: now, amount, counted_until: Nanos::ZERO };
    let billed = books.cells.charge(&stretch);
    books.bucket.owe(billed);
    books.device_nanos.fetch_add(billed.0, Ordering::Relaxed);
    billed
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicI64, AtomicU32};

    const MILLI: u64 = 1_000_000;

    #[test]
    fn the_dead_are_billed_once_and_within_bounds() {
        let ring = [const { AtomicU32::new(0) }; 512];
        let (credit, refilled, device) = (AtomicI64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let books = Books {
            bucket: Bucket { credit: &credit, refilled_at: &refilled },
            cells: Cells::new(&ring),
            device_nanos: &device,
        };
        let now = Nanos(100_000 * MILLI);
        let left = |since: u64, own: Ppm| {
            let word = AtomicU64::new(since);
            let billed = bill(now, &word, own, &books);
            assert_eq!(word.load(Ordering::Relaxed), 0);
            billed.0
        };
        assert_eq!(left(now.0 - 200 * MILLI, Ppm::ALL), 200 * MILLI);
        assert_eq!(credit.load(Ordering::Relaxed), -i64::try_from(200 * MILLI).unwrap());
        // The same moments of another process are on the books already, but for what the cells at either end have room for.
        assert!(left(now.0 - 200 * MILLI, Ppm::ALL) <= 2 * MILLI);
        assert!((195 * MILLI..=200 * MILLI).contains(&left(now.0 - 400 * MILLI, Ppm::new(500_000))));
        for nothing in [0, now.0, now.0 + 1, u64::MAX] {
            assert_eq!(left(nothing, Ppm::ALL), 0);
        }
        assert!(left(1, Ppm::ALL) <= LONGEST.0);
        assert_eq!(device.load(Ordering::Relaxed).cast_signed(), -credit.load(Ordering::Relaxed));
    }
}
