//! Launches on account: asks the controller of [`aliquot_enforce::pace`] whether a launch may go, waits where it may not, and
//! gives the controller what it needs of the world: a clock, the vendor's events, the words of the region.
//!
//! ```text
//!  launch ─▶ its stream's card: the grant ─▶ pass ──Go──────────────────▶ vendor call
//!                │ no compute limit: vendor call     │ Ask: a clock, the region       ▲
//!                                                    ▼                                │
//!                                                 turn(): ask, futex until a deadline ┴─▶ settled(): marker behind it
//! ```
//!
//! - A launch into a capture is written down by the driver, not run: it costs nothing and never waits.
//! - Work on a stream with a name is that stream's card's, whichever context is current, if any: the driver takes its context
//!   from the stream. There its markers are recorded.
//! - Markers are recorded on the stream that a thread launches on or waits for, or on one that the process launched on and did
//!   not destroy: no handle is used that the program has given up. A captured stream gets none.
//! - One thread at a time works on the markers of a context; no thread waits for it.
//! - What the program has waited for is billed when the wait ends ([`host_wait`]); since when something is not, its slot says, so
//!   that the work of a process that died is billed by the thread that reaps it.
//! - What a forked child inherits is wiped; it begins anew.

// UNSAFETY: private state lies in a mapping, and is shared to one thread at a time by a word of its own.
#![expect(unsafe_code, reason = "private state lies in a mapping")]

mod driver;
mod elapsed;
mod fast_path;
pub(crate) mod host_wait;
mod markers;

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_enforce::bucket::Bucket;
use aliquot_enforce::busy_floor::BusyFloor;
use aliquot_enforce::cells::Cells;
use aliquot_enforce::cost::{Key, Shape};
use aliquot_enforce::pace::{Admission, LaunchRequest, Pace, PaceTerms, SharedWords, Ticket, Verdict};
use aliquot_enforce::term::MISSED;
use aliquot_enforce::units::{Nanos, Ppm};

use crate::accounting::account;
use crate::compute::captures;
use crate::grants::{self, GRANTS_MAX, Grant, Usage};
use crate::loader::vendor::{NOT_PERMITTED, SUCCESS, Target};
use crate::sys::{self, KeepErrno};

use elapsed::ElapsedWork;
use fast_path::LaunchPath;
pub(crate) use markers::InContexts;
use markers::{CONTEXTS_MAX, Context, Work};

/// Controller and markers for one grant. All zeros is a controller that knows nothing; markers are put there before `ready`.
///
/// In the first cache line is what every launch reads and hardly any thread writes; what every question writes is behind it.
#[repr(C, align(64))]
pub(crate) struct PacedCard {
    ready: AtomicU32,
    /// Number of the grant.
    number: AtomicU32,
    /// Generation of the limits that `terms` come from.
    generation: AtomicU64,
    /// [`Packed`].
    terms: AtomicU64,
    pace: Pace,
    /// The earliest of all contexts; what is owed is what the slot says.
    unbilled: ElapsedWork,
    each: [ElapsedWork; CONTEXTS_MAX],
    /// Stands in for the slot's word where the process has no slot.
    unslotted: AtomicU64,
    contexts: [Context; CONTEXTS_MAX],
}

/// When a governor was last asked for, by grant: apart from what launches touch.
static MISSED_AT: [AtomicU64; GRANTS_MAX] = [const { AtomicU64::new(0) }; GRANTS_MAX];

const MAKING: u32 = 1;
const READY: u32 = 2;

static PLACES: [AtomicPtr<PacedCard>; GRANTS_MAX] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; GRANTS_MAX];

/// A card with limited compute, as one launch needs it.
#[derive(Clone, Copy)]
pub(crate) struct Meter {
    grant: &'static Grant,
    usage: Usage,
    paced: &'static PacedCard,
}

