//! Exponential back-off with jitter, for watches and writes.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Delays that double from `first` to `most`; each is drawn from the upper half of its interval, so that the agents of
/// many nodes do not return at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    /// The next delay.
    pub(crate) fn delay(&mut self) -> Duration {
        let whole = self.next.min(self.most);
        self.next = whole.saturating_mul(2);
        let random = RandomState::new().hash_one(whole);
        let part = u32::try_from(random % 1_000).unwrap_or(0);
        whole / 2 + (whole / 2) * part / 1_000
    }

    /// Begins again with the first delay.
    pub(super) fn restart(&mut self) {
        self.next = self.first;
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.delay())
    }
}

impl ::kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        self.restart();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_bound_and_restarts() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(400));
        for whole in [100, 200, 400, 400, 400] {
            let delay = backoff.delay();
            assert!(delay >= Duration::from_millis(whole / 2), "{delay:?}");
            assert!(delay <= Duration::from_millis(whole), "{delay:?}");
        }
        backoff.restart();
        assert!(backoff.delay() <= Duration::from_millis(100));
    }
}
