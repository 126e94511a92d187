//! Memory that other processes may open: it stays on the card until its maker and every opener have let go of it, or died.
//! While its maker has it, it is among what the maker's seat holds; after that it is nobody's, and in use all the same.

use crate::schedule::SEATS;

/// Allocations of a card that can be lent at once.
const PLACES: usize = 4096;

/// One allocation. All zero: a free place.
#[derive(Clone, Copy)]
#[repr(C)]
struct Place {
    /// Never the same twice; 0: nothing is here.
    number: u64,
    bytes: u64,
    /// The maker's seat plus one; 0: it let go, or died.
    maker: u64,
    /// One bit a seat.
    openers: [u64; SEATS / 64],
}

/// What of a card is lent. All zero: nothing.
#[repr(C)]
pub(crate) struct Lent {
    made: u64,
    /// One behind the last place ever used.
    used: u64,
    places: [Place; PLACES],
}

/// What became of memory that somebody let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetGo {
    /// The card has it again.
    Gone,
    /// Somebody has it open.
    StillOpen,
}

// === impl Place ===

impl Place {
    fn is_open(&self) -> bool {
        self.openers.iter().any(|word| *word != 0)
    }

    fn set(&mut self, seat: usize, open: bool) {
        if let Some(word) = self.openers.get_mut(seat / 64) {
            let bit = 1 << (seat % 64);
            *word = if open { *word | bit } else { *word & !bit };
        }
    }

    fn is_of(&self, seat: usize) -> bool {
        self.maker == maker_of(seat)
    }
}

fn maker_of(seat: usize) -> u64 {
    u64::try_from(seat).unwrap_or(u64::MAX - 1) + 1
}

// === impl Lent ===

impl Lent {
    fn used(&mut self) -> &mut [Place] {
        let used = usize::try_from(self.used).unwrap_or(PLACES).min(PLACES);
        self.places.get_mut(..used).unwrap_or_default()
    }

    fn place(&mut self, number: u64) -> Option<&mut Place> {
        self.used().iter_mut().find(|place| place.number == number && number != 0)
    }

    /// Memory of `seat` may be opened from now on, under the number answered; `None`: no more can be lent.
    pub(crate) fn lend(&mut self, seat: usize, bytes: u64) -> Option<u64> {
        let at = self.places.iter().position(|place| place.number == 0)?;
        self.made += 1;
        let place = self.places.get_mut(at)?;
        *place = Place { number: self.made, bytes, maker: maker_of(seat), openers: [0; SEATS / 64] };
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
            if place.maker == 0 && !place.is_open() {
                place.number = 0;
            }
        }
    }

    /// Bytes that are still open, and have no maker.
    pub(crate) fn without_maker(&mut self) -> u64 {
        self.used()
            .iter()
            .filter(|place| place.number != 0 && place.maker == 0)
            .map(|place| place.bytes)
            .sum()
    }
}
