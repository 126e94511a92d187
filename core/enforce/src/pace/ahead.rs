//! How far a process launches ahead of the card.
//!
//! What is on the card has its turns when others come for their part, whatever its owner is granted by then. So a launch waits
//! where more is there than keeps the card from resting while the program sleeps for once.
//!
//! Beside other tenants it may be their turns that keep the card from it. What is guaranteed is saved meanwhile, and not lost; a loan
//! is lost, as it is made of what others leave, and they leave nothing then.
//!
//! Of launches about which nothing is known, one is on the card at a time: the next waits for its bill.

use super::*;

/// Card time that a process launches ahead, beyond one launch.
const AHEAD_MAX: Nanos = CREDIT_MAX;
/// Least and most time between two looks at how far the card is.
const LOOK_LEAST: Nanos = Nanos::from_micros(250);
const LOOK_MOST: Nanos = Nanos::from_millis(2);

impl Pace {
    /// Whether the card is near enough for a launch of that price; an error is when to look again.
    pub(super) fn catch_up(
        ask: &Ask<'_>,
        price: Price,
        due: Option<Due>,
        shared: &Shared<'_>,
        (marks, world): (&mut Marks, &mut impl World),
    ) -> Result<(), Nanos> {
        let Ask { now, terms, waited, .. } = *ask;
        let awaited = due.map_or(Nanos::ZERO, |due| due.awaited(now));
        // Where a charge is a guess, all that it says is that a bill comes.
        let charged = due
            .filter(|due| due.known != Known::Not)
            .map_or(Nanos::ZERO, |due| due.charged.plus(due.deposit));
        let ahead = charged.minus(AHEAD_MAX.plus(price.whole()));
        // Charges say nothing of what the card has yet, and at a great share they are earned again before it has done any.
        let is_unmeasured =
            price.cost == UNKNOWN && !terms.is_free() && due.is_some_and(|due| due.known == Known::Not);
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
