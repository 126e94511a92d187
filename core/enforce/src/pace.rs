//! The compute controller: decides when a launch may start, and accounts for its cost.
//!
//! # Glossary
//!
//! | word | meaning | unit |
//! |---|---|---|
//! | granted | share of the card's time that the tenant may use now, from its limits | ppm |
//! | credit | device time that may still be used before launches wait ([`crate::bucket`]) | device ns |
//! | cost | what a launch is expected to take ([`crate::cost`]) | device ns |
//! | charge | cost taken from the credit ahead of the launch | device ns |
//! | bill | what markers showed that it took ([`crate::marks`]); charge − bill goes back | device ns |
//! | lease | credit that this process took ahead, so that most launches touch private memory alone | device ns |
//! | lane | a stream's launches since its last marker | |
//! | own part | of the time with work on the card, the part in which the card worked for the tenant, from its limits | ppm |
//! | room | up to what credit is saved: [`CREDIT_MAX`], or what one launch costs beside other tenants | device ns |
//!
//! ```text
//!   launch ─▶ pass ──Go──────────────────────────▶ vendor call
//!              │Ask                                     ▲
//!              ▼                                        │
//!             ask: settle markers, refill, take ──Go────┴─▶ launched: marker behind it
//!              │Wait: futex with deadline, then ask again
//! ```
//!
//! The charge is time, never blocks. The driver's measurement is final; estimates only bridge the time until then, so a wrong
//! one costs milliseconds, once. A launch of unknown cost is charged the whole credit, and the next waits for its bill; a few go
//! at once if earlier ones were short (module `ahead`). A launch known to be long is charged before it runs and marked right
//! behind.
//!
//! The controller is a plain integrator: credit rises at the granted share and falls by use. It has no gains to tune and no
//! period. Its error over a window is at most the savable credit, plus leases, plus work between two markers: [`CREDIT_MAX`],
//! [`QUANTUM`] for each process, [`MARK_EVERY`]. A longer kernel makes debt, and is exact over windows with several of its turns.
//! Work of several streams (`pace/side_by_side.rs`) may go ahead of that by what its bills are expected to give back.
//!
//! Bounds, whatever the shared words hold: no wait without a deadline of at most [`WAIT_STEP`], and after [`WAIT_MAX`] a
//! launch goes on credit.

mod ahead;
mod bill;
mod clocked;
mod holds;
mod lane;
mod pay;
mod probe;
mod rest;
mod side_by_side;
mod ticket;

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::ablation::Heuristic;
use crate::bucket::{Bucket, CREDIT_MAX, CreditBound, SAVED_MAX};
use crate::busy_floor::BusyFloor;
use crate::cells::{Cells, Stretch};
use crate::cost::{Costs, Estimate, Key, Shape, Trust};
use crate::marks::{BatchStart, ChargeBasis, Due, Events, FinishedBatch, Marks, Recorded, Streams};
use crate::unbilled::{self, ComputeAccounting};
use crate::units::{Nanos, Ppm};
use ahead::UnmeasuredLaunches;
use clocked::ClockBilling;
use holds::Holds;
use lane::{BOUNDED_COST, Lane, UNKNOWN_COST};
use pay::{Price, must_mark, publish_active, publish_limited, room};
use probe::{ProbeInput, Probes};

pub use clocked::UnmarkedWork;
pub use rest::{UnbilledWork, WaitScope};
use side_by_side::SideBySide;
use ticket::LaunchCount;
pub use ticket::Ticket;

/// Credit that a process takes at a time.
pub const QUANTUM: Nanos = Nanos::from_micros(500);
/// Charges on a stream after which a marker is put behind them.
pub const MARK_EVERY: Nanos = Nanos::from_millis(1);
/// Longest single wait; then the launch asks again.
pub const WAIT_STEP: Nanos = Nanos::from_millis(1_000);
/// Longest wait of one launch.
pub const WAIT_MAX: Nanos = Nanos::from_millis(1_800_000);

