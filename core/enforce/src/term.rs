//! The expiry of borrowed compute time.
//!
//! With each step the governor publishes when borrowed time expires. A stopped governor cannot withdraw it, so each tenant
//! stops borrowing at the expiry:
//!
//! ```text
//!   governor: step step step step │ stopped
//!   until:     ╶──────────────────┼───▶│ LASTS after the last step: borrowed time has expired
//!                                      └───────────▶│ MISSED: another process is asked to govern
//! ```
//!
//! A step comes every [`crate::share::TICK`] while any tenant borrows. [`LASTS`] is many ticks long, so a governor that waits for
//! a processor does not count as stopped.

use crate::pace::PaceTerms;
use crate::units::{Nanos, Ppm};

/// Time from the governor's last step to the expiry of borrowed time.
pub const LASTS: Nanos = Nanos::from_millis(100);
/// Time from the expiry to the moment when the governor counts as missing.
pub const MISSED: Nanos = Nanos::from_millis(400);
/// Grant of a tenant without a guarantee while the card has no live governor: enough to start, too little to harm others.
pub const UNGOVERNED: Ppm = Ppm::new(10_000);

/// Longest valid expiry from now: a later one was written before a reboot.
const LONGEST: Nanos = Nanos::from_millis(1_000);

/// When borrowed time expires, on the monotonic clock, as the limits file states; 0: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanExpiry(pub u64);

// === impl LoanExpiry ===

impl LoanExpiry {
    /// No expiry: borrowed time lasts while it is granted.
    pub const ENDLESS: Self = Self(0);

    /// The expiry for a step made now.
    #[must_use]
    pub const fn behind(now: Nanos) -> Self {
        Self(now.plus(LASTS).0)
    }

    /// The terms that apply now: without borrowed time after the expiry.
    #[must_use]
    pub fn hold(self, now: Nanos, terms: PaceTerms) -> PaceTerms {
        if self.is_over(now) {
            let most = terms.guaranteed.max(UNGOVERNED);
            return PaceTerms { granted: terms.granted.min(most), ..terms };
        }
        terms
    }

    /// Whether the governor has been stopped for so long that another process should govern.
    #[must_use]
    pub const fn is_missed(self, now: Nanos) -> bool {
        self.is_over(now.minus(MISSED)) && self.is_over(now)
    }

    /// Whether borrowed time has expired.
    #[must_use]
    pub const fn is_over(self, now: Nanos) -> bool {
        let ended = now.0 >= self.0;
        self.0 != 0 && (ended || self.0 - now.0 > LONGEST.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: PaceTerms =
        PaceTerms { guaranteed: Ppm::new(250_000), granted: Ppm::new(900_000), own: Ppm::ALL };

    fn granted(now: Nanos, until: LoanExpiry, terms: PaceTerms) -> u32 {
        until.hold(now, terms).granted.parts()
    }

    #[test]
    fn borrowed_time_ends_unless_renewed() {
        let at = Nanos::from_millis;
        let until = LoanExpiry::behind(at(5_000));
        let had = |now| granted(at(now), until, TERMS);
        assert_eq!([had(5_000), had(5_099), had(5_100), had(90_000)], [900_000, 900_000, 250_000, 250_000]);
        assert_eq!(granted(at(90_000), LoanExpiry::ENDLESS, TERMS), 900_000, "no governor ever ran");
        // A word from before a reboot, or an invalid one.
        assert_eq!([had(3_000), granted(at(5), LoanExpiry(u64::MAX), TERMS)], [250_000, 250_000]);
        let best_effort = PaceTerms { guaranteed: Ppm::ZERO, ..TERMS };
        assert_eq!(
            granted(at(5_100), until, best_effort),
            10_000,
            "a tenant without a guarantee still makes progress"
        );
        let capped = PaceTerms { granted: TERMS.guaranteed, ..TERMS };
        assert_eq!(until.hold(at(5_100), capped), capped);
    }

    #[test]
    fn a_governor_is_missed_some_time_after_its_loans_are_over() {
        let at = Nanos::from_millis;
        let until = LoanExpiry::behind(at(5_000));
        assert!(![5_000, 5_100, 5_499].into_iter().any(|now| until.is_missed(at(now))));
        assert!([5_500, 90_000, 2_000].into_iter().all(|now| until.is_missed(at(now))));
        assert!(!LoanExpiry::ENDLESS.is_missed(at(90_000)));
    }
}
