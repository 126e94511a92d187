//! What leaves accounting when a stream is there: memory that is freed in the order of a stream.
//!
//! ```text
//!   freed ─▶ an event behind it in the stream ─▶ settle: the event is reached ─▶ it leaves
//! ```
//!
//! A thread that is about to be refused, or asks for memory information, settles first. An event is the driver's for as long
//! as its context is: before a context ends its events are set aside.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::accounting::account::UnaccountedRelease;
use crate::accounting::alloc_map::{AllocEntry, AllocMap, Key, Tie};
use crate::accounting::contexts;
use crate::accounting::credit::Sums;
use crate::accounting::listeners::OnContextEnd;
use crate::loader::vendor::{self, SUCCESS, StreamMode};
use crate::memory::plain::Freeing;
use crate::sys::{self, KeepErrno};

/// Points of streams at once that something waits for.
const EVENTS_MAX: usize = 64;
/// Those of one stream: then the last of them becomes a later one.
const OF_ONE_MAX: usize = 8;
/// Turns given away for a thread that asks the driver about one event.
const ASKING_TURNS_MAX: u32 = 100_000;

/// What leaves: memory with bytes in no slot of their own.
#[derive(Clone, Copy, Debug)]
struct DeferredFree {
    /// The event's place in [`EVENTS`].
    event: usize,
    key: Key,
    held: AllocEntry,
}

/// A point in a stream behind which something leaves; [`StreamPoint::begins`] makes it one that is waited for.
#[derive(Clone, Copy, Debug)]
struct StreamPoint(usize);

/// An event in a stream.
struct Event {
    state: AtomicU32,
    handle: AtomicU64,
    tie: AtomicU32,
    /// What tells its stream from all others; 0: the driver does not say.
    stream: AtomicU64,
    /// The greater, the later it was recorded.
    order: AtomicU64,
}

/// Free.
const FREE: u32 = 0;
/// A thread is at it.
const BUSY: u32 = 1;
/// The stream is on its way to it.
const AWAITED: u32 = 2;
/// Its context is about to end: no thread asks the driver about it any more.
const GOING: u32 = 3;
/// The stream has reached it, and it is destroyed.
const REACHED: u32 = 4;

static LEAVING: AllocMap<DeferredFree> = AllocMap::new();
static NEXT: AtomicU64 = AtomicU64::new(1);
/// What leaves: most programs have nothing.
static COUNT: AtomicU64 = AtomicU64::new(0);
static EVENTS: [Event; EVENTS_MAX] = [const {
    Event {
        state: AtomicU32::new(FREE),
        handle: AtomicU64::new(0),
        tie: AtomicU32::new(0),
        stream: AtomicU64::new(0),
        order: AtomicU64::new(0),
    }
}; EVENTS_MAX];

// === impl Event ===

impl Event {
    fn is_of(&self, tie: Tie) -> bool {
        self.tie.load(Ordering::Acquire) == tie.0
    }

    fn is_on(&self, stream: u64, tie: Tie) -> bool {
        stream != 0 && self.is_of(tie) && self.stream.load(Ordering::Acquire) == stream
    }

    /// Goes from one state to another; false: another thread was faster.
    fn becomes(&self, from: u32, next: u32) -> bool {
        self.state.compare_exchange(from, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes it out of every thread's hands where it is of this context.
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

    /// Puts it behind what the stream has to do.
    fn record(&self, stream: u64, mode: StreamMode) -> bool {
        let handle = self.handle.load(Ordering::Acquire);
        let answer = match mode {
            StreamMode::Legacy => vendor::cuEventRecord(handle, stream),
            StreamMode::PerThread => vendor::cuEventRecord_ptsz(handle, stream),
        };
        self.order.store(next(), Ordering::Release);
        answer == Some(SUCCESS)
    }

    fn free(&self) {
        self.stream.store(0, Ordering::Release);
        self.tie.store(0, Ordering::Release);
        self.state.store(FREE, Ordering::Release);
    }
}

fn event_of(number: usize) -> &'static Event {
    EVENTS.get(number).unwrap_or(&EVENTS[0])
}

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Nothing leaves.
pub(crate) fn none() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

// === impl StreamPoint ===

impl StreamPoint {
    /// Behind what a stream of the current context has to do; `None`: there is no event to be had.
    fn of(stream: u64, mode: StreamMode, tie: Tie) -> Option<Self> {
        if tie == Tie(0) {
            // No thread will say when its context ends.
            return None;
        }
        // Another stream may have the handle of one that was destroyed with work to do.
        let id = vendor::stream_id(stream, mode).unwrap_or(0);
        let (make, move_on) =
            (|| Self::make(stream, mode, (id, tie)), || Self::move_on(stream, mode, (id, tie)));
        if EVENTS.iter().filter(|event| event.is_on(id, tie)).count() < OF_ONE_MAX {
            make().or_else(move_on)
        } else {
            move_on().or_else(make)
        }
    }

    fn make(stream: u64, mode: StreamMode, (id, tie): (u64, Tie)) -> Option<Self> {
        let number = EVENTS.iter().position(|event| event.becomes(FREE, BUSY))?;
        let event = EVENTS.get(number)?;
        let mut handle = 0;
        let made = vendor::cuEventCreate(&raw mut handle, vendor::EVENT_WITHOUT_TIME) == Some(SUCCESS);
        event.handle.store(handle, Ordering::Release);
        if !made || !event.record(stream, mode) {
            if made {
                vendor::cuEventDestroy_v2(handle);
            }
            event.free();
            return None;
        }
        event.stream.store(id, Ordering::Release);
        event.tie.store(tie.0, Ordering::Release);
        Some(Self(number))
    }

