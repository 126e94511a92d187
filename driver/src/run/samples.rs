//! A driver's samples as a window of card time, whichever time a process percentage stands for.
//!
//! NVML's samples of the card carry timestamps: each stands for the time from the one before it. A percentage of a process
//! stands for the time since the last question on some drivers, and for the last sampling window on others. So the card's
//! samples tell time, and process percentages tell how to divide it:
//!
//! ```text
//!   card       ──┬── 100 % ──┬── 100 % ──┬── 14 % ──▶   length, and the busy part of it
//!   processes                              [A 14 %]  or  [A 71 %]      ─▶ A had the busy part
//! ```
//!
//! Percentages that fit the card's within rounding stay as they are: then they are of that length.

use aliquot_core::ports::Samples;
use aliquot_enforce::units::Nanos;

use super::cards::{ProcessTime, Window};

/// A driver samples at least once a second: a longer gap between two samples says nothing of the rest.
const GAP_MAX: Nanos = Nanos::from_millis(1_000);
/// Nanoseconds of a microsecond.
const MICRO: u64 = 1_000;

/// Which samples of a card were read, and what is known of the time since.
#[derive(Clone, Debug)]
pub(crate) struct SampleClock {
    /// The longest time that one sample stands for.
    gap_max: Nanos,
    /// The driver's time of the newest sample; 0: none was read.
    newest_micros: u64,
    /// When the last window ended, on the host's clock.
    ended: Option<Nanos>,
    /// Processes of the last question that named any: card time that no process has now is theirs.
    last: Vec<ProcessTime>,
}

impl SampleClock {
    /// For a governor, which asks several times a second.
    pub(crate) const fn for_governor() -> Self {
        Self::with_gaps_up_to(GAP_MAX)
    }

    /// For a view that may ask seldom: a sample stands for all of the time from the one before it.
    pub(crate) const fn for_view() -> Self {
        Self::with_gaps_up_to(Nanos::MAX)
    }

    const fn with_gaps_up_to(gap_max: Nanos) -> Self {
        Self { gap_max, newest_micros: 0, ended: None, last: Vec::new() }
    }

    /// The driver's time of the newest sample that was read.
    pub(crate) const fn newest_micros(&self) -> u64 {
        self.newest_micros
    }

    /// The time since the samples before these; `None`: there is none yet.
    pub(crate) fn window(&mut self, now: Nanos, samples: &Samples) -> Option<Window> {
        let begun = *self.ended.get_or_insert(now);
        let before = self.newest_micros;
        let (mut length, mut busy, mut at) = (Nanos::ZERO, 0_u64, before);
        for sample in &samples.card {
            let gap = Nanos(sample.ended_micros.saturating_sub(at).saturating_mul(MICRO)).min(self.gap_max);
            length = length.plus(gap);
            busy = busy.saturating_add(gap.0 / 100 * u64::from(sample.percent.min(100)));
            at = at.max(sample.ended_micros);
        }
        self.newest_micros = at;
        if before == 0 && at != 0 {
            // Of which time the first sample tells is not known.
            self.ended = Some(now);
            return None;
        }
        if length == Nanos::ZERO {
            let silent = now.minus(begun);
            return (silent >= GAP_MAX).then(|| {
                self.ended = Some(now);
                self.last.clear();
                Window { length: GAP_MAX, busy_percent: None, processes: Vec::new() }
            });
        }
        self.ended = Some(now);
        let card = u32::try_from(busy.div_ceil((length.0 / 100).max(1))).unwrap_or(100).min(100);
        let processes = self.divide(card, samples);
        Some(Window { length, busy_percent: Some(card), processes })
    }

