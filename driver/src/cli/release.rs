//! `aliquot release`: releases claims on a node with its state in a directory.

use std::collections::BTreeSet;
use std::path::Path;

use aliquot_core::disposition::Disposition;
use aliquot_core::id::ClaimUid;
use serde_json::{Value, json};

use crate::node::{Access, Node};
use crate::prepare::ReleaseOutcome;
use crate::run::record::{self, RecordState};

use super::failure::{CommandAnswer, Failure};
use super::held_by;
use super::leftovers;
use super::manual::manual;
use super::nodes::{Fleet, NodeArgs};
use super::output::{Format, Terminal, Tone};
use crate::error_text::chain;
use crate::state_dir::must_exist;

const EXAMPLES: &str = "\
Examples:
  aliquot release quarter-npu --node mixed --state /tmp/node
  aliquot release --all --node mixed --state /tmp/node";

/// Most processes that a message names.
const NAMED_MAX: usize = 8;

/// Release claims of a simulated node
///
/// A claim with live processes is refused, and the processes are named: its memory would be granted twice. --all skips such claims
/// and exits with 1. A claim of `aliquot run` is released by itself when the run has ended.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
#[command(override_usage = "aliquot release [OPTIONS] <CLAIM>...\n       aliquot release [OPTIONS] --all")]
pub(super) struct Args {
    /// Claim, as NAME, NAMESPACE/NAME or UID; repeatable
    #[arg(value_name = "CLAIM", required_unless_present = "all")]
    claims: Vec<String>,

    /// Release every claim of the node
    #[arg(long, conflicts_with = "claims")]
    all: bool,

    /// Release also claims with live processes, except those of `aliquot run`. Their memory stays on the card until they end,
    /// beside later grants there
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    nodes: NodeArgs,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

/// Why a claim is not given back.
struct Stays {
    why: String,
    disposition: Disposition,
}

impl Stays {
    fn refused(why: impl Into<String>) -> Self {
        Self { why: why.into(), disposition: Disposition::Refuse }
    }

    fn unreadable(error: &std::io::Error) -> Self {
        let why = format!("the record of its run cannot be read: {error}");
        Self { why, disposition: Disposition::Broken }
    }
}

/// Whether claims with live processes are released as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiveClaims {
    Stays,
    Goes,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    // Without a state directory the node is refused below.
    let state = args.nodes.state.clone().unwrap_or_default();
    if args.nodes.state.is_some() {
        // Without it no claim was prepared, and it must not be created.
        must_exist(&state)?;
    }
    let (mut node, _) = Fleet::open_one(&args.nodes, Access::Change, terminal)?;
    let wanted = match args.all {
        true => node.claims().map(|r| (r.plan.name.clone(), Some(r.plan.claim.clone()))).collect(),
        false => args.claims.iter().map(|c| find(&node, c)).collect::<Result<Vec<_>, _>>()?,
    };
    let used = if args.force { LiveClaims::Goes } else { LiveClaims::Stays };
    let mut failures = Vec::new();
    let mut items = Vec::new();
    for (name, uid) in wanted {
        let outcome = match uid {
            None => {
                Err(Stays::refused("found no such claim on this node; `aliquot devices` lists its claims"))
            }
            Some(uid) => give_back(&mut node, &args.nodes, (&name, &uid), used),
        };
        failures.extend(outcome.as_ref().err().map(|stays| stays.disposition));
        items.push((name, outcome.map_err(|stays| stays.why)));
    }
    leftovers::give_back_simulated(&mut node, &args.nodes, terminal)?;
    show(&items, args.output, terminal)?;
    Ok(CommandAnswer::of(failures))
}

/// Releases a claim without live processes. The error names the processes and the remedy.
fn give_back(
    node: &mut Node,
    args: &NodeArgs,
    (name, uid): (&str, &ClaimUid),
    used: LiveClaims,
) -> Result<(), Stays> {
    let grants = node.grants_dir().join(uid.as_str());
    let found = record::find(args.state.as_deref().unwrap_or(Path::new("")), uid);
    let left = match found.map_err(|error| Stays::unreadable(&error))? {
        Some(RecordState::Supervised(pid)) => {
            return Err(Stays::refused(format!(
                "found its `aliquot run` alive (process {pid}); {}",
                held_by::stop(name, uid, args)
            )));
        }
        Some(RecordState::Left(left)) => {
            if let Some(pids) = left.live_processes(grants) {
                return Err(Stays::refused(format!(
                    "found live processes of its `aliquot run` ({}); {}",
                    numbers(&pids),
                    held_by::stop(name, uid, args)
                )));
            }
            Some(left)
        }
        None => match record::live_processes_of_claim(grants) {
            Some(pids) if used == LiveClaims::Stays => {
                return Err(Stays::refused(format!(
                    "found live processes ({}); end them and try again, or release it in spite of them with --force",
                    numbers(&pids)
                )));
            }
            _ => None,
        },
    };
    match node.release(uid) {
        Ok(ReleaseOutcome::Released | ReleaseOutcome::Unknown) => {}
        Err(error) => return Err(Stays { why: chain(&error), disposition: error.disposition() }),
    }
    match left.map(record::OrphanedRun::forget) {
        // The next run removes the record of a released claim.
        Some(Ok(()) | Err(_)) | None => Ok(()),
    }
}

fn numbers(pids: &BTreeSet<u32>) -> String {
    let named: Vec<String> = pids.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match pids.len().saturating_sub(NAMED_MAX) {
        _ if named.is_empty() => "not visible from this pid namespace".to_owned(),
        0 if named.len() == 1 => format!("process {}", named.concat()),
        0 => format!("processes {}", named.join(", ")),
        more => format!("processes {} and {more} more", named.join(", ")),
    }
}

fn show(
    items: &[(String, Result<(), String>)],
    output: Format,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    if output == Format::Table {
        for (name, outcome) in items {
            let (word, why) = match outcome {
                Ok(()) => (terminal.toned(Tone::Good, "released"), String::new()),
                Err(why) => (terminal.toned(Tone::Bad, "not released"), format!(": {why}")),
            };
            terminal.line(format_args!("{name}: {word}{why}"))?;
        }
    } else {
        let claims: Vec<Value> = items
            .iter()
            .map(|(name, outcome)| match outcome {
                Ok(()) => json!({ "claim": name, "outcome": "released" }),
                Err(why) => json!({ "claim": name, "outcome": "refused", "why": why }),
            })
            .collect();
        terminal.value(output, &json!({ "claims": claims }))?;
    }
    Ok(())
}

/// The claim with this name or UID; a name of several claims is an error.
fn find(node: &Node, text: &str) -> Result<(String, Option<ClaimUid>), Failure> {
    let means = |name: &str, uid: &ClaimUid| {
        uid.as_str() == text || name == text || name.split_once('/').is_some_and(|(_, plain)| plain == text)
    };
    let mut found = node.claims().filter(|r| means(&r.plan.name, &r.plan.claim));
    match (found.next(), found.next()) {
        (Some(first), Some(second)) => {
            let (first, second) = (&first.plan.name, &second.plan.name);
            Err(Failure::Usage(format!("{text}: could be {first} or {second}; write namespace/name")))
        }
        (Some(record), None) => Ok((record.plan.name.clone(), Some(record.plan.claim.clone()))),
        (None, _) => Ok((text.to_owned(), None)),
    }
}
