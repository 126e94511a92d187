//! `aliquot devices`: the cards of nodes, the layout of each, and free capacity.

mod strangers;

use std::cmp::Reverse;

use aliquot_core::card::{Card, Health, Unwell};
use aliquot_core::dra::{DeviceId, ResourceClaim};
use aliquot_core::id::ClaimUid;
use aliquot_core::ledger::{CardReport, Holder, Holding, Ledger, PartReport, Take};
use aliquot_core::offer::{CardOutcome, LayoutKind, OfferedPart, pool_on};
use aliquot_core::partition::Part;
use aliquot_core::units::Bytes;
use serde_json::{Value, json};

use crate::config::state_home;

use super::cluster_input::{LiveArgs, NamespaceArgs};
use super::cluster_summary::{self, NodeOrder, SummaryView};
use super::failure::{CommandAnswer, Failure};
use super::manual::manual;
use super::nodes::{Fleet, FleetNode, NodeArgs, catalogue};
use super::output::{Format, ListFormat, Side, Terminal, Tone};
use crate::hardware::open_machine;
use crate::kube::listing::NamespaceScope;
use strangers::{Strangers, StrangersOfCard};

/// Widest list of holders in one line of the table.
const HOLDERS_COLUMNS: usize = 40;

const EXAMPLES: &str = "\
Examples:
  aliquot devices
  aliquot devices --node mixed
  aliquot devices --node 8xh100 --policy layouts.toml
  aliquot devices --node mixed -o json
  aliquot devices --cluster
  aliquot devices --context prod --node gpu-7";

/// Show cards: layout and its reason, free capacity, the largest hole, the claims
///
/// Without --node these are this machine's own cards, with the claims of local runs. With --cluster they are those that the
/// agents of a live cluster publish, summed up by model, layout and node; --node is then the name of a node there.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    #[command(flatten)]
    nodes: NodeArgs,

    #[command(flatten)]
    live: LiveArgs,

    #[command(flatten)]
    namespaces: NamespaceArgs,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: ListFormat,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let scope = args.namespaces.scope();
    let NodeArgs { policy, catalogue, state, .. } = &args.nodes;
    let has_own = policy.is_some() || catalogue.is_some() || state.is_some();
    if args.live.is_named() && has_own {
        let message = "found --policy, --catalogue or --state with a cluster, expected none: its agents publish by their \
                       own; leave it out";
        return Err(Failure::Usage(message.to_owned()));
    }
    if let Some(manifests) = args.live.read(&scope, terminal)? {
        let view = SummaryView { nodes: &args.nodes.nodes, order: NodeOrder::Name, form: args.output };
        return cluster_summary::show(&manifests, &view, terminal);
    }
    if scope != NamespaceScope::Readable {
        let message =
            "found -n or -A without a cluster, expected --cluster; cards of files lie in no namespace";
        return Err(Failure::Usage(message.to_owned()));
    }
    let (fleet, strangers) = if args.nodes.nodes.is_empty() {
        own_cards(args, terminal)?
    } else {
        (Fleet::load(&args.nodes, terminal)?, Strangers::default())
    };
    for node in &fleet.nodes {
        for stray in strays(node) {
            terminal.note(format_args!("warning: {stray}"))?;
        }
    }
    let value = || {
        let nodes = fleet.nodes.iter().map(|node| node_json(node, &fleet, &strangers));
        json!({ "nodes": nodes.collect::<Vec<Value>>() })
    };
    match args.output {
        ListFormat::Table | ListFormat::Wide => tables(&fleet, &strangers, terminal)?,
        ListFormat::Name => {
            let mut nodes = fleet.nodes.iter();
            nodes.try_for_each(|node| terminal.line(format_args!("node/{}", node.name)))?;
        }
        ListFormat::Json => terminal.value(Format::Json, &value())?,
        ListFormat::Yaml => terminal.value(Format::Yaml, &value())?,
    }
    Ok(fleet.answer(CommandAnswer::Yes))
}

/// This machine's own cards, what local runs hold on them, and what other programs use of them.
fn own_cards(args: &Args, terminal: &mut Terminal<'_>) -> Result<(Fleet, Strangers), Failure> {
    let machine = open_machine(&catalogue(&args.nodes)?)?;
    for trouble in machine.backend().trouble() {
        terminal.note(format_args!("warning: {trouble}"))?;
    }
    let runs = || state_home().filter(|home| home.join("journal").exists());
    let state = args.nodes.state.clone().or_else(runs);
    let strangers = Strangers::on(&machine, state.as_deref());
    Ok((Fleet::look_at_machine(&args.nodes, &machine, state.as_deref(), terminal)?, strangers))
}

