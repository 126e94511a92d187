//! Work that an exited process left on the card: its markers cannot be queried any more, so elapsed time is the bill.
//!
//! ```text
//!   live:    launch ─▶ since ──────────▶ settled ─▶ 0
//!   exited:  launch ─▶ since ───── ✝ ──▶ reaper: now − since is billed
//! ```
//!
//! A process publishes since when it may have unbilled work; the reaper of its slot calls [`UnbilledScan::bill`]. The tenant can write the
//! word: it changes only the tenant's own accounting, and by at most [`LONGEST`] for each process.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::bucket::Bucket;
use crate::cells::{Cells, Stretch};
use crate::units::{Nanos, Ppm};

/// Greatest bill of one exited process: a program may exit long after its last driver call.
pub const LONGEST: Nanos = Nanos::from_millis(20_000);

/// The compute accounting of a tenant.
#[derive(Clone, Copy, Debug)]
pub struct ComputeAccounting<'a> {
    /// Credit.
    pub bucket: Bucket<'a>,
    /// Recent device time.
    pub cells: Cells<'a>,
    /// Device time used by the tenant.
    pub device_nanos: &'a AtomicU64,
}

impl ComputeAccounting<'_> {
    /// Bills the part of a stretch that is not billed yet; returns that part.
    pub fn bill(&self, stretch: &Stretch) -> Nanos {
        let billed = self.cells.charge(stretch);
        self.bucket.owe(billed);
        self.device_nanos.fetch_add(billed.0, Ordering::Relaxed);
        billed
    }
}

/// One pass over exited processes: each owes its part of the time since its launch, and all together at most the elapsed time.
#[derive(Debug)]
pub struct UnbilledScan {
    now: Nanos,
    /// Earliest moment when any of them had work.
    from: Nanos,
    /// Their sum so far.
    owed: Nanos,
}

impl UnbilledScan {
    /// A pass at this moment.
    #[must_use]
    pub const fn new(now: Nanos) -> Self {
        Self { now, from: now, owed: Nanos::ZERO }
    }

    /// Bills the work that an exited process left. `own` is the tenant's part of the card during each process's work, so processes
    /// that exited together owe that part each. Within the last half second no time is billed twice, whichever process reported
    /// it. The word is set to zero, so a second call bills nothing.
    pub fn bill(&mut self, since: &AtomicU64, own: Ppm, books: &ComputeAccounting<'_>) -> Nanos {
        let word = since.swap(0, Ordering::AcqRel);
        let start = Nanos(word.max(self.now.minus(LONGEST).0));
        if word == 0 || start >= self.now {
            return Nanos::ZERO;
        }
        self.from = self.from.min(start);
        let left = self.now.minus(self.from).minus(self.owed);
        let amount = own.times(self.now.minus(start)).min(left);
        self.owed = self.owed.plus(amount);
        books.bill(&Stretch { start, end: self.now, amount, counted_until: Nanos::ZERO })
    }
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
        let books = ComputeAccounting {
            bucket: Bucket { credit: &credit, refilled_at: &refilled },
            cells: Cells::new(&ring),
            device_nanos: &device,
        };
        let now = Nanos(100_000 * MILLI);
        let left = |since: u64, own: Ppm| {
            let word = AtomicU64::new(since);
            let billed = UnbilledScan::new(now).bill(&word, own, &books);
            assert_eq!(word.load(Ordering::Relaxed), 0);
            billed.0
        };
        assert_eq!(left(now.0 - 200 * MILLI, Ppm::ALL), 200 * MILLI);
        assert_eq!(credit.load(Ordering::Relaxed), -i64::try_from(200 * MILLI).unwrap());
        // The same time of another process is billed already, up to the room in the cells at either end.
        assert!(left(now.0 - 200 * MILLI, Ppm::ALL) <= 2 * MILLI);
        assert!((195 * MILLI..=200 * MILLI).contains(&left(now.0 - 400 * MILLI, Ppm::new(500_000))));
        for nothing in [0, now.0, now.0 + 1, u64::MAX] {
            assert_eq!(left(nothing, Ppm::ALL), 0);
        }
        assert!(left(1, Ppm::ALL) <= LONGEST.0);
        // Eight processes that exited together ten seconds after their last driver call owe these ten seconds.
        let mut pass = UnbilledScan::new(now);
        let each = [9_000, 10_000, 8_000, 10_000, 5_000, 10_000, 10_000, 1_000].map(|age| {
            let word = AtomicU64::new(now.0 - age * MILLI);
            pass.bill(&word, Ppm::ALL, &books).0
        });
        assert!((9_000 * MILLI..=10_000 * MILLI).contains(&each.iter().sum::<u64>()), "{each:?}");
        // Beside other tenants each had its turns: three owe a fifth of their time each, and seven at most the elapsed time.
        for (dead, owed) in [(3, 6_000), (7, 10_000)] {
            let mut pass = UnbilledScan::new(Nanos(now.0 + 60_000 * MILLI));
            let sum: u64 = (0..dead)
                .map(|_| {
                    let word = AtomicU64::new(now.0 + 50_000 * MILLI);
                    pass.bill(&word, Ppm::new(200_000), &books).0
                })
                .sum();
            assert!((owed - 600..=owed).contains(&(sum / MILLI)), "{dead}: {sum} ns");
        }
        assert_eq!(device.load(Ordering::Relaxed).cast_signed(), -credit.load(Ordering::Relaxed));
    }
}
