//! Markers that passed: finished batches, their position on the host's clock, and the base event of elapsed times.

use super::*;

/// The base event is moved on after this long: elapsed times come as 32-bit floats of milliseconds, which are exact to 60 ns
/// up to a second.
const REBASE: Nanos = Nanos::from_millis(1_000);
/// How far the two clocks may run apart: parts of a million, several times what crystals do.
const DRIFT_PPM: u64 = 100;
/// Markers that had not passed are asked for again this many at a time.
const ASKED_MAX: usize = 2;

impl Marks {
    /// Queries the driver for passed markers and yields finished batches, oldest first. `now` is a time before the call.
    ///
    /// At most a few pending markers are queried; the call never waits.
    pub fn settle(&mut self, now: Nanos, events: &mut impl Events, mut done: impl FnMut(FinishedBatch)) {
        let mut at = 0;
        let mut waiting = 0;
        while at < self.count && waiting < ASKED_MAX {
            let (Some(base), Some(Some(pending))) = (self.base, self.pending.get(at).copied()) else {
                return;
            };
            // A stream's work is done in its order.
            if self.is_behind_another(at) {
                at += 1;
                continue;
            }
            let begun = match pending.begun {
                BatchOpening::NotYet { .. } | BatchOpening::Held { .. } => {
                    self.look_at_begin(now, at, events)
                }
                BatchOpening::Unqueried { .. } | BatchOpening::Yes => Some(BatchOpening::Yes),
            };
            if begun != Some(BatchOpening::Yes) {
                let Some(begun) = begun else { return self.forget() };
                waiting += begun.counts();
                at += 1;
                continue;
            }
            let base_passed =
                if base.passed { Passed::After(0) } else { events.passed(base.event, base.event) };
            let passed = match base_passed {
                Passed::After(_) => events.passed(base.event, pending.event),
                not => not,
            };
            let base = Base { passed: matches!(base_passed, Passed::After(_)), ..base };
            self.base = Some(base);
            let end = match passed {
                Passed::NotYet => {
                    let Some(begun) = self.look_at_begin(now, at, events) else { return self.forget() };
                    waiting += begun.counts();
                    at += 1;
                    continue;
                }
                Passed::Lost => return self.forget(),
                Passed::After(elapsed) => base.after(elapsed),
            };
            let began = match pending.begin.map(|begin| events.passed(base.event, begin)) {
                Some(Passed::After(began)) => Some(base.after(began)),
                Some(Passed::Lost) => return self.forget(),
                // A marker before one that passed has passed; anything else is the driver's riddle.
                Some(Passed::NotYet) | None => None,
            };
            self.passed_put_at = self.passed_put_at.max(pending.closed_at);
            self.remove(at);
            done(self.place(now, &pending, began, end));
            self.rebase(now, base, &pending, end);
        }
    }

    /// The position of a passed batch on the host's clock.
    fn place(&mut self, now: Nanos, pending: &Pending, began: Option<Nanos>, end: Nanos) -> FinishedBatch {
        // Each marker passed after it was recorded, and before it was seen.
        if let Some(began) = began {
            self.offset.earliest = self.offset.earliest.max(pending.opened_at.minus(began));
        }
        self.offset.earliest = self.offset.earliest.max(pending.closed_at.minus(end));
        self.offset.latest = self.offset.latest.min(now.minus(end));
        if self.offset.latest < self.offset.earliest {
            // The clocks ran apart by more than is allowed for: only the newest counts.
            let earliest = pending.closed_at.minus(end);
            self.offset = Offset { earliest, latest: now.minus(end).max(earliest) };
        }
        let start = if pending.batch.is_none() {
            // Pending or open work behind it begins where the batch before it ended.
            Some(end)
        } else {
            let known = self.stream(now, pending.batch.stream);
            let start = began.or(known.end);
            known.end = Some(end);
            start
        };
        let host_end = self.offset.earliest.plus(end).min(now.max(pending.closed_at));
        let length = start.map_or(host_end.minus(pending.opened_at), |start| end.minus(start));
        let host_start = host_end.minus(length);
        let handle = pending.batch.stream;
        let began = start.unwrap_or(end.minus(length));
        let pending_elsewhere = self.pending().any(|other| other.batch.stream != handle);
        let others = pending_elsewhere
            || self.streams.iter().flatten().any(|it| {
                it.handle != handle && (it.used_at >= host_start || it.end.is_some_and(|end| end > began))
            });
        FinishedBatch {
            streams: if others { Streams::Several } else { Streams::One },
            batch: pending.batch,
            start: host_start,
            end: host_end,
            sure_from: pending.closed_at.max(host_start).min(host_end),
            late: pending.late,
        }
    }

    /// Moves the base on, so that elapsed times stay short.
    fn rebase(&mut self, now: Nanos, base: Base, pending: &Pending, end: Nanos) {
        let elapsed = end.minus(base.device);
        if elapsed < REBASE {
            return;
        }
        let free = self.used & (1 << (pending.event.0 % EVENTS)) == 0;
        if free {
            self.used |= 1 << (pending.event.0 % EVENTS);
            self.release(base.event);
            let (event, stream, put_at) = (pending.event, pending.batch.stream, pending.closed_at);
            self.base = Some(Base { event, stream, put_at, device: end, passed: true });
            let slack = Nanos(elapsed.0 / 1_000_000 * DRIFT_PPM);
            self.offset.earliest = self.offset.earliest.minus(slack);
            self.offset.latest = self.offset.latest.plus(slack).min(now);
        }
    }
}
