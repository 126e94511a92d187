//! `aliquot plan`: where Pods and claims would go, on a real cluster's dump or on hypothetical nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use aliquot_core::dra::{Access, Device, DeviceResult, ResourceClaim};
use aliquot_core::offer::{CAPACITY_CORES, CAPACITY_MEMORY};
use aliquot_core::quantity::{Format as QuantityFormat, Quantity};
use serde_json::json;

use crate::error_text::chain;
use crate::kube::listing::NamespaceScope;
use crate::manifest::Object;
use crate::node::{Access as NodeAccess, Node};

use super::cluster::{Cluster, Placement, UnitOutcome};
use super::cluster_input::{self, InputArgs};
use super::failure::{CommandAnswer, Failure};
use super::layouts::LayoutSearch;
use super::manual::manual;
use super::node_choice;
use super::nodes::{Fleet, NodeArgs};
use super::output::{Format, ListExtras, Side, Terminal, Tone};
use super::prepare::{self, again};
use super::progress::StatusLine;
use super::words::{NOTHING_TO_PLACE, most};

const EXAMPLES: &str = "\
Examples:
  aliquot plan -f pods.yaml --node 8xh100
  aliquot plan -f pods.yaml --node '8xh100*125' --node ascend-910b3-8
  aliquot plan -f pods.yaml --cluster=staging
  kubectl get nodes,namespaces,deviceclasses,resourceslices,resourceclaims,pods -A -o yaml | \\
    aliquot plan -f - -o json

On Kubernetes 1.37 or newer add devicetaintrules to the kinds; --cluster reads them itself.";

/// Place Pods and claims, without touching anything
///
/// Reads Pods (and what makes Pods), claims, templates and classes as written for kubectl, and places them in order as
/// the scheduler would: first fit, all claims of a Pod on one node. Devices come from --node, from `ResourceSlice`s among
/// the manifests (a dump of any cluster, of any vendor's driver), or both. Claims that carry an allocation hold it. With
/// --state, claims that are prepared are shown with what `prepare` would change of them, or why it would refuse.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    #[command(flatten)]
    input: InputArgs,

    /// The same as -f
    #[arg(value_name = "FILE")]
    more: Vec<PathBuf>,

    #[command(flatten)]
    nodes: NodeArgs,

    /// Rows of the table at most; 0 shows all
    #[arg(long, value_name = "ROWS", default_value_t = 100, value_parser = most)]
    limit: usize,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let manifests = cluster_input::read(&args.input, &NamespaceScope::Readable, &args.more, terminal)?;
    let allocated = manifests.claims.iter().filter(|claim| claim.allocation.is_some());
    let allocated: BTreeSet<String> = allocated.map(|claim| claim.uid.clone()).collect();
    let (node, mut fleet) = nodes(&args.nodes.for_cluster(&manifests, terminal)?, terminal)?;
    let mut cluster = Cluster::new(manifests, &mut fleet)?;
    cluster.warn(terminal)?;
    let mut placements = {
        let mut line = StatusLine::new(&mut *terminal.err, terminal.progress);
        cluster.place_all(|done, all| line.at("placing", done, all))
    };
    cluster.workload.note_hints(terminal)?;
    let changes = node.map(|node| changes(&node, &cluster, &allocated, &mut placements)).unwrap_or_default();
    say_more(&cluster, &fleet, &mut placements);
    let refused = placements.iter().filter(|p| matches!(p.outcome, UnitOutcome::Refused(_))).count();
    match args.output {
        Format::Table => table(&cluster, &placements, &changes, args.limit, terminal)?,
        form => answer(form, &cluster, &placements, &changes, terminal)?,
    }
    Ok(fleet.answer(if refused == 0 { CommandAnswer::Yes } else { CommandAnswer::No }))
}

/// The nodes of the command line, with the node itself where there is state.
fn nodes(args: &NodeArgs, terminal: &mut Terminal<'_>) -> Result<(Option<Node>, Fleet), Failure> {
    if args.state.is_none() {
        return Ok((None, Fleet::load(args, terminal)?));
    }
    let (node, fleet) = Fleet::open_one(args, NodeAccess::Read, terminal)?;
    Ok((Some(node), fleet))
}

