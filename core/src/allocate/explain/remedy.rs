//! A single change that places claims, found by trying.
//!
//! Order, cheapest first: another node; one taint tolerated; one capacity lowered, to the largest amount that fits;
//! one count lowered, to the largest that fits; one selector of a request dropped; one constraint dropped; one claim
//! released, that holding the least first; a pool completed by its driver. The first that places the claims is
//! reported, and it has been seen to place them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::judge::attribute;
use crate::allocate::held::{DeviceShare, name_of};
use crate::allocate::place::Candidates;
use crate::allocate::pools::{Completeness, Directory};
use crate::allocate::problem::PoolFault;
use crate::allocate::world::{Limits, NodeIndex, World};
use crate::dra::{
    AllocationMode, CapacityRestriction, ConstraintRule, DeviceCapacity, ExactRequest, RequestKind,
    ResourceClaim, Taint, TaintEffect, Toleration, TolerationOperator,
};
use crate::offer::{TAINT_OCCUPIED, TAINT_UNHEALTHY};
use crate::quantity::Quantity;

/// Most searches for one remedy; each is bounded too.
const TRIES_MAX: usize = 400;
/// Most steps of one such search: enough for any change that helps at once.
const STEPS_MAX: u64 = 200_000;

/// A single change that places refused claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing but the node.
    AnotherNode {
        /// A node that takes them as they are.
        node: String,
    },
    /// The request tolerates this taint.
    TolerateTaint {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The taint.
        taint: Taint,
    },
    /// The request asks for less of a capacity.
    LowerCapacity {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The capacity.
        capacity: String,
        /// What it asks for; `None`: it names none and takes the default.
        from: Option<Quantity>,
        /// The most that fits.
        to: Quantity,
    },
    /// The request asks for fewer devices.
    LowerCount {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// How many it asks for.
        from: u32,
        /// The most that fit.
        to: u32,
    },
    /// The request does without one of its selectors.
    DropSelector {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The selector.
        expression: String,
    },
    /// The claim does without one of its constraints.
    DropConstraint {
        /// The claim, as namespace/name.
        claim: String,
        /// Which, from 0.
        index: usize,
        /// The rule.
        rule: ConstraintRule,
    },
    /// A claim that holds something is released.
    ReleaseClaim {
        /// The claim, as namespace/name.
        claim: String,
        /// How many devices and shares it holds.
        holds: usize,
    },
    /// The drivers publish what is missing of their pools.
    CompletePools {
        /// The pools, as driver/name.
        pools: Vec<String>,
    },
}

/// The requested claims, and where.
struct Question<'a> {
    claims: &'a [ResourceClaim],
    candidates: Candidates<'a>,
    nodes: &'a [NodeIndex],
    tries: usize,
}

/// One exact request among the claims.
#[derive(Clone, Copy)]
struct RequestPosition {
    claim: usize,
    request: usize,
    alternative: usize,
}

// === impl World ===

impl World {
    /// The first change in the order of the module text that places the claims.
    pub(super) fn remedy(
        &mut self,
        claims: &[ResourceClaim],
        candidates: Candidates<'_>,
        nodes: &[NodeIndex],
    ) -> Option<Change> {
        let limits = self.limits;
        self.set_limits(Limits { steps_max: limits.steps_max.min(STEPS_MAX), ..limits });
        let mut question = Question { claims, candidates, nodes, tries: 0 };
        let found = self
            .another_node(&question)
            .or_else(|| self.tolerate(&mut question))
            .or_else(|| self.lower_capacity(&mut question))
            .or_else(|| self.lower_count(&mut question))
            .or_else(|| self.drop_selector(&mut question))
            .or_else(|| self.drop_constraint(&mut question))
            .or_else(|| self.release_one(&mut question))
            .or_else(|| self.complete_pools(&mut question));
        self.set_limits(limits);
        found
    }

    fn places(&mut self, question: &mut Question<'_>, claims: &[ResourceClaim]) -> bool {
        question.tries += 1;
        question.tries <= TRIES_MAX && self.place(claims, question.candidates).is_ok()
    }

    fn another_node(&mut self, question: &Question<'_>) -> Option<Change> {
        if question.candidates == Candidates::All {
            return None;
        }
        let (node, _) = self.place(question.claims, Candidates::All).ok()?;
        Some(Change::AnotherNode { node: self.nodes.get(node.0 as usize)?.name.clone() })
    }

