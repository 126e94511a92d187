//! `aliquot order`: a packing order of a cluster's nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use aliquot_core::node_order::{KEY_PREFIX, Rank, RankFound, ranks};
use serde_json::{Value, json};

use crate::kube::Connection;
use crate::kube::node_order::{IndifferentPod, TaintedNode, indifferent_pods, nodes, write};
use crate::printable::line_of;

use super::cluster_input::open;
use super::failure::{CommandAnswer, Failure};
use super::manual::manual;
use super::output::{Format, Side, Terminal};
use super::progress::StatusLine;

const EXAMPLES: &str = "\
Examples:
  aliquot order                     what is set, and what --set would change
  aliquot order --set               ranks for all nodes with cards of Aliquot, new ones included
  aliquot order --set --context prod
  aliquot order --clear             without a trace";

/// Failures that are shown.
const FAILURES_NAMED: usize = 10;
/// Pods that a message names.
const PODS_NAMED: usize = 10;

/// Fill the nodes of a cluster in a fixed order, so that whole cards stay free
///
/// The scheduler of Kubernetes 1.36 and 1.37 prefers nodes with idle CPUs and memory and does not see parts of cards: it spreads shares over all
/// cards, and Pods with several whole cards wait though enough parts are free. With an order it fills one node after the other.
///
/// Each node for which Aliquot publishes devices gets a rank from 1 to 8, as that many taints `order.aliquot.dev/1`, `…/2` and so on with the effect
/// PreferNoSchedule: the scheduler prefers the node with the fewest, and uses the others as soon as that one has no room. Such
/// taints keep no Pod off, and end none. A rank that is set stays; new nodes get the rank that the fewest nodes have. Other taints
/// are never touched, and --clear removes these from every node of the cluster.
///
/// Without --set or --clear nothing is changed. --set may be repeated at any time: the chart does it every five minutes with
/// packingOrder.enabled. Pods with claims that tolerate every taint are not moved by an order; they are named. `aliquot plan
/// --cluster` follows the order that is set.
///
/// Needs the rights to list nodes, resourceslices.resource.k8s.io and (to name Pods) pods, and to get and patch nodes for --set and --clear.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Give each node with devices of Aliquot its rank
    #[arg(long, conflicts_with = "clear")]
    set: bool,

    /// Take the taints of an order off every node
    #[arg(long)]
    clear: bool,

    /// Context of the kubeconfig; without it, the current one, or the Pod's ServiceAccount where there is no kubeconfig
    #[arg(long, value_name = "CONTEXT", default_value = "", hide_default_value = true)]
    context: String,

    /// Kubeconfig instead of those that kubectl reads
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

/// What is done to the taints of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaintChange {
    /// They are those of the rank, or there are none and none are wanted.
    Nothing,
    Set,
    /// They are those of no rank.
    Mend,
    Remove,
}

/// One line of the answer.
struct NodeLine {
    name: String,
    /// Afterwards; `None`: none.
    rank: Option<Rank>,
    change: TaintChange,
    /// Why it was not done.
    failure: Option<String>,
}

/// What was read of a cluster.
struct Sight {
    nodes: Vec<TaintedNode>,
    pods: Result<BTreeSet<IndifferentPod>, String>,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let (runtime, connection) = open(&args.context, args.kubeconfig.clone())?;
    let sight = runtime.block_on(async {
        let nodes = nodes(&connection).await.map_err(Failure::Node)?;
        Ok::<_, Failure>(Sight { nodes, pods: indifferent_pods(&connection).await })
    })?;
    let mut lines = changes(&sight.nodes, args.clear);
    if args.set || args.clear {
        runtime.block_on(carry_out(&connection, &mut lines, terminal));
    }
    let failed = lines.iter().filter(|line| line.failure.is_some()).count();
    show(args, &lines, &sight, terminal)?;
    for failure in lines.iter().filter_map(|line| line.failure.as_ref()).take(FAILURES_NAMED) {
        terminal.note(format_args!("error: {failure}"))?;
    }
    Ok(if failed > 0 { CommandAnswer::Code(3) } else { CommandAnswer::Yes })
}

