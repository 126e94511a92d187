//! The layout that would place what the present one does not, proved by a placement.
//!
//! ```text
//!   node: its slices ─▶ idle, healthy cards ─ policy of one line ─▶ slices ─▶ placement ─ fits ─▶ the change
//! ```
//!
//! Cards of `--node` are known; those of a cluster's node are read from what its agent publishes. A card that a claim
//! holds, or that has a taint, is left out: it would keep its layout, or serve nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use aliquot_core::allocate::{Candidates, NodeIndex, World};
use aliquot_core::card::{Card, Health, Inventory};
use aliquot_core::catalogue::{CardIdentity, Catalogue};
use aliquot_core::dra::{
    AttributeValue, Device, DeviceClass, DeviceId, Node, NodeSelection, RequestKind, ResourceClaim,
    ResourceSlice, Sharing,
};
use aliquot_core::id::{CardUuid, ModelId, NodeName, PciAddress};
use aliquot_core::offer::{
    CAPACITY_MEMORY, DRIVER, Layout, LayoutPolicy, ServerVersion, ShareTerms, UsageHint, offers,
};
use aliquot_core::units::Bytes;

use super::cluster::{Cluster, release_of};
use super::nodes::Fleet;

/// Kinds of claims for which a layout is sought in one command.
const CLAIMS_MAX: usize = 32;
/// Kinds of units whose claims are compared with these.
const UNITS_MAX: usize = 1_024;
/// Nodes with different cards that are tried for one of them.
const NODES_MAX: usize = 16;

/// A policy of one line under which a node would place what it does not now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayoutChange {
    /// The node.
    node: String,
    /// What it publishes now.
    now: String,
    /// The line.
    line: &'static str,
}

/// Seeks layouts for units without a place, each kind of claims once.
pub(super) struct LayoutSearch<'f> {
    fleet: &'f Fleet,
    places: Option<Places>,
    /// By kind of the units.
    known: HashMap<String, Option<LayoutChange>>,
    /// By what the claims ask for, and the nodes that they may use.
    sought: HashMap<(String, Vec<NodeIndex>), Option<LayoutChange>>,
}

/// What the search reads of a cluster, collected once.
struct Places {
    /// Numbers of the slices of each node.
    slices: HashMap<String, Vec<usize>>,
    /// Numbers of the nodes of the command line.
    fleet: HashMap<String, usize>,
    /// Devices of this driver that claims hold, by pool.
    held: HashMap<String, HashSet<String>>,
    /// Numbers of the kinds of nodes: what idle cards they have, by model and memory.
    kinds: BTreeMap<Vec<(String, u64)>, usize>,
    /// The kind of each node that was read; `None`: no card is idle.
    kind_of_node: HashMap<String, Option<usize>>,
}

