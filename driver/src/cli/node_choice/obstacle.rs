//! What keeps a unit off a node.

use aliquot_core::dra::{NodeRequirement, NodeSelector, ResourceClaim, Taint};

use super::occupancy::Shortage;
use crate::manifest::{HostPort, Pod, PodTerm, SpreadRule};

/// One thing that keeps a unit off a node.
#[derive(Clone)]
pub(super) enum Obstacle<'m> {
    /// Scheduling gates.
    Gates(&'m [String]),
    /// The Pod names a node, so that no scheduler allocates this claim of it.
    NodeName { name: &'m str, claim: &'m ResourceClaim },
    /// This claim asks for administrative access, which its namespace does not allow.
    AdminAccess(&'m ResourceClaim),
    /// The Pod is made for another node by its `DaemonSet`.
    DaemonNode(&'m str),
    /// A label of `nodeSelector`.
    Label(&'m str, &'m str),
    /// Node affinity without a term that lacks one requirement alone.
    Affinity(&'m NodeSelector),
    /// The one requirement of a term of the node affinity.
    Requirement { affinity: &'m NodeSelector, wanted: &'m NodeRequirement },
    /// This claim is allocated for other nodes.
    Allocation(&'m ResourceClaim),
    /// A taint that it does not tolerate.
    Taint(&'m Taint),
    /// The node has too little of what it requests.
    Amounts(Vec<Shortage>),
    /// A port that a Pod of the node has.
    Port { port: &'m HostPort, holder: &'m Pod },
    /// Affinity to Pods, of which the domain has none.
    Near(&'m PodTerm),
    /// Anti-affinity to Pods, of which the domain has some.
    Apart { term: &'m PodTerm, count: u32 },
    /// Anti-affinity of so many Pods of the domain, this one the first.
    ApartOf { term: &'m PodTerm, first: &'m Pod, count: usize },
    /// The node has no domain of a spread constraint.
    NoDomain(&'m str),
    /// A spread constraint, with the Pods of the node's domain and of the emptiest.
    Spread { rule: &'m SpreadRule, count: u32, emptiest: u32, skew: u32 },
}
