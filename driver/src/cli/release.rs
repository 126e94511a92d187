//! `aliquot release`: give back what claims hold on a node whose state lies in a directory.

use aliquot_core::id::ClaimUid;
use serde_json::{Value, json};

use crate::node::{Access, Node};
use crate::prepare::Released;

use super::failure::{Answer, Failure};
use super::manual;
use super::nodes::{Fleet, NodeArgs};
use super::output::{Format, Terminal, Tone};
use super::state::{chain, must_be_there};

const EXAMPLES: &str = "\
Examples:
  aliquot release quarter-npu --node mixed --state /tmp/node
  aliquot release --all --node mixed --state /tmp/node";

/// Give back what claims hold on a simulated node
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Claim, as NAME, NAMESPACE/NAME or UID; repeatable
    #[arg(value_name = "CLAIM", required_unless_present = "all")]
    claims: Vec<String>,

    /// Release every claim of the node
    #[arg(long, conflicts_with = "claims")]
    all: bool,

    #[command(flatten)]
    nodes: NodeArgs,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<Answer, Failure> {
    if let Some(state) = &args.nodes.state {
        // Where nothing was prepared there is nothing to give back, and nothing to make.
        must_be_there(state)?;
    }
    let (mut node, _) = Fleet::open_one(&args.nodes, Access::Change, terminal)?;
    let wanted = match args.all {
        true => node.claims().map(|r| (r.plan.name.clone(), Some(r.plan.claim.clone()))).collect(),
        false => args.claims.iter().map(|c| find(&node, c)).collect::<Result<Vec<_>, _>>()?,
    };
    let mut answer = Answer::Yes;
    let mut items = Vec::new();
    for (name, uid) in wanted {
        let outcome = match uid {
            None => Err("holds nothing on this node; `aliquot devices` shows who does".to_owned()),
            Some(uid) => match node.release(&uid) {
                Ok(Released::Released | Released::Unknown) => Ok(()),
                Err(error) => Err(chain(&error)),
            },
        };
        if outcome.is_err() {
            answer = Answer::No;
        }
        items.push((name, outcome));
    }
    if args.output == Format::Table {
        for (name, outcome) in &items {
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
        terminal.value(args.output, &json!({ "claims": claims }))?;
    }
    Ok(answer)
}

/// The claim that a text means; a name that several claims have is an error.
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
