//! What lies behind parts of sparse arrays: each part is a hold on physical memory.
//!
//! ```text
//!   cuMemMapArrayAsync: map   ─▶ Place {part, number}
//!                       unmap ─▶ the places that it covers leave, with an event behind it in the stream
//!   settle: the event is reached ─▶ the holds are dropped
//! ```
//!
//! An event is the driver's for as long as its context is: before a context ends its events are set aside.
//!
//! A place that is only partly covered stays charged until it is covered whole or its array ends. Where no event can be had
//! they stay until their array ends, too.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::account::Loose;
use crate::alloc_map::{AllocMap, Key, Tie};
use crate::contexts;
use crate::physical::Number;
use crate::plain;
use crate::sys::{self, KeepErrno};
use crate::vendor::{self, SUCCESS, StreamMode};

/// Calls at once whose unmapping the stream has not reached.
const EVENTS_MAX: usize = 64;
/// Turns given away for a thread that asks the driver about one event.
const ASKING_TURNS_MAX: u32 = 100_000;

/// Part of an array: the same level, layer and kind, and a range in each direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) array: u64,
    /// Kind, level, layer.
    pub(crate) of: [u32; 3],
    pub(crate) from: [u64; 3],
    pub(crate) to: [u64; 3],
}

/// What is to be behind a part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behind {
    /// What this handle names.
    Handle(u64),
    /// Nothing.
    Nothing,
    /// What the driver will refuse.
    Unknown,
}

/// One part and what is to be behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) part: Part,
    pub(crate) behind: Behind,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    part: Part,
    number: Number,
    tie: Tie,
}

/// A hold that goes when the stream has reached an event.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// The event's place in [`EVENTS`].
    event: usize,
    number: Number,
}

/// An event in a stream, behind an unmapping.
struct Event {
    state: AtomicU32,
    handle: AtomicU64,
    tie: AtomicU32,
}

/// Nobody's.
const FREE: u32 = 0;
/// A thread is at it.
const BUSY: u32 = 1;
/// The stream is on its way to it.
const AWAITED: u32 = 2;
/// Its context is about to end: nobody asks the driver about it any more.
const GOING: u32 = 3;

static PLACES: AllocMap<Place> = AllocMap::new();
static LEAVING: AllocMap<Leaving> = AllocMap::new();
static NEXT: AtomicU64 = AtomicU64::new(1);
/// Places and what leaves: most programs have none.
static COUNT: AtomicU64 = AtomicU64::new(0);
static EVENTS: [Event; EVENTS_MAX] =
    [const { Event { state: AtomicU32::new(FREE), handle: AtomicU64::new(0), tie: AtomicU32::new(0) } };
        EVENTS_MAX];

impl Part {
    fn covers(&self, other: &Self) -> bool {
        let starts = self.from.iter().zip(other.from).all(|(own, other)| *own <= other);
        let ends = self.to.iter().zip(other.to).all(|(own, other)| *own >= other);
        (self.array, self.of) == (other.array, other.of) && starts && ends
    }
}

impl Event {
    fn is_of(&self, tie: Tie) -> bool {
        self.tie.load(Ordering::Acquire) == tie.0
    }

