//! Measures device time by markers between launches: the only exact time that a program can query from its driver.
//!
//! A marker is a vendor event, recorded on a stream; later the driver reports when the device passed it, as a time
//! since another event. Launches between two markers are a batch:
//!
//! ```text
//!   host:    begin launch launch launch close            seen passed
//!                                       │closed_at        │now
//!   device:    │▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│
//!              │start                         │end
//! ```
//!
//! If a stream's last marker is still pending when the next batch opens, it also begins that batch. An idle stream gets a marker
//! of its own, and so does a batch that is measured between other streams' batches. Between `start` and `end` the process had work
//! on the card. The device can have been idle there only while the host was still launching: until `closed_at`. So the work took
//! at most `end − start`, and at least the part after `closed_at`; in between, the sum of the launches' known costs decides.
//!
//! Lengths are on the device's clock. Their position on the host's clock follows from when markers were recorded and first read as
//! passed; it matters only for overlaps.
//!
//! A batch that the device has not begun is no work of the device. If its stream waits for something other than the card
//! (`marks/held_work.rs`), no launch elsewhere waits for it.
//!
//! One thread at a time works on markers; other threads continue without them.

mod due;
mod held_work;
mod passed;
#[cfg(test)]
mod tests;

use crate::cost::Shape;
use crate::units::Nanos;

pub use due::Due;
pub use held_work::HeldWork;

/// Events for markers of one context.
pub const EVENTS: usize = 64;

/// A marker event by its number below [`EVENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub usize);

/// Whether a marker was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It was.
    Yes,
    /// The driver refused.
    No,
}

/// Where the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Before the marker.
    NotYet,
    /// It passed it so many nanoseconds after the base event; before it where negative.
    After(i64),
    /// The driver does not say, and will not.
    Lost,
}

/// The driver's events, as the controller needs them.
pub trait Events {
    /// Records `event` on `stream`, behind all that was launched there.
    fn record(&mut self, event: Event, stream: u64) -> Recorded;

    /// When the device passed `event`, as time since it passed `base`.
    fn passed(&mut self, base: Event, event: Event) -> Passed;

    /// Whether anything can be put into that stream now: into one that is captured nothing can.
    fn may_record(&self, _stream: u64) -> bool {
        true
    }
}

/// Launches on one stream since its last marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The stream.
    pub stream: u64,
    /// What they were charged together.
    pub charged: Nanos,
    /// What was taken for them beyond that until they are billed, as they may be far longer.
    pub deposit: Nanos,
    /// How many.
    pub launches: u32,
    /// What they are, where they are all the same.
    pub shape: Option<Shape>,
    /// The least that is known about any of the charges.
    pub known: ChargeBasis,
}

impl Batch {
    /// A marker behind what is no batch's.
    const fn none(stream: u64) -> Self {
        let (charged, deposit) = (Nanos::ZERO, Nanos::ZERO);
        Self { stream, charged, deposit, launches: 0, shape: None, known: ChargeBasis::Exactly }
    }

    /// Whether it is a marker without launches of its own.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.launches == 0
    }
}

/// How well a charge is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChargeBasis {
    /// Not at all: it stands for the bill that is to come.
    Not,
    /// Such launches took this or less.
    AtMost,
    /// Such launches took this.
    Exactly,
}

/// Where a batch begins on a stream that is not at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStart {
    /// At the stream's last marker, whatever other streams have handed in since.
    Last,
    /// At a marker of its own, where other streams may have handed in since.
    Own,
    /// At a marker of its own, as the stream waits there for something that the card does not do.
    Hold,
}

/// A batch that the device has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedBatch {
    /// What it was.
    pub batch: Batch,
    /// From when the process had work on the card, monotonic.
    pub start: Nanos,
    /// Till when.
    pub end: Nanos,
    /// From when the device certainly had work of this stream.
    pub sure_from: Nanos,
    /// Whether the process had work on other streams then.
    pub streams: Streams,
    /// What was charged beyond the batch's charges, as it was late.
    pub late: Nanos,
}

/// Streams with work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// This one alone.
    One,
    /// Others as well, or perhaps.
    Several,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    event: Event,
    batch: Batch,
    /// The marker before the batch; `None`: the stream's last one.
    begin: Option<Event>,
    begun: BatchOpening,
    /// When the device came to it at the earliest.
    opened_at: Nanos,
    closed_at: Nanos,
    /// What was charged beyond the batch's charges, as it was late.
    late: Nanos,
    /// Since when launches wait for it.
    awaited_from: Option<Nanos>,
}

impl Pending {
    fn new(event: Event, batch: Batch, begin: Option<Event>, opened_at: Nanos, closed_at: Nanos) -> Self {
        let begun = BatchOpening::Unqueried { put_at: opened_at, behind: BatchStart::Last };
        Self { event, batch, begin, begun, opened_at, closed_at, late: Nanos::ZERO, awaited_from: None }
    }
}

