//! The clock: the one place where time is read. Deciding code takes the time as a value.

use std::time::Instant;

/// Time now, for measuring how long something takes.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}
