//! Launches of several streams that run at the same time: they take the card's time once, and go together.
//!
//! ```text
//!   card:    stream 1  │▓▓▓▓│          │▓▓▓▓│         each launch: 0.2 ms      billed one by one: 0.6 ms
//!            stream 2  │▓▓▓▓│          │▓▓▓▓│         card's time: 0.2 ms      billed here:       0.2 ms
//!            stream 3  │▓▓▓▓│          │▓▓▓▓│
//!                           └─ saved ─┘
//! ```
//!
//! - A bill beside other streams' work is the part of its stretch that their bills do not cover. The process keeps its recent time
//!   for that, in cells of a sixteenth of those of [`Cells`]; time older than their ring is billed as if nothing ran beside it.
//! - Out of credit, launches of several streams would go one by one, each alone on the card, as soon as there is credit for one. So
//!   the first waits for [`TOGETHER`], unless another process of the tenant would take it meanwhile.
//! - Launches are charged their own time. The part of it that recent bills gave back counts as credit, up to [`CREDIT_MAX`].

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::bill::SIBLING_FOR;
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
/// Bills whose unbilled part is remembered, in device time.
const REMEMBERED: Nanos = Nanos::from_millis(20);

/// What is known of streams at the same time.
#[derive(Debug)]
pub(super) struct SideBySide {
    /// The stream of the last launch that asked for credit; no handle is all ones.
    stream: AtomicU64,
    /// When one on another stream did; 0: never.
    changed_at: AtomicU64,
    /// Whether credit ran out, and not enough came back since.
    saves: AtomicBool,
    /// Recent bills before others' were taken off, in nanoseconds.
    before: AtomicU64,
    /// The same after it.
    after: AtomicU64,
    cells: [AtomicU32; CELLS],
}

// === impl SideBySide ===

impl SideBySide {
    pub(super) const fn new() -> Self {
        Self {
            stream: AtomicU64::new(u64::MAX),
            changed_at: AtomicU64::new(0),
            saves: AtomicBool::new(false),
            before: AtomicU64::new(0),
            after: AtomicU64::new(0),
            cells: [const { AtomicU32::new(0) }; CELLS],
        }
    }

    /// The part of a bill that other streams' bills do not cover. Only the thread that holds the markers calls it; with several
    /// contexts one thread may overwrite another's sums, which are a mean anyway.
    pub(super) fn beyond(&self, done: &FinishedBatch, amount: Nanos) -> Nanos {
        let new = match done.streams {
            Streams::Several if Heuristic::SideBySide.is_on() => {
                let finer = |time: Nanos| Nanos(time.0.saturating_mul(FINER));
                let [start, end, wanted] = [done.start, done.end, amount].map(finer);
                let stretch = Stretch { start, end, amount: wanted, counted_until: Nanos::ZERO };
                Nanos(Cells::new(&self.cells).charge(&stretch).0.div_ceil(FINER)).min(amount)
            }
            Streams::One | Streams::Several => amount,
        };
        let sum = |word: &AtomicU64, more: Nanos| word.load(Ordering::Relaxed).saturating_add(more.0);
        let (before, after) = (sum(&self.before, amount), sum(&self.after, new));
        // Halved until it is little enough: long work counts as much as it takes.
        let halvings = (before / REMEMBERED.0).checked_ilog2().map_or(0, |bits| bits + 1);
        self.before.store(before >> halvings, Ordering::Relaxed);
        self.after.store(after >> halvings, Ordering::Relaxed);
        new
    }

    /// Which part of charges recent bills gave back.
    fn unbilled(&self) -> Ppm {
        let (before, after) = (self.before.load(Ordering::Relaxed), self.after.load(Ordering::Relaxed));
        if before == 0 { Ppm::ZERO } else { Ppm::of(Nanos(before.saturating_sub(after)), Nanos(before)) }
    }

    /// A launch on this stream asks for credit.
    pub(super) fn asks(&self, now: Nanos, stream: u64) {
        let last = self.stream.swap(stream, Ordering::Relaxed);
        if last != stream && last != u64::MAX {
            self.changed_at.store(now.0, Ordering::Relaxed);
        }
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
        let saves = known.saves.load(Ordering::Relaxed) && known.is_used(ask.now);
        if !saves || cost >= TOGETHER || ask.waited >= TOGETHER_MAX || self.shares_credit(ask.now) {
            return 1;
        }
        TOGETHER.min(ask.terms.granted.times(TOGETHER_MAX)).signed().max(1)
    }

    /// Whether another process of the tenant takes credit, too.
    fn shares_credit(&self, now: Nanos) -> bool {
        let at = self.sibling_at.load(Ordering::Relaxed);
        at != 0 && now.minus(Nanos(at)) <= SIBLING_FOR
    }

    /// Part of the charges of work on the card that its bills are expected to give back, as it runs side by side.
    pub(super) fn expected_back(&self, now: Nanos, due: Option<Due>) -> Nanos {
        if !self.side_by_side.is_used(now) || due.is_some_and(|due| due.known == ChargeBasis::Not) {
            return Nanos::ZERO;
        }
        let open = self.open_lanes().filter(|(_, lane)| !lane.is_unknown()).map(|(_, lane)| lane.charged());
        let charged = open.chain(due.map(|due| due.charged)).fold(Nanos::ZERO, Nanos::plus);
        self.side_by_side.unbilled().times(charged).min(CREDIT_MAX)
    }
}
