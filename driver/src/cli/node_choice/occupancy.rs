//! What Pods hold of nodes, and which Pods are where: the amounts that they request, their ports, and their labels.
//!
//! A node that states no allocatable amounts, as those of `--node`, has room for everything.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use aliquot_core::allocate::{NodeIndex, World};
use aliquot_core::quantity::Quantity;

use crate::manifest::{HostPort, Manifests, Pod, PodPhase, PodTerm};

/// The resource of which every Pod requests one.
pub(super) const PODS: &str = "pods";
/// Label that every namespace has.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// How many Pods of a group each node has; a node without any is absent.
pub(super) type PodCounts = BTreeMap<NodeIndex, u32>;

/// Pods on nodes.
#[derive(Default)]
pub(in crate::cli) struct Occupancy {
    /// Resources that some node states, numbered.
    resources: HashMap<String, usize>,
    /// Extended resources that a `DeviceClass` stands for: devices, not amounts of the node.
    of_classes: BTreeSet<String>,
    nodes: Vec<NodeLoad>,
    /// Counts that were asked for.
    counts: RefCell<HashMap<String, (PodGroup, Rc<PodCounts>)>>,
    /// Required anti-affinity of Pods on nodes, alike ones once.
    apart: BTreeMap<String, ApartRule>,
    /// Pods, nodes and domains that were read for rules between Pods.
    reads: Cell<usize>,
}

/// What Pods hold of one node.
#[derive(Clone, Default)]
struct NodeLoad {
    /// By resource number; `None`: the node states nothing.
    allocatable: Option<Vec<i128>>,
    used: Vec<i128>,
    /// By place in the manifests.
    pods: Vec<usize>,
}

/// Pods of a kind: those that all terms mean.
#[derive(Clone)]
pub(super) struct PodGroup {
    /// Namespace of the Pod that means them.
    pub(super) namespace: String,
    pub(super) terms: Vec<PodTerm>,
    pub(super) ending: EndingPods,
}

/// Whether Pods that are being deleted count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndingPods {
    Counted,
    LeftOut,
}

/// A term of anti-affinity that Pods on nodes have.
pub(super) struct ApartRule {
    pub(super) namespace: String,
    pub(super) term: PodTerm,
    /// The Pods that have it, by place in the manifests, each with its node.
    pods: Vec<(usize, NodeIndex)>,
}

/// One resource that a node has too little of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) resource: String,
    pub(super) requested: Quantity,
    /// Below zero where Pods hold more than there is.
    pub(super) free: Quantity,
    pub(super) allocatable: Quantity,
}

