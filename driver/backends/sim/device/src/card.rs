//! One card: memory books, device time, the seats of processes.

use crate::mapping::{self, Entry, Mapping, OpenError, monotonic_nanos};
use crate::node::{CardFacts, Node};
use crate::schedule::{self, Run, SEATS, Turn, Work};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Length of a utilisation window: a sixth of a second, as the vendor samples.
pub const WINDOW_NANOS: u64 = 166_666_667;
/// Windows kept.
const WINDOWS: usize = 8;
/// Stretches of card time kept for each seat.
const RUNS: usize = 4096;
/// Longest sleep before a waiter looks again: others may have come, or died, since.
const RECHECK_NANOS: u64 = 10_000_000;
/// Below this a waiter looks again instead of sleeping, as a sleep is not that exact.
const SPIN_NANOS: u64 = 20_000;

/// What device memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// cuMemAlloc, cuMemAllocPitch.
    Plain,
    /// cuMemAllocManaged, taken to be resident in full.
    Managed,
    /// cuArrayCreate and its kind.
    Array,
    /// cuMemCreate.
    Physical,
    /// Reserved by memory pools.
    Pool,
    /// Reserved for memory nodes of graphs.
    Graph,
    /// Contexts.
    Context,
    /// Loaded modules.
    Module,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Plain,
        Self::Managed,
        Self::Array,
        Self::Physical,
        Self::Pool,
        Self::Graph,
        Self::Context,
        Self::Module,
    ];
}

/// How a card is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Well,
    /// It fell off the bus: every call fails.
    Lost,
}

/// The card has not enough memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes asked, {free} free")]
pub struct Full {
    /// What was asked for, in bytes.
    pub asked: u64,
    /// What was free then, in bytes.
    pub free: u64,
}

/// Why a process got no seat.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// All are taken by living processes.
    #[error("all {SEATS} seats of the card are taken")]
    NoneLeft,
    /// The seat cannot be marked.
    #[error("the seat cannot be marked as held")]
    Mark(#[source] std::io::Error),
}

/// A point in the work of a seat: complete when the seat's done work reaches it. In nanoseconds of device time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

/// A stretch of card time a process had, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// From when.
    pub start: u64,
    /// Till when.
    pub end: u64,
}

/// A process on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number where it runs.
    pub pid: u32,
    /// Bytes it holds.
    pub held_bytes: u64,
    /// The same by [`Kind::ALL`].
    pub held_by_kind: [u64; 8],
    /// The most it ever held, in bytes.
    pub high_water_bytes: u64,
    /// Card time it had, in nanoseconds.
    pub device_nanos: u64,
    /// Percent of the last full utilisation window.
    pub utilization: u32,
}

/// A card at one moment: figures that were read at different times do not fit each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When, in nanoseconds of the monotonic clock; the card has been played up to then.
    pub at: u64,
    /// Bytes in use, by the living.
    pub in_use: u64,
    /// The most bytes ever in use at once.
    pub high_water: u64,
    /// Card time anybody ever had, in nanoseconds.
    pub busy_nanos: u64,
    /// Everybody on the card, by seat.
    pub processes: Vec<Process>,
}

/// A stretch with the point of the seat's work where it began.
#[derive(Clone, Copy)]
#[repr(C)]
struct Stretch {
    start: u64,
    end: u64,
    done_before: u64,
}

/// Busy time in the windows of [`WINDOW_NANOS`], by number of the window.
#[derive(Clone, Copy)]
#[repr(C)]
struct Windows {
    number: [u64; WINDOWS],
    busy: [u64; WINDOWS],
}

#[repr(C)]
struct SeatState {
    /// 0: nobody sits here.
    pid: u64,
    held: [u64; 8],
    high_water: u64,
    windows: Windows,
    runs_made: u64,
    runs: [Stretch; RUNS],
}

/// What lies in a card's file under its lock. All zero is a card nobody used yet.
#[repr(C)]
pub(crate) struct State {
    in_use: u64,
    high_water: u64,
    last_xid: u64,
    busy_total: u64,
    reaped_at: u64,
    /// One behind the highest seat ever taken.
    seats_used: u64,
    turn: Turn,
    windows: Windows,
    works: [Work; SEATS],
    seats: [SeatState; SEATS],
}

/// A simulated card.
#[derive(Clone, Debug)]
pub struct Card {
    node: Arc<Node>,
    index: usize,
    mapping: Arc<Mapping>,
    alive: RawFd,
    dir: Arc<Path>,
}

/// A process's place on a card. It outlives its holder's handle: given up by [`Seat::leave`] or the process's death.
#[derive(Clone, Debug)]
pub struct Seat {
    card: Card,
    index: usize,
}

