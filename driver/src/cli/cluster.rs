//! The cluster that claims are placed in: slices of manifests and `--node`, and existing allocations.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use aliquot_core::allocate::{
    Candidates, Explanation, NodeIndex, NodesExplained, PlacementRefusal, Reach, Release, World,
};
use aliquot_core::dra::{AllocationResult, DeviceClass, Node, NodeSelection, ResourceClaim, ResourceSlice};
use aliquot_core::offer::{DRIVER, Offers, ServerVersion, classes};

use crate::manifest::Manifests;

use super::failure::Failure;
use super::node_choice::{self, ExcludedNode, KeptOff, NodeChange, NodeChoice};
use super::nodes::Fleet;
use super::output::Terminal;
use super::workload::{Unit, Workload, lacks_class, workload};

/// Most classes that a message names.
const CLASSES_NAMED: usize = 12;
/// Nodes and classes that a message names on a cluster without devices.
const NAMES_LISTED: usize = 5;

/// The input of a plan.
pub(super) struct Cluster {
    /// Without slices and claims, which are in `world` and `workload`.
    pub(super) manifests: Manifests,
    pub(super) workload: Workload,
    pub(super) world: World,
    /// Names of all classes.
    classes: Vec<String>,
    /// Its problems, as messages.
    pub(super) problems: Vec<String>,
}

/// What came of one unit.
pub(super) struct Placement {
    /// By place in [`Workload::units`].
    pub(super) unit: usize,
    pub(super) outcome: UnitOutcome,
}

/// The result of placing a unit.
pub(super) enum UnitOutcome {
    /// All its claims were already allocated in the manifests.
    Held,
    /// They are allocated now, on this node.
    Placed(String),
    /// They are not.
    Refused(String),
}

// === impl Cluster ===

impl Cluster {
    /// Puts manifests and nodes together, and takes the slices of both. Claims that carry an allocation hold it from
    /// the beginning.
    pub(super) fn new(mut manifests: Manifests, fleet: &mut Fleet) -> Result<Self, Failure> {
        let mut slices = std::mem::take(&mut manifests.slices);
        slices.extend(fleet.nodes.iter_mut().flat_map(|n| std::mem::take(&mut n.slices)));
        if slices.is_empty() && manifests.nodes.is_empty() {
            return Err(Failure::Usage(
                "there are no devices: add --node (such as --node mixed), or the cluster's nodes and ResourceSlices \
                 to the manifests"
                    .to_owned(),
            ));
        }
        for rule in &manifests.taint_rules {
            slices.iter_mut().for_each(|slice| rule.apply(slice));
        }
        let mut all_classes = manifests.classes.clone();
        all_classes.extend(implied_classes(&manifests.classes, fleet));
        if !fleet.nodes.is_empty() && lacks_class(&manifests, &all_classes) {
            let known: BTreeSet<String> = all_classes.iter().map(|class| class.name.clone()).collect();
            let more = fleet.classes_of_models()?;
            all_classes.extend(more.into_iter().filter(|class| !known.contains(&class.name)));
        }
        let nodes = nodes(&manifests, fleet, &slices);
        let daemons = node_choice::daemon_pods(&manifests, &nodes);
        manifests.pods.extend(daemons);
        // By place: those that the manifests themselves allocate.
        let claims = std::mem::take(&mut manifests.claims);
        let allocated: Vec<usize> =
            claims.iter().enumerate().filter(|(_, c)| c.allocation.is_some()).map(|(n, _)| n).collect();
        let mut workload = workload(&manifests, claims, &all_classes);
        workload.adopt(fleet.nodes.iter().flat_map(|n| &n.held));
        let classes = all_classes.iter().map(|c| c.name.clone()).collect();
        let (mut world, problems) = World::new(slices, all_classes, nodes);
        world.follow(release_of(fleet.server));
        let mut problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let allocated: Vec<&ResourceClaim> =
            allocated.into_iter().filter_map(|number| workload.claims.get(number)).collect();
        for claim in &allocated {
            if let Err(error) = world.hold(claim) {
                problems.push(error.to_string());
            }
        }
        // A prepared claim holds the devices that the node records, also if the manifests allocate it: never twice.
        for claim in fleet
            .nodes
            .iter()
            .flat_map(|n| &n.held)
            .filter(|c| !allocated.iter().any(|known| known.uid == c.uid))
        {
            if let Err(error) = world.hold(claim) {
                problems.push(error.to_string());
            }
        }
        problems.extend(world.lost().iter().map(ToString::to_string));
        problems.extend(world.excesses().iter().map(ToString::to_string));
        Ok(Self { manifests, workload, world, classes, problems })
    }

