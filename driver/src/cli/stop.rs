//! `aliquot stop`: ends local runs and releases their parts.

use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::id::ClaimUid;
use serde_json::{Value, json};

use crate::checkpoint::{ClaimKind, ClaimRecord};
use crate::clock;
use crate::node::{Access, Node};
use crate::run::stop::StoppingRun;

use super::failure::{CommandAnswer, Failure};
use super::manual::manual;
use super::nodes::NodeArgs;
use super::output::{Format, Terminal, Tone};
use super::run::home::Home;

const EXAMPLES: &str = "\
Examples:
  aliquot stop serve
  aliquot stop --all --grace 60
  aliquot stop train-4711 --node h100-8";

/// Time between two looks whether processes live.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for the node agent to release the parts of ended runs, which it does within seconds.
const AGENT: Duration = Duration::from_secs(10);
/// Longest grace period: a day.
const GRACE_MAX: u64 = 86_400;
/// Runs that a message names.
const NAMED_MAX: usize = 8;

/// End local runs and release their parts
///
/// The supervisor of each run (`aliquot run`) gets SIGTERM and forwards it to its command; processes that outlive it get SIGTERM
/// as well. What lives after the grace period gets SIGKILL. The part of the card is free when this command ends with 0. `aliquot
/// devices` and `aliquot top` show names of runs; a run is stopped by the user that started it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
#[command(override_usage = "aliquot stop [OPTIONS] <RUN>...\n       aliquot stop [OPTIONS] --all")]
pub(super) struct Args {
    /// Run, as NAME, local/NAME or UID of its claim; repeatable
    #[arg(value_name = "RUN", required_unless_present = "all")]
    runs: Vec<String>,

    /// End every run of this state directory
    #[arg(long, conflicts_with = "runs")]
    all: bool,

    /// Time between SIGTERM and SIGKILL; 0 kills at once
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=GRACE_MAX))]
    grace: u64,

    /// Simulated cards of the runs: node file, built-in node, or COUNTxMODEL; without it, this machine's own cards
    #[arg(long, value_name = "NODE", visible_alias = "sim")]
    node: Option<String>,

    /// Directory of card models (TOML) that add to the built-in catalogue or replace models of it
    #[arg(long, value_name = "DIR")]
    catalogue: Option<PathBuf>,

    /// State directory of the runs, as given to `aliquot run`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

/// A run to end, and what came of it.
struct Item {
    name: String,
    uid: Option<ClaimUid>,
    /// Why it goes on; `None`: it has ended.
    why: Option<String>,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let home = Home::of(NodeArgs {
        nodes: args.node.iter().cloned().collect(),
        catalogue: args.catalogue.clone(),
        state: args.state.clone(),
        ..NodeArgs::default()
    })?;
    let (node, _) = home.open_as_it_is(Access::Read, terminal)?;
    let mut items = wanted(args, &node)?;
    end(&mut items, &node, &home, Duration::from_secs(args.grace));
    drop(node);
    release(&mut items, &home, terminal)?;
    show(&items, args.output, terminal)?;
    Ok(if items.iter().all(|item| item.why.is_none()) { CommandAnswer::Yes } else { CommandAnswer::No })
}

/// The runs that the command line names.
fn wanted(args: &Args, node: &Node) -> Result<Vec<Item>, Failure> {
    let runs: Vec<&ClaimRecord> = node.claims().filter(|record| record.kind == ClaimKind::Run).collect();
    if args.all {
        return Ok(runs.into_iter().map(Item::of).collect());
    }
    args.runs.iter().map(|text| find(text, &runs, node)).collect()
}

