//! Why a Pod or claim may not use a node, in words: node name, node selector, affinity, and claims bound to other nodes.
//! Taints are named with the refusal itself (`with_kept_off`).

use aliquot_core::allocate::World;
use aliquot_core::dra::{AllocationResult, Node, NodeSelector};

use crate::manifest::Pod;

/// A node that was not tried.
pub(in crate::cli) struct ExcludedNode {
    pub(in crate::cli) node: String,
    /// Found and wanted.
    pub(in crate::cli) why: String,
}

/// The nodes that a Pod, or a claim without one, may not use; `fixed` are allocations that its other claims have already.
pub(in crate::cli) fn excluded(
    pod: Option<&Pod>,
    fixed: &[&AllocationResult],
    world: &World,
) -> Vec<ExcludedNode> {
    let reason = |node: &Node| {
        let of_pod = pod.and_then(|pod| of_pod(pod, node));
        of_pod.or_else(|| fixed.iter().find_map(|allocation| of_allocation(allocation, node)))
    };
    let excluded = |node: &Node| Some(ExcludedNode { node: node.name.clone(), why: reason(node)? });
    world.nodes().iter().filter_map(excluded).collect()
}

fn of_pod(pod: &Pod, node: &Node) -> Option<String> {
    if let Some(name) = &pod.node_name {
        return (*name != node.name).then(|| format!("the Pod names node {name} (nodeName)"));
    }
    let unmet = pod.node_labels.iter().find(|(key, value)| node.labels.get(*key) != Some(value));
    if let Some((key, value)) = unmet {
        return Some(format!("nodeSelector wants {key}={value}; found {}", label(node, key)));
    }
    let affinity = pod.affinity.as_ref().filter(|affinity| !affinity.matches(node))?;
    Some(format!("node affinity wants {}", unmet_of(affinity, node)))
}

fn of_allocation(allocation: &AllocationResult, node: &Node) -> Option<String> {
    let selector = allocation.node_selector.as_ref().filter(|selector| !selector.matches(node))?;
    Some(format!("a claim of it is allocated for nodes with {}", unmet_of(selector, node)))
}

/// What a selector wants and does not find: of each alternative the first requirement.
fn unmet_of(selector: &NodeSelector, node: &Node) -> String {
    let unmet = selector.unmet(node);
    if unmet.is_empty() {
        return "nothing that any node has (a term without requirements)".to_owned();
    }
    let of = |key: &str| {
        if key == "metadata.name" { format!("node {}", node.name) } else { label(node, key) }
    };
    let words = unmet.iter().map(|wanted| format!("{wanted}; found {}", of(&wanted.key)));
    words.collect::<Vec<_>>().join(", or ")
}

fn label(node: &Node, key: &str) -> String {
    node.labels.get(key).map_or_else(|| format!("no label {key}"), |value| format!("{key}={value}"))
}