// === impl Moment ===

impl Moment {
    /// Card time process `pid` had so far, in nanoseconds; 0 for one that is not on the card.
    #[must_use]
    pub fn device_nanos(&self, pid: u32) -> u64 {
        self.processes.iter().filter(|process| process.pid == pid).map(|process| process.device_nanos).sum()
    }
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
    fn percent(&self, now: u64) -> u32 {
        let number = (now / WINDOW_NANOS).saturating_sub(1);
        let place = usize::try_from(number).unwrap_or(0) % WINDOWS;
        let busy = match (self.number.get(place), self.busy.get(place)) {
            (Some(owner), Some(busy)) if *owner == number => *busy,
            _ => 0,
        };
        u32::try_from((busy * 100).div_ceil(WINDOW_NANOS).min(100)).unwrap_or(100)
    }
}

// === impl SeatState ===

impl SeatState {
    fn held_bytes(&self) -> u64 {
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
    fn stretches(&self) -> impl DoubleEndedIterator<Item = Stretch> {
        let kept = usize::try_from(self.runs_made).unwrap_or(usize::MAX).min(RUNS);
        let first = usize::try_from(self.runs_made).unwrap_or(0) - kept;
        (first..first + kept).filter_map(|number| self.runs.get(number % RUNS).copied())
    }

    /// When the seat's done work reached `mark`; the oldest time known where that is longer ago than the record.
    fn reached(&self, mark: u64) -> u64 {
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
    fn used(&self) -> usize {
        usize::try_from(self.seats_used).unwrap_or(SEATS).min(SEATS)
    }

    /// Plays the card up to `now`.
    fn play(&mut self, slice: u64, now: u64) {
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

    /// Sums anew what is derived from the seats.
    fn repair(&mut self) {
        let used = self.used();
        self.in_use = self.seats.iter().take(used).map(SeatState::held_bytes).sum();
        for work in &mut self.works {
            work.done = work.done.min(work.submitted);
        }
    }

    fn empty(&mut self, index: usize) {
        if let (Some(seat), Some(work)) = (self.seats.get_mut(index), self.works.get_mut(index)) {
            seat.pid = 0;
            seat.held = [0; 8];
            *work = Work::default();
        }
        self.repair();
    }
}

// === impl Card ===

impl Card {
    pub(crate) fn open(dir: &Path, node: Arc<Node>, index: usize, alive: RawFd) -> Result<Self, OpenError> {
        let mapping = Arc::new(Mapping::open(&Self::file(dir, index))?);
        Ok(Self { node, index, mapping, alive, dir: dir.into() })
    }

    /// The file of card `index` in `dir`.
    pub(crate) fn file(dir: &Path, index: usize) -> PathBuf {
        dir.join(format!("card-{index}"))
    }

    fn with<R>(&self, inside: impl FnOnce(&mut State) -> R) -> R {
        self.mapping.with(|state, entry| {
            if entry == Entry::AfterDeath {
                state.repair();
            }
            inside(state)
        })
    }

    /// The file in which process `pid` on seat number `seat` keeps the content of its memory.
    #[must_use]
    pub fn content_file_of(&self, seat: usize, pid: u32) -> PathBuf {
        self.content(seat, u64::from(pid))
    }

    fn content(&self, seat: usize, pid: u64) -> PathBuf {
        self.dir.join(format!("content-{}-{seat}-{pid}", self.index))
    }

    fn byte(&self, seat: usize) -> u64 {
        u64::try_from(self.index * SEATS + seat).unwrap_or(0)
    }

    /// Takes back what dead processes held. Under the lock.
    fn reap_locked(&self, state: &mut State, now: u64) {
        state.reaped_at = now;
        let own = u64::from(std::process::id());
        for index in 0..state.used() {
            let pid = state.seats.get(index).map_or(0, |seat| seat.pid);
            if pid != 0 && pid != own && !mapping::held_by_another(self.alive, self.byte(index)) {
                // What it had run until now is on the record; the rest of its queue goes with it.
                state.empty(index);
                // A process that never kept content has no file.
                drop(std::fs::remove_file(self.content(index, pid)));
            }
        }
    }

    /// Takes back what dead processes held, and plays the card up to now.
    pub fn reap(&self) {
        let now = monotonic_nanos();
        self.with(|state| {
            state.play(self.node.slice_nanos, now);
            self.reap_locked(state, now);
        });
    }

    /// What is common to the cards.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// What the card says of itself.
    #[must_use]
    pub fn facts(&self) -> &CardFacts {
        self.node.cards.get(self.index).unwrap_or_else(|| unreachable_card())
    }

    /// Its index.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Bytes in use, by the living. Looks for the dead at most once a millisecond; [`Card::reap`] does at once.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        let now = monotonic_nanos();
        self.with(|state| {
            if now.saturating_sub(state.reaped_at) > 1_000_000 {
                self.reap_locked(state, now);
            }
            state.in_use
        })
    }

    /// The most bytes ever in use at once.
    #[must_use]
    pub fn high_water(&self) -> u64 {
        self.with(|state| state.high_water)
    }

    /// Starts the high-water mark anew from what is in use.
    pub fn reset_high_water(&self) {
        self.reap();
        self.with(|state| {
            state.high_water = state.in_use;
            for seat in &mut state.seats {
                seat.high_water = seat.held_bytes();
            }
        });
    }

    /// All figures of one moment, without what dead processes held.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.with(|state| {
            // The clock is read inside: whoever waits for the lock, or for a processor, is late with the figures and the clock
            // alike.
            let at = monotonic_nanos();
            state.play(self.node.slice_nanos, at);
            self.reap_locked(state, at);
            let seats = state.seats.iter().zip(&state.works).take(state.used());
            let processes = seats.filter(|(seat, _)| seat.pid != 0).map(|(seat, work)| Process {
                pid: u32::try_from(seat.pid).unwrap_or(0),
                held_bytes: seat.held_bytes(),
                held_by_kind: seat.held,
                high_water_bytes: seat.high_water,
                device_nanos: work.done,
                utilization: seat.windows.percent(at),
            });
            Moment {
                at,
                in_use: state.in_use,
                high_water: state.high_water,
                busy_nanos: state.busy_total,
                processes: processes.collect(),
            }
        })
    }

    /// Everybody on the card, by seat.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        self.moment().processes
    }

    /// The last stretches of card time process `pid` had, oldest first; at most 4096.
    #[must_use]
    pub fn trace(&self, pid: u32) -> Vec<Busy> {
        self.reap();
        self.with(|state| {
            let mut stretches = Vec::new();
            for seat in state.seats.iter().filter(|seat| seat.pid == u64::from(pid) && pid != 0) {
                stretches.extend(seat.stretches().map(|run| Busy { start: run.start, end: run.end }));
            }
            stretches
        })
    }

    /// Card time anybody ever had, in nanoseconds.
    #[must_use]
    pub fn busy_nanos(&self) -> u64 {
        self.moment().busy_nanos
    }

    /// Percent of the last full utilisation window in which somebody ran.
    #[must_use]
    pub fn utilization(&self) -> u32 {
        let now = monotonic_nanos();
        self.with(|state| {
            state.play(self.node.slice_nanos, now);
            state.windows.percent(now)
        })
    }

    /// How the card is.
    #[must_use]
    pub fn health(&self) -> Health {
        if self.mapping.lost().load(Ordering::Relaxed) == 0 { Health::Well } else { Health::Lost }
    }

    /// Makes the card fall off the bus, or come back.
    pub fn set_health(&self, health: Health) {
        self.mapping.lost().store(u64::from(health == Health::Lost), Ordering::Relaxed);
    }

    /// The last Xid the driver would have logged; 0 where there was none.
    #[must_use]
    pub fn last_xid(&self) -> u64 {
        self.with(|state| state.last_xid)
    }

    /// Records an Xid.
    pub fn raise_xid(&self, xid: u64) {
        self.with(|state| state.last_xid = xid);
    }

    /// Gives the calling process a seat. One process may sit several times; each seat counts as a process of its own.
    ///
    /// # Errors
    ///
    /// [`SeatError`] where all seats are taken or the seat cannot be marked.
    pub fn join(&self) -> Result<Seat, SeatError> {
        let now = monotonic_nanos();
        self.with(|state| {
            state.play(self.node.slice_nanos, now);
            self.reap_locked(state, now);
            let index = state.seats.iter().position(|seat| seat.pid == 0).ok_or(SeatError::NoneLeft)?;
            mapping::hold_seat(self.alive, self.byte(index)).map_err(SeatError::Mark)?;
            if let (Some(seat), Some(work)) = (state.seats.get_mut(index), state.works.get_mut(index)) {
                *work = Work::default();
                (seat.held, seat.high_water, seat.runs_made) = ([0; 8], 0, 0);
                seat.windows = Windows { number: [0; WINDOWS], busy: [0; WINDOWS] };
                seat.pid = u64::from(std::process::id());
            }
            state.seats_used = state.seats_used.max(u64::try_from(index + 1).unwrap_or(0));
            Ok(Seat { card: self.clone(), index })
        })
    }
}

