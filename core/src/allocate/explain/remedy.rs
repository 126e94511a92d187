//! A single change that places claims, found by trying.
//!
//! Order, cheapest first: a selector that fails guarded; one taint tolerated; one capacity lowered, to the largest amount that fits; one count
//! lowered, to the largest that fits; one selector of a request dropped; one constraint dropped; one claim released,
//! that holding the least first; a pool completed by its driver. The first that places the claims is reported, and it
//! has been seen to place them.
//!
//! A change is tried on the nodes that it concerns: the others have refused, and would again. All tries together do a
//! bounded amount of work.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::change::{Change, ChangesTried};
use crate::allocate::index::ProfileNo;
use crate::allocate::memo::Neighbourhood;
use crate::allocate::named::name_of;
use crate::allocate::numbers::NodeIndex;
use crate::allocate::place::Candidates;
use crate::allocate::pools::{Completeness, Directory};
use crate::allocate::problem::PoolFault;
use crate::allocate::refusal::{PlacementRefusal, Reach};
use crate::allocate::world::World;
use crate::dra::{
    Access, AllocationMode, CapacityRestriction, DeviceCapacity, ExactRequest, RequestKind, ResourceClaim,
    Taint, TaintEffect, Toleration, TolerationOperator,
};
use crate::offer::{TAINT_OCCUPIED, TAINT_UNHEALTHY};
use crate::quantity::Quantity;

/// Most work of all tries for one remedy, in steps of a search or devices looked at: a third of a second.
const WORK_MAX: u64 = 20_000_000;
/// Most steps of one search on one node: enough for any change that helps at once.
const STEPS_MAX: u64 = 200_000;
/// Nodes that are searched between two looks at the work done.
const NODES_AT_ONCE: usize = 64;

/// The requested claims, and where.
pub(super) struct Question<'a> {
    pub(super) claims: &'a [ResourceClaim],
    pub(super) nodes: &'a [NodeIndex],
    /// Whether a node that a change does not concern can only refuse again.
    reach: Reach,
    /// The work at which the search for a change ends.
    pub(super) work_end: u64,
    pub(super) tried: ChangesTried,
}

/// One exact request among the claims.
#[derive(Clone, Copy)]
pub(super) struct RequestPosition {
    claim: usize,
    request: usize,
    alternative: usize,
}

/// What devices have left of a capacity.
#[derive(Default)]
struct AmountsLeft {
    /// Amounts that may be requested, are less than what is asked for, and are not zero.
    amounts: BTreeSet<Quantity>,
    /// The most that a usable device of a node has, by node and kind of device; nowhere else can an amount up to it fit.
    most: Vec<(NodeIndex, i128)>,
}

// === impl World ===

impl World {
    /// The first change in the order of the module text that places the claims.
    pub(super) fn remedy(
        &mut self,
        claims: &[ResourceClaim],
        nodes: &[NodeIndex],
        refusal: &PlacementRefusal,
    ) -> (Option<Change>, ChangesTried) {
        let steps_max = self.limits.steps_max;
        // A refusal under one bound is one under the other: what was learnt stays.
        self.limits.steps_max = steps_max.min(STEPS_MAX);
        let mut question = Question {
            claims,
            nodes,
            reach: refusal.reach(),
            work_end: self.work.saturating_add(WORK_MAX),
            tried: ChangesTried::All,
        };
        let found = self
            .guard(&mut question, refusal)
            .or_else(|| self.tolerate(&mut question))
            .or_else(|| self.lower_capacity(&mut question))
            .or_else(|| self.lower_count(&mut question))
            .or_else(|| self.drop_selector(&mut question))
            .or_else(|| self.drop_constraint(&mut question))
            .or_else(|| self.release_one(&mut question))
            .or_else(|| self.complete_pools(&mut question));
        self.limits.steps_max = steps_max;
        (found, question.tried)
    }

    /// Whether the changed claims have a place on any node of the question.
    pub(super) fn places(&mut self, question: &mut Question<'_>, claims: &[ResourceClaim]) -> bool {
        self.places_on(question, claims, question.nodes)
    }