/// Claims on devices that the node does not offer: the card is gone, or is another one now.
fn strays(node: &FleetNode) -> Vec<String> {
    let held = node.held.iter().flat_map(|claim| {
        let devices = claim.allocation.iter().flat_map(|a| &a.devices);
        devices.map(move |result| (claim, &result.device))
    });
    let strays = held.filter(|(_, device)| !node.offers.parts.contains_key(*device));
    let line = |(claim, device): (&ResourceClaim, &DeviceId)| {
        format!(
            "claim {}/{} holds {device}, which node {} does not offer; check that --state and --node belong together, or \
             release the claim",
            claim.namespace, claim.name, node.name
        )
    };
    strays.map(line).collect()
}

fn tables(fleet: &Fleet, strangers: &Strangers, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    for (number, node) in fleet.nodes.iter().enumerate() {
        if number > 0 {
            terminal.line("")?;
        }
        table(node, fleet, strangers, terminal)?;
    }
    Ok(())
}

/// Everything about one card that is shown.
struct DeviceRow<'a> {
    card: &'a Card,
    outcome: Option<&'a CardOutcome>,
    report: Option<CardReport>,
    /// The largest part that its layout could still give to one holder.
    largest: Option<&'a Part>,
    /// What programs use of it that belong to no claim.
    strangers: Option<&'a StrangersOfCard>,
}

fn rows<'a>(node: &'a FleetNode, fleet: &Fleet, strangers: &'a Strangers) -> Vec<DeviceRow<'a>> {
    let new_ledger;
    let ledger = match &node.ledger {
        Some(ledger) => ledger,
        None => {
            new_ledger = Ledger::new(&node.inventory, &fleet.catalogue).0;
            &new_ledger
        }
    };
    let row = |card: &'a Card| DeviceRow {
        card,
        outcome: node.offers.outcome(&card.uuid),
        report: ledger.report(&card.uuid),
        largest: largest(card, node, ledger),
        strangers: strangers.of(&card.uuid),
    };
    node.inventory.cards.iter().map(row).collect()
}

/// The largest part of what the card is offered as that one holder could have alone now, by memory, then compute.
fn largest<'a>(card: &Card, node: &'a FleetNode, ledger: &Ledger) -> Option<&'a Part> {
    let anonymous = ClaimUid::new("anonymous").ok()?;
    let free = |offered: &&OfferedPart| {
        let take = match offered.part {
            Part::Slot { .. } => Take::Share { memory: offered.memory, cores: offered.cores },
            Part::Card | Part::Partition { .. } => Take::Exclusive,
        };
        let (claim, part) = (anonymous.clone(), offered.part.clone());
        ledger
            .check(&Holding {
                claim,
                request: String::new(),
                share: None,
                card: card.uuid.clone(),
                part,
                take,
            })
            .is_ok()
    };
    let of_card = node.offers.parts.values().filter(|offered| offered.card == card.uuid);
    let of_card = of_card.filter(|offered| card.why_unwell(&offered.part).is_none());
    let whole_first = |offered: &OfferedPart| offered.part == Part::Card;
    let size = |o: &&OfferedPart| (whole_first(o), o.memory, o.cores, Reverse(o.part.clone()));
    of_card.filter(free).max_by_key(size).map(|offered| &offered.part)
}

fn table(
    node: &FleetNode,
    fleet: &Fleet,
    strangers: &Strangers,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let name = terminal.toned(Tone::Strong, &format!("Node {}", node.name));
    let about = if node.about.is_empty() { String::new() } else { format!(": {}", node.about) };
    let cards = node.inventory.cards.len();
    let plural = if cards == 1 { "card" } else { "cards" };
    terminal.line(format_args!("{name}{about} ({cards} {plural}, {})", node.kind.word()))?;
    let columns = [
        ("CARD", Side::Right),
        ("MODEL", Side::Left),
        ("UUID", Side::Left),
        ("MEMORY", Side::Right),
        ("LAYOUT", Side::Left),
        ("DEVICES", Side::Right),
        ("FREE", Side::Left),
        ("LARGEST HOLE", Side::Left),
    ];
    let rows = rows(node, fleet, strangers);
    terminal.table(&columns, rows.iter().map(DeviceRow::cells).collect())?;
    terminal.line("")?;
    let in_use: Vec<Vec<String>> = rows.iter().flat_map(|row| row.in_use(node)).collect();
    if !in_use.is_empty() {
        let columns = [
            ("CARD", Side::Right),
            ("IN USE", Side::Left),
            ("MEMORY", Side::Right),
            ("CORES", Side::Right),
            ("HELD BY", Side::Left),
        ];
        terminal.table(&columns, in_use)?;
        terminal.line("")?;
    }
    for (outcome, cards) in grouped(&rows, DeviceRow::why) {
        terminal.paragraph(&format!("{}: {outcome}", cards_text(&cards)))?;
    }
    for row in &rows {
        if let Health::Unhealthy(why) = &row.card.health {
            // What to do is among the warnings.
            let why = why.split(';').next().unwrap_or_default();
            terminal.paragraph(&format!("card {}: unhealthy: {why}", row.card.index))?;
        }
        for Unwell { part, why, .. } in &row.card.unwell {
            let why = why.split(';').next().unwrap_or_default();
            terminal.paragraph(&format!("card {}: {part} is unhealthy: {why}", row.card.index))?;
        }
    }
    for row in &rows {
        if let Some(strangers) = row.strangers {
            terminal.paragraph(&format!("card {}: {strangers}", row.card.index))?;
        }
    }
    for (room, cards) in grouped(&rows, DeviceRow::room) {
        terminal.paragraph(&format!("{}: room for {room}", cards_text(&cards)))?;
    }
    Ok(())
}

