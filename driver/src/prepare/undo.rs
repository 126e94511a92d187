//! The inverses of a plan, done. Undoing what was never done, or is undone already, succeeds.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use aliquot_core::id::ClaimUid;
use aliquot_core::plan::{Plan, Undo};
use aliquot_core::ports::{BackendError, ExpectedPartition, PartitionAt};

use super::PrepareError;
use super::execute::Hands;
use crate::checkpoint::PartitionProgress;
use crate::grant_file;

/// Does all inverses in order. `partitions` are ours, with what is known of them; one that is another by now is left.
pub(crate) fn run_undo(
    hands: &Hands<'_>,
    plan: &Plan,
    undos: &[Undo],
    partitions: &BTreeMap<PartitionAt, PartitionProgress>,
) -> Result<(), PrepareError> {
    for undo in undos {
        match undo {
            Undo::RemoveCdi => remove_cdi(hands, plan)?,
            Undo::RemoveGrant(share) => {
                let dir = grant_file::share_dir(&hands.grants, &plan.claim, share);
                hands.disk.remove_tree(&dir).map_err(|e| grant_error(plan, &dir, e))?;
            }
            Undo::DestroyPartition(at) => {
                let expected = match partitions.get(at) {
                    Some(PartitionProgress::Made(handle)) => ExpectedPartition::Handle(handle.clone()),
                    Some(PartitionProgress::Planned) => ExpectedPartition::Any,
                    None => continue,
                };
                destroy(hands, plan, at, &expected)?;
            }
        }
    }
    remove_claim_dir(hands, plan)
}

/// Removes the files of a claim; its partitions stay.
pub(crate) fn remove_files(hands: &Hands<'_>, plan: &Plan) -> Result<(), PrepareError> {
    remove_cdi(hands, plan)?;
    remove_claim_dir(hands, plan)
}

fn remove_claim_dir(hands: &Hands<'_>, plan: &Plan) -> Result<(), PrepareError> {
    let dir = grant_file::claim_dir(&hands.grants, &plan.claim);
    hands.disk.remove_tree(&dir).map_err(|e| grant_error(plan, &dir, e))
}

fn remove_cdi(hands: &Hands<'_>, plan: &Plan) -> Result<(), PrepareError> {
    let wrong =
        |e: &dyn std::fmt::Display| PrepareError::Edits { claim: plan.name.clone(), what: e.to_string() };
    let uid: aliquot_cdi::ClaimUid = plan.claim.as_str().parse().map_err(|e| wrong(&e))?;
    let path = hands.cdi.path(&uid);
    if fs::symlink_metadata(&path).is_err() {
        return Ok(());
    }
    hands.disk.before("remove CDI file").map_err(|e| grant_error(plan, &path, e))?;
    match hands.cdi.remove(&uid) {
        Ok(_) => Ok(()),
        Err(source) => Err(PrepareError::Cdi { claim: plan.name.clone(), source: Box::new(source) }),
    }
}

/// Destroys a partition of ours. An error is believed only when the partition is still there afterwards.
fn destroy(
    hands: &Hands<'_>,
    plan: &Plan,
    at: &PartitionAt,
    expected: &ExpectedPartition,
) -> Result<(), PrepareError> {
    let hardware = |source| PrepareError::Hardware { claim: plan.name.clone(), source: Box::new(source) };
    let stopped = |source: io::Error| {
        hardware(BackendError::Unreachable { what: format!("destroy {at}"), source: Box::new(source) })
    };
    hands.disk.before("destroy partition").map_err(stopped)?;
    let answer = hands.backend.destroy_partition(at, expected);
    hands.disk.before("after destruction").map_err(stopped)?;
    match answer {
        Ok(()) | Err(BackendError::Absent { .. } | BackendError::Replaced { .. }) => Ok(()),
        Err(source) => {
            let is_there = stands(hands, at).map_err(hardware)?;
            if is_there { Err(hardware(source)) } else { Ok(()) }
        }
    }
}

/// Whether a partition takes its place on the card, also if programs do not reach it (yet, or any longer). Of a card that does not
/// answer none is known, so that claims on it can be released.
fn stands(hands: &Hands<'_>, at: &PartitionAt) -> Result<bool, BackendError> {
    match hands.backend.discover_card(&at.card) {
        Ok(card) => Ok(card.found.contains(&at.part())),
        Err(BackendError::UnknownCard(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn grant_error(plan: &Plan, path: &std::path::Path, source: io::Error) -> PrepareError {
    PrepareError::Grant { claim: plan.name.clone(), verb: "remove", path: path.display().to_string(), source }
}

/// Claims that have grants here and no record.
pub(crate) fn unknown_claims(
    hands: &Hands<'_>,
    known: impl Fn(&ClaimUid) -> bool,
) -> Result<Vec<ClaimUid>, PrepareError> {
    let failed = |source| PrepareError::Grant {
        claim: "(all)".to_owned(),
        verb: "read",
        path: hands.grants.display().to_string(),
        source,
    };
    let mut unknown = Vec::new();
    for entry in fs::read_dir(&hands.grants).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let uid = name.to_str().and_then(|text| ClaimUid::new(text).ok());
        unknown.extend(uid.filter(|uid| !known(uid)));
    }
    unknown.sort();
    Ok(unknown)
}
