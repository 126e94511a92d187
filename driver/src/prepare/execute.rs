//! Executes the steps of a plan. Each step checks first and acts only on missing or different objects, so the same code
//! prepares, repairs, and does nothing on a correct node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aliquot_cdi::{
    CdiDir, ClaimSpec, ClaimSpecBuilder, Edit, EnvName, EnvValue, Mount, Owner, PlainPath, edits,
};
use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::plan::{Plan, Step};
use aliquot_core::ports::{
    BackendError, DeviceAccess, DeviceBackend, LivePartition, MountContent, PartitionAt,
};

use super::{PrepareError, PreparedClaim, PreparedDevice, SharedShim, host_paths, preload};
use crate::checkpoint::{ClaimKind, PartitionProgress};
use crate::config::GRANTS_VARIABLE;
use crate::disk::{Disk, Mode};
use crate::grant_file;
use crate::region::{self, WriteOutcome, limits_anything, limits_of};
use crate::selinux::{LabelError, Selinux};

/// Where a container finds its grants.
pub(crate) const CONTAINER_GRANTS: &str = "/run/aliquot/grants";

/// Everything with side effects that plans reach.
pub(crate) struct Hands<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) backend: &'a dyn DeviceBackend,
    pub(crate) grants: PathBuf,
    pub(crate) cdi: &'a CdiDir,
    /// The shim that containers load.
    pub(crate) shim: &'a SharedShim,
    pub(crate) selinux: &'a Selinux,
    /// Where the host's root is seen.
    pub(crate) host: &'a Path,
}

/// What came of a plan.
pub(crate) struct PrepareOutcome {
    /// Partitions of ours that it uses, with the handles that they have now.
    pub(crate) partitions: Vec<LivePartition>,
    /// The answer.
    pub(crate) prepared: PreparedClaim,
    /// Things that were made or written; none where all was there already.
    pub(crate) acts: usize,
}

/// Whether a plan is the first of ours to make a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstPlan {
    /// It is: what lies there is foreign.
    Yes,
    /// An earlier try, or another claim's plan, may have made it.
    No,
}

/// Whether something had to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepEffect {
    Done,
    Needless,
}

/// A grant, and how its tenant reaches its part.
struct GrantAccess<'p> {
    grant: &'p Grant,
    access: DeviceAccess,
}