    fn tolerate(&mut self, question: &mut Question<'_>) -> Option<Change> {
        let taints = self.taints(question.nodes);
        for spot in question.spots() {
            for taint in &taints {
                let bears = Toleration {
                    key: Some(taint.key.clone()),
                    operator: TolerationOperator::Equal(taint.value.clone()),
                    effect: Some(taint.effect.clone()),
                    seconds: None,
                };
                let changed = question.with(spot, |request| request.tolerations.push(bears));
                if self.places(question, &changed) {
                    let (claim, request) = question.names(spot);
                    return Some(Change::TolerateTaint { claim, request, taint: taint.clone() });
                }
            }
        }
        None
    }

    fn taints(&mut self, nodes: &[NodeIndex]) -> Vec<Taint> {
        let mut found: Vec<Taint> = Vec::new();
        for node in nodes {
            let Some(view) = self.view(*node) else { continue };
            for taint in view.entries.iter().flat_map(|entry| &self.index.described(*entry).taints) {
                let stops = matches!(taint.effect, TaintEffect::NoSchedule | TaintEffect::NoExecute);
                // These taints state a fact of the card: its node refuses a claim that tolerates them.
                let is_fact = [TAINT_OCCUPIED, TAINT_UNHEALTHY].contains(&taint.key.as_str());
                if stops && !is_fact && !found.contains(taint) {
                    found.push(taint.clone());
                }
            }
        }
        found
    }

