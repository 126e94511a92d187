//! What a call gave back to the card: free memory before and after it, corrected by what accounting moved.
//!
//! ```text
//!   shut the gate ─▶ all others outside ─▶ free memory and accounting ─▶ the call ─▶ both again ─▶ open
//! ```
//!
//! Each process of the container says in its slot which of its calls are under way. What would be credited by what is read has to be
//! certain ([`WatchedCall`]): no call but the measured one is under way or began, no other process has pools or graphs, and all of
//! them are seen to live *after* the card was read, so that none of it came back by a death. That comes to pass beside others at work
//! as the turn has a gate: a process that is about to move memory waits before it, for a bounded time ([`DeltaTurn`]). Other tenants are told by the card's free memory alone: it has to rise by just
//! what is asked about, by less than a context where another process has one past the hooks, and no process is to be seen that moves
//! as much, for longer behind the call than that took.
//!
//! The card is read in the current context where that is its own, else in its primary one ([`DeltaContext`]).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::accounting::account::{self, Account, Bytes, InFlightOperation, Ledger, MemoryStamp};
use crate::accounting::contexts;
use crate::grants::GRANTS_MAX;
use crate::loader::vendor::SUCCESS;
use crate::memory::admission_gate::{AdmissionGate, DeltaTurn, pass_admission_gate};
use crate::memory::context_accounting;
use crate::memory::deferred_free;
use crate::memory::pools;
use crate::memory::sizes::{self, free_now};
use crate::sys::{self, KeepErrno};

/// Longest wait behind it until all others are outside; it halves with each that was in vain, so many times at most.
const OUTSIDE_NANOS: u64 = 100 * MILLI;
const OUTSIDE_HALVES_MAX: u32 = 5;
/// How long after it is known that a process died the card is not trusted: a driver may let go of its memory later than it is
/// found dead.
const AFTER_DEATH_NANOS: u64 = 5 * MILLI;
/// How much longer than a call took the card is watched behind it, and for how long at most.
const WATCHED_TIMES: u64 = 4;
const WATCHED_NANOS_MAX: u64 = 2 * MILLI;
/// First and longest sleep before a look whether a process still moves memory.
const STEP_NANOS: u64 = 50_000;
const STEP_NANOS_MAX: u64 = 2_000_000;
const MILLI: u64 = 1_000_000;

/// Waits behind a shut gate that were in vain, one after the other.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// How many processes of a container died, plus one, and since when this one knows, in nanoseconds of the monotonic clock.
struct Dead {
    count: AtomicU64,
    since: AtomicU64,
}

static DEAD: [Dead; GRANTS_MAX] =
    [const { Dead { count: AtomicU64::new(0), since: AtomicU64::new(0) } }; GRANTS_MAX];

/// Free memory and accounting at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    free: u64,
    still: MemoryStamp,
}

/// How closely a call is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Others are kept out for it.
    Closely,
    /// It is seen what can be seen without.
    Aside,
}

/// Where a ledger's card is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeltaContext {
    /// In the current context.
    Here,
    /// In its primary context: none is current, or another card's.
    Primary,
}

impl DeltaContext {
    /// `None`: nowhere.
    fn of(ledger: Ledger) -> Option<Self> {
        if is_current(ledger) {
            return Some(Self::Here);
        }
        Self::Primary.free(ledger).map(|_| Self::Primary)
    }

    fn free(self, ledger: Ledger) -> Option<u64> {
        match self {
            Self::Here => free_now(),
            Self::Primary => context_accounting::in_primary(ledger, free_now),
        }
    }
}

/// A call that is watched, from before it until accounting has what it moved.
#[must_use]
pub(crate) struct WatchedCall {
    ledger: Ledger,
    before: Option<(DeltaContext, Reading)>,
    begun: u64,
    // Accounting is right before others look.
    moving: InFlightOperation,
    shut: Option<DeltaTurn>,
}

impl WatchedCall {
    /// Before a call that gives something of a ledger's card back.
    pub(crate) fn begin(ledger: Ledger, watch: Watch) -> Self {
        let _errno = KeepErrno::new();
        let place = DeltaContext::of(ledger);
        let is_close = watch == Watch::Closely && place.is_some();
        let shut = is_close.then(|| DeltaTurn::take_with(ledger, AdmissionGate::Shut));
        if shut.is_none() {
            pass_admission_gate(ledger);
        }
        let moving = ledger.moving();
        let is_own = shut.as_ref().is_some_and(DeltaTurn::is_own);
        let before = place.and_then(|place| Some((place, outside(ledger, place, is_own)?)));
        Self { ledger, before, begun: sys::now(), moving, shut }
    }

