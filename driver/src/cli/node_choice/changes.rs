//! What keeps a unit off a node, in words, and the changes that take away the only thing that does.

use std::collections::BTreeMap;

use aliquot_core::allocate::NodeIndex;
use aliquot_core::dra::{Node, NodeSelector};
use aliquot_core::quantity::{Format, Quantity};

use crate::manifest::{CORDONED, Pod, PodTerm};

use super::node_test::{ADMIN_LABEL, NodeTest};
use super::nodes::{numbered, shown};
use super::obstacle::Obstacle;
use super::occupancy::{PODS, Shortage};

/// A change of a Pod, a claim or a node, and the nodes that the unit may use with it.
pub(in crate::cli) struct NodeChange {
    pub(in crate::cli) words: String,
    pub(in crate::cli) nodes: Vec<NodeIndex>,
    /// Name of the claim (namespace and name) that it allocates anew.
    pub(in crate::cli) reallocated: Option<(String, String)>,
}

/// Where a change comes among others: its rank, and how much it takes from the request, in thousandths.
type Order = (u8, u32);

/// Parts of a request that a change may leave out before taking a Pod off the node comes first.
const LOSS_MAX: u32 = 500;

/// The single changes that open further nodes to a unit: taints first, then its wishes.
pub(in crate::cli) fn single_changes(test: &NodeTest<'_>) -> Vec<NodeChange> {
    let mut changes: BTreeMap<(Order, String), NodeChange> = BTreeMap::new();
    for (index, node) in numbered(test.around.world) {
        let obstacles = test.obstacles(index);
        let [obstacle] = obstacles.as_slice() else { continue };
        let reallocated = match obstacle {
            Obstacle::Allocation(claim) => Some((claim.namespace.clone(), claim.name.clone())),
            _ => None,
        };
        for (order, words) in obstacle.changes(index, node, test) {
            let fresh =
                || NodeChange { words: words.clone(), nodes: Vec::new(), reallocated: reallocated.clone() };
            changes.entry((order, words.clone())).or_insert_with(fresh).nodes.push(index);
        }
    }
    let mut changes: Vec<(Order, NodeChange)> =
        changes.into_iter().map(|((order, _), change)| (order, change)).collect();
    changes.sort_by_key(|(order, change)| (*order, change.nodes.first().copied()));
    changes.into_iter().map(|(_, change)| change).collect()
}

// === impl Obstacle ===