    /// Goes from one state to another; false: another thread was faster.
    fn becomes(&self, from: u32, next: u32) -> bool {
        self.state.compare_exchange(from, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes it out of everybody's hands where it is of this context.
    fn set_aside(&self, tie: Tie) {
        // Past the bound the thread that has it was cancelled, or a handler of a signal runs on top of it.
        for _ in 0..ASKING_TURNS_MAX {
            if !self.is_of(tie) {
                return;
            }
            if self.becomes(AWAITED, GOING) {
                if !self.is_of(tie) {
                    // It ended meanwhile, and is another context's.
                    self.state.store(AWAITED, Ordering::Release);
                }
                return;
            }
            if self.state.load(Ordering::Acquire) != BUSY {
                return;
            }
            sys::yield_now();
        }
    }

    fn free(&self) {
        self.tie.store(0, Ordering::Release);
        self.state.store(FREE, Ordering::Release);
    }
}

fn next() -> Key {
    Key(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Nothing is behind any part, and nothing leaves one.
pub(crate) fn none() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// Takes out one place that is wanted.
fn take(wanted: impl Fn(&Place) -> bool) -> Option<Place> {
    loop {
        let found = PLACES.find(|key, place| wanted(place).then_some(key))?;
        // Another thread may have been faster.
        if let Some(place) = PLACES.take(found) {
            COUNT.fetch_sub(1, Ordering::AcqRel);
            return Some(place);
        }
    }
}

/// cuMemMapArrayAsync of these changes, which can be gone through again and again.
pub(crate) fn change(
    changes: impl Iterator<Item = Change> + Clone,
    (stream, mode): (u64, StreamMode),
    call: impl FnOnce() -> i32,
) -> i32 {
    let handles = changes.clone().filter_map(|change| match change.behind {
        Behind::Handle(handle) => Some(handle),
        Behind::Nothing | Behind::Unknown => None,
    });
    for (count, handle) in handles.clone().enumerate() {
        if let Err(error) = Number::of(handle).hold() {
            handles.take(count).for_each(|handle| Number::of(handle).unhold());
            return error;
        }
    }
    // What is there leaves the card when its stream says so, and the books when this process looks.
    handles
        .clone()
        .filter_map(|handle| Number::of(handle).grant().and_then(plain::ledger))
        .for_each(|ledger| ledger.loosen(Loose::Memory));
    let answer = call();
    if answer != SUCCESS {
        handles.for_each(|handle| Number::of(handle).unhold());
        return answer;
    }
    let _errno = KeepErrno::new();
    let tie = contexts::current().map_or(Tie(0), |current| current.tie);
    let mut event = None;
    for Change { part, behind } in changes {
        while !none()
            && let Some(place) = take(|place| part.covers(&place.part))
        {
            let event = *event.get_or_insert_with(|| record((stream, mode), tie));
            leave(event, place);
        }
        if let Behind::Handle(handle) = behind {
            put(Place { part, number: Number::of(handle), tie });
        }
    }
    if let Some(Some(event)) = event {
        event_of(event).state.store(AWAITED, Ordering::Release);
    }
    settle();
    SUCCESS
}

fn put(place: Place) {
    COUNT.fetch_add(1, Ordering::AcqRel);
    if PLACES.insert(next(), place).is_err() {
        // Without a record of where it is it stays charged.
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

fn event_of(number: usize) -> &'static Event {
    EVENTS.get(number).unwrap_or(&EVENTS[0])
}

/// An event behind what a stream has to do; `None`: there is none to be had.
fn record((stream, mode): (u64, StreamMode), tie: Tie) -> Option<usize> {
    if tie == Tie(0) {
        // Nobody will say when its context ends.
        return None;
    }
    let number = EVENTS.iter().position(|event| event.becomes(FREE, BUSY))?;
    let event = EVENTS.get(number)?;
    let mut handle = 0;
    let made = vendor::cuEventCreate(&raw mut handle, vendor::EVENT_WITHOUT_TIME) == Some(SUCCESS);
    let recorded = made
        && match mode {
            StreamMode::Legacy => vendor::cuEventRecord(handle, stream),
            StreamMode::PerThread => vendor::cuEventRecord_ptsz(handle, stream),
        } == Some(SUCCESS);
    if !recorded {
        if made {
            vendor::cuEventDestroy_v2(handle);
        }
        event.free();
        return None;
    }
    event.handle.store(handle, Ordering::Release);
    event.tie.store(tie.0, Ordering::Release);
    Some(number)
}

/// A place goes when the stream has reached the event; without one it stays until its array ends.
fn leave(event: Option<usize>, place: Place) {
    let Some(event) = event else {
        // Nothing covers it from now on.
        let part = Part { of: [u32::MAX; 3], ..place.part };
        return put(Place { part, ..place });
    };
    COUNT.fetch_add(1, Ordering::AcqRel);
    if LEAVING.insert(next(), Leaving { event, number: place.number }).is_err() {
        // Without a record of it it stays charged.
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Drops what streams have let go of meanwhile.
pub(crate) fn settle() {
    if none() {
        return;
    }
    let _errno = KeepErrno::new();
    for (number, event) in EVENTS.iter().enumerate() {
        if !event.becomes(AWAITED, BUSY) {
            continue;
        }
        let handle = event.handle.load(Ordering::Acquire);
        // In any capture that may go on, too: asking for an event would spoil it.
        if vendor::relaxed(|| vendor::cuEventQuery(handle)) != Some(SUCCESS) {
            event.state.store(AWAITED, Ordering::Release);
            continue;
        }
        vendor::cuEventDestroy_v2(handle);
        drop_all(number);
        event.free();
    }
}

fn drop_all(event: usize) {
    while let Some(key) = LEAVING.find(|key, leaving| (leaving.event == event).then_some(key)) {
        if let Some(leaving) = LEAVING.take(key) {
            COUNT.fetch_sub(1, Ordering::AcqRel);
            leaving.number.unhold();
        }
    }
}

/// An array ended, and with it what was behind it.
pub(crate) fn array_ended(array: u64) {
    while !none()
        && let Some(place) = take(|place| place.part.array == array)
    {
        place.number.unhold();
    }
}

/// A context is about to end: who is asking about one of its events ends first, and nobody begins.
pub(crate) fn context_going(tie: Tie) {
    EVENTS.iter().for_each(|event| event.set_aside(tie));
}

/// It did not end.
pub(crate) fn context_stays(tie: Tie) {
    for event in EVENTS.iter().filter(|event| event.is_of(tie)) {
        event.becomes(GOING, AWAITED);
    }
}

/// A context ended, with its arrays, streams and events.
pub(crate) fn context_ended(tie: Tie) {
    for (number, event) in EVENTS.iter().enumerate().filter(|(_, event)| event.is_of(tie)) {
        if event.becomes(GOING, BUSY) || event.becomes(AWAITED, BUSY) {
            drop_all(number);
            event.free();
        }
    }
    while !none()
        && let Some(place) = take(|place| place.tie == tie)
    {
        place.number.unhold();
    }
}
