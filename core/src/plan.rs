//! The full decision for a claim, made before the first side effect.
//!
//! ```text
//!   ClaimRequest ─┐
//!   parts, cards ─┼──▶ plan ──▶ Plan { grants, steps } ──▶ journal ──▶ execute: steps in order
//!   ledger ───────┘      │                                  │
//!                        └──▶ Refusal: names the holder     └──▶ undo: inverses in reverse order
//! ```
//!
//! A plan leaves no choice to its executor: every identity is fixed, every step says what it makes, and every
//! step has one inverse. Steps and inverses may be repeated any number of times. A plan cannot know the
//! handle that hardware gives to a new partition; the executor records it as an outcome.
//!
//! A partition belongs to all claims that hold shares of it: the first one's plan makes it, and the release of the
//! last one destroys it. A partition that was there before us is used and never destroyed.

mod check;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use check::{PlanProblem, check};
pub use step::{Plan, Step, Undo};

use crate::card::{Card, Inventory};
use crate::disposition::Disposition;
use crate::dra::{DeviceId, Sharing};
use crate::grant::{Grant, PartitionDemand, ShareSettings, isolation};
use crate::id::{CardUuid, ClaimUid, ShareName};
use crate::ledger::{self, Ledger};
use crate::offer::OfferedPart;
use crate::partition::Part;
use crate::ports::PartitionAt;
use crate::units::{Bytes, Cores};

/// Most devices of one claim: the API's own limit.
pub const DEVICES_MAX: usize = 32;

/// A claim with its allocation, decoded: what is to be prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// UID.
    pub uid: ClaimUid,
    /// `namespace/name`, for messages.
    pub name: String,
    /// What was allocated, in the order of the allocation.
    pub devices: Vec<DeviceAsk>,
}

/// One allocated device or share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAsk {
    /// `req` or `req/sub`.
    pub request: String,
    /// The device.
    pub device: DeviceId,
    /// Name of the share.
    pub share: ShareName,
    /// Memory that the allocation consumes; `None`: all of the part.
    pub memory: Option<Bytes>,
    /// Compute that the allocation consumes; `None`: all of the part.
    pub cores: Option<Cores>,
    /// How the limits are held.
    pub settings: ShareSettings,
    /// What it demands of a partition.
    pub demand: Option<PartitionDemand>,
}

/// A request and the part that it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedRequest {
    /// Request.
    pub request: String,
    /// Card.
    pub card: CardUuid,
    /// Part.
    pub part: Part,
}

impl fmt::Display for AllocatedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request `{}` ({} of card {})", self.request, self.part, self.card)
    }
}

/// Why a claim is not prepared; nothing was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefusal {
    /// The allocation has no device, or more than the API allows.
    #[error("claim {claim}: the allocation has {found} devices; expected 1 to {DEVICES_MAX}")]
    DeviceCount {
        /// Claim.
        claim: String,
        /// Devices.
        found: usize,
    },
    /// The node offers no such device.
    #[error(
        "claim {claim}: device {device} is not offered by this node: it was withdrawn, or the layout changed; \
         it has to be allocated anew"
    )]
    UnknownDevice {
        /// Claim.
        claim: String,
        /// As allocated.
        device: DeviceId,
    },
    /// The card is gone.
    #[error("claim {claim}: card {card} of device {device} is not on this node any more")]
    CardGone {
        /// Claim.
        claim: String,
        /// As allocated.
        device: DeviceId,
        /// The card.
        card: CardUuid,
    },
    /// The card, or the requested part of it, does not work.
    #[error(
        "claim {claim}: {}card {card} is not healthy: {why}; it has to be placed elsewhere",
        of_card(part)
    )]
    Unhealthy {
        /// Claim.
        claim: String,
        /// The card.
        card: CardUuid,
        /// The requested part.
        part: Part,
        /// Why.
        why: String,
    },
    /// Two devices of the allocation have one share name.
    #[error(
        "claim {claim}: share {share} is there twice; every device of an allocation needs its own share id"
    )]
    DuplicateShare {
        /// Claim.
        claim: String,
        /// The share.
        share: ShareName,
    },
    /// The allocation says more than the part has, or nothing at all.
    #[error("claim {claim}: {asking} has {asked} of memory, the part has {there}")]
    Memory {
        /// Claim.
        claim: String,
        /// Which request, of which part.
        asking: Box<AllocatedRequest>,
        /// In the allocation.
        asked: Bytes,
        /// Of the part.
        there: Bytes,
    },
    /// The part is kept apart from its neighbours less well than the claim demands.
    #[error(
        "claim {claim}: {asking} demands isolation `{demanded}`, but there it is `{there}`: select on the attribute \
         `isolation` in the claim or its class"
    )]
    Isolation {
        /// Claim.
        claim: String,
        /// Which request, of which part.
        asking: Box<AllocatedRequest>,
        /// Demanded, as published.
        demanded: &'static str,
        /// There, as published.
        there: &'static str,
    },
    /// Another claim holds what the claim needs.
    #[error("claim {claim}: {source}")]
    Held {
        /// Claim.
        claim: String,
        /// The holders and their parts.
        source: Box<ledger::HoldRefusal>,
    },
    /// The decision broke a rule of plans: an error of this program, caught before it did harm.
    #[error("claim {claim}: the plan is refused by its own check: {problem}; please report this")]
    Unsound {
        /// Claim.
        claim: String,
        /// Which rule.
        problem: PlanProblem,
    },
}

// === impl PlanRefusal ===

