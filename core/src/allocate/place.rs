//! One node or several: the way from claims to allocations.
//!
//! ```text
//!   claims ─▶ shapes ─▶ known to be refused here? ─▶ plan for the node ─▶ search ─▶ allocations
//! ```
//!
//! Nothing is held by any of this; [`World::hold`] commits.

use std::collections::HashSet;
use std::sync::Arc;

use super::candidates::{CandidateKind, Soundness};
use super::claim_plan::{Alternative, ClaimPlan, DeviceCount, Form, RequestPlan};
use super::constraints::{Constraint, Value};
use super::demand::{DemandNo, RequestShape, ShapeNo, Trend};
use super::index::EntryNo;
use super::named::NamedAlternative;
use super::named::name_of;
use super::numbers::NodeIndex;
use super::options::{Memory, Release};
use super::pools::View;
use super::problem::PoolFault;
use super::refusal::{NodesTried, PlacementRefusal, RESULTS_MAX, SelectorFailure};
use super::results;
use super::search::{PlacementSearch, Stop};
use super::twins::TwinPolicy;
use super::world::World;
use crate::dra::{AllocationResult, ConstraintRule, ExactRequest, ResourceClaim};

/// On which nodes claims may be placed; they are tried in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates<'a> {
    /// Every node of the world, in its order.
    All,
    /// These.
    Only(&'a [NodeIndex]),
}

/// How far a placement has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Nodes that are done with.
    pub nodes_done: usize,
    /// Nodes there are.
    pub nodes_all: usize,
}

/// Claims with their names taken off.
struct UnnamedClaims<'a> {
    claims: &'a [ResourceClaim],
    shapes: Vec<ShapeNo>,
    /// What was learnt of them may be used, and remembered.
    memory: Memory,
}

/// What one node answers.
enum NodeResult {
    Placed(Vec<AllocationResult>),
    /// Nothing fits there.
    Refused,
    /// No node is any use.
    Stopped(PlacementRefusal),
}

// === impl World ===

impl World {
    /// Allocates all the claims together on one node, or none of them. Holds nothing.
    ///
    /// # Errors
    /// Why not; [`PlacementRefusal::reach`] says whether another node could do.
    pub fn allocate(
        &mut self,
        node: NodeIndex,
        claims: &[ResourceClaim],
    ) -> Result<Vec<AllocationResult>, PlacementRefusal> {
        if node.0 as usize >= self.nodes.len() {
            return Err(PlacementRefusal::UnknownNode);
        }
        let asking = self.asking(claims)?;
        match self.answer(node, &asking) {
            NodeResult::Placed(results) => Ok(results),
            NodeResult::Refused => Err(self.plain_refusal(node)),
            NodeResult::Stopped(refusal) => Err(refusal),
        }
    }

    /// Places all the claims together on the first node that can have them. Holds nothing.
    ///
    /// # Errors
    /// No node can, or the search ended early on the first node where it had to ([`super::Reach::EveryNode`]).
    pub fn place(
        &mut self,
        claims: &[ResourceClaim],
        candidates: Candidates<'_>,
    ) -> Result<(NodeIndex, Vec<AllocationResult>), PlacementRefusal> {
        self.place_with(claims, candidates, &mut |_| {})
    }