/// Whether the device has come to a batch with a marker of its own before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchOpening {
    /// It may have.
    Unqueried { put_at: Nanos, behind: BatchStart },
    /// It had not, and the process may not have had its turn since.
    NotYet { put_at: Nanos, behind: BatchStart },
    /// It had not, and what the stream waits for is not the card.
    Held { put_at: Nanos, behind: BatchStart },
    /// It has.
    Yes,
}

/// The event from which times are told.
#[derive(Clone, Copy, Debug)]
struct Base {
    event: Event,
    /// The stream into which it was put, and when.
    stream: u64,
    put_at: Nanos,
    /// Where it lies on the device's clock.
    device: Nanos,
    /// Whether it is known to have passed.
    passed: bool,
}

/// Between which moments of our clock the device's began.
#[derive(Clone, Copy, Debug)]
struct Offset {
    earliest: Nanos,
    latest: Nanos,
}

/// State of a stream.
#[derive(Clone, Copy, Debug)]
struct Stream {
    handle: u64,
    /// When the device passed its last marker that is known to have passed, on the device's clock.
    end: Option<Nanos>,
    /// An open batch's own marker.
    begin: Option<Event>,
    /// What that is behind.
    behind: BatchStart,
    opened_at: Nanos,
    used_at: Nanos,
}

/// Streams that are remembered.
const STREAMS: usize = 16;

/// The markers of one context.
#[derive(Debug)]
pub struct Marks {
    base: Option<Base>,
    offset: Offset,
    /// Oldest first; the first `count` are there.
    pending: [Option<Pending>; EVENTS],
    count: usize,
    /// One bit for each event that is in use.
    used: u64,
    streams: [Option<Stream>; STREAMS],
    /// When the latest marker known to have passed was recorded.
    passed_put_at: Nanos,
    /// Streams that ended with something pending.
    ended: u64,
}

const _: () = assert!(EVENTS == 64, "one bit each in `used`");

