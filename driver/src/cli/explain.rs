//! `aliquot explain`: why claims do not fit, device by device, and what would help.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use aliquot_core::allocate::{
    Change, ChangesTried, Explanation, NodeExplanation, NodesExplained, PlacementRefusal, Reach, ReasonGroup,
    RejectReason, Rejection, RequestExplanation,
};
use aliquot_core::dra::AllocationMode;
use serde_json::{Value, json};

use crate::manifest::TaintRule;

use super::cluster::{Cluster, UnitOutcome};
use super::cluster_input::{self, InputArgs, NamespaceArgs};
use super::failure::{CommandAnswer, Failure};
use super::holders;
use super::layouts::{LayoutChange, LayoutSearch};
use super::manual::manual;
use super::node_choice::ExcludedNode;
use super::nodes::{Fleet, NodeArgs};
use super::object_name::{self, is_named, lies_in};
use super::output::{Format, ListFormat, Terminal, Tone};
use super::progress::StatusLine;
use super::words::{NOTHING_TO_PLACE, most};

/// Most nodes with their reasons shown one by one.
pub(super) const NODES_SHOWN: usize = 5;
/// Devices of one reason that are named.
const DEVICES_SHOWN: usize = 4;

const EXAMPLES: &str = "\
Examples:
  aliquot explain -f claim.yaml --node mixed
  aliquot explain --cluster team/train-0
  aliquot explain --context prod -n team pod/train-0
  kubectl get nodes,namespaces,deviceclasses,resourceslices,resourceclaims,pods -A -o yaml | \\
    aliquot explain -f - team/train-0

On Kubernetes 1.37 or newer add devicetaintrules to the kinds; --cluster reads them itself.";

/// Say why claims do not fit, and a change that would place them
///
/// Places everything as `plan` does, then looks at each Pod or claim without a place: for every device the first reason
/// why it does not serve, nearest misses first, and a single change that works, proved by a search.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    #[command(flatten)]
    input: InputArgs,

    #[command(flatten)]
    namespaces: NamespaceArgs,

    #[command(flatten)]
    nodes: NodeArgs,

    /// Pod or claim to explain, as NAME, NAMESPACE/NAME or KIND/NAME; all that do not fit, if none is given
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Pods and claims explained at most; 0 explains all
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = most)]
    limit: usize,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: ListFormat,
}

/// One explained Pod or claim.
pub(super) struct UnitExplanation {
    pub(super) label: String,
    pub(super) why: String,
    pub(super) explanation: Option<Explanation>,
    /// Nodes that were not tried, for other reasons than taints.
    excluded: Vec<ExcludedNode>,
    /// A change of the Pod or of a node that would place it on another node.
    pub(super) node_change: Option<String>,
    /// A single change that would place it, in words.
    remedy: Option<String>,
    /// The taint rules of the cluster; those that alone put their taint on devices.
    taint_rules: Vec<TaintRule>,
    sole_rules: Vec<TaintRule>,
}

