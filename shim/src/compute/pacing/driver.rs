//! The controller's world: the vendor's events and clock, and the words of the region.

use aliquot_enforce::marks::{EVENTS, Event, Events, Passed, Recorded};
use aliquot_enforce::pace::World;

use super::markers::{Alive, NoMarkers, destroy, may_mark};
use crate::grants::Usage;
use crate::loader::vendor::{self, SUCCESS};
use crate::sys;

/// The vendor's events of one context, and the words that others wait on.
pub(super) struct Driver<'a> {
    pub(super) usage: Usage,
    /// The context by its handle; 0: none.
    pub(super) context: u64,
    pub(super) lack: NoMarkers,
    /// Whether the events are certainly there.
    pub(super) alive: Alive,
    pub(super) events: &'a mut [u64; EVENTS],
}

impl Driver<'_> {
    /// Whether no thread has markers of this context: it has no place, or nothing may be asked.
    pub(super) fn lacks_markers(&self) -> bool {
        self.lack == NoMarkers::Context
    }

    fn event(&self, event: Event) -> u64 {
        self.events.get(event.0).copied().unwrap_or(0)
    }
}

impl Events for Driver<'_> {
    fn record(&mut self, event: Event, stream: u64) -> Recorded {
        let Some(place) = self.events.get_mut(event.0) else { return Recorded::No };
        if *place == 0 {
            let mut made = 0;
            if vendor::cuEventCreate(&raw mut made, 0) != Some(SUCCESS) {
                return Recorded::No;
            }
            *place = made;
        }
        let answer = vendor::cuEventRecord(*place, stream);
        if answer == Some(SUCCESS) { Recorded::Yes } else { Recorded::No }
    }

    fn may_record(&self, stream: u64) -> bool {
        may_mark(stream)
    }

    fn passed(&mut self, base: Event, event: Event) -> Passed {
        let mut millis = 0.0;
        match vendor::cuEventElapsedTime(&raw mut millis, self.event(base), self.event(event)) {
            Some(SUCCESS) => Passed::After(nanos(millis)),
            Some(vendor::NOT_READY) => Passed::NotYet,
            _ => {
                // The device has a fault, or an event became part of a capture. Where the context may not be what it was, events
                // that are left are its own affair.
                if self.alive == Alive::Yes {
                    destroy(self.events);
                }
                *self.events = [0; EVENTS];
                Passed::Lost
            }
        }
    }
}

/// Milliseconds as the vendor tells them, in nanoseconds.
#[expect(clippy::cast_possible_truncation, reason = "a cast of a float keeps to the bounds of the integer")]
fn nanos(millis: f32) -> i64 {
    (f64::from(millis) * 1e6) as i64
}

impl World for Driver<'_> {
    fn wake_agent(&mut self) {
        sys::wake_all(self.usage.view.demand());
    }

    fn wake_waiters(&mut self) {
        sys::wake_all(self.usage.view.wake());
    }

    fn context(&self) -> u64 {
        self.context
    }
}
