//! The content of a card's file: usage accounting per seat, and the record of runs. No clock and no file is
//! read here.

use crate::header::Record;
use crate::ipc_memory::IpcTable;
use crate::mapping::Entry;
use crate::mig;
use crate::schedule::{self, Run, SEATS, Turn, Work};
use crate::xid::Reports;

/// Length of a utilisation window: a sixth of a second, as the vendor samples.
pub const WINDOW_NANOS: u64 = 166_666_667;
/// Windows kept.
const WINDOWS: usize = 8;
/// Full ones among them.
pub(super) const FULL_WINDOWS: u64 = 7;
/// Processes that are remembered after they left.
const DEPARTED: usize = 64;
/// Stretches of card time kept for each seat.
const RUNS: usize = 4096;

/// A stretch with the point of the seat's work where it began.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Stretch {
    pub(super) start: u64,
    pub(super) end: u64,
    done_before: u64,
}

/// Busy time in the windows of [`WINDOW_NANOS`], by number of the window.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Windows {
    number: [u64; WINDOWS],
    busy: [u64; WINDOWS],
}

/// A process that left its seat, as samples still tell of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ExitedProcess {
    pub(super) pid: u64,
    pub(super) windows: Windows,
}

#[repr(C)]
pub(super) struct SeatState {
    /// 0: the seat is free.
    pub(super) pid: u64,
    /// Distinguishes the program in the process from the one before `exec`.
    pub(super) image: u64,
    /// 1: its process has exited, and a child that it forked has its files open.
    pub(super) left: u64,
    pub(super) held: [u64; 8],
    pub(super) high_water: u64,
    pub(super) windows: Windows,
    runs_made: u64,
    runs: [Stretch; RUNS],
}

/// The content of a card's file, under its lock. All zero: the card is unused.
#[repr(C)]
pub(crate) struct State {
    pub(super) in_use: u64,
    pub(super) high_water: u64,
    pub(crate) xids: Reports,
    pub(super) busy_total: u64,
    pub(super) reaped_at: u64,
    /// One behind the highest seat ever taken.
    pub(super) seats_used: u64,
    pub(super) turn: Turn,
    pub(super) windows: Windows,
    /// Its MIG instances.
    pub(crate) mig: mig::InstanceTable,
    pub(super) works: [Work; SEATS],
    pub(super) seats: [SeatState; SEATS],
    pub(super) lent: IpcTable,
    departed_made: u64,
    pub(super) departed: [ExitedProcess; DEPARTED],
}

// === impl Windows ===

impl Windows {
    fn add(&mut self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let number = at / WINDOW_NANOS;
            let stop = end.min((number + 1) * WINDOW_NANOS);
            let place = usize::try_from(number).unwrap_or(0) % WINDOWS;
            if let (Some(owner), Some(busy)) = (self.number.get_mut(place), self.busy.get_mut(place)) {
                if *owner != number {
                    (*owner, *busy) = (number, 0);
                }
                *busy += stop - at;
            }
            at = stop;
        }
    }

    /// Percent of the last full window before `now`.
    pub(super) fn percent(&self, now: u64) -> u32 {
        self.percent_of((now / WINDOW_NANOS).saturating_sub(1))
    }

    /// When each kept full window before `now` ended, and its percent, oldest first.
    pub(super) fn record(&self, now: u64) -> Vec<(u64, u32)> {
        let present = now / WINDOW_NANOS;
        let ended = |number: u64| ((number + 1) * WINDOW_NANOS, self.percent_of(number));
        (present.saturating_sub(FULL_WINDOWS)..present).map(ended).collect()
    }

    /// Busy nanoseconds of the last `count` full windows before `now`.
    pub(super) fn busy(&self, now: u64, count: u64) -> u64 {
        let present = now / WINDOW_NANOS;
        (present.saturating_sub(count)..present).map(|number| self.busy_of(number)).sum()
    }

    fn busy_of(&self, number: u64) -> u64 {
        let place = usize::try_from(number).unwrap_or(0) % WINDOWS;
        match (self.number.get(place), self.busy.get(place)) {
            (Some(owner), Some(busy)) if *owner == number => *busy,
            _ => 0,
        }
    }

    fn percent_of(&self, number: u64) -> u32 {
        u32::try_from((self.busy_of(number) * 100).div_ceil(WINDOW_NANOS).min(100)).unwrap_or(100)
    }
}

// === impl SeatState ===