/// The policies of one line, the one that offers most first.
pub(super) fn policies() -> [(&'static str, LayoutPolicy); 3] {
    let all = |layout| LayoutPolicy { default: layout, ..LayoutPolicy::default() };
    [
        ("default = \"dynamic\"", all(Layout::Dynamic(ShareTerms::default()))),
        ("default = \"shared\"", all(Layout::Shared(ShareTerms::default()))),
        ("default = \"whole\"", all(Layout::Whole)),
    ]
}

/// Whether the claims fit on a node that publishes these slices, with nothing held.
pub(super) fn fits(
    slices: Vec<ResourceSlice>,
    classes: Vec<DeviceClass>,
    node: Node,
    server: ServerVersion,
    claims: &[ResourceClaim],
) -> bool {
    let (mut world, _) = World::new(slices, classes, vec![node]);
    world.follow(release_of(server));
    world.place(claims, Candidates::All).is_ok()
}

// === impl LayoutSearch ===

impl<'f> LayoutSearch<'f> {
    pub(super) fn new(fleet: &'f Fleet) -> Self {
        Self { fleet, places: None, known: HashMap::new(), sought: HashMap::new() }
    }

    /// The layout that would place a unit of a cluster in which everything else has been placed.
    pub(super) fn change(&mut self, cluster: &Cluster, unit: usize) -> Option<LayoutChange> {
        let kind = cluster.kind_of(unit)?;
        if let Some(known) = self.known.get(&kind) {
            return known.clone();
        }
        if self.known.len() >= UNITS_MAX {
            return None;
        }
        let (claims, nodes) = cluster.asked(unit)?;
        let asked: Vec<_> = claims.iter().map(|claim| (&claim.requests, &claim.constraints)).collect();
        let asked = (format!("{asked:?}"), nodes);
        let found = match self.sought.get(&asked) {
            Some(found) => found.clone(),
            None if self.sought.len() >= CLAIMS_MAX => return None,
            None => {
                let classes = classes_of(&claims, &cluster.world);
                let mut selectors = classes.iter().flat_map(|class| &class.selectors);
                let is_ours = selectors.any(|selector| selector.contains(DRIVER));
                let found = if is_ours { self.seek(cluster, &claims, &classes, &asked.1) } else { None };
                self.sought.insert(asked, found.clone());
                found
            }
        };
        self.known.insert(kind, found.clone());
        found
    }

    fn seek(
        &mut self,
        cluster: &Cluster,
        claims: &[ResourceClaim],
        classes: &[DeviceClass],
        nodes: &[NodeIndex],
    ) -> Option<LayoutChange> {
        let fleet = self.fleet;
        let places = self.places.get_or_insert_with(|| Places::of(cluster, fleet));
        let mut tried: BTreeSet<usize> = BTreeSet::new();
        for node in nodes {
            let Some(node) = cluster.world.nodes().get(node.0 as usize) else { continue };
            let name = node.name.as_str();
            let Some(kind) = places.kind_of_idle_cards(name, &cluster.world, fleet) else { continue };
            if !tried.insert(kind) {
                continue;
            }
            if tried.len() > NODES_MAX {
                return None;
            }
            let slices = places.slices_of(name, &cluster.world);
            let idle = places.idle_cards(name, &slices, fleet);
            let Ok(node_name) = NodeName::new(name) else { continue };
            for (line, policy) in policies() {
                let made = offers(&node_name, &idle, &policy, fleet.server, &UsageHint::default()).slices;
                let others =
                    slices.iter().filter(|slice| slice.driver != DRIVER).map(|slice| (*slice).clone());
                let all = made.into_iter().chain(others).collect();
                if fits(all, classes.to_vec(), node.clone(), fleet.server, claims) {
                    let now = published(&slices);
                    return Some(LayoutChange { node: name.to_owned(), now, line });
                }
            }
        }
        None
    }
}

/// The classes that claims ask for.
fn classes_of(claims: &[ResourceClaim], world: &World) -> Vec<DeviceClass> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for request in claims.iter().flat_map(|claim| &claim.requests) {
        match &request.kind {
            RequestKind::Exactly(exact) => names.extend([exact.device_class.as_str()]),
            RequestKind::FirstAvailable(subs) => {
                names.extend(subs.iter().map(|sub| sub.request.device_class.as_str()));
            }
        }
    }
    names.into_iter().filter_map(|name| world.class(name).cloned()).collect()
}

/// What a node publishes of its cards, in words.
fn published(slices: &[&ResourceSlice]) -> String {
    let ours = slices.iter().filter(|slice| slice.driver == DRIVER);
    let mut kinds: BTreeSet<&str> = BTreeSet::new();
    for device in ours.flat_map(|slice| &slice.devices) {
        kinds.insert(match (text(device, "type"), device.sharing) {
            (Some("card"), Sharing::Shareable) => "shares",
            (Some("card"), Sharing::Exclusive) => "whole cards",
            (Some("slot"), _) => "slots",
            _ => "partitions",
        });
    }
    kinds.into_iter().collect::<Vec<_>>().join(" and ")
}

fn text<'d>(device: &'d Device, name: &str) -> Option<&'d str> {
    match device.attributes.get(name) {
        Some(AttributeValue::String(text)) => Some(text),
        _ => None,
    }
}

// === impl Places ===

impl Places {
    fn of(cluster: &Cluster, fleet: &Fleet) -> Self {
        let mut slices: HashMap<String, Vec<usize>> = HashMap::new();
        for (number, slice) in cluster.world.slices().iter().enumerate() {
            if let NodeSelection::Name(name) = &slice.node {
                slices.entry(name.clone()).or_default().push(number);
            }
        }
        let of_fleet = fleet.nodes.iter().flat_map(|node| &node.held);
        let holders = cluster.workload.claims.iter().chain(of_fleet);
        let results = holders.filter_map(|claim| claim.allocation.as_ref()).flat_map(|found| &found.devices);
        let mut held: HashMap<String, HashSet<String>> = HashMap::new();
        for DeviceId { driver, pool, device } in results.map(|result| &result.device) {
            if driver == DRIVER {
                held.entry(pool.clone()).or_default().insert(device.clone());
            }
        }
        let fleet = fleet.nodes.iter().enumerate().map(|(number, node)| (node.name.to_string(), number));
        let (kinds, kind_of_node) = (BTreeMap::new(), HashMap::new());
        Self { slices, fleet: fleet.collect(), held, kinds, kind_of_node }
    }

