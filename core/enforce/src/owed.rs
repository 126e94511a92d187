//! Card time that a tenant was promised and did not get, since the card was taken by what others run for long.
//!
//! While a kernel of a second has its turns, its neighbours take turns with it, whatever they were granted: a tenant of 60 % has
//! half of the card. Afterwards the kernel's owner waits until that is paid, and the card rests meanwhile, as nobody is granted
//! more than before. Out of that rest others get what they went without:
//!
//! ```text
//!   card:  │ B C B C B C B C B C │ C · C · C C │      C is granted 60 %
//!   owed:    rises                 falls: C has its 60 %, and of the rest what it is owed
//! ```
//!
//! The vendor's windows say what a tenant had and what nobody had. Time in which a tenant had nothing on the card is not owed. It
//! is an account of both sides: what a tenant has beyond its guarantee is taken off, whatever it came from.

use crate::bucket::SAVED_MAX;
use crate::units::Nanos;

/// Most that is owed: as much as may be saved up for a launch that takes long.
const OWED_MAX: Nanos = SAVED_MAX;
/// Of what is owed, one part of so many is forgotten in a window: half of it in seven seconds.
const FORGET: i64 = 64;
/// Part of a window that rests whoever works: what the vendor's hundredths hide, and turns of those who come.
const REST: u64 = 50;

/// What one tenant is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owed {
    /// In nanoseconds; below zero it had more than its guarantee.
    sum: i64,
    /// Of that, to be given in a time as long as the last window.
    due: i64,
    length: Nanos,
}

/// One of the vendor's windows, as one tenant had it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Had {
    /// How long it was.
    pub(crate) length: Nanos,
    /// What it was promised of it.
    pub(crate) promised: Nanos,
    /// What it had.
    pub(crate) own: Nanos,
    /// Time in which it waited, with work on the card, for the turns of others.
    pub(crate) waited: Nanos,
    /// What nobody had.
    pub(crate) idle: Nanos,
}

impl Owed {
    pub(crate) const fn nothing() -> Self {
        Self { sum: 0, due: 0, length: Nanos::ZERO }
    }

    /// Takes one window.
    pub(crate) fn window(&mut self, had: &Had) {
        let rests = Nanos(had.length.0 / REST);
        // Who has less of a card that rests does not want more, or was kept from wanting it by something else.
        let taken = if had.idle <= rests { had.waited } else { Nanos::ZERO };
        let less = had.promised.minus(had.own).min(taken).signed();
        let more = had.own.minus(had.promised);
        let forgotten = self.sum.max(0) / FORGET;
        let sum = self.sum.saturating_sub(forgotten).saturating_add(less).saturating_sub(more.signed());
        self.sum = sum.clamp(-had.promised.signed(), OWED_MAX.signed());
        // What it has beyond its guarantee rests again once it takes less.
        let rest = had.idle.plus(more).minus(rests);
        (self.due, self.length) = (self.sum.clamp(0, rest.signed()), had.length);
    }

    /// What is to be given after so much time.
    pub(crate) fn give(&self, passed: Nanos) -> i64 {
        let part = i128::from(passed.min(self.length).0);
        let give = (i128::from(self.due) * part).checked_div(i128::from(self.length.0));
        give.and_then(|give| i64::try_from(give).ok()).unwrap_or(0)
    }
}