/// Charge of a launch of unknown cost: the greatest credit, so that the next one waits for its bill.
const UNKNOWN: Nanos = CREDIT_MAX;
/// Least charge of a shape that never ran.
const GUESS_MIN: Nanos = Nanos::from_millis(1);
/// Greatest charge of such a shape: a larger grid may take as long, hardly longer.
const GUESS_MAX: Nanos = Nanos::from_millis(1_000);
/// How much later than its charges say a process's work may be done before more of it waits; the time counts as used.
const LATE_GUESSED: Nanos = Nanos::from_millis(1);
/// The same for work that was measured before: turns of other processes make it late as a rule.
const LATE_MEASURED: Nanos = Nanos::from_millis(50);
/// Longest wait for work that does not get done: it may be waiting for the very launch that waits here.
const LATE_WAIT_MAX: Nanos = Nanos::from_millis(20_000);
/// The same if only the launch-ahead depth is at stake.
const STUCK_AFTER: Nanos = Nanos::from_millis(500);
/// First query of late work; each further one after an eighth of its lateness.
const LOOK_AFTER: Nanos = Nanos::from_micros(50);
/// First query of work with a known cost, which may occasionally be less.
const LOOK_KNOWN: Nanos = Nanos::from_millis(2);
/// Longest wait for another thread that uses the markers; then the launch goes on without them.
const MARKS_WAIT_MAX: Nanos = Nanos::from_millis(25);
/// The same if only a deposit is lost.
const MARKS_WAIT_SHORT: Nanos = Nanos::from_millis(1);
/// A shorter launch that fills its stream's batch has the marker before it, not behind it.
const MARKED_BEFORE: Nanos = Nanos(MARK_EVERY.0 / 16);
/// Streams whose launches are told apart.
const LANES: usize = 16;

/// The tenant's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceTerms {
    /// Share that the tenant gets on demand.
    pub guaranteed: Ppm,
    /// Share that may be used.
    pub granted: Ppm,
    /// Own part.
    pub own: Ppm,
}

impl PaceTerms {
    /// Whether the tenant is granted the whole card and is alone on it.
    const fn is_free(&self) -> bool {
        self.granted.parts() == Ppm::ALL.parts() && self.own.parts() == Ppm::ALL.parts()
    }
}

/// The words that all processes of the tenant share.
#[derive(Clone, Copy, Debug)]
pub struct SharedWords<'a> {
    /// Credit.
    pub bucket: Bucket<'a>,
    /// Recent device time.
    pub cells: Cells<'a>,
    /// Device time used by the tenant.
    pub device_nanos: &'a AtomicU64,
    /// Device time used by this process.
    pub process_nanos: &'a AtomicU64,
    /// Time in which the tenant's processes had work on the card, each by itself.
    pub interval_nanos: &'a AtomicU64,
    /// Up to when any process reported.
    pub counted_until: &'a AtomicU64,
    /// Time that the card certainly worked for the tenant.
    pub sure: BusyFloor<'a>,
    /// Sure time that was not charged yet.
    pub sure_nanos: &'a AtomicI64,
    /// The process that reported last, and when: `pid << 32 | milliseconds`.
    pub reporter: &'a AtomicU64,
    /// Until when the tenant is active.
    pub active_until: &'a AtomicU64,
    /// Until when its launches wait.
    pub limited_until: &'a AtomicU64,
    /// Futex word that the agent waits on.
    pub demand: &'a AtomicU32,
    /// Futex word that waiting launches wait on.
    pub wake: &'a AtomicU32,
    /// Number of this process, unique among its siblings.
    pub me: u32,
}

/// Actions of the controller on its surroundings.
pub trait World: Events {
    /// Wakes the agent, after the demand word changed.
    fn wake_agent(&mut self);
    /// Wakes all launches that wait for credit, after the wake word changed.
    fn wake_waiters(&mut self);
    /// The unique number of the context that launches go to; 0: unknown.
    fn context(&self) -> u64 {
        1
    }
}

