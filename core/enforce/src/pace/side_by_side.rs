//! Launches of several streams that run at the same time: they take the card's time once, and go together.
//!
//! ```text
//!   card:    stream 1  │▓▓▓▓│          │▓▓▓▓│         each launch: 0.2 ms      billed one by one: 0.6 ms
//!            stream 2  │▓▓▓▓│          │▓▓▓▓│         card's time: 0.2 ms      billed here:       0.2 ms
//!            stream 3  │▓▓▓▓│          │▓▓▓▓│
//!                           └─ saved ─┘
//! ```
//!
//! - A bill is what is new of its stretch: the process's own recent time is kept in cells of a sixteenth of those of [`Cells`].
//!   What is older than their ring is billed as if nothing ran beside it.
//! - Out of credit, launches of several streams would go one by one, each alone on the card, as soon as there is credit for one. So
//!   the first waits until as much is saved as there can be.
//! - What bills of work on the card will give back, as they did lately, counts as credit: launches are charged their own time.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::*;

/// Cells of the process: 33 ms.
const CELLS: usize = 512;
/// Times are kept in sixteenths of a nanosecond, so that a cell is a sixteenth as long.
const FINER: u64 = 16;
/// A process that launched on another stream within this time uses several.
const SEVERAL_FOR: Nanos = Nanos::from_millis(250);
/// Credit that launches of several streams wait for: below what can be saved, as a late wake-up would lose what it earns meanwhile.
const TOGETHER: Nanos = Nanos(CREDIT_MAX.0 / 5 * 4);
/// Longest wait for credit for launches of several streams.
const TOGETHER_MAX: Nanos = Nanos::from_millis(40);
/// Bills over which the billed part is a mean.
const MEAN_OF: u32 = 8;

/// What is known of streams at the same time.
#[derive(Debug)]
pub(super) struct SideBySide {
    /// The stream of the last launch that asked for credit; no handle is all ones.
    stream: AtomicU64,
    /// When one on another stream did; 0: never.
    changed_at: AtomicU64,
    /// Whether credit ran out, and not enough came back since.
    saves: AtomicBool,
    /// Which part of charges was not billed, in the mean, in parts per million.
    shared: AtomicU32,
    cells: [AtomicU32; CELLS],
}

// === impl SideBySide ===

impl SideBySide {
    pub(super) const fn new() -> Self {
        Self {
            stream: AtomicU64::new(u64::MAX),
            changed_at: AtomicU64::new(0),
            saves: AtomicBool::new(false),
            shared: AtomicU32::new(0),
            cells: [const { AtomicU32::new(0) }; CELLS],
        }
    }

    /// What of a bill other streams' bills do not cover.
    pub(super) fn beyond(&self, done: &FinishedBatch, amount: Nanos) -> Nanos {
        let new = match done.streams {
            Streams::Several if Heuristic::SideBySide.is_on() => {
                let finer = |time: Nanos| Nanos(time.0.saturating_mul(FINER));
                let [start, end, wanted] = [done.start, done.end, amount].map(finer);
                let stretch = Stretch { start, end, amount: wanted, counted_until: Nanos::ZERO };
                Nanos(Cells::new(&self.cells).charge(&stretch).0.div_ceil(FINER))
            }
            Streams::One | Streams::Several => amount,
        };
        let shared = Ppm::of(amount.minus(new), amount).parts();
        let before = self.shared.load(Ordering::Relaxed);
        self.shared.store(before - before / MEAN_OF + shared / MEAN_OF, Ordering::Relaxed);
        new
    }

    /// Whether the process uses several streams.
    pub(super) fn is_used(&self, now: Nanos) -> bool {
        let changed_at = self.changed_at.load(Ordering::Relaxed);
        Heuristic::SideBySide.is_on() && changed_at != 0 && now.minus(Nanos(changed_at)) <= SEVERAL_FOR
    }

    /// Whether a launch went.
    pub(super) fn paid(&self, paid: bool) {
        if self.saves.load(Ordering::Relaxed) == paid {
            self.saves.store(!paid, Ordering::Relaxed);
        }
    }
}

// === impl Pace ===

impl Pace {
    /// Credit with which a launch may go: any, or as much as launches of several streams wait for.
    pub(super) fn least_credit(&self, ask: &LaunchRequest<'_>, cost: Nanos) -> i64 {
        let known = &self.side_by_side;
        let last = known.stream.swap(ask.stream, Ordering::Relaxed);
        if last != ask.stream && last != u64::MAX {
            known.changed_at.store(ask.now.0, Ordering::Relaxed);
        }
        let saves = known.saves.load(Ordering::Relaxed) && known.is_used(ask.now);
        if !saves || cost >= TOGETHER || ask.waited >= TOGETHER_MAX {
            return 1;
        }
        TOGETHER.min(ask.terms.granted.times(TOGETHER_MAX)).signed().max(1)
    }

    /// What the bills of work on the card will give back, as it runs side by side.
    pub(super) fn given_back(&self, now: Nanos, due: Option<Due>) -> Nanos {
        if !self.side_by_side.is_used(now) || due.is_some_and(|due| due.known == ChargeBasis::Not) {
            return Nanos::ZERO;
        }
        let open = self.open_lanes().filter(|(_, lane)| !lane.is_unknown()).map(|(_, lane)| lane.charged());
        let charged = open.chain(due.map(|due| due.charged)).fold(Nanos::ZERO, Nanos::plus);
        Ppm::new(self.side_by_side.shared.load(Ordering::Relaxed)).times(charged)
    }
}
