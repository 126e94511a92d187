//! What ends a claim that holds what another one asks for: the act depends on what made it.
//!
//! | holder | act |
//! |---|---|
//! | local run | `aliquot stop` |
//! | claim of `aliquot prepare` | `aliquot release` |
//! | claim of the manifests with Pods | these are deleted |
//! | other claim of the manifests | it is deleted |

use aliquot_core::allocate::Change;
use aliquot_core::plan::PlanRefusal;

use super::cluster::Cluster;
use super::held_by::HeldBy;
use super::node_args::NodeArgs;
use super::workload::UnitOwner;
use crate::checkpoint::ClaimKind;
use crate::error_text::chain;
use crate::node::Node;
use crate::prepare::PrepareError;

/// Pods that a remedy names.
const PODS_MAX: usize = 3;
/// Holders whose end a message names.
const ENDS_MAX: usize = 3;

/// The change that would place a unit, in words that someone can carry out.
pub(super) fn words(change: &Change, cluster: &Cluster) -> String {
    let Change::ReleaseClaim { claim, holds } = change else { return change.to_string() };
    let held = format!("{holds} device{}", if *holds == 1 { "" } else { "s" });
    if let Some(holder) = cluster.held_by.iter().find(|holder| holder.name == *claim) {
        return format!("end {claim}, which holds {held}: {}", holder.act());
    }
    let pods = pods_of(claim, cluster);
    let named = pods.iter().take(PODS_MAX).cloned().collect::<Vec<_>>().join(", ");
    match pods.len().saturating_sub(PODS_MAX) {
        _ if pods.is_empty() => format!("delete claim {claim}, which holds {held}"),
        0 => format!("delete {named}: claim {claim} holds {held}"),
        more => format!("delete {named} and {more} more: claim {claim} holds {held}"),
    }
}

/// The Pods that use a claim, as people call them.
fn pods_of(claim: &str, cluster: &Cluster) -> Vec<String> {
    let workload = &cluster.workload;
    let is_it = |number: &usize| {
        let known = workload.claims.get(*number);
        known.is_some_and(|c| claim.split_once('/') == Some((c.namespace.as_str(), c.name.as_str())))
    };
    let of_pods = workload.units.iter().filter(|unit| unit.owner != UnitOwner::Claim);
    let using = of_pods.filter(|unit| unit.claims.iter().any(is_it));
    using.map(|unit| unit.label(&cluster.manifests, &workload.claims)).collect()
}

/// A failed prepare in words: its causes, then what someone can do about it here.
pub(super) fn refusal(error: &PrepareError, node: &Node, kind: ClaimKind, args: &NodeArgs) -> String {
    let mut text = chain(error);
    let mut ends: Vec<String> = error
        .holding_claims()
        .into_iter()
        .filter_map(|uid| node.claim(uid))
        .map(|record| HeldBy::of(record, args).act())
        .collect();
    ends.sort();
    ends.dedup();
    for end in ends.into_iter().take(ENDS_MAX) {
        text.push_str("; ");
        text.push_str(&end);
    }
    let advice = match (error.refusal(), kind) {
        (Some(PlanRefusal::Unhealthy { .. }), ClaimKind::Run) => "; name another card with --card, or none",
        (Some(PlanRefusal::Unhealthy { .. } | PlanRefusal::UnknownDevice { .. }), ClaimKind::Container) => {
            "; leave its allocation out, and `aliquot prepare` places it elsewhere"
        }
        _ => "",
    };
    text.push_str(advice);
    text
}
