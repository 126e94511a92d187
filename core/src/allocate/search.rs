//! The search: depth first over claims, requests, alternatives and devices; the first full solution wins.
//!
//! ```text
//!   claim 0 ─▶ request 0 ─▶ device, device, … ─▶ request 1 ─▶ … ─▶ claim 1 ─▶ … ─▶ found
//!      ▲           │ firstAvailable: alternative after alternative
//!      └───────────┴── nothing fits: give back the last device and try the next one
//! ```
//!
//! Devices of one request are taken in the order of the list, so combinations are tried, not permutations. An
//! allocation holds at most 32 results: running over that is remembered apart from not fitting, so that the callers
//! can turn to an alternative that needs fewer devices instead of trying every other device. In a long search a device
//! is passed over if an indistinguishable one has failed in the same place ([`super::twins`]).
//!
//! Everything taken is on one trail; the state is as before when the trail is empty again.

use super::candidates::{Candidate, CandidateKind, CandidateSet, Lane};
use super::claim_plan::{ClaimPlan, DeviceCount, Form};
use super::constraints::AttributeValues;
use super::demand::{Demand, DemandNo};
use super::index::{CounterUse, EntryNo, Index};
use super::options::Release;
use super::refusal::RESULTS_MAX;
use super::state::{DeviceState, Obstacle, State};
use super::twins::{TwinPolicy, Twins};
use crate::dra::{Access, Sharing};

/// A device taken, in the order of taking: the result, and all that is needed to give it back.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReservedDevice {
    pub(super) claim: usize,
    pub(super) request: usize,
    pub(super) alternative: usize,
    pub(super) entry: EntryNo,
    pub(super) access: Access,
    demand: DemandNo,
    sharing: Sharing,
    counters: CounterUse,
}

/// Why a search ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// More than 32 results for a claim, whatever devices are chosen.
    TooManyResults,
    /// A selector cannot be evaluated on a device that was reached.
    Broken { claim: usize, request: usize, alternative: usize, selector: usize, entry: EntryNo },
    /// An amount cannot be represented on a device that was reached (from 1.37).
    OutOfRange { claim: usize, request: usize, alternative: usize, entry: EntryNo },
    /// A constraint forbids a device that mode `All` must have.
    Constraint { claim: usize, request: usize, alternative: usize, constraint: usize, entry: EntryNo },
    /// Too many steps.
    Bound,
}

/// A search in progress.
pub(super) struct PlacementSearch<'a> {
    pub(super) index: &'a Index,
    pub(super) demands: &'a [Demand],
    pub(super) attributes: &'a AttributeValues,
    pub(super) state: &'a mut State,
    pub(super) sets: &'a mut [CandidateSet],
    pub(super) lanes: &'a mut [Lane],
    pub(super) claims: &'a mut [ClaimPlan],
    pub(super) steps_left: u64,
    pub(super) passing: TwinPolicy,
    pub(super) trail: Vec<ReservedDevice>,
    pub(super) results: Vec<usize>,
}

/// What became of one candidate.
enum CandidateOutcome {
    Taken,
    No(Obstacle),
}

#[derive(Clone, Copy)]
struct SearchPosition {
    claim: usize,
    request: usize,
    alternative: usize,
}

// === impl PlacementSearch ===

