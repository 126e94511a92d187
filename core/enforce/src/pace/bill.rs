//! Bills finished work: charges are estimates, and the markers' device times correct them.

use super::*;

/// Launches that take this long beside other tenants are several turns of the card.
const TURNS: Nanos = Nanos::from_millis(4);
/// A sibling that reported within this time takes turns with us.
pub(super) const SIBLING_FOR: Nanos = Nanos::from_millis(250);
/// Greatest excess of charges over sure time that is remembered: sixteen processes that take turns report sixteen times the
/// stretch.
const SURE_BEHIND_MAX: Nanos = Nanos::from_millis(50);
/// Least refund of a bill that wakes waiting launches.
const REFUND_MIN: Nanos = Nanos::from_micros(500);

/// Resolution of the vendor's marker times. Each sample may be short by it, so the least of many samples is no bound without it.
const RESOLUTION: Nanos = Nanos(500);

/// Foreign turns that a stretch may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForeignTurns {
    /// No other tenant's: at most those of siblings or of other streams.
    NoTenant,
    /// Other tenants'; its launches are short.
    Others,
    /// Other tenants', within each of its launches.
    InTurns,
}

impl ForeignTurns {
    fn of(terms: PaceTerms, done: &FinishedBatch) -> Self {
        let interval = done.end.minus(done.start);
        let long = each(done, interval) >= TURNS && each(done, done.batch.charged) >= Nanos(TURNS.0 / 2);
        match done.streams {
            Streams::One if terms.own != Ppm::ALL && long && Heuristic::LongTurns.is_on() => Self::InTurns,
            Streams::One if terms.own != Ppm::ALL => Self::Others,
            Streams::One | Streams::Several => Self::NoTenant,
        }
    }
}

impl Pace {
    /// Queries the driver for finished work, and bills it.
    pub fn settle(
        &self,
        now: Nanos,
        terms: PaceTerms,
        shared: &SharedWords<'_>,
        marks: &mut Marks,
        world: &mut impl World,
    ) {
        let is_early =
            |due: Due| due.at > now && due.known == ChargeBasis::Exactly && now.minus(due.from) < LOOK_KNOWN;
        // No work is pending, or by its known cost none can be finished: no driver call is needed.
        if marks.pending_since().is_none() || (!self.has_unmarked() && marks.due().is_some_and(is_early)) {
            return;
        }
        self.settle_all(now, terms, shared, marks, world);
    }

    /// The same, without the check by known costs.
    pub fn settle_all(
        &self,
        now: Nanos,
        terms: PaceTerms,
        shared: &SharedWords<'_>,
        marks: &mut Marks,
        world: &mut impl World,
    ) {
        // Markers may show that the unmarked work is done, and time not billed by then would never be billed.
        self.bill_unmarked(now, terms, shared);
        let (mut refund, mut most) = (0_i64, room(terms, Nanos::ZERO, ChargeBasis::Not));
        let markable = self.clocked.markable(world.context(), |stream| world.may_record(stream));
        marks.settle(now, world, |done| {
            self.clocked.passed(&done, &markable);
            if done.batch.is_none() {
                return;
            }
            let billed = self.bill(now, terms, shared, &done);
            let charged = done.batch.charged.plus(done.batch.deposit).plus(done.late);
            refund = refund.saturating_add(charged.signed().saturating_sub(billed.signed()));
            let taken = done.batch.charged.plus(done.batch.deposit);
            let room = room(terms, each(&done, taken), done.batch.known);
            most.saves = most.saves.max(room.saves);
        });
        self.holds.seen(marks);
        shared.bucket.add(refund, most);
        if refund >= REFUND_MIN.signed() && shared.limited_until.load(Ordering::Relaxed) > now.0 {
            shared.wake.fetch_add(1, Ordering::AcqRel);
            world.wake_waiters();
        }
    }

