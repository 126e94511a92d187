//! The tenant's account of device time: one word that all its processes race on, filled with time at the granted share.
//!
//! A launch may go while there is credit, and takes what it will cost even where that is more: a kernel of a second leaves a
//! second of debt, and at a tenth of the card the next one waits nine. Credit has room up to [`CREDIT_MAX`], so that half a
//! second after a rest holds hardly more than its share. Beside other tenants it has room for what one launch costs: what comes
//! back of a charge, or was earned while others had their turns, is not lost because it is longer than that.
//!
//! The words lie where the tenant can write them. Whatever they hold, they read as a credit between [`DEBT_MAX`] below and
//! [`SAVED_MAX`] above zero.

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

/// Not enough: what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Credit in device nanoseconds; zero or less.
    pub credit: i64,
}

fn bounded(credit: i64) -> i64 {
    credit.clamp(-DEBT_MAX.signed(), SAVED_MAX.signed())
}

impl Bucket<'_> {
    /// Adds what the time since the last refill earned, as far as there is room.
    pub fn refill(&self, now: Nanos, granted: Ppm, room: Nanos) {
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

    /// Takes `amount` while there is any credit.
    ///
    /// # Errors
    /// [`Short`]: there is none.
    pub fn take(&self, amount: Nanos) -> Result<(), Short> {
        let taken = self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
            let credit = bounded(credit);
            (credit > 0).then(|| credit.saturating_sub(amount.signed()))
        });
        taken.map(|_| ()).map_err(|credit| Short { credit: bounded(credit) })
    }

    /// Takes `amount` whatever there is.
    pub fn owe(&self, amount: Nanos) {
        self.add(-amount.signed(), SAVED_MAX);
    }

    /// Adds what was charged too much, as far as there is room, or takes what was charged too little.
    pub fn add(&self, amount: i64, room: Nanos) {
        if amount != 0 {
            // Always succeeds: the closure never says no.
            let _always = self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
                Some(bounded(bounded(credit).saturating_add(amount)).min(room.signed()))
            });
        }
    }

    /// The credit as it stands.
    #[must_use]
    pub fn credit(&self) -> i64 {
        bounded(self.credit.load(Ordering::Acquire))
    }
}
