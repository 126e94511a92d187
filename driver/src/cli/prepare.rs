//! `aliquot prepare`: prepares claims on a node with its state in a directory.

pub(super) mod again;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use aliquot_core::disposition::Disposition;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::grant::{Grant, SettingWord as _};
use aliquot_core::id::ClaimUid;
use aliquot_core::partition::Part;
use serde_json::{Value, json};

use crate::checkpoint::ClaimKind;
use crate::node::Node;
use crate::prepare::{PrepareError, PreparedClaim};

use super::cluster::{Cluster, UnitOutcome};
use super::failure::{CommandAnswer, Failure};
use super::holders;
use super::input::{self, FileArgs};
use super::leftovers;
use super::manual::manual;
use super::nodes::NodeArgs;
use super::output::{Format, Side, Terminal, Tone};

const EXAMPLES: &str = "\
Examples:
  aliquot prepare -f pod.yaml --node mixed --state /tmp/node
  aliquot plan -f pod.yaml --node mixed -o json | aliquot prepare -f - --node mixed --state /tmp/node";

/// Prepare claims on a simulated node: partitions, grants, CDI files
///
/// Claims with an allocation are prepared as allocated (`aliquot plan -o json` writes such claims); other claims are placed
/// on the node first. The state directory records prepared claims: `aliquot devices --state` shows them, and `aliquot release`
/// releases them. Preparing a claim again applies only the changes of its manifest.
///
/// Memory, compute and settings of a share change in place: running processes read the new limits, except the fail mode, which
/// applies to processes that start later. A change is refused if the card has no room for it, or if more memory is in use than
/// it leaves. Other changes need a release first.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    #[command(flatten)]
    files: FileArgs,

    #[command(flatten)]
    nodes: NodeArgs,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

/// The result of one claim.
struct ClaimAnswer {
    claim: String,
    result: Result<PreparedClaim, String>,
    /// What to do about a failure.
    disposition: Option<Disposition>,
    /// The command that explains a refusal.
    hint: &'static str,
    /// Changes of a claim that was already prepared.
    changes: Vec<String>,
    cdi_file: PathBuf,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let manifests = input::read(&args.files, terminal)?;
    // Allocated claims keep their allocation; other claims keep the devices that the node holds for them, with their new requests.
    let decided: BTreeSet<String> =
        manifests.claims.iter().filter(|c| c.allocation.is_some()).map(|c| c.uid.clone()).collect();
    let (mut node, mut fleet) = leftovers::open(&args.nodes, terminal)?;
    fleet.refuse_impossible(&args.nodes)?;
    let mut cluster = Cluster::new(manifests, &mut fleet)?;
    cluster.warn(terminal)?;
    let placements = cluster.place_all(|_, _| {});
    cluster.workload.note_hints(terminal)?;
    let mut done = Vec::new();
    for placement in &placements {
        if let UnitOutcome::Refused(why) = &placement.outcome {
            let refused = ClaimAnswer::refused(cluster.label(placement.unit), why.clone());
            done.push(ClaimAnswer { hint: " (aliquot explain says why)", ..refused });
            continue;
        }
        for claim in cluster.claims_of(placement.unit) {
            let asked = match decided.contains(&claim.uid) {
                true => Ok(claim.clone()),
                false => again::as_asked(claim, &node, &cluster),
            };
            done.push(match asked {
                Ok(claim) => ClaimAnswer::prepare(&mut node, &claim, &args.nodes),
                Err(why) => ClaimAnswer::refused(name_of(claim), why),
            });
            if let Some(ClaimAnswer { result: Ok(prepared), .. }) = done.last()
                && let Some(record) = node.claim(&prepared.uid)
            {
                for words in of_one_part(&record.plan.grants) {
                    let claim = name_of(claim);
                    terminal.last_note(format_args!("warning: {claim}: {words}"));
                }
            }
            for note in node.take_notes() {
                terminal.last_note(format_args!("warning: {note}"));
            }
        }
    }
    match args.output {
        Format::Table => table(&done, terminal)?,
        form => {
            let claims: Vec<Value> = done.iter().map(ClaimAnswer::json).collect();
            terminal.value(form, &json!({ "claims": claims }))?;
        }
    }
    Ok(CommandAnswer::of(done.iter().filter_map(|done| done.disposition)))
}

fn name_of(claim: &ResourceClaim) -> String {
    format!("{}/{}", claim.namespace, claim.name)
}

