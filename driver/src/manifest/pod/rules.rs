//! What else a Pod's placement depends on: gates, other Pods, ports of the node, and what only the scheduler answers.

use std::collections::BTreeMap;

use aliquot_core::dra::{NodeRequirement, SelectorOperator};

use super::{Context, Path, Pod, YamlNode, node};
use crate::manifest::{HostPort, LabelSelector, NodeInclusion, PlacementRules, PodTerm, SpreadRule};

pub(super) const CONTAINERS_MAX: usize = 1_024;

const GATES_MAX: usize = 1_024;
const TERMS_MAX: usize = 1_024;
const NAMES_MAX: usize = 1_024;
const PORTS_MAX: usize = 1_024;

/// The scheduler of a Pod that names none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Reads a Pod's `spec`; `None`: nothing of it is there. `pod` has its labels.
pub(super) fn rules(
    cx: &mut Context,
    spec: &YamlNode<'_>,
    path: &Path<'_>,
    pod: &Pod,
) -> Option<Box<PlacementRules>> {
    let mut rules = PlacementRules::default();
    for entry in cx.entries(spec, path) {
        let at = path.key(entry);
        let value = &entry.value;
        match entry.key.as_ref() {
            "schedulingGates" => rules.gates = cx.each(value, &at, GATES_MAX, gate),
            "affinity" => {
                rules.near = terms(cx, (value, &at), "podAffinity", &pod.labels);
                rules.apart = terms(cx, (value, &at), "podAntiAffinity", &pod.labels);
            }
            "topologySpreadConstraints" => {
                let of_pod = |cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>| {
                    spread(cx, node, path, &pod.labels)
                };
                rules.spread = cx.each(value, &at, TERMS_MAX, of_pod);
            }
            "containers" | "initContainers" => rules.ports.extend(ports(value)),
            "volumes" => rules.unknown.extend(volumes(value)),
            "schedulerName" => {
                let other = value.text().filter(|name| *name != DEFAULT_SCHEDULER);
                rules.unknown.extend(other.map(|name| format!("what scheduler {name} decides")));
            }
            "workloadRef" | "schedulingGroup" => {
                rules.unknown.push(format!("whether its group of Pods has a place (spec.{})", entry.key));
            }
            _ => {}
        }
    }
    (rules != PlacementRules::default()).then(|| Box::new(rules))
}

fn gate(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let Some(name) = node.get("name") else {
        cx.required(path, "name", "the name of the gate");
        return None;
    };
    cx.string(name, &path.missing("name"))
}

/// The required terms of one kind of affinity. Preferred ones keep no Pod off.
fn terms(
    cx: &mut Context,
    (affinity, path): (&YamlNode<'_>, &Path<'_>),
    kind: &str,
    labels: &BTreeMap<String, String>,
) -> Vec<PodTerm> {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let Some(required) = affinity.get(kind).and_then(|kind| kind.get(REQUIRED)) else { return Vec::new() };
    let at = path.missing(kind);
    let at = at.missing(REQUIRED);
    cx.each(required, &at, TERMS_MAX, |cx, node, path| term(cx, node, path, labels))
}

fn term(
    cx: &mut Context,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    labels: &BTreeMap<String, String>,
) -> Option<PodTerm> {
    const FIELDS: &[&str] = &[
        "labelSelector",
        "topologyKey",
        "namespaces",
        "namespaceSelector",
        "matchLabelKeys",
        "mismatchLabelKeys",
    ];
    let mut term = PodTerm {
        selector: None,
        topology_key: String::new(),
        namespaces: Vec::new(),
        namespace_selector: None,
    };
    let mut keys = Vec::new();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "labelSelector" => term.selector = Some(selector(cx, &entry.value, &at)),
            "topologyKey" => term.topology_key = cx.string(&entry.value, &at)?,
            "namespaces" => term.namespaces = cx.strings(&entry.value, &at, NAMES_MAX),
            "namespaceSelector" => term.namespace_selector = Some(selector(cx, &entry.value, &at)),
            "matchLabelKeys" => keys.push((SelectorOperator::In, cx.strings(&entry.value, &at, NAMES_MAX))),
            "mismatchLabelKeys" => {
                keys.push((SelectorOperator::NotIn, cx.strings(&entry.value, &at, NAMES_MAX)));
            }
            _ => cx.unknown(&at, FIELDS),
        }
    }
    if term.topology_key.is_empty() {
        cx.required(path, "topologyKey", "the label of nodes that makes a domain");
        return None;
    }
    for (operator, keys) in keys {
        with_own(&mut term.selector, operator, &keys, labels);
    }
    Some(term)
}

