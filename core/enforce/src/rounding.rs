//! Whole hundredths of the vendor's windows as time.
//!
//! A driver tells what each process had of a utilisation window in whole hundredths of it, rounded up: half a hundredth too much
//! in the mean, where work ends at any moment. Kernels that take so many hundredths are rounded the same way each time: of 5 ms,
//! three hundredths of a sixth of a second, nothing is rounded, and half a hundredth less is a sixth of the time of each process
//! that ends one in a window.
//!
//! What the driver tells of the card is rounded once, however many processes there are. So what is told of all processes
//! together goes beyond it by what rounding added, and each of them had so much less, in the mean of the last windows:
//!
//! ```text
//!   processes:  3 3 3 │ 9 12 9 │ 21 24 18 = 102      card: 100      rounded up: 2 in 9 processes
//! ```

use crate::units::Nanos;

/// Thousandths of a hundredth of a window.
const GRAIN: i64 = 1_000;
/// Windows that count: nearly three seconds.
const WINDOWS: i64 = 16;
/// Told of so many processes before anything was told, each half a hundredth too much.
const BEFORE: i64 = 4;

/// What is known of a driver's rounding on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// What processes were told beyond the card, in [`GRAIN`]s, the older the less.
    beyond: i64,
    /// How many processes were told of, times [`GRAIN`], the older the less.
    told: i64,
}

impl Rounding {
    /// Nothing was told yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { beyond: BEFORE * GRAIN / 2, told: BEFORE * GRAIN }
    }

    /// Takes the hundredths of one window: the card's, and those of all processes that ran on it.
    pub fn learn(&mut self, card: u32, processes: impl Iterator<Item = u32>) {
        let ran = processes.filter(|percent| *percent > 0).map(|percent| i64::from(percent.min(100)));
        let (sum, count) = ran.fold((0_i64, 0_i64), |(sum, count), percent| (sum + percent, count + 1));
        // Figures of different moments, as of a process that ended, may say more or less than rounding can add.
        self.beyond += (sum * GRAIN - of_card(card)).clamp(0, count * GRAIN) - self.beyond / WINDOWS;
        self.told += count * GRAIN - self.told / WINDOWS;
    }

    /// The time that a process had of a window of that length.
    #[must_use]
    pub fn time(&self, percent: u32, length: Nanos) -> Nanos {
        if percent == 0 {
            return Nanos::ZERO;
        }
        times(length, i64::from(percent.min(100)) * GRAIN - self.up())
    }

    /// By how much that may be too much.
    #[must_use]
    pub fn doubt(&self, percent: u32, length: Nanos) -> Nanos {
        if percent == 0 { Nanos::ZERO } else { times(length, GRAIN - self.up()) }
    }

    /// The time of a window of that length that nobody had, by the card's hundredths.
    #[must_use]
    pub fn idle(card: u32, length: Nanos) -> Nanos {
        times(length, 100 * GRAIN - of_card(card))
    }

    /// What rounding adds to a process, in the mean.
    fn up(&self) -> i64 {
        self.beyond.saturating_mul(GRAIN).checked_div(self.told).unwrap_or(GRAIN / 2).clamp(0, GRAIN)
    }
}

/// What the card's own hundredths stand for. One that is told full is: as a rule somebody waits.
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
        // Nothing was rounded, half a hundredth each, and nearly a whole one each.
        let exact = after(100, 100, &[3, 3, 4, 30, 60]);
        let half = after(100, 100, &[3, 3, 4, 30, 60, 1, 1, 1, 2]);
        let whole = after(100, 100, &[4, 4, 5, 31, 61]);
        for (rounding, expected) in [(exact, 3_000), (half, 2_500), (whole, 2_000)] {
            let time = micros(&rounding, 3);
            assert!(time.abs_diff(expected) <= 60, "{time} of {expected}");
        }
        // A card that rests now and then is rounded up itself.
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
                // It may have been a whole hundredth less than it was told, and no less.
                let least = time - rounding.doubt(percent, WINDOW).0 / 1_000;
                assert!(least.abs_diff(most.saturating_sub(1_000)) <= 1, "{percent}: {least}");
            }
        }
    }

    #[test]
    fn windows_in_which_nobody_ran_say_little() {
        let mut rounding = after(100, 100, &[50, 50]);
        (0..1_000).for_each(|_| rounding.learn(0, core::iter::empty()));
        assert!((49_000..=50_000).contains(&micros(&rounding, 50)));
    }
}
