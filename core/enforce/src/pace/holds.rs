//! Streams that the program has wait for something that the card does not do, and what it launches behind that.
//!
//! Such launches are paid like any others, and go: what they wait for may be done by the thread that launches them. What was paid
//! for while the stream waited runs at once afterwards: so that is no more than [`HELD_MAX`] and one launch, by what they were
//! charged. Further ones wait for what is there, as long as any launch waits for work that does not get done.

use super::*;
use crate::marks::Held;

/// Card time that may be held in a context before more of it waits.
const HELD_MAX: Nanos = Nanos::from_millis(1_000);
/// How often a launch behind more than that looks.
const LOOK_HELD: Nanos = Nanos::from_millis(2);

#[derive(Debug)]
pub(super) struct Holds {
    /// Streams of which nobody has launched behind what they wait for; of two in one place the later.
    noted: [AtomicU64; LANES],
    /// Whether anything was held when markers were last asked.
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

    /// Markers were asked.
    pub(super) fn seen(&self, marks: &Marks) {
        self.held.store(u32::from(marks.holds_any()), Ordering::Release);
    }

    /// The program has waited for those streams.
    pub(super) fn passed(&self, waits: Waits) {
        let is_over = |noted: u64| noted != 0 && waits.is_on(noted);
        for place in self.noted.iter().filter(|place| is_over(place.load(Ordering::Acquire))) {
            place.store(0, Ordering::Release);
        }
    }

    /// How the first batch behind it begins.
    pub(super) fn take(&self, stream: u64) -> Option<Begin> {
        let place = self.noted.get(lane_of(stream))?;
        let taken = place.load(Ordering::Relaxed) == stream
            && place.compare_exchange(stream, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        taken.then_some(Begin::Hold)
    }
}

impl Pace {
    /// The program is about to have a stream wait for something that the card does not do. What was launched there before it
    /// gets its marker by [`Pace::waits`].
    pub fn holds(&self, stream: u64) {
        self.holds.note(stream);
    }

    /// Whether anything may be held, so that who waits for what another stream does may wait for what that waits for.
    pub fn may_be_held(&self) -> bool {
        let is_noted = |place: &AtomicU64| place.load(Ordering::Acquire) != 0;
        self.holds.held.load(Ordering::Acquire) != 0 || self.holds.noted.iter().any(is_noted)
    }

    /// Whether little enough is held for a launch behind it; an error is when to look again.
    pub(super) fn stay_near(
        ask: &Ask<'_>,
        held: Held,
        shared: &Shared<'_>,
        (marks, world): (&mut Marks, &mut impl World),
    ) -> Result<(), Nanos> {
        let Ask { now, terms, waited, .. } = *ask;
        let awaited = held.awaited_from.map_or(Nanos::ZERO, |from| now.minus(from));
        let most = if terms.is_free() { STUCK_AFTER } else { LATE_WAIT_MAX };
        if held.charged < HELD_MAX || waited.max(awaited) >= most {
            return Ok(());
        }
        let until = now.plus(LOOK_HELD);
        publish_active(now, LOOK_HELD, shared, world);
        publish_limited(now, until, shared, world);
        marks.wait_behind(now, ask.stream);
        Err(until)
    }
}