/// Equal texts with the cards they are about; cards without a text are left out.
fn grouped<'a>(rows: &[DeviceRow<'a>], text: impl Fn(&DeviceRow<'a>) -> String) -> Vec<(String, Vec<u32>)> {
    let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
    for row in rows {
        let text = text(row);
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, cards)) => cards.push(row.card.index),
            None if text.is_empty() => {}
            None => groups.push((text, vec![row.card.index])),
        }
    }
    groups
}

/// `card 3`, `cards 0-7`, `cards 0, 2, 4-6`.
fn cards_text(cards: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for card in cards {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *card => *last = *card,
            _ => runs.push((*card, *card)),
        }
    }
    let run = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let text: Vec<String> = runs.iter().map(run).collect();
    let plural = if cards.len() == 1 { "card" } else { "cards" };
    format!("{plural} {}", text.join(", "))
}

// === impl DeviceRow ===

impl DeviceRow<'_> {
    fn cells(&self) -> Vec<String> {
        let layout = self.outcome.and_then(|o| o.layout).map_or("not offered", |l| l.as_str());
        let devices = self.outcome.map_or(0, |o| o.devices);
        vec![
            self.card.index.to_string(),
            self.card.model.to_string(),
            short_uuid(self.card.uuid.as_str()),
            self.card.memory.to_string(),
            layout.to_owned(),
            devices.to_string(),
            self.free(),
            self.largest(),
        ]
    }

    fn free(&self) -> String {
        match (&self.card.health, self.report.as_ref().and_then(|r| r.share_room)) {
            // Why stands below.
            (Health::Unhealthy(_), _) => "unhealthy".to_owned(),
            (_, Some((memory, cores))) => format!("{}, {cores} cores", self.unused(memory)),
            (_, None) if self.report.as_ref().is_some_and(|r| r.room.iter().any(|t| t.together > 0)) => {
                "partitions".to_owned()
            }
            _ => "nothing".to_owned(),
        }
    }

    /// What is left of free memory beside other programs.
    fn unused(&self, free: Bytes) -> Bytes {
        Bytes(free.0.saturating_sub(self.strangers.map_or(0, |strangers| strangers.memory.0)))
    }

    fn largest(&self) -> String {
        self.largest.map_or_else(|| "-".to_owned(), part_text)
    }

    /// Parts in use: part, memory, cores, holders.
    fn in_use(&self, node: &FleetNode) -> Vec<Vec<String>> {
        let in_use = self.report.iter().flat_map(|r| &r.in_use);
        let rows = |part: &PartReport| {
            let holders: Vec<String> = part.holders.iter().map(|h| holder_text(h, node)).collect();
            let mut first = vec![
                self.card.index.to_string(),
                part_text(&part.part),
                format!("{} of {}", part.memory_used, part.memory),
                format!("{} of {}", part.cores_used, part.cores),
            ];
            let mut rows: Vec<Vec<String>> = Vec::new();
            for names in in_lines(&holders) {
                let mut row = std::mem::replace(&mut first, vec![String::new(); 4]);
                row.push(names);
                rows.push(row);
            }
            rows
        };
        in_use.flat_map(rows).collect()
    }

    fn why(&self) -> String {
        let Some(outcome) = self.outcome else { return String::new() };
        let rule = outcome.rule.map(|r| format!(" (rule {r})")).unwrap_or_default();
        match outcome.layout {
            Some(layout) => format!("{}{rule}: {}", layout.as_str(), outcome.reason),
            // The reason itself begins with that.
            None => format!("{}{rule}", outcome.reason),
        }
    }

    /// What could be cut from it, where claims decide that.
    fn room(&self) -> String {
        if self.outcome.and_then(|o| o.layout) != Some(LayoutKind::Dynamic) {
            return String::new();
        }
        let room = self.report.iter().flat_map(|r| &r.room).filter(|t| t.together > 0);
        let texts: Vec<String> = room.map(|t| format!("{}x{}", t.together, t.template)).collect();
        texts.join(" or ")
    }

    fn json(&self, node: &FleetNode) -> Value {
        let report = self.report.as_ref();
        let counters: Vec<Value> = report
            .iter()
            .flat_map(|r| &r.counters)
            .map(|c| json!({ "name": c.name.as_str(), "total": c.total, "used": c.used }))
            .collect();
        let in_use: Vec<Value> = report
            .iter()
            .flat_map(|r| &r.in_use)
            .map(|part| {
                json!({
                    "part": part_text(&part.part),
                    "holders": part.holders.iter().map(|h| holder_text(h, node)).collect::<Vec<_>>(),
                    "memory": part.memory.to_string(),
                    "memoryUsed": part.memory_used.to_string(),
                    "coresPercent": part.cores.percent(),
                    "coresPercentUsed": part.cores_used.percent(),
                })
            })
            .collect();
        let room: Vec<Value> = report
            .iter()
            .flat_map(|r| &r.room)
            .map(|t| json!({ "template": t.template.as_str(), "together": t.together, "placements": t.placements.len() }))
            .collect();
        let share = report
            .and_then(|r| r.share_room)
            .map(|(memory, cores)| json!({ "memory": self.unused(memory).to_string(), "coresPercent": cores.percent() }));
        json!({
            "index": self.card.index,
            "uuid": self.card.uuid.as_str(),
            "vendor": self.card.vendor.as_str(),
            "model": self.card.model.as_str(),
            "productName": self.card.product_name,
            "memory": self.card.memory.to_string(),
            "health": match &self.card.health {
                Health::Healthy => json!({ "state": "healthy" }),
                Health::Unhealthy(why) => json!({ "state": "unhealthy", "why": why }),
            },
            "unhealthyParts": self.card.unwell.iter().map(|u| json!({ "part": part_text(&u.part), "why": u.why })).collect::<Vec<_>>(),
            "layout": self.outcome.and_then(|o| o.layout).map(LayoutKind::as_str),
            "why": self.outcome.map(|o| o.reason.to_string()),
            "rule": self.outcome.and_then(|o| o.rule),
            "pool": self.outcome.and_then(|o| o.pool.as_deref()).map(|pool| pool_on(pool, &node.name)),
            "devices": self.outcome.map_or(0, |o| o.devices),
            "problems": self.outcome.iter().flat_map(|o| &o.problems).map(ToString::to_string).collect::<Vec<_>>(),
            "counters": counters,
            "inUse": in_use,
            "room": room,
            "shareRoom": share,
            "otherPrograms": self.strangers.map(StrangersOfCard::json),
            "largest": self.largest.map(part_text),
        })
    }
}

