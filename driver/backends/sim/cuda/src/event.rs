//! Events: the moment at which the card reached a point of this process's work, and the host what held it.

use crate::code::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::graph::Capture;
use crate::handle::{Registry, Tag};
use crate::line::Point;
use crate::memory;
use crate::process::{self, lock};
use crate::stream::Stream;
use aliquot_sim_device::monotonic_nanos;
use std::sync::{Arc, Mutex};

/// A flag of cuEventCreate: no time is recorded.
const DISABLE_TIMING: u32 = 2;

/// An event.
pub(crate) struct Event {
    context: u64,
    device: usize,
    flags: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    recorded: Option<Point>,
    /// How often it was recorded.
    records: u64,
    /// On the monotonic clock, once known.
    at: Option<u64>,
    captured: Option<(Arc<Capture>, u64)>,
}

/// All events.
pub(crate) static EVENTS: Registry<Event> = Registry::new(Tag::Event, INVALID_HANDLE);

/// cuEventCreate.
pub(crate) fn create(flags: u32) -> Answer<u64> {
    let current = process::current()?;
    if flags > 7 {
        return Err(INVALID_VALUE);
    }
    let (context, device) = (current.handle, current.device);
    Ok(EVENTS.add(|_| Event { context, device, flags, state: Mutex::default() }).0)
}

/// A context goes, and its events with it.
pub(crate) fn destroy_all_of(context: u64) {
    for (handle, _) in EVENTS.select(|event| event.context == context) {
        EVENTS.forget(handle);
    }
}

impl Event {
    /// The point it stands for; `None`: it was never recorded.
    pub(crate) fn point(&self) -> Option<Point> {
        lock(&self.state).recorded.clone()
    }

    /// The capture it was recorded in, and the stream.
    pub(crate) fn captured(&self) -> Option<(Arc<Capture>, u64)> {
        lock(&self.state).captured.clone()
    }

    /// cuEventRecord.
    pub(crate) fn record(&self, stream: &Stream) -> Answer {
        if let Some(capture) = stream.capture() {
            lock(&self.state).captured = Some((capture, stream.id));
            return Ok(());
        }
        let seat = process::cards()?.get(stream.device).ok_or(INVALID_HANDLE)?.seat()?;
        let point = stream.point();
        let at = point.is_done(seat).then(monotonic_nanos);
        let mut state = lock(&self.state);
        *state = State { recorded: Some(point), records: state.records + 1, at, captured: None };
        Ok(())
    }

    /// When the card passed it; `None`: not yet. An event that was never recorded has passed.
    fn passed(&self) -> Answer<Option<u64>> {
        let (point, at, records) = {
            let state = lock(&self.state);
            (state.recorded.clone(), state.at, state.records)
        };
        let (Some(point), None) = (point, at) else { return Ok(Some(at.unwrap_or(0))) };
        let seat = process::cards()?.get(point.device()).ok_or(INVALID_HANDLE)?.seat()?;
        let at = point.reached(seat);
        let mut state = lock(&self.state);
        if state.records == records {
            state.at = at;
        }
        Ok(at)
    }

    /// cuEventQuery.
    pub(crate) fn query(&self) -> Answer {
        self.passed()?.ok_or(NOT_READY)?;
        memory::settle_freed();
        Ok(())
    }

    /// cuEventSynchronize.
    pub(crate) fn sync(&self) -> Answer {
        let ours = process::cards()?.get(self.device).ok_or(INVALID_HANDLE)?;
        let seat = ours.seat()?;
        self.point().map_or(Ok(()), |point| point.wait())?;
        ours.well()?;
        self.passed()?;
        memory::settle_freed();
        ours.pools.settle(seat);
        Ok(())
    }

    /// cuEventElapsedTime, in milliseconds.
    pub(crate) fn elapsed(&self, end: &Self) -> Answer<f32> {
        if (self.flags | end.flags) & DISABLE_TIMING != 0
            || lock(&self.state).recorded.is_none()
            || lock(&end.state).recorded.is_none()
        {
            return Err(INVALID_HANDLE);
        }
        let (start, end) = (self.passed()?.ok_or(NOT_READY)?, end.passed()?.ok_or(NOT_READY)?);
        let (later, earlier) = (end.max(start), end.min(start));
        let millis = std::time::Duration::from_nanos(later - earlier).as_secs_f32() * 1_000.0;
        Ok(if end >= start { millis } else { -millis })
    }
}