    /// As [`Self::place`]; calls `progress` after every node that had to be looked at and refused.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub fn place_with(
        &mut self,
        claims: &[ResourceClaim],
        candidates: Candidates<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(NodeIndex, Vec<AllocationResult>), PlacementRefusal> {
        let (nodes_all, only) = match candidates {
            Candidates::All => (self.nodes.len(), None),
            Candidates::Only(nodes) => (nodes.len(), Some(nodes)),
        };
        if nodes_all == 0 {
            return Err(PlacementRefusal::NoNodes);
        }
        let asking = self.asking(claims)?;
        let mut next = match (only, asking.memory) {
            (None, Memory::Kept) => {
                self.memo.group(&asking.shapes, nodes_all).map_or(0, |group| group.first())
            }
            _ => 0,
        };
        while next < nodes_all {
            let node = match only {
                Some(nodes) => nodes[next],
                None => NodeIndex(u32::try_from(next).unwrap_or(u32::MAX)),
            };
            match self.answer(node, &asking) {
                NodeResult::Placed(results) => return Ok((node, results)),
                NodeResult::Refused => {}
                NodeResult::Stopped(refusal) => return Err(refusal),
            }
            next += 1;
            progress(Progress { nodes_done: next, nodes_all });
        }
        match (nodes_all, only) {
            (1, Some(nodes)) => Err(self.plain_refusal(nodes[0])),
            (1, None) => Err(self.plain_refusal(NodeIndex(0))),
            _ => Err(PlacementRefusal::NoFit { nodes: NodesTried::Several(nodes_all) }),
        }
    }