/// What a Pod requests, by resource number, and what no node states.
pub(super) struct NumberedRequests<'p> {
    known: Vec<(usize, &'p str, Quantity)>,
    nowhere: Vec<(&'p str, Quantity)>,
}

/// Whether a term of a Pod in `namespace` means another Pod.
pub(super) fn means(term: &PodTerm, namespace: &str, pod: &Pod, manifests: &Manifests) -> bool {
    let own = term.namespaces.is_empty() && term.namespace_selector.is_none();
    let selected = || {
        term.namespace_selector.as_ref().is_some_and(|selector| {
            match manifests.namespaces.get(&pod.namespace) {
                Some(labels) => selector.matches(labels),
                None => {
                    selector.matches(&BTreeMap::from([(NAMESPACE_NAME.to_owned(), pod.namespace.clone())]))
                }
            }
        })
    };
    let of_namespace =
        own && pod.namespace == namespace || term.namespaces.contains(&pod.namespace) || selected();
    of_namespace && term.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
}

// === impl Occupancy ===

impl Occupancy {
    /// The Pods of the manifests that have a node. `of_classes` are extended resources of classes.
    pub(in crate::cli) fn of(manifests: &Manifests, world: &World, of_classes: BTreeSet<String>) -> Self {
        let mut resources = HashMap::new();
        for resource in manifests.node_allocatable.values().flat_map(BTreeMap::keys) {
            let next = resources.len();
            resources.entry(resource.clone()).or_insert(next);
        }
        let load = |name: &str| {
            let stated = manifests.node_allocatable.get(name)?;
            let mut amounts = vec![0; resources.len()];
            for (resource, amount) in stated {
                amounts[resources[resource]] = amount.nanos();
            }
            Some(amounts)
        };
        let nodes = world.nodes().iter().map(|node| {
            let allocatable = load(&node.name);
            NodeLoad {
                used: vec![0; allocatable.as_ref().map_or(0, Vec::len)],
                allocatable,
                pods: Vec::new(),
            }
        });
        let nodes = nodes.collect();
        let mut occupancy = Self { resources, of_classes, nodes, ..Self::default() };
        for (number, pod) in manifests.pods.iter().enumerate() {
            let on = pod.node_name.as_ref().filter(|_| pod.phase != PodPhase::Ended);
            if let Some(node) = on.and_then(|name| world.node(name)) {
                occupancy.add(number, node, manifests);
            }
        }
        occupancy
    }

    /// A Pod gets a node.
    pub(in crate::cli) fn add(&mut self, number: usize, node: NodeIndex, manifests: &Manifests) {
        let Some(pod) = manifests.pods.get(number) else { return };
        let requests = self.numbered(pod);
        let Some(load) = self.nodes.get_mut(node.0 as usize) else { return };
        load.pods.push(number);
        for (resource, _, amount) in requests.known {
            if let Some(used) = load.used.get_mut(resource) {
                *used = used.saturating_add(amount.nanos());
            }
        }
        for (group, counts) in self.counts.get_mut().values_mut() {
            if group.has(pod, manifests) {
                *Rc::make_mut(counts).entry(node).or_default() += 1;
            }
        }
        for term in &pod.rules().apart {
            let rule = self.apart.entry(format!("{} {term:?}", pod.namespace)).or_insert_with(|| ApartRule {
                namespace: pod.namespace.clone(),
                term: term.clone(),
                pods: Vec::new(),
            });
            rule.pods.push((number, node));
        }
    }

    /// Whether anything here can keep the Pod off a node.
    pub(super) fn concerns(&self, pod: &Pod) -> bool {
        !self.resources.is_empty() || !self.apart.is_empty() || pod.rules.is_some()
    }

    /// What a Pod requests, found once for all nodes.
    pub(super) fn numbered<'p>(&self, pod: &'p Pod) -> NumberedRequests<'p> {
        let one = Quantity::from_units(1, aliquot_core::quantity::Format::DecimalSi);
        let (mut known, mut nowhere) = (Vec::new(), Vec::new());
        let requests = pod.requests.iter().map(|(resource, amount)| (resource.as_str(), *amount));
        for (resource, amount) in requests.chain([(PODS, one)]) {
            match self.resources.get(resource) {
                Some(_) | None if self.of_classes.contains(resource) => {}
                Some(number) => known.push((*number, resource, amount)),
                None if resource == PODS => {}
                None => nowhere.push((resource, amount)),
            }
        }
        NumberedRequests { known, nowhere }
    }

    /// Whether the node has room for these requests.
    pub(super) fn has_room(&self, node: NodeIndex, requests: &NumberedRequests<'_>) -> bool {
        let Some(load) = self.nodes.get(node.0 as usize) else { return true };
        let Some(allocatable) = &load.allocatable else { return true };
        let fits = |(number, _, amount): &(usize, &str, Quantity)| {
            allocatable[*number].saturating_sub(load.used[*number]) >= amount.nanos()
        };
        requests.nowhere.is_empty() && requests.known.iter().all(fits)
    }

    /// What the node has too little of.
    pub(super) fn shortages(&self, node: NodeIndex, requests: &NumberedRequests<'_>) -> Vec<Shortage> {
        let Some(load) = self.nodes.get(node.0 as usize) else { return Vec::new() };
        let Some(allocatable) = &load.allocatable else { return Vec::new() };
        let known = requests.known.iter().map(|(number, resource, requested)| {
            (*resource, *requested, allocatable[*number], load.used[*number])
        });
        let nowhere = requests.nowhere.iter().map(|(resource, requested)| (*resource, *requested, 0, 0));
        known
            .chain(nowhere)
            .filter(|(_, requested, most, used)| most.saturating_sub(*used) < requested.nanos())
            .map(|(resource, requested, most, used)| {
                let amount = |nanos| Quantity::from_nanos(nanos, requested.format());
                let free = amount(most.saturating_sub(used));
                Shortage { resource: resource.to_owned(), requested, free, allocatable: amount(most) }
            })
            .collect()
    }

    /// The Pods on a node, by place in the manifests.
    pub(super) fn pods_on(&self, node: NodeIndex) -> &[usize] {
        self.nodes.get(node.0 as usize).map(|load| load.pods.as_slice()).unwrap_or_default()
    }

    /// The Pod that has a port of the node which this one conflicts with.
    pub(super) fn port_holder<'m>(
        &self,
        node: NodeIndex,
        port: &HostPort,
        manifests: &'m Manifests,
    ) -> Option<&'m Pod> {
        let pods = self.pods_on(node).iter().filter_map(|number| manifests.pods.get(*number));
        let mut pods = pods.filter(|pod| pod.rules.is_some());
        pods.find(|pod| pod.rules().ports.iter().any(|held| conflict(held, port)))
    }

    /// How many Pods of a group each node has.
    pub(super) fn count(&self, group: &PodGroup, manifests: &Manifests) -> Rc<PodCounts> {
        let key = format!("{} {:?} {:?}", group.namespace, group.ending, group.terms);
        if let Some((_, counts)) = self.counts.borrow().get(&key) {
            return Rc::clone(counts);
        }
        let mut counts = PodCounts::new();
        for (number, load) in (0..).zip(&self.nodes) {
            self.read(load.pods.len());
            let pods = load.pods.iter().filter_map(|number| manifests.pods.get(*number));
            let found = pods.filter(|pod| group.has(pod, manifests)).count();
            if found > 0 {
                counts.insert(NodeIndex(number), u32::try_from(found).unwrap_or(u32::MAX));
            }
        }
        let counts = Rc::new(counts);
        self.counts.borrow_mut().insert(key, (group.clone(), Rc::clone(&counts)));
        counts
    }

    /// The rules by which Pods on nodes keep a Pod off their domains.
    pub(super) fn rules_against<'o>(
        &'o self,
        pod: &'o Pod,
        manifests: &'o Manifests,
    ) -> impl Iterator<Item = &'o ApartRule> {
        self.apart.values().filter(|rule| means(&rule.term, &rule.namespace, pod, manifests))
    }

    /// The Pods that have a rule, by place in the manifests, each with its node.
    pub(super) fn pods_with<'o>(&self, rule: &'o ApartRule) -> &'o [(usize, NodeIndex)] {
        self.read(rule.pods.len());
        &rule.pods
    }

    /// Counts so many reads.
    pub(super) fn read(&self, count: usize) {
        self.reads.set(self.reads.get().saturating_add(count));
    }

    /// Pods, nodes and domains that were read for rules between Pods since this was made.
    #[cfg(test)]
    pub(super) const fn reads(&self) -> usize {
        self.reads.get()
    }
}

/// Whether two Pods on a node cannot have both ports.
fn conflict(a: &HostPort, b: &HostPort) -> bool {
    let same_address = a.address == b.address || a.address.is_empty() || b.address.is_empty();
    a.port == b.port && a.protocol == b.protocol && same_address
}

// === impl PodGroup ===

impl PodGroup {
    /// Whether a Pod is of the group.
    pub(super) fn has(&self, pod: &Pod, manifests: &Manifests) -> bool {
        let left_out = self.ending == EndingPods::LeftOut && pod.finished;
        !left_out && self.terms.iter().all(|term| means(term, &self.namespace, pod, manifests))
    }
}
