//! Nodes and node selectors.

use std::collections::BTreeMap;
use std::str::FromStr as _;

use aliquot_core::dra::{
    Node as ClusterNode, NodeRequirement, NodeSelector, NodeSelectorTerm, SelectorOperator, Taint,
};
use aliquot_core::quantity::Quantity;

use super::field::{Context, Origin, Path};
use super::meta::{Meta, version_of};
use super::tree::{MapEntry, Value, YamlNode, cut};
use super::{Manifests, name, taint};

const TERMS_MAX: usize = 256;
const REQUIREMENTS_MAX: usize = 1_024;
/// Annotations of an object, names and texts together: 256 KiB.
const ANNOTATIONS_BYTES_MAX: usize = 256 << 10;

/// A node, and what the manifests keep of it besides.
pub(super) struct ReadNode {
    node: ClusterNode,
    taints: Vec<Taint>,
    kubelet: Option<String>,
    allocatable: Option<BTreeMap<String, Quantity>>,
}

/// Reads a node.
pub(super) fn node(
    cx: &mut Context,
    spec: Option<(&YamlNode<'_>, &Path<'_>)>,
    status: Option<(&YamlNode<'_>, &Path<'_>)>,
    meta: Meta,
) -> ReadNode {
    let taints = spec.map(|(node, path)| taint::of_node(cx, node, path)).unwrap_or_default();
    let kubelet = status.and_then(|(node, _)| node.get("nodeInfo")?.get("kubeletVersion")?.text());
    ReadNode {
        node: ClusterNode { name: meta.name, labels: meta.labels },
        taints,
        kubelet: kubelet.map(str::to_owned),
        allocatable: status.and_then(|(node, _)| allocatable(node)),
    }
}

/// What Pods may request of the node altogether, by its status; `None`: its status does not say.
fn allocatable(status: &YamlNode<'_>) -> Option<BTreeMap<String, Quantity>> {
    let Some(Value::Map(entries)) = status.get("allocatable").map(|node| &node.value) else {
        return None;
    };
    let amount =
        |entry: &MapEntry<'_>| Some((entry.key.to_string(), Quantity::from_str(entry.value.text()?).ok()?));
    Some(entries.iter().filter_map(amount).collect())
}

// === impl Manifests ===

impl Manifests {
    pub(super) fn add_node(&mut self, read: ReadNode) {
        let ReadNode { node, taints, kubelet, allocatable } = read;
        let version = |text: &Option<String>| text.as_deref().and_then(version_of);
        if version(&kubelet) > version(&self.kubelet) {
            self.kubelet = kubelet;
        }
        if !taints.is_empty() {
            self.node_taints.insert(node.name.clone(), taints);
        }
        if let Some(allocatable) = allocatable {
            // Resources with a domain are a device plugin's, which may have stopped.
            let served =
                allocatable.iter().filter(|(name, most)| name.contains('/') && **most > Quantity::ZERO);
            self.plugin_resources.extend(served.map(|(name, _)| name.clone()));
            self.node_allocatable.insert(node.name.clone(), allocatable);
        }
        self.nodes.push(node);
    }
}

/// Reads `nodeSelector` in the long form: terms of requirements.
pub(super) fn selector(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> NodeSelector {
    let mut selector = NodeSelector::default();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "nodeSelectorTerms" => selector.terms = cx.each(&entry.value, &at, TERMS_MAX, term),
            _ => cx.unknown(&at, &["nodeSelectorTerms"]),
        }
    }
    match value.get("nodeSelectorTerms") {
        None => cx.required(path, "nodeSelectorTerms", "a list of terms"),
        Some(_) if selector.terms.is_empty() => {
            cx.rule(&path.missing("nodeSelectorTerms"), "is empty; expected at least one term");
        }
        Some(_) => {}
    }
    selector
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that every reader of list items has")]
fn term(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> Option<NodeSelectorTerm> {
    let mut term = NodeSelectorTerm::default();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "matchExpressions" => {
                term.expressions = cx.each(&entry.value, &at, REQUIREMENTS_MAX, requirement);
            }
            "matchFields" => term.fields = cx.each(&entry.value, &at, REQUIREMENTS_MAX, field_requirement),
            _ => cx.unknown(&at, &["matchExpressions", "matchFields"]),
        }
    }
    Some(term)
}

