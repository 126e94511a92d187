//! Nodes and node selectors.

use std::collections::BTreeMap;

use aliquot_core::dra::{
    Node as ClusterNode, NodeRequirement, NodeSelector, NodeSelectorTerm, SelectorOperator,
};

use super::documents::Meta;
use super::field::{Context, Path};
use super::tree::Node;

const TERMS_MAX: usize = 256;
const REQUIREMENTS_MAX: usize = 1_024;

/// A node with what its device plugins advertise, which stands before extended resources of classes.
pub(super) fn node(meta: Meta) -> ClusterNode {
    ClusterNode { name: meta.name, labels: meta.labels }
}

/// Reads `nodeSelector` in the long form: terms of requirements.
pub(super) fn selector(cx: &mut Context, value: &Node<'_>, path: &Path<'_>) -> NodeSelector {
    let mut selector = NodeSelector::default();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "nodeSelectorTerms" => selector.terms = cx.each(&entry.value, &at, TERMS_MAX, term),
            _ => cx.unknown(&at, &["nodeSelectorTerms"]),
        }
    }
    if value.get("nodeSelectorTerms").is_none() {
        cx.required(path, "nodeSelectorTerms", "a list of terms");
    }
    selector
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that every reader of list items has")]
fn term(cx: &mut Context, value: &Node<'_>, path: &Path<'_>) -> Option<NodeSelectorTerm> {
    let mut term = NodeSelectorTerm::default();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "matchExpressions" => {
                term.expressions = cx.each(&entry.value, &at, REQUIREMENTS_MAX, requirement);
            }
            "matchFields" => term.fields = cx.each(&entry.value, &at, REQUIREMENTS_MAX, requirement),
            _ => cx.unknown(&at, &["matchExpressions", "matchFields"]),
        }
    }
    Some(term)
}

fn requirement(cx: &mut Context, value: &Node<'_>, path: &Path<'_>) -> Option<NodeRequirement> {
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

fn operator_of(cx: &mut Context, value: &Node<'_>, path: &Path<'_>) -> Option<SelectorOperator> {
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
pub(super) fn labels(cx: &mut Context, value: &Node<'_>, path: &Path<'_>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        if let Some(text) = cx.string(&entry.value, &at) {
            labels.insert(entry.key.to_string(), text);
        }
    }
    labels
}