/// What is to be done, by node.
fn changes(nodes: &[TaintedNode], clear: bool) -> Vec<NodeLine> {
    // Slices may be away for a moment: a rank that is set stays until it is cleared.
    let ordered = nodes.iter().filter(|node| node.has_devices || node.rank != RankFound::None);
    let ranks: BTreeMap<&str, Rank> = ranks(ordered.map(|node| (node.name.as_str(), node.rank)));
    let line = |node: &TaintedNode| {
        let rank = ranks.get(node.name.as_str()).copied().filter(|_| !clear);
        let change = match (rank, node.rank) {
            (None, RankFound::None) if !node.has_devices => return None,
            (None, RankFound::None) => TaintChange::Nothing,
            (None, _) => TaintChange::Remove,
            (Some(rank), RankFound::Whole(found)) if rank == found => TaintChange::Nothing,
            (Some(_), RankFound::None) => TaintChange::Set,
            (Some(_), _) => TaintChange::Mend,
        };
        Some(NodeLine { name: node.name.clone(), rank, change, failure: None })
    };
    nodes.iter().filter_map(line).collect()
}

async fn carry_out(connection: &Connection, lines: &mut [NodeLine], terminal: &mut Terminal<'_>) {
    let mut status = StatusLine::new(&mut *terminal.err, terminal.progress);
    let all = lines.len();
    for (done, line) in lines.iter_mut().enumerate() {
        status.at("writing taints of nodes", done, all);
        if line.change != TaintChange::Nothing {
            line.failure = write(connection, &line.name, line.rank).await.err();
        }
    }
}

fn show(args: &Args, lines: &[NodeLine], sight: &Sight, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let is_done = args.set || args.clear;
    if args.output != Format::Table {
        let nodes: Vec<Value> = lines.iter().map(|line| line.value(is_done)).collect();
        let pods = sight.pods.as_ref().ok();
        let pods = pods.map(|pods| pods.iter().map(|pod| pod.0.as_str()).collect::<Vec<_>>());
        let value = json!({ "version": 1, "nodes": nodes, "podsThatTolerateEverything": pods });
        terminal.value(args.output, &value)?;
        return Ok(());
    }
    let columns = [("NODE", Side::Left), ("RANK", Side::Right), ("TAINTS", Side::Left)];
    let row = |line: &NodeLine| {
        let rank = line.rank.map_or("-".to_owned(), |rank| rank.number().to_string());
        vec![line_of(&line.name, NAME_MAX), rank, line.word(is_done).to_owned()]
    };
    match lines.is_empty() {
        true => terminal.line("no node with devices of Aliquot, and no taint of an order")?,
        false => terminal.table(&columns, lines.iter().map(row).collect())?,
    }
    match &sight.pods {
        Err(why) => {
            terminal.note(format_args!("note: Pods that tolerate every taint are not named: {why}"))?;
        }
        Ok(pods) if pods.is_empty() => {}
        Ok(pods) => {
            let names: Vec<String> =
                pods.iter().take(PODS_NAMED).map(|pod| line_of(&pod.0, NAME_MAX)).collect();
            let more = match pods.len().saturating_sub(PODS_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            terminal.note(format_args!(
                "note: an order does not move these Pods, since they tolerate every taint: {}{more}; give their \
                 toleration a key, or tolerate {KEY_PREFIX}1 and so on no more",
                names.join(", ")
            ))?;
        }
    }
    Ok(())
}

/// Longest name that is shown.
const NAME_MAX: usize = 330;

// === impl NodeLine ===

impl NodeLine {
    fn word(&self, is_done: bool) -> &'static str {
        match (self.change, is_done, &self.failure) {
            (_, _, Some(_)) => "failed",
            (TaintChange::Nothing, _, _) if self.rank.is_some() => "in place",
            (TaintChange::Nothing, _, _) => "none",
            (TaintChange::Set, true, _) => "set",
            (TaintChange::Set, false, _) => "to set",
            (TaintChange::Mend, true, _) => "mended",
            (TaintChange::Mend, false, _) => "to mend",
            (TaintChange::Remove, true, _) => "removed",
            (TaintChange::Remove, false, _) => "to remove",
        }
    }

    fn value(&self, is_done: bool) -> Value {
        json!({
            "node": self.name,
            "rank": self.rank.map(Rank::number),
            "taints": self.word(is_done),
            "failure": self.failure,
        })
    }
}
