//! Memory that processes share by IPC: it stays on the card until its exporter and every importer release it
//! or exit. While the exporter has it, it counts for the exporter's seat. After that it counts for no seat,
//! and is in use all the same.
//!
//! Memory shared by descriptors has a file of its own. Each holder of the memory, or of a descriptor of it,
//! has a lock on that file.

use crate::header::Record;
use crate::schedule::SEATS;

/// The most allocations of a card that are shared at once.
const PLACES: usize = 4096;
/// These, for the header of a card's file.
pub(crate) const PLACE: Record = Record::of::<IpcEntry>(PLACES);

/// One allocation. All zero: a free place.
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcEntry {
    /// Never the same twice; 0: nothing is here.
    number: u64,
    bytes: u64,
    /// The exporter's seat plus one; 0: it released the memory, or exited.
    maker: u64,
    /// One bit a seat.
    openers: [u64; SEATS / 64],
    /// 1: the lock of its file shows whether a process has it.
    described: u64,
}

/// How importers reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum By {
    /// A handle: each opener is known.
    Handle = 0,
    /// A descriptor, which may be anywhere.
    Descriptor = 1,
}

/// The IPC-shared memory of a card. All zero: none.
#[repr(C)]
pub(crate) struct IpcTable {
    made: u64,
    /// One behind the last place ever used.
    used: u64,
    places: [IpcEntry; PLACES],
}

/// The state of shared memory after its exporter released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetGo {
    /// The card has it again.
    Gone,
    /// An importer has it open.
    StillOpen,
}

// === impl IpcEntry ===

impl IpcEntry {
    fn is_open(&self) -> bool {
        self.openers.iter().any(|word| *word != 0)
    }

    fn set(&mut self, seat: usize, open: bool) {
        if let Some(word) = self.openers.get_mut(seat / 64) {
            let bit = 1 << (seat % 64);
            *word = if open { *word | bit } else { *word & !bit };
        }
    }

    fn is_left(&self) -> bool {
        self.number != 0 && self.maker == 0
    }

    fn is_of(&self, seat: usize) -> bool {
        self.maker == maker_of(seat)
    }
}

fn maker_of(seat: usize) -> u64 {
    u64::try_from(seat).unwrap_or(u64::MAX - 1) + 1
}

// === impl IpcTable ===

impl IpcTable {
    fn used(&mut self) -> &mut [IpcEntry] {
        let used = usize::try_from(self.used).unwrap_or(PLACES).min(PLACES);
        self.places.get_mut(..used).unwrap_or_default()
    }

    fn place(&mut self, number: u64) -> Option<&mut IpcEntry> {
        self.used().iter_mut().find(|place| place.number == number && number != 0)
    }

    /// Shares memory of `seat` under the number returned; `None`: the table is full.
    pub(crate) fn lend(&mut self, seat: usize, bytes: u64, by: By) -> Option<u64> {
        let at = self.places.iter().position(|place| place.number == 0)?;
        self.made += 1;
        let place = self.places.get_mut(at)?;
        let (number, maker) = (self.made, maker_of(seat));
        *place = IpcEntry { number, bytes, maker, openers: [0; SEATS / 64], described: by as u64 };
        self.used = self.used.max(u64::try_from(at + 1).unwrap_or(0));
        Some(self.made)
    }

    /// `seat` has it open from now on. False: its maker does not have it any more.
    pub(crate) fn open(&mut self, number: u64, seat: usize) -> bool {
        let Some(place) = self.place(number).filter(|place| place.maker != 0) else { return false };
        place.set(seat, true);
        true
    }

    /// `seat` has it open no longer; bytes that the card has again.
    pub(crate) fn close(&mut self, number: u64, seat: usize) -> u64 {
        let Some(place) = self.place(number) else { return 0 };
        place.set(seat, false);
        if place.maker != 0 || place.is_open() {
            return 0;
        }
        place.number = 0;
        place.bytes
    }

    /// Its maker lets go of it.
    pub(crate) fn let_go(&mut self, number: u64) -> LetGo {
        let Some(place) = self.place(number) else { return LetGo::Gone };
        place.maker = 0;
        if place.is_open() {
            return LetGo::StillOpen;
        }
        place.number = 0;
        LetGo::Gone
    }

    /// Everything that `seat` made or had open.
    pub(crate) fn leave(&mut self, seat: usize) {
        for place in self.used().iter_mut().filter(|place| place.number != 0) {
            place.set(seat, false);
            if place.is_of(seat) {
                place.maker = 0;
            }
            if place.maker == 0 && !place.is_open() && place.described == 0 {
                place.number = 0;
            }
        }
    }

    /// Ends memory shared by descriptors that has no exporter and, by `is_held`, no holder of its number; the
    /// bytes the card has again.
    pub(crate) fn end_unheld(&mut self, is_held: impl Fn(u64) -> bool) -> u64 {
        let left = self.used().iter_mut().filter(|place| place.is_left() && place.described != 0);
        let gone = left.filter(|place| !is_held(place.number));
        gone.map(|place| {
            place.number = 0;
            place.bytes
        })
        .sum()
    }

    /// Bytes that are still open, and have no maker.
    pub(crate) fn without_maker(&mut self) -> u64 {
        self.used().iter().filter(|place| place.is_left()).map(|place| place.bytes).sum()
    }
}