/// A card is opened for an index of its node, whose cards never change.
fn unreachable_card() -> &'static CardFacts {
    static NONE: std::sync::OnceLock<CardFacts> = std::sync::OnceLock::new();
    NONE.get_or_init(CardFacts::default)
}

// === impl Seat ===

impl Seat {
    /// The card.
    #[must_use]
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Its number on the card.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Takes `bytes` of the card's memory.
    ///
    /// # Errors
    ///
    /// [`Full`] where the card has not as many left, dead processes' holdings counted as free.
    pub fn take(&self, kind: Kind, bytes: u64) -> Result<(), Full> {
        let capacity = self.card.facts().memory_bytes;
        self.card.with(|state| {
            // The dead are looked for before a new mark is set, and before anybody is refused.
            if state.in_use.saturating_add(bytes) > capacity.min(state.high_water) {
                self.card.reap_locked(state, monotonic_nanos());
            }
            let free = capacity.saturating_sub(state.in_use);
            if bytes > free {
                return Err(Full { asked: bytes, free });
            }
            if let Some(seat) = state.seats.get_mut(self.index) {
                if let Some(held) = seat.held.get_mut(usize::from(kind as u8)) {
                    *held += bytes;
                }
                seat.high_water = seat.high_water.max(seat.held_bytes());
                state.in_use += bytes;
                state.high_water = state.high_water.max(state.in_use);
            }
            Ok(())
        })
    }

