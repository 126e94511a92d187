//! What ends a claim that holds what another one asks for: the act depends on what made it.
//!
//! | holder | act |
//! |---|---|
//! | local run | `aliquot stop` |
//! | claim of `aliquot prepare` | `aliquot release` |
//! | claim of the manifests with Pods | these are deleted |
//! | other claim of the manifests | it is deleted |

use aliquot_core::allocate::Change;
use aliquot_core::id::ClaimUid;
use aliquot_core::plan::PlanRefusal;

use super::cluster::Cluster;
use super::nodes::NodeArgs;
use super::workload::UnitOwner;
use crate::checkpoint::{ClaimKind, ClaimRecord};
use crate::error_text::chain;
use crate::node::Node;
use crate::prepare::PrepareError;

/// Pods that a remedy names.
const PODS_MAX: usize = 3;
/// Holders whose end a message names.
const ENDS_MAX: usize = 3;

/// A claim that the state of a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldBy {
    /// `namespace/name`.
    pub(super) name: String,
    uid: String,
    kind: ClaimKind,
    /// Options of the node and its state.
    options: String,
}

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

/// `aliquot stop` for a run of this state.
pub(super) fn stop(name: &str, uid: &ClaimUid, args: &NodeArgs) -> String {
    HeldBy { name: name.to_owned(), uid: uid.to_string(), kind: ClaimKind::Run, options: options(args) }.act()
}

/// The options that name a node and its state again.
fn options(args: &NodeArgs) -> String {
    let nodes = args.nodes.iter().map(|node| ("--node", quoted(node)));
    let dirs = [("--catalogue", &args.catalogue), ("--state", &args.state)];
    let dirs =
        dirs.into_iter().filter_map(|(option, dir)| Some((option, quoted(&dir.as_ref()?.to_string_lossy()))));
    nodes
        .chain(dirs)
        .flat_map(|(option, value)| [" ".to_owned(), option.to_owned(), " ".to_owned(), value])
        .collect()
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./@%+=:,".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

// === impl HeldBy ===

impl HeldBy {
    pub(super) fn of(record: &ClaimRecord, args: &NodeArgs) -> Self {
        let (name, uid) = (record.plan.name.clone(), record.plan.claim.to_string());
        Self { name, uid, kind: record.kind, options: options(args) }
    }

    /// The command that ends it.
    fn act(&self) -> String {
        let Self { name, uid, kind, options } = self;
        match kind {
            // Names of runs may be equal.
            ClaimKind::Run => format!("`aliquot stop {uid}{options}` ends the run {name}"),
            ClaimKind::Container => format!("`aliquot release {name}{options}` releases it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_special_characters_are_quoted() {
        let cases = [
            ("/tmp/node", "/tmp/node"),
            ("8xh100*2", "'8xh100*2'"),
            ("/tmp/it's here", "'/tmp/it'\\''s here'"),
            ("", "''"),
        ];
        for (word, expected) in cases {
            assert_eq!(quoted(word), expected);
        }
    }
}
