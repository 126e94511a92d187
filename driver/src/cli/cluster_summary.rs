//! `devices --cluster` and `top --cluster`: the cards of a cluster by model and layout, by node, or of one node.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::units::Bytes;
use serde_json::{Value, json};

use crate::manifest::Manifests;

use super::cluster_cards::{ClusterCard, cards, sum};
use super::failure::{CommandAnswer, Failure};
use super::output::{Format, ListFormat, Side, Terminal};

/// Rows of nodes without `-o wide`.
const NODES_SHOWN: usize = 20;
/// Names of nodes that a message lists.
const NAMES_LISTED: usize = 5;

/// Which nodes come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeOrder {
    /// By name.
    Name,
    /// Those of which claims hold most.
    Fullest,
}

/// What is shown of a cluster.
pub(super) struct SummaryView<'a> {
    /// The nodes to show, each card by itself; empty: all of them, summed up.
    pub(super) nodes: &'a [String],
    pub(super) order: NodeOrder,
    pub(super) form: ListFormat,
}

/// Cards that are alike, or of one node.
#[derive(Debug, Default)]
struct CardGroup<'c> {
    cards: Vec<&'c ClusterCard>,
}

/// Shows the cards of a cluster.
pub(super) fn show(
    manifests: &Manifests,
    view: &SummaryView<'_>,
    terminal: &mut Terminal<'_>,
) -> Result<CommandAnswer, Failure> {
    let mut found = cards(&manifests.slices, &manifests.claims);
    let known: BTreeSet<&str> = found.iter().map(|card| card.node.as_str()).collect();
    if let Some(name) = view.nodes.iter().find(|name| !known.contains(name.as_str())) {
        let listed: Vec<&str> = known.iter().copied().take(NAMES_LISTED).collect();
        let message = format!(
            "--node {name}: found no card that it publishes, expected a node with a slice of the agent, such as {}",
            if listed.is_empty() { "none: no agent publishes cards".to_owned() } else { listed.join(", ") }
        );
        return Err(Failure::Usage(message));
    }
    if !view.nodes.is_empty() {
        found.retain(|card| view.nodes.contains(&card.node));
    }
    let nodes = by_node(&found, view.order);
    match view.form {
        ListFormat::Name => {
            nodes.iter().try_for_each(|(node, _)| terminal.line(format_args!("node/{node}")))?;
        }
        ListFormat::Json => terminal.value(Format::Json, &value(&nodes, manifests))?,
        ListFormat::Yaml => terminal.value(Format::Yaml, &value(&nodes, manifests))?,
        ListFormat::Table | ListFormat::Wide if found.is_empty() => {
            terminal.line("no cards: no agent publishes slices here")?;
        }
        ListFormat::Table | ListFormat::Wide if !view.nodes.is_empty() => of_nodes(&nodes, terminal)?,
        ListFormat::Table => summed_up(&found, &nodes, NODES_SHOWN, terminal)?,
        ListFormat::Wide => summed_up(&found, &nodes, usize::MAX, terminal)?,
    }
    Ok(CommandAnswer::Yes)
}