    /// Which idle cards a node has, as the number of a kind; nodes with alike cards are of one. Read once per node.
    fn kind_of_idle_cards(&mut self, node: &str, world: &World, fleet: &Fleet) -> Option<usize> {
        if let Some(known) = self.kind_of_node.get(node) {
            return *known;
        }
        let idle = self.idle_cards(node, &self.slices_of(node, world), fleet);
        let mut cards: Vec<_> = idle.cards.iter().map(|c| (c.model.to_string(), c.memory.0)).collect();
        cards.sort();
        let kind = (!cards.is_empty()).then(|| {
            let next = self.kinds.len();
            *self.kinds.entry(cards).or_insert(next)
        });
        self.kind_of_node.insert(node.to_owned(), kind);
        kind
    }

    fn slices_of<'w>(&self, node: &str, world: &'w World) -> Vec<&'w ResourceSlice> {
        let numbers = self.slices.get(node).map(Vec::as_slice).unwrap_or_default();
        numbers.iter().filter_map(|number| world.slices().get(*number)).collect()
    }

    /// The cards of a node that could change their layout now.
    fn idle_cards(&self, node: &str, slices: &[&ResourceSlice], fleet: &Fleet) -> Inventory {
        let mut busy: BTreeSet<&str> = BTreeSet::new();
        let mut by_card: BTreeMap<&str, &Device> = BTreeMap::new();
        for slice in slices.iter().filter(|slice| slice.driver == DRIVER) {
            let held = self.held.get(&slice.pool.name);
            for device in &slice.devices {
                let Some(card) = text(device, "parentUUID") else { continue };
                let is_held = held.is_some_and(|held| held.contains(&device.name));
                if !device.taints.is_empty() || is_held {
                    busy.insert(card);
                }
                let known = by_card.entry(card).or_insert(device);
                if text(device, "type") == Some("card") {
                    *known = device;
                }
            }
        }
        let known = self.fleet.get(node).and_then(|number| fleet.nodes.get(*number));
        let cards: Vec<Card> = match known {
            Some(known) => {
                let idle = known.inventory.cards.iter().filter(|card| !busy.contains(card.uuid.as_str()));
                idle.cloned().collect()
            }
            None => {
                let numbered = by_card.into_iter().zip(0..).filter(|((uuid, _), _)| !busy.contains(uuid));
                numbered
                    .filter_map(|((uuid, device), index)| card(uuid, index, device, &fleet.catalogue))
                    .collect()
            }
        };
        Inventory { cards }
    }
}

/// A card as far as a published device tells.
fn card(uuid: &str, index: u32, device: &Device, catalogue: &Catalogue) -> Option<Card> {
    let model = catalogue.model(&ModelId::new(text(device, "model")?).ok()?)?;
    let memory = device.capacity.get(CAPACITY_MEMORY).filter(|_| text(device, "type") == Some("card"));
    let memory = memory.and_then(|memory| u64::try_from(memory.value.units_rounded_up()).ok()).map(Bytes);
    let standard = |name: &str| text(device, &format!("resource.kubernetes.io/{name}"));
    Some(model.card(CardIdentity {
        uuid: CardUuid::new(uuid).ok()?,
        index,
        product_name: text(device, "productName").map(str::to_owned),
        memory,
        driver_version: String::new(),
        pci: standard("pciBusID").and_then(|address| PciAddress::new(address).ok()),
        pcie_root: standard("pcieRoot").map(str::to_owned),
        numa_node: None,
        topology: Default::default(),
        mode: None,
        health: Health::Healthy,
        found: Vec::new(),
    }))
}

impl fmt::Display for LayoutChange {
    /// As the end of "It would fit if you".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, now, line } = self;
        write!(f, "publish node {node} with policy `{line}`: this node publishes {now} only")
    }
}

impl LayoutChange {
    /// As a cause with its remedy.
    pub(super) fn as_cause(&self) -> String {
        let Self { node, now, line } = self;
        format!("node {node} publishes {now} only; policy `{line}` would place it")
    }
}