/// One launch that wants to go.
#[derive(Clone, Copy, Debug)]
pub struct LaunchRequest<'a> {
    /// Monotonic clock.
    pub now: Nanos,
    /// The launch.
    pub shape: &'a Shape,
    /// Its stream.
    pub stream: u64,
    /// The limits.
    pub terms: PaceTerms,
    /// How long it has been waiting.
    pub waited: Nanos,
}

/// Answer of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Launch now; this was charged.
    Go(Nanos),
    /// See [`Pace::ask`].
    Ask,
}

/// Answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Launch now, then call [`Pace::launched`] or [`Pace::failed`].
    Go(Ticket),
    /// Wait on the wake word until then at the latest, and ask again.
    Wait(Nanos),
}

/// The controller of one process and card. Private memory; any number of threads.
///
/// In this field order, all words that every ask writes are in one cache line behind the lanes.
#[derive(Debug)]
#[repr(C)]
pub struct Pace {
    costs: Costs,
    lanes: [Lane; LANES],
    lease: AtomicI64,
    sibling_at: AtomicU64,
    /// Up to when time with work is counted.
    counted_until: AtomicU64,
    /// One bit for each lane that ever opened: most processes launch on few streams, and scans visit only these.
    opened: AtomicU32,
    unmeasured: UnmeasuredLaunches,
    clocked: ClockBilling,
    probes: Probes,
    holds: Holds,
    side_by_side: SideBySide,
}