    fn lower_capacity(&mut self, question: &mut Question<'_>) -> Option<Change> {
        for spot in question.spots() {
            let mut names: BTreeSet<String> = question.request(spot).capacity.keys().cloned().collect();
            names.extend(self.capacity_names(question.nodes));
            for name in names {
                let asked = question.request(spot).capacity.get(&name).copied();
                let amounts = self.amounts_left(question.nodes, &name, asked);
                let set = |question: &Question<'_>, amount: Quantity| {
                    question.with(spot, |request| {
                        request.capacity.insert(name.clone(), amount);
                    })
                };
                // Less is never harder to place, so the amounts that fit are the first ones of the ascending list.
                let (mut low, mut high) = (0, amounts.len());
                while low < high {
                    let middle = low.midpoint(high);
                    let changed = set(question, amounts[middle]);
                    if self.places(question, &changed) { low = middle + 1 } else { high = middle }
                }
                if let Some(to) = low.checked_sub(1).and_then(|fits| amounts.get(fits)) {
                    let (claim, request) = question.names(spot);
                    return Some(Change::LowerCapacity {
                        claim,
                        request,
                        capacity: name,
                        from: asked,
                        to: *to,
                    });
                }
            }
        }
        None
    }

    fn capacity_names(&mut self, nodes: &[NodeIndex]) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for node in nodes {
            let Some(view) = self.view(*node) else { continue };
            let profiles: BTreeSet<_> =
                view.entries.iter().map(|entry| self.index.entries[entry.at()].profile).collect();
            for profile in profiles {
                let capacities = &self.index.profiles[profile.at()].capacities;
                names.extend(capacities.iter().map(|(name, _)| name.clone()));
            }
        }
        names
    }

    /// What the devices have left of a capacity, as amounts that may be requested and are not zero;
    /// ascending.
    fn amounts_left(&mut self, nodes: &[NodeIndex], name: &str, asked: Option<Quantity>) -> Vec<Quantity> {
        let mut amounts = BTreeSet::new();
        for node in nodes {
            let Some(view) = self.view(*node) else { continue };
            for entry in &view.entries {
                let facts = &self.index.entries[entry.at()];
                let profile = &self.index.profiles[facts.profile.at()];
                let Some(at) = profile.capacities.iter().position(|(known, _)| known == name) else {
                    continue;
                };
                let capacity = &profile.capacities[at].1;
                let left = capacity.value.nanos() - self.state.used[facts.amounts() + at];
                let allowed = largest_allowed(capacity, left);
                let whole = asked.unwrap_or(capacity.value);
                amounts.extend(allowed.filter(|amount| *amount < whole && amount.nanos() > 0));
            }
        }
        amounts.into_iter().collect()
    }

    fn lower_count(&mut self, question: &mut Question<'_>) -> Option<Change> {
        for spot in question.spots() {
            let AllocationMode::ExactCount(from) = question.request(spot).mode else { continue };
            for to in (1..from).rev().take(32) {
                let changed = question.with(spot, |request| request.mode = AllocationMode::ExactCount(to));
                if self.places(question, &changed) {
                    let (claim, request) = question.names(spot);
                    return Some(Change::LowerCount { claim, request, from, to });
                }
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

    fn release_one(&mut self, question: &mut Question<'_>) -> Option<Change> {
        let mut order: Vec<_> = self
            .held
            .claims
            .iter()
            .filter(|(_, holder)| !holder.holdings.is_empty())
            .map(|(uid, holder)| {
                (holder.holdings.len(), self.weight(&holder.holdings), holder.claim.clone(), uid)
            })
            .map(|(count, weight, claim, uid)| (count, weight, claim, uid.clone()))
            .collect();
        order.sort();
        for (holds, _, claim, uid) in order {
            if question.tries >= TRIES_MAX {
                return None;
            }
            let Some(holder) = self.lift(&uid) else { continue };
            let placed = self.places(question, question.claims);
            self.put_back(uid, holder);
            if placed {
                return Some(Change::ReleaseClaim { claim, holds });
            }
        }
        None
    }

    /// How much of its devices a claim holds, in millionths of a device.
    fn weight(&self, holdings: &[crate::allocate::held::HeldResult]) -> i128 {
        let of = |holding: &crate::allocate::held::HeldResult| match &holding.part {
            DeviceShare::Whole => 1_000_000,
            DeviceShare::Share(consumed) => {
                let entry = self.index.entries_of(holding.device).last();
                let profile = entry.map(|entry| self.index.entries[entry.at()].profile);
                let capacities = profile.map(|p| self.index.profiles[p.at()].capacities.as_slice());
                let parts = capacities.unwrap_or_default().iter().filter_map(|(name, capacity)| {
                    let held = consumed.get(name)?.nanos();
                    held.checked_mul(1_000_000)?.checked_div(capacity.value.nanos())
                });
                parts.max().unwrap_or(0)
            }
        };
        holdings.iter().map(of).sum()
    }

    fn complete_pools(&mut self, question: &mut Question<'_>) -> Option<Change> {
        let mut pools = BTreeSet::new();
        for node in question.nodes {
            let Some(view) = self.view(*node) else { continue };
            for (pool, fault) in &view.faults {
                if matches!(fault, PoolFault::Incomplete { .. }) {
                    let facts = &self.index.pools[pool.at()];
                    pools.insert(format!("{}/{}", facts.driver, facts.name));
                }
            }
        }
        if pools.is_empty() {
            return None;
        }
        let strict = self.see(Arc::new(Directory::new(&self.index, Completeness::Assumed, self.release)));
        let placed = self.places(question, question.claims);
        self.see(strict);
        placed.then(|| Change::CompletePools { pools: pools.into_iter().collect() })
    }
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
    fn spots(&self) -> Vec<RequestPosition> {
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

    fn names(&self, spot: RequestPosition) -> (String, String) {
        let claim = &self.claims[spot.claim];
        let at = super::NamedAlternative { claim, request: spot.request, alternative: spot.alternative };
        (name_of(claim), at.name())
    }

    /// The claims with one request changed.
    fn with(&self, spot: RequestPosition, change: impl FnOnce(&mut ExactRequest)) -> Vec<ResourceClaim> {
        let mut claims = self.claims.to_vec();
        match &mut claims[spot.claim].requests[spot.request].kind {
            RequestKind::Exactly(exact) => change(exact),
            RequestKind::FirstAvailable(subs) => change(&mut subs[spot.alternative].request),
        }
        claims
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnotherNode { node } => write!(f, "place it on node {node}"),
            Self::TolerateTaint { claim, request, taint } => {
                write!(
                    f,
                    "let request `{request}` of {claim} tolerate the taint {}={}",
                    taint.key, taint.value
                )
            }
            Self::LowerCapacity { claim, request, capacity, from: Some(from), to } => {
                write!(f, "let request `{request}` of {claim} ask for {to} of `{capacity}` instead of {from}")
            }
            Self::LowerCapacity { claim, request, capacity, from: None, to } => {
                write!(f, "let request `{request}` of {claim} ask for {to} of `{capacity}`")
            }
            Self::LowerCount { claim, request, from, to } => {
                let devices = if *to == 1 { "device" } else { "devices" };
                write!(f, "let request `{request}` of {claim} ask for {to} {devices} instead of {from}")
            }
            Self::DropSelector { claim, request, expression } => {
                write!(f, "drop the selector {expression} from request `{request}` of {claim}")
            }
            Self::DropConstraint { claim, index, rule } => {
                write!(f, "drop constraint {index} ({}) from {claim}", attribute(rule))
            }
            Self::ReleaseClaim { claim, holds } => {
                write!(f, "release {claim}, which holds {holds} device{}", if *holds == 1 { "" } else { "s" })
            }
            Self::CompletePools { pools } => {
                write!(f, "wait until the driver has published all of {}", pools.join(", "))
            }
        }
    }
}
