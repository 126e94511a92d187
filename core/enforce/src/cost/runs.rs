//! Functions with phases of short and of long launches: the length of the last launch does not predict the next.
//!
//! | word | meaning |
//! |---|---|
//! | run | mean of the last [`RUN`] launches or so of one key, by their bills |
//! | longest | the greatest run there was, less what was forgotten since |
//!
//! A single long launch among short ones is no run, nor is a mixture: their mean soon becomes their cost. If the longest run is
//! [`TIMES`] the cost, a launch may be the first of such a run. All launches admitted before a marker shows that may be long, so
//! each pays the longest run as a deposit. For a function that hardly ran, the longest run is presumed to be [`PRESUMED`].

use crate::units::Nanos;

/// Launches of a run.
const RUN: u64 = 16;
/// Launches after which about a third of a longer run's excess is left.
const FORGET: u64 = 2048;
/// Presumed longest run of a function that hardly ran: it admits a few launches at a time.
const PRESUMED: Nanos = Nanos::from_micros(320);
/// Launches after which about a third of that presumption is left.
const FORGET_PRESUMED: u64 = 256;
/// How much longer than the cost a run must be.
const TIMES: u64 = 3;
/// Unit of stored times, in nanoseconds: 32 bits hold a minute.
const GRAIN: u64 = 16;

/// Of the longest run's word: there was such a run.
const SEEN: u64 = 1 << 63;

/// What launches of one key took, in [`GRAIN`]s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    mean: u64,
    longest: u64,
    /// [`SEEN`], or 0: it is presumed.
    seen: u64,
}

impl Runs {
    pub(super) const fn of(word: u64) -> Self {
        if word == 0 {
            return Self { mean: 0, longest: PRESUMED.0 / GRAIN, seen: 0 };
        }
        Self { mean: word & 0xffff_ffff, longest: (word & !SEEN) >> 32, seen: word & SEEN }
    }

    pub(super) const fn word(self) -> u64 {
        self.seen | self.longest << 32 | self.mean
    }

    /// So many launches took so long each.
    pub(super) fn then(self, launches: u32, each: Nanos) -> Self {
        let (launches, each) = (u64::from(launches), (each.0 / GRAIN).clamp(1, u64::from(u32::MAX >> 1)));
        let part = |whole: u64, of: u64| (whole * launches.min(of)).div_ceil(of);
        let mean = if self.mean > each {
            self.mean - part(self.mean - each, RUN)
        } else {
            self.mean + part(each - self.mean, RUN)
        };
        let longer = self.longest.saturating_sub(mean);
        let seen = if longer == 0 { SEEN } else { self.seen };
        let forget = if seen == 0 { FORGET_PRESUMED } else { FORGET };
        Self { mean, longest: mean + longer - part(longer, forget), seen }
    }

    /// What a launch may take, where that is far more than it costs.
    pub(super) fn longest(self, cost: Nanos) -> Option<Nanos> {
        let longest = self.longest * GRAIN;
        (longest / TIMES > cost.0).then_some(Nanos(longest))
    }
}
