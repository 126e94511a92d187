//! Launches on account: asks the controller of [`aliquot_enforce::pace`] whether a launch may go, waits where it may not, and
//! gives the controller what it needs of the world: a clock, the vendor's events, the words of the region.
//!
//! ```text
//!  launch ─▶ metered(): the card's grant ─▶ pass ──Go──────────────────▶ vendor call
//!                │ no compute limit: vendor call     │ Ask: a clock, the region       ▲
//!                                                    ▼                                │
//!                                                 turn(): ask, futex until a deadline ┴─▶ settled(): marker behind it
//! ```
//!
//! - A launch into a capture is written down by the driver, not run: it costs nothing and never waits.
//! - Markers are recorded by the launching thread, on the stream that it is launching on: no handle is used that the program
//!   may have given up. While any stream of the process is captured no event is touched.
//! - One thread at a time works on the markers of a context; nobody waits for it.
//! - What a forked child inherits is wiped; it begins anew.

// UNSAFETY: private state lies in a mapping, and is lent to one thread at a time by a word of its own.
#![expect(unsafe_code, reason = "private state lies in a mapping")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use aliquot_abi::limits::ComputePolicy;
use aliquot_enforce::bucket::Bucket;
use aliquot_enforce::cells::Cells;
use aliquot_enforce::cost::{Key, Shape};
use aliquot_enforce::marks::{EVENTS, Event, Events, Marks, Passed, Recorded};
use aliquot_enforce::pace::{Ask, Pace, Pass, Shared, Terms, Ticket, Verdict, World};
use aliquot_enforce::sure::Sure;
use aliquot_enforce::units::{Nanos, Ppm};

use crate::account;
use crate::grants::{self, GRANTS_MAX, Grant, Standing, Usage};
use crate::sys::{self, KeepErrno};
use crate::vendor::{self, Device, SUCCESS, StreamMode};

/// Contexts of one card with markers of their own; launches of further ones are charged what is known of them.
const CONTEXTS_MAX: usize = 8;

/// The markers of one context, lent to the thread that holds `busy`.
struct Context {
    busy: AtomicU32,
    /// 0: nobody's.
    handle: AtomicU64,
    marks: UnsafeCell<Marks>,
    /// The vendor's events by number; 0: not made yet.
    events: UnsafeCell<[u64; EVENTS]>,
}

// SAFETY: the cells are touched by the thread that holds `busy` alone.
unsafe impl Sync for Context {}

/// Controller and markers for one grant. All zeros is a controller that knows nothing; markers are put there before `ready`.
struct Paced {
    ready: AtomicU32,
    /// Number of the grant.
    number: AtomicU32,
    pace: Pace,
    /// Generation of the limits that `terms` come from.
    generation: AtomicU64,
    /// `granted << 32 | own`; 0: not limited.
    terms: AtomicU64,
    /// Stands in for the slot's word where the process has no slot.
    unslotted: AtomicU64,
    contexts: [Context; CONTEXTS_MAX],
}

const MAKING: u32 = 1;
const READY: u32 = 2;

static PLACES: [AtomicPtr<Paced>; GRANTS_MAX] = [const { AtomicPtr::new(core::ptr::null_mut()) }; GRANTS_MAX];

/// The only card there is, where there is one and its compute is limited: its grant, found without a question to the driver.
static SOLE: AtomicPtr<Paced> = AtomicPtr::new(core::ptr::null_mut());

/// Cards that the process sees; 0: nobody asked yet.
static CARDS: AtomicU32 = AtomicU32::new(0);

/// Captures that were begun and not ended.
static CAPTURES: AtomicU32 = AtomicU32::new(0);

/// A card whose compute is limited, as one launch needs it.
#[derive(Clone, Copy)]
pub(crate) struct Meter {
    grant: &'static Grant,
    usage: Usage,
    paced: &'static Paced,
}

/// Where a launch goes.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The stream as the caller named it.
    pub(crate) stream: u64,
    /// Which default stream the call means.
    pub(crate) mode: StreamMode,
}

// === finding the meter ===

