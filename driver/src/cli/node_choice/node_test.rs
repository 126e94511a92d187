//! What keeps a unit off a node, found with the filters of the scheduler that need no device.
//!
//! What depends on the Pod alone (counts of other Pods by domain, numbers of resources) is found once for all nodes.

use aliquot_core::allocate::{NodeIndex, World};
use aliquot_core::dra::{Access, Node, NodeRequirement, NodeSelectorTerm, RequestKind, ResourceClaim};

use crate::manifest::{Manifests, NodeInclusion, Pod, PodPhase, PodTerm, SpreadRule};

use super::domains::{ClosedDomains, DomainCounts, domain};
use super::nodes::{bound, labelled, numbered, unborne};
use super::obstacle::Obstacle;
use super::occupancy::{ApartRule, EndingPods, NumberedRequests, Occupancy, PodCounts, PodGroup};

/// Label of a namespace whose claims may ask for administrative access, and its value.
pub(super) const ADMIN_LABEL: (&str, &str) = ("resource.kubernetes.io/admin-access", "true");

/// Where units are placed.
#[derive(Clone, Copy)]
pub(in crate::cli) struct Surroundings<'c> {
    pub(in crate::cli) manifests: &'c Manifests,
    pub(in crate::cli) world: &'c World,
    pub(in crate::cli) occupancy: &'c Occupancy,
}

/// A unit of which every node is asked.
pub(in crate::cli) struct NodeTest<'c> {
    pub(super) around: Surroundings<'c>,
    pub(super) pod: Option<&'c Pod>,
    pub(super) claims: Vec<&'c ResourceClaim>,
    pub(super) requests: Option<NumberedRequests<'c>>,
    /// What keeps it off every node alike.
    everywhere: Vec<Obstacle<'c>>,
    near: Option<NearTerms<'c>>,
    apart: Vec<(&'c PodTerm, DomainCounts<'c>)>,
    /// Rules of other Pods against it, with the domains that they close.
    against: Vec<(&'c PodTerm, ClosedDomains<'c>)>,
    spread: Vec<SpreadDomains<'c>>,
}

/// Required affinity to Pods.
struct NearTerms<'c> {
    /// Pods that all terms mean, by domain of each.
    terms: Vec<(&'c PodTerm, DomainCounts<'c>)>,
    /// No node has such a Pod, and the Pod itself is one: it is the first of its kind.
    first: bool,
}

/// A spread constraint, with the Pods of each domain.
struct SpreadDomains<'c> {
    rule: &'c SpreadRule,
    domains: DomainCounts<'c>,
    /// Pods in the emptiest domain; 0 where there are fewer domains than the rule wants.
    emptiest: u32,
    /// Whether the Pod itself counts.
    itself: u32,
}

// === impl Surroundings ===

impl<'c> Surroundings<'c> {
    pub(super) fn node(&self, index: NodeIndex) -> Option<&'c Node> {
        self.world.nodes().get(index.0 as usize)
    }

    /// Pods by domain: the sum of the nodes with one value of a label.
    fn domains(&self, key: &str, counts: &PodCounts) -> DomainCounts<'c> {
        let mut domains = DomainCounts::new(self.occupancy);
        for (node, count) in counts {
            if let Some(value) = self.node(*node).and_then(|node| domain(node, key)) {
                domains.add(value, *count);
            }
        }
        domains
    }

    /// The domains that Pods with a rule close, each with the first of them and their number.
    fn closed(&self, rule: &ApartRule) -> ClosedDomains<'c> {
        let mut closed = ClosedDomains::default();
        for (number, node) in self.occupancy.pods_with(rule) {
            let value = self.node(*node).and_then(|node| domain(node, &rule.term.topology_key));
            if let Some((value, pod)) = value.zip(self.manifests.pods.get(*number)) {
                closed.entry(value).or_insert((pod, 0)).1 += 1;
            }
        }
        closed
    }
}

// === impl NodeTest ===

impl<'c> NodeTest<'c> {
    pub(in crate::cli) fn of(
        pod: Option<&'c Pod>,
        claims: Vec<&'c ResourceClaim>,
        around: Surroundings<'c>,
    ) -> Self {
        let mut test = Self {
            around,
            pod,
            requests: pod.map(|pod| around.occupancy.numbered(pod)),
            everywhere: everywhere(pod, &claims, around.manifests),
            claims,
            near: None,
            apart: Vec::new(),
            against: Vec::new(),
            spread: Vec::new(),
        };
        if let Some(pod) = pod.filter(|pod| around.occupancy.concerns(pod)) {
            test.neighbours(pod);
        }
        test
    }

