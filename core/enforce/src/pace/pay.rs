//! The payment of a launch: from the process's lease, else from the tenant's credit.

use super::*;

/// Longest wait that ignores corrections by the agent.
const CORRECTED_WITHIN: Nanos = Nanos::from_millis(10);
/// How long a process is taken to go on launching.
const ACTIVE_FOR: Nanos = Nanos::from_millis(4);

/// What a launch is charged, and up to what credit is saved for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Price {
    pub(super) cost: Nanos,
    /// What it may take beyond that, until its bill says.
    pub(super) deposit: Nanos,
    pub(super) room: CreditBound,
    /// For an unknown cost: how many launches of unknown cost may be on the card already.
    pub(super) beside: Option<usize>,
}

impl Price {
    pub(super) fn whole(&self) -> Nanos {
        self.cost.plus(self.deposit)
    }

    /// Where no bill gives it back soon.
    pub(super) fn without_deposit(self) -> Self {
        Self { deposit: Nanos::ZERO, ..self }
    }

    /// How long another thread that is at the markers is waited for.
    pub(super) fn patience(&self, known: ChargeBasis) -> Nanos {
        match self.deposit {
            _ if must_mark(self.cost, known) => MARKS_WAIT_MAX,
            Nanos::ZERO => Nanos::ZERO,
            _ => MARKS_WAIT_SHORT,
        }
    }
}

impl Pace {
    /// Whether anything is known of such launches.
    #[must_use]
    pub fn knows(&self, shape: &Shape) -> bool {
        self.costs.estimate(shape) != Estimate::Unknown
    }

    /// What a launch is charged, and how well that is known.
    pub(super) fn price(&self, ask: &LaunchRequest<'_>) -> (Price, ChargeBasis) {
        let first = self.unmeasured.next();
        let (cost, known, beside) = match self.costs.estimate(ask.shape) {
            Estimate::Measured(cost, Trust::Exact) => (cost, ChargeBasis::Exactly, None),
            Estimate::Measured(cost, Trust::Bound | Trust::Short | Trust::Mean) => {
                (cost, ChargeBasis::AtMost, None)
            }
            Estimate::Guessed(cost) => (cost.clamp(GUESS_MIN, GUESS_MAX), ChargeBasis::Not, None),
            Estimate::Unknown => (first.charge, ChargeBasis::Not, Some(first.beside)),
        };
        let deposit = if must_mark(cost, known) { Nanos::ZERO } else { self.deposit(ask, cost) };
        (Price { cost, deposit, room: room(ask.terms, cost.plus(deposit), known), beside }, known)
    }

    /// The deposit of a launch beyond its cost, as it may be far longer. Alone, only the ungranted part of such an excess is too
    /// much.
    fn deposit(&self, ask: &LaunchRequest<'_>, cost: Nanos) -> Nanos {
        if !Heuristic::Deposits.is_on() {
            return Nanos::ZERO;
        }
        let beyond = self.costs.beyond(ask.shape.key, cost);
        if ask.terms.own == Ppm::ALL { beyond.minus(ask.terms.granted.times(beyond)) } else { beyond }
    }

    /// Puts the process's lease at a lane's disposal, as far as its next marker.
    pub(super) fn lend(&self, lane: &Lane) {
        let lease = self.lease.load(Ordering::Relaxed).min(lane.room(MARK_EVERY)).max(0);
        if lease > 0 {
            self.lease.fetch_sub(lease, Ordering::AcqRel);
            lane.lend(lease);
        }
    }

    pub(super) fn take_back(&self, left: i64) {
        if left > 0 {
            self.lease.fetch_add(left, Ordering::AcqRel);
        }
    }