/// The controller of the current card; `None`: its compute is not limited.
#[inline]
fn current() -> Option<&'static Paced> {
    let sole = SOLE.load(Ordering::Acquire);
    if sole.is_null() {
        return look();
    }
    // SAFETY: as in `paced`.
    let paced = unsafe { &*sole };
    if paced.ready.load(Ordering::Acquire) == READY { Some(paced) } else { look() }
}

/// Asks which card is meant; with only one, no later launch need ask.
#[cold]
fn look() -> Option<&'static Paced> {
    let meter = of_device(vendor::current_device()?)?;
    if CARDS.load(Ordering::Relaxed) == 0 {
        let mut count = 0;
        if vendor::cuDeviceGetCount(&raw mut count) == Some(SUCCESS) {
            CARDS.store(count.unsigned_abs(), Ordering::Relaxed);
        }
    }
    if CARDS.load(Ordering::Relaxed) == 1 {
        SOLE.store(core::ptr::from_ref(meter.paced).cast_mut(), Ordering::Release);
    }
    Some(meter.paced)
}

fn of_device(device: Device) -> Option<Meter> {
    match grants::standing(device) {
        Standing::Granted(grant) => of_grant(grant.number),
        Standing::Ungoverned | Standing::Closed => None,
    }
}

#[inline]
fn of_grant(number: usize) -> Option<Meter> {
    let grant = grants::grant(number)?;
    let usage = grant.usage?;
    if grant.first().policy == ComputePolicy::Unlimited {
        return None;
    }
    Some(Meter { grant, usage, paced: paced(number)? })
}

/// The controller of a grant.
fn paced(number: usize) -> Option<&'static Paced> {
    let place = PLACES.get(number)?;
    let base = place.load(Ordering::Acquire);
    if !base.is_null() {
        // SAFETY: a mapping of one value, of which zero is a value but for the markers, which `ready` guards; never unmapped.
        let paced = unsafe { &*base };
        if paced.ready.load(Ordering::Acquire) == READY {
            return Some(paced);
        }
    }
    make(place, number)
}

#[cold]
fn make(place: &AtomicPtr<Paced>, number: usize) -> Option<&'static Paced> {
    let _errno = KeepErrno::new();
    let mut base = place.load(Ordering::Acquire);
    if base.is_null() {
        let made = sys::map_wiped_on_fork(size_of::<Paced>())?.cast::<Paced>().as_ptr();
        let first = place.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        // Two threads at once leave one mapping of untouched pages behind, once.
        base = first.err().unwrap_or(made);
    }
    // SAFETY: as in `paced`.
    let paced = unsafe { &*base };
    loop {
        match paced.ready.compare_exchange(0, MAKING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                for context in &paced.contexts {
                    // SAFETY: `MAKING` is this thread's; nobody else touches markers before `READY`.
                    unsafe { context.marks.get().write(Marks::new()) };
                }
                paced.number.store(u32::try_from(number).unwrap_or(u32::MAX), Ordering::Release);
                paced.ready.store(READY, Ordering::Release);
                return Some(paced);
            }
            Err(READY) => return Some(paced),
            Err(_) => sys::yield_now(),
        }
    }
}

// === captures ===

/// A capture was begun.
pub(crate) fn capture_begun() {
    CAPTURES.fetch_add(1, Ordering::AcqRel);
}

/// A capture was ended.
pub(crate) fn capture_ended() {
    // One that was begun before the hooks came counts from zero.
    let _none = CAPTURES.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
}

fn is_captured(target: Target) -> bool {
    CAPTURES.load(Ordering::Acquire) != 0 && vendor::is_capturing(target.stream, target.mode)
}

// === one launch ===

/// Makes a launch as the share of the current card allows. `shape` is asked for where `key` alone does not do.
#[inline]
pub(crate) fn launch(
    key: Key,
    target: Target,
    shape: impl FnOnce() -> Shape,
    real: impl FnOnce() -> i32,
) -> i32 {
    let Some(paced) = current() else { return real() };
    if is_captured(target) {
        return real();
    }
    match paced.pace.pass(key, target.lane()) {
        Pass::Go(charged) => {
            let answer = real();
            if answer != SUCCESS {
                paced.pace.failed(charged);
            }
            answer
        }
        Pass::Ask => {
            let turn = paced.turn(&shape(), target);
            let answer = real();
            if let Some((meter, ticket)) = turn {
                meter.settled(&ticket, answer);
            }
            answer
        }
    }
}