/// What `prepare` would change of claims that are prepared on the node, by unit; a change that it would refuse makes its unit
/// refused. Claims with an allocation in the manifests stay as they are.
fn changes(
    node: &Node,
    cluster: &Cluster,
    allocated: &BTreeSet<String>,
    placements: &mut [Placement],
) -> BTreeMap<usize, Vec<String>> {
    let mut changes: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for placement in placements.iter_mut().filter(|p| matches!(p.outcome, UnitOutcome::Held)) {
        for claim in cluster.claims_of(placement.unit).filter(|c| !allocated.contains(&c.uid)) {
            let asked = again::as_asked(claim, node, cluster);
            match asked.and_then(|claim| node.preview(&claim).map_err(|error| chain(&error))) {
                Ok(pairs) => {
                    let words = pairs.iter().flat_map(|(old, new)| prepare::changes(old, new));
                    changes.entry(placement.unit).or_default().extend(words);
                }
                Err(why) => {
                    placement.outcome = UnitOutcome::Refused(why);
                    break;
                }
            }
        }
    }
    changes
}

/// Adds to refusals which layout would place the unit, or why there is no node for it; the same for units of one kind.
fn say_more(cluster: &Cluster, fleet: &Fleet, placements: &mut [Placement]) {
    let mut layouts = LayoutSearch::new(fleet);
    let mut known: BTreeMap<String, Option<String>> = BTreeMap::new();
    for placement in placements {
        let (unit, UnitOutcome::Refused(why)) = (placement.unit, &mut placement.outcome) else { continue };
        let Some(kind) = cluster.kind_of(unit) else { continue };
        let more = known.entry(kind).or_insert_with(|| match cluster.asked(unit) {
            Some((_, nodes)) if nodes.is_empty() => node_choice::listed(&cluster.excluded(unit)),
            _ => layouts.change(cluster, unit).map(|change| change.as_cause()),
        });
        if let Some(more) = more {
            why.push_str("; ");
            why.push_str(more);
        }
    }
}

fn table(
    cluster: &Cluster,
    placements: &[Placement],
    changes: &BTreeMap<usize, Vec<String>>,
    limit: usize,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let columns = [
        ("FOR", Side::Left),
        ("NODE", Side::Left),
        ("CLAIM", Side::Left),
        ("REQUEST", Side::Left),
        ("DEVICE", Side::Left),
        ("TAKES", Side::Left),
    ];
    let all: usize = placements.iter().map(|p| row_count(cluster, p)).sum();
    let shown = if limit == 0 { all } else { limit.min(all) };
    if all > 0 {
        // Rows that are not shown are not made.
        let rows = placements.iter().flat_map(|p| rows(cluster, p)).take(shown);
        terminal.table(&columns, rows.collect())?;
    }
    if shown < all {
        terminal.line(format_args!("… and {} rows more; --limit 0 shows all", all - shown))?;
    }
    for (unit, words) in changes {
        for change in words {
            terminal.line(format_args!("{}: would change: {change}", cluster.label(*unit)))?;
        }
    }
    for (reason, labels) in refusals(cluster, placements) {
        let more = match labels.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let first = labels.first().map(String::as_str).unwrap_or_default();
        let word = terminal.toned(Tone::Bad, "does not fit");
        terminal.line(format_args!("{first}{more}: {word}: {reason}"))?;
    }
    let verdict = verdict(placements);
    let tone = if verdict.refused == 0 { Tone::Good } else { Tone::Bad };
    let line = terminal.toned(tone, &verdict.text());
    terminal.line(line)?;
    Ok(())
}

/// Equal reasons with those they are about, in order.
fn refusals(cluster: &Cluster, placements: &[Placement]) -> Vec<(String, Vec<String>)> {
    let mut order: Vec<(String, Vec<String>)> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for placement in placements {
        if let UnitOutcome::Refused(reason) = &placement.outcome {
            let at = *known.entry(reason).or_insert_with(|| {
                order.push((reason.clone(), Vec::new()));
                order.len() - 1
            });
            order[at].1.push(cluster.label(placement.unit));
        }
    }
    order
}

/// As many as [`rows`] makes.
fn row_count(cluster: &Cluster, placement: &Placement) -> usize {
    match placement.outcome {
        UnitOutcome::Refused(_) => 0,
        UnitOutcome::Placed(_) | UnitOutcome::Held => {
            let claims = cluster.claims_of(placement.unit);
            claims.filter_map(|claim| claim.allocation.as_ref()).map(|found| found.devices.len()).sum()
        }
    }
}

fn rows(cluster: &Cluster, placement: &Placement) -> Vec<Vec<String>> {
    let node = match &placement.outcome {
        UnitOutcome::Refused(_) => return Vec::new(),
        UnitOutcome::Placed(node) => node.clone(),
        UnitOutcome::Held => "(held)".to_owned(),
    };
    let label = cluster.label(placement.unit);
    let mut rows = Vec::new();
    for claim in cluster.claims_of(placement.unit) {
        for result in claim.allocation.iter().flat_map(|a| &a.devices) {
            rows.push(vec![
                label.clone(),
                node.clone(),
                claim.name.clone(),
                result.request.clone(),
                format!("{}/{}", result.device.pool, result.device.device),
                takes(result, cluster.world.device(&result.device)),
            ]);
        }
    }
    rows
}

