//! The tree: nodes that know their line, and why a text is none.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::scalar::{Plain, is_null, plain};

/// Deeper nesting is refused: the API nests to about 16, and readers recurse.
pub(super) const DEPTH_MAX: usize = 64;

/// Up to here, finding a key twice is cheaper by comparing each with each.
pub(super) const SMALL_MAP: usize = 12;

/// One value and the line it begins on, from 1.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::manifest) struct YamlNode<'a> {
    pub(in crate::manifest) line: usize,
    pub(in crate::manifest) value: Value<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::manifest) enum Value<'a> {
    /// Anything without a structure, as written; `quoted` text is never a number, boolean or null.
    Scalar(Cow<'a, str>, Style),
    List(Vec<YamlNode<'a>>),
    Map(Vec<MapEntry<'a>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manifest) enum Style {
    Plain,
    Quoted,
}

/// One key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::manifest) struct MapEntry<'a> {
    pub(in crate::manifest) key: Cow<'a, str>,
    /// Line of the key.
    pub(in crate::manifest) line: usize,
    pub(in crate::manifest) value: YamlNode<'a>,
}

/// Why a text is not a tree.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(in crate::manifest) struct TreeError {
    /// Line where it showed.
    pub(in crate::manifest) line: usize,
    pub(super) what: String,
}

/// What a text holds, in its order.
#[derive(Debug, PartialEq)]
pub(in crate::manifest) enum Piece<'a> {
    /// An item of a list of objects; the list follows its items.
    Item(YamlNode<'a>),
    /// A document. A list of objects whose items were handed out has none left.
    Document(YamlNode<'a>),
}

/// Whether items of the document being read were handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemsGiven {
    None,
    Some,
}

/// Whether a document without its items is a list of objects, whose items stand for themselves.
pub(super) fn is_list(root: &YamlNode<'_>) -> bool {
    let text = |key| root.get(key).and_then(YamlNode::text).unwrap_or_default();
    !text("apiVersion").is_empty() && text("kind").ends_with("List")
}

pub(super) fn twice<'e, 'a>(entries: &'e [MapEntry<'a>]) -> Option<&'e MapEntry<'a>> {
    if entries.len() <= SMALL_MAP {
        let seen_before = |i: usize, e: &MapEntry<'_>| entries[..i].iter().any(|other| other.key == e.key);
        return entries.iter().enumerate().find(|(i, e)| seen_before(*i, e)).map(|(_, e)| e);
    }
    let mut seen = BTreeSet::new();
    entries.iter().find(|e| !seen.insert(e.key.as_ref()))
}

// === impl YamlNode ===

impl<'a> YamlNode<'a> {
    pub(super) fn count(&self) -> usize {
        match &self.value {
            Value::Scalar(..) => 1,
            Value::List(items) => 1 + items.iter().map(YamlNode::count).sum::<usize>(),
            Value::Map(entries) => 1 + entries.iter().map(|e| e.value.count()).sum::<usize>(),
        }
    }

    /// Whether it is YAML's null: nothing, `~` or `null`.
    pub(in crate::manifest) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(text, Style::Plain) if is_null(text))
    }

    /// The value of a key of a map; `None` too where it is null or this is no map.
    pub(in crate::manifest) fn get(&self, key: &str) -> Option<&YamlNode<'a>> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|e| e.key == key).map(|e| &e.value).filter(|n| !n.is_null())
    }

    /// The items of a list; none of anything else.
    pub(in crate::manifest) fn list(&self) -> &[YamlNode<'a>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text of a scalar.
    pub(in crate::manifest) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    /// What it is, in words for a message.
    pub(in crate::manifest) fn describe(&self) -> String {
        match &self.value {
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
            Value::Scalar(text, Style::Quoted) => format!("the text \"{}\"", cut(text)),
            Value::Scalar(text, Style::Plain) => match plain(text) {
                Plain::Null => "nothing".to_owned(),
                Plain::Bool(_) => format!("the boolean {text}"),
                Plain::Int(_) | Plain::Float(_) => format!("the number {}", cut(text)),
                Plain::Text => format!("the text \"{}\"", cut(text)),
            },
        }
    }
}

/// At most 60 characters of a text, for a message.
pub(in crate::manifest) fn cut(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

// === impl TreeError ===

impl TreeError {
    pub(super) fn at(line: usize, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }

    pub(super) fn too_deep(line: usize) -> Self {
        Self::at(line, format!("nested deeper than {DEPTH_MAX} levels"))
    }

    pub(super) fn key_twice(entry: &MapEntry<'_>) -> Self {
        Self::at(entry.line, format!("the key `{}` appears twice", cut(&entry.key)))
    }
}