impl Marks {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            base: None,
            offset: Offset { earliest: Nanos::ZERO, latest: Nanos::MAX },
            pending: [None; EVENTS],
            count: 0,
            used: 0,
            streams: [None; STREAMS],
            passed_put_at: Nanos::ZERO,
            ended: 0,
        }
    }

    /// Records a free event on a stream.
    fn take(&mut self, stream: u64, events: &mut impl Events) -> Option<Event> {
        let free = self.used.trailing_ones();
        let event = usize::try_from(free).ok().filter(|free| *free < EVENTS).map(Event)?;
        (events.record(event, stream) == Recorded::Yes).then(|| {
            self.used |= 1 << free;
            event
        })
    }

    fn release(&mut self, event: Event) {
        self.used &= !u32::try_from(event.0).ok().and_then(|bit| 1_u64.checked_shl(bit)).unwrap_or(0);
    }

    /// Times are told from an event; where there is none, from one on this stream.
    fn found(&mut self, now: Nanos, stream: u64, begin: BatchStart, events: &mut impl Events) -> Option<()> {
        if self.base.is_some() {
            self.free_base(now, stream, begin, events);
            return Some(());
        }
        let event = self.take(stream, events)?;
        // Not at zero: what passes before it has a time as well.
        let device = Nanos(now.0 / 2);
        self.base = Some(Base { event, stream, put_at: now, device, passed: false });
        self.offset = Offset { earliest: now.minus(device), latest: Nanos::MAX };
        Some(())
    }

    /// Puts a marker behind whatever is on `stream`, unless one was put there after `at`. It is handed out as a batch without
    /// launches.
    pub fn put(&mut self, now: Nanos, stream: u64, at: Nanos, events: &mut impl Events) {
        let is_there = |it: &Pending| it.batch.is_none() && it.batch.stream == stream && it.closed_at > at;
        if self.pending().any(is_there) || !events.may_record(stream) {
            return;
        }
        if self.found(now, stream, BatchStart::Last, events).is_some()
            && let Some(event) = self.take(stream, events)
        {
            let batch = Batch::none(stream);
            self.push(Pending::new(event, batch, None, now, now));
        }
    }

    fn push(&mut self, pending: Pending) {
        if let Some(place) = self.pending.get_mut(self.count) {
            *place = Some(pending);
            self.count += 1;
        }
    }

    /// A batch opens on `stream`: where nothing is pending there, it gets a marker of its own.
    pub fn open(&mut self, now: Nanos, stream: u64, begin: BatchStart, events: &mut impl Events) {
        // With few events left, no marker can show that the stream waits.
        let behind = if begin == BatchStart::Hold && self.is_crowded() { BatchStart::Last } else { begin };
        if self.found(now, stream, behind, events).is_none() {
            return;
        }
        let waits = self.has_batch(stream);
        let last = match behind {
            BatchStart::Last => true,
            BatchStart::Own => self.streams(stream) == Streams::One,
            BatchStart::Hold => false,
        };
        let begin = if waits && last { None } else { self.take(stream, events) };
        if let Some(old) = self.stream(now, stream).begin {
            self.release(old);
        }
        let known = self.stream(now, stream);
        (known.begin, known.behind, known.opened_at) = (begin, behind, now);
    }

    /// Whether other streams were launched on since this one was.
    #[must_use]
    pub fn streams(&self, stream: u64) -> Streams {
        let known = self.streams.iter().flatten();
        let used = known.clone().find(|it| it.handle == stream).map_or(Nanos::ZERO, |it| it.used_at);
        let others = known.filter(|it| it.handle != stream).any(|it| it.used_at >= used);
        if others { Streams::Several } else { Streams::One }
    }

    /// Puts a marker behind `batch`. Whether it could: without one the batch stays charged as it was.
    pub fn close(&mut self, now: Nanos, batch: Batch, events: &mut impl Events) -> Recorded {
        if self.base.is_none() {
            return Recorded::No;
        }
        let known = self.stream(now, batch.stream);
        let (begin, behind, opened_at) = (known.begin.take(), known.behind, known.opened_at);
        if begin.is_none() && self.join(now, batch, events) == Recorded::Yes {
            return Recorded::Yes;
        }
        match self.take(batch.stream, events) {
            Some(event) => {
                let begun = BatchOpening::Unqueried { put_at: opened_at, behind };
                self.push(Pending { begun, ..Pending::new(event, batch, begin, opened_at, now) });
                Recorded::Yes
            }
            None => {
                if let Some(begin) = begin {
                    self.release(begin);
                }
                Recorded::No
            }
        }
    }

    /// State of a stream; a new one replaces the one longest unused.
    fn stream(&mut self, now: Nanos, handle: u64) -> &mut Stream {
        let known = self.streams.iter().position(|it| it.as_ref().is_some_and(|it| it.handle == handle));
        let used_at = |it: &Option<Stream>| it.as_ref().map(|it| it.used_at);
        let oldest = || self.streams.iter().enumerate().min_by_key(|(_, it)| used_at(it)).map(|(at, _)| at);
        let at = known.or_else(oldest).unwrap_or(0) % STREAMS;
        if known.is_none()
            && let Some(begin) = self.streams[at].and_then(|old| old.begin)
        {
            self.release(begin);
        }
        let (end, begin, behind) = (None, None, BatchStart::Last);
        let fresh = Stream { handle, end, begin, behind, opened_at: now, used_at: now };
        if known.is_none() {
            self.streams[at] = None;
        }
        let stream = self.streams[at].get_or_insert(fresh);
        stream.used_at = now;
        stream
    }

    fn remove(&mut self, at: usize) {
        if let Some(Some(pending)) = self.pending.get(at).copied() {
            self.release(pending.event);
            if let Some(begin) = pending.begin {
                self.release(begin);
            }
            self.count = self.count.saturating_sub(1);
            for place in at..self.count {
                let next = self.pending.get(place + 1).copied().flatten();
                if let Some(place) = self.pending.get_mut(place) {
                    *place = next;
                }
            }
            if let Some(last) = self.pending.get_mut(self.count) {
                *last = None;
            }
        }
    }

    /// Whether no time can be measured: no marker was ever recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.base.is_none()
    }

    /// Whether so many events are in use that batches may soon go without.
    #[must_use]
    pub const fn is_crowded(&self) -> bool {
        self.used.count_ones() as usize > EVENTS / 2
    }

    /// Since when anything is pending; `None` when nothing is.
    #[must_use]
    pub fn pending_since(&self) -> Option<Nanos> {
        self.earliest(|_| true)
    }

    /// The same of batches with launches of unknown cost.
    #[must_use]
    pub fn unknown_since(&self) -> Option<Nanos> {
        self.earliest(|it| it.batch.known == ChargeBasis::Not)
    }

    /// How many of them there are that are not held.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.at_work().filter(|it| it.batch.known == ChargeBasis::Not).count()
    }

    /// When the batch that is open on this stream was opened.
    #[must_use]
    pub fn opened_at(&self, stream: u64) -> Option<Nanos> {
        self.streams.iter().flatten().find(|it| it.handle == stream).map(|it| it.opened_at)
    }

    /// Whether launches on this stream were marked here.
    #[must_use]
    pub fn knows(&self, stream: u64) -> bool {
        self.streams.iter().flatten().any(|it| it.handle == stream)
    }

    /// Whether the batch that is open on this stream waits for something that the card does not do; the program announced it.
    #[must_use]
    pub fn opened_behind_hold(&self, stream: u64) -> bool {
        self.streams.iter().flatten().any(|it| it.handle == stream && it.behind == BatchStart::Hold)
    }

    /// The context is gone, and with it the events: what was pending stays charged as it was.
    fn forget(&mut self) {
        *self = Self::new();
    }

    /// Pending markers, oldest first: only the used entries, as a context has few at a time and entries for many.
    fn pending(&self) -> impl DoubleEndedIterator<Item = &Pending> + Clone {
        self.pending.get(..self.count).unwrap_or_default().iter().flatten()
    }

    fn pending_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Pending> {
        self.pending.get_mut(..self.count).unwrap_or_default().iter_mut().flatten()
    }

    /// Pending batches of launches, oldest first.
    fn batches(&self) -> impl Iterator<Item = &Pending> + Clone {
        self.pending().filter(|pending| !pending.batch.is_none())
    }
}

impl Default for Marks {
    fn default() -> Self {
        Self::new()
    }
}
