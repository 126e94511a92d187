//! The markers of each context, lent to one thread at a time, and the vendor's events behind them.

// UNSAFETY: markers are lent to one thread at a time by a word of their own.
#![expect(unsafe_code, reason = "markers are lent by a word of their own")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use aliquot_enforce::marks::{EVENTS, Marks};
use aliquot_enforce::pace::{Pace, PaceTerms, UnbilledWork, WaitScope};
use aliquot_enforce::units::Nanos;

use super::driver::Driver;
use super::elapsed::{ElapsedChange, ElapsedWork};
use super::{Meter, PLACES, PacedCard, READY, fast_path, of_grant};
use crate::accounting::account;
use crate::accounting::contexts::ContextEnd;
use crate::accounting::listeners::{Note, OnContextEnd};
use crate::compute::captures;
use crate::loader::vendor::{self, CurrentContext, SUCCESS, StreamMode, Target};
use crate::sys;

/// Contexts of one card with markers of their own at a time; a further one takes the place of one without work. Where all have
/// work, the clock bills what it launches.
pub(super) const CONTEXTS_MAX: usize = 8;
/// Turns given away for a thread between two vendor calls; past it that thread was cancelled, or a handler of a signal runs on
/// top of it.
const GOING_TURNS_MAX: u32 = 100_000;
/// How long a context that ends is waited for its last markers, which take the card microseconds.
pub(super) const LAST_MARKERS: Nanos = Nanos::from_micros(200);
/// Handle of a place that a thread did not give back: no context has it.
const GIVEN_UP: u64 = u64::MAX;
/// The legacy default stream, which no event can be put into while streams that it waits for are captured.
const LEGACY: u64 = 1;

/// The markers of one context, lent to the thread that holds `busy`.
pub(super) struct Context {
    busy: AtomicU32,
    /// 0: free.
    handle: AtomicU64,
    /// What tells it from another context of that handle; 0: nothing does, or there are no markers.
    id: AtomicU64,
    marks: UnsafeCell<Marks>,
    /// The vendor's events by number; 0: not made yet.
    events: UnsafeCell<[u64; EVENTS]>,
}

// SAFETY: the cells are touched by the thread that holds `busy` alone.
unsafe impl Sync for Context {}

/// What a thread borrowed; given back with the value.
struct BorrowedMarkers<'a> {
    context: &'a Context,
    marks: &'a mut Marks,
    events: &'a mut [u64; EVENTS],
}

/// Where work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// On a stream; where that has no name, in the current context, or in any of the card's that has work.
    On(u64),
    /// In a context.
    In(u64),
}

/// Why no markers were lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMarkers {
    /// They were, or another thread has them.
    Nothing,
    /// There are none of this context.
    Context,
}

/// Whether a context is there that has the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alive {
    Yes,
    No,
}

/// While it lives, no question of this thread spoils a capture of another.
struct Relaxed {
    mode: u32,
    exchanged: bool,
}

impl Relaxed {
    fn new() -> Self {
        let mut mode = vendor::CAPTURE_RELAXED;
        let exchanged = vendor::cuThreadExchangeStreamCaptureMode(&raw mut mode) == Some(SUCCESS);
        Self { mode, exchanged }
    }

    /// Whether events may be touched: a driver that cannot exchange the mode is left alone while anything is captured.
    fn allows(&self) -> bool {
        self.exchanged || !captures::any()
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if self.exchanged {
            let _back = vendor::cuThreadExchangeStreamCaptureMode(&raw mut self.mode);
        }
    }
}

impl Drop for BorrowedMarkers<'_> {
    fn drop(&mut self) {
        self.context.busy.store(0, Ordering::Release);
    }
}

