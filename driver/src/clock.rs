//! The clock: the one place where time is read. Deciding code takes the time as a value.

use std::time::{Duration, Instant};

use aliquot_enforce::units::Nanos;
use nix::time::{ClockId, clock_gettime};

/// Time now, for measuring how long something takes.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Time of the monotonic clock, which every process of the machine reads alike: what regions are written in.
#[must_use]
pub fn monotonic() -> Nanos {
    // There is one on every Linux.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