    /// After it: what the card got back by it; `None`: nothing, or perhaps another process's.
    pub(crate) fn end(self, answer: i32) -> (Option<Bytes>, InFlightOperation) {
        let _errno = KeepErrno::new();
        let given = self.before.filter(|_| answer == SUCCESS).and_then(|before| self.given(before));
        let Self { moving, shut, .. } = self;
        drop(shut);
        (given, moving)
    }

    fn given(&self, (place, before): (DeltaContext, Reading)) -> Option<Bytes> {
        // At once, so that others have little time.
        let free = place.free(self.ledger)?;
        let took = sys::now().saturating_sub(self.begun);
        let given = Bytes(free.checked_sub(before.free).filter(|bytes| *bytes > 0)?);
        let still = quiet(self.ledger).filter(|still| *still == before.still)?;
        // A context of a runtime library ends without a word, and gives back no less than it takes.
        let is_no_context = || sizes::known(self.ledger).is_some_and(|context| given < context);
        let now = || place.free(self.ledger);
        ((still.calls.past == 0 || is_no_context()) && is_of_this_process_alone(now, (free, given), took))
            .then_some(given)
    }
}

/// A reading that is certain, as soon as all others are outside; where the gate is not ours, at once.
fn outside(ledger: Ledger, place: DeltaContext, is_own: bool) -> Option<Reading> {
    let halves = IN_VAIN.load(Ordering::Relaxed).min(OUTSIDE_HALVES_MAX);
    let until = sys::now().saturating_add(if is_own { OUTSIDE_NANOS >> halves } else { 0 });
    let mut step = 0;
    loop {
        if let Some(reading) = certain(ledger, place) {
            IN_VAIN.store(0, Ordering::Relaxed);
            return Some(reading);
        }
        // Their pools give back when they like.
        if ledger.still().calls.loose != 0 {
            return None;
        }
        if sys::now() >= until {
            IN_VAIN.fetch_add(u32::from(is_own), Ordering::Relaxed);
            return None;
        }
        if step == 0 {
            // A process that died is at nothing any more.
            let _done_or_elsewhere = ledger.look();
        } else {
            sys::wait_while(&AtomicU32::new(0), 0, step);
        }
        step = (step * 2).clamp(STEP_NANOS, STEP_NANOS_MAX);
    }
}

/// Accounting while nothing can move but by the measured call.
fn quiet(ledger: Ledger) -> Option<MemoryStamp> {
    // What pools of this process have given back is in accounting by now.
    pools::refresh();
    let still = ledger.still();
    let is_quiet = still.calls.under_way == 1 && still.calls.loose == 0 && deferred_free::none();
    (is_quiet && is_after_deaths(ledger, still.reaped) && ledger.all_live()).then_some(still)
}

/// Those, and free memory, which is read last: others have little time until the call.
fn certain(ledger: Ledger, place: DeltaContext) -> Option<Reading> {
    let before = place.free(ledger)?;
    let still = quiet(ledger)?;
    let free = place.free(ledger)?;
    (free == before && ledger.still() == still && place.free(ledger)? == free)
        .then_some(Reading { free, still })
}

/// Whether so many deaths have been known for long.
fn is_after_deaths(ledger: Ledger, reaped: u64) -> bool {
    let Some(dead) = DEAD.get(ledger.number()) else { return false };
    let (now, count) = (sys::now(), reaped.wrapping_add(1));
    if dead.count.load(Ordering::Acquire) != count {
        // In this order: a process that finds the count finds the time as well.
        dead.since.store(now, Ordering::Release);
        dead.count.store(count, Ordering::Release);
    }
    now.saturating_sub(dead.since.load(Ordering::Acquire)) >= AFTER_DEATH_NANOS
}

/// Whether for some time behind a call no process is seen that takes or gives back just as much of the card.
fn is_of_this_process_alone(now: impl Fn() -> Option<u64>, (free, given): (u64, Bytes), took: u64) -> bool {
    let until = sys::now().saturating_add(took.saturating_mul(WATCHED_TIMES).min(WATCHED_NANOS_MAX));
    let mut seen = free;
    loop {
        let Some(free) = now() else { return false };
        if free.abs_diff(seen) == given.0 {
            return false;
        }
        seen = free;
        if sys::now() >= until {
            return true;
        }
    }
}

fn is_current(ledger: Ledger) -> bool {
    let current = contexts::current().map(|current| account::of(current.device));
    matches!(current, Some(Account::Counted(other)) if other.number() == ledger.number())
}
