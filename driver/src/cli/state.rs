//! The node whose state lies in a directory: what `prepare` changed, every later command sees.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;
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
use crate::disk::Disk;
use crate::health::HealthBook;
use crate::node::{Access, Dirs, Node, Parts};
use crate::prepare::recorded;

use super::failure::Failure;
use super::hardware::Hardware;
use super::output::Terminal;

/// What a node with state is made of, besides its state.
pub(super) struct Setting<'a> {
    pub(super) catalogue: &'a Catalogue,
    pub(super) policy: &'a LayoutPolicy,
    pub(super) server: ServerVersion,
}

/// The state directory: to change what is in it, it is made where only its last part is missing; to look at it, it must be
/// there.
pub(super) fn make(state: &Path, access: Access) -> Result<(), Failure> {
    if access != Access::Read {
        match fs::create_dir(state) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                let advice = "Make the directory above it, or name another one with --state";
                return Err(Failure::path("make state directory", state, source, advice));
            }
            _ => {}
        }
    }
    must_be_there(state)
}

/// Opens a node on its state directory, which [`make`] has looked at.
pub(super) fn open(
    setting: &Setting<'_>,
    hardware: Hardware,
    state: &Path,
    access: Access,
    terminal: &mut Terminal<'_>,
) -> Result<Node, Failure> {
    let parts = Parts {
        name: hardware.name,
        backend: hardware.backend,
        catalogue: Arc::new(setting.catalogue.clone()),
        policy: setting.policy.clone(),
        server: setting.server,
        offers: None,
        disk: Disk::default(),
        gauge: hardware.gauge,
    };
    let (node, recovery) =
        Node::open(parts, &Dirs::in_state(state), access).map_err(|error| Failure::Node(chain(&error)))?;
    for uid in &recovery.undone {
        terminal.note(format_args!("note: claim {uid} was interrupted; what was begun is undone"))?;
    }
    for problem in &recovery.problems {
        terminal.note(format_args!("warning: {problem}"))?;
    }
    // Who gives something back has said it before.
    if !matches!(access, Access::ChangeWithin(_)) {
        for problem in HealthBook::of(state).xids().1 {
            terminal.note(format_args!("warning: {problem}"))?;
        }
    }
    Ok(node)
}

/// An error with its causes, as one sentence.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

/// Refuses a path that is no directory, or one that cannot be read.
pub(super) fn must_be_there(state: &Path) -> Result<(), Failure> {
    let advice = "`aliquot prepare` makes it; check the name given with --state";
    match fs::read_dir(state) {
        Ok(_) => Ok(()),
        Err(source) => Err(Failure::path("read state directory", state, source, advice)),
    }
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