impl BorrowedMarkers<'_> {
    /// As if nothing had ever been marked here. The events of a context that is not alive are gone with it.
    fn end(&mut self, alive: Alive) {
        if alive == Alive::Yes {
            destroy(self.events);
        }
        *self.marks = Marks::new();
        *self.events = [0; EVENTS];
        self.context.id.store(0, Ordering::Release);
    }

    /// Whether the current context, which has the handle, is the one that has the events. Else it becomes that.
    fn meets(&mut self, pace: &Pace) -> Alive {
        let id = vendor::current_id().unwrap_or(0);
        let before = self.context.id.load(Ordering::Acquire);
        if before != id && before != 0 {
            // The one before it ended where no thread saw it.
            pace.ends(Nanos(sys::now()), WaitScope::OnAll, Some(self.marks));
            self.end(Alive::No);
        }
        if before != id {
            self.context.id.store(id, Ordering::Release);
        }
        if id == 0 { Alive::No } else { Alive::Yes }
    }
}

/// Destroys events of a context that is there.
pub(super) fn destroy(events: &mut [u64; EVENTS]) {
    for event in events.iter_mut().filter(|event| **event != 0) {
        let _gone = vendor::cuEventDestroy_v2(core::mem::take(event));
    }
}

impl Context {
    /// Puts markers where none were: before any other thread can see the place.
    ///
    /// # Safety
    /// No other thread touches the place.
    pub(super) unsafe fn make(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.marks.get().write(Marks::new()) };
    }

    fn is_of(&self, handle: u64) -> bool {
        self.handle.load(Ordering::Acquire) == handle
    }

    /// `None`: another thread has them.
    fn lend(&self) -> Option<BorrowedMarkers<'_>> {
        if self.busy.swap(1, Ordering::Acquire) != 0 {
            return None;
        }
        // SAFETY: `busy` is this thread's until it is given back.
        let (marks, events) = unsafe { (&mut *self.marks.get(), &mut *self.events.get()) };
        Some(BorrowedMarkers { context: self, marks, events })
    }

    /// Waits for the thread that has them; `None`: that thread does not give them back.
    fn lend_soon(&self) -> Option<BorrowedMarkers<'_>> {
        for _ in 0..GOING_TURNS_MAX {
            if let Some(lent) = self.lend() {
                return Some(lent);
            }
            sys::yield_now();
        }
        None
    }
}

/// Whether an event can be put into a stream.
pub(super) fn may_mark(lane: u64) -> bool {
    let target = Target { stream: lane, mode: StreamMode::Legacy };
    !captures::any() || (lane != LEGACY && !captures::holds(target))
}