    /// Counts what rules of Pods are about.
    fn neighbours(&mut self, pod: &'c Pod) {
        let (around, rules) = (self.around, pod.rules());
        let group =
            |terms: Vec<PodTerm>, ending| PodGroup { namespace: pod.namespace.clone(), terms, ending };
        if !rules.near.is_empty() {
            let group = group(rules.near.clone(), EndingPods::Counted);
            let counts = around.occupancy.count(&group, around.manifests);
            let terms = rules.near.iter().map(|term| (term, around.domains(&term.topology_key, &counts)));
            let first = counts.is_empty() && group.has(pod, around.manifests);
            self.near = Some(NearTerms { terms: terms.collect(), first });
        }
        for term in &rules.apart {
            let counts =
                around.occupancy.count(&group(vec![term.clone()], EndingPods::Counted), around.manifests);
            self.apart.push((term, around.domains(&term.topology_key, &counts)));
        }
        let against = around.occupancy.rules_against(pod, around.manifests);
        self.against = against.map(|rule| (&rule.term, around.closed(rule))).collect();
        self.spread = rules.spread.iter().map(|rule| spread_domains(rule, pod, around)).collect();
    }

    /// Whether nothing that Pods hold of the node, and no Pod elsewhere, keeps the unit off it.
    pub(super) fn has_room(&self, index: NodeIndex) -> bool {
        let (Some(pod), Some(node)) = (self.pod, self.around.node(index)) else { return true };
        let requests = self.requests.as_ref();
        if requests.is_some_and(|requests| !self.around.occupancy.has_room(index, requests)) {
            return false;
        }
        let mut found = Vec::new();
        self.of_ports(index, pod, &mut found);
        self.of_neighbours(node, &mut found);
        found.is_empty()
    }

    /// What keeps the unit off the node; empty: nothing but devices may.
    pub(super) fn obstacles(&self, index: NodeIndex) -> Vec<Obstacle<'c>> {
        let Some(node) = self.around.node(index) else { return Vec::new() };
        let mut found = self.everywhere.clone();
        let allocation = |claim: &&&ResourceClaim| {
            let selector = claim.allocation.as_ref().and_then(|a| a.node_selector.as_ref());
            selector.is_some_and(|selector| !selector.matches(node))
        };
        found.extend(self.claims.iter().filter(allocation).map(|claim| Obstacle::Allocation(claim)));
        let Some(pod) = self.pod else { return found };
        if let Some(wanted) = pod.daemon_node.as_deref().filter(|name| *name != node.name) {
            found.push(Obstacle::DaemonNode(wanted));
        }
        let unmet = pod.node_labels.iter().filter(|(key, value)| node.labels.get(*key) != Some(value));
        found.extend(unmet.map(|(key, value)| Obstacle::Label(key, value)));
        if let Some(affinity) = pod.affinity.as_ref().filter(|affinity| !affinity.matches(node)) {
            let lone = affinity.terms.iter().find_map(|term| lone_requirement(term, node));
            found.push(
                lone.map_or(Obstacle::Affinity(affinity), |wanted| Obstacle::Requirement {
                    affinity,
                    wanted,
                }),
            );
        }
        if pod.node_name.is_none() {
            let taints = unborne(&node.name, pod, self.around.manifests);
            found.extend(taints.into_iter().map(Obstacle::Taint));
        }
        let room = |requests: &&NumberedRequests<'_>| !self.around.occupancy.has_room(index, requests);
        if let Some(requests) = self.requests.as_ref().filter(room) {
            found.push(Obstacle::Amounts(self.around.occupancy.shortages(index, requests)));
        }
        self.of_ports(index, pod, &mut found);
        self.of_neighbours(node, &mut found);
        found
    }

    /// Ports of the node.
    fn of_ports(&self, index: NodeIndex, pod: &'c Pod, found: &mut Vec<Obstacle<'c>>) {
        let Surroundings { occupancy, manifests, .. } = self.around;
        for port in &pod.rules().ports {
            if let Some(holder) = occupancy.port_holder(index, port, manifests) {
                found.push(Obstacle::Port { port, holder });
            }
        }
    }

    /// Other Pods.
    fn of_neighbours(&self, node: &'c Node, found: &mut Vec<Obstacle<'c>>) {
        let pods_in =
            |domains: &DomainCounts<'_>, key: &str| domain(node, key).map_or(0, |value| domains.of(value));
        if let Some(near) = &self.near {
            let missing = near.terms.iter().find(|(term, domains)| {
                let key = &term.topology_key;
                domain(node, key).is_none() || !near.first && pods_in(domains, key) == 0
            });
            found.extend(missing.map(|(term, _)| Obstacle::Near(term)));
        }
        for (term, domains) in &self.apart {
            let count = pods_in(domains, &term.topology_key);
            if count > 0 {
                found.push(Obstacle::Apart { term, count });
            }
        }
        for (term, closed) in &self.against {
            let of_node = domain(node, &term.topology_key).and_then(|value| closed.get(value));
            found.extend(of_node.map(|(first, count)| Obstacle::ApartOf { term, first, count: *count }));
        }
        for SpreadDomains { rule, domains, emptiest, itself } in &self.spread {
            match domain(node, &rule.topology_key) {
                None => found.push(Obstacle::NoDomain(&rule.topology_key)),
                Some(value) => {
                    let (count, emptiest) = (domains.of(value), *emptiest);
                    let skew = (count + itself).saturating_sub(emptiest);
                    if skew > rule.max_skew {
                        found.push(Obstacle::Spread { rule, count, emptiest, skew });
                    }
                }
            }
        }
    }

    /// What keeps the unit off every node alike.
    pub(super) fn everywhere(&self) -> &[Obstacle<'c>] {
        &self.everywhere
    }
}

