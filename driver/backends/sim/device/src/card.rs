//! One card: memory accounting, device time, the seats of processes.

mod books;
mod figures;
mod samples;
mod seat;

pub(crate) use books::State;
pub use books::WINDOW_NANOS;
pub use figures::{Busy, MemoryKind, Moment, Process};
pub use seat::{Full, Mark, Seat, SeatError};

use crate::mapping::{self, Mapping, OpenError, monotonic_nanos};
use crate::node::{CardFacts, Node};
use crate::schedule::{SEATS, Work};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How a card is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Well,
    /// It fell off the bus: every call fails.
    Lost,
    /// Calls of the management library about it do not return.
    Hung,
}

/// How a card is, in its file.
const LOST: u32 = 1;
const HUNG: u32 = 2;
/// As [`HUNG`], and at least one call waits.
const HUNG_WITH_CALLS: u32 = 3;

/// Time between two looks of a call that waits for a hung card.
const HUNG_PAUSE: Duration = Duration::from_millis(10);

/// Directory in the directory of cards for what processes make, where processes of several users share the cards. Without it that
/// lies beside the cards.
pub const CONTENTS: &str = "contents";

/// A simulated card, or a MIG device of one.
#[derive(Clone, Debug)]
pub struct Card {
    node: Arc<Node>,
    index: usize,
    mapping: Arc<Mapping>,
    alive: RawFd,
    dir: Arc<Path>,
    /// Directory of what processes make: contents and shared memory.
    contents: Arc<Path>,
    /// `None`: it is the whole card.
    part: Option<Arc<MigPart>>,
    /// State files of opened GPU instances; they stay mapped.
    parts: Arc<Mutex<BTreeMap<u64, Arc<Mapping>>>>,
}

/// What distinguishes a MIG device from its card.
#[derive(Debug)]
struct MigPart {
    /// Serial number of the GPU instance.
    serial: u64,
    facts: CardFacts,
    /// Its card.
    whole: Arc<Mapping>,
}

// === impl Card ===

impl Card {
    pub(crate) fn open(dir: &Path, node: Arc<Node>, index: usize, alive: RawFd) -> Result<Self, OpenError> {
        let mapping = Arc::new(Mapping::open(&Self::file(dir, index))?);
        // Processes of several users need one in which each of them may remove what another left.
        let own = dir.join(CONTENTS);
        let contents = if own.is_dir() { own.into() } else { dir.into() };
        Ok(Self { node, index, mapping, alive, dir: dir.into(), contents, part: None, parts: Arc::default() })
    }

