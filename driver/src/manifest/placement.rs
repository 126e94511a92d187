//! What the placement of a Pod depends on besides devices, amounts, and the names, labels and taints of nodes.

use std::collections::BTreeMap;
use std::fmt;

use aliquot_core::dra::{NodeRequirement, SelectorOperator};

/// How far a Pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// No API server has it yet.
    #[default]
    NotCreated,
    /// It waits for a node or for its containers.
    Pending,
    /// It runs, or its node does not answer.
    Running,
    /// It has ended, and holds nothing of its node.
    Ended,
}

/// The condition `PodScheduled` of a Pod that has no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unscheduled {
    /// Its reason, such as `Unschedulable`.
    pub reason: String,
    /// What the scheduler says.
    pub message: String,
}

/// What a Pod's placement depends on besides devices, amounts, and the names, labels and taints of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRules {
    /// Scheduling gates: with any, no scheduler looks at it.
    pub gates: Vec<String>,
    /// Required affinity to Pods.
    pub near: Vec<PodTerm>,
    /// Required anti-affinity to Pods.
    pub apart: Vec<PodTerm>,
    /// Topology spread constraints that keep off nodes.
    pub spread: Vec<SpreadRule>,
    /// Ports of the node that it takes.
    pub ports: Vec<HostPort>,
    /// What only the scheduler can answer, in words.
    pub unknown: Vec<String>,
}

/// Pods in one domain of nodes: a term of Pod affinity or anti-affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTerm {
    /// Labels of the Pods; `None`: no Pod is meant.
    pub selector: Option<LabelSelector>,
    /// Label of nodes that makes a domain.
    pub topology_key: String,
    /// Namespaces of the Pods.
    pub namespaces: Vec<String>,
    /// Namespaces of the Pods by their labels. Without names and this, the Pod's own is meant.
    pub namespace_selector: Option<LabelSelector>,
}

/// A topology spread constraint with `DoNotSchedule`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadRule {
    /// Most Pods that a domain may have beyond the emptiest.
    pub max_skew: u32,
    /// Label of nodes that makes a domain.
    pub topology_key: String,
    /// Labels of the Pods that are counted; `None`: none is.
    pub selector: Option<LabelSelector>,
    /// Below so many domains the emptiest counts as empty.
    pub min_domains: u32,
    /// Nodes that the Pod's node selector and affinity exclude.
    pub excluded_nodes: NodeInclusion,
    /// Nodes with taints that the Pod does not tolerate.
    pub tainted_nodes: NodeInclusion,
}

/// Whether domains of nodes that a Pod may not use count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeInclusion {
    /// They do (`Ignore`).
    Counted,
    /// They do not (`Honor`).
    LeftOut,
}

/// Requirements on labels, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// Requirements; none: everything matches.
    pub requirements: Vec<NodeRequirement>,
}

/// A port of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Number.
    pub port: u32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Address that it is bound to; empty: all.
    pub address: String,
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Whether all requirements hold.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|wanted| wanted.holds(labels.get(&wanted.key).map(String::as_str)))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.requirements.is_empty() {
            return f.write_str("any labels");
        }
        for (number, wanted) in self.requirements.iter().enumerate() {
            f.write_str(if number == 0 { "" } else { " and " })?;
            match (wanted.operator, wanted.values.as_slice()) {
                (SelectorOperator::In, [value]) => write!(f, "{}={value}", wanted.key)?,
                _ => write!(f, "{wanted}")?,
            }
        }
        Ok(())
    }
}