impl PlanRefusal {
    /// What the caller does about it.
    #[must_use]
    pub const fn disposition(&self) -> Disposition {
        match self {
            Self::CardGone { .. } | Self::Unsound { .. } => Disposition::Broken,
            Self::DeviceCount { .. }
            | Self::UnknownDevice { .. }
            | Self::Unhealthy { .. }
            | Self::DuplicateShare { .. }
            | Self::Memory { .. }
            | Self::Isolation { .. }
            | Self::Held { .. } => Disposition::Refuse,
        }
    }
}

/// A part before its card; the card itself goes without saying.
fn of_card(part: &Part) -> String {
    match part {
        Part::Card => String::new(),
        part => format!("{part} of "),
    }
}

/// Decides everything that is to be done for the claim. `parts` are what the node offers. The cards of the inventory have every partition in `found`
/// that exists; the ledger has every claim that is prepared.
///
/// # Errors
/// Why it cannot be done; nothing is touched either way.
pub fn plan(
    request: &ClaimRequest,
    parts: &BTreeMap<DeviceId, OfferedPart>,
    inventory: &Inventory,
    ledger: &Ledger,
) -> Result<Plan, PlanRefusal> {
    let claim = request.name.clone();
    if !(1..=DEVICES_MAX).contains(&request.devices.len()) {
        return Err(PlanRefusal::DeviceCount { claim, found: request.devices.len() });
    }
    let mut grants = Vec::with_capacity(request.devices.len());
    let mut shares = BTreeSet::new();
    let mut missing = BTreeSet::new();
    for ask in &request.devices {
        let (grant, card) = grant(request, ask, parts, inventory)?;
        if !shares.insert(grant.share.clone()) {
            return Err(PlanRefusal::DuplicateShare { claim, share: grant.share });
        }
        missing.extend(grant.partition().filter(|at| !card.found.contains(&at.part())));
        grants.push(grant);
    }
    // All of a claim's holdings must fit beside each other, so they are tried on a copy of the ledger.
    let mut trial = ledger.clone();
    let held = trial.hold_all(grants.iter().map(Grant::holding).collect());
    held.map_err(|source| PlanRefusal::Held { claim: claim.clone(), source: Box::new(source) })?;
    let creations = missing.into_iter().map(Step::CreatePartition);
    let writes = grants.iter().map(|g| Step::WriteGrant(g.share.clone()));
    let steps = creations.chain(writes).chain([Step::WriteCdi]).collect();
    let plan = Plan { claim: request.uid.clone(), name: claim.clone(), grants, steps };
    check(&plan).map_err(|problem| PlanRefusal::Unsound { claim, problem })?;
    Ok(plan)
}

/// What undoes a plan, whatever of it was done, in this order: the container's way in first, hardware last. `ours` are
/// the partitions that we made; those that `others` hold shares of stay.
#[must_use]
pub fn undo<'a>(
    plan: &Plan,
    ours: impl Fn(&PartitionAt) -> bool,
    others: impl IntoIterator<Item = &'a Grant>,
) -> Vec<Undo> {
    let shared: BTreeSet<PartitionAt> = others.into_iter().filter_map(Grant::partition).collect();
    let partitions: BTreeSet<PartitionAt> = plan.grants.iter().filter_map(Grant::partition).collect();
    let mut undos: Vec<Undo> = plan
        .steps
        .iter()
        .rev()
        .filter(|step| !matches!(step, Step::CreatePartition(_)))
        .map(Step::inverse)
        .collect();
    // A partition goes with its last holder, which need not be the claim that had it made.
    let last = partitions.into_iter().rev().filter(|at| ours(at) && !shared.contains(at));
    undos.extend(last.map(Undo::DestroyPartition));
    undos
}

/// The grant for one device, and its card.
fn grant<'a>(
    request: &ClaimRequest,
    ask: &DeviceAsk,
    parts: &BTreeMap<DeviceId, OfferedPart>,
    inventory: &'a Inventory,
) -> Result<(Grant, &'a Card), PlanRefusal> {
    let (claim, device) = (request.name.clone(), ask.device.clone());
    let Some(target) = parts.get(&ask.device) else {
        return Err(PlanRefusal::UnknownDevice { claim, device });
    };
    let Some(card) = inventory.card(&target.card) else {
        return Err(PlanRefusal::CardGone { claim, device, card: target.card.clone() });
    };
    if let Some(why) = card.why_unwell(&target.part) {
        let (card, part) = (target.card.clone(), target.part.clone());
        return Err(PlanRefusal::Unhealthy { claim, card, part, why: why.to_owned() });
    }
    let (memory, cores) = match target.sharing {
        Sharing::Exclusive => (target.memory, target.cores),
        Sharing::Shareable => (ask.memory.unwrap_or(target.memory), ask.cores.unwrap_or(target.cores)),
    };
    let (name, part) = (ask.request.clone(), target.part.clone());
    let asking = || {
        Box::new(AllocatedRequest {
            request: name.clone(),
            card: target.card.clone(),
            part: target.part.clone(),
        })
    };
    if memory == Bytes(0) || memory > target.memory {
        let (asking, asked, there) = (asking(), memory, target.memory);
        return Err(PlanRefusal::Memory { claim, asking, asked, there });
    }
    if let Some(demand) = ask.demand {
        let there = isolation(card, &target.part, memory);
        if !demand.met_by(there) {
            let (demanded, there) = (demand.isolation_at_least.as_str(), there.as_str());
            return Err(PlanRefusal::Isolation { claim, asking: asking(), demanded, there });
        }
    }
    let grant = Grant {
        claim: request.uid.clone(),
        share: ask.share.clone(),
        request: name,
        device,
        card: target.card.clone(),
        part,
        sharing: target.sharing,
        memory,
        cores,
        settings: ask.settings,
    };
    Ok((grant, card))
}

#[cfg(test)]
mod tests;