impl PlacementSearch<'_> {
    /// Runs the search. The trail is left as found; call [`Self::unwind`] after reading it.
    pub(super) fn run(&mut self) -> Result<bool, Stop> {
        self.claim(0)
    }

    /// Gives everything back.
    pub(super) fn unwind(&mut self) {
        while !self.trail.is_empty() {
            self.give_back();
        }
    }

    fn claim(&mut self, claim: usize) -> Result<bool, Stop> {
        if claim >= self.claims.len() { Ok(true) } else { self.request(claim, 0) }
    }

    fn request(&mut self, claim: usize, request: usize) -> Result<bool, Stop> {
        let Some(plan) = self.claims[claim].requests.get(request) else {
            return match self.claim(claim + 1) {
                // Another choice here may leave a later claim an alternative with fewer devices.
                Err(Stop::TooManyResults) => Ok(false),
                other => other,
            };
        };
        let alternatives = plan.alternatives.len();
        if plan.form == Form::Exactly {
            return self.device(SearchPosition { claim, request, alternative: 0 }, 0, 0);
        }
        let mut all_too_many = true;
        for alternative in 0..alternatives {
            match self.device(SearchPosition { claim, request, alternative }, 0, 0) {
                Err(Stop::TooManyResults) => {}
                Ok(false) => all_too_many = false,
                found_or_stop => return found_or_stop,
            }
        }
        if all_too_many { Err(Stop::TooManyResults) } else { Ok(false) }
    }

    fn device(&mut self, at: SearchPosition, taken: usize, from: usize) -> Result<bool, Stop> {
        self.step()?;
        let plan = &self.claims[at.claim].requests[at.request].alternatives[at.alternative];
        let wanted = plan.wanted.count();
        let all = match &plan.wanted {
            DeviceCount::Count(_) => None,
            DeviceCount::All(positions) if positions.is_empty() => return Ok(false),
            DeviceCount::All(positions) => Some(positions.get(taken).copied()),
        };
        if taken >= wanted {
            return self.request(at.claim, at.request + 1);
        }
        if self.results[at.claim] + wanted - taken > RESULTS_MAX {
            return Err(Stop::TooManyResults);
        }
        match all.flatten() {
            Some(position) => self.this_device(at, taken, position),
            None => self.any_device(at, taken, from),
        }
    }

    /// Mode `All`: this device and no other.
    fn this_device(&mut self, at: SearchPosition, taken: usize, position: usize) -> Result<bool, Stop> {
        let plan = &self.claims[at.claim].requests[at.request].alternatives[at.alternative];
        let candidate = self.sets[self.lanes[plan.lane.at()].set.at()].list[position];
        if candidate.kind == CandidateKind::Tainted || !self.must_take(at, candidate)? {
            return Ok(false);
        }
        let found = self.device(at, taken + 1, 0);
        if found != Ok(true) {
            self.give_back();
        }
        found
    }

    fn any_device(&mut self, at: SearchPosition, taken: usize, from: usize) -> Result<bool, Stop> {
        let plan = &self.claims[at.claim].requests[at.request].alternatives[at.alternative];
        let (lane, access) = (plan.lane.at(), plan.access);
        let set = self.lanes[lane].set.at();
        let mut position = from;
        let mut failed: Vec<u32> = Vec::new();
        while let Some(found) = self.lanes[lane].next(position, &self.sets[set]) {
            self.step()?;
            let candidate = self.sets[set].list[found];
            position = found + 1;
            if !failed.is_empty() && self.kind(candidate.entry).is_some_and(|kind| failed.contains(&kind)) {
                continue;
            }
            match self.try_to_take(at, candidate, access)? {
                CandidateOutcome::Taken => {}
                CandidateOutcome::No(Obstacle::Held) => {
                    self.sets[set].bury(found);
                    self.lanes[lane].bury(found);
                    continue;
                }
                CandidateOutcome::No(Obstacle::Used) => {
                    self.lanes[lane].bury(found);
                    continue;
                }
                CandidateOutcome::No(Obstacle::InFlight) => continue,
            }
            let done = self.device(at, taken + 1, position);
            if done == Ok(true) {
                return done;
            }
            self.give_back();
            done?;
            self.look_for_twins();
            failed.extend(self.kind(candidate.entry));
        }
        Ok(false)
    }

    /// Sorts the devices once a search has become so long that it pays.
    fn look_for_twins(&mut self) {
        if matches!(self.passing, TwinPolicy::From { steps_left } if self.steps_left <= steps_left) {
            let twins = Twins::of(self.index, self.attributes, self.sets, self.lanes, self.claims);
            self.passing = twins.map_or(TwinPolicy::Never, TwinPolicy::Twins);
        }
    }

    /// The kind of a device that no claim holds and this search has not taken.
    fn kind(&self, entry: EntryNo) -> Option<u32> {
        let TwinPolicy::Twins(twins) = &self.passing else { return None };
        let device = self.index.entries[entry.at()].device;
        let untouched = self.state.devices[device.at()] == DeviceState::default();
        twins.kind(entry).filter(|_| untouched)
    }

    fn step(&mut self) -> Result<(), Stop> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Stop::Bound)?;
        Ok(())
    }

    /// What keeps the device from a request before its properties are looked at: another holder.
    fn occupied(&self, at: SearchPosition, entry: EntryNo, access: Access) -> Option<Obstacle> {
        let device = self.index.entries[entry.at()].device;
        match access {
            Access::Normal => self.state.in_use(device),
            Access::Admin => self.taken_by_claim(at.claim, entry).then_some(Obstacle::InFlight),
        }
    }

    fn taken_by_claim(&self, claim: usize, entry: EntryNo) -> bool {
        self.trail.iter().any(|t| t.claim == claim && t.entry == entry && t.sharing == Sharing::Exclusive)
    }

    fn try_to_take(
        &mut self,
        at: SearchPosition,
        candidate: Candidate,
        access: Access,
    ) -> Result<CandidateOutcome, Stop> {
        if let Some(obstacle) = self.occupied(at, candidate.entry, access) {
            return Ok(CandidateOutcome::No(obstacle));
        }
        if let CandidateKind::Broken(selector) = candidate.kind {
            let SearchPosition { claim, request, alternative } = at;
            let entry = candidate.entry;
            return Err(Stop::Broken { claim, request, alternative, selector: selector as usize, entry });
        }
        let (index, demand) = (self.index, self.demand(at));
        let entry = &index.entries[candidate.entry.at()];
        if self.state.release == Release::V1_37 && !self.demands[demand.at()].is_in_range(entry.profile) {
            let SearchPosition { claim, request, alternative } = at;
            return Err(Stop::OutOfRange { claim, request, alternative, entry: candidate.entry });
        }
        if let Some(obstacle) = self.lacks_capacity(demand, candidate) {
            return Ok(CandidateOutcome::No(obstacle));
        }
        let counters = match self.draw(candidate.entry) {
            Ok(counters) => counters,
            Err(obstacle) => return Ok(CandidateOutcome::No(obstacle)),
        };
        if self.constrain(at, candidate.entry).is_err() {
            if counters == CounterUse::Yes {
                self.state.undraw_in_flight(index, entry);
            }
            return Ok(CandidateOutcome::No(Obstacle::InFlight));
        }
        self.record(at, candidate, demand, access, counters);
        Ok(CandidateOutcome::Taken)
    }

    fn must_take(&mut self, at: SearchPosition, candidate: Candidate) -> Result<bool, Stop> {
        let (index, demand) = (self.index, self.demand(at));
        let access = self.claims[at.claim].requests[at.request].alternatives[at.alternative].access;
        if self.occupied(at, candidate.entry, access).is_some() {
            return Ok(false);
        }
        let Ok(counters) = self.draw(candidate.entry) else { return Ok(false) };
        let refused = match self.constrain(at, candidate.entry) {
            Err(constraint) => {
                let SearchPosition { claim, request, alternative } = at;
                let entry = candidate.entry;
                Err(Stop::Constraint { claim, request, alternative, constraint, entry })
            }
            Ok(()) if self.lacks_capacity(demand, candidate).is_some() => {
                self.unconstrain(at, usize::MAX);
                Ok(false)
            }
            Ok(()) => {
                self.record(at, candidate, demand, access, counters);
                return Ok(true);
            }
        };
        if counters == CounterUse::Yes {
            self.state.undraw_in_flight(index, &index.entries[candidate.entry.at()]);
        }
        refused
    }

    fn demand(&self, at: SearchPosition) -> DemandNo {
        self.claims[at.claim].requests[at.request].alternatives[at.alternative].demand
    }

    fn lacks_capacity(&self, demand: DemandNo, candidate: Candidate) -> Option<Obstacle> {
        let entry = &self.index.entries[candidate.entry.at()];
        match self.demands[demand.at()].amounts(entry.profile) {
            None => Some(Obstacle::Used),
            Some(amounts) => {
                self.state.lacks_capacity(entry, amounts, &self.index.profiles[entry.profile.at()].whole)
            }
        }
    }

    /// Takes the counters of an entry, unless they are paid or it has none.
    fn draw(&mut self, entry: EntryNo) -> Result<CounterUse, Obstacle> {
        let entry = &self.index.entries[entry.at()];
        if entry.counted == CounterUse::No || self.state.counters_are_paid(entry) {
            return Ok(CounterUse::No);
        }
        self.state.draw_in_flight(self.index, entry).map(|()| CounterUse::Yes)
    }

    /// Adds the device to every constraint that covers it; on failure to none, and says which one refused.
    fn constrain(&mut self, at: SearchPosition, entry: EntryNo) -> Result<(), usize> {
        let ClaimPlan { shape, constraints, .. } = &mut self.claims[at.claim];
        for (number, (constraint, facts)) in constraints.iter_mut().zip(&shape.constraints).enumerate() {
            if facts.covers[at.request][at.alternative]
                && !constraint.add(self.attributes.value(constraint.attribute, entry), self.attributes)
            {
                self.unconstrain(at, number);
                return Err(number);
            }
        }
        Ok(())
    }

    /// Takes the last device out of the first so many constraints that cover it.
    fn unconstrain(&mut self, at: SearchPosition, number: usize) {
        let ClaimPlan { shape, constraints, .. } = &mut self.claims[at.claim];
        for (constraint, facts) in constraints.iter_mut().zip(&shape.constraints).take(number) {
            if facts.covers[at.request][at.alternative] {
                constraint.remove_last();
            }
        }
    }

    fn record(
        &mut self,
        at: SearchPosition,
        candidate: Candidate,
        demand: DemandNo,
        access: Access,
        counters: CounterUse,
    ) {
        let entry = &self.index.entries[candidate.entry.at()];
        let device = &mut self.state.devices[entry.device.at()];
        match entry.sharing {
            Sharing::Exclusive => device.exclusive_in_flight += 1,
            Sharing::Shareable => {
                device.shares_in_flight += 1;
                let amounts = self.demands[demand.at()].amounts(entry.profile).unwrap_or_default();
                self.state.consume(entry, amounts);
            }
        }
        self.results[at.claim] += 1;
        self.trail.push(ReservedDevice {
            claim: at.claim,
            request: at.request,
            alternative: at.alternative,
            entry: candidate.entry,
            access,
            demand,
            sharing: entry.sharing,
            counters,
        });
    }

    fn give_back(&mut self) {
        let Some(taken) = self.trail.pop() else { return };
        let entry = &self.index.entries[taken.entry.at()];
        let device = &mut self.state.devices[entry.device.at()];
        match taken.sharing {
            Sharing::Exclusive => device.exclusive_in_flight -= 1,
            Sharing::Shareable => {
                device.shares_in_flight -= 1;
                let amounts = self.demands[taken.demand.at()].amounts(entry.profile).unwrap_or_default();
                self.state.restore(entry, amounts);
            }
        }
        if taken.counters == CounterUse::Yes {
            self.state.undraw_in_flight(self.index, entry);
        }
        let at =
            SearchPosition { claim: taken.claim, request: taken.request, alternative: taken.alternative };
        self.unconstrain(at, usize::MAX);
        self.results[taken.claim] -= 1;
    }
}