const fn lane_of(stream: u64) -> usize {
    // Handles are addresses or small numbers: the multiplier spreads both.
    (stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize
}

const _: () = assert!(LANES == 16, "four bits of the product");

// === impl Pace ===

impl Pace {
    /// Knows nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            costs: Costs::new(),
            lanes: [const { Lane::new() }; LANES],
            lease: AtomicI64::new(0),
            sibling_at: AtomicU64::new(0),
            counted_until: AtomicU64::new(0),
            opened: AtomicU32::new(0),
            unmeasured: UnmeasuredLaunches::new(),
            clocked: ClockBilling::new(),
            probes: Probes::new(),
            holds: Holds::new(),
            side_by_side: SideBySide::new(),
        }
    }

    /// One of two places: where the stream is, else one that is closed.
    fn lane(&self, stream: u64) -> Option<(usize, &Lane)> {
        let (first, second) = (lane_of(stream), lane_of(stream) ^ 1);
        let (one, other) = (self.lanes.get(first)?, self.lanes.get(second)?);
        let is_here = |lane: &Lane| lane.is_of(stream);
        if is_here(one) || (!is_here(other) && !one.is_open()) {
            Some((first, one))
        } else {
            Some((second, other))
        }
    }

    /// The fast path: loads and stores of private memory, no clock. A lane with something left is open.
    #[inline(always)]
    pub fn pass(&self, key: Key, stream: u64) -> Admission {
        let Some(cost) = self.costs.measured(key) else { return Admission::Ask };
        let at = lane_of(stream);
        for at in [at, at ^ 1] {
            let Some(lane) = self.lanes.get(at) else { return Admission::Ask };
            if lane.is_of(stream) {
                let taken = cost < QUANTUM && lane.take(key, cost.signed());
                return if taken { Admission::Go(cost) } else { Admission::Ask };
            }
        }
        Admission::Ask
    }

    /// The vendor refused a launch on that stream that passed. Its batch was charged for it, and may have been closed since: the
    /// bill gives the excess back, once. The launch that opened a batch had asked, and is in it.
    pub fn failed(&self, stream: u64) {
        if let Some((_, lane)) = self.lane(stream).filter(|(_, lane)| lane.is_open_for(stream)) {
            lane.uncount(1);
        }
    }

    /// Returns the charge of a refused launch: now, or with the bill if another thread closed its batch meanwhile. Only the thread
    /// that holds the markers calls it.
    pub fn refused(&self, ticket: &Ticket, shared: &SharedWords<'_>) {
        if let Some(LaunchCount { stream, at, opened }) = ticket.counted {
            let is_its = |lane: &&Lane| lane.is_open_for(stream) && lane.opened() == opened;
            let Some(lane) = self.lanes.get(at).filter(is_its) else { return };
            lane.give(-ticket.charged.signed());
            lane.withdraw(ticket.deposit);
            lane.uncount(0);
            if lane.is_empty() {
                self.empty(lane);
            }
        }
        // No more than was taken at the ask.
        shared.bucket.add(ticket.charged.plus(ticket.deposit).signed(), CreditBound::MOST);
    }

    /// Decides about one launch. `marks` are those of the current context; `None`: another thread holds them.
    pub fn ask(
        &self,
        ask: &LaunchRequest<'_>,
        shared: &SharedWords<'_>,
        marks: Option<&mut Marks>,
        world: &mut impl World,
    ) -> Verdict {
        let (price, known) = self.price(ask);
        let (cost, must_mark) = (price.cost, must_mark(price.cost, known));
        self.bill_unmarked(ask.now, ask.terms, shared);
        let Some(marks) = marks else {
            if ask.waited < price.patience(known) {
                return Verdict::Wait(ask.now.plus(LOOK_AFTER));
            }
            return self.ask_without_marks(ask, price.without_deposit(), known, shared, world);
        };
        self.settle(ask.now, ask.terms, shared, marks, world);
        self.mark_unmarked(ask.now, ask.stream, marks, world);
        let Some((at, lane)) = self.lane(ask.stream) else {
            return Verdict::Go(Ticket::uncounted(price.without_deposit()));
        };
        if lane.is_open_for(ask.stream) {
            self.take_back(lane.reclaim());
        }
        let due = Self::late(ask, shared, marks);
        let price = if due.is_some_and(|due| due.awaited(ask.now) >= STUCK_AFTER) {
            price.without_deposit()
        } else {
            price
        };
        let may = Self::catch_up(ask, price, due, shared, (&mut *marks, &mut *world));
        if let Err(until) = may.and_then(|()| self.pay(ask, price, due, shared, world)) {
            return self.rest(ask, price, lane, until, marks, world);
        }
        let streams = if known == ChargeBasis::AtMost { marks.streams(ask.stream) } else { Streams::One };
        let which = ProbeInput {
            differs: streams == Streams::Several || lane.differs(ask.shape.key),
            own: ask.terms.own,
        };
        let alone = must_mark
            || if marks.is_crowded() {
                self.probes.put_far_off(lane);
                false
            } else {
                self.probes.due(at, lane, ask.now, which)
            };
        let mut begin = if alone { BatchStart::Own } else { BatchStart::Last };
        // A short launch that fills its lane's batch begins the next: one ask for both, not one for each.
        let is_full =
            Heuristic::MarkerBefore.is_on() && cost < MARKED_BEFORE && lane.taken().plus(cost) > MARK_EVERY;
        if (alone || is_full) && lane.is_open_for(ask.stream) {
            self.mark(ask.now, lane, marks, world);
            begin = BatchStart::Last;
        }
        if !lane.is_open_for(ask.stream) {
            self.empty(lane);
            self.opens(at);
            lane.open_for(ask.stream, ask.shape);
            marks.open(ask.now, ask.stream, self.holds.take(ask.stream).unwrap_or(begin), world);
        }
        lane.give(cost.signed());
        lane.deposit(price.deposit);
        lane.count(ask.shape.key);
        match known {
            ChargeBasis::Not => lane.set(UNKNOWN_COST),
            ChargeBasis::AtMost => lane.set(BOUNDED_COST),
            ChargeBasis::Exactly => {}
        }
        let due = alone || lane.taken() >= MARK_EVERY;
        if !due {
            self.lend(lane);
        }
        let counted = Some(LaunchCount { stream: ask.stream, at, opened: lane.opened() });
        let mark = due.then_some(at);
        Verdict::Go(Ticket { charged: cost, deposit: price.deposit, counted, mark, unmarked: None })
    }

    fn ask_without_marks(
        &self,
        ask: &LaunchRequest<'_>,
        price: Price,
        known: ChargeBasis,
        shared: &SharedWords<'_>,
        world: &mut impl World,
    ) -> Verdict {
        if let Err(until) = self.pay(ask, price, None, shared, world) {
            return Verdict::Wait(until);
        }
        if let Some((_, lane)) = self.lane(ask.stream) {
            self.probes.put_off(lane);
        }
        let place = UnmarkedWork::Stream { context: world.context(), stream: ask.stream };
        let unmarked = (known == ChargeBasis::Not).then_some((ask.now, place));
        Verdict::Go(Ticket { unmarked, ..Ticket::uncounted(price) })
    }

    /// A launch waits, so its stream will idle: the work until now becomes a batch of its own. Batches with deposits get their
    /// markers as well, as deposits come back with bills; so do those of a program that uses several streams, as only stretches
    /// without idle time tell what ran side by side.
    fn rest(
        &self,
        ask: &LaunchRequest<'_>,
        price: Price,
        lane: &Lane,
        mut until: Nanos,
        marks: &mut Marks,
        world: &mut impl World,
    ) -> Verdict {
        let is_several = !ask.terms.is_free() && self.side_by_side.is_used(ask.now);
        // In the order in which they opened: of what ran one after the other, the first is billed first.
        while let Some((_, lane)) = self
            .open_lanes()
            .filter(|(stream, lane)| {
                (lane.deposited() > Nanos::ZERO || (is_several && !marks.opened_behind_hold(*stream)))
                    && marks.knows(*stream)
                    && world.may_record(*stream)
            })
            .min_by_key(|(stream, _)| marks.opened_at(*stream))
        {
            self.mark(ask.now, lane, marks, world);
            until = until.min(ask.now.plus(LOOK_AFTER));
        }
        if price.deposit > Nanos::ZERO {
            marks.wait(ask.now);
        }
        if lane.is_open_for(ask.stream) {
            self.mark(ask.now, lane, marks, world);
        }
        if marks.probe(ask.now, ask.stream, world) == Recorded::Yes {
            until = until.min(ask.now.plus(LOOK_AFTER));
        }
        Verdict::Wait(until)
    }

    /// Makes room for another stream.
    fn empty(&self, lane: &Lane) {
        let (was_open, (batch, left)) = (lane.is_open(), lane.close());
        // The rest of a closed lane comes from a thread that launched while another closed it.
        self.take_back(if was_open { left } else { 0 });
        self.take_back(batch.deposit.signed());
    }

    /// After the vendor call of a launch with a ticket; it went to the card at `now` at the latest. A launch without a marker is
    /// billed by the clock from its earliest start. A launch that the vendor refuses is no work.
    pub fn went(&self, now: Nanos, ticket: &Ticket) {
        if let Some((since, place)) = ticket.unmarked {
            self.unmarked(since, now, place);
        }
    }

    /// The same, and records the marker that is due. `now` is a time after the call.
    pub fn launched(&self, now: Nanos, ticket: &Ticket, marks: Option<&mut Marks>, world: &mut impl World) {
        self.went(now, ticket);
        if let (Some(at), Some(marks)) = (ticket.mark, marks)
            && let Some(lane) = self.lanes.get(at)
        {
            // Without the markers the lane stays as it is, and the next launch on it comes by here.
            self.mark(now, lane, marks, world);
        }
    }

    fn mark(&self, now: Nanos, lane: &Lane, marks: &mut Marks, world: &mut impl World) {
        let (batch, left) = lane.close();
        self.take_back(left);
        let opened_at = marks.opened_at(batch.stream).unwrap_or(now);
        if batch.launches > 0 && marks.close(now, batch, world) == Recorded::Yes {
            return;
        }
        // No bill gives it back.
        self.take_back(batch.deposit.signed());
        if batch.launches > 0 && (batch.known == ChargeBasis::Not || marks.is_empty()) {
            self.unmarked(
                opened_at,
                now,
                UnmarkedWork::Stream { context: world.context(), stream: batch.stream },
            );
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}
