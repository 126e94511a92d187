//! How long a loan lasts.
//!
//! The governor says with each step until when its loans last. One that is stopped says nothing any more, and cannot take back
//! what it lent either: so tenants do, when the time is over.
//!
//! ```text
//!   governor: step step step step │ stopped
//!   until:     ╶──────────────────┼───▶│ LASTS behind the last step: what was lent is had no longer
//!                                      └───────────▶│ MISSED: somebody else is asked to govern
//! ```
//!
//! A step comes every [`crate::share::TICK`] while anything is lent, and a governor that is late for want of a processor is none that
//! is stopped.

use crate::pace::Terms;
use crate::units::{Nanos, Ppm};

/// How long behind the governor's last step a loan lasts.
pub const LASTS: Nanos = Nanos::from_millis(100);
/// How long behind that a governor is missed.
pub const MISSED: Nanos = Nanos::from_millis(400);
/// What is granted without a guarantee while nobody governs the card: enough to begin, too little to hurt.
pub const UNGOVERNED: Ppm = Ppm::new(10_000);

/// Latest end that a governor says: beyond it the word is of another start of the machine.
const LONGEST: Nanos = Nanos::from_millis(1_000);

/// Until when loans last, on the monotonic clock, as the limits say; 0: nobody says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until(pub u64);

// === impl Until ===

impl Until {
    /// Nobody says: as long as they are granted.
    pub const ENDLESS: Self = Self(0);

    /// For a step made now.
    #[must_use]
    pub const fn behind(now: Nanos) -> Self {
        Self(now.plus(LASTS).0)
    }

    /// What may be used now of what is granted.
    #[must_use]
    pub fn hold(self, now: Nanos, terms: Terms) -> Terms {
        if self.is_over(now) {
            let most = terms.guaranteed.max(UNGOVERNED);
            return Terms { granted: terms.granted.min(most), ..terms };
        }
        terms
    }

    /// Whether whoever governed has not been at it for so long that somebody else should.
    #[must_use]
    pub const fn is_missed(self, now: Nanos) -> bool {
        self.is_over(now.minus(MISSED)) && self.is_over(now)
    }

    /// Whether what was lent has ended.
    #[must_use]
    pub const fn is_over(self, now: Nanos) -> bool {
        let ended = now.0 >= self.0;
        self.0 != 0 && (ended || self.0 - now.0 > LONGEST.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { guaranteed: Ppm::new(250_000), granted: Ppm::new(900_000), own: Ppm::ALL };

    fn granted(now: Nanos, until: Until, terms: Terms) -> u32 {
        until.hold(now, terms).granted.parts()
    }

    #[test]
    fn borrowed_time_ends_unless_renewed() {
        let at = Nanos::from_millis;
        let until = Until::behind(at(5_000));
        let had = |now| granted(at(now), until, TERMS);
        assert_eq!([had(5_000), had(5_099), had(5_100), had(90_000)], [900_000, 900_000, 250_000, 250_000]);
        assert_eq!(granted(at(90_000), Until::ENDLESS, TERMS), 900_000, "no governor ever came by");
        // A word of before the machine was started anew, or of a tenant's fancy.
        assert_eq!([had(3_000), granted(at(5), Until(u64::MAX), TERMS)], [250_000, 250_000]);
        let best_effort = Terms { guaranteed: Ppm::ZERO, ..TERMS };
        assert_eq!(granted(at(5_100), until, best_effort), 10_000, "nobody without a guarantee stands still");
        let capped = Terms { granted: TERMS.guaranteed, ..TERMS };
        assert_eq!(until.hold(at(5_100), capped), capped);
    }

    #[test]
    fn a_governor_is_missed_some_time_after_its_loans_are_over() {
        let at = Nanos::from_millis;
        let until = Until::behind(at(5_000));
        assert!(![5_000, 5_100, 5_499].into_iter().any(|now| until.is_missed(at(now))));
        assert!([5_500, 90_000, 2_000].into_iter().all(|now| until.is_missed(at(now))));
        assert!(!Until::ENDLESS.is_missed(at(90_000)));
    }
}