// === finding the meter ===

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
fn paced(number: usize) -> Option<&'static PacedCard> {
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
fn make(place: &AtomicPtr<PacedCard>, number: usize) -> Option<&'static PacedCard> {
    let _errno = KeepErrno::new();
    let mut base = place.load(Ordering::Acquire);
    if base.is_null() {
        let made = sys::map_wiped_on_fork(size_of::<PacedCard>())?.cast::<PacedCard>().as_ptr();
        let first = place.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        // Two threads at once leave one mapping of untouched pages behind, once.
        base = first.err().unwrap_or(made);
    }
    // SAFETY: a mapping of one value that is never unmapped; `ready` guards its markers.
    let paced = unsafe { &*base };
    loop {
        match paced.ready.compare_exchange(0, MAKING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                for context in &paced.contexts {
                    // SAFETY: `MAKING` is this thread's; no other thread touches markers before `READY`.
                    unsafe { context.make() };
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

// === one launch ===

/// Makes a launch as the share of its stream's card allows. `shape` is asked for where `key` alone does not do. What most
/// launches do lies in the caller, with one call of the vendor's; everything else in [`launch_by_rule`].
#[inline]
pub(crate) fn launch(
    key: Key,
    target: Target,
    shape: impl FnOnce() -> Shape,
    real: impl FnOnce() -> i32,
) -> i32 {
    match passed(key, target.lane()) {
        Some(paced) => paced.answered(target, real()),
        None => launch_by_rule(target, shape, real),
    }
}

/// What most launches do: where it goes on the lease of its stream, its card's controller, which is told what was
/// [`PacedCard::answered`].
#[inline(never)]
pub(crate) fn passed(key: Key, lane: u64) -> Option<&'static PacedCard> {
    let paced = fast_path::known(lane).filter(|_| !captures::any())?;
    matches!(paced.pace.pass(key, lane), Admission::Go(_)).then_some(paced)
}

/// Whether nothing is known of a launch that is to be billed, and markers can be put around it.
#[cold]
pub(crate) fn is_first(shape: &Shape, target: Target) -> bool {
    let _errno = KeepErrno::new();
    let is_unknown = |way| matches!(way, LaunchPath::Paced(paced) if !paced.pace.knows(shape));
    is_unknown(fast_path::of_stream(target.lane()))
        && markers::may_mark(target.lane())
        && !captures::holds(target)
}

/// What a launch may do, and what is left to be done behind it.
enum LaunchPermit {
    /// It goes, and no thread bills it.
    Free,
    /// It goes on the lease of its stream.
    Charged(&'static PacedCard, Target),
    /// It goes: its turn on that stream has come.
    Turn(Meter, Ticket, Target),
    /// It does not go.
    Refused,
}

/// A launch that did not pass.
#[cold]
#[inline(never)]
pub(crate) fn launch_by_rule(
    target: Target,
    shape: impl FnOnce() -> Shape,
    real: impl FnOnce() -> i32,
) -> i32 {
    let leave = leave(target, &shape());
    if matches!(leave, LaunchPermit::Refused) {
        return NOT_PERMITTED;
    }
    let answer = real();
    leave.used(answer);
    answer
}

#[inline(never)]
fn leave(target: Target, shape: &Shape) -> LaunchPermit {
    let paced = match fast_path::of_stream(target.lane()) {
        LaunchPath::Paced(paced) => paced,
        LaunchPath::Free => return LaunchPermit::Free,
        LaunchPath::Closed => return LaunchPermit::Refused,
    };
    if captures::holds(target) {
        return LaunchPermit::Free;
    }
    match paced.pace.pass(shape.key, target.lane()) {
        Admission::Go(_) => LaunchPermit::Charged(paced, target),
        Admission::Ask => {
            let turn = paced.turn(shape, target);
            turn.map_or(LaunchPermit::Free, |(meter, ticket)| LaunchPermit::Turn(meter, ticket, target))
        }
    }
}

impl LaunchPermit {
    /// After the vendor call.
    #[inline(never)]
    fn used(&self, answer: i32) {
        match self {
            Self::Free | Self::Refused => {}
            Self::Charged(paced, target) if answer != SUCCESS => paced.pace.failed(target.lane()),
            Self::Charged(..) => {}
            Self::Turn(meter, ticket, target) => meter.settled(ticket, *target, answer),
        }
    }
}

/// Launches of one call for several cards that cost nothing where the vendor refuses them; those beyond cost what they would
/// take.
const CARDS_KEPT: usize = 8;

/// Makes a launch on several cards at once, each as its card's share allows.
pub(crate) fn launch_on_several(
    launches: impl Iterator<Item = (Shape, Target)>,
    real: impl FnOnce() -> i32,
) -> i32 {
    let mut left = [const { LaunchPermit::Free }; CARDS_KEPT];
    let mut places = left.iter_mut();
    let mut is_refused = false;
    for (shape, target) in launches {
        let leave = leave(target, &shape);
        is_refused |= matches!(leave, LaunchPermit::Refused);
        match places.next() {
            Some(place) => *place = leave,
            None => leave.used(SUCCESS),
        }
    }
    let answer = if is_refused { NOT_PERMITTED } else { real() };
    left.iter().for_each(|leave| leave.used(answer));
    answer
}

/// [`PaceTerms`] in one word, [`PART_BITS`] for each part, 0 where nothing is limited; above them the last bits of the generation
/// that they are of: two threads that read limits of which one is older leave words that do not belong together.
struct Packed(u64);

/// A part is a million at most.
const PART_BITS: u32 = 20;
const PARTS_BITS: u32 = 3 * PART_BITS;

impl Packed {
    fn of(limits: &Limits) -> Self {
        let guaranteed = match limits.policy {
            ComputePolicy::Unlimited => return Self(limits.generation << PARTS_BITS),
            ComputePolicy::BestEffort => 0,
            ComputePolicy::Cap | ComputePolicy::Burst => limits.share_ppm,
        };
        let parts = [guaranteed, limits.granted_ppm, limits.own_ppm.max(1)];
        let part = |word: u64, part| word << PART_BITS | u64::from(Ppm::new(part).parts());
        Self(parts.into_iter().fold(limits.generation, part))
    }

    const fn is_of(&self, generation: u64) -> bool {
        self.0 >> PARTS_BITS == generation << PARTS_BITS >> PARTS_BITS
    }

    fn terms(&self) -> Option<PaceTerms> {
        let part = |at: u32| {
            let bits = self.0 >> (at * PART_BITS) & ((1 << PART_BITS) - 1);
            u32::try_from(bits).map_or(Ppm::ALL, Ppm::new)
        };
        let is_limited = self.0 << (u64::BITS - PARTS_BITS) != 0;
        is_limited.then(|| PaceTerms { guaranteed: part(2), granted: part(1), own: part(0) })
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
            let ask = LaunchRequest {
                now: Nanos(now),
                shape,
                stream: target.lane(),
                terms: self.grant.lent_until().hold(Nanos(now), self.terms()?),
                waited: Nanos(now.saturating_sub(begun)),
            };
            let verdict = self.with_marks(Work::On(target.lane()), |marks, world| {
                match self.paced.pace.ask(&ask, &self.shared(), marks, world) {
                    Verdict::Go(ticket) if world.lacks_markers() => {
                        Verdict::Go(ticket.without_markers(ask.now))
                    }
                    verdict => verdict,
                }
            });
            match verdict {
                Verdict::Go(ticket) => return Some(ticket),
                Verdict::Wait(until) => {
                    self.miss_governor(Nanos(now));
                    sys::wait_while(wake, seen, until.0.saturating_sub(sys::now()).max(1));
                    now = sys::now();
                }
            }
        }
    }

    /// Asks for another governor where the one that there was is not at it.
    fn miss_governor(&self, now: Nanos) {
        if !self.grant.lent_until().is_missed(now) {
            return;
        }
        let Some(asked_at) = MISSED_AT.get(self.grant.number) else { return };
        if now.minus(Nanos(asked_at.load(Ordering::Relaxed))) >= MISSED {
            asked_at.store(now.0, Ordering::Relaxed);
            self.usage.touch();
        }
    }

    /// After the vendor call.
    #[cold]
    fn settled(&self, ticket: &Ticket, target: Target, answer: i32) {
        if answer != SUCCESS {
            let _errno = KeepErrno::new();
            self.with_marks(Work::On(target.lane()), |_, _| self.paced.pace.refused(ticket, &self.shared()));
        } else if ticket.is_marked() {
            let _errno = KeepErrno::new();
            self.with_marks(Work::On(target.lane()), |marks, world| {
                self.paced.pace.launched(Nanos(sys::now()), ticket, marks, world);
            });
        } else {
            self.paced.pace.went(Nanos(sys::now()), ticket);
        }
    }

    /// The limits in force; decoded again when their generation moved.
    fn terms(&self) -> Option<PaceTerms> {
        let (generation, paced) = (self.grant.generation(), self.paced);
        let known = paced.generation.load(Ordering::Acquire);
        let mut packed = Packed(paced.terms.load(Ordering::Acquire));
        if known == 0 || known != generation || !packed.is_of(known) {
            let limits = self.grant.limits();
            packed = Packed::of(&limits);
            paced.terms.store(packed.0, Ordering::Release);
            paced.generation.store(limits.generation, Ordering::Release);
        }
        packed.terms()
    }

    fn shared(&self) -> SharedWords<'static> {
        let view = self.usage.view;
        let slot = account::slot(self.grant);
        let (process_nanos, me) = match slot {
            Some((number, slot)) => (slot.device_nanos(), number),
            // More processes than slots: told apart by number alone.
            None => (&self.paced.unslotted, sys::pid()),
        };
        SharedWords {
            bucket: Bucket { credit: view.credit_nanos(), refilled_at: view.refilled_at() },
            cells: Cells::new(view.cells()),
            device_nanos: view.device_nanos(),
            process_nanos,
            interval_nanos: view.interval_nanos(),
            counted_until: view.counted_until(),
            sure: BusyFloor::new(view.sure()),
            sure_nanos: view.sure_nanos(),
            reporter: view.reporter(),
            active_until: view.active_until(),
            limited_until: view.limited_until(),
            demand: view.demand(),
            wake: view.wake(),
            me,
        }
    }
}

impl PacedCard {
    /// After the vendor call of a launch that passed.
    #[inline]
    pub(crate) fn answered(&self, target: Target, answer: i32) -> i32 {
        if answer != SUCCESS {
            self.pace.failed(target.lane());
        }
        answer
    }

    /// Waits for a launch's turn.
    #[cold]
    fn turn(&self, shape: &Shape, target: Target) -> Option<(Meter, Ticket)> {
        let number = usize::try_from(self.number.load(Ordering::Acquire)).ok()?;
        let meter = of_grant(number)?;
        Some((meter, meter.turn(shape, target)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_abi::limits::{FailMode, ManagedPolicy, MemoryLimit, Pages, Text};

    #[test]
    fn terms_are_known_by_the_generation_that_they_are_of() {
        let limits = |generation, policy| Limits {
            generation,
            memory: MemoryLimit::Unlimited,
            share_ppm: 100_000,
            granted_ppm: 1_000_000,
            own_ppm: 0,
            policy,
            priority: 1,
            fail_mode: FailMode::Closed,
            managed: ManagedPolicy::Charge,
            context_bytes: 0,
            pages: Pages::ASSUMED,
            card: Text::new("GPU-0").unwrap(),
            claim: Text::new("c").unwrap(),
        };
        for generation in [1, 15, 16, 17, u64::MAX] {
            let own = Ppm::new(1);
            let burst = Packed::of(&limits(generation, ComputePolicy::Burst));
            let terms = PaceTerms { guaranteed: Ppm::new(100_000), granted: Ppm::ALL, own };
            assert_eq!((burst.terms(), burst.is_of(generation)), (Some(terms), true));
            let best = Packed::of(&limits(generation, ComputePolicy::BestEffort));
            assert_eq!(best.terms(), Some(PaceTerms { guaranteed: Ppm::ZERO, ..terms }));
            let none = Packed::of(&limits(generation, ComputePolicy::Unlimited));
            assert_eq!((none.terms(), none.is_of(generation)), (None, true));
            // Of a change while another thread reads what was before.
            for of in [&burst, &best, &none] {
                assert!(!of.is_of(generation - 1) && !of.is_of(generation.wrapping_add(1)));
            }
        }
    }
}
