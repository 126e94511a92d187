//! Nodes that a unit may use, by all that the scheduler asks before devices: what its Pod wishes of nodes and of other Pods,
//! what its claims are bound to, taints, and what other Pods leave of a node.
//!
//! Taints do not apply to a Pod with a node name, which is already scheduled, or to a claim without a Pod.

mod changes;
mod domains;
mod excluded;
mod node_test;
mod nodes;
mod obstacle;
mod occupancy;

use std::collections::{BTreeMap, HashMap};

use aliquot_core::allocate::{NodeIndex, World};
use aliquot_core::dra::{AllocationResult, Node, Taint, Toleration};

use crate::manifest::{Manifests, Pod};

pub(super) use nodes::unborne;
use nodes::{bound, labelled, numbered, reluctance, shown};
use obstacle::Obstacle;

pub(super) use changes::{NodeChange, single_changes};
pub(super) use excluded::{ExcludedNode, excluded, waits_for};
pub(super) use node_test::{NodeTest, Surroundings, unread_namespace};
pub(super) use occupancy::Occupancy;

/// Nodes that a message names for one reason.
const NODES_NAMED: usize = 3;

/// What many Pods have alike: labels that they want of a node, and taints that they bear.
type Wishes = (BTreeMap<String, String>, Vec<Toleration>);

/// Where units may go. What Pods with the same wishes may use is worked out once.
#[derive(Default)]
pub(super) struct NodeChoice {
    by_wishes: HashMap<Wishes, Vec<NodeIndex>>,
}

/// A node that a Pod may not use for its taints alone.
pub(super) struct KeptOff<'m> {
    name: &'m str,
    /// Those that the Pod does not bear; never empty.
    taints: Vec<&'m Taint>,
}

// === impl NodeChoice ===

impl NodeChoice {
    /// The nodes that a unit may use; `None`: all of them.
    pub(super) fn allowed(&mut self, test: &NodeTest<'_>) -> Option<Vec<NodeIndex>> {
        let Surroundings { manifests, world, occupancy } = test.around;
        let anywhere = |pod: &Pod| {
            pod.node_name.is_none()
                && pod.daemon_node.is_none()
                && pod.node_labels.is_empty()
                && pod.affinity.is_none()
                && manifests.node_taints.is_empty()
                && !occupancy.concerns(pod)
        };
        let fixed = test.claims.iter().filter_map(|claim| claim.allocation.as_ref());
        if fixed.clone().all(|a| a.node_selector.is_none()) && test.pod.is_none_or(anywhere) {
            return None;
        }
        if let Some(name) = test.pod.and_then(|p| p.node_name.as_ref()) {
            return Some(world.node(name).into_iter().collect());
        }
        let mut nodes = match test.pod {
            Some(pod) => match &pod.daemon_node {
                Some(name) => world.node(name).into_iter().collect(),
                None => self.wished(pod, manifests, world),
            },
            None => numbered(world).map(|(index, _)| index).collect(),
        };
        let fixed: Vec<&AllocationResult> = fixed.collect();
        let node = |index: &NodeIndex| world.nodes().get(index.0 as usize);
        nodes.retain(|index| node(index).is_some_and(|node| bound(node, test.pod, &fixed)));
        if test.pod.is_some_and(|pod| occupancy.concerns(pod)) {
            nodes.retain(|index| test.has_room(*index));
        }
        Some(nodes)
    }

    fn wished(&mut self, pod: &Pod, manifests: &Manifests, world: &World) -> Vec<NodeIndex> {
        let wishes = (pod.node_labels.clone(), pod.tolerations.clone());
        let fresh = || {
            let usable = |node: &Node| labelled(node, pod) && unborne(&node.name, pod, manifests).is_empty();
            let usable = numbered(world).filter(|(_, node)| usable(node));
            let mut ranked: Vec<(usize, NodeIndex)> =
                usable.map(|(index, node)| (reluctance(&node.name, pod, manifests), index)).collect();
            // Nodes of one rank stay in their own order.
            ranked.sort_by_key(|(reluctance, _)| *reluctance);
            ranked.into_iter().map(|(_, index)| index).collect()
        };
        self.by_wishes.entry(wishes).or_insert_with(fresh).clone()
    }
}

/// The Pods that `DaemonSet`s would make: one on each node that labels, affinity and taints leave.
pub(super) fn daemon_pods(manifests: &Manifests, nodes: &[Node]) -> Vec<Pod> {
    let on = |daemon: &Pod, node: &Node| Pod {
        name: format!("{}-{}", daemon.name, node.name),
        daemon_node: Some(node.name.clone()),
        ..daemon.clone()
    };
    let usable = |daemon: &Pod, node: &Node| {
        labelled(node, daemon)
            && bound(node, Some(daemon), &[])
            && unborne(&node.name, daemon, manifests).is_empty()
    };
    let daemons = manifests.daemons.iter();
    daemons
        .flat_map(|daemon| nodes.iter().filter(|node| usable(daemon, node)).map(|node| on(daemon, node)))
        .collect()
}

/// The nodes that taints alone keep a Pod off; none where it names a node, to which taints do not apply.
pub(super) fn kept_off<'c>(test: &NodeTest<'c>) -> Vec<KeptOff<'c>> {
    let manifests = test.around.manifests;
    let Some(pod) = test.pod.filter(|pod| pod.node_name.is_none()) else { return Vec::new() };
    let tainted = |node: &Node| !unborne(&node.name, pod, manifests).is_empty();
    let kept = numbered(test.around.world).filter(|(_, node)| tainted(node)).filter_map(|(index, node)| {
        let taints = test.obstacles(index).into_iter().map(|obstacle| match obstacle {
            Obstacle::Taint(taint) => Some(taint),
            _ => None,
        });
        Some(KeptOff { name: &node.name, taints: taints.collect::<Option<Vec<&Taint>>>()? })
    });
    kept.collect()
}

/// A refusal, and the nodes that were not tried for their taints.
pub(super) fn with_kept_off(mut words: String, kept: &[KeptOff<'_>]) -> String {
    let mut by_taint: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for node in kept {
        by_taint
            .entry(node.taints.first().map(|t| shown(t)).unwrap_or_default())
            .or_default()
            .push(node.name);
    }
    let groups: Vec<String> = by_taint.iter().map(|(taint, names)| group(taint, names)).collect();
    if !groups.is_empty() {
        words.push_str("; not tried, for taints that the Pod does not tolerate: ");
        words.push_str(&groups.join(", "));
    }
    words
}

/// Nodes that were not tried, with their reasons; `None` where there are none.
pub(super) fn listed(excluded: &[ExcludedNode]) -> Option<String> {
    let named = excluded.iter().take(NODES_NAMED).map(|ExcludedNode { node, why }| format!("{node} ({why})"));
    let named = named.collect::<Vec<_>>().join(", ");
    match excluded.len() {
        0 => None,
        all if all <= NODES_NAMED => Some(format!("not tried: {named}")),
        all => Some(format!("not tried: {named} and {} nodes more", all - NODES_NAMED)),
    }
}

/// Nodes with one taint.
fn group(taint: &str, names: &[&str]) -> String {
    let named = names.iter().take(NODES_NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = match names.len().saturating_sub(NODES_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let noun = if names.len() == 1 { "node" } else { "nodes" };
    format!("{noun} {named}{more} ({taint})")
}

#[cfg(test)]
mod tests;
