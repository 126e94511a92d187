//! Limits how far a process launches ahead of the card.
//!
//! Work on the card keeps its turns when other tenants start, whatever its own tenant is granted by then. So a launch waits if the
//! work already on the card keeps it busy through an ordinary pause of the program.
//!
//! Beside other tenants their turns may delay the work. The guarantee is saved meanwhile, and not lost. Borrowed time is lost: it
//! is others' idle time, and they have none then.
//!
//! | launches of unknown cost | on the card at a time | charged, each |
//! |---|---|---|
//! | at first, and after one that was not short | one: the next waits for its bill | all that can be saved up |
//! | after [`RUN`] in a row that were | [`FEW`], until one is late | that part of it |
//!
//! A launch is short if it took at most the lesser charge: the launches on the card at a time then take at most the greatest
//! credit. If they turn out to be long, only those ran before that was known.

use super::*;

/// Card time that a process launches ahead, beyond one launch.
const AHEAD_MAX: Nanos = CREDIT_MAX;
/// Least and most time between two looks at how far the card is.
const LOOK_LEAST: Nanos = Nanos::from_micros(250);
const LOOK_MOST: Nanos = Nanos::from_millis(2);

/// Launches of unknown cost that may be on the card at a time while they are short.
const FEW: u64 = 4;
/// Greatest time of a short launch.
const SHORT: Nanos = Nanos(UNKNOWN.0 / FEW);
/// Short ones in a row after which the next are taken to be.
const RUN: u32 = 32;

/// Times of this process's launches of unknown cost.
#[derive(Debug)]
pub(super) struct UnmeasuredLaunches {
    /// How many were short since one was not.
    short: AtomicU32,
}

/// How the next one goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextLaunch {
    pub(super) charge: Nanos,
    /// How many of its like may be on the card already.
    pub(super) beside: usize,
}

impl UnmeasuredLaunches {
    pub(super) const fn new() -> Self {
        Self { short: AtomicU32::new(0) }
    }

    pub(super) fn next(&self) -> NextLaunch {
        if self.short.load(Ordering::Relaxed) < RUN || !Heuristic::FewUnmeasured.is_on() {
            return NextLaunch { charge: UNKNOWN, beside: 0 };
        }
        NextLaunch { charge: SHORT, beside: usize::try_from(FEW - 1).unwrap_or(0) }
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
        ask: &LaunchRequest<'_>,
        price: Price,
        due: Option<Due>,
        shared: &SharedWords<'_>,
        (marks, world): (&mut Marks, &mut impl World),
    ) -> Result<(), Nanos> {
        if let Some(held) = marks.behind(ask.stream) {
            return Self::stay_near(ask, held, shared, (marks, world));
        }
        let LaunchRequest { now, terms, waited, .. } = *ask;
        let awaited = due.map_or(Nanos::ZERO, |due| due.awaited(now));
        // Where a charge is a guess, all that it says is that a bill comes.
        let charged = due
            .filter(|_| Heuristic::LaunchAhead.is_on())
            .filter(|due| due.known != ChargeBasis::Not)
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
            shared.bucket.refill(now, terms.granted.min(terms.guaranteed), CreditBound::MOST);
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