    /// A GPU instance of this card as a card, with the given facts. Its state file is created if absent.
    pub(crate) fn part(&self, serial: u64, facts: CardFacts) -> Result<Self, OpenError> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let mapping = match parts.get(&serial) {
            Some(mapping) => Arc::clone(mapping),
            None => {
                let mapping = Arc::new(Mapping::open(&self.books_of(serial))?);
                parts.insert(serial, Arc::clone(&mapping));
                mapping
            }
        };
        let part = MigPart { serial, facts, whole: Arc::clone(&self.mapping) };
        Ok(Self { mapping, part: Some(Arc::new(part)), ..self.clone() })
    }

    /// The state file of a GPU instance.
    pub(crate) fn books_of(&self, serial: u64) -> PathBuf {
        self.dir.join(format!("instance-{}-{serial}", self.index))
    }

    /// Closes it to new processes, unless a process has a seat on it.
    pub(crate) fn close_if_empty(&self) -> bool {
        self.with(|state| {
            self.reap_locked(state, monotonic_nanos());
            let empty = state.seats.iter().take(state.used()).all(|seat| seat.pid == 0);
            if empty {
                self.set_health(Health::Lost);
            }
            empty
        })
    }

    /// The file of card `index` in `dir`.
    pub(crate) fn file(dir: &Path, index: usize) -> PathBuf {
        dir.join(format!("card-{index}"))
    }

    pub(crate) fn with<R>(&self, inside: impl FnOnce(&mut State) -> R) -> R {
        self.mapping.with(|state, entry| {
            state.enter(entry);
            inside(state)
        })
    }

    /// Whether the card's lock is free at this moment. A process stopped inside it blocks all others, unlike
    /// with a real driver.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.mapping.try_with(State::enter).is_some()
    }

    /// The file in which process `pid` on seat number `seat` keeps the content of its memory.
    #[must_use]
    pub fn content_file_of(&self, seat: usize, pid: u32) -> PathBuf {
        self.content(seat, u64::from(pid))
    }

    fn content(&self, seat: usize, pid: u64) -> PathBuf {
        match &self.part {
            None => self.contents.join(format!("content-{}-{seat}-{pid}", self.index)),
            Some(part) => self.contents.join(format!("content-{}.{}-{seat}-{pid}", self.index, part.serial)),
        }
    }

    /// Byte of the file of seat locks that stands for a seat.
    fn byte(&self, seat: usize) -> u64 {
        let seats = u64::try_from(SEATS).unwrap_or(0);
        self.number() * seats + u64::try_from(seat).unwrap_or(0)
    }

    /// A number that no other card of the directory has, nor a GPU instance of any.
    #[must_use]
    pub fn number(&self) -> u64 {
        let index = u64::try_from(self.index).unwrap_or(0) & 0xffff;
        self.part.as_ref().map_or(index, |part| index | (part.serial << 16))
    }

    /// The GPU instance that it is; `None`: a whole card.
    #[must_use]
    pub fn gpu_instance(&self) -> Option<u64> {
        self.part.as_ref().map(|part| part.serial)
    }

    /// The pid of a seat's process as a driver reports it: in the namespace of the process that asks. `pid` is the one that the
    /// process has in its own, which stands for it where it has none here.
    fn pid_here(&self, index: usize, pid: u64) -> u32 {
        let own = || u32::try_from(pid).unwrap_or(0);
        mapping::holder_here(self.alive, self.byte(index)).unwrap_or_else(own)
    }

    /// Releases memory of exited processes, unless a child that they forked has the files. Under the lock.
    fn reap_locked(&self, state: &mut State, now: u64) {
        state.reaped_at = now;
        // The kernel does not show a process its own locks, so it knows its seats itself: by process ID and
        // image. A seat of an image from before `exec`, or of the same process ID in an earlier namespace,
        // belongs to an exited process.
        let own = (u64::from(std::process::id()), seat::image());
        for index in 0..state.used() {
            let (pid, image) = state.seats.get(index).map_or((0, 0), |seat| (seat.pid, seat.image));
            let is_dead = || !mapping::held_by_another(self.alive, self.byte(index));
            if pid == 0 || (pid, image) == own || !is_dead() {
                continue;
            }
            let is_left = mapping::files_are_open(self.alive, self.byte(index));
            if let Some(seat) = state.seats.get_mut(index) {
                seat.left = u64::from(is_left);
            }
            if !is_left {
                // What it had run until now is on the record; the rest of its queue goes with it.
                state.empty(index);
                // A process that never kept content has no file.
                drop(std::fs::remove_file(self.content(index, pid)));
            }
        }
        state.in_use -= state.lent.end_unheld(|number| self.is_held(number));
    }

    /// The file behind the descriptors of memory shared under this number; it is locked as long as a process
    /// has the memory.
    #[must_use]
    pub fn shared_file(&self, number: u64) -> PathBuf {
        self.contents.join(format!("shared-{}-{number}", self.number()))
    }

    /// Another name of its maker's content, which outlives that.
    #[must_use]
    pub fn shared_content_file(&self, number: u64) -> PathBuf {
        self.contents.join(format!("shared-content-{}-{number}", self.number()))
    }

    /// Whether a process has such memory or a descriptor of it; its files are removed with the last.
    fn is_held(&self, number: u64) -> bool {
        let path = self.shared_file(number);
        // A process of another user may put anything there.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
        if file.is_ok_and(|file| file.try_lock().is_err()) {
            return true;
        }
        self.forget_shared(number);
        false
    }

    pub(crate) fn forget_shared(&self, number: u64) {
        // They may never have been made.
        drop(std::fs::remove_file(self.shared_file(number)));
        drop(std::fs::remove_file(self.shared_content_file(number)));
    }

    /// Reaps exited processes, and plays the card up to now.
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
        self.part.as_ref().map_or_else(|| self.facts_of_card(), |part| &part.facts)
    }

    /// What the card says of itself that this is, or is a part of.
    #[must_use]
    pub fn facts_of_card(&self) -> &CardFacts {
        self.node.cards.get(self.index).unwrap_or_else(|| unreachable_card())
    }

    /// Its index; of a part that of its card.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Bytes in use by live processes. Reaps exited ones at most once a millisecond; [`Card::reap`] does at
    /// once.
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
            let used = state.used();
            for seat in state.seats.iter_mut().take(used) {
                seat.high_water = seat.held_bytes();
            }
        });
    }

    /// All figures of one moment, without memory of exited processes.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.with(|state| {
            // The clock is read inside the lock: a late caller then reads the figures and the clock equally
            // late.
            let at = monotonic_nanos();
            state.play(self.node.slice_nanos, at);
            self.reap_locked(state, at);
            let seats = state.seats.iter().zip(&state.works).take(state.used()).enumerate();
            let processes = seats.filter(|(_, (seat, _))| seat.pid != 0 && seat.left == 0).map(
                |(index, (seat, work))| Process {
                    pid: self.pid_here(index, seat.pid),
                    held_bytes: seat.held_bytes(),
                    held_by_kind: seat.held,
                    high_water_bytes: seat.high_water,
                    device_nanos: work.done,
                    utilization: seat.windows.percent(at),
                },
            );
            Moment {
                at,
                in_use: state.in_use,
                high_water: state.high_water,
                busy_nanos: state.busy_total,
                processes: processes.collect(),
            }
        })
    }

    /// The processes on the card, by seat.
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
            let seats = state.seats.iter().take(state.used());
            for seat in seats.filter(|seat| seat.pid == u64::from(pid) && pid != 0) {
                stretches.extend(seat.stretches().map(|run| Busy { start: run.start, end: run.end }));
            }
            stretches
        })
    }

    /// Card time used since the card was made, in nanoseconds.
    #[must_use]
    pub fn busy_nanos(&self) -> u64 {
        self.moment().busy_nanos
    }

    /// How the card is; of a part also how its card is.
    #[must_use]
    pub fn health(&self) -> Health {
        let of = |mapping: &Mapping| match mapping.health().load(Ordering::Relaxed) {
            0 => Health::Well,
            HUNG | HUNG_WITH_CALLS => Health::Hung,
            _ => Health::Lost,
        };
        match &self.part {
            Some(part) if of(&part.whole) != Health::Well => of(&part.whole),
            _ => of(&self.mapping),
        }
    }

    /// Makes the card fall off the bus, hang, or come back; of a part that alone.
    pub fn set_health(&self, health: Health) {
        let word = match health {
            Health::Well => 0,
            Health::Lost => LOST,
            Health::Hung => HUNG,
        };
        self.mapping.health().store(word, Ordering::Relaxed);
        self.mapping.stir();
    }

    /// Waits as long as the card hangs.
    pub fn wait_while_hung(&self) {
        while self.health() == Health::Hung {
            let word = self.mapping.health();
            // It fails for the second call, and once the card is well.
            let _first = word.compare_exchange(HUNG, HUNG_WITH_CALLS, Ordering::Relaxed, Ordering::Relaxed);
            std::thread::sleep(HUNG_PAUSE);
        }
    }

    /// Whether the card hangs and a call waits for it.
    #[must_use]
    pub fn has_hung_call(&self) -> bool {
        self.mapping.health().load(Ordering::Relaxed) == HUNG_WITH_CALLS
    }

    /// How often it had something to tell: an Xid, or that it is lost or there again.
    #[must_use]
    pub fn stirred(&self) -> u32 {
        self.mapping.stirred()
    }

    /// Wakes all waiters for the card's reports.
    pub fn stir(&self) {
        self.mapping.stir();
    }

    /// Sleeps until it has something to tell again, or the time is over; may return sooner.
    pub fn sleep_while(&self, stirred: u32, longest: Duration) {
        self.mapping.sleep_while(stirred, longest);
    }

    /// Allocates the blocks of the card's file, so that no process that reads or uses the card is killed by
    /// SIGBUS. A file of an earlier version may have holes, and the file system may be full.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub fn back(&self) -> Result<(), OpenError> {
        self.back_seats(0)?;
        let used = self.with(|state| state.used());
        self.back_seats(used)
    }

    fn back_seats(&self, seats: usize) -> Result<(), OpenError> {
        let path = match &self.part {
            Some(part) => self.books_of(part.serial),
            None => Self::file(&self.dir, self.index),
        };
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let backed = file.and_then(|file| mapping::back(&file, seats));
        backed.map_err(|source| OpenError::io(&path, source))
    }

    /// Gives the calling process a seat. One process may sit several times; each seat counts as a process of its own.
    ///
    /// # Errors
    ///
    /// [`SeatError`] where all seats are taken or the seat cannot be marked.
    pub fn join(&self) -> Result<Seat, SeatError> {
        let now = monotonic_nanos();
        self.with(|state| {
            if self.health() == Health::Lost {
                return Err(SeatError::Gone);
            }
            self.back_seats(state.used() + 1).map_err(|error| SeatError::Room(Box::new(error)))?;
            state.play(self.node.slice_nanos, now);
            self.reap_locked(state, now);
            let index = state.seats.iter().position(|seat| seat.pid == 0).ok_or(SeatError::NoneLeft)?;
            mapping::hold_seat(self.alive, self.byte(index)).map_err(SeatError::Mark)?;
            if let (Some(seat), Some(work)) = (state.seats.get_mut(index), state.works.get_mut(index)) {
                *work = Work::default();
                seat.sit(u64::from(std::process::id()), seat::image());
            }
            state.seats_used = state.seats_used.max(u64::try_from(index + 1).unwrap_or(0));
            Ok(Seat { card: self.clone(), index })
        })
    }
}

/// Unreachable: a card is opened for an index of its node, and a node's cards never change.
fn unreachable_card() -> &'static CardFacts {
    static NONE: std::sync::OnceLock<CardFacts> = std::sync::OnceLock::new();
    NONE.get_or_init(CardFacts::default)
}
