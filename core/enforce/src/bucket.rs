//! The tenant's account of device time: one word that all its processes race on, filled with time at the granted share.
//!
//! A launch may go while there is credit, and takes its whole cost even if that is more. A kernel of a second leaves a second of
//! debt; at a tenth of the card the next one waits nine seconds. Credit has room up to [`CREDIT_MAX`], so that half a second after
//! an idle period holds hardly more than the share. Beside other tenants it has room for the cost of one launch. So refunds, and
//! credit earned during others' turns, are not lost, also if a shorter launch comes before the next long one: [`CreditBound`] ends
//! growth, and never cuts saved credit.
//!
//! The tenant can write the words. Any value reads as a credit between -[`DEBT_MAX`] and [`SAVED_MAX`].

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::units::{Nanos, Ppm};

/// Most credit that is saved up: one hundredth of the half second over which a share is promised. It is also what a late
/// wake-up may catch up with.
pub const CREDIT_MAX: Nanos = Nanos::from_millis(5);
/// Most room there is for a launch that takes long.
pub const SAVED_MAX: Nanos = Nanos::from_millis(1_000);
/// Deepest debt, so that a spoilt word ends some day: more than sixteen processes with kernels of some seconds each make.
pub const DEBT_MAX: Nanos = Nanos::from_millis(120_000);
/// Below this a refill is not worth its two writes.
const REFILL_MIN: Nanos = Nanos::from_micros(5);

/// The account.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    /// Shared: credit in device nanoseconds; negative is debt.
    pub credit: &'a AtomicI64,
    /// Shared: monotonic nanoseconds of the last refill.
    pub refilled_at: &'a AtomicU64,
}

/// Less than there has to be: what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsufficientCredit {
    /// Credit in device nanoseconds.
    pub credit: i64,
}

/// Up to what credit is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditBound {
    /// Up to this it grows.
    pub saves: Nanos,
    /// Above that, what was saved before stays up to this.
    pub keeps: Nanos,
}

impl CreditBound {
    /// As much as there can be.
    pub const MOST: Self = Self { saves: SAVED_MAX, keeps: SAVED_MAX };

    /// Grows and is kept up to the same.
    #[must_use]
    pub const fn of(most: Nanos) -> Self {
        Self { saves: most, keeps: most }
    }

    /// What becomes of credit that was one amount and is to be another.
    fn hold(self, before: i64, after: i64) -> i64 {
        after.min(before.max(self.saves.signed())).min(self.keeps.signed())
    }
}

fn bounded(credit: i64) -> i64 {
    credit.clamp(-DEBT_MAX.signed(), SAVED_MAX.signed())
}

impl Bucket<'_> {
    /// Adds what the time since the last refill earned, as far as there is room.
    pub fn refill(&self, now: Nanos, granted: Ppm, room: CreditBound) {
        let at = self.refilled_at.load(Ordering::Acquire);
        if at > now.0 {
            // Never ours: the clock is one for all processes. Start again from here; a sibling may have been a moment later.
            if at - now.0 > REFILL_MIN.0 {
                self.renew(at, now);
            }
            return;
        }
        let passed = now.minus(Nanos(at));
        if passed >= REFILL_MIN && self.renew(at, now) {
            self.add(granted.times(passed).signed(), room);
        }
    }

    fn renew(&self, at: u64, now: Nanos) -> bool {
        self.refilled_at.compare_exchange(at, now.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes `amount` while there is so much credit at least; below zero it is debt that may be added to.
    ///
    /// # Errors
    /// [`InsufficientCredit`]: there is less.
    pub fn take(&self, amount: Nanos, least: i64) -> Result<(), InsufficientCredit> {
        let taken = self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
            let credit = bounded(credit);
            (credit >= least).then(|| credit.saturating_sub(amount.signed()))
        });
        taken.map(|_| ()).map_err(|credit| InsufficientCredit { credit: bounded(credit) })
    }

    /// Takes `amount` whatever there is.
    pub fn owe(&self, amount: Nanos) {
        self.add(-amount.signed(), CreditBound::MOST);
    }

    /// Adds what was charged too much, as far as there is room, or takes what was charged too little.
    pub fn add(&self, amount: i64, room: CreditBound) {
        if amount != 0 {
            // Always succeeds: the closure never says no.
            let _always = self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
                let credit = bounded(credit);
                Some(room.hold(credit, bounded(credit.saturating_add(amount))))
            });
        }
    }

    /// The credit as it stands.
    #[must_use]
    pub fn credit(&self) -> i64 {
        bounded(self.credit.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: i64 = 1_000_000;

    #[test]
    fn room_ends_growth_and_cuts_nothing_that_was_saved() {
        let (credit, refilled_at) = (AtomicI64::new(0), AtomicU64::new(0));
        let bucket = Bucket { credit: &credit, refilled_at: &refilled_at };
        let long = CreditBound { saves: Nanos::from_millis(200), keeps: SAVED_MAX };
        let short = CreditBound { saves: CREDIT_MAX, keeps: SAVED_MAX };
        let after = |amount: i64, room: CreditBound| {
            bucket.add(amount * MILLI, room);
            bucket.credit() / MILLI
        };
        assert_eq!([after(150, long), after(150, long)], [150, 200]);
        assert_eq!([after(10, short), after(-20, short), after(10, short)], [200, 180, 180]);
        assert_eq!([after(-178, short), after(10, short)], [2, 5]);
        // Alone nothing stays that is not earned at once.
        assert_eq!([after(150, long), after(-1, CreditBound::of(CREDIT_MAX))], [155, 5]);
        for hostile in [i64::MAX, i64::MIN] {
            credit.store(hostile, Ordering::Relaxed);
            bucket.add(1, short);
            assert!(bucket.credit() <= SAVED_MAX.signed() && bucket.credit() >= -DEBT_MAX.signed());
        }
    }
}