/// Manifests among the names: files of such a name.
fn files_and_names(words: &[String]) -> (Vec<PathBuf>, Vec<String>) {
    let is_file = |word: &&String| cluster_input::is_manifest(Path::new(word));
    let (files, names): (Vec<&String>, Vec<&String>) = words.iter().partition(is_file);
    (files.into_iter().map(PathBuf::from).collect(), names.into_iter().cloned().collect())
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let (files, names) = files_and_names(&args.names);
    let manifests = cluster_input::read(&args.input, &args.namespaces.scope(), &files, terminal)?;
    let mut fleet = Fleet::load(&args.nodes.for_cluster(&manifests, terminal)?, terminal)?;
    let mut cluster = Cluster::new(manifests, &mut fleet)?;
    cluster.warn(terminal)?;
    let placements = {
        let mut line = StatusLine::new(&mut *terminal.err, terminal.progress);
        cluster.place_all(|done, all| line.at("placing", done, all))
    };
    cluster.workload.note_hints(terminal)?;
    let mut found: BTreeSet<&String> = BTreeSet::new();
    let (mut fits, mut refused, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for placement in placements {
        let label = cluster.label(placement.unit);
        let mut own = vec![label.clone()];
        own.extend(cluster.claims_of(placement.unit).map(|c| format!("claim {}/{}", c.namespace, c.name)));
        let asked: Vec<&String> =
            names.iter().filter(|n| own.iter().any(|label| is_named(label, n))).collect();
        let is_elsewhere = !lies_in(&label, args.namespaces.namespace.as_deref());
        if is_elsewhere || !names.is_empty() && asked.is_empty() {
            continue;
        }
        found.extend(asked);
        match placement.outcome {
            UnitOutcome::Refused(why) => refused.push((placement.unit, label, why)),
            UnitOutcome::Placed(node) => match cluster.waits(placement.unit, Some(&node)) {
                Some(why) => waiting.push((label, why)),
                None => fits.push((label, fitting(&cluster, placement.unit, &node))),
            },
            UnitOutcome::Held => match cluster.waits(placement.unit, None) {
                Some(why) => waiting.push((label, why)),
                None => fits.push((label, "has its allocation already".to_owned())),
            },
        }
    }
    if let Some(name) = names.iter().find(|n| !found.contains(n)) {
        let context = match args.input.names_no_context() {
            true => format!("; a context of the kubeconfig is named with --cluster={name}"),
            false => String::new(),
        };
        let message =
            format!("{name}: the manifests have no Pod or claim of this name that asks for devices{context}");
        return Err(Failure::Usage(message));
    }
    let all = refused.len() + waiting.len();
    let most = if args.limit == 0 { all } else { args.limit };
    let nodes = match args.output {
        ListFormat::Table | ListFormat::Name => NodesExplained::First(NODES_SHOWN),
        ListFormat::Wide | ListFormat::Json | ListFormat::Yaml => NodesExplained::All,
    };
    let mut layouts = LayoutSearch::new(&fleet);
    let mut explained = Vec::new();
    for (unit, label, why) in refused.into_iter().take(most) {
        let one = UnitExplanation::of(&mut cluster, unit, label, why, nodes);
        explained.push(one.with_layout(layouts.change(&cluster, unit)));
    }
    let room = most - explained.len();
    explained.extend(waiting.into_iter().take(room).map(|(label, why)| UnitExplanation::waiting(label, why)));
    answer(&fits, &explained, all, args, terminal)?;
    Ok(fleet.answer(if all == 0 { CommandAnswer::Yes } else { CommandAnswer::No }))
}

/// What is said of a unit that has a place.
fn fitting(cluster: &Cluster, unit: usize, node: &str) -> String {
    match cluster.undecided(unit) {
        None => format!("fits, on node {node}"),
        Some(what) => format!("its devices fit, on node {node}; not decided here: {what}"),
    }
}

fn answer(
    fits: &[(String, String)],
    explained: &[UnitExplanation],
    all: usize,
    args: &Args,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let form = match args.output {
        ListFormat::Table | ListFormat::Wide => return text(fits, explained, all, args, terminal),
        ListFormat::Name => {
            let mut names = explained.iter().map(|item| object_name::printed(&item.label));
            return Ok(names.try_for_each(|name| terminal.line(name))?);
        }
        ListFormat::Json => Format::Json,
        ListFormat::Yaml => Format::Yaml,
    };
    let items: Vec<Value> = explained.iter().map(UnitExplanation::json).collect();
    Ok(terminal.value(form, &json!({ "explanations": items, "withoutPlace": all }))?)
}

fn text(
    fits: &[(String, String)],
    explained: &[UnitExplanation],
    all: usize,
    args: &Args,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    if !args.names.is_empty() || all == 0 {
        if fits.is_empty() && all == 0 {
            terminal.line(NOTHING_TO_PLACE)?;
        }
        for (label, how) in fits {
            terminal.line(format_args!("{label}: {how}"))?;
        }
    }
    let shown = if args.output == ListFormat::Wide { usize::MAX } else { NODES_SHOWN };
    for item in explained {
        item.text(shown, terminal)?;
    }
    if explained.len() < all {
        let more = all - explained.len();
        terminal.line(format_args!("… and {more} more without a place; --limit 0 explains all"))?;
    }
    Ok(())
}

// === impl UnitExplanation ===

impl UnitExplanation {
    pub(super) fn of(
        cluster: &mut Cluster,
        unit: usize,
        label: String,
        why: String,
        nodes: NodesExplained,
    ) -> Self {
        // A change of the Pod's own wishes comes first: it takes nothing from the request, nor from others.
        let explanation = cluster.explain(unit, nodes);
        let node_change = cluster.node_change(unit);
        let excluded = if explanation.is_some() { cluster.excluded(unit) } else { Vec::new() };
        let explained = Self {
            explanation,
            excluded,
            node_change,
            taint_rules: cluster.manifests.taint_rules.clone(),
            sole_rules: cluster.sole_rules.clone(),
            ..Self::waiting(label, why)
        };
        explained.reworded(|change| Some(holders::words(change, cluster)))
    }

    /// A unit with devices that waits all the same.
    fn waiting(label: String, why: String) -> Self {
        Self {
            label,
            why,
            explanation: None,
            excluded: Vec::new(),
            node_change: None,
            remedy: None,
            taint_rules: Vec::new(),
            sole_rules: Vec::new(),
        }
    }

    /// A reason, and for a taint the rules that put it on the device.
    fn reason(&self, rejection: &Rejection) -> String {
        let words = rejection.reason.to_string();
        let RejectReason::Taint { taint } = &rejection.reason else { return words };
        let rules = self.taint_rules.iter();
        let rules = rules.filter(|rule| rule.taint == *taint && rule.selects(&rejection.device));
        let names: Vec<&str> = rules.map(|rule| rule.name.as_str()).collect();
        if names.is_empty() { words } else { format!("{words} (DeviceTaintRule {})", names.join(", ")) }
    }

    /// With these words for the change that would place it; none where they have none for it.
    pub(super) fn reworded(mut self, words: impl Fn(&Change) -> Option<String>) -> Self {
        let change = self.explanation.as_ref().and_then(|e| e.remedy.as_ref());
        let words =
            |change: &Change| {
                let words = words(change)?;
                let Change::TolerateTaint { taint, .. } = change else { return Some(words) };
                let rule = self.sole_rules.iter().find(|rule| rule.taint == *taint);
                Some(rule.map_or(words.clone(), |rule| {
                    format!("{words}, or delete DeviceTaintRule {}", rule.name)
                }))
            };
        self.remedy = self.node_change.clone().or_else(|| change.and_then(words));
        self
    }

    /// With a layout that would place it as the change, unless there is one that leaves the request's meaning.
    fn with_layout(mut self, layout: Option<LayoutChange>) -> Self {
        let change = self.explanation.as_ref().and_then(|e| e.remedy.as_ref());
        let is_less =
            |change: &Change| matches!(change, Change::DropSelector { .. } | Change::DropConstraint { .. });
        if self.node_change.is_none() && change.is_none_or(is_less) {
            self.remedy = layout.map(|layout| layout.to_string()).or(self.remedy);
        }
        self
    }

    /// The explanation for people, with this many nodes at most.
    pub(super) fn text(&self, most: usize, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        let label = terminal.toned(Tone::Strong, &self.label);
        terminal.line(format_args!("{label}: {}", self.why))?;
        let Some(explanation) = &self.explanation else { return self.remedy_text(terminal) };
        // A reason that holds on every node is printed above.
        let of_every_node = |refusal: &PlacementRefusal| {
            refusal.reach() == Reach::EveryNode && *refusal != PlacementRefusal::NoNodes
        };
        let alike = explanation.outcome.as_ref().is_err_and(of_every_node);
        if alike && self.node_change.is_none() {
            return if self.remedy.is_some() { self.remedy_text(terminal) } else { Ok(()) };
        }
        for node in explanation.nodes.iter().take(most) {
            self.node_text(node, terminal)?;
        }
        let shown = explanation.nodes.len().min(most);
        let more = explanation.nodes.len() - shown + explanation.nodes_left_out;
        if more > 0 {
            terminal.line(format_args!("  … and {more} nodes more (-o wide names them)"))?;
        }
        for ExcludedNode { node, why } in self.excluded.iter().take(most) {
            terminal.line(format_args!("  Node {node}: not tried: {why}"))?;
        }
        if self.excluded.len() > most {
            let more = self.excluded.len() - most;
            terminal
                .line(format_args!("  … and {more} nodes more that were not tried (-o wide names them)"))?;
        }
        self.remedy_text(terminal)
    }

    fn remedy_text(&self, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        match (&self.remedy, &self.explanation) {
            (Some(change), _) => {
                let word = terminal.toned(Tone::Good, "It would fit if you");
                terminal.line(format_args!("  {word} {change}"))?;
            }
            (None, None) => {}
            (None, Some(explanation)) if explanation.changes_tried == ChangesTried::Some => {
                terminal.line(
                    "  No single change was found that would place it; there are too many to try all.",
                )?;
            }
            (None, Some(_)) => terminal.line("  No single change would place it.")?,
        }
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let explanation = self.explanation.as_ref();
        let nodes: Vec<Value> =
            explanation.iter().flat_map(|e| &e.nodes).map(|node| self.node_json(node)).collect();
        let not_tried =
            self.excluded.iter().map(|ExcludedNode { node, why }| json!({ "node": node, "why": why }));
        json!({
            "for": self.label,
            "why": self.why,
            "nodes": nodes,
            "notTried": not_tried.collect::<Vec<Value>>(),
            "remedy": self.remedy,
        })
    }

    fn node_text(&self, node: &NodeExplanation, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        terminal.line(format_args!("  Node {}:", node.node))?;
        for (pool, fault) in &node.pools {
            terminal.line(format_args!("    pool {pool} is not used: {fault}"))?;
        }
        for request in &node.requests {
            let usable = request.usable.len();
            let seen = usable + request.rejected.len();
            terminal.line(format_args!(
                "    request {} of claim {} wants {}; {usable} of {seen} would serve",
                request.request,
                request.claim,
                wanted(request)
            ))?;
            let (selectors, others): (Vec<_>, Vec<_>) = request
                .groups()
                .into_iter()
                .partition(|(group, _)| matches!(group, ReasonGroup::Selector { .. }));
            for (group, count) in others {
                let examples: Vec<_> =
                    request.rejected.iter().filter(|r| r.reason.group() == group).collect();
                terminal.line(format_args!("      {count} {group}"))?;
                // A reason that is the same for all of them needs no list.
                let same = examples.iter().all(|r| r.reason.to_string() == group.to_string());
                let shown = if same { 0 } else { DEVICES_SHOWN };
                for rejection in examples.iter().take(shown) {
                    terminal.line(format_args!(
                        "        {}: {}",
                        rejection.device,
                        self.reason(rejection)
                    ))?;
                }
                if !same && examples.len() > DEVICES_SHOWN {
                    terminal.line(format_args!("        … and {} more", examples.len() - DEVICES_SHOWN))?;
                }
            }
            selectors_text(&selectors, terminal)?;
        }
        Ok(())
    }

    fn node_json(&self, node: &NodeExplanation) -> Value {
        let requests: Vec<Value> = node
            .requests
            .iter()
            .map(|request| {
                let rejected: Vec<Value> = request
                    .rejected
                    .iter()
                    .map(|r| json!({ "device": r.device.to_string(), "reason": self.reason(r) }))
                    .collect();
                let usable: Vec<String> = request.usable.iter().map(ToString::to_string).collect();
                json!({
                    "claim": request.claim,
                    "request": request.request,
                    "wanted": wanted(request),
                    "usable": usable,
                    "rejected": rejected,
                })
            })
            .collect();
        let pools: Vec<Value> = node
            .pools
            .iter()
            .map(|(pool, fault)| json!({ "pool": pool, "fault": fault.to_string() }))
            .collect();
        json!({ "node": node.node, "why": node.refusal.to_string(), "requests": requests, "poolsNotUsed": pools })
    }
}

fn wanted(request: &RequestExplanation) -> String {
    match request.wanted {
        AllocationMode::ExactCount(1) => "1 device".to_owned(),
        AllocationMode::ExactCount(count) => format!("{count} devices"),
        AllocationMode::All => "all devices".to_owned(),
    }
}

/// What selectors leave out, as one sum.
fn selectors_text(groups: &[(ReasonGroup, usize)], terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    match groups {
        [] => {}
        [(group, count)] => terminal.line(format_args!("      {count} {group}"))?,
        several => {
            let sum: usize = several.iter().map(|(_, count)| count).sum();
            terminal.line(format_args!("      {sum} left out by {} selectors", several.len()))?;
            for (group, count) in several.iter().take(DEVICES_SHOWN) {
                terminal.line(format_args!("        {count}: {group}"))?;
            }
        }
    }
    Ok(())
}