    /// The last point of the stream becomes a later one. Not an earlier one: the first would never be reached while more comes.
    fn move_on(stream: u64, mode: StreamMode, (id, tie): (u64, Tie)) -> Option<Self> {
        let is_awaited =
            |event: &Event| event.is_on(id, tie) && event.state.load(Ordering::Acquire) == AWAITED;
        let awaited = EVENTS.iter().enumerate().filter(|(_, event)| is_awaited(event));
        let (number, event) = awaited.max_by_key(|(_, event)| event.order.load(Ordering::Acquire))?;
        if !event.becomes(AWAITED, BUSY) {
            return None;
        }
        // It may have become another's meanwhile; one that cannot be moved on stays where it was.
        let is_moved = event.is_on(id, tie) && event.record(stream, mode);
        if !is_moved {
            event.state.store(AWAITED, Ordering::Release);
        }
        is_moved.then_some(Self(number))
    }

    /// Memory leaves there. False: without a record of it it stays charged.
    fn add(self, key: Key, held: AllocEntry) -> bool {
        COUNT.fetch_add(1, Ordering::AcqRel);
        let recorded = LEAVING.insert(Key(next()), DeferredFree { event: self.0, key, held }).is_ok();
        if !recorded {
            COUNT.fetch_sub(1, Ordering::AcqRel);
        }
        recorded
    }

    /// It is waited for from now on.
    fn begins(self) {
        event_of(self.0).state.store(AWAITED, Ordering::Release);
    }
}

/// Memory was freed in the order of a stream: it leaves accounting at once where the stream is there, else when it is. Where
/// no thread can tell when that is it stays until its address comes again, or its context ends.
#[cold]
pub(crate) fn freed(freeing: Freeing, stream: u64, mode: StreamMode) {
    let _errno = KeepErrno::new();
    settle();
    let is_there = || vendor::is_at_rest(stream, mode);
    if freeing.is_apart() || is_there() {
        return freeing.freed();
    }
    freeing.loosen(UnaccountedRelease::Memory);
    let Some(behind) = behind(stream, mode) else { return freeing.stays() };
    if let Err(freeing) = freeing.leaves(|key, held| behind.add(key, held)) {
        freeing.stays();
    }
    behind.begins();
}

/// A point of a stream of any context.
fn behind(stream: u64, mode: StreamMode) -> Option<StreamPoint> {
    let of_current = || StreamPoint::of(stream, mode, contexts::current()?.tie);
    match vendor::context_of(stream).filter(|_| vendor::is_named(stream)) {
        Some(context) => vendor::with_context(context, of_current),
        None => of_current(),
    }
}

/// Lets go of what streams have let go of meanwhile.
pub(crate) fn settle() {
    if none() {
        return;
    }
    let _errno = KeepErrno::new();
    for event in EVENTS.iter().filter(|event| event.becomes(AWAITED, BUSY)) {
        let handle = event.handle.load(Ordering::Acquire);
        // In any capture that may go on, too: asking for an event would spoil it.
        let is_reached = vendor::relaxed(|| vendor::cuEventQuery(handle)) == Some(SUCCESS);
        if is_reached {
            vendor::cuEventDestroy_v2(handle);
        }
        event.state.store(if is_reached { REACHED } else { AWAITED }, Ordering::Release);
    }
    end_all(|event| event.becomes(REACHED, BUSY));
}

/// Lets go of what waits for these events, which are the caller's then.
fn end_all(take: impl Fn(&Event) -> bool) {
    let mut taken = [false; EVENTS_MAX];
    for (taken, event) in taken.iter_mut().zip(&EVENTS) {
        *taken = take(event);
    }
    if !taken.contains(&true) {
        return;
    }
    drop_all(|leaving| taken.get(leaving.event) == Some(&true));
    for (_, event) in taken.iter().zip(&EVENTS).filter(|(taken, _)| **taken) {
        event.free();
    }
}

/// Goes through all that leaves once, however much it is.
fn drop_all(wanted: impl Fn(&DeferredFree) -> bool) {
    let (mut sums, mut count) = (Sums::default(), 0);
    LEAVING.sweep(
        |_, leaving| wanted(leaving),
        |leaving| {
            sums.add_freed(leaving.key, leaving.held);
            count += 1;
        },
    );
    COUNT.fetch_sub(count, Ordering::AcqRel);
    sums.credit();
}

/// A context is about to end: a thread that is asking about one of its events ends first, and no thread begins.
fn context_going(tie: Tie) {
    EVENTS.iter().for_each(|event| event.set_aside(tie));
}

/// It did not end.
fn context_stays(tie: Tie) {
    for event in EVENTS.iter().filter(|event| event.is_of(tie)) {
        event.becomes(GOING, AWAITED);
    }
}

/// A context ended, with its streams, events and memory.
pub(crate) fn context_ended(tie: Tie) {
    end_all(|event| event.is_of(tie) && (event.becomes(GOING, BUSY) || event.becomes(AWAITED, BUSY)));
    if !none() {
        drop_all(|leaving| leaving.held.tie() == tie);
    }
}

/// Deferred frees of contexts that end.
pub(crate) struct InContexts;

impl OnContextEnd for InContexts {
    fn number_going(&self, tie: Tie) {
        context_going(tie);
    }

    fn number_stays(&self, tie: Tie) {
        context_stays(tie);
    }
}