    /// Whether the changed claims have a place on any of these nodes, which are all that the change concerns.
    pub(super) fn places_on(
        &mut self,
        question: &mut Question<'_>,
        claims: &[ResourceClaim],
        concerned: &[NodeIndex],
    ) -> bool {
        // Where an error on one node keeps claims off all nodes, the order of all nodes decides.
        let nodes = match question.reach {
            Reach::ThisNode => concerned,
            Reach::EveryNode => question.nodes,
        };
        for some in nodes.chunks(NODES_AT_ONCE) {
            if self.work >= question.work_end {
                question.tried = ChangesTried::Some;
                return false;
            }
            match self.place(claims, Candidates::Only(some)) {
                Ok(_) => return true,
                Err(refusal) if refusal.reach() == Reach::EveryNode => return false,
                Err(_) => {}
            }
        }
        false
    }

    fn tolerate(&mut self, question: &mut Question<'_>) -> Option<Change> {
        let taints = self.taints(question.nodes);
        if taints.is_empty() {
            return None;
        }
        for spot in question.spots() {
            for (taint, nodes) in &taints {
                let bears = Toleration {
                    key: Some(taint.key.clone()),
                    operator: TolerationOperator::Equal(taint.value.clone()),
                    effect: Some(taint.effect.clone()),
                    seconds: None,
                };
                let changed = question.with(spot, |request| request.tolerations.push(bears));
                if self.places_on(question, &changed, nodes) {
                    let (claim, request) = question.names(spot);
                    return Some(Change::TolerateTaint { claim, request, taint: taint.clone() });
                }
            }
        }
        None
    }

    /// The taints that keep claims off, as published, each with the nodes that have a device with it.
    fn taints(&mut self, nodes: &[NodeIndex]) -> Vec<(Taint, Vec<NodeIndex>)> {
        let mut found: Vec<(Taint, Vec<NodeIndex>)> = Vec::new();
        let mut numbers: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        let asked: BTreeSet<NodeIndex> = nodes.iter().copied().collect();
        for entry in &self.index.tainted {
            let pool = self.index.devices[self.index.entries[entry.at()].device.at()].pool;
            let on: &[NodeIndex] = match self.neighbourhoods.of(pool) {
                Neighbourhood::One(node) if asked.contains(&node) => &[node],
                Neighbourhood::All => nodes,
                Neighbourhood::One(_) | Neighbourhood::None => continue,
            };
            for taint in &self.index.described(*entry).taints {
                let stops = matches!(taint.effect, TaintEffect::NoSchedule | TaintEffect::NoExecute);
                // These taints state a fact of the card: its node refuses a claim that tolerates them.
                if !stops || [TAINT_OCCUPIED, TAINT_UNHEALTHY].contains(&taint.key.as_str()) {
                    continue;
                }
                let key = (taint.key.clone(), taint.value.clone(), format!("{:?}", taint.effect));
                let number = *numbers.entry(key).or_insert_with(|| {
                    found.push((taint.clone(), Vec::new()));
                    found.len() - 1
                });
                let known = &mut found[number].1;
                if known.last() != on.last() {
                    known.extend(on);
                }
            }
        }
        for (_, on) in &mut found {
            on.sort_unstable();
            on.dedup();
        }
        found
    }

    fn lower_capacity(&mut self, question: &mut Question<'_>) -> Option<Change> {
        for spot in question.spots() {
            let mut left = self.amounts_left(question, spot);
            let names = question.request(spot).capacity.keys().cloned();
            for name in names.chain(left.keys().cloned()).collect::<BTreeSet<String>>() {
                let asked = question.request(spot).capacity.get(&name).copied();
                let AmountsLeft { amounts, most } = left.remove(&name).unwrap_or_default();
                let amounts: Vec<Quantity> = amounts.into_iter().collect();
                let fits = |world: &mut Self, at: usize| {
                    let amount = amounts[at];
                    let changed = question.with(spot, |request| {
                        request.capacity.insert(name.clone(), amount);
                    });
                    let concerned = most.iter().filter(|(_, left)| *left >= amount.nanos());
                    let mut concerned: Vec<NodeIndex> = concerned.map(|(node, _)| *node).collect();
                    concerned.dedup();
                    world.places_on(question, &changed, &concerned)
                };
                if let Some(at) = last_that_fits(self, amounts.len(), fits) {
                    let (claim, request) = question.names(spot);
                    let to = amounts[at];
                    return Some(Change::LowerCapacity { claim, request, capacity: name, from: asked, to });
                }
            }
        }
        None
    }