    /// Takes the names off, and refuses what is wrong on every node alike.
    fn asking<'a>(&mut self, claims: &'a [ResourceClaim]) -> Result<UnnamedClaims<'a>, PlacementRefusal> {
        let shapes: Vec<ShapeNo> = claims
            .iter()
            .map(|claim| self.demands.shape(claim, &self.classes, &mut self.selectors))
            .collect();
        let monotone = shapes.iter().all(|shape| self.demands.shapes[shape.at()].trend == Trend::Monotone);
        let memory = if monotone { self.limits.memory } else { Memory::Off };
        if monotone {
            // Otherwise a node's own troubles may come first, and `plans` says these in their turn.
            for (claim, shape) in claims.iter().zip(&shapes) {
                self.check(claim, *shape)?;
            }
        }
        Ok(UnnamedClaims { claims, shapes, memory })
    }

    /// What is wrong with a claim without mode `All`, whatever the node.
    fn check(&self, claim: &ResourceClaim, shape: ShapeNo) -> Result<(), PlacementRefusal> {
        let mut needed = 0;
        for (number, request) in self.demands.shapes[shape.at()].requests.iter().enumerate() {
            let mut fewest = usize::MAX;
            for (alternative, demand) in request.demands().iter().enumerate() {
                self.class_of(*demand, NamedAlternative { claim, request: number, alternative })?;
                fewest = fewest.min(DeviceCount::of(self.demands.demands[demand.at()].request.mode).count());
            }
            needed += if request.demands().is_empty() { 0 } else { fewest };
        }
        if needed > RESULTS_MAX {
            return Err(PlacementRefusal::TooManyDevices { claim: name_of(claim), needed });
        }
        Ok(())
    }

    fn class_of(&self, demand: DemandNo, at: NamedAlternative<'_>) -> Result<(), PlacementRefusal> {
        if self.demands.base_of(demand).selectors.is_some() {
            return Ok(());
        }
        Err(PlacementRefusal::MissingClass {
            claim: name_of(at.claim),
            request: at.name(),
            class: self.demands.demands[demand.at()].request.device_class.clone(),
        })
    }

    fn answer(&mut self, node: NodeIndex, asking: &UnnamedClaims<'_>) -> NodeResult {
        let count = self.nodes.len();
        self.work += 1;
        if node.0 as usize >= count {
            return NodeResult::Stopped(PlacementRefusal::UnknownNode);
        }
        if asking.memory == Memory::Kept {
            let known = self.memo.group(&asking.shapes, count).is_some_and(|group| group.has_refused(node));
            if known {
                return NodeResult::Refused;
            }
            if self.is_above_ceiling(node, asking) {
                self.remember_refusal(node, asking);
                return NodeResult::Refused;
            }
        }
        let answer = match self.search(node, asking) {
            Ok(Some(results)) => NodeResult::Placed(results),
            Ok(None) => NodeResult::Refused,
            Err(refusal) => NodeResult::Stopped(refusal),
        };
        if matches!(answer, NodeResult::Refused) && asking.memory == Memory::Kept {
            self.remember_refusal(node, asking);
            self.measure(node, asking);
        }
        answer
    }

    fn remember_refusal(&mut self, node: NodeIndex, asking: &UnnamedClaims<'_>) {
        if let Some(group) = self.memo.group(&asking.shapes, self.nodes.len()) {
            group.refuse(node);
        }
    }

    /// Whether some request asks for more than any device of the node has left, and no search could end in an error.
    fn is_above_ceiling(&mut self, node: NodeIndex, asking: &UnnamedClaims<'_>) -> bool {
        let epoch = self.memo.epoch(node, &self.neighbourhoods);
        let mut above = false;
        for shape in &asking.shapes {
            for request in &self.demands.shapes[shape.at()].requests {
                for demand in request.demands() {
                    let base = self.demands.demands[demand.at()].base;
                    let Some(set) = self.set_numbers.get(&(base, node)) else { return false };
                    let set = &self.sets[set.at()];
                    if set.soundness == Soundness::Broken || !set.is_of(epoch) {
                        return false;
                    }
                    let must = matches!(request, RequestShape::Exactly(_));
                    if must && !above {
                        let demand = &mut self.demands.demands[demand.at()];
                        set.profiles.iter().for_each(|profile| demand.prepare(*profile, &self.index));
                        if !set.profiles.iter().all(|profile| demand.is_in_range(*profile)) {
                            return false;
                        }
                        above = set.is_above_ceiling(demand);
                    }
                }
            }
        }
        above
    }

    /// Measures anew what the devices of a node that has refused have left.
    fn measure(&mut self, node: NodeIndex, asking: &UnnamedClaims<'_>) {
        for shape in &asking.shapes {
            for demand in self.demands.shapes[shape.at()].requests.iter().flat_map(RequestShape::demands) {
                let base = self.demands.demands[demand.at()].base;
                if let Some(set) = self.set_numbers.get(&(base, node)) {
                    self.sets[set.at()].measure(&self.index, &self.state);
                }
            }
        }
    }

    /// Nothing fits there: the refusal in words.
    fn plain_refusal(&mut self, node: NodeIndex) -> PlacementRefusal {
        let name = self.nodes.get(node.0 as usize).map(|node| node.name.clone()).unwrap_or_default();
        let view = self.view(node).unwrap_or_default();
        let invalid = view.faults.iter().find(|(_, fault)| !matches!(fault, PoolFault::Incomplete { .. }));
        match invalid {
            Some((pool, fault)) => {
                let facts = &self.index.pools[pool.at()];
                let pool = format!("{}/{}", facts.driver, facts.name);
                PlacementRefusal::InvalidPool { node: name, pool, fault: Box::new(fault.clone()) }
            }
            None => PlacementRefusal::NoFit { nodes: NodesTried::One(name) },
        }
    }

    fn search(
        &mut self,
        node: NodeIndex,
        asking: &UnnamedClaims<'_>,
    ) -> Result<Option<Vec<AllocationResult>>, PlacementRefusal> {
        let claims = asking.claims;
        let view = self.view(node).ok_or(PlacementRefusal::UnknownNode)?;
        let mut plans = self.plans(node, &view, claims, &asking.shapes)?;
        if self.has_too_few_values(&plans) {
            return Ok(None);
        }
        let mut search = PlacementSearch {
            index: &self.index,
            demands: &self.demands.demands,
            attributes: &self.attributes,
            state: &mut self.state,
            sets: &mut self.sets,
            lanes: &mut self.lanes,
            results: vec![0; plans.len()],
            claims: &mut plans,
            steps_left: self.limits.steps_max,
            passing: TwinPolicy::From {
                steps_left: self.limits.steps_max.saturating_sub(self.limits.steps_before_twins),
            },
            trail: Vec::new(),
        };
        let found = search.run();
        let trail = search.trail.clone();
        search.unwind();
        self.work += self.limits.steps_max - search.steps_left;
        match found {
            Ok(true) => results::write(self, node, claims, &trail).map(Some),
            Ok(false) | Err(Stop::TooManyResults) => Ok(None),
            Err(stop) => Err(self.stopped(&stop, claims, &plans)),
        }
    }

    /// Whether a claim wants more devices with different values of an attribute than there are values: no search needs to try
    /// that out. Only where no search can end in an error, which would come first.
    fn has_too_few_values(&self, plans: &[ClaimPlan]) -> bool {
        let set_of = |alternative: &Alternative| &self.sets[self.lanes[alternative.lane.at()].set.at()];
        let is_plain = |alternative: &Alternative| {
            let (set, demand) = (set_of(alternative), &self.demands.demands[alternative.demand.at()]);
            set.soundness == Soundness::Sound
                && matches!(alternative.wanted, DeviceCount::Count(_))
                && set.profiles.iter().all(|profile| demand.is_in_range(*profile))
        };
        let mut alternatives = plans.iter().flat_map(|plan| &plan.requests).flat_map(|r| &r.alternatives);
        if !alternatives.all(is_plain) {
            return false;
        }
        plans.iter().any(|plan| {
            let facts = plan.shape.constraints.iter().zip(&plan.constraints);
            let mut distinct = facts.filter(|(facts, _)| matches!(facts.rule, ConstraintRule::Distinct(_)));
            distinct.any(|(facts, constraint)| {
                let covered = plan.requests.iter().zip(&facts.covers);
                let covered = covered.filter(|(request, covers)| request.form == Form::Exactly && covers[0]);
                let asked: Vec<&Alternative> = covered.map(|(request, _)| &request.alternatives[0]).collect();
                let needed: usize = asked.iter().map(|alternative| alternative.wanted.count()).sum();
                let candidates = asked.iter().flat_map(|alternative| &set_of(alternative).list);
                let values: HashSet<Value> = candidates
                    .map(|candidate| self.attributes.value(constraint.attribute, candidate.entry))
                    .filter(|value| *value != Value::Absent)
                    .collect();
                values.len() < needed && !values.iter().any(|value| matches!(value, Value::List(_)))
            })
        })
    }

    /// The claims made ready for one node, checked in order.
    pub(super) fn plans(
        &mut self,
        node: NodeIndex,
        view: &Arc<View>,
        claims: &[ResourceClaim],
        shapes: &[ShapeNo],
    ) -> Result<Vec<ClaimPlan>, PlacementRefusal> {
        let mut plans = Vec::with_capacity(claims.len());
        for (claim, shape) in claims.iter().zip(shapes) {
            let shape = Arc::clone(&self.demands.shapes[shape.at()]);
            let mut requests = Vec::with_capacity(shape.requests.len());
            let mut needed = 0;
            for (number, request) in shape.requests.iter().enumerate() {
                let form = match request {
                    RequestShape::Exactly(_) => Form::Exactly,
                    RequestShape::FirstAvailable(_) => Form::FirstAvailable,
                };
                let mut alternatives = Vec::with_capacity(request.demands().len());
                for (alternative, demand) in request.demands().iter().enumerate() {
                    let at = NamedAlternative { claim, request: number, alternative };
                    alternatives.push(self.alternative(node, view, *demand, at)?);
                }
                needed += alternatives.iter().map(|a: &Alternative| a.wanted.count()).min().unwrap_or(0);
                requests.push(RequestPlan { form, alternatives });
            }
            if needed > RESULTS_MAX {
                return Err(PlacementRefusal::TooManyDevices { claim: name_of(claim), needed });
            }
            let ready = |constraint: &super::demand::ConstraintShape| {
                Constraint::new(&constraint.rule, &mut self.attributes, &self.index, self.release)
            };
            let constraints = shape.constraints.iter().map(ready).collect();
            plans.push(ClaimPlan { shape, requests, constraints });
        }
        Ok(plans)
    }

    fn alternative(
        &mut self,
        node: NodeIndex,
        view: &View,
        demand: DemandNo,
        at: NamedAlternative<'_>,
    ) -> Result<Alternative, PlacementRefusal> {
        self.class_of(demand, at)?;
        let ExactRequest { access, mode, .. } = self.demands.demands[demand.at()].request;
        let mut wanted = DeviceCount::of(mode);
        let lane = self.lane(demand, node, view).ok_or(PlacementRefusal::UnknownNode)?;
        let set = self.lanes[lane.at()].set;
        if let DeviceCount::All(positions) = &mut wanted {
            if let Some((pool, fault)) = view.faults.first() {
                let facts = &self.index.pools[pool.at()];
                return Err(PlacementRefusal::AllOfUnusablePool {
                    claim: name_of(at.claim),
                    request: at.name(),
                    pool: format!("{}/{}", facts.driver, facts.name),
                    fault: Box::new(fault.clone()),
                });
            }
            for (position, candidate) in self.sets[set.at()].list.iter().enumerate() {
                if let CandidateKind::Broken(selector) = candidate.kind {
                    let (selector, entry) = (selector as usize, candidate.entry);
                    return Err(self.broken(demand, selector, entry, name_of(at.claim), at.name()));
                }
                let entry = &self.index.entries[candidate.entry.at()];
                let asked = &self.demands.demands[demand.at()];
                if self.release == Release::V1_37 && !asked.is_in_range(entry.profile) {
                    return Err(self.out_of_range(at, candidate.entry));
                }
                let Some(amounts) = asked.amounts(entry.profile) else { continue };
                let whole = &self.index.profiles[entry.profile.at()].whole;
                // To 1.36, an exhausted device drops out of "all"; from 1.37 on it fails the request.
                let belongs = match self.release {
                    Release::V1_36 => self.state.lacks_capacity(entry, amounts, whole).is_none(),
                    Release::V1_37 => amounts.iter().zip(whole).all(|(amount, whole)| amount <= whole),
                };
                if belongs {
                    positions.push(position);
                }
            }
        }
        Ok(Alternative { demand, lane, access, wanted })
    }

    fn stopped(&self, stop: &Stop, claims: &[ResourceClaim], plans: &[ClaimPlan]) -> PlacementRefusal {
        match *stop {
            Stop::Bound | Stop::TooManyResults => {
                PlacementRefusal::SearchBound { steps: self.limits.steps_max }
            }
            Stop::Broken { claim, request, alternative, selector, entry } => {
                let demand = plans[claim].requests[request].alternatives[alternative].demand;
                let at = NamedAlternative { claim: &claims[claim], request, alternative };
                self.broken(demand, selector, entry, name_of(at.claim), at.name())
            }
            Stop::OutOfRange { claim, request, alternative, entry } => {
                self.out_of_range(NamedAlternative { claim: &claims[claim], request, alternative }, entry)
            }
            Stop::Constraint { claim, request, alternative, constraint, entry } => {
                let at = NamedAlternative { claim: &claims[claim], request, alternative };
                PlacementRefusal::AllAgainstConstraint {
                    claim: name_of(at.claim),
                    request: at.name(),
                    constraint,
                    device: Box::new(self.index.id(self.index.entries[entry.at()].device)),
                }
            }
        }
    }

    fn out_of_range(&self, at: NamedAlternative<'_>, entry: EntryNo) -> PlacementRefusal {
        PlacementRefusal::OutOfRange {
            claim: name_of(at.claim),
            request: at.name(),
            device: Box::new(self.index.id(self.index.entries[entry.at()].device)),
        }
    }

    fn broken(
        &self,
        demand: DemandNo,
        selector: usize,
        entry: EntryNo,
        claim: String,
        request: String,
    ) -> PlacementRefusal {
        let device = self.index.id(self.index.entries[entry.at()].device);
        let selectors = self.demands.base_of(demand).selectors.as_deref().unwrap_or_default();
        match selectors.get(selector) {
            Some((origin, number)) => PlacementRefusal::Selector(Box::new(SelectorFailure {
                claim,
                request,
                origin: origin.clone(),
                expression: self.selectors.text(*number).to_owned(),
                device,
                message: self.selectors.failure(*number, &self.index, entry),
            })),
            None => PlacementRefusal::UnknownNode,
        }
    }
}