impl Obstacle<'_> {
    /// Whether it keeps the unit off every node.
    pub(super) const fn is_everywhere(&self) -> bool {
        matches!(self, Self::Gates(_) | Self::NodeName { .. } | Self::AdminAccess(_))
    }

    /// Found and wanted, on this node.
    pub(super) fn words(&self, node: &Node) -> String {
        match self {
            Self::Gates(gates) => format!(
                "the Pod has scheduling gates ({}): no scheduler tries it until they are removed",
                gates.join(", ")
            ),
            Self::NodeName { name, claim } => format!(
                "the Pod names node {name} (nodeName), so that no scheduler allocates its claims: claim {}/{} has no \
                 allocation, and the kubelet waits for one",
                claim.namespace, claim.name
            ),
            Self::AdminAccess(claim) => format!(
                "claim {}/{} asks for adminAccess: found namespace {} without label {}={}, expected it",
                claim.namespace, claim.name, claim.namespace, ADMIN_LABEL.0, ADMIN_LABEL.1
            ),
            Self::DaemonNode(name) => format!("its DaemonSet makes the Pod for node {name}"),
            Self::Label(key, value) => {
                format!("nodeSelector wants {key}={value}; found {}", label(node, key))
            }
            Self::Affinity(affinity) | Self::Requirement { affinity, .. } => {
                format!("node affinity wants {}", unmet_of(affinity, node))
            }
            Self::Allocation(claim) => {
                let selector = claim.allocation.as_ref().and_then(|a| a.node_selector.as_ref());
                let unmet = selector.map(|selector| unmet_of(selector, node)).unwrap_or_default();
                format!("claim {}/{} is allocated for nodes with {unmet}", claim.namespace, claim.name)
            }
            Self::Taint(taint) => format!("taint {}", shown(taint)),
            Self::Amounts(shortages) => {
                let words = shortages.iter().map(|short| {
                    let Shortage { resource, requested, allocatable, .. } = short;
                    let free = short.free.max(Quantity::ZERO);
                    format!("the Pod requests {resource}: {requested}; found {free} free of {allocatable}")
                });
                words.collect::<Vec<_>>().join(", and ")
            }
            Self::Port { port, holder } => format!(
                "the Pod takes port {}/{} of the node (hostPort), which pod {} has",
                port.port,
                port.protocol,
                named(holder)
            ),
            Self::Near(_) | Self::Apart { .. } | Self::ApartOf { .. } => self.words_of_pods(node),
            Self::NoDomain(key) => format!("topology spread wants a label {key}; found none"),
            Self::Spread { rule, count, emptiest, .. } => format!(
                "topology spread over {} allows {} more than in the emptiest; found {count} in {}, {emptiest} in the \
                 emptiest",
                rule.topology_key,
                rule.max_skew,
                label(node, &rule.topology_key)
            ),
        }
    }

    /// Affinity and anti-affinity between Pods.
    fn words_of_pods(&self, node: &Node) -> String {
        match self {
            Self::Near(term) => format!(
                "Pod affinity wants {} in the same {}; found none in {}",
                meant(term),
                term.topology_key,
                label(node, &term.topology_key)
            ),
            Self::Apart { term, count } => format!(
                "Pod anti-affinity wants no {} in the same {}; found {count} in {}",
                meant(term),
                term.topology_key,
                label(node, &term.topology_key)
            ),
            Self::ApartOf { term, first, count } => {
                let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
                format!(
                    "pod {}{more} in {} wants no {} in the same {} (anti-affinity)",
                    named(first),
                    label(node, &term.topology_key),
                    meant(term),
                    term.topology_key
                )
            }
            _ => String::new(),
        }
    }

    /// The changes that take it away.
    fn changes(&self, index: NodeIndex, node: &Node, test: &NodeTest<'_>) -> Vec<(Order, String)> {
        let name = &node.name;
        let one = |rank: u8, words: String| vec![((rank, 0), words)];
        match self {
            Self::Gates(gates) => {
                let noun = if gates.len() == 1 { "gate" } else { "gates" };
                one(0, format!("remove scheduling {noun} {} from the Pod", gates.join(", ")))
            }
            Self::AdminAccess(claim) => one(
                0,
                format!("kubectl label namespace {} {}={}", claim.namespace, ADMIN_LABEL.0, ADMIN_LABEL.1),
            ),
            Self::Taint(taint) if taint.key == CORDONED => one(0, format!("uncordon node {name}")),
            Self::Taint(taint) => {
                let taint = shown(taint);
                one(0, format!("let the Pod tolerate taint {taint} of node {name}, or take it off"))
            }
            Self::NodeName { name: wanted, .. } if *wanted == *name => {
                let own = node.labels.get(HOSTNAME).map_or_else(
                    || format!("a node affinity to {name} (matchFields metadata.name)"),
                    |hostname| format!("nodeSelector {HOSTNAME}: {hostname}"),
                );
                one(1, format!("write {own} in place of nodeName: {wanted}"))
            }
            Self::Label(key, value) => {
                one(1, format!("drop {key}: {value} from the Pod's nodeSelector, or label a node so"))
            }
            Self::Requirement { wanted, .. } => {
                one(2, format!("drop `{wanted}` from the Pod's node affinity"))
            }
            Self::Affinity(_) => one(3, "drop the Pod's node affinity".to_owned()),
            Self::Amounts(shortages) => amounts(shortages, index, name, test),
            Self::Port { port, holder } => vec![
                ((2, 0), format!("drop hostPort {} from the Pod", port.port)),
                ((5, 0), format!("delete pod {}, which has the port", named(holder))),
            ],
            Self::Near(term) => one(
                2,
                format!("drop the affinity to {} (per {}) from the Pod", meant(term), term.topology_key),
            ),
            Self::Apart { term, .. } => one(
                2,
                format!("drop the anti-affinity to {} (per {}) from the Pod", meant(term), term.topology_key),
            ),
            Self::ApartOf { first, count: 1, .. } => {
                one(5, format!("delete pod {}, whose anti-affinity keeps it off", named(first)))
            }
            Self::ApartOf { .. } => Vec::new(),
            Self::NoDomain(key) => one(2, format!("label node {name} with {key}")),
            Self::Spread { rule, skew, .. } => {
                one(2, format!("raise maxSkew of the spread over {} to {skew}", rule.topology_key))
            }
            Self::NodeName { name: wanted, .. } => one(4, format!("take nodeName: {wanted} off the Pod")),
            Self::Allocation(claim) => one(
                6,
                format!(
                    "delete claim {}/{} and create it anew, without allocation",
                    claim.namespace, claim.name
                ),
            ),
            Self::DaemonNode(_) => Vec::new(),
        }
    }
}