/// Adds those cards of a plan that were not looked at yet; no other card is asked.
fn look_at(hands: &Hands<'_>, plan: &Plan, found: &mut Inventory) -> Result<(), BackendError> {
    for grant in &plan.grants {
        if found.card(&grant.card).is_some() {
            continue;
        }
        match hands.backend.discover_card(&grant.card) {
            Ok(card) => found.cards.push(card),
            Err(BackendError::UnknownCard(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Does all steps in order. `ours` are the partitions that we made or are to make, with what is known of them; at the places in
/// `fresh`, what is found is foreign. `cards` is what was found of the cards just before; those of the plan that it lacks are added.
pub(crate) fn run_steps(
    hands: &Hands<'_>,
    plan: &Plan,
    kind: ClaimKind,
    ours: &BTreeMap<PartitionAt, PartitionProgress>,
    fresh: &BTreeSet<PartitionAt>,
    cards: &mut Option<Inventory>,
) -> Result<PrepareOutcome, PrepareError> {
    let mut acts = Vec::new();
    let mut partitions = Vec::new();
    // Also those that another claim's plan made and this one shares: they may have vanished since.
    let used: BTreeSet<PartitionAt> = plan.grants.iter().filter_map(Grant::partition).collect();
    for (at, making) in ours.iter().filter(|(at, _)| used.contains(at)) {
        let fresh = if fresh.contains(at) { FirstPlan::Yes } else { FirstPlan::No };
        let (live, act) = ensure_partition(hands, &plan.name, at, making, fresh)?;
        tracing::debug!(card = %at.card, placement = %at.placement, step = ?act, "partition");
        partitions.push(live);
        acts.push(act);
    }
    let hardware = |source| PrepareError::Hardware { claim: plan.name.clone(), source: Box::new(source) };
    let cards = cards.get_or_insert_default();
    if acts.contains(&StepEffect::Done) {
        // They are cut another way now.
        cards.cards.retain(|card| !plan.grants.iter().any(|grant| grant.card == card.uuid));
    }
    look_at(hands, plan, cards).map_err(hardware)?;
    let mut granted = Vec::with_capacity(plan.grants.len());
    for grant in &plan.grants {
        let access = hands.backend.access(&grant.card, &grant.part).map_err(hardware)?;
        granted.push(GrantAccess { grant, access });
    }
    let mut prepared = None;
    for step in &plan.steps {
        match step {
            Step::CreatePartition(_) => {}
            Step::WriteGrant(share) => {
                for granted in granted.iter().filter(|granted| granted.grant.share == *share) {
                    let act = ensure_grant(hands, plan, kind, granted, cards)?;
                    tracing::debug!(%share, step = ?act, "grant");
                    acts.push(act);
                }
            }
            Step::WriteCdi => {
                label_files(hands, plan, kind, &granted, cards)?;
                let (answer, act) = ensure_cdi(hands, plan, kind, &granted, cards)?;
                tracing::debug!(claim = plan.name, step = ?act, "CDI file");
                acts.push(act);
                prepared = Some(answer);
            }
        }
    }
    let acts = acts.into_iter().filter(|act| *act == StepEffect::Done).count();
    match prepared {
        Some(prepared) => Ok(PrepareOutcome { partitions, prepared, acts }),
        None => Err(edits_error(plan, "the plan writes no CDI file")),
    }
}

/// The partition at this place, created if it does not exist. An error other than a refusal counts only if the partition does not
/// exist afterwards: a reply may be lost. A partition with another handle at this place belongs to another program.
fn ensure_partition(
    hands: &Hands<'_>,
    claim: &str,
    at: &PartitionAt,
    making: &PartitionProgress,
    fresh: FirstPlan,
) -> Result<(LivePartition, StepEffect), PrepareError> {
    let hardware = |source| PrepareError::Hardware { claim: claim.to_owned(), source: Box::new(source) };
    let stopped = |source: io::Error| {
        hardware(BackendError::Unreachable { what: format!("create {at}"), source: Box::new(source) })
    };
    let there = || Ok(hands.backend.partitions_on(&at.card)?.into_iter().find(|live| live.at == *at));
    match (there().map_err(hardware)?, making) {
        (Some(live), PartitionProgress::Made(handle)) if live.handle != *handle => {
            let (expected, found) = (Box::new(handle.clone()), Box::new(live.handle));
            return Err(hardware(BackendError::Replaced { at: at.clone(), expected, found }));
        }
        (Some(_), PartitionProgress::Planned) if fresh == FirstPlan::Yes => {
            return Err(hardware(BackendError::AlreadyThere { at: at.clone() }));
        }
        (Some(live), _) => return Ok((live, StepEffect::Needless)),
        (None, _) => {}
    }
    hands.disk.before("create partition").map_err(stopped)?;
    let answer = hands.backend.create_partition(at);
    hands.disk.before("after creation").map_err(stopped)?;
    match (answer, there().map_err(hardware)?) {
        // Another program created one since the check, and owns it.
        (Err(source @ (BackendError::AlreadyThere { .. } | BackendError::NoRoom { .. })), _) => {
            Err(hardware(source))
        }
        (_, Some(live)) => Ok((live, StepEffect::Done)),
        (Err(source), None) => Err(hardware(source)),
        (Ok(_), None) => Err(PrepareError::Vanished { claim: claim.to_owned(), at: at.clone() }),
    }
}

/// The record of a share, the region where limits can be held, and the shim where there is something to hold.
fn ensure_grant(
    hands: &Hands<'_>,
    plan: &Plan,
    kind: ClaimKind,
    granted: &GrantAccess<'_>,
    cards: &Inventory,
) -> Result<StepEffect, PrepareError> {
    let GrantAccess { grant, access } = granted;
    let place = grant_file::place(&hands.grants, &grant.claim, &grant.share);
    let path = grant_file::record_path(&hands.grants, &grant.claim, &grant.share);
    let failed = |path: &std::path::Path| {
        let path = path.display().to_string();
        move |source| PrepareError::Grant { claim: plan.name.clone(), verb: "write", path, source }
    };
    let text =
        grant_file::render(grant, &access.visible_uuid).map_err(io::Error::other).map_err(failed(&path))?;
    let disk = match kind {
        ClaimKind::Container => hands.disk.clone(),
        // Each time that the node is opened all of this is looked over, before the run is found gone.
        ClaimKind::Run => hands.disk.until_power_fails(),
    };
    let mut act = StepEffect::Needless;
    if !region::holds(&path, text.as_bytes()) {
        disk.make_dir(&place.dir).map_err(failed(&place.dir))?;
        disk.replace(&path, text.as_bytes(), Mode::ReadOnly).map_err(failed(&path))?;
        act = StepEffect::Done;
    }
    let Some(limits) = limits(grant, cards, access) else { return Ok(act) };
    if place.ensure(&disk, &limits).map_err(failed(&place.dir))? == WriteOutcome::Something {
        act = StepEffect::Done;
    }
    if limits_anything(&limits) && kind == ClaimKind::Container {
        let claim = grant_file::claim_dir(&hands.grants, &grant.claim);
        if preload::ensure(&disk, &claim, hands.shim).map_err(failed(&claim))? == WriteOutcome::Something {
            act = StepEffect::Done;
        }
    }
    Ok(act)
}

/// Lets containers use the files of the claim. Without limits they may work without these files.
fn label_files(
    hands: &Hands<'_>,
    plan: &Plan,
    kind: ClaimKind,
    granted: &[GrantAccess<'_>],
    cards: &Inventory,
) -> Result<(), PrepareError> {
    if kind == ClaimKind::Run {
        return Ok(());
    }
    let trees = [grant_file::claim_dir(&hands.grants, &plan.claim), hands.shim.dir().to_owned()];
    let Some(error) = trees.iter().find_map(|tree| hands.selinux.label_tree(tree).err()) else {
        return Ok(());
    };
    let has_limits = |granted: &GrantAccess<'_>| {
        limits(granted.grant, cards, &granted.access).is_some_and(|limits| limits_anything(&limits))
    };
    // The directory of the claim is removed when the prepare is undone.
    let tree = match error.tree.starts_with(&hands.grants) {
        true => hands.grants.clone(),
        false => error.tree,
    };
    let error = LabelError { tree, ..error };
    if granted.iter().any(has_limits) {
        return Err(PrepareError::Label { claim: plan.name.clone(), source: Box::new(error) });
    }
    tracing::warn!("claim {}: it has no limits and is prepared: {error}", plan.name);
    Ok(())
}

/// What the shim is to hold the grant to.
fn limits(grant: &Grant, cards: &Inventory, access: &DeviceAccess) -> Option<aliquot_abi::limits::Limits> {
    limits_of(grant, cards.card(&grant.card)?, &access.visible_uuid)
}

fn ensure_cdi(
    hands: &Hands<'_>,
    plan: &Plan,
    kind: ClaimKind,
    granted: &[GrantAccess<'_>],
    cards: &Inventory,
) -> Result<(PreparedClaim, StepEffect), PrepareError> {
    let prepared = prepared(plan)?;
    if kind == ClaimKind::Run {
        return Ok((prepared, StepEffect::Needless));
    }
    let spec = cdi_spec(hands, plan, granted, cards)?;
    let path = hands.cdi.path(spec.claim());
    if fs::read(&path).is_ok_and(|found| found == spec.text().as_bytes()) {
        return Ok((prepared, StepEffect::Needless));
    }
    host_paths::check(&spec, hands.host)
        .map_err(|source| PrepareError::Hardware { claim: plan.name.clone(), source: Box::new(source) })?;
    let stopped = |source| PrepareError::Grant {
        claim: plan.name.clone(),
        verb: "write",
        path: path.display().to_string(),
        source,
    };
    hands.disk.before("write CDI file").map_err(stopped)?;
    hands
        .cdi
        .write(&spec)
        .map_err(|source| PrepareError::Cdi { claim: plan.name.clone(), source: Box::new(source) })?;
    hands.disk.before("after CDI file").map_err(stopped)?;
    Ok((prepared, StepEffect::Done))
}

/// The answer that goes with a plan.
fn prepared(plan: &Plan) -> Result<PreparedClaim, PrepareError> {
    let device = |grant: &Grant| {
        let (uid, request, share) = names(plan, grant)?;
        Ok(PreparedDevice {
            request: grant.request.clone(),
            pool: grant.device.pool.clone(),
            device: grant.device.device.clone(),
            share: grant.share.clone(),
            cdi_name: aliquot_cdi::QualifiedName::of_share(&uid, &request, &share).to_string(),
        })
    };
    let devices = plan.grants.iter().map(device).collect::<Result<_, PrepareError>>()?;
    Ok(PreparedClaim { uid: plan.claim.clone(), devices })
}

/// The names of a grant as CDI has them.
fn names(
    plan: &Plan,
    grant: &Grant,
) -> Result<(aliquot_cdi::ClaimUid, aliquot_cdi::RequestName, aliquot_cdi::ShareName), PrepareError> {
    let wrong = |what: &dyn std::fmt::Display| edits_error(plan, &what.to_string());
    let uid = plan.claim.as_str().parse().map_err(|e| wrong(&e))?;
    let request = grant.request.parse().map_err(|e| wrong(&e))?;
    let share = grant.share.as_str().parse().map_err(|e| wrong(&e))?;
    Ok((uid, request, share))
}

/// The claim's CDI file.
fn cdi_spec(
    hands: &Hands<'_>,
    plan: &Plan,
    granted: &[GrantAccess<'_>],
    cards: &Inventory,
) -> Result<ClaimSpec, PrepareError> {
    let wrong = |what: &dyn std::fmt::Display| edits_error(plan, &what.to_string());
    let mut builder = ClaimSpecBuilder::new(plan.claim.as_str().parse().map_err(|e| wrong(&e))?);
    for GrantAccess { grant, access } in granted {
        let (_, request, share) = names(plan, grant)?;
        let owner = Owner::new(format!("request {request}, share {share}"));
        let mut edits = edits_of(hands, grant, access).map_err(|e| wrong(&e))?;
        if let Some(limits) = limits(grant, cards, access) {
            edits.push(usage_edit(hands, grant).map_err(|e| wrong(&e))?);
            if limits_anything(&limits) {
                let claim = grant_file::claim_dir(&hands.grants, &grant.claim);
                edits.extend(preload::edits(&claim, hands.shim).map_err(|e| wrong(&e))?);
            }
        }
        builder.device(&request, &share, &owner, &edits).map_err(|e| wrong(&e))?;
    }
    builder.build().map_err(|e| wrong(&e))
}

/// The one file that the container may write: the usage of its grant.
fn usage_edit(hands: &Hands<'_>, grant: &Grant) -> Result<Edit, edits::EditError> {
    let host = grant_file::place(&hands.grants, &grant.claim, &grant.share).usage();
    let container = format!("{CONTAINER_GRANTS}/{}/{}/{}", grant.claim, grant.share, region::USAGE);
    Mount::usage_file(container.parse()?, host.display().to_string().parse()?).map(Edit::Mount)
}

/// What a container gets for one grant: the device files, the record of its limits, and where to find that.
fn edits_of(hands: &Hands<'_>, grant: &Grant, access: &DeviceAccess) -> Result<Vec<Edit>, edits::EditError> {
    let host = grant_file::share_dir(&hands.grants, &grant.claim, &grant.share);
    let container = format!("{CONTAINER_GRANTS}/{}/{}", grant.claim, grant.share);
    let record = Mount::read_only(container.parse()?, host.display().to_string().parse()?);
    let variable: EnvName = GRANTS_VARIABLE.parse()?;
    let value: EnvValue = CONTAINER_GRANTS.parse()?;
    let mut edits = vec![Edit::Env(variable, value), Edit::Mount(record)];
    edits.extend(access_edits(access)?);
    Ok(edits)
}

/// What of the hardware a container reaches, without any limit.
pub(crate) fn access_edits(access: &DeviceAccess) -> Result<Vec<Edit>, edits::EditError> {
    let mut edits = Vec::new();
    for node in &access.nodes {
        let (container, host): (PlainPath, PlainPath) = (node.container.parse()?, node.host.parse()?);
        let number = (node.major, node.minor);
        edits.push(Edit::Node(aliquot_cdi::DeviceNode::new(container, host, number)?));
    }
    for mount in &access.mounts {
        let (container, host): (PlainPath, PlainPath) = (mount.container.parse()?, mount.host.parse()?);
        edits.push(Edit::Mount(match mount.content {
            MountContent::ReadOnly => Mount::read_only(container, host),
            MountContent::SimulatedCards => Mount::simulated_cards(container, host)?,
        }));
    }
    for (name, value) in &access.environment {
        edits.push(Edit::Env(name.parse()?, value.parse()?));
    }
    Ok(edits)
}

fn edits_error(plan: &Plan, what: &str) -> PrepareError {
    PrepareError::Edits { claim: plan.name.clone(), what: what.to_owned() }
}
