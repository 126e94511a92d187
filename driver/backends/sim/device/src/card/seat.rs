//! A process on a card: takes memory, hands in work, waits for it.

use super::{Card, MemoryKind};
use crate::ipc_memory::{By, LetGo};
use crate::mapping::{self, OpenError, monotonic_nanos};
use crate::schedule::{self, SEATS, Work};
use std::path::PathBuf;

/// Longest sleep before a waiter polls again: other processes may have come or exited since.
const RECHECK_NANOS: u64 = 10_000_000;
/// Below this a waiter polls again instead of sleeping, as a sleep is not that exact.
const SPIN_NANOS: u64 = 20_000;

/// The card has not enough memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes asked, {free} free")]
pub struct Full {
    /// The request, in bytes.
    pub asked: u64,
    /// What was free then, in bytes.
    pub free: u64,
}

/// Why a process got no seat.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// Live processes have all of them.
    #[error("all {SEATS} seats of the card are taken")]
    NoneLeft,
    /// The seat cannot be marked.
    #[error("the seat cannot be marked as held")]
    Mark(#[source] std::io::Error),
    /// Its file has no room for it.
    #[error("there is no room for the seat")]
    Room(#[source] Box<OpenError>),
    /// It fell off the bus, or is an instance that was destroyed.
    #[error("the card or instance is gone")]
    Gone,
}

/// A point in the work of a seat: complete when the seat's done work reaches it. In nanoseconds of device time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

/// A process's place on a card. It outlives its holder's handle: given up by [`Seat::leave`] or the process's death.
#[derive(Clone, Debug)]
pub struct Seat {
    pub(super) card: Card,
    pub(super) index: usize,
}

/// Identifies the program in this process among others of its process ID; the same for every library of it.
pub(super) fn image() -> u64 {
    mapping::drawn_by_exec()
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
    /// [`Full`] if the card has not as many left, memory of exited processes counted as free.
    pub fn take(&self, kind: MemoryKind, bytes: u64) -> Result<(), Full> {
        let capacity = self.card.facts().memory_bytes;
        self.card.with(|state| {
            // Exited processes are reaped before a new high-water mark and before a refusal.
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
    pub fn give(&self, kind: MemoryKind, bytes: u64) {
        self.card.with(|state| {
            let seat = state.seats.get_mut(self.index);
            if let Some(held) = seat.and_then(|seat| seat.held.get_mut(usize::from(kind as u8))) {
                let bytes = bytes.min(*held);
                *held -= bytes;
                state.in_use = state.in_use.saturating_sub(bytes);
            }
        });
    }

    /// Shares memory of this seat with other processes by handle; the number of the share. `None`: the table
    /// is full.
    #[must_use]
    pub fn lend(&self, bytes: u64) -> Option<u64> {
        self.card.with(|state| state.lent.lend(self.index, bytes, By::Handle))
    }

    /// Shares it by descriptors of [`Card::shared_file`], each with a lock.
    #[must_use]
    pub fn share(&self, bytes: u64) -> Option<u64> {
        self.card.with(|state| state.lent.lend(self.index, bytes, By::Descriptor))
    }

    /// Gives back memory shared by descriptors once no process has it.
    pub fn give_shared(&self, kind: MemoryKind, bytes: u64, number: u64) {
        self.give_lent(kind, bytes, number);
        self.card.forget_shared(number);
    }

    /// Gives back memory shared by handle; the card has it again when no process has it open.
    pub fn give_lent(&self, kind: MemoryKind, bytes: u64, number: u64) -> LetGo {
        self.card.with(|state| {
            let answer = state.lent.let_go(number);
            let seat = state.seats.get_mut(self.index);
            if let Some(held) = seat.and_then(|seat| seat.held.get_mut(usize::from(kind as u8))) {
                *held = held.saturating_sub(bytes);
            }
            if answer == LetGo::Gone {
                state.in_use = state.in_use.saturating_sub(bytes);
            }
            answer
        })
    }

    /// Opens memory of another seat. False: its exporter has freed it, or has exited.
    #[must_use]
    pub fn open_lent(&self, number: u64) -> bool {
        self.card.with(|state| state.lent.open(number, self.index))
    }

    /// Closes it.
    pub fn close_lent(&self, number: u64) {
        self.card.with(|state| state.in_use -= state.lent.close(number, self.index));
    }

    /// Hands in work of a length in nanoseconds; the mark at which it is complete. A part of a card takes longer, as it has
    /// fewer multiprocessors.
    pub fn submit(&self, nanos: u64) -> Mark {
        let (all, here) = (u64::from(self.card.facts_of_card().sms), u64::from(self.card.facts().sms.max(1)));
        let nanos = if all > here { nanos.saturating_mul(all) / here } else { nanos };
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
            let mut no_work = Work::default();
            inside(state.works.get_mut(self.index).unwrap_or(&mut no_work))
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
                let recheck = now + RECHECK_NANOS;
                (now, Some(schedule::finish(state.turn, works, slice, self.index, mark.0, recheck)))
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
