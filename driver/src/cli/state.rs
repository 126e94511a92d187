//! A node with its state in a directory: later commands read the changes of `prepare`.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use aliquot_core::catalogue::Catalogue;
use aliquot_core::dra::{
    AllocatedConfig, AllocationResult, ConfigSource, DeviceResult, ResourceClaim, ShareId, Sharing,
};
use aliquot_core::grant::Grant;
use aliquot_core::offer::{LayoutPolicy, Offers, ServerVersion};
use aliquot_core::quantity::{Format, Quantity};
use aliquot_core::units::Cores;

use crate::checkpoint::ClaimRecord;
use crate::error_text::chain;
use crate::hardware::Hardware;
use crate::health::HealthBook;
use crate::node::{Access, Dirs, Node, NodeParts, OpenError};
use crate::prepare::recorded;
use crate::state_dir::wait::LockHolder;

use super::failure::Failure;
use super::output::Terminal;

/// What a node with state is made of, besides its state.
pub(super) struct NodeSetup<'a> {
    pub(super) catalogue: &'a Catalogue,
    pub(super) policy: &'a LayoutPolicy,
    pub(super) server: ServerVersion,
}

/// Opens a node on its state directory, which exists.
pub(super) fn open(
    setting: &NodeSetup<'_>,
    hardware: Hardware,
    state: &Path,
    access: Access,
    terminal: &mut Terminal<'_>,
) -> Result<Node, Failure> {
    let catalogue = Arc::new(setting.catalogue.clone());
    let parts = NodeParts::of(hardware, catalogue, setting.policy.clone(), setting.server);
    let parts = NodeParts { on_wait: say_waiting, ..parts };
    let (node, recovery) =
        Node::open(parts, &Dirs::in_state(state), access).map_err(|error| match error {
            OpenError::AgentRuns { .. } => Failure::AgentRuns(error.to_string()),
            error => Failure::Node(chain(&error)),
        })?;
    for uid in &recovery.undone {
        terminal.note(format_args!("note: claim {uid} was interrupted; what was begun is undone"))?;
    }
    for problem in &recovery.problems {
        terminal.note(format_args!("warning: {problem}"))?;
    }
    // A run that releases its claim has printed these at its start.
    if !matches!(access, Access::ChangeWithin(_)) {
        for problem in HealthBook::of(state).xids().1 {
            terminal.note(format_args!("warning: {problem}"))?;
        }
    }
    Ok(node)
}

fn say_waiting(holder: &LockHolder) {
    // A closed standard error is no reason to stop waiting.
    drop(writeln!(io::stderr(), "waiting for {holder}, which is making changes to the state directory"));
}

/// The claims that a node has in its journal, as allocated claims.
pub(super) fn held_claims(node: &Node, offers: &Offers) -> Vec<ResourceClaim> {
    node.claims().map(|record| held_claim(record, offers)).collect()
}

fn held_claim(record: &ClaimRecord, offers: &Offers) -> ResourceClaim {
    let (namespace, name) = record.plan.name.split_once('/').unwrap_or(("default", &record.plan.name));
    let devices = record.plan.grants.iter().map(|grant| result(grant, offers)).collect();
    let config = settings(&record.plan.grants);
    ResourceClaim {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: record.plan.claim.to_string(),
        requests: Vec::new(),
        constraints: Vec::new(),
        config: Vec::new(),
        allocation: Some(AllocationResult { devices, config, ..AllocationResult::default() }),
    }
}

/// The settings that a claim was prepared with. They stand where configuration of classes stands, before the claim's
/// own: classes may have changed since, and an allocation keeps what they said when it was made.
fn settings(grants: &[Grant]) -> Vec<AllocatedConfig> {
    let by_request: BTreeMap<&str, &Grant> = grants.iter().map(|g| (g.request.as_str(), g)).collect();
    by_request
        .into_iter()
        .filter_map(|(request, grant)| {
            let opaque = recorded(grant.settings)?;
            Some(AllocatedConfig { source: ConfigSource::Class, requests: vec![request.to_owned()], opaque })
        })
        .collect()
}

fn result(grant: &Grant, offers: &Offers) -> DeviceResult {
    let shared = offers.parts.get(&grant.device).is_some_and(|part| part.sharing == Sharing::Shareable);
    let capacity = [
        (aliquot_core::offer::CAPACITY_MEMORY, grant.memory.quantity()),
        (aliquot_core::offer::CAPACITY_CORES, percent(grant.cores)),
    ];
    DeviceResult {
        request: grant.request.clone(),
        device: grant.device.clone(),
        access: aliquot_core::dra::Access::Normal,
        tolerations: Vec::new(),
        binding_conditions: Vec::new(),
        binding_failure_conditions: Vec::new(),
        share_id: shared.then(|| ShareId(grant.share.to_string())),
        consumed_capacity: capacity
            .into_iter()
            .filter(|_| shared)
            .map(|(name, amount)| (name.to_owned(), amount))
            .collect(),
    }
}

fn percent(cores: Cores) -> Quantity {
    Quantity::from_units(i64::from(cores.percent()), Format::DecimalSi)
}