/// How much of the device: its share, or all of it. Of a partition also what that is.
pub(super) fn takes(result: &DeviceResult, device: Option<&Device>) -> String {
    if result.access == Access::Admin {
        return "monitors, holds nothing".to_owned();
    }
    let whole =
        |name: &str| device.and_then(|device| device.capacity.get(name)).map(|capacity| capacity.value);
    let consumed = &result.consumed_capacity;
    let share: Vec<String> = consumed.iter().map(|(name, amount)| amount_text(name, *amount)).collect();
    // All of the memory with best-effort compute is all of the device: no other share fits beside it.
    let is_all = |(name, amount): (&String, &Quantity)| {
        whole(name) == Some(*amount) || name == CAPACITY_CORES && *amount == Quantity::ZERO
    };
    let all_memory =
        consumed.get(CAPACITY_MEMORY).is_some_and(|amount| whole(CAPACITY_MEMORY) == Some(*amount));
    if result.share_id.is_some() && !(all_memory && consumed.iter().all(is_all)) {
        return share.join(", ");
    }
    let cores =
        whole(CAPACITY_CORES).filter(|cores| *cores < Quantity::from_units(100, QuantityFormat::DecimalSi));
    match (whole(CAPACITY_MEMORY), cores) {
        (Some(memory), Some(cores)) => format!("all of it: {memory} memory, {cores} % cores"),
        _ => "all of it".to_owned(),
    }
}

/// An amount with its name.
fn amount_text(name: &str, amount: Quantity) -> String {
    match name {
        CAPACITY_CORES if amount == Quantity::ZERO => "best effort".to_owned(),
        CAPACITY_CORES => format!("{amount} % cores"),
        name => format!("{amount} {name}"),
    }
}

struct PlanCounts {
    placed: usize,
    held: usize,
    refused: usize,
}

fn verdict(placements: &[Placement]) -> PlanCounts {
    let count = |wanted: fn(&UnitOutcome) -> bool| placements.iter().filter(|p| wanted(&p.outcome)).count();
    PlanCounts {
        placed: count(|o| matches!(o, UnitOutcome::Placed(_))),
        held: count(|o| matches!(o, UnitOutcome::Held)),
        refused: count(|o| matches!(o, UnitOutcome::Refused(_))),
    }
}

impl PlanCounts {
    fn text(&self) -> String {
        if self.placed + self.held + self.refused == 0 {
            return NOTHING_TO_PLACE.to_owned();
        }
        let mut parts = vec![format!("{} placed", self.placed)];
        if self.held > 0 {
            parts.push(format!("{} held already", self.held));
        }
        match self.refused {
            0 => parts.push("everything fits".to_owned()),
            refused => parts.push(format!("{refused} without a place (aliquot explain says why)")),
        }
        parts.join(", ")
    }
}

/// A `List` of the claims in the API's own form, with what came of them beside it.
fn answer(
    form: Format,
    cluster: &Cluster,
    placements: &[Placement],
    changes: &BTreeMap<usize, Vec<String>>,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let mut seen = std::collections::BTreeSet::new();
    let claims = placements.iter().flat_map(|p| cluster.claims_of(p.unit));
    let items =
        claims.filter(|c| seen.insert(c.uid.as_str())).map(|c: &ResourceClaim| Object::Claim(c).json());
    let outcomes = placements.iter().map(|placement| {
        let owner = cluster.label(placement.unit);
        let claims: Vec<String> =
            cluster.claims_of(placement.unit).map(|c| format!("{}/{}", c.namespace, c.name)).collect();
        match &placement.outcome {
            UnitOutcome::Placed(node) => {
                json!({ "for": owner, "outcome": "placed", "node": node, "claims": claims })
            }
            UnitOutcome::Held => {
                let mut held = json!({ "for": owner, "outcome": "held", "claims": claims });
                if let Some(words) = changes.get(&placement.unit).filter(|words| !words.is_empty()) {
                    held["changes"] = json!(words);
                }
                held
            }
            UnitOutcome::Refused(why) => {
                json!({ "for": owner, "outcome": "refused", "why": why, "claims": claims })
            }
        }
    });
    let PlanCounts { placed, held, refused } = verdict(placements);
    let summary = json!({ "placed": placed, "held": held, "refused": refused });
    let beside =
        vec![("outcomes", ListExtras::List(Box::new(outcomes))), ("summary", ListExtras::Value(summary))];
    terminal.list(form, items, beside)?;
    Ok(())
}