/// One of `matchExpressions`: over labels.
pub(super) fn requirement(
    cx: &mut Context,
    value: &YamlNode<'_>,
    path: &Path<'_>,
) -> Option<NodeRequirement> {
    let requirement = any_requirement(cx, value, path)?;
    name::label_name(cx, &requirement.key, &path.missing("key"));
    for value in &requirement.values {
        name::label_value(cx, value, &path.missing("values"));
    }
    let expected = match (requirement.operator, requirement.values.len()) {
        (SelectorOperator::In | SelectorOperator::NotIn, 0) => "expected at least one",
        (SelectorOperator::Exists | SelectorOperator::DoesNotExist, 1..) => {
            "expected none with this operator"
        }
        (SelectorOperator::Gt | SelectorOperator::Lt, 0 | 2..) => "expected one with this operator",
        _ => return Some(requirement),
    };
    cx.rule(&path.missing("values"), format!("found {}, {expected}", requirement.values.len()));
    Some(requirement)
}

/// One of `matchFields`: Kubernetes knows the node's name alone, and one value for it.
fn field_requirement(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> Option<NodeRequirement> {
    let requirement = any_requirement(cx, value, path)?;
    if requirement.key != "metadata.name" {
        let found = cut(&requirement.key);
        cx.rule(&path.missing("key"), format!("found \"{found}\", expected metadata.name"));
    }
    if !matches!(requirement.operator, SelectorOperator::In | SelectorOperator::NotIn) {
        cx.rule(&path.missing("operator"), "expected In or NotIn for a field");
    }
    if requirement.values.len() != 1 {
        let found = requirement.values.len();
        cx.rule(&path.missing("values"), format!("found {found}, expected one for a field"));
    }
    for value in &requirement.values {
        name::node(cx, value, &path.missing("values"));
    }
    Some(requirement)
}

fn any_requirement(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> Option<NodeRequirement> {
    let (mut key, mut operator, mut values) = (None, None, Vec::new());
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "key" => key = cx.string(&entry.value, &at),
            "operator" => operator = operator_of(cx, &entry.value, &at),
            "values" => values = cx.strings(&entry.value, &at, REQUIREMENTS_MAX),
            _ => cx.unknown(&at, &["key", "operator", "values"]),
        }
    }
    for (field, what) in [("key", "a label name"), ("operator", "In, NotIn, Exists, DoesNotExist, Gt or Lt")]
    {
        if value.get(field).is_none() {
            cx.required(path, field, what);
        }
    }
    Some(NodeRequirement { key: key?, operator: operator?, values })
}

fn operator_of(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> Option<SelectorOperator> {
    match cx.text(value, path)? {
        "In" => Some(SelectorOperator::In),
        "NotIn" => Some(SelectorOperator::NotIn),
        "Exists" => Some(SelectorOperator::Exists),
        "DoesNotExist" => Some(SelectorOperator::DoesNotExist),
        "Gt" => Some(SelectorOperator::Gt),
        "Lt" => Some(SelectorOperator::Lt),
        other => {
            let expected = "expected In, NotIn, Exists, DoesNotExist, Gt or Lt";
            cx.error(path, format!("found \"{other}\", {expected}"));
            None
        }
    }
}

/// A map of texts: labels, annotations, node selectors in the short form.
pub(super) fn labels(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        if let Some(text) = cx.string(&entry.value, &at) {
            labels.insert(entry.key.to_string(), text);
        }
    }
    labels
}

/// `metadata.labels`.
pub(super) fn object_labels(
    cx: &mut Context,
    value: &YamlNode<'_>,
    path: &Path<'_>,
) -> BTreeMap<String, String> {
    if cx.origin == Origin::Manifest {
        for entry in cx.entries(value, path) {
            let at = path.key(entry);
            name::label_name(cx, &entry.key, &at);
            name::label_value(cx, entry.value.text().unwrap_or_default(), &at);
        }
    }
    labels(cx, value, path)
}

/// `metadata.annotations`.
pub(super) fn annotations(
    cx: &mut Context,
    value: &YamlNode<'_>,
    path: &Path<'_>,
) -> BTreeMap<String, String> {
    let annotations = labels(cx, value, path);
    if cx.origin == Origin::Manifest {
        for entry in cx.entries(value, path) {
            // Capitals do not matter in the name of an annotation.
            name::label_name(cx, &entry.key.to_lowercase(), &path.key(entry));
        }
        let bytes: usize = annotations.iter().map(|(key, text)| key.len() + text.len()).sum();
        if bytes > ANNOTATIONS_BYTES_MAX {
            let most = ANNOTATIONS_BYTES_MAX;
            cx.rule(path, format!("are {bytes} bytes with their names; at most {most} are allowed"));
        }
    }
    annotations
}

/// The `metadata` of a template: its labels and annotations are those of what is made of it.
pub(super) fn template_metadata(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) {
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "labels" => drop(object_labels(cx, &entry.value, &at)),
            "annotations" => drop(annotations(cx, &entry.value, &at)),
            _ => {}
        }
    }
}
