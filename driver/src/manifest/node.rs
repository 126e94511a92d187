//! Nodes and node selectors.

use std::collections::BTreeMap;

use aliquot_core::dra::{
    Node as ClusterNode, NodeRequirement, NodeSelector, NodeSelectorTerm, SelectorOperator,
};

use super::documents::Meta;
use super::field::{Context, Path};
use super::name;
use super::tree::{MapEntry, Value, YamlNode, cut};

const TERMS_MAX: usize = 256;
const REQUIREMENTS_MAX: usize = 1_024;

/// A node.
pub(super) fn node(meta: Meta) -> ClusterNode {
    ClusterNode { name: meta.name, labels: meta.labels }
}

/// Resources that device plugins serve on the node, by its status: those with a domain, and more than none of them.
pub(super) fn plugin_resources(status: &YamlNode<'_>) -> Vec<String> {
    let Some(Value::Map(allocatable)) = status.get("allocatable").map(|node| &node.value) else {
        return Vec::new();
    };
    let is_served = |entry: &&MapEntry<'_>| entry.key.contains('/') && entry.value.text() != Some("0");
    allocatable.iter().filter(is_served).map(|entry| entry.key.to_string()).collect()
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
fn requirement(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> Option<NodeRequirement> {
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
