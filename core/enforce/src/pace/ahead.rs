//! How far a process launches ahead of the card.
//!
//! What is on the card has its turns when others come for their part, whatever its owner is granted by then. So a launch waits
//! where more is there than keeps the card from resting while the program sleeps for once.
//!
//! Beside other tenants it may be their turns that keep the card from it. What is guaranteed is saved meanwhile, and not lost; a loan
//! is lost, as it is made of what others leave, and they leave nothing then.
//!
//! | launches of which nothing is known | on the card at a time | charged, each |
//! |---|---|---|
//! | at first, and after one that was not short | one: the next waits for its bill | all that can be saved up |
//! | after [`RUN`] in a row that were | [`FEW`], until one is late | that part of it |
//!
//! Short is what took no more than the lesser charge: as many as go at a time take no more than can be saved up. Where they turn out
//! to be long, no more than those ran before that was known.

use super::*;

/// Card time that a process launches ahead, beyond one launch.
const AHEAD_MAX: Nanos = CREDIT_MAX;
/// Least and most time between two looks at how far the card is.
const LOOK_LEAST: Nanos = Nanos::from_micros(250);
const LOOK_MOST: Nanos = Nanos::from_millis(2);

/// Launches of which nothing is known that go at a time where they are short.
const FEW: u64 = 4;
/// What is short.
const SHORT: Nanos = Nanos(UNKNOWN.0 / FEW);
/// Short ones in a row after which the next are taken to be.
const RUN: u32 = 32;

/// What launches of this process took of which nothing was known.
#[derive(Debug)]
pub(super) struct Unmeasured {
    /// How many were short since one was not.
    short: AtomicU32,
}

/// How the next one goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) charge: Nanos,
    /// How many of its like may be on the card already.
    pub(super) beside: usize,
}

impl Unmeasured {
    pub(super) const fn new() -> Self {
        Self { short: AtomicU32::new(0) }
    }

    pub(super) fn next(&self) -> First {
        if self.short.load(Ordering::Relaxed) < RUN {
            return First { charge: UNKNOWN, beside: 0 };
        }
        First { charge: SHORT, beside: usize::try_from(FEW - 1).unwrap_or(0) }
    }

    /// One took so long, at most.
    pub(super) fn took(&self, most: Nanos) {
        if most > SHORT {
            self.short.store(0, Ordering::Relaxed);
        } else {
            // Always succeeds: the closure never says no.
            let more = |short: u32| Some(short.saturating_add(1));
            let _always = self.short.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }
}

impl Pace {
    /// Whether the card is near enough for a launch of that price; an error is when to look again.
    pub(super) fn catch_up(
        ask: &Ask<'_>,
        price: Price,
        due: Option<Due>,
        shared: &Shared<'_>,
        (marks, world): (&mut Marks, &mut impl World),
    ) -> Result<(), Nanos> {
        if let Some(held) = marks.behind(ask.stream) {
            return Self::stay_near(ask, held, shared, (marks, world));
        }
        let Ask { now, terms, waited, .. } = *ask;
        let awaited = due.map_or(Nanos::ZERO, |due| due.awaited(now));
        // Where a charge is a guess, all that it says is that a bill comes.
        let charged = due
            .filter(|due| due.known != Known::Not)
            .map_or(Nanos::ZERO, |due| due.charged.plus(due.deposit));
        let ahead = charged.minus(AHEAD_MAX.plus(price.whole()));
        // Charges say nothing of what the card has yet, and at a great share they are earned again before it has done any.
        let is_late = due.is_some_and(|due| now.minus(due.from) > SHORT);
        let beside = price.beside.filter(|_| !terms.is_free()).map(|beside| if is_late { 0 } else { beside });
        let is_unmeasured = beside.is_some_and(|beside| marks.unknown() > beside);
        let most = if is_unmeasured { LATE_WAIT_MAX } else { STUCK_AFTER };
        if (ahead == Nanos::ZERO && !is_unmeasured) || waited.max(awaited) >= most {
            return Ok(());
        }
        if terms.own != Ppm::ALL {
            shared.bucket.refill(now, terms.granted.min(terms.guaranteed), Room::MOST);
        }
        let look = match due {
            // It may be done any moment, or take as long as was taken for it.
            Some(due) if due.deposit > Nanos::ZERO || is_unmeasured => {
                Nanos(now.minus(due.from).0 / 8).clamp(LOOK_AFTER, LOOK_MOST)
            }
            _ => ahead.clamp(LOOK_LEAST, LOOK_MOST),
        };
        let until = now.plus(look);
        publish_active(now, until.minus(now), shared, world);
        publish_limited(now, until, shared, world);
        marks.wait(now);
        Err(until)
    }
}
