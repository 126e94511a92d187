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
//! The vendor's windows say what a tenant had and what nobody had. Time in which a tenant had nothing on the card, or nobody else
//! had it, is not owed. It is an account of both sides: what a tenant has beyond its guarantee is taken off, whatever it came from.
//!
//! A window tells of rest when it is over, and kernels that are not much longer are back by then. So what rested of late is what
//! may be given, at any moment at which the tenant waits for credit: while others have their turns it waits for its own.

use crate::bucket::SAVED_MAX;
use crate::units::Nanos;

/// Most that is owed: as much as may be saved up for a launch that takes long.
const OWED_MAX: Nanos = SAVED_MAX;
/// Of what is owed, one part of so many is forgotten in a window: half of it in seven seconds.
const FORGET: i64 = 64;
/// Of what rested, one part of so many is forgotten in a window: it counts for somewhat more than a second.
const RESTED: i64 = 8;
/// Windows beside others before what rests counts: at first launches wait for bills that tell what kernels take.
const BEGINS: u32 = 12;
/// Part of a window that rests whoever works: what the vendor's hundredths hide, and turns of those who come.
const REST: u64 = 50;

/// What one tenant is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owed {
    /// In nanoseconds; below zero it had more than its guarantee.
    sum: i64,
    /// What rested of late, and might have been given.
    rested: i64,
    /// To be given before the next window ends.
    due: i64,
    /// What was given since the last one ended.
    given: i64,
    /// Windows beside others, up to [`BEGINS`].
    windows: u32,
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
        Self { sum: 0, rested: 0, due: 0, given: 0, windows: 0 }
    }

    /// Takes one window.
    pub(crate) fn window(&mut self, had: &Had) {
        // Others' turns, and not what the card rests whoever works.
        let others = had.length.minus(had.idle).minus(had.own);
        let rests = had.idle.minus(Nanos(had.length.0 / REST));
        // What rested it did not want, or was kept from wanting by something else.
        let less = had.promised.minus(had.own).min(had.waited).min(others).minus(rests).signed();
        let more = had.own.minus(had.promised).signed();
        let forgotten = self.sum.max(0) / FORGET;
        let sum = self.sum.saturating_sub(forgotten).saturating_add(less).saturating_sub(more);
        self.sum = sum.clamp(-had.promised.signed(), OWED_MAX.signed());
        self.windows = (self.windows + 1).min(BEGINS);
        let rests = if self.windows < BEGINS { Nanos::ZERO } else { rests };
        // What it was given and had rests again once it takes less.
        let rests = rests.signed().saturating_add(more.clamp(0, self.given.max(0)));
        self.rested = (self.rested - self.rested / RESTED).saturating_add(rests).min(OWED_MAX.signed());
        (self.due, self.given) = (self.sum.clamp(0, self.rested), 0);
    }

    /// What is to be given after so much time: no more than the card can do in it.
    pub(crate) fn give(&mut self, passed: Nanos) -> i64 {
        let give = self.due.min(passed.signed());
        self.due -= give;
        self.given = self.given.saturating_add(give);
        give
    }
}
