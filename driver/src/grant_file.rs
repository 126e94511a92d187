//! The record of a share that its tenant is shown: read-only, one JSON object, the same bytes for the same grant.

use std::path::{Path, PathBuf};

use aliquot_core::grant::{Grant, SettingWord};
use aliquot_core::id::{CardUuid, ClaimUid, ShareName};
use serde::Serialize;

use crate::region::GrantPaths;

/// Name of the file beside the directory of all grants that is locked while limits are written.
const WRITERS: &str = "limits.lock";
/// Name of the record in the directory of its share.
const FILE: &str = "grant.json";

/// The object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GrantText<'a> {
    api_version: &'static str,
    kind: &'static str,
    claim: &'a str,
    share: &'a str,
    request: &'a str,
    card: &'a str,
    visible_uuid: &'a str,
    part: String,
    memory_bytes: u64,
    cores_percent: u8,
    compute_policy: &'static str,
    priority: &'static str,
    fail_mode: &'static str,
}

/// Directory of a claim's shares.
pub(crate) fn claim_dir(grants: &Path, claim: &ClaimUid) -> PathBuf {
    grants.join(claim.as_str())
}

/// Directory of one share; this is what a container mounts.
pub(crate) fn share_dir(grants: &Path, claim: &ClaimUid, share: &ShareName) -> PathBuf {
    claim_dir(grants, claim).join(share.as_str())
}

/// Where the region of one share lies.
pub(crate) fn place(grants: &Path, claim: &ClaimUid, share: &ShareName) -> GrantPaths {
    GrantPaths { dir: share_dir(grants, claim, share), lock: grants.with_file_name(WRITERS) }
}

/// The record of one share.
pub(crate) fn record_path(grants: &Path, claim: &ClaimUid, share: &ShareName) -> PathBuf {
    share_dir(grants, claim, share).join(FILE)
}

/// The text of the record.
pub(crate) fn render(grant: &Grant, visible: &CardUuid) -> Result<String, serde_json::Error> {
    let text = GrantText {
        api_version: "aliquot.dev/v1",
        kind: "Grant",
        claim: grant.claim.as_str(),
        share: grant.share.as_str(),
        request: &grant.request,
        card: grant.card.as_str(),
        visible_uuid: visible.as_str(),
        part: grant.part.to_string(),
        memory_bytes: grant.memory.0,
        cores_percent: grant.cores.percent(),
        compute_policy: grant.settings.compute.word(),
        priority: grant.settings.priority.word(),
        fail_mode: grant.settings.fail_mode.word(),
    };
    let mut json = serde_json::to_string_pretty(&text)?;
    json.push('\n');
    Ok(json)
}