    /// Places every unit in order; a placed unit holds its devices.
    pub(super) fn place_all(&mut self, mut progress: impl FnMut(usize, usize)) -> Vec<Placement> {
        let all = self.workload.units.len();
        let mut nodes = NodeChoice::default();
        (0..all)
            .map(|unit| {
                progress(unit, all);
                Placement { unit, outcome: self.place(unit, &mut nodes) }
            })
            .collect()
    }

    fn place(&mut self, number: usize, nodes: &mut NodeChoice) -> UnitOutcome {
        let Some(unit) = self.workload.units.get(number) else { return UnitOutcome::Held };
        if let Some(missing) = unit.missing.first() {
            return UnitOutcome::Refused(missing.clone());
        }
        let claims_open = |c: &usize| self.workload.claims.get(*c).is_some_and(|c| c.allocation.is_none());
        let open: Vec<usize> = unit.claims.iter().copied().filter(claims_open).collect();
        if open.is_empty() {
            return UnitOutcome::Held;
        }
        let (claims, allowed) = self.open(unit, nodes);
        let candidates = allowed.as_deref().map_or(Candidates::All, Candidates::Only);
        match self.world.place(&claims, candidates) {
            Err(refusal) => {
                let words = self.without_devices(&refusal);
                let of_nodes = refusal == PlacementRefusal::NoNodes || refusal.reach() == Reach::ThisNode;
                let kept = if of_nodes { self.kept_off(number) } else { Vec::new() };
                UnitOutcome::Refused(node_choice::with_kept_off(words, &kept))
            }
            Ok((node, allocations)) => {
                let name = self.world.nodes().get(node.0 as usize).map(|n| n.name.clone());
                self.commit(&open, allocations);
                UnitOutcome::Placed(name.unwrap_or_default())
            }
        }
    }

    fn commit(&mut self, claims: &[usize], allocations: Vec<AllocationResult>) {
        for (number, allocation) in claims.iter().zip(allocations) {
            let claim = &mut self.workload.claims[*number];
            claim.allocation = Some(allocation);
            if let Err(error) = self.world.hold(claim) {
                self.problems.push(error.to_string());
            }
        }
    }

    /// A refusal, and for a class that does not exist those that could be meant.
    fn in_words(&self, refusal: &PlacementRefusal) -> String {
        let PlacementRefusal::MissingClass { class, .. } = refusal else { return refusal.to_string() };
        let stem = class.split_once('-').map_or(class.as_str(), |(stem, _)| stem);
        let alike: Vec<&str> = self
            .classes
            .iter()
            .map(String::as_str)
            .filter(|name| name.split_once('-').is_some_and(|(other, _)| other == stem))
            .take(CLASSES_NAMED)
            .collect();
        if alike.is_empty() && class.ends_with(&format!(".{DRIVER}")) {
            return format!("{refusal}; the chart installs such classes, and `aliquot classes` prints them");
        }
        if alike.is_empty() {
            return format!("{refusal}; aliquot classes shows those that nodes have");
        }
        format!("{refusal}; there are {}", alike.join(", "))
    }