/// Makes a launch on several cards at once, each as its card's share allows.
pub(crate) fn launch_on_several(
    launches: impl Iterator<Item = (Shape, Target)>,
    real: impl FnOnce() -> i32,
) -> i32 {
    for (shape, target) in launches {
        let device = vendor::device_of(target.stream);
        if let Some(meter) = device.and_then(of_device)
            && !is_captured(target)
            && meter.paced.pace.pass(shape.key, target.lane()) == Pass::Ask
        {
            // Nothing is marked: the current context is not that of each stream.
            meter.turn(&shape, target);
        }
    }
    real()
}

impl Target {
    /// The stream by a name that is the same from whichever call.
    const fn lane(self) -> u64 {
        match (self.stream, self.mode) {
            (0, StreamMode::Legacy) => 1,
            (0, StreamMode::PerThread) => 2,
            (stream, _) => stream,
        }
    }
}

impl Meter {
    /// Waits for this launch's turn. `None`: nothing is limited any more.
    #[cold]
    fn turn(&self, shape: &Shape, target: Target) -> Option<Ticket> {
        let _errno = KeepErrno::new();
        let wake = self.usage.view.wake();
        let begun = sys::now();
        let mut now = begun;
        loop {
            // Read before the question: a word that moves meanwhile ends the wait at once.
            let seen = wake.load(Ordering::Acquire);
            let ask = Ask {
                now: Nanos(now),
                shape,
                stream: target.lane(),
                terms: self.terms()?,
                waited: Nanos(now.saturating_sub(begun)),
            };
            let verdict =
                self.with_marks(|marks, world| self.paced.pace.ask(&ask, &self.shared(), marks, world));
            match verdict {
                Verdict::Go(ticket) => return Some(ticket),
                Verdict::Wait(until) => {
                    sys::wait_while(wake, seen, until.0.saturating_sub(sys::now()).max(1));
                    now = sys::now();
                }
            }
        }
    }

    /// After the vendor call.
    #[cold]
    fn settled(&self, ticket: &Ticket, answer: i32) {
        if answer != SUCCESS {
            self.paced.pace.refused(ticket, &self.shared());
        } else if ticket.is_marked() {
            let _errno = KeepErrno::new();
            self.with_marks(|marks, world| {
                self.paced.pace.launched(Nanos(sys::now()), ticket, marks, world);
            });
        }
    }

    /// The limits in force; decoded again when their generation moved.
    fn terms(&self) -> Option<Terms> {
        let generation = self.grant.generation();
        let paced = self.paced;
        if paced.generation.load(Ordering::Acquire) != generation {
            let limits = self.grant.limits();
            let both = u64::from(limits.granted_ppm) << 32 | u64::from(limits.own_ppm.max(1));
            let both = if limits.policy == ComputePolicy::Unlimited { 0 } else { both };
            paced.terms.store(both, Ordering::Release);
            paced.generation.store(limits.generation, Ordering::Release);
        }
        let both = paced.terms.load(Ordering::Acquire);
        let part = |bits: u64| u32::try_from(bits & 0xffff_ffff).map_or(Ppm::ALL, Ppm::new);
        (both != 0).then(|| Terms { granted: part(both >> 32), own: part(both) })
    }

