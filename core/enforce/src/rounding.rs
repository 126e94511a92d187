//! Conversion of the vendor's utilisation percentages into time.
//!
//! A driver reports each process's part of a utilisation window as a whole percentage, rounded up. On average that is half a
//! percent too much, if work ends at random moments. Kernels of a fixed length are rounded the same way each time. 5 ms is
//! exactly 3 % of a sixth of a second and is not rounded; deducting half a percent would take a sixth of such a process's time.
//!
//! The card's own percentage is rounded once, whatever the number of processes. So the sum over processes exceeds it by what
//! rounding added. The mean excess over the last windows is deducted from each process:
//!
//! ```text
//!   processes:  3 3 3 │ 9 12 9 │ 21 24 18 = 102      card: 100      rounded up: 2 in 9 processes
//! ```

use crate::ablation::Heuristic;
use crate::units::Nanos;

/// Thousandths of a hundredth of a window.
const GRAIN: i64 = 1_000;
/// Windows that count: nearly three seconds.
const WINDOWS: i64 = 16;
/// Prior: this many processes, each reported half a percent too high.
const BEFORE: i64 = 4;

/// A driver's estimated rounding on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// Excess of the processes' sum over the card's percentage, in [`GRAIN`]s; decays.
    beyond: i64,
    /// Number of reported processes times [`GRAIN`]; decays.
    told: i64,
}

impl Rounding {
    /// Before the first window: the prior alone.
    #[must_use]
    pub const fn new() -> Self {
        Self { beyond: BEFORE * GRAIN / 2, told: BEFORE * GRAIN }
    }

    /// Learns from the percentages of one window: the card's, and those of all processes that ran on it.
    pub fn learn(&mut self, card: u32, processes: impl Iterator<Item = u32>) {
        let ran = processes.filter(|percent| *percent > 0).map(|percent| i64::from(percent.min(100)));
        let (sum, count) = ran.fold((0_i64, 0_i64), |(sum, count), percent| (sum + percent, count + 1));
        // Percentages read at different moments, such as an exited process's, may differ by more than rounding adds.
        self.beyond += (sum * GRAIN - of_card(card)).clamp(0, count * GRAIN) - self.beyond / WINDOWS;
        self.told += count * GRAIN - self.told / WINDOWS;
    }

    /// The time of a process in a window of that length.
    #[must_use]
    pub fn time(&self, percent: u32, length: Nanos) -> Nanos {
        if percent == 0 {
            return Nanos::ZERO;
        }
        times(length, i64::from(percent.min(100)) * GRAIN - self.up())
    }

    /// Greatest overestimate of [`Rounding::time`].
    #[must_use]
    pub fn doubt(&self, percent: u32, length: Nanos) -> Nanos {
        if percent == 0 { Nanos::ZERO } else { times(length, GRAIN - self.up()) }
    }

    /// The idle time of a window of that length, by the card's percentage.
    #[must_use]
    pub fn idle(card: u32, length: Nanos) -> Nanos {
        times(length, 100 * GRAIN - of_card(card))
    }

    /// Mean that rounding adds to a process.
    fn up(&self) -> i64 {
        if !Heuristic::Rounding.is_on() {
            return 0;
        }
        self.beyond.saturating_mul(GRAIN).checked_div(self.told).unwrap_or(GRAIN / 2).clamp(0, GRAIN)
    }
}

/// The card's own percentage in [`GRAIN`]s. 100 % is not rounded down: usually some process waits.
fn of_card(percent: u32) -> i64 {
    if percent >= 100 { 100 * GRAIN } else { (i64::from(percent) * GRAIN - GRAIN / 2).max(0) }
}

/// So many thousandths of a hundredth of a length.
fn times(length: Nanos, grains: i64) -> Nanos {
    let time = i128::from(length.0) * i128::from(grains) / i128::from(100 * GRAIN);
    Nanos(u64::try_from(time).unwrap_or(0))
}

impl Default for Rounding {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Nanos = Nanos::from_millis(100);

    fn after(windows: usize, card: u32, processes: &[u32]) -> Rounding {
        let mut rounding = Rounding::new();
        (0..windows).for_each(|_| rounding.learn(card, processes.iter().copied()));
        rounding
    }

    fn micros(rounding: &Rounding, percent: u32) -> u64 {
        rounding.time(percent, WINDOW).0 / 1_000
    }

    #[test]
    fn half_a_hundredth_is_taken_off_before_anything_is_told() {
        let rounding = Rounding::new();
        assert_eq!([0, 1, 50, 100].map(|percent| micros(&rounding, percent)), [0, 500, 49_500, 99_500]);
    }

    #[test]
    fn rounding_excess_is_the_sum_of_processes_beyond_the_card() {
        // No rounding, half a percent each, and nearly a whole percent each.
        let exact = after(100, 100, &[3, 3, 4, 30, 60]);
        let half = after(100, 100, &[3, 3, 4, 30, 60, 1, 1, 1, 2]);
        let whole = after(100, 100, &[4, 4, 5, 31, 61]);
        for (rounding, expected) in [(exact, 3_000), (half, 2_500), (whole, 2_000)] {
            let time = micros(&rounding, 3);
            assert!(time.abs_diff(expected) <= 60, "{time} of {expected}");
        }
        // The percentage of a card that idles at times is itself rounded up.
        let resting = after(100, 40, &[10, 31]);
        assert!(micros(&resting, 10).abs_diff(9_250) <= 20, "{}", micros(&resting, 10));
    }

    #[test]
    fn contradicting_card_moves_a_process_by_at_most_one_percent() {
        let processes: [&[u32]; 4] = [&[1], &[100; 16], &[100; 1_000], &[]];
        for (card, processes) in [100, 0, 1, u32::MAX].into_iter().zip(processes) {
            let rounding = after(10_000, card, processes);
            for percent in [0, 1, 2, 50, 100, u32::MAX] {
                let most = u64::from(percent.min(100)) * 1_000;
                let time = micros(&rounding, percent);
                assert!((most.saturating_sub(1_000)..=most).contains(&time), "{percent}: {time}");
                // The true time is at most one whole percent below the reported one.
                let least = time - rounding.doubt(percent, WINDOW).0 / 1_000;
                assert!(least.abs_diff(most.saturating_sub(1_000)) <= 1, "{percent}: {least}");
            }
        }
    }

    #[test]
    fn idle_windows_say_little_of_rounding() {
        let mut rounding = after(100, 100, &[50, 50]);
        (0..1_000).for_each(|_| rounding.learn(0, core::iter::empty()));
        assert!((49_000..=50_000).contains(&micros(&rounding, 50)));
    }
}