/// What keeps a unit off every node alike: gates, a node name that the scheduler did not set, a namespace without the label of
/// administrative access.
fn everywhere<'c>(
    pod: Option<&'c Pod>,
    claims: &[&'c ResourceClaim],
    manifests: &'c Manifests,
) -> Vec<Obstacle<'c>> {
    let mut found = Vec::new();
    let open = || claims.iter().filter(|claim| claim.allocation.is_none());
    if let Some(pod) = pod {
        if !pod.rules().gates.is_empty() && pod.is_waiting() {
            found.push(Obstacle::Gates(&pod.rules().gates));
        }
        // A Pod that runs has its claims; they are not among the manifests.
        let named = pod.node_name.as_deref().filter(|_| pod.phase != PodPhase::Running);
        if let Some((name, claim)) = named.zip(open().next()) {
            found.push(Obstacle::NodeName { name, claim });
        }
    }
    let unlabelled = |claim: &ResourceClaim| {
        let labels = manifests.namespaces.get(&claim.namespace);
        labels.is_some_and(|labels| labels.get(ADMIN_LABEL.0).map(String::as_str) != Some(ADMIN_LABEL.1))
    };
    let refused = open().find(|claim| is_administrative(claim) && unlabelled(claim));
    found.extend(refused.map(|claim| Obstacle::AdminAccess(claim)));
    found
}

fn is_administrative(claim: &ResourceClaim) -> bool {
    let is =
        |kind: &RequestKind| matches!(kind, RequestKind::Exactly(exact) if exact.access == Access::Admin);
    claim.requests.iter().any(|request| is(&request.kind))
}

/// The label on which administrative access depends, where the namespace was not read; in words.
pub(in crate::cli) fn unread_namespace(test: &NodeTest<'_>) -> Option<String> {
    let open = test.claims.iter().find(|claim| claim.allocation.is_none() && is_administrative(claim))?;
    let namespace = &open.namespace;
    let unread = !test.around.manifests.namespaces.contains_key(namespace);
    unread.then(|| format!("whether namespace {namespace} has label {}={}", ADMIN_LABEL.0, ADMIN_LABEL.1))
}

/// The domains of a spread constraint. Nodes count that have the keys of all constraints, and by the constraint's policies.
fn spread_domains<'c>(rule: &'c SpreadRule, pod: &'c Pod, around: Surroundings<'c>) -> SpreadDomains<'c> {
    let term = PodTerm {
        selector: rule.selector.clone(),
        topology_key: rule.topology_key.clone(),
        namespaces: vec![pod.namespace.clone()],
        namespace_selector: None,
    };
    let group = PodGroup { namespace: pod.namespace.clone(), terms: vec![term], ending: EndingPods::LeftOut };
    let counts = around.occupancy.count(&group, around.manifests);
    let mut domains = DomainCounts::new(around.occupancy);
    for (index, node) in numbered(around.world) {
        let keys = pod.rules().spread.iter().all(|other| node.labels.contains_key(&other.topology_key));
        let usable = rule.excluded_nodes == NodeInclusion::Counted
            || labelled(node, pod) && bound(node, Some(pod), &[]);
        let untainted = rule.tainted_nodes == NodeInclusion::Counted
            || unborne(&node.name, pod, around.manifests).is_empty();
        if let Some(value) = domain(node, &rule.topology_key).filter(|_| keys && usable && untainted) {
            domains.add(value, counts.get(&index).copied().unwrap_or(0));
        }
    }
    let few = domains.len() < rule.min_domains as usize;
    let emptiest = if few { 0 } else { domains.emptiest() };
    SpreadDomains { rule, domains, emptiest, itself: u32::from(group.has(pod, around.manifests)) }
}

/// The requirement of a term that has others and lacks this one alone.
fn lone_requirement<'t>(term: &'t NodeSelectorTerm, node: &Node) -> Option<&'t NodeRequirement> {
    let unmet: Vec<&NodeRequirement> = term.all_unmet(node).collect();
    let several = term.expressions.len() + term.fields.len() > 1;
    match unmet.as_slice() {
        [requirement] if several => Some(requirement),
        _ => None,
    }
}