/// The run with this name or UID; a name of several runs is an error.
fn find(text: &str, runs: &[&ClaimRecord], node: &Node) -> Result<Item, Failure> {
    let means = |record: &ClaimRecord| {
        let name = &record.plan.name;
        let plain = name.split_once('/').map_or(name.as_str(), |(_, plain)| plain);
        record.plan.claim.as_str() == text || name == text || plain == text
    };
    let found: Vec<&&ClaimRecord> = runs.iter().filter(|record| means(record)).collect();
    match found.as_slice() {
        [record] => Ok(Item::of(record)),
        [] => {
            let why = match node.claims().find(|record| means(record)) {
                Some(record) => format!(
                    "found a claim for containers, expected a local run; `aliquot release {}` releases it",
                    record.plan.name
                ),
                None => format!("found no such run, expected {}", listed(runs)),
            };
            Ok(Item { name: text.to_owned(), uid: None, why: Some(why) })
        }
        several => {
            let uids: Vec<&str> = several.iter().map(|r| r.plan.claim.as_str()).take(NAMED_MAX).collect();
            Err(Failure::Usage(format!(
                "{text}: found several runs; name one by its UID: {}",
                uids.join(", ")
            )))
        }
    }
}

fn listed(runs: &[&ClaimRecord]) -> String {
    let names: Vec<&str> = runs.iter().map(|run| run.plan.name.as_str()).take(NAMED_MAX).collect();
    match runs.len().saturating_sub(NAMED_MAX) {
        _ if names.is_empty() => {
            "one: no local run is in this state directory; name another with --state".to_owned()
        }
        0 => format!("one of {}", names.join(", ")),
        more => format!("one of {} and {more} more", names.join(", ")),
    }
}

/// Ends the processes of all runs, side by side.
fn end(items: &mut [Item], node: &Node, home: &Home, grace: Duration) {
    let mut stopping: Vec<(&mut Item, StoppingRun)> = items
        .iter_mut()
        .filter_map(|item| {
            let uid = item.uid.clone()?;
            let grants = node.grants_dir().join(uid.as_str());
            Some((item, StoppingRun::new(uid, grants)))
        })
        .collect();
    loop {
        stopping.retain_mut(|(item, run)| match run.step(&home.state, grace) {
            Ok(ended) => !ended,
            Err(error) => {
                item.why = Some(error.to_string());
                false
            }
        });
        if stopping.is_empty() {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// Releases what ended runs hold, as far as their supervisors have not.
fn release(items: &mut [Item], home: &Home, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let deadline = clock::now() + AGENT;
    while items.iter().any(|item| item.uid.is_some() && item.why.is_none()) {
        let opened = match home.open(terminal) {
            Err(Failure::AgentRuns(_)) => home.open_as_it_is(Access::Read, terminal),
            opened => opened,
        };
        let (node, _) = opened?;
        let held = |item: &&mut Item| item.uid.as_ref().is_some_and(|uid| node.claim(uid).is_some());
        let mut left: Vec<&mut Item> = items.iter_mut().filter(|i| i.why.is_none()).filter(held).collect();
        if left.is_empty() {
            return Ok(());
        }
        if clock::now() >= deadline {
            let why = "its processes have ended, and its part is not released yet; `aliquot devices` shows whether it is";
            left.iter_mut().for_each(|item| item.why = Some(why.to_owned()));
            return Ok(());
        }
        drop(node);
        std::thread::sleep(LOOK * 10);
    }
    Ok(())
}

fn show(items: &[Item], output: Format, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    if output != Format::Table {
        let runs: Vec<Value> = items.iter().map(Item::json).collect();
        terminal.value(output, &json!({ "runs": runs }))?;
        return Ok(());
    }
    if items.is_empty() {
        terminal.line("no local run is in this state directory")?;
    }
    for item in items {
        match &item.why {
            None => {
                let word = terminal.toned(Tone::Good, "stopped");
                terminal.line(format_args!("{}: {word}", item.name))?;
            }
            Some(why) => {
                let word = terminal.toned(Tone::Bad, "not stopped");
                terminal.line(format_args!("{}: {word}: {why}", item.name))?;
            }
        }
    }
    Ok(())
}

// === impl Item ===

impl Item {
    fn of(record: &ClaimRecord) -> Self {
        Self { name: record.plan.name.clone(), uid: Some(record.plan.claim.clone()), why: None }
    }

    fn json(&self) -> Value {
        match &self.why {
            None => json!({ "run": self.name, "outcome": "stopped" }),
            Some(why) => json!({ "run": self.name, "outcome": "refused", "why": why }),
        }
    }
}
