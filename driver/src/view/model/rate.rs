//! Device time as a part of elapsed time.

use std::time::Duration;

use aliquot_core::units::Cores;

/// Greatest plausible rate, in parts per million: ten times one card's, for rounding and delayed reports.
const PPM_MAX: u128 = 10_000_000;

/// Device time used between two looks, of the time between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeRate {
    /// There was only one look, or no time between two.
    Unknown,
    /// Parts per million of one whole card's time.
    Ppm(u64),
    /// The counter went backwards, or faster than any card: its tenant overwrote it.
    Implausible,
}

/// A counter of nanoseconds at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) nanos: u64,
    pub(super) at: Duration,
}

/// Parts per million of a part's time, as those of its card's. Rounded up: what was rounded down for the part is whole again.
pub(super) fn of_card(ppm: u64, cores: Cores) -> u64 {
    ppm.saturating_mul(u64::from(cores.percent())).div_ceil(100)
}

// === impl TimeRate ===

impl TimeRate {
    /// From one reading to the next, where there are two.
    pub(super) fn between(before: Option<Reading>, now: Option<Reading>) -> Self {
        now.map_or(Self::Unknown, |now| Self::of(before, now))
    }

    /// The time of a part that has so much of the card, as time of the card; `None`: that is not known.
    pub(super) fn in_part(self, cores: Option<Cores>) -> Self {
        match (self, cores) {
            (Self::Ppm(ppm), Some(cores)) => Self::Ppm(of_card(ppm, cores)),
            (Self::Ppm(_), None) => Self::Unknown,
            (other, _) => other,
        }
    }

    /// From one reading to the next.
    pub(super) fn of(before: Option<Reading>, now: Reading) -> Self {
        let Some(before) = before else { return Self::Unknown };
        let passed = now.at.saturating_sub(before.at).as_nanos();
        if passed == 0 {
            return Self::Unknown;
        }
        let Some(used) = now.nanos.checked_sub(before.nanos) else { return Self::Implausible };
        match u128::from(used) * 1_000_000 / passed {
            ppm @ 0..=PPM_MAX => Self::Ppm(u64::try_from(ppm).unwrap_or(u64::MAX)),
            _ => Self::Implausible,
        }
    }
}