    /// What the devices that pass the request's selectors have left of each capacity.
    fn amounts_left(
        &mut self,
        question: &Question<'_>,
        spot: RequestPosition,
    ) -> BTreeMap<String, AmountsLeft> {
        let request = question.request(spot);
        let demand = self.demands.demand(request, &self.classes, &mut self.selectors);
        let base = self.demands.demands[demand.at()].base;
        let index = Arc::clone(&self.index);
        let mut seen: HashSet<(ProfileNo, usize, i128)> = HashSet::new();
        let mut found: BTreeMap<&str, AmountsLeft> = BTreeMap::new();
        for node in question.nodes {
            let Some(view) = self.view(*node) else { continue };
            let Some(set) = self.set(base, *node, &view) else { continue };
            self.work += self.sets[set.at()].list.len() as u64;
            let mut most: BTreeMap<(ProfileNo, usize), i128> = BTreeMap::new();
            for candidate in &self.sets[set.at()].list {
                let facts = &index.entries[candidate.entry.at()];
                let usable = request.access == Access::Admin || self.state.in_use(facts.device).is_none();
                let capacities = &index.profiles[facts.profile.at()].capacities;
                for (at, (name, capacity)) in capacities.iter().enumerate() {
                    let left = capacity.value.nanos() - self.state.used[facts.amounts() + at];
                    if usable {
                        most.entry((facts.profile, at))
                            .and_modify(|most| *most = left.max(*most))
                            .or_insert(left);
                    }
                    if !seen.insert((facts.profile, at, left)) {
                        continue;
                    }
                    let whole = request.capacity.get(name).copied().unwrap_or(capacity.value);
                    let allowed = largest_allowed(capacity, left);
                    let allowed = allowed.filter(|amount| *amount < whole && amount.nanos() > 0);
                    found.entry(name).or_default().amounts.extend(allowed);
                }
            }
            for ((profile, at), left) in most {
                let (name, _) = &index.profiles[profile.at()].capacities[at];
                found.entry(name).or_default().most.push((*node, left));
            }
        }
        found.into_iter().map(|(name, left)| (name.to_owned(), left)).collect()
    }

    fn lower_count(&mut self, question: &mut Question<'_>) -> Option<Change> {
        for spot in question.spots() {
            let AllocationMode::ExactCount(from) = question.request(spot).mode else { continue };
            let counts: Vec<u32> = (1..from).rev().take(32).collect();
            let counts: Vec<u32> = counts.into_iter().rev().collect();
            let fits = |world: &mut Self, at: usize| {
                let count = AllocationMode::ExactCount(counts[at]);
                let changed = question.with(spot, |request| request.mode = count);
                world.places(question, &changed)
            };
            if let Some(at) = last_that_fits(self, counts.len(), fits) {
                let (claim, request) = question.names(spot);
                return Some(Change::LowerCount { claim, request, from, to: counts[at] });
            }
        }
        None
    }

    fn drop_selector(&mut self, question: &mut Question<'_>) -> Option<Change> {
        for spot in question.spots() {
            for index in 0..question.request(spot).selectors.len() {
                let expression = question.request(spot).selectors[index].clone();
                let changed = question.with(spot, |request| {
                    request.selectors.remove(index);
                });
                if self.places(question, &changed) {
                    let (claim, request) = question.names(spot);
                    return Some(Change::DropSelector { claim, request, expression });
                }
            }
        }
        None
    }

    fn drop_constraint(&mut self, question: &mut Question<'_>) -> Option<Change> {
        for (number, claim) in question.claims.iter().enumerate() {
            for (index, constraint) in claim.constraints.iter().enumerate() {
                let mut changed = question.claims.to_vec();
                changed[number].constraints.remove(index);
                if self.places(question, &changed) {
                    let rule = constraint.rule.clone();
                    return Some(Change::DropConstraint { claim: name_of(claim), index, rule });
                }
            }
        }
        None
    }

