//! Held streams: the program makes a stream wait for something other than the card, and launches behind that.
//!
//! Such launches are paid like any others, and go: the launching thread itself may end the wait. All work launched behind the hold
//! runs at once afterwards. So its charge is at most [`HELD_MAX`] and one launch. Further launches wait, at most as long as any
//! launch waits for unfinished work.

use super::*;
use crate::marks::HeldWork;

/// Card time that may be held in a context before more of it waits.
const HELD_MAX: Nanos = Nanos::from_millis(1_000);
/// Polling interval of a launch behind more than that.
const LOOK_HELD: Nanos = Nanos::from_millis(2);

#[derive(Debug)]
pub(super) struct Holds {
    /// Held streams without a launch behind the hold yet; of two streams with one index, the later.
    noted: [AtomicU64; LANES],
    /// Whether any batch was held when markers were last queried.
    held: AtomicU32,
}

impl Holds {
    pub(super) const fn new() -> Self {
        Self { noted: [const { AtomicU64::new(0) }; LANES], held: AtomicU32::new(0) }
    }

    fn note(&self, stream: u64) {
        if let Some(place) = self.noted.get(lane_of(stream)) {
            place.store(stream, Ordering::Release);
        }
    }

    /// Records the state after a query of the markers.
    pub(super) fn seen(&self, marks: &Marks) {
        self.held.store(u32::from(marks.holds_any()), Ordering::Release);
    }

    /// The program has waited for those streams.
    pub(super) fn passed(&self, waits: WaitScope) {
        let is_over = |noted: u64| noted != 0 && waits.is_on(noted);
        for place in self.noted.iter().filter(|place| is_over(place.load(Ordering::Acquire))) {
            place.store(0, Ordering::Release);
        }
    }

    /// How the first batch behind it begins.
    pub(super) fn take(&self, stream: u64) -> Option<BatchStart> {
        let place = self.noted.get(lane_of(stream))?;
        let taken = place.load(Ordering::Relaxed) == stream
            && place.compare_exchange(stream, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        taken.then_some(BatchStart::Hold)
    }
}

impl Pace {
    /// The program is about to make a stream wait for something other than the card. Earlier launches of the stream get their
    /// marker by [`Pace::waits`].
    pub fn holds(&self, stream: u64) {
        self.holds.note(stream);
    }

    /// Whether any stream may be held, so that a stream that waits for another one may be held with it.
    pub fn may_be_held(&self) -> bool {
        let is_noted = |place: &AtomicU64| place.load(Ordering::Acquire) != 0;
        self.holds.held.load(Ordering::Acquire) != 0 || self.holds.noted.iter().any(is_noted)
    }

    /// Whether little enough is held for a launch behind it; an error is when to look again.
    pub(super) fn stay_near(
        ask: &LaunchRequest<'_>,
        held: HeldWork,
        shared: &SharedWords<'_>,
        (marks, world): (&mut Marks, &mut impl World),
    ) -> Result<(), Nanos> {
        let LaunchRequest { now, terms, waited, .. } = *ask;
        let awaited = held.awaited_from.map_or(Nanos::ZERO, |from| now.minus(from));
        let most = if terms.is_free() { STUCK_AFTER } else { LATE_WAIT_MAX };
        if !Heuristic::HeldBound.is_on() || held.charged < HELD_MAX || waited.max(awaited) >= most {
            return Ok(());
        }
        let until = now.plus(LOOK_HELD);
        publish_active(now, LOOK_HELD, shared, world);
        publish_limited(now, until, shared, world);
        marks.wait_behind(now, ask.stream);
        Err(until)
    }
}
