//! The clock: the one place where time is read. Deciding code takes the time as a value.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aliquot_core::health::UnixSeconds;
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

/// Time of day, as people keep it: for them alone.
#[must_use]
pub fn unix() -> UnixSeconds {
    UnixSeconds(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Time of day, for programs of other machines.
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// A moment that is valid beyond the process that recorded it, until the next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The boot id, in one word.
    pub boot: String,
    /// Whole seconds since then.
    pub since: Duration,
}

// === impl Moment ===

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
        let boot: String = boot.chars().filter(plain).take(36).collect();
        let boot = if boot.is_empty() { "unknown".to_owned() } else { boot };
        Self { boot, since: Duration::from_secs(monotonic().0 / 1_000_000_000) }
    }

    /// How long ago an earlier one was; `None`: it was in another start of the machine, or is none of before.
    #[must_use]
    pub fn after(&self, earlier: &Self) -> Option<Duration> {
        if self.boot == earlier.boot { self.since.checked_sub(earlier.since) } else { None }
    }
}