/// Label with the host name of a node.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The namespace whose Pods are the cluster's own.
const SYSTEM: &str = "kube-system";

/// Lower requests, or a Pod less on the node, whichever leaves more of the request.
fn amounts(
    shortages: &[Shortage],
    index: NodeIndex,
    name: &str,
    test: &NodeTest<'_>,
) -> Vec<(Order, String)> {
    let mut changes = Vec::new();
    let free: Vec<Quantity> = shortages.iter().map(|short| rounded_down(short.free)).collect();
    let loss = |short: &Shortage, left: &Quantity| {
        let lost = short.requested.nanos().saturating_sub(left.nanos());
        u32::try_from(lost.saturating_mul(1_000) / short.requested.nanos().max(1)).unwrap_or(1_000)
    };
    let loss = shortages.iter().zip(&free).map(|(short, left)| loss(short, left)).max().unwrap_or(0);
    if free.iter().all(|left| *left > Quantity::ZERO) {
        let lower = shortages.iter().zip(&free).map(|(short, left)| format!("{}: {left}", short.resource));
        let words = format!("lower the Pod's requests to {}", lower.collect::<Vec<_>>().join(", "));
        changes.push(((if loss <= LOSS_MAX { 3 } else { 6 }, loss), words));
    }
    let manifests = test.around.manifests;
    let others = test.around.occupancy.pods_on(index).iter().filter_map(|pod| manifests.pods.get(*pod));
    let of = |pod: &Pod, short: &Shortage| match pod.requests.get(&short.resource) {
        Some(amount) => *amount,
        None if short.resource == PODS => Quantity::from_units(1, Format::DecimalSi),
        None => Quantity::ZERO,
    };
    let frees = |pod: &Pod, short: &Shortage| short.free.plus(of(pod, short)) >= short.requested;
    let enough =
        others.filter(|pod| pod.namespace != SYSTEM && shortages.iter().all(|short| frees(pod, short)));
    let size = |pod: &&Pod| shortages.first().map(|short| of(pod, short));
    if let Some(pod) = enough.min_by_key(size) {
        let held = shortages.iter().map(|short| format!("{}: {}", short.resource, of(pod, short)));
        let held = held.collect::<Vec<_>>().join(", ");
        let words = format!("delete pod {}, which requests {held} of node {name}", named(pod));
        changes.push(((5, 0), words));
    }
    changes
}

/// An amount as people write it, not above the one found.
fn rounded_down(amount: Quantity) -> Quantity {
    const MEBI: i128 = (1 << 20) * aliquot_core::quantity::NANOS_PER_UNIT;
    match amount.format() {
        Format::BinarySi if amount.nanos() > MEBI => {
            Quantity::from_nanos(amount.nanos() / MEBI * MEBI, Format::BinarySi)
        }
        _ => amount,
    }
}

fn named(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// The Pods of a term.
fn meant(term: &PodTerm) -> String {
    match &term.selector {
        Some(selector) => format!("Pods with {selector}"),
        None => "Pods of an absent labelSelector".to_owned(),
    }
}

/// What a selector wants and does not find: of each alternative the first requirement.
fn unmet_of(selector: &NodeSelector, node: &Node) -> String {
    let unmet = selector.unmet(node);
    if unmet.is_empty() {
        return "nothing that any node has (a term without requirements)".to_owned();
    }
    let of = |key: &str| {
        if key == "metadata.name" { format!("node {}", node.name) } else { label(node, key) }
    };
    let words = unmet.iter().map(|wanted| format!("{wanted}; found {}", of(&wanted.key)));
    words.collect::<Vec<_>>().join(", or ")
}

fn label(node: &Node, key: &str) -> String {
    node.labels.get(key).map_or_else(|| format!("no label {key}"), |value| format!("{key}={value}"))
}
