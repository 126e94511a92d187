//! The cluster that claims are placed in: slices of manifests and `--node`, and existing allocations.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use aliquot_core::allocate::{
    Candidates, Explanation, NodeIndex, NodesExplained, PlacementRefusal, Reach, Release, World,
};
use aliquot_core::dra::{
    AllocationResult, DeviceClass, Node, NodeSelection, ResourceClaim, ResourceSlice, Taint,
};
use aliquot_core::offer::{DRIVER, Offers, ServerVersion, classes};

use crate::manifest::{Manifests, Pod, PodPhase, TaintRule};

use super::failure::Failure;
use super::held_by::HeldBy;
use super::node_choice::{
    self, ExcludedNode, KeptOff, NodeChange, NodeChoice, NodeTest, Occupancy, Surroundings,
};
use super::nodes::Fleet;
use super::output::Terminal;
use super::workload::{Unit, Workload, convert_command, lacks_class, resources_of, workload};

/// Most classes that a message names.
const CLASSES_NAMED: usize = 12;
/// Most changes of a Pod, a claim or a node that are tried for one unit.
const CHANGES_TRIED: usize = 256;
/// Nodes and classes that a message names on a cluster without devices.
const NAMES_LISTED: usize = 5;

/// The input of a plan.
pub(super) struct Cluster {
    /// Without slices and claims, which are in `world` and `workload`.
    pub(super) manifests: Manifests,
    pub(super) workload: Workload,
    pub(super) world: World,
    occupancy: Occupancy,
    /// The rules that alone put their taint on devices: without them it is gone.
    pub(super) sole_rules: Vec<TaintRule>,
    /// Names of the nodes of the command line, which the manifests' scheduler does not have.
    added_nodes: BTreeSet<String>,
    /// Names of all classes.
    classes: Vec<String>,
    /// Claims that states of nodes hold.
    pub(super) held_by: Vec<HeldBy>,
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
        let sole_rules = sole_rules(&manifests.taint_rules, &slices);
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
        let resources = all_classes.iter().flat_map(resources_of).collect();
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
        let allocated: HashSet<&str> = allocated.iter().map(|claim| claim.uid.as_str()).collect();
        let held = fleet.nodes.iter().flat_map(|n| &n.held);
        for claim in held.filter(|claim| !allocated.contains(claim.uid.as_str())) {
            if let Err(error) = world.hold(claim) {
                problems.push(error.to_string());
            }
        }
        problems.extend(world.lost().iter().map(ToString::to_string));
        problems.extend(world.excesses().iter().map(ToString::to_string));
        let occupancy = Occupancy::of(&manifests, &world, resources);
        let added_nodes = fleet.nodes.iter().map(|node| node.name.to_string()).collect();
        let held_by = fleet.nodes.iter().flat_map(|node| node.held_by.iter().cloned()).collect();
        Ok(Self {
            manifests,
            workload,
            world,
            occupancy,
            sole_rules,
            added_nodes,
            classes,
            held_by,
            problems,
        })
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
        let (pod, test) = (unit.pod_number(), self.test(unit));
        if let Some(why) = node_choice::waits_for(&test) {
            return UnitOutcome::Refused(why);
        }
        let claims_open = |c: &usize| self.workload.claims.get(*c).is_some_and(|c| c.allocation.is_none());
        let open: Vec<usize> = unit.claims.iter().copied().filter(claims_open).collect();
        if open.is_empty() {
            return self.held(number, nodes);
        }
        let allowed = nodes.allowed(&test);
        let claims = self.open_claims(unit);
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
                if let Some(pod) = pod {
                    self.occupancy.add(pod, node, &self.manifests);
                }
                UnitOutcome::Placed(name.unwrap_or_default())
            }
        }
    }

    /// A unit whose claims are all allocated; its Pod still needs a node where it has none.
    fn held(&mut self, number: usize, nodes: &mut NodeChoice) -> UnitOutcome {
        let Some(unit) = self.workload.units.get(number) else { return UnitOutcome::Held };
        let Some(pod) = unit.pod_number().filter(|_| unit.pod(&self.manifests).is_some_and(Pod::is_waiting))
        else {
            return UnitOutcome::Held;
        };
        match nodes.allowed(&self.test(unit)).as_deref() {
            None => UnitOutcome::Held,
            Some([]) => {
                let words = "its claims are allocated, and no node that they allow takes the Pod".to_owned();
                UnitOutcome::Refused(node_choice::with_kept_off(words, &self.kept_off(number)))
            }
            Some([first, ..]) => {
                self.occupancy.add(pod, *first, &self.manifests);
                UnitOutcome::Held
            }
        }
    }

    /// The filters of a unit that need no device.
    fn test(&self, unit: &Unit) -> NodeTest<'_> {
        let claims = unit.claims.iter().filter_map(|claim| self.workload.claims.get(*claim)).collect();
        let around =
            Surroundings { manifests: &self.manifests, world: &self.world, occupancy: &self.occupancy };
        NodeTest::of(unit.pod(&self.manifests), claims, around)
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
    fn in_words(&mut self, refusal: &PlacementRefusal) -> String {
        let PlacementRefusal::MissingClass { class, .. } = refusal else { return refusal.to_string() };
        let names: Vec<&str> = self.classes.iter().map(String::as_str).collect();
        let stem = class.split_once('-').map_or(class.as_str(), |(stem, _)| stem);
        if ["gpu.nvidia.com", "mig.nvidia.com"].contains(&class.as_str()) {
            let command =
                convert_command(&self.manifests.files, "resourceclaimtemplates,resourceclaims,pods");
            return format!("{refusal}, which another driver installs; `{command}` asks for ours instead");
        }
        let of_stem = |name: &&str| name.split_once('-').is_some_and(|(other, _)| other == stem);
        let alike: Vec<&str> = names.iter().copied().filter(of_stem).take(CLASSES_NAMED).collect();
        let known = names.iter().copied().filter(|_| alike.is_empty());
        let near = self.workload.hints.did_you_mean(&format!("DeviceClass {class}"), class, known);
        if !near.is_empty() {
            return format!("{refusal}{near}");
        }
        if alike.is_empty() && class.ends_with(&format!(".{DRIVER}")) {
            return format!("{refusal}; the chart installs such classes, and `aliquot classes` prints them");
        }
        if alike.is_empty() {
            return format!("{refusal}; aliquot classes shows those that nodes have");
        }
        format!("{refusal}; there are {}", alike.join(", "))
    }

    /// A refusal in words; where no driver publishes anything, that is the cause, before what else keeps the unit off.
    fn without_devices(&mut self, refusal: &PlacementRefusal) -> String {
        if !self.world.slices().is_empty() {
            return self.in_words(refusal);
        }
        let besides = match refusal {
            PlacementRefusal::NoFit { .. } => String::new(),
            other => format!(". Besides, {}", self.in_words(other)),
        };
        let named = |noun: &str, names: &[&str]| {
            let more = names.len().saturating_sub(NAMES_LISTED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let listed = names.iter().take(NAMES_LISTED).copied().collect::<Vec<_>>().join(", ");
            if names.is_empty() { format!("no {noun}") } else { format!("{noun} {listed}{more}") }
        };
        let nodes: Vec<&str> = self.world.nodes().iter().map(|node| node.name.as_str()).collect();
        let classes: Vec<&str> = self.classes.iter().map(String::as_str).collect();
        format!(
            "no driver publishes devices: found {} and {} without a ResourceSlice, expected slices; install a driver, or \
             find out why its plugin publishes none (`aliquot doctor` on the node){besides}",
            named("node", &nodes),
            named("DeviceClass", &classes)
        )
    }

    /// Why a unit has no place among devices; `None` where it lacks an object, or what keeps it off every node comes first.
    pub(super) fn explain(&mut self, number: usize, nodes: NodesExplained) -> Option<Explanation> {
        let unit = self.tried(number)?;
        let (claims, allowed) = (self.open_claims(unit), NodeChoice::default().allowed(&self.test(unit)));
        let candidates = allowed.as_deref().map_or(Candidates::All, Candidates::Only);
        Some(self.world.explain(&claims, candidates, nodes))
    }

    /// A unit that nothing keeps off every node.
    fn tried(&self, number: usize) -> Option<&Unit> {
        let unit = self.workload.units.get(number).filter(|u| u.missing.is_empty())?;
        node_choice::waits_for(&self.test(unit)).is_none().then_some(unit)
    }

    /// The nodes that a unit may not use for other reasons than taints.
    pub(super) fn excluded(&self, number: usize) -> Vec<ExcludedNode> {
        let unit = self.workload.units.get(number);
        unit.map(|unit| node_choice::excluded(&self.test(unit))).unwrap_or_default()
    }

    /// The nodes that taints keep a unit off, though its other wishes allow them.
    fn kept_off(&self, number: usize) -> Vec<KeptOff<'_>> {
        let unit = self.workload.units.get(number);
        unit.map(|unit| node_choice::kept_off(&self.test(unit))).unwrap_or_default()
    }

    /// The change of the Pod, of a claim or of a node that lets a unit use a further node, on which it has a place; proved.
    pub(super) fn node_change(&mut self, number: usize) -> Option<String> {
        let unit = self.workload.units.get(number).filter(|u| u.missing.is_empty())?;
        let changes = node_choice::single_changes(&self.test(unit));
        changes.into_iter().take(CHANGES_TRIED).find_map(|change| self.proved(number, change))
    }

    /// The words of a change with which the unit has a place.
    fn proved(&mut self, number: usize, change: NodeChange) -> Option<String> {
        let NodeChange { words, nodes, reallocated } = change;
        let mut claims = self.open_claims(self.workload.units.get(number)?);
        let released = match reallocated {
            Some((namespace, name)) => {
                let is = |c: &&ResourceClaim| c.namespace == namespace && c.name == name;
                Some(self.claims_of(number).find(is).filter(|claim| !self.is_shared(claim))?.clone())
            }
            None => None,
        };
        if let Some(claim) = &released {
            self.world.release(&claim.uid).ok()?;
            claims.push(ResourceClaim { allocation: None, ..claim.clone() });
        }
        let placed = if claims.is_empty() {
            nodes.first().copied()
        } else {
            self.world.place(&claims, Candidates::Only(&nodes)).ok().map(|(node, _)| node)
        };
        if let Some(Err(error)) = released.map(|claim| self.world.hold(&claim)) {
            self.problems.push(error.to_string());
        }
        let name = &self.world.nodes().get(placed?.0 as usize)?.name;
        Some(if words.contains(name.as_str()) {
            words
        } else {
            format!("{words}; node {name} takes it then")
        })
    }

    /// Whether several Pods use a claim.
    fn is_shared(&self, claim: &ResourceClaim) -> bool {
        let uses = |unit: &&Unit| {
            let claims = unit.claims.iter().filter_map(|number| self.workload.claims.get(*number));
            claims.into_iter().any(|other| other.uid == claim.uid)
        };
        self.workload.units.iter().filter(uses).count() > 1
    }

    /// The claims of a unit that have no allocation.
    fn open_claims(&self, unit: &Unit) -> Vec<ResourceClaim> {
        let claims = unit.claims.iter().filter_map(|c| self.workload.claims.get(*c));
        claims.filter(|claim| claim.allocation.is_none()).cloned().collect()
    }

    /// Why a unit for whose devices there is a place waits all the same, by its Pod's own condition; `node`: where they
    /// would go, unless they are allocated.
    pub(super) fn waits(&self, number: usize, node: Option<&str>) -> Option<String> {
        let unit = self.workload.units.get(number)?;
        let pod = unit.pod(&self.manifests).filter(|pod| pod.is_waiting())?;
        if node.is_some_and(|node| self.added_nodes.contains(node)) {
            return None;
        }
        let undecided = self.undecided(number);
        let says = match &pod.unscheduled {
            Some(condition) if condition.message.is_empty() => {
                format!("the scheduler says: {}", condition.reason)
            }
            Some(condition) => format!("the scheduler says: {}", condition.message),
            None if pod.phase == PodPhase::Pending && undecided.is_some() => {
                "found no condition PodScheduled, by which a scheduler says that it tried".to_owned()
            }
            None => return None,
        };
        let found = match node {
            Some(node) => format!("its devices have a place on node {node}"),
            None => "its claims are allocated".to_owned(),
        };
        let undecided = undecided.map(|what| format!("; not decided here: {what}")).unwrap_or_default();
        Some(format!("waits, though {found}{undecided}; {says}"))
    }

    /// What of a unit only the cluster can answer, in words.
    pub(super) fn undecided(&self, number: usize) -> Option<String> {
        let unit = self.workload.units.get(number)?;
        let mut found: Vec<String> =
            unit.pod(&self.manifests).map(|pod| pod.rules().unknown.clone()).unwrap_or_default();
        found.extend(node_choice::unread_namespace(&self.test(unit)));
        found.extend_from_slice(&self.manifests.hidden);
        (!found.is_empty()).then(|| found.join(", "))
    }

    /// What units have in common that differ in their names alone; `None` where an object is missing. Rules are about
    /// namespace and labels, and reasons name an allocated claim.
    pub(super) fn kind_of(&self, number: usize) -> Option<String> {
        let unit = self.workload.units.get(number).filter(|unit| unit.missing.is_empty())?;
        let claims = unit.claims.iter().filter_map(|claim| self.workload.claims.get(*claim));
        let asked: Vec<_> = claims
            .map(|claim| {
                let allocated = claim.allocation.as_ref().map(|allocation| (&claim.name, allocation));
                (&claim.namespace, &claim.requests, &claim.constraints, allocated)
            })
            .collect();
        let wishes = unit.pod(&self.manifests).map(|p| {
            let of_nodes = (&p.node_name, &p.daemon_node, &p.node_labels, &p.affinity, &p.tolerations);
            (of_nodes, &p.requests, &p.rules, (&p.namespace, &p.labels, p.phase, p.finished))
        });
        Some(format!("{asked:?} {wishes:?}"))
    }

    /// The claims of a unit that have no allocation, and the nodes that it may use; `None` as in [`Self::explain`].
    pub(super) fn asked(&self, number: usize) -> Option<(Vec<ResourceClaim>, Vec<NodeIndex>)> {
        let unit = self.tried(number)?;
        let (claims, allowed) = (self.open_claims(unit), NodeChoice::default().allowed(&self.test(unit)));
        let all = || (0..).map(NodeIndex).take(self.world.nodes().len()).collect();
        Some((claims, allowed.unwrap_or_else(all)))
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

/// The taint rules whose taint no other rule and no driver puts on a device.
fn sole_rules(rules: &[TaintRule], slices: &[ResourceSlice]) -> Vec<TaintRule> {
    let published = |taint: &Taint| {
        slices.iter().flat_map(|slice| &slice.devices).any(|device| device.taints.contains(taint))
    };
    let sole = |rule: &&TaintRule| {
        rules.iter().filter(|other| other.taint == rule.taint).count() == 1 && !published(&rule.taint)
    };
    rules.iter().filter(sole).cloned().collect()
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