/// Nodes with their cards, in their order.
fn by_node(found: &[ClusterCard], order: NodeOrder) -> Vec<(&str, CardGroup<'_>)> {
    let mut nodes = BTreeMap::<&str, CardGroup<'_>>::new();
    for card in found {
        nodes.entry(&card.node).or_default().cards.push(card);
    }
    let mut nodes: Vec<(&str, CardGroup<'_>)> = nodes.into_iter().collect();
    if order == NodeOrder::Fullest {
        nodes.sort_by_key(|(_, cards)| std::cmp::Reverse(cards.permille()));
    }
    nodes
}

/// All cards by model and layout, then the nodes.
fn summed_up(
    found: &[ClusterCard],
    nodes: &[(&str, CardGroup<'_>)],
    most: usize,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let mut alike = BTreeMap::<(&str, &str), CardGroup<'_>>::new();
    for card in found {
        alike.entry((&card.model, card.layout.as_str())).or_default().cards.push(card);
    }
    let columns = [
        ("MODEL", Side::Left),
        ("LAYOUT", Side::Left),
        ("NODES", Side::Right),
        ("CARDS", Side::Right),
        ("MEMORY", Side::Right),
        ("HELD", Side::Right),
        ("FREE", Side::Right),
        ("LARGEST HOLE", Side::Left),
    ];
    let rows = alike.iter().map(|((model, layout), group)| {
        let nodes: BTreeSet<&str> = group.cards.iter().map(|card| card.node.as_str()).collect();
        let mut row = vec![(*model).to_owned(), (*layout).to_owned(), nodes.len().to_string()];
        row.extend(group.cells());
        row
    });
    terminal.table(&columns, rows.collect())?;
    terminal.line("")?;
    let columns = [
        ("NODE", Side::Left),
        ("CARDS", Side::Right),
        ("MEMORY", Side::Right),
        ("HELD", Side::Right),
        ("FREE", Side::Right),
        ("LARGEST HOLE", Side::Left),
    ];
    let rows = nodes.iter().take(most).map(|(node, group)| {
        let mut row = vec![(*node).to_owned()];
        row.extend(group.cells());
        row
    });
    terminal.table(&columns, rows.collect())?;
    if nodes.len() > most {
        let more = nodes.len() - most;
        terminal.line(format_args!("… and {more} nodes more; -o wide shows all, --node NAME one"))?;
    }
    Ok(())
}

/// Each card of these nodes.
fn of_nodes(nodes: &[(&str, CardGroup<'_>)], terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let columns = [
        ("NODE", Side::Left),
        ("CARD", Side::Left),
        ("MODEL", Side::Left),
        ("LAYOUT", Side::Left),
        ("MEMORY", Side::Right),
        ("HELD", Side::Right),
        ("CLAIMS", Side::Right),
        ("FREE", Side::Right),
        ("LARGEST HOLE", Side::Left),
    ];
    let all = nodes.iter().flat_map(|(_, group)| &group.cards);
    let rows = all.map(|card| {
        vec![
            card.node.clone(),
            card.uuid.clone(),
            card.model.clone(),
            card.layout.as_str().to_owned(),
            card.memory.to_string(),
            percent(card.held, card.memory),
            card.holders.to_string(),
            card.free().to_string(),
            hole(card.is_closed, card.largest.as_ref()),
        ]
    });
    Ok(terminal.table(&columns, rows.collect())?)
}

fn value(nodes: &[(&str, CardGroup<'_>)], manifests: &Manifests) -> Value {
    let card = |card: &&ClusterCard| {
        json!({
            "uuid": card.uuid,
            "model": card.model,
            "layout": card.layout.as_str(),
            "memory": card.memory.to_string(),
            "memoryHeld": card.held.to_string(),
            "claims": card.holders,
            "largestHole": card.largest.as_ref().map(|(profile, memory)| json!({
                "profile": profile, "memory": memory.to_string(),
            })),
            "closed": card.is_closed,
        })
    };
    let nodes = nodes.iter().map(|(node, group)| {
        json!({ "node": node, "cards": group.cards.iter().map(card).collect::<Vec<Value>>() })
    });
    json!({ "nodes": nodes.collect::<Vec<Value>>(), "notDecided": manifests.hidden })
}

/// The largest hole in words.
fn hole(is_closed: bool, largest: Option<&(String, Bytes)>) -> String {
    match largest {
        Some((profile, memory)) => format!("{profile} {memory}"),
        None if is_closed => "closed".to_owned(),
        None => "-".to_owned(),
    }
}

/// Held of all, in whole percents.
fn percent(held: Bytes, all: Bytes) -> String {
    format!("{}%", u128::from(held.0) * 100 / u128::from(all.0.max(1)))
}

// === impl CardGroup ===

impl CardGroup<'_> {
    fn memory(&self) -> Bytes {
        Bytes(sum(self.cards.iter().map(|card| card.memory.0)))
    }

    fn held(&self) -> Bytes {
        Bytes(sum(self.cards.iter().map(|card| card.held.0)))
    }

    /// Thousandths that are held.
    fn permille(&self) -> u128 {
        u128::from(self.held().0) * 1000 / u128::from(self.memory().0.max(1))
    }

    /// Cards, memory, held, free, largest hole.
    fn cells(&self) -> Vec<String> {
        let largest = self.cards.iter().filter_map(|card| card.largest.as_ref());
        let largest = largest.max_by(|(one, a), (other, b)| a.cmp(b).then_with(|| other.cmp(one)));
        let free = sum(self.cards.iter().map(|card| card.free().0));
        vec![
            self.cards.len().to_string(),
            self.memory().to_string(),
            percent(self.held(), self.memory()),
            Bytes(free).to_string(),
            hole(self.cards.iter().all(|card| card.is_closed), largest),
        ]
    }
}