    /// A refusal in words; where no driver publishes anything, that is the cause, before what else keeps the unit off.
    fn without_devices(&self, refusal: &PlacementRefusal) -> String {
        if !self.world.slices().is_empty() {
            return self.in_words(refusal);
        }
        let named = |noun: &str, names: &[&str]| {
            let more = names.len().saturating_sub(NAMES_LISTED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let listed = names.iter().take(NAMES_LISTED).copied().collect::<Vec<_>>().join(", ");
            if names.is_empty() { format!("no {noun}") } else { format!("{noun} {listed}{more}") }
        };
        let nodes: Vec<&str> = self.world.nodes().iter().map(|node| node.name.as_str()).collect();
        let classes: Vec<&str> = self.classes.iter().map(String::as_str).collect();
        let besides = match refusal {
            PlacementRefusal::NoFit { .. } => String::new(),
            other => format!(". Besides, {}", self.in_words(other)),
        };
        format!(
            "no driver publishes devices: found {} and {} without a ResourceSlice, expected slices; install a driver, or \
             find out why its plugin publishes none (`aliquot doctor` on the node){besides}",
            named("node", &nodes),
            named("DeviceClass", &classes)
        )
    }

    /// Why a unit has no place; `None` where it lacks an object rather than a device.
    pub(super) fn explain(&mut self, number: usize, nodes: NodesExplained) -> Option<Explanation> {
        let unit = self.workload.units.get(number).filter(|u| u.missing.is_empty())?;
        let (claims, allowed) = self.open(unit, &mut NodeChoice::default());
        let candidates = allowed.as_deref().map_or(Candidates::All, Candidates::Only);
        Some(self.world.explain(&claims, candidates, nodes))
    }

    /// The nodes that a unit may not use for other reasons than taints.
    pub(super) fn excluded(&self, number: usize) -> Vec<ExcludedNode> {
        let Some(unit) = self.workload.units.get(number) else { return Vec::new() };
        let fixed: Vec<&AllocationResult> =
            self.claims_of(number).filter_map(|c| c.allocation.as_ref()).collect();
        node_choice::excluded(unit.pod(&self.manifests), &fixed, &self.world)
    }

    /// The nodes that taints keep a unit off, though its other wishes allow them.
    fn kept_off(&self, number: usize) -> Vec<KeptOff<'_>> {
        let pod = self.workload.units.get(number).and_then(|unit| unit.pod(&self.manifests));
        let Some(pod) = pod.filter(|pod| pod.node_name.is_none()) else { return Vec::new() };
        let allocations = self.claims_of(number).filter_map(|c| c.allocation.as_ref());
        let fixed: Vec<&AllocationResult> = allocations.collect();
        node_choice::kept_off(pod, &self.manifests, &fixed, &self.world)
    }

    /// The change of the Pod or of a node that lets a unit use a further node, on which it has a place; proved.
    pub(super) fn node_change(&mut self, number: usize) -> Option<String> {
        let unit = self.workload.units.get(number).filter(|u| u.missing.is_empty())?;
        let (claims, _) = self.open(unit, &mut NodeChoice::default());
        let pod = unit.pod(&self.manifests)?;
        let fixed: Vec<&AllocationResult> =
            self.claims_of(number).filter_map(|c| c.allocation.as_ref()).collect();
        let changes = node_choice::single_changes(pod, &self.manifests, &fixed, &self.world);
        changes.into_iter().find_map(|NodeChange { words, nodes }| {
            let (node, _) = self.world.place(&claims, Candidates::Only(&nodes)).ok()?;
            let name = &self.world.nodes().get(node.0 as usize)?.name;
            Some(if words.contains(name) { words } else { format!("{words}; node {name} takes it then") })
        })
    }

    /// The claims of a unit that have no allocation, and the nodes that it may use (`None`: all).
    fn open(&self, unit: &Unit, nodes: &mut NodeChoice) -> (Vec<ResourceClaim>, Option<Vec<NodeIndex>>) {
        let claims = || unit.claims.iter().filter_map(|c| self.workload.claims.get(*c));
        let fixed: Vec<&AllocationResult> = claims().filter_map(|c| c.allocation.as_ref()).collect();
        let allowed = nodes.allowed(unit, &self.manifests, &fixed, &self.world);
        (claims().filter(|c| c.allocation.is_none()).cloned().collect(), allowed)
    }

    /// What units have in common that differ in their names alone; `None` where an object is missing.
    pub(super) fn kind_of(&self, number: usize) -> Option<String> {
        let unit = self.workload.units.get(number).filter(|unit| unit.missing.is_empty())?;
        let claims = unit.claims.iter().filter_map(|claim| self.workload.claims.get(*claim));
        let asked: Vec<_> = claims.map(|c| (&c.requests, &c.constraints, &c.allocation)).collect();
        let wishes =
            unit.pod(&self.manifests).map(|p| (&p.node_name, &p.node_labels, &p.affinity, &p.tolerations));
        Some(format!("{asked:?} {wishes:?}"))
    }

