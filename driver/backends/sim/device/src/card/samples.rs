//! Utilisation of a card and of its processes, in whole percent of the vendor's sampling windows.

use super::Card;
use super::books::{FULL_WINDOWS, WINDOW_NANOS, Windows};
use crate::mapping::monotonic_nanos;
use crate::node::ProcessSamples;
use std::collections::BTreeMap;

impl Card {
    /// Percent of the last full utilisation window in which a process ran.
    #[must_use]
    pub fn utilization(&self) -> u32 {
        let now = monotonic_nanos();
        self.with(|state| {
            state.play(self.node.slice_nanos, now);
            state.windows.percent(now)
        })
    }

    /// The recorded full utilisation windows, oldest first: each window's end in nanoseconds of the monotonic
    /// clock, and the percent of it in which a process ran.
    #[must_use]
    pub fn utilization_record(&self) -> Vec<(u64, u32)> {
        self.with(|state| {
            let now = monotonic_nanos();
            state.play(self.node.slice_nanos, now);
            state.windows.record(now)
        })
    }

    /// Percent of the last full utilisation window by process: present ones, and those that ran in it and
    /// exited since.
    #[must_use]
    pub fn utilizations(&self) -> BTreeMap<u32, u32> {
        self.utilizations_at(monotonic_nanos(), 1)
    }

    /// When the last full utilisation window ended, with the percent of each process on the card, idle ones included: of that
    /// window, or of all kept ones that ended after `since`, as `node.toml` says. `None`: no window ended after `since`, or
    /// the card has no process.
    #[must_use]
    pub fn process_samples(&self, since: u64) -> Option<(u64, Vec<(u32, u32)>)> {
        let now = monotonic_nanos();
        let ended = now / WINDOW_NANOS * WINDOW_NANOS;
        let newer = ended.checked_sub(since).filter(|newer| *newer > 0)?.div_ceil(WINDOW_NANOS);
        let count = match self.node.process_samples {
            ProcessSamples::Average => newer.min(FULL_WINDOWS),
            ProcessSamples::Last => 1,
        };
        let found: Vec<_> = self.utilizations_at(now, count).into_iter().collect();
        Some((ended, found)).filter(|(_, found)| !found.is_empty())
    }

    /// Percent of the last `count` full utilisation windows before `now` by process.
    fn utilizations_at(&self, now: u64, count: u64) -> BTreeMap<u32, u32> {
        let percent = |windows: &Windows| {
            let hundredth = WINDOW_NANOS * count.max(1);
            u32::try_from((windows.busy(now, count) * 100).div_ceil(hundredth).min(100)).unwrap_or(100)
        };
        self.with(|state| {
            state.play(self.node.slice_nanos, now);
            self.reap_locked(state, now);
            let seats = state.seats.iter().take(state.used()).enumerate().filter(|(_, seat)| seat.pid != 0);
            let here = seats.map(|(index, seat)| (self.pid_here(index, seat.pid), percent(&seat.windows)));
            let left = state.departed.iter().map(|left| {
                let pid = u32::try_from(left.pid).unwrap_or(0);
                (pid, percent(&left.windows))
            });
            let left = left.filter(|(_, percent)| *percent > 0);
            let mut found = BTreeMap::new();
            for (pid, percent) in here.chain(left).filter(|(pid, _)| *pid != 0) {
                let sum = found.entry(pid).or_insert(0);
                *sum = percent.saturating_add(*sum).min(100);
            }
            found
        })
    }
}
