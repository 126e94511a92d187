//! Why claims are not placed: for each device the first reason, and a single change that would place them.
//!
//! ```text
//!   claims ─▶ placed? ─ no ─▶ the first request that cannot be served after those before it
//!                                  │ for each device: node, selectors, holders, capacity, counters, taints, constraints
//!                                  ▼
//!                             rejections, grouped ─▶ changes, cheapest first, each tried by a search ─▶ remedy
//! ```
//!
//! The order of reasons is for people: a device that could never serve the request says so before it says that it is
//! taken. It does not change which devices are rejected.

mod change;
mod guard;
mod judge;
mod reason;
mod release;
mod release_order;
mod remedy;
mod request;

use super::named::NamedAlternative;
use super::numbers::NodeIndex;
use super::place::Candidates;
use super::problem::PoolFault;
use super::refusal::PlacementRefusal;
use super::world::World;
use crate::dra::{AllocationResult, RequestKind, ResourceClaim};
pub use change::{Change, ChangesTried};
pub use reason::{ReasonGroup, RejectReason};
pub(super) use release_order::ReleaseOrder;
pub use request::{Rejection, RequestExplanation};

/// How many of the nodes that refuse are looked at device by device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodesExplained {
    /// Every node.
    All,
    /// So many, the first in order.
    First(usize),
}

/// What became of claims, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Where they would go, or the refusal.
    pub outcome: Result<NodeIndex, PlacementRefusal>,
    /// Requested nodes in order, as many as were asked for; empty when the claims are placed.
    pub nodes: Vec<NodeExplanation>,
    /// How many nodes refuse beside those.
    pub nodes_left_out: usize,
    /// A single change that places them, proved by a search; `None`: none was found.
    pub remedy: Option<Change>,
    /// Whether a change that was not tried could be one.
    pub changes_tried: ChangesTried,
}

/// Why one node refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeExplanation {
    /// Name of the node.
    pub node: String,
    /// What this node alone answers.
    pub refusal: PlacementRefusal,
    /// Pools (driver/name) that cannot be used from here.
    pub pools: Vec<(String, PoolFault)>,
    /// The first request that cannot be served once those before it are; one entry an alternative.
    pub requests: Vec<RequestExplanation>,
}

// === impl World ===

impl World {
    /// Explains what becomes of the claims together on these nodes. Nothing is held afterwards that was not before.
    ///
    /// Work: one look at every device of each explained node, and a bounded number of steps for the remedy.
    pub fn explain(
        &mut self,
        claims: &[ResourceClaim],
        candidates: Candidates<'_>,
        explained: NodesExplained,
    ) -> Explanation {
        let refusal = match self.place(claims, candidates) {
            Ok((node, _)) => {
                return Explanation {
                    outcome: Ok(node),
                    nodes: Vec::new(),
                    nodes_left_out: 0,
                    remedy: None,
                    changes_tried: ChangesTried::All,
                };
            }
            Err(refusal) => refusal,
        };
        let numbers: Vec<NodeIndex> = match candidates {
            Candidates::Only(nodes) => nodes.to_vec(),
            Candidates::All => {
                (0..self.nodes.len()).map(|n| NodeIndex(u32::try_from(n).unwrap_or(u32::MAX))).collect()
            }
        };
        let most = match explained {
            NodesExplained::All => numbers.len(),
            NodesExplained::First(most) => most.min(numbers.len()),
        };
        let nodes = numbers[..most].iter().filter_map(|node| self.explain_node(*node, claims)).collect();
        let (remedy, changes_tried) = self.remedy(claims, &numbers, &refusal);
        let nodes_left_out = numbers.len() - most;
        Explanation { outcome: Err(refusal), nodes, nodes_left_out, remedy, changes_tried }
    }

    fn explain_node(&mut self, node: NodeIndex, claims: &[ResourceClaim]) -> Option<NodeExplanation> {
        let refusal = self.allocate(node, claims).err()?;
        let name = self.nodes.get(node.0 as usize)?.name.clone();
        let view = self.view(node)?;
        let pools = view.faults.iter().map(|(pool, fault)| {
            let facts = &self.index.pools[pool.at()];
            (format!("{}/{}", facts.driver, facts.name), fault.clone())
        });
        let pools = pools.collect();
        let requests = self.blocked(node, claims);
        Some(NodeExplanation { node: name, refusal, pools, requests })
    }

    /// Serves request after request until one cannot be, and judges every device for that one.
    fn blocked(&mut self, node: NodeIndex, claims: &[ResourceClaim]) -> Vec<RequestExplanation> {
        let mut before: Vec<AllocationResult> = Vec::new();
        for (number, claim) in claims.iter().enumerate() {
            for request in 0..claim.requests.len() {
                let mut prefix = claims[..number].to_vec();
                prefix.push(first_requests(claim, request + 1));
                match self.allocate(node, &prefix) {
                    Ok(results) => before = results,
                    Err(_) => return self.judge_request(node, &prefix, request, &before),
                }
            }
        }
        Vec::new()
    }

    /// Judges every device for the last request of the last claim of `prefix`, with `before` in place.
    fn judge_request(
        &mut self,
        node: NodeIndex,
        prefix: &[ResourceClaim],
        request: usize,
        before: &[AllocationResult],
    ) -> Vec<RequestExplanation> {
        let Some(claim) = prefix.last() else { return Vec::new() };
        let mut held = Vec::new();
        for (earlier, result) in prefix.iter().zip(before) {
            let mut stand_in = earlier.clone();
            stand_in.uid = format!("{}\0explained", earlier.uid);
            if self.hold_for_now(&stand_in, result).is_ok() {
                held.push(stand_in.uid);
            }
        }
        let own = before.get(prefix.len() - 1);
        let count = match &claim.requests[request].kind {
            RequestKind::Exactly(_) => 1,
            RequestKind::FirstAvailable(subs) => subs.len(),
        };
        let judged = (0..count)
            .map(|alternative| self.judge(node, NamedAlternative { claim, request, alternative }, own))
            .collect();
        for uid in held {
            // What was held a moment ago is held still.
            if self.take_out(&uid).is_none() {
                break;
            }
        }
        judged
    }
}

/// The claim with its first so many requests, and what of the constraints is about them.
fn first_requests(claim: &ResourceClaim, count: usize) -> ResourceClaim {
    let mut cut = claim.clone();
    cut.requests.truncate(count);
    cut.config.clear();
    cut.constraints.retain_mut(|constraint| {
        if constraint.requests.is_empty() {
            return true;
        }
        constraint.requests.retain(|name| {
            let request = name.split_once('/').map_or(name.as_str(), |(request, _)| request);
            cut.requests.iter().any(|known| known.name == request)
        });
        !constraint.requests.is_empty()
    });
    cut
}
