//! Nodes, and selectors over their names and labels.

use std::collections::BTreeMap;
use std::fmt;

/// What placement reads of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// A node selector: a node matches if any term does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelector {
    /// Alternatives.
    pub terms: Vec<NodeSelectorTerm>,
}

/// One term: all requirements must hold; a term without any matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelectorTerm {
    /// Over labels (`matchExpressions`).
    pub expressions: Vec<NodeRequirement>,
    /// Over fields (`matchFields`); Kubernetes knows `metadata.name` alone.
    pub fields: Vec<NodeRequirement>,
}

/// One requirement on a label or field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRequirement {
    /// Label or field name.
    pub key: String,
    /// How it is compared.
    pub operator: SelectorOperator,
    /// With what.
    pub values: Vec<String>,
}

/// Operators of node selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorOperator {
    /// The value is listed.
    In,
    /// The value is not listed, or the label is absent.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// Both are integers, and the label's is greater.
    Gt,
    /// Both are integers, and the label's is less.
    Lt,
}

// === impl NodeSelector ===

impl NodeSelector {
    /// The selector that only the node of this name passes, as the scheduler writes it.
    #[must_use]
    pub fn for_node(name: &str) -> Self {
        let requirement = NodeRequirement {
            key: "metadata.name".to_owned(),
            operator: SelectorOperator::In,
            values: vec![name.to_owned()],
        };
        Self { terms: vec![NodeSelectorTerm { expressions: Vec::new(), fields: vec![requirement] }] }
    }

    /// Whether any term matches the node.
    #[must_use]
    pub fn matches(&self, node: &Node) -> bool {
        self.terms.iter().any(|term| term.matches(node))
    }

    /// Of each term the first requirement that the node does not meet; empty if a term matches, or no term has requirements.
    #[must_use]
    pub fn unmet(&self, node: &Node) -> Vec<&NodeRequirement> {
        if self.matches(node) {
            return Vec::new();
        }
        self.terms.iter().filter_map(|term| term.unmet(node)).collect()
    }
}

impl NodeSelectorTerm {
    fn matches(&self, node: &Node) -> bool {
        let some = !(self.expressions.is_empty() && self.fields.is_empty());
        some && self.unmet(node).is_none()
    }

    fn unmet(&self, node: &Node) -> Option<&NodeRequirement> {
        self.all_unmet(node).next()
    }

    /// The requirements that the node does not meet.
    pub fn all_unmet<'t, 'n>(
        &'t self,
        node: &'n Node,
    ) -> impl Iterator<Item = &'t NodeRequirement> + use<'t, 'n> {
        let labels = self.expressions.iter().map(|r| (r, node.labels.get(&r.key).map(String::as_str)));
        let fields =
            self.fields.iter().map(|r| (r, (r.key == "metadata.name").then_some(node.name.as_str())));
        labels.chain(fields).filter(|(requirement, found)| !requirement.holds(*found)).map(|(r, _)| r)
    }
}

impl fmt::Display for NodeRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        let values = values.join(", ");
        match operator {
            SelectorOperator::In => write!(f, "{key} in ({values})"),
            SelectorOperator::NotIn => write!(f, "{key} not in ({values})"),
            SelectorOperator::Exists => write!(f, "a label {key}"),
            SelectorOperator::DoesNotExist => write!(f, "no label {key}"),
            SelectorOperator::Gt => write!(f, "{key} > {values}"),
            SelectorOperator::Lt => write!(f, "{key} < {values}"),
        }
    }
}

impl NodeRequirement {
    /// Whether it holds of the value that was found under its key.
    #[must_use]
    pub fn holds(&self, found: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| v == value);
        match self.operator {
            SelectorOperator::In => found.is_some_and(listed),
            SelectorOperator::NotIn => !found.is_some_and(listed),
            SelectorOperator::Exists => found.is_some(),
            SelectorOperator::DoesNotExist => found.is_none(),
            SelectorOperator::Gt => self.compare(found).is_some_and(std::cmp::Ordering::is_gt),
            SelectorOperator::Lt => self.compare(found).is_some_and(std::cmp::Ordering::is_lt),
        }
    }

    fn compare(&self, found: Option<&str>) -> Option<std::cmp::Ordering> {
        let [bound] = self.values.as_slice() else { return None };
        Some(found?.parse::<i64>().ok()?.cmp(&bound.parse::<i64>().ok()?))
    }
}