    /// Computes the time of pending work beyond its charges. Beside other tenants it is charged as it accrues: the credit earned
    /// meanwhile would have no room, and a later bill would find none. Alone it may be siblings' turns, already charged to them.
    /// Work that stays pending may depend on a launch that waits here: after one launch waited the longest allowed time for it, no
    /// launch waits for it.
    pub(super) fn late(ask: &LaunchRequest<'_>, shared: &SharedWords<'_>, marks: &mut Marks) -> Option<Due> {
        shared.bucket.add(marks.take_held_late().signed(), CreditBound::MOST);
        let due = marks.due()?;
        let most = if ask.terms.is_free() { STUCK_AFTER } else { LATE_WAIT_MAX };
        let is_stuck = !Heuristic::Lateness.is_on() || ask.waited.max(due.awaited(ask.now)) >= most;
        let late = if is_stuck { Nanos::ZERO } else { lateness(ask.now, ask.terms.own, &due) };
        if late > Nanos::ZERO {
            marks.wait(ask.now);
        }
        let charged = if ask.terms.own == Ppm::ALL { Nanos::ZERO } else { late };
        shared.bucket.add(due.late.signed().saturating_sub(charged.signed()), CreditBound::MOST);
        marks.set_late(charged);
        Some(Due { late, ..due })
    }

    /// The bill of a finished batch.
    fn bill(&self, now: Nanos, terms: PaceTerms, shared: &SharedWords<'_>, done: &FinishedBatch) -> Nanos {
        let interval = done.end.minus(done.start);
        let siblings = self.has_siblings(now, shared);
        let handle = done.batch.stream;
        let others = self.open_lanes().any(|(stream, _)| stream != handle);
        let alone = terms.own == Ppm::ALL && !siblings && !others && done.streams == Streams::One;
        let counted = Nanos(shared.counted_until.fetch_max(done.end.0, Ordering::AcqRel));
        let ours = Nanos(self.counted_until.fetch_max(done.end.0, Ordering::Relaxed));
        shared.interval_nanos.fetch_add(done.end.minus(done.start.max(ours)).0, Ordering::Relaxed);
        let beside = ForeignTurns::of(terms, done);
        let varies = beside != ForeignTurns::NoTenant
            && done.batch.shape.is_some_and(|shape| self.costs.varies(shape.key));
        let (seen, charged) = (terms.own.times(interval), done.batch.charged);
        if done.batch.known == ChargeBasis::Not {
            self.unmeasured.took(each(done, seen));
        }
        let (amount, counted_until) = match (done.batch.known, beside) {
            // Too long to be measured between others' turns, or of varying length: the own part, which the vendor measures, is the
            // better estimate.
            (ChargeBasis::Not, ForeignTurns::InTurns) => (seen, Nanos::ZERO),
            (ChargeBasis::AtMost, ForeignTurns::Others | ForeignTurns::InTurns) if varies => {
                (seen, Nanos::ZERO)
            }
            // The own part is inexact for one stretch and exact for many: their mean was charged.
            (_, ForeignTurns::InTurns) => {
                (charged.clamp(Nanos(seen.0 / 2), seen.plus(seen)).min(interval), Nanos::ZERO)
            }
            // The stretch may be siblings' turns: time that a sibling reported is not charged again.
            (ChargeBasis::Not, _) => (seen, counted),
            (ChargeBasis::Exactly | ChargeBasis::AtMost, _) => (charged.min(interval), Nanos::ZERO),
        };
        let amount = self.side_by_side.beyond(done, amount);
        let paid = self.clocked.covers(done, amount);
        let stretch = Stretch { start: done.start, end: done.end, amount: amount.minus(paid), counted_until };
        let mut billed = shared.cells.charge(&stretch);
        self.clocked.marked(done, billed);
        // Without other work beside them, all launches but the last may have run in the time that is not sure.
        let charged = billed.plus(paid);
        let sure = if alone { done.end.minus(done.sure_from).max(each(done, charged)) } else { charged };
        let missing = missing(done, charged.min(sure), terms, shared);
        if missing > Nanos::ZERO {
            billed = billed.plus(shared.cells.charge(&Stretch { amount: missing, ..stretch }));
        }
        if let (true, Some(shape)) = (missing > Nanos::ZERO, &done.batch.shape) {
            // Turns of siblings hide the length of a launch; the shortfall of the bills shows it.
            self.costs.learn(shape, each(done, billed), Trust::Short);
        }
        shared.device_nanos.fetch_add(billed.0, Ordering::Relaxed);
        shared.process_nanos.fetch_add(billed.0, Ordering::Relaxed);
        match (&done.batch.shape, beside) {
            (Some(shape), ForeignTurns::Others | ForeignTurns::InTurns) => {
                let trust = if beside == ForeignTurns::InTurns { Trust::Mean } else { Trust::Bound };
                self.costs.learn_beside(shape, each(done, interval), each(done, seen), trust);
            }
            _ => self.learn(interval, done.end.minus(done.sure_from), alone, done),
        }
        if let Some(shape) = done.batch.shape {
            self.costs.ran(shape.key, done.batch.launches, each(done, billed.plus(paid)));
            if terms.is_free() { self.costs.let_go(shape.key) } else { self.costs.hold(shape.key) }
        }
        billed
    }