    fn shared(&self) -> Shared<'static> {
        let view = self.usage.view;
        let slot = account::slot(self.grant, self.usage);
        let (process_nanos, me) = match slot {
            Some((number, slot)) => (slot.device_nanos(), number),
            // More processes than slots: told apart by number alone.
            None => (&self.paced.unslotted, sys::pid()),
        };
        Shared {
            bucket: Bucket { credit: view.credit_nanos(), refilled_at: view.refilled_at() },
            cells: Cells::new(view.cells()),
            device_nanos: view.device_nanos(),
            process_nanos,
            interval_nanos: view.interval_nanos(),
            counted_until: view.counted_until(),
            sure: Sure::new(view.sure()),
            sure_nanos: view.sure_nanos(),
            reporter: view.reporter(),
            active_until: view.active_until(),
            limited_until: view.limited_until(),
            demand: view.demand(),
            wake: view.wake(),
            me,
        }
    }

    /// Lends the markers of the current context, unless another thread has them or a capture forbids events.
    fn with_marks<R>(&self, inside: impl FnOnce(Option<&mut Marks>, &mut Driver<'_>) -> R) -> R {
        let mut none = [0; EVENTS];
        let free = CAPTURES.load(Ordering::Acquire) == 0;
        let context =
            if free { vendor::current_context().and_then(|handle| self.paced.context(handle)) } else { None };
        let Some(context) = context else {
            return inside(None, &mut Driver { usage: self.usage, events: &mut none });
        };
        if context.busy.swap(1, Ordering::Acquire) != 0 {
            return inside(None, &mut Driver { usage: self.usage, events: &mut none });
        }
        // SAFETY: `busy` is this thread's until it is given back below.
        let (marks, events) = unsafe { (&mut *context.marks.get(), &mut *context.events.get()) };
        // Another thread may begin a capture meanwhile, which our questions must not spoil.
        let mut mode = vendor::CAPTURE_RELAXED;
        let exchanged = vendor::cuThreadExchangeStreamCaptureMode(&raw mut mode) == Some(vendor::SUCCESS);
        let answer = inside(Some(marks), &mut Driver { usage: self.usage, events });
        if exchanged {
            let _back = vendor::cuThreadExchangeStreamCaptureMode(&raw mut mode);
        }
        context.busy.store(0, Ordering::Release);
        answer
    }
}

impl Paced {
    /// Waits for a launch's turn.
    #[cold]
    fn turn(&self, shape: &Shape, target: Target) -> Option<(Meter, Ticket)> {
        let number = usize::try_from(self.number.load(Ordering::Acquire)).ok()?;
        let meter = of_grant(number)?;
        Some((meter, meter.turn(shape, target)?))
    }

    /// The markers of a context; takes a free place for a new one.
    fn context(&self, handle: u64) -> Option<&Context> {
        let is = |context: &&Context| context.handle.load(Ordering::Acquire) == handle;
        if let Some(known) = self.contexts.iter().find(is) {
            return Some(known);
        }
        let free = |context: &&Context| {
            context.handle.compare_exchange(0, handle, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        self.contexts.iter().find(free)
    }
}

/// Turns given away for a thread between two vendor calls; past it that thread was cancelled, or a handler of a signal runs on
/// top of it.
const GOING_TURNS_MAX: u32 = 100_000;

/// A context is about to end, and its events with it.
pub(crate) fn context_going(handle: u64) {
    for place in &PLACES {
        let base = place.load(Ordering::Acquire);
        if base.is_null() {
            continue;
        }
        // SAFETY: as in `paced`.
        let paced = unsafe { &*base };
        if paced.ready.load(Ordering::Acquire) != READY {
            continue;
        }
        for context in paced.contexts.iter().filter(|it| it.handle.load(Ordering::Acquire) == handle) {
            // The other thread is between two vendor calls on a context that is being destroyed.
            let mut turns = 0;
            while context.busy.swap(1, Ordering::Acquire) != 0 && turns < GOING_TURNS_MAX {
                turns += 1;
                sys::yield_now();
            }
            if turns == GOING_TURNS_MAX {
                // Its place is given up: no context has this handle.
                context.handle.store(u64::MAX, Ordering::Release);
                continue;
            }
            // SAFETY: `busy` is this thread's.
            unsafe {
                context.marks.get().write(Marks::new());
            };
            // SAFETY: as above.
            unsafe {
                context.events.get().write([0; EVENTS]);
            };
            context.handle.store(0, Ordering::Release);
            context.busy.store(0, Ordering::Release);
        }
    }
}

// === the world of the controller ===

/// The vendor's events of one context, and the words that others wait on.
struct Driver<'a> {
    usage: Usage,
    events: &'a mut [u64; EVENTS],
}

impl Driver<'_> {
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

    fn passed(&mut self, base: Event, event: Event) -> Passed {
        let mut millis = 0.0;
        match vendor::cuEventElapsedTime(&raw mut millis, self.event(base), self.event(event)) {
            Some(SUCCESS) => Passed::After(nanos(millis)),
            Some(vendor::NOT_READY) => Passed::NotYet,
            _ => {
                // The context is not what it was: events that are left, if any, are its own affair.
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
}