impl Meter {
    /// Lends the markers of the context in which work is, unless another thread has them or there is no place for them. That
    /// context is current meanwhile.
    pub(super) fn with_marks<R>(
        &self,
        work: Work,
        inside: impl FnOnce(Option<&mut Marks>, &mut Driver<'_>) -> R,
    ) -> R {
        let relaxed = Relaxed::new();
        let current = if relaxed.allows() { vendor::current_context() } else { None };
        let place = if relaxed.allows() { self.place_for(work, current) } else { None };
        let Some((context, handle)) = place else {
            return inside(None, &mut self.without_markers(0, NoMarkers::Context, &mut [0; EVENTS]));
        };
        // The place may have become another's meanwhile, or its context have ended: a thread that ends one waits for its markers.
        let Some(mut lent) = context.lend().filter(|lent| lent.context.is_of(handle)) else {
            return inside(None, &mut self.without_markers(handle, NoMarkers::Nothing, &mut [0; EVENTS]));
        };
        // Ends before the markers are given back: a thread that ends the context waits for them.
        let Some(_inside) = CurrentContext::of(handle, current) else {
            return inside(None, &mut self.without_markers(0, NoMarkers::Context, &mut [0; EVENTS]));
        };
        let alive = lent.meets(&self.paced.pace);
        let mut driver = Driver {
            usage: self.usage,
            context: handle,
            lack: NoMarkers::Nothing,
            alive,
            events: lent.events,
        };
        let answer = inside(Some(lent.marks), &mut driver);
        self.publish(&mut lent);
        answer
    }

    /// The place of the context in which work is marked, and its handle.
    fn place_for(&self, work: Work, current: Option<u64>) -> Option<(&'static Context, u64)> {
        let handle = match work {
            Work::In(context) => Some(context),
            Work::On(lane) if vendor::is_named(lane) => Some(vendor::context_of(lane).or(current)?),
            Work::On(lane) => {
                let is_ours = || fast_path::known(lane).is_some_and(|paced| core::ptr::eq(paced, self.paced));
                current.filter(|_| is_ours())
            }
        };
        match handle {
            Some(handle) => {
                let place = self.paced.context(handle).or_else(|| self.evict(handle))?;
                Some((place, handle))
            }
            // None of this card's is current: one that has work. It may end at any moment, so no other's place is taken for it.
            None => {
                let mut places = self.paced.contexts.iter().zip(&self.paced.each);
                let (place, _) = places.find(|(_, since)| since.any.load(Ordering::Acquire) != 0)?;
                let handle = place.handle.load(Ordering::Acquire);
                (!matches!(handle, 0 | GIVEN_UP)).then_some((place, handle))
            }
        }
    }

    fn without_markers<'a>(&self, context: u64, lack: NoMarkers, none: &'a mut [u64; EVENTS]) -> Driver<'a> {
        Driver { usage: self.usage, context, lack, alive: Alive::No, events: none }
    }

    /// Says since when there is work that is not charged.
    fn publish(&self, lent: &mut BorrowedMarkers<'_>) {
        let (paced, pace) = (self.paced, &self.paced.pace);
        let word = |since: Option<Nanos>| since.map_or(0, |since| since.0);
        let UnbilledWork { since, owed } = pace.unbilled(lent.marks);
        let contexts = paced.contexts.iter().zip(&paced.each);
        for (_, place) in contexts.filter(|(context, _)| core::ptr::eq(*context, lent.context)) {
            place.say(word(since), word(owed));
        }
        self.tell();
    }

    /// Says the earliest of all contexts.
    fn tell(&self) {
        let earliest = |word: fn(&ElapsedWork) -> &AtomicU64| {
            let each = self.paced.each.iter().map(|since| word(since).load(Ordering::Acquire));
            each.filter(|since| *since != 0).min().unwrap_or(0)
        };
        let owed = earliest(|since| &since.owed);
        if self.paced.unbilled.say(earliest(|since| &since.any), owed) == ElapsedChange::Changed
            && let Some((_, slot)) = account::slot(self.grant)
        {
            slot.unbilled_since().store(owed, Ordering::Release);
        }
    }

    /// Gives a context the place of one that has no work; `None`: all have.
    #[cold]
    fn evict(&self, handle: u64) -> Option<&'static Context> {
        let terms = self.terms()?;
        self.paced.contexts.iter().find(|context| {
            let Some(mut lent) = context.lend() else { return false };
            let old = context.handle.load(Ordering::Acquire);
            let alive = self.settle_other(old, terms, &mut lent);
            self.publish(&mut lent);
            if lent.marks.pending_since().is_some() {
                return false;
            }
            self.paced.pace.ends(Nanos(sys::now()), WaitScope::OnAll, Some(lent.marks));
            lent.end(alive);
            context.handle.store(handle, Ordering::Release);
            true
        })
    }

    /// Bills what is done in a context that need not be the current one; whether there is such a context.
    fn settle_other(&self, handle: u64, terms: PaceTerms, lent: &mut BorrowedMarkers<'_>) -> Alive {
        if matches!(handle, 0 | GIVEN_UP) {
            return Alive::No;
        }
        // Where it cannot be made current it is going, and its events with it.
        let settled = vendor::with_context(handle, || {
            let (now, alive) = (Nanos(sys::now()), lent.meets(&self.paced.pace));
            let (usage, context) = (self.usage, handle);
            let mut driver = Driver { usage, context, lack: NoMarkers::Nothing, alive, events: lent.events };
            self.paced.pace.waits(now, WaitScope::OnAll, lent.marks, &mut driver, may_mark);
            self.paced.pace.settle_all(now, terms, &self.shared(), lent.marks, &mut driver);
            Some(())
        });
        settled.map_or(Alive::No, |()| Alive::Yes)
    }

    /// A context of this card is about to end, or has.
    fn context_going(&self, context: &Context, handle: u64, end: ContextEnd) {
        // The other thread is between two vendor calls on a context that is being destroyed.
        let Some(mut lent) = context.lend_soon() else {
            // Its place is given up: no context has this handle.
            context.handle.store(GIVEN_UP, Ordering::Release);
            return;
        };
        if !context.is_of(handle) {
            return;
        }
        let relaxed = Relaxed::new();
        let (begun, mut alive) = (Nanos(sys::now()), Alive::No);
        let may_ask = end == ContextEnd::Comes && relaxed.allows();
        if let (true, Some(terms)) = (may_ask, self.terms()) {
            alive = self.settle_other(handle, terms, &mut lent);
            while lent.marks.pending_since().is_some() && Nanos(sys::now()).minus(begun) < LAST_MARKERS {
                sys::yield_now();
                self.settle_other(handle, terms, &mut lent);
            }
        }
        self.paced.pace.ends(Nanos(sys::now()), WaitScope::OnAll, Some(lent.marks));
        lent.end(alive);
        self.publish(&mut lent);
        context.handle.store(0, Ordering::Release);
    }

    /// A context of this card ended, and all its work with it: what of that had no marker is billed up to now.
    fn context_gone(&self) {
        let (paced, Some(terms)) = (self.paced, self.terms()) else { return };
        if !paced.pace.has_unmarked() {
            return;
        }
        paced.pace.waited(Nanos(sys::now()), WaitScope::OnAll, terms, &self.shared());
        let free = |context: &Context| context.is_of(0) || context.is_of(GIVEN_UP);
        for (_, place) in paced.contexts.iter().zip(&paced.each).filter(|(context, _)| free(context)) {
            place.say(0, 0);
        }
        self.tell();
    }

    /// A stream is about to be destroyed, in whichever context it is: nothing is put behind what was launched there.
    fn stream_going(&self, lane: u64) {
        let waits = WaitScope::On(lane);
        self.paced.pace.stream_ends(lane);
        for context in self.paced.contexts.iter().filter(|context| !context.is_of(0)) {
            // A thread that has them now may be putting a marker into the stream.
            let Some(mut lent) = context.lend_soon() else {
                self.paced.pace.ends(Nanos(sys::now()), waits, None);
                continue;
            };
            if lent.marks.knows(lane) {
                self.paced.pace.ends(Nanos(sys::now()), waits, Some(lent.marks));
                self.publish(&mut lent);
            }
            lent.marks.stream_ends(lane);
        }
    }
}