    /// The claims of a unit that have no allocation, and the names of the nodes that it may use.
    pub(super) fn asked(&self, number: usize) -> Option<(Vec<ResourceClaim>, Vec<&str>)> {
        let unit = self.workload.units.get(number).filter(|unit| unit.missing.is_empty())?;
        let (claims, allowed) = self.open(unit, &mut NodeChoice::default());
        let name = |index: NodeIndex| Some(self.world.nodes().get(index.0 as usize)?.name.as_str());
        let nodes = match allowed {
            None => self.world.nodes().iter().map(|node| node.name.as_str()).collect(),
            Some(allowed) => allowed.into_iter().filter_map(name).collect(),
        };
        Some((claims, nodes))
    }

    /// Whether there is a class of this name, given or implied by what nodes offer.
    pub(super) fn has_class(&self, name: &str) -> bool {
        self.classes.iter().any(|class| class == name)
    }

    /// How people call a unit.
    pub(super) fn label(&self, unit: usize) -> String {
        let unit = self.workload.units.get(unit);
        unit.map(|u| u.label(&self.manifests, &self.workload.claims)).unwrap_or_default()
    }

    /// The claims of a unit.
    pub(super) fn claims_of(&self, unit: usize) -> impl Iterator<Item = &ResourceClaim> {
        let numbers = self.workload.units.get(unit).map(|u| u.claims.as_slice()).unwrap_or_default();
        numbers.iter().filter_map(|c| self.workload.claims.get(*c))
    }

    /// Prints the problems of the input.
    pub(super) fn warn(&self, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        for problem in &self.problems {
            terminal.note(format_args!("warning: {problem}"))?;
        }
        for (resource, pods) in &self.workload.foreign_resources {
            terminal.note(format_args!(
                "warning: {resource}: no DeviceClass stands for it (Pods that ask: {pods}); left to a device plugin"
            ))?;
        }
        Ok(())
    }
}

/// The release that decides as this server does.
pub(super) const fn release_of(server: ServerVersion) -> Release {
    if server.minor >= 37 { Release::V1_37 } else { Release::V1_36 }
}

/// Classes for the offers of the nodes that are not given by hand.
fn implied_classes(given: &[DeviceClass], fleet: &Fleet) -> Vec<DeviceClass> {
    let given: BTreeSet<&str> = given.iter().map(|c| c.name.as_str()).collect();
    let mut made: BTreeMap<String, DeviceClass> = BTreeMap::new();
    let mut seen: Option<&Rc<Offers>> = None;
    for node in &fleet.nodes {
        // Copies of a node offer equal classes; a thousand of them are looked at once.
        if !seen.is_some_and(|offers| Rc::ptr_eq(offers, &node.offers)) {
            seen = Some(&node.offers);
            for class in classes(&node.offers.slices) {
                if !given.contains(class.name.as_str()) {
                    made.entry(class.name.clone()).or_insert(class);
                }
            }
        }
    }
    made.into_values().collect()
}

/// Nodes of the manifests, then of the command line, then those that only slices and Pods name.
fn nodes(manifests: &Manifests, fleet: &Fleet, slices: &[ResourceSlice]) -> Vec<Node> {
    let mut nodes = manifests.nodes.clone();
    nodes.extend(fleet.nodes.iter().map(super::nodes::FleetNode::as_node));
    let mut known: BTreeSet<String> = nodes.iter().map(|n| n.name.clone()).collect();
    for slice in slices {
        let own = |selection: &NodeSelection| match selection {
            NodeSelection::Name(name) => Some(name.clone()),
            _ => None,
        };
        let devices = slice.devices.iter().filter_map(|d| d.node.as_ref().and_then(own));
        for name in own(&slice.node).into_iter().chain(devices) {
            if known.insert(name.clone()) {
                nodes.push(Node { name, labels: BTreeMap::new() });
            }
        }
    }
    if nodes.is_empty() {
        // Slices for all nodes and no node named: any node will do.
        nodes.push(Node { name: "any".to_owned(), labels: BTreeMap::new() });
    }
    nodes
}