/// Warnings about several shares of one part in one claim. A program selects a card, not a share, so it cannot choose between two
/// shares of one card (`shim/src/grants.rs`).
fn of_one_part(grants: &[Grant]) -> Vec<String> {
    let mut parts: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for grant in grants {
        let partition = match &grant.part {
            Part::Partition { template, placement } => Some((template, placement)),
            Part::Card | Part::Slot { .. } => None,
        };
        parts.entry((&grant.card, partition)).or_default().push(&grant.request);
    }
    let several = parts.into_iter().filter(|(_, requests)| requests.len() > 1);
    let words = several.map(|((card, _), requests)| {
        let requests = requests.join("`, `");
        format!(
            "requests `{requests}` hold shares of the same part of card {card}: a container with more than one of them gets the \
             largest alone; request one share, or give each container one request"
        )
    });
    words.collect()
}

/// A running process keeps the mode that it started with.
const FAIL_MODE: &str = "failMode (for processes that begin from now on)";

/// Differences between two grants, in words.
pub(super) fn changes(old: &Grant, new: &Grant) -> Vec<String> {
    let (had, has) = (old.settings, new.settings);
    let words = [
        ("memory", old.memory.to_string(), new.memory.to_string()),
        ("cores", old.cores.to_string(), new.cores.to_string()),
        ("computePolicy", had.compute.word().to_owned(), has.compute.word().to_owned()),
        ("priority", had.priority.word().to_owned(), has.priority.word().to_owned()),
        (FAIL_MODE, had.fail_mode.word().to_owned(), has.fail_mode.word().to_owned()),
    ];
    let other = words.into_iter().filter(|(_, was, is)| was != is);
    other.map(|(what, was, is)| format!("{what} of `{}` from {was} to {is}", new.request)).collect()
}

fn table(done: &[ClaimAnswer], terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let columns =
        [("CLAIM", Side::Left), ("REQUEST", Side::Left), ("DEVICE", Side::Left), ("CDI DEVICE", Side::Left)];
    let rows: Vec<Vec<String>> = done.iter().flat_map(ClaimAnswer::rows).collect();
    if !rows.is_empty() {
        terminal.table(&columns, rows)?;
    }
    for item in done {
        match &item.result {
            Ok(_) => {
                terminal.line(format_args!("{}: CDI file {}", item.claim, item.cdi_file.display()))?;
                for change in &item.changes {
                    terminal.line(format_args!("{}: changed: {change}", item.claim))?;
                }
            }
            Err(why) => {
                let word = terminal.toned(Tone::Bad, "not prepared");
                terminal.line(format_args!("{}: {word}: {why}{}", item.claim, item.hint))?;
            }
        }
    }
    Ok(())
}

// === impl ClaimAnswer ===

impl ClaimAnswer {
    fn prepare(node: &mut Node, claim: &ResourceClaim, args: &NodeArgs) -> Self {
        let grants = |node: &Node| {
            let uid = ClaimUid::new(claim.uid.as_str()).ok();
            uid.and_then(|uid| node.claim(&uid)).map(|record| record.plan.grants.clone()).unwrap_or_default()
        };
        let before = grants(node);
        let result = node.prepare(claim);
        let disposition = result.as_ref().err().map(PrepareError::disposition);
        let result = result.map_err(|error| holders::refusal(&error, node, ClaimKind::Container, args));
        let changes = before.iter().zip(&grants(node)).flat_map(|(old, new)| changes(old, new)).collect();
        let cdi_file = node.cdi_dir().join(cdi_file_name(&claim.uid));
        Self { claim: name_of(claim), result, disposition, hint: "", changes, cdi_file }
    }

    fn refused(claim: String, why: String) -> Self {
        let (disposition, changes) = (Some(Disposition::Refuse), Vec::new());
        Self { claim, result: Err(why), disposition, hint: "", changes, cdi_file: PathBuf::new() }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let devices = self.result.iter().flat_map(|prepared| &prepared.devices);
        let row = |device: &crate::prepare::PreparedDevice| {
            let name = format!("{}/{}", device.pool, device.device);
            vec![self.claim.clone(), device.request.clone(), name, device.cdi_name.clone()]
        };
        devices.map(row).collect()
    }

    fn json(&self) -> Value {
        match &self.result {
            Err(why) => json!({ "claim": self.claim, "outcome": "refused", "why": why }),
            Ok(prepared) => {
                let devices: Vec<Value> = prepared
                    .devices
                    .iter()
                    .map(|d| {
                        json!({
                            "request": d.request,
                            "pool": d.pool,
                            "device": d.device,
                            "share": d.share.as_str(),
                            "cdiDevice": d.cdi_name,
                        })
                    })
                    .collect();
                json!({
                    "claim": self.claim,
                    "uid": prepared.uid.as_str(),
                    "outcome": "prepared",
                    "changes": self.changes,
                    "cdiFile": self.cdi_file.display().to_string(),
                    "devices": devices,
                })
            }
        }
    }
}

/// Name of a claim's CDI file.
pub(super) fn cdi_file_name(uid: &str) -> String {
    format!("aliquot.dev-claim-{uid}.json")
}