    fn learn(&self, interval: Nanos, sure: Nanos, alone: bool, done: &FinishedBatch) {
        let Some(shape) = done.batch.shape else { return };
        // The device can hardly have been idle, and no other process took turns.
        let exact = alone && interval.minus(sure).0 <= interval.0 / 8;
        // A stretch with others' turns is too long: the least of many is near the cost.
        let trust = if exact { Trust::Exact } else { Trust::Bound };
        // The charge, or the sure time, explains most of the stretch.
        let told = done.batch.launches > 1
            && done.batch.deposit == Nanos::ZERO
            && done.batch.charged.max(sure).0 >= interval.0 / 4 * 3;
        if let (true, Some((at, _))) = (told, self.lane(done.batch.stream)) {
            self.probes.confirmed(at, done.end);
        }
        let most = if exact { interval } else { interval.plus(RESOLUTION) };
        self.costs.learn(&shape, each(done, most), trust);
    }

    /// Whether another process of the tenant reported lately; records this process as the reporter.
    fn has_siblings(&self, now: Nanos, shared: &SharedWords<'_>) -> bool {
        let millis = (now.0 / 1_000_000) & u64::from(u32::MAX);
        let before = shared.reporter.swap(u64::from(shared.me) << 32 | millis, Ordering::AcqRel);
        let age = millis.wrapping_sub(before & u64::from(u32::MAX)) & u64::from(u32::MAX);
        let other = Heuristic::Siblings.is_on() && before != 0 && before >> 32 != u64::from(shared.me);
        if other && age.saturating_mul(1_000_000) <= SIBLING_FOR.0 {
            self.sibling_at.store(now.0, Ordering::Relaxed);
        }
        let at = self.sibling_at.load(Ordering::Relaxed);
        at != 0 && now.minus(Nanos(at)) <= SIBLING_FOR
    }
}

/// Time in which the card certainly worked for the tenant but that no charge covers: estimates were too low.
fn missing(done: &FinishedBatch, billed: Nanos, terms: PaceTerms, shared: &SharedWords<'_>) -> Nanos {
    let new = shared.sure.mark(done.sure_from, done.end);
    let own = match terms.own {
        Ppm::ALL => new,
        // The own part is a mean over stretches long and short: half of it leaves the short ones alone.
        part => Nanos(part.times(new).0 / 2),
    };
    let news = own.signed().saturating_sub(billed.signed());
    let mut missing = 0;
    // Always succeeds: the closure never says no.
    let _always = shared.sure_nanos.fetch_update(Ordering::AcqRel, Ordering::Acquire, |behind| {
        let sum = behind.clamp(-SURE_BEHIND_MAX.signed(), 0).saturating_add(news);
        missing = sum.max(0);
        Some(sum.min(0))
    });
    if Heuristic::SureTime.is_on() { Nanos(u64::try_from(missing).unwrap_or(0)) } else { Nanos::ZERO }
}

/// The time of a batch divided by its launches.
fn each(done: &FinishedBatch, time: Nanos) -> Nanos {
    Nanos(time.0 / u64::from(done.batch.launches.max(1)))
}

/// The time of pending work beyond its charges, if others' turns do not explain it.
fn lateness(now: Nanos, own: Ppm, due: &Due) -> Nanos {
    let taken = now.minus(due.from);
    let allowed = if due.known == ChargeBasis::Not { LATE_GUESSED } else { LATE_MEASURED };
    let paid = due.charged.plus(due.deposit);
    if taken.minus(paid) > allowed { own.times(taken).minus(paid) } else { Nanos::ZERO }
}