    fn complete_pools(&mut self, question: &mut Question<'_>) -> Option<Change> {
        let mut pools = BTreeSet::new();
        let mut nodes = Vec::new();
        for node in question.nodes {
            let Some(view) = self.view(*node) else { continue };
            let faults =
                view.faults.iter().filter(|(_, fault)| matches!(fault, PoolFault::Incomplete { .. }));
            let before = pools.len();
            for (pool, _) in faults.clone() {
                let facts = &self.index.pools[pool.at()];
                pools.insert(format!("{}/{}", facts.driver, facts.name));
            }
            if faults.count() > 0 || pools.len() > before {
                nodes.push(*node);
            }
        }
        if pools.is_empty() {
            return None;
        }
        let complete = Directory::new(&self.index, Completeness::Assumed, self.release);
        let strict = self.look_through(Arc::new(complete));
        let placed = self.places_on(question, question.claims, &nodes);
        self.look_back(strict);
        placed.then(|| Change::CompletePools { pools: pools.into_iter().collect() })
    }
}

/// Of numbers from 0, the last that fits: whatever fits, all before it fit as well.
fn last_that_fits<W>(
    world: &mut W,
    count: usize,
    mut fits: impl FnMut(&mut W, usize) -> bool,
) -> Option<usize> {
    // Most changes do not help however far they go: one try says so.
    if count == 0 || !fits(world, 0) {
        return None;
    }
    let (mut low, mut high) = (1, count);
    while low < high {
        let middle = low.midpoint(high);
        if fits(world, middle) { low = middle + 1 } else { high = middle }
    }
    Some(low - 1)
}

/// The largest amount up to `left` nano-units that the capacity's policy lets a request have.
fn largest_allowed(capacity: &DeviceCapacity, left: i128) -> Option<Quantity> {
    let plain = Quantity::from_nanos(left, capacity.value.format());
    let Some(policy) = &capacity.policy else { return Some(plain) };
    match &policy.restriction {
        CapacityRestriction::None => Some(plain),
        CapacityRestriction::Range { min, max, step } => {
            let top = max.map_or(left, |max| max.nanos().min(left));
            let above = top - min.nanos();
            let whole = match step.map(Quantity::nanos) {
                Some(step) if step > 0 => above.div_euclid(step) * step,
                _ => above,
            };
            (above >= 0).then(|| Quantity::from_nanos(min.nanos() + whole, capacity.value.format()))
        }
        CapacityRestriction::Values(values) => {
            values.iter().copied().filter(|value| value.nanos() <= left).max()
        }
    }
}

// === impl Question ===

impl Question<'_> {
    pub(super) fn spots(&self) -> Vec<RequestPosition> {
        let mut spots = Vec::new();
        for (claim, asked) in self.claims.iter().enumerate() {
            for (request, of_claim) in asked.requests.iter().enumerate() {
                let count = match &of_claim.kind {
                    RequestKind::Exactly(_) => 1,
                    RequestKind::FirstAvailable(subs) => subs.len(),
                };
                spots.extend((0..count).map(|alternative| RequestPosition { claim, request, alternative }));
            }
        }
        spots
    }

    fn request(&self, spot: RequestPosition) -> &ExactRequest {
        match &self.claims[spot.claim].requests[spot.request].kind {
            RequestKind::Exactly(exact) => exact,
            RequestKind::FirstAvailable(subs) => &subs[spot.alternative].request,
        }
    }

    pub(super) fn names(&self, spot: RequestPosition) -> (String, String) {
        let claim = &self.claims[spot.claim];
        let at = super::NamedAlternative { claim, request: spot.request, alternative: spot.alternative };
        (name_of(claim), at.name())
    }

    /// The claims with one request changed.
    pub(super) fn with(
        &self,
        spot: RequestPosition,
        change: impl FnOnce(&mut ExactRequest),
    ) -> Vec<ResourceClaim> {
        let mut claims = self.claims.to_vec();
        match &mut claims[spot.claim].requests[spot.request].kind {
            RequestKind::Exactly(exact) => change(exact),
            RequestKind::FirstAvailable(subs) => change(&mut subs[spot.alternative].request),
        }
        claims
    }
}