    /// Takes the cost: from the lease, else from the bucket.
    pub(super) fn pay(
        &self,
        ask: &LaunchRequest<'_>,
        price: Price,
        due: Option<Due>,
        shared: &SharedWords<'_>,
        world: &mut impl World,
    ) -> Result<(), Nanos> {
        let LaunchRequest { now, terms, waited, .. } = *ask;
        publish_active(now, price.cost, shared, world);
        let (cost, room) = (price.whole(), price.room);
        let small = cost < QUANTUM;
        if small && self.lease.fetch_sub(cost.signed(), Ordering::AcqRel) >= cost.signed() {
            return Ok(());
        }
        if small {
            self.lease.fetch_add(cost.signed(), Ordering::AcqRel);
        }
        shared.bucket.refill(now, terms.granted, room);
        let amount = if small { QUANTUM } else { cost };
        let spent = due.filter(|_| terms.own == Ppm::ALL).map_or(Nanos::ZERO, |due| due.late);
        self.side_by_side.asks(now, ask.stream);
        let back = self.expected_back(now, due).signed();
        let credit = shared.bucket.credit().saturating_sub(spent.signed()).saturating_add(back);
        let least = self.least_credit(ask, cost);
        let paid =
            shared.bucket.take(amount, least.saturating_add(spent.signed()).saturating_sub(back)).is_ok();
        self.side_by_side.paid(paid);
        if paid || waited >= WAIT_MAX {
            if !paid {
                shared.bucket.owe(amount);
            }
            self.lease.fetch_add(amount.minus(cost).signed(), Ordering::AcqRel);
            return Ok(());
        }
        let aim = if small { QUANTUM.signed() } else { 1 };
        let aim = aim.max(least);
        let lacking = u64::try_from(aim.saturating_sub(credit)).unwrap_or(1);
        let mut wait = terms.granted.earns(Nanos(lacking)).min(WAIT_STEP);
        if Heuristic::EarlyWake.is_on() && terms.own != Ppm::ALL && wait > CORRECTED_WITHIN {
            // The agent corrects bills meanwhile: come early and see.
            wait = CORRECTED_WITHIN.max(Nanos(wait.0 / 4 * 3));
        }
        if let Some(due) = due {
            // A bill may come any moment with a refund, for which the whole tenant waits: query soon, then less often.
            let taken = now.minus(due.from);
            let least = match due.known {
                ChargeBasis::Exactly if due.late == Nanos::ZERO => LOOK_KNOWN,
                _ => LOOK_AFTER,
            };
            let most = LOOK_KNOWN.max(Nanos(taken.0 / 64));
            wait = wait.min(Nanos(taken.0 / 8).clamp(least, most));
        }
        let wait = self.look_at_unmarked(now).map_or(wait, |look| wait.min(look));
        let until = now.plus(wait.max(LOOK_AFTER));
        publish_limited(now, until, shared, world);
        Err(until)
    }
}

/// Whether a marker has to be right behind such a launch.
pub(super) fn must_mark(cost: Nanos, known: ChargeBasis) -> bool {
    known == ChargeBasis::Not || cost >= QUANTUM
}

/// Up to what credit is saved for launches of that cost: beside other tenants a long one ends late or early by their turns, and
/// what was saved for it is not lost to a short one that goes before.
pub(super) fn room(terms: PaceTerms, cost: Nanos, known: ChargeBasis) -> CreditBound {
    match terms.own {
        Ppm::ALL => CreditBound::of(CREDIT_MAX),
        _ if !Heuristic::SavedRoom.is_on() => CreditBound::of(CREDIT_MAX),
        _ if known == ChargeBasis::Not => CreditBound { saves: CREDIT_MAX, keeps: SAVED_MAX },
        _ => CreditBound { saves: cost.clamp(CREDIT_MAX, SAVED_MAX), keeps: SAVED_MAX },
    }
}

pub(super) fn publish_active(now: Nanos, cost: Nanos, shared: &SharedWords<'_>, world: &mut impl World) {
    let until = now.plus(ACTIVE_FOR).plus(cost.min(WAIT_STEP));
    let before = shared.active_until.load(Ordering::Relaxed);
    if before < until.0 || before > until.plus(WAIT_STEP).0 {
        shared.active_until.store(until.0, Ordering::Release);
    }
    if before < now.0 {
        shared.demand.fetch_add(1, Ordering::AcqRel);
        world.wake_agent();
    }
}

pub(super) fn publish_limited(now: Nanos, until: Nanos, shared: &SharedWords<'_>, world: &mut impl World) {
    let before = shared.limited_until.load(Ordering::Relaxed);
    if before < until.0 || before > now.plus(WAIT_STEP).0 {
        shared.limited_until.store(until.0, Ordering::Release);
    }
    if before < now.0 {
        shared.demand.fetch_add(1, Ordering::AcqRel);
        world.wake_agent();
    }
}