impl PacedCard {
    /// The markers of a context; takes a free place for a new one.
    fn context(&self, handle: u64) -> Option<&Context> {
        if let Some(known) = self.contexts.iter().find(|context| context.is_of(handle)) {
            return Some(known);
        }
        let free = |context: &&Context| {
            context.handle.compare_exchange(0, handle, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        self.contexts.iter().find(free)
    }
}

/// Cards on which this process launched under a limit.
fn used() -> impl Iterator<Item = Meter> {
    let is_used = |place: &AtomicPtr<PacedCard>| {
        let base = place.load(Ordering::Acquire);
        // SAFETY: a mapping of one value that is never unmapped; `ready` guards its markers.
        !base.is_null() && unsafe { &*base }.ready.load(Ordering::Acquire) == READY
    };
    PLACES
        .iter()
        .enumerate()
        .filter(move |(_, place)| is_used(place))
        .filter_map(|(number, _)| of_grant(number))
}

/// A context is about to end, and its events with it; or it ended already, and nothing is asked in it.
fn context_going(handle: u64, end: ContextEnd) {
    for meter in used() {
        for context in meter.paced.contexts.iter().filter(|context| context.is_of(handle)) {
            meter.context_going(context, handle, end);
        }
    }
}

/// A context ended.
fn context_gone() {
    fast_path::forget_all();
    used().for_each(|meter| meter.context_gone());
}

/// The markers in contexts that end.
pub(crate) struct InContexts;

impl OnContextEnd for InContexts {
    fn going(&self, handle: u64, end: ContextEnd) -> Note {
        context_going(handle, end);
        Note::default()
    }

    fn gone(&self, _: u64, _: Note) {
        context_gone();
    }
}

/// A stream is about to be destroyed: from now on nothing may be put into it.
pub(super) fn stream_going(lane: u64) {
    used().for_each(|meter| meter.stream_going(lane));
}