    /// Gives `bytes` back, never more than the seat holds of that kind.
    pub fn give(&self, kind: Kind, bytes: u64) {
        self.card.with(|state| {
            let seat = state.seats.get_mut(self.index);
            if let Some(held) = seat.and_then(|seat| seat.held.get_mut(usize::from(kind as u8))) {
                let bytes = bytes.min(*held);
                *held -= bytes;
                state.in_use = state.in_use.saturating_sub(bytes);
            }
        });
    }

    /// Hands in work of a length in nanoseconds; the mark at which it is complete.
    pub fn submit(&self, nanos: u64) -> Mark {
        self.with_work(|work| {
            work.submitted = work.submitted.saturating_add(nanos);
            Mark(work.submitted)
        })
    }

    /// How far the card is with this seat's work.
    #[must_use]
    pub fn done(&self) -> Mark {
        self.with_work(|work| Mark(work.done))
    }

    /// The mark behind everything handed in.
    #[must_use]
    pub fn submitted(&self) -> Mark {
        self.with_work(|work| Mark(work.submitted))
    }

    fn with_work<R>(&self, inside: impl FnOnce(&mut Work) -> R) -> R {
        self.card.with(|state| {
            // The clock is read inside, so that the card is never played backwards.
            state.play(self.card.node.slice_nanos, monotonic_nanos());
            let mut nobody = Work::default();
            inside(state.works.get_mut(self.index).unwrap_or(&mut nobody))
        })
    }

    /// When `mark` was reached, on the monotonic clock; `None`: not yet.
    #[must_use]
    pub fn reached(&self, mark: Mark) -> Option<u64> {
        self.card.with(|state| {
            state.play(self.card.node.slice_nanos, monotonic_nanos());
            let done = state.works.get(self.index)?.done;
            (done >= mark.0).then(|| state.seats.get(self.index).map_or(0, |seat| seat.reached(mark.0)))
        })
    }

    /// Sleeps until `mark` is reached. Marks behind everything handed in are never reached: they return at once.
    pub fn wait(&self, mark: Mark) {
        loop {
            let slice = self.card.node.slice_nanos;
            let (now, ready) = self.card.with(|state| {
                let now = monotonic_nanos();
                state.play(slice, now);
                let used = state.used();
                let work = state.works.get(self.index).copied().unwrap_or_default();
                if work.done >= mark.0 || work.submitted < mark.0 {
                    return (now, None);
                }
                let (works, _) = state.works.split_at(used);
                (now, Some(schedule::finish(state.turn, works, slice, self.index, mark.0)))
            });
            let Some(ready) = ready else { return };
            if ready.saturating_sub(now) <= SPIN_NANOS {
                std::thread::yield_now();
                continue;
            }
            mapping::sleep_until(ready.min(now + RECHECK_NANOS));
            if ready > now + RECHECK_NANOS {
                self.card.reap();
            }
        }
    }

    /// The file for the content of this seat's memory: removed with the seat, also after the process's death.
    #[must_use]
    pub fn content_file(&self) -> PathBuf {
        self.card.content(self.index, u64::from(std::process::id()))
    }

    /// Gives the seat up: memory, content and queued work go.
    pub fn leave(self) {
        self.card.with(|state| state.empty(self.index));
        // A process that never kept content has no file.
        drop(std::fs::remove_file(self.content_file()));
        mapping::leave_seat(self.card.alive, self.card.byte(self.index));
    }
}
