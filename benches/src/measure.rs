//! Times and how they are summed up. A shared machine is never quiet: spreads are shown, ratios are taken in pairs.

use std::fmt;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// How much of a bench is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// All of it; promises are checked.
    Full,
    /// Each thing once and small, to see that it works.
    Once,
}

/// The lowest, the middle and the highest of some samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Lowest.
    pub min: f64,
    /// Middle; of an even number of samples the lower of the two.
    pub median: f64,
    /// Highest.
    pub max: f64,
}

// === impl Effort ===

impl Effort {
    /// The effort that Cargo requests: it adds `--bench` to the arguments under `cargo bench` alone; `--test`
    /// requests less.
    #[must_use]
    pub fn from_args() -> Self {
        let given = |wanted: &str| std::env::args().any(|argument| argument == wanted);
        if given("--bench") && !given("--test") { Self::Full } else { Self::Once }
    }

    /// One of two sizes.
    #[must_use]
    pub fn pick<T>(self, full: T, once: T) -> T {
        match self {
            Self::Full => full,
            Self::Once => once,
        }
    }
}

// === impl Spread ===

impl Spread {
    /// Sums up; `None` without samples.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { min, median: sorted[(sorted.len() - 1) / 2], max })
    }

    /// All three times a factor, to change the unit.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { min: self.min * factor, median: self.median * factor, max: self.max * factor }
    }
}

impl fmt::Display for Spread {
    /// `min / median / max`, three significant figures each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {} / {}", figures(self.min), figures(self.median), figures(self.max))
    }
}

/// The value below which this part of the samples lies, from 0 to 1; not a number where there are none.
#[must_use]
pub fn percentile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a length")]
    let place = ((sorted.len().saturating_sub(1)) as f64 * part).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// A number with three significant figures, or all of those before the point.
#[must_use]
pub fn figures(number: f64) -> String {
    let digits = match number.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 4,
    };
    format!("{number:.digits$}")
}

/// What the work yields, and the seconds of this thread's processor that it took: what a clock shows on a quiet machine,
/// whatever else runs on this one. For work in one thread that waits for nothing. A kernel that keeps no such account
/// leaves the clock.
pub fn computed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let (begin, clock) = (processor_time(), Instant::now());
    let value = work();
    let spent = processor_time().zip(begin).map(|(end, begin)| end.saturating_sub(begin));
    (value, spent.unwrap_or_else(|| clock.elapsed()).as_secs_f64())
}

fn processor_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
}

/// What the work yields, and the seconds it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let value = work();
    (value, begin.elapsed().as_secs_f64())
}

/// The power with which cost grows: 1 is linear. Both sizes and both costs are above zero.
#[must_use]
pub fn exponent(sizes: (f64, f64), costs: (f64, f64)) -> f64 {
    (costs.1 / costs.0).ln() / (sizes.1 / sizes.0).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computing_takes_no_longer_than_the_clock_shows() {
        let (sum, clock) = timed(|| {
            let (sum, seconds) = computed(|| (0..200_000_u64).map(std::hint::black_box).sum::<u64>());
            assert!(seconds > 0.0, "{seconds}");
            (sum, seconds)
        });
        assert_eq!(sum.0, 199_999 * 100_000);
        assert!(sum.1 <= clock, "{} of {clock}", sum.1);
    }

    #[test]
    fn spreads_and_exponents() {
        assert_eq!(Spread::of(&[]), None);
        let spread = Spread::of(&[3.0, 1.0, 2.0, 10.0]);
        assert_eq!(spread, Some(Spread { min: 1.0, median: 2.0, max: 10.0 }));
        let shown = spread.map(|s| s.times(100.0).to_string());
        assert_eq!(shown.as_deref(), Some("100 / 200 / 1000"));
        assert!((exponent((10.0, 100.0), (2.0, 20.0)) - 1.0).abs() < 1e-9);
        assert!((exponent((10.0, 100.0), (2.0, 200.0)) - 2.0).abs() < 1e-9);
        assert_eq!([0.01234, 0.5, 1.234, 12.34].map(figures), ["0.0123", "0.500", "1.23", "12.3"]);
    }
}
