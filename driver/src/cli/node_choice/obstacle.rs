//! What keeps a Pod off a node, and the changes that take away the only thing that does.

use std::collections::BTreeMap;

use aliquot_core::allocate::{NodeIndex, World};
use aliquot_core::dra::{AllocationResult, Node, NodeRequirement, NodeSelectorTerm, Taint};

use crate::manifest::{CORDONED, Manifests, Pod};

use super::{numbered, shown, unborne};

/// One thing that keeps a Pod off a node.
enum Obstacle<'m> {
    /// The Pod names another node.
    NodeName(&'m str),
    /// A label of `nodeSelector`.
    Label(&'m str, &'m str),
    /// Node affinity without a term that lacks one requirement alone.
    Affinity,
    /// The one requirement of a term of the node affinity.
    Requirement(&'m NodeRequirement),
    /// An allocation of one of its claims.
    Allocation,
    /// A taint that it does not tolerate.
    Taint(&'m Taint),
}

/// A change of a Pod or node, and the nodes that the Pod may use with it.
pub(in crate::cli) struct NodeChange {
    pub(in crate::cli) words: String,
    pub(in crate::cli) nodes: Vec<NodeIndex>,
}

/// The single changes that open further nodes to a Pod: taints first, then its wishes.
pub(in crate::cli) fn single_changes(
    pod: &Pod,
    manifests: &Manifests,
    fixed: &[&AllocationResult],
    world: &World,
) -> Vec<NodeChange> {
    let mut changes: BTreeMap<(u8, String), Vec<NodeIndex>> = BTreeMap::new();
    for (index, node) in numbered(world) {
        let obstacles = obstacles(pod, node, manifests, fixed);
        let [obstacle] = obstacles.as_slice() else { continue };
        if let Some(change) = obstacle.change(node) {
            changes.entry(change).or_default().push(index);
        }
    }
    let mut changes: Vec<_> = changes.into_iter().collect();
    changes.sort_by_key(|((rank, _), nodes)| (*rank, nodes.first().copied()));
    changes.into_iter().map(|((_, words), nodes)| NodeChange { words, nodes }).collect()
}

fn obstacles<'m>(
    pod: &'m Pod,
    node: &Node,
    manifests: &'m Manifests,
    fixed: &[&AllocationResult],
) -> Vec<Obstacle<'m>> {
    if let Some(name) = pod.node_name.as_deref() {
        return if name == node.name { Vec::new() } else { vec![Obstacle::NodeName(name)] };
    }
    let mut found = Vec::new();
    for (key, value) in &pod.node_labels {
        if node.labels.get(key) != Some(value) {
            found.push(Obstacle::Label(key, value));
        }
    }
    if let Some(affinity) = pod.affinity.as_ref().filter(|affinity| !affinity.matches(node)) {
        let lone = affinity.terms.iter().find_map(|term| lone_requirement(term, node));
        found.push(lone.map_or(Obstacle::Affinity, Obstacle::Requirement));
    }
    if fixed.iter().filter_map(|a| a.node_selector.as_ref()).any(|selector| !selector.matches(node)) {
        found.push(Obstacle::Allocation);
    }
    found.extend(unborne(&node.name, pod, manifests).into_iter().map(Obstacle::Taint));
    found
}

/// The requirement of a term that has others and lacks this one alone.
fn lone_requirement<'t>(term: &'t NodeSelectorTerm, node: &Node) -> Option<&'t NodeRequirement> {
    let unmet: Vec<&NodeRequirement> = term.all_unmet(node).collect();
    let several = term.expressions.len() + term.fields.len() > 1;
    match unmet.as_slice() {
        [requirement] if several => Some(requirement),
        _ => None,
    }
}

// === impl Obstacle ===

impl Obstacle<'_> {
    /// What takes it away, and its place among changes.
    fn change(&self, node: &Node) -> Option<(u8, String)> {
        let name = &node.name;
        Some(match self {
            Self::Taint(taint) if taint.key == CORDONED => (0, format!("uncordon node {name}")),
            Self::Taint(taint) => {
                let taint = shown(taint);
                (0, format!("let the Pod tolerate taint {taint} of node {name}, or take it off"))
            }
            Self::Label(key, value) => {
                (1, format!("drop {key}: {value} from the Pod's nodeSelector, or label a node so"))
            }
            Self::Requirement(wanted) => (2, format!("drop `{wanted}` from the Pod's node affinity")),
            Self::Affinity => (3, "drop the Pod's node affinity".to_owned()),
            Self::NodeName(wanted) => (4, format!("take nodeName: {wanted} off the Pod")),
            Self::Allocation => return None,
        })
    }
}
