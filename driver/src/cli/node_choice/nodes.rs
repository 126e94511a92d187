//! Nodes, and what of a Pod they answer by themselves.

use crate::manifest::{CORDONED, Manifests, Pod};
use aliquot_core::allocate::{NodeIndex, World};
use aliquot_core::dra::{AllocationResult, Node, Taint, TaintEffect};

pub(super) fn numbered(world: &World) -> impl Iterator<Item = (NodeIndex, &Node)> {
    let number = |(i, node)| u32::try_from(i).ok().map(|i| (NodeIndex(i), node));
    world.nodes().iter().enumerate().filter_map(number)
}

pub(super) fn labelled(node: &Node, pod: &Pod) -> bool {
    pod.node_labels.iter().all(|(k, v)| node.labels.get(k) == Some(v))
}

/// Whether affinity and the claims that are allocated already allow the node.
pub(super) fn bound(node: &Node, pod: Option<&Pod>, fixed: &[&AllocationResult]) -> bool {
    fixed.iter().filter_map(|a| a.node_selector.as_ref()).all(|s| s.matches(node))
        && pod.and_then(|p| p.affinity.as_ref()).is_none_or(|s| s.matches(node))
}

/// The taints of a node that keep a Pod off, as it does not bear them.
pub(in crate::cli) fn unborne<'m>(node: &str, pod: &Pod, manifests: &'m Manifests) -> Vec<&'m Taint> {
    let hard = |taint: &&Taint| matches!(taint.effect, TaintEffect::NoSchedule | TaintEffect::NoExecute);
    not_borne(node, pod, manifests).filter(hard).collect()
}

/// How many taints of a node make the scheduler prefer others for a Pod: those with effect `PreferNoSchedule` that it does not
/// bear. Nodes with fewer come first.
pub(super) fn reluctance(node: &str, pod: &Pod, manifests: &Manifests) -> usize {
    not_borne(node, pod, manifests).filter(|taint| matches!(taint.effect, TaintEffect::Other(_))).count()
}

fn not_borne<'m>(node: &str, pod: &Pod, manifests: &'m Manifests) -> impl Iterator<Item = &'m Taint> {
    let taints = manifests.node_taints.get(node).into_iter().flatten();
    taints.filter(|taint| !pod.tolerations.iter().any(|t| t.bears(taint)))
}

/// A taint as `kubectl taint` writes it.
pub(super) fn shown(taint: &Taint) -> String {
    let Taint { key, value, effect } = taint;
    let effect = match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::NoExecute => "NoExecute",
        TaintEffect::None => "None",
        TaintEffect::Other(other) => other,
    };
    let equals = if value.is_empty() { "" } else { "=" };
    let cordoned = if key == CORDONED { "cordoned: " } else { "" };
    format!("{cordoned}{key}{equals}{value}:{effect}")
}