    /// What each process had of that many hundredths.
    fn divide(&mut self, card: u32, samples: &Samples) -> Vec<ProcessTime> {
        let ran = samples.processes.iter().filter(|(_, percent)| *percent > 0);
        let ran: Vec<ProcessTime> =
            ran.map(|(pid, percent)| ProcessTime { pid: *pid, percent: *percent }).collect();
        if !ran.is_empty() {
            self.last = ran;
        }
        let sum: u64 = self.last.iter().map(|spent| u64::from(spent.percent)).sum();
        let rounding = u64::try_from(self.last.len()).unwrap_or(u64::MAX);
        if (u64::from(card).saturating_sub(1)..=u64::from(card).saturating_add(rounding)).contains(&sum) {
            return self.last.clone();
        }
        let part = |spent: &ProcessTime| {
            let percent = (u64::from(spent.percent) * u64::from(card)).div_ceil(sum.max(1));
            ProcessTime { pid: spent.pid, percent: u32::try_from(percent).unwrap_or(100).min(100) }
        };
        self.last.iter().map(part).filter(|spent| spent.percent > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_core::ports::CardSample;

    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    /// Samples of the card by milliseconds and percent, and of processes.
    fn samples(card: &[(u64, u32)], processes: &[(u32, u32)]) -> Samples {
        let sample =
            |(millis, percent): &(u64, u32)| CardSample { ended_micros: millis * 1_000, percent: *percent };
        Samples { card: card.iter().map(sample).collect(), processes: processes.to_vec() }
    }

    fn window(millis: u64, card: u32, processes: &[(u32, u32)]) -> Option<Window> {
        let spent = |(pid, percent): &(u32, u32)| ProcessTime { pid: *pid, percent: *percent };
        let processes = processes.iter().map(spent).collect();
        Some(Window { length: AT(millis), busy_percent: Some(card), processes })
    }

    /// A clock that has read a sample at a second.
    fn begun() -> SampleClock {
        let mut clock = SampleClock::for_governor();
        assert_eq!(clock.window(AT(50_000), &samples(&[(1_000, 70)], &[(1, 70)])), None);
        assert_eq!(clock.newest_micros(), 1_000_000);
        clock
    }

    #[test]
    fn last_window_percentages_are_scaled_to_card_time() {
        let mut clock = begun();
        // 400 ms of the card's, half of it busy; the driver tells of the last 100 ms alone.
        let told = samples(&[(1_100, 100), (1_200, 0), (1_300, 0), (1_400, 100)], &[(1, 75), (2, 25)]);
        assert_eq!(clock.window(AT(50_400), &told), window(400, 50, &[(1, 38), (2, 13)]));
        // No process ran in the last window: the time before it is of those that ran before.
        let told = samples(&[(1_500, 40), (1_600, 0)], &[]);
        assert_eq!(clock.window(AT(50_600), &told), window(200, 20, &[(1, 15), (2, 5)]));
        let told = samples(&[(1_700, 0)], &[(1, 0)]);
        assert_eq!(clock.window(AT(50_700), &told), window(100, 0, &[]));
    }

    #[test]
    fn averages_since_the_question_before_stay_as_they_are() {
        let mut clock = begun();
        let told = samples(&[(1_100, 100), (1_200, 0)], &[(1, 31), (2, 21)]);
        assert_eq!(clock.window(AT(50_200), &told), window(200, 50, &[(1, 31), (2, 21)]));
    }

    #[test]
    fn idle_time_before_a_sample_is_not_of_its_process() {
        let mut clock = begun();
        assert_eq!(clock.window(AT(50_100), &samples(&[], &[])), None);
        let told = samples(&[(1_166, 0), (1_333, 0), (1_500, 100)], &[(1, 100)]);
        let found = clock.window(AT(50_500), &told).unwrap();
        assert_eq!((found.length, found.busy_percent), (AT(500), Some(34)));
        assert_eq!(found.processes, [ProcessTime { pid: 1, percent: 34 }]);
    }

    #[test]
    fn without_samples_for_a_second_no_process_ran() {
        let mut clock = begun();
        let nothing = samples(&[], &[(1, 100)]);
        assert_eq!(clock.window(AT(50_999), &nothing), None);
        let silent = Some(Window { length: AT(1_000), busy_percent: None, processes: Vec::new() });
        assert_eq!(clock.window(AT(51_000), &nothing), silent);
        assert_eq!(clock.window(AT(51_999), &nothing), None);
        // A driver that rested tells of no more than a second.
        let told = samples(&[(9_000, 100)], &[(1, 100)]);
        assert_eq!(clock.window(AT(58_000), &told), window(1_000, 100, &[(1, 100)]));
    }

    #[test]
    fn hostile_samples_stay_within_their_bounds() {
        let mut clock = begun();
        let told = samples(&[(u64::MAX / 1_000, u32::MAX), (5, u32::MAX)], &[(1, u32::MAX), (2, u32::MAX)]);
        let found = clock.window(AT(50_100), &told).unwrap();
        assert_eq!((found.length, found.busy_percent), (AT(1_000), Some(100)));
        assert!(found.processes.iter().all(|spent| spent.percent <= 100), "{found:?}");
    }
}