/// A selector with the values that the Pod itself has under these keys, as the API server writes it into the selector.
fn with_own(
    selector: &mut Option<LabelSelector>,
    operator: SelectorOperator,
    keys: &[String],
    labels: &BTreeMap<String, String>,
) {
    let Some(selector) = selector else { return };
    for (key, value) in keys.iter().filter_map(|key| labels.get_key_value(key)) {
        let own = NodeRequirement { key: key.clone(), operator, values: vec![value.clone()] };
        if !selector.requirements.contains(&own) {
            selector.requirements.push(own);
        }
    }
}

fn selector(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> LabelSelector {
    let mut selector = LabelSelector::default();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "matchLabels" => {
                let equal = |(key, value)| NodeRequirement {
                    key,
                    operator: SelectorOperator::In,
                    values: vec![value],
                };
                selector.requirements.extend(node::labels(cx, &entry.value, &at).into_iter().map(equal));
            }
            "matchExpressions" => {
                selector.requirements.extend(cx.each(&entry.value, &at, TERMS_MAX, node::requirement));
            }
            _ => cx.unknown(&at, &["matchLabels", "matchExpressions"]),
        }
    }
    selector
}

fn spread(
    cx: &mut Context,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    labels: &BTreeMap<String, String>,
) -> Option<SpreadRule> {
    const FIELDS: &[&str] = &[
        "maxSkew",
        "topologyKey",
        "whenUnsatisfiable",
        "labelSelector",
        "minDomains",
        "nodeAffinityPolicy",
        "nodeTaintsPolicy",
        "matchLabelKeys",
    ];
    let mut rule = SpreadRule {
        max_skew: 1,
        topology_key: String::new(),
        selector: None,
        min_domains: 1,
        excluded_nodes: NodeInclusion::LeftOut,
        tainted_nodes: NodeInclusion::Counted,
    };
    let mut keys = Vec::new();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        let value = &entry.value;
        match entry.key.as_ref() {
            "maxSkew" => rule.max_skew = cx.count(value, &at)?,
            "topologyKey" => rule.topology_key = cx.string(value, &at)?,
            "labelSelector" => rule.selector = Some(selector(cx, value, &at)),
            "minDomains" => rule.min_domains = cx.count(value, &at)?,
            "nodeAffinityPolicy" if value.text() == Some("Ignore") => {
                rule.excluded_nodes = NodeInclusion::Counted;
            }
            "nodeTaintsPolicy" if value.text() == Some("Honor") => {
                rule.tainted_nodes = NodeInclusion::LeftOut;
            }
            "matchLabelKeys" => keys = cx.strings(value, &at, NAMES_MAX),
            known if FIELDS.contains(&known) => {}
            _ => cx.unknown(&at, FIELDS),
        }
    }
    with_own(&mut rule.selector, SelectorOperator::In, &keys, labels);
    // The other one is a wish.
    let keeps_off = node.get("whenUnsatisfiable").and_then(YamlNode::text) != Some("ScheduleAnyway");
    (keeps_off && !rule.topology_key.is_empty()).then_some(rule)
}

/// The ports of the node that containers take.
fn ports(containers: &YamlNode<'_>) -> Vec<HostPort> {
    let of_container = containers.list().iter().filter_map(|container| container.get("ports"));
    of_container.flat_map(|ports| ports.list().iter().take(PORTS_MAX)).filter_map(port).collect()
}

fn port(port: &YamlNode<'_>) -> Option<HostPort> {
    let text = |key| port.get(key).and_then(YamlNode::text);
    let number = text("hostPort")?.parse().ok().filter(|number| *number > 0)?;
    let address = text("hostIP").filter(|address| *address != "0.0.0.0").unwrap_or_default();
    let protocol = text("protocol").unwrap_or("TCP").to_owned();
    Some(HostPort { port: number, protocol, address: address.to_owned() })
}

/// Volumes that only some nodes may have, in words.
fn volumes(volumes: &YamlNode<'_>) -> Vec<String> {
    let of = |volume: &YamlNode<'_>| {
        let name = || volume.get("name").and_then(YamlNode::text).unwrap_or_default().to_owned();
        if let Some(claim) = volume.get("persistentVolumeClaim") {
            let claim = claim.get("claimName").and_then(YamlNode::text).unwrap_or_default();
            return Some(format!("which nodes have the volume of PersistentVolumeClaim {claim}"));
        }
        volume.get("ephemeral").map(|_| format!("which nodes can have volume {}", name()))
    };
    volumes.list().iter().take(CONTAINERS_MAX).filter_map(of).collect()
}