impl SeatState {
    /// What runs in process `pid` sits down on an empty seat.
    pub(super) fn sit(&mut self, pid: u64, image: u64) {
        (self.held, self.high_water, self.runs_made) = ([0; 8], 0, 0);
        self.windows = Windows { number: [0; WINDOWS], busy: [0; WINDOWS] };
        (self.pid, self.image, self.left) = (pid, image, 0);
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held.iter().sum()
    }

    fn record(&mut self, run: Run) {
        self.windows.add(run.start, run.end);
        let last = usize::try_from(self.runs_made.wrapping_sub(1)).unwrap_or(0) % RUNS;
        if let Some(stretch) = self.runs.get_mut(last)
            && self.runs_made > 0
            && stretch.end == run.start
        {
            stretch.end = run.end;
            return;
        }
        let place = usize::try_from(self.runs_made).unwrap_or(0) % RUNS;
        if let Some(stretch) = self.runs.get_mut(place) {
            *stretch = Stretch { start: run.start, end: run.end, done_before: run.done_before };
        }
        self.runs_made += 1;
    }

    /// The kept stretches, oldest first.
    pub(super) fn stretches(&self) -> impl DoubleEndedIterator<Item = Stretch> {
        let kept = usize::try_from(self.runs_made).unwrap_or(usize::MAX).min(RUNS);
        let first = usize::try_from(self.runs_made).unwrap_or(0) - kept;
        (first..first + kept).filter_map(|number| self.runs.get(number % RUNS).copied())
    }

    /// When the seat's done work reached `mark`; the oldest time known where that is longer ago than the record.
    pub(super) fn reached(&self, mark: u64) -> u64 {
        let mut oldest = 0;
        for stretch in self.stretches().rev() {
            oldest = stretch.start;
            if mark > stretch.done_before {
                return (stretch.start + (mark - stretch.done_before)).min(stretch.end);
            }
        }
        oldest
    }
}

// === impl State ===

impl State {
    /// Offset of the seats. They are by far the largest part, and most of them are free.
    pub(crate) const SEATS_AT: usize = std::mem::offset_of!(Self, seats);
    /// Where what lies behind them begins.
    pub(crate) const BEHIND_SEATS: usize = std::mem::offset_of!(Self, lent);
    /// Bytes of one.
    pub(crate) const SEAT_BYTES: usize = size_of::<SeatState>();
    /// Its seats, for the header of a card's file.
    pub(crate) const SEAT: Record = Record::of::<SeatState>(SEATS);
    /// The same of processes that left.
    pub(crate) const DEPARTED: Record = Record::of::<ExitedProcess>(DEPARTED);

    pub(super) fn used(&self) -> usize {
        usize::try_from(self.seats_used).unwrap_or(SEATS).min(SEATS)
    }

    /// Plays the card up to `now`.
    pub(super) fn play(&mut self, slice: u64, now: u64) {
        let used = self.used();
        let (works, _) = self.works.split_at_mut(used);
        while let Some(run) = schedule::step(&mut self.turn, works, slice, now) {
            self.busy_total += run.end - run.start;
            self.windows.add(run.start, run.end);
            if let Some(seat) = self.seats.get_mut(run.seat) {
                seat.record(run);
            }
        }
    }

    /// Repairs the state after a lock holder died: its update may be incomplete.
    pub(super) fn enter(&mut self, entry: Entry) {
        if entry == Entry::AfterDeath {
            self.repair();
        }
    }

    /// Sums anew what is derived from the seats.
    fn repair(&mut self) {
        let used = self.used();
        let held = self.seats.iter().take(used).map(SeatState::held_bytes).sum::<u64>();
        self.in_use = held + self.lent.without_maker();
        for work in &mut self.works {
            work.done = work.done.min(work.submitted);
        }
    }

    pub(super) fn empty(&mut self, index: usize) {
        if let (Some(seat), Some(work)) = (self.seats.get_mut(index), self.works.get_mut(index)) {
            let place = usize::try_from(self.departed_made).unwrap_or(0) % DEPARTED;
            if let Some(departed) = self.departed.get_mut(place).filter(|_| seat.pid != 0) {
                *departed = ExitedProcess { pid: seat.pid, windows: seat.windows };
                self.departed_made += 1;
            }
            seat.pid = 0;
            seat.held = [0; 8];
            *work = Work::default();
        }
        self.lent.leave(index);
        self.repair();
    }
}