fn node_json(node: &FleetNode, fleet: &Fleet, strangers: &Strangers) -> Value {
    let cards: Vec<Value> = rows(node, fleet, strangers).iter().map(|row| row.json(node)).collect();
    let problems: Vec<String> = node.offers.problems.iter().map(ToString::to_string).collect();
    json!({ "name": node.name.as_str(), "about": node.about, "cards": cards, "problems": problems })
}

/// The beginning of a UUID, which every option takes for all of it; `-o json` has the rest.
fn short_uuid(uuid: &str) -> String {
    match uuid.match_indices('-').nth(1) {
        Some((end, _)) => uuid[..end].to_owned(),
        None => uuid.to_owned(),
    }
}

/// Names in lines that leave room for the other columns; at least one line.
fn in_lines(names: &[String]) -> Vec<String> {
    let mut lines = vec![String::new()];
    for name in names {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(name),
            Some(line) if line.len() + 2 + name.len() <= HOLDERS_COLUMNS => {
                line.push_str(", ");
                line.push_str(name);
            }
            Some(line) => {
                line.push(',');
                lines.push(name.clone());
            }
            None => {}
        }
    }
    lines
}

/// A holder by the name of its claim.
fn holder_text(holder: &Holder, node: &FleetNode) -> String {
    match holder {
        Holder::Found { .. } => "found on the card".to_owned(),
        Holder::Claim { claim, .. } => match node.held.iter().find(|c| c.uid == claim.as_str()) {
            Some(claim) => format!("{}/{}", claim.namespace, claim.name),
            None => claim.to_string(),
        },
    }
}

/// A part as people call it.
pub(super) fn part_text(part: &Part) -> String {
    match part {
        Part::Card => "whole card".to_owned(),
        other => other.to_string(),
    }
}
