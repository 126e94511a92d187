//! Text → tree: YAML or JSON as nodes that know their line, and nothing about Kubernetes.
//!
//! The text may be hostile. Depth, the nodes that aliases may bring, and the size of the text are bounded; a key that
//! appears twice is an error, and so is an alias that stands inside what it names. Scalars stay as written: whether
//! `1e9` is a number or a quantity is for the field to say.

mod scalar;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span};

use scalar::is_null;

pub(super) use scalar::{Plain, plain};

/// Deeper nesting is refused: the API nests to about 16, and readers recurse.
const DEPTH_MAX: usize = 64;
/// Nodes that aliases and merge keys may add to a text; stops the kind of file that doubles with every line.
const ALIASED_NODES_MAX: usize = 200_000;
/// Up to here, finding a key twice is cheaper by comparing each with each.
const SMALL_MAP: usize = 12;

/// One value and the line it begins on, from 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct YamlNode<'a> {
    pub(super) line: usize,
    pub(super) value: Value<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// Anything without a structure, as written; `quoted` text is never a number, boolean or null.
    Scalar(Cow<'a, str>, Style),
    List(Vec<YamlNode<'a>>),
    Map(Vec<MapEntry<'a>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Quoted,
}

/// One key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MapEntry<'a> {
    pub(super) key: Cow<'a, str>,
    /// Line of the key.
    pub(super) line: usize,
    pub(super) value: YamlNode<'a>,
}

/// Why a text is not a tree.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(super) struct TreeError {
    /// Line where it showed.
    pub(super) line: usize,
    what: String,
}

/// The documents of a text, one after another; ends at the first error.
pub(super) struct Documents<'a> {
    events: Parser<'a, serde_saphyr::granit_parser::StrInput<'a>>,
    aliased: usize,
    ended: bool,
}

/// A document under construction.
struct Builder<'a> {
    open: Vec<OpenContainer<'a>>,
    anchors: BTreeMap<usize, YamlNode<'a>>,
    aliased: usize,
}

/// A container without its end yet.
struct OpenContainer<'a> {
    line: usize,
    anchor: usize,
    kind: OpenKind<'a>,
}

enum OpenKind<'a> {
    List(Vec<YamlNode<'a>>),
    Map {
        entries: Vec<MapEntry<'a>>,
        /// Read, and its value is not.
        key: Option<(Cow<'a, str>, usize, Style)>,
        /// `<<`, which is no entry.
        merges: Vec<MapEntry<'a>>,
    },
}

// === impl Documents ===

impl<'a> Documents<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let mut options = Options::default();
        options.set_emit_comments(false);
        options.flow_nesting_limit = DEPTH_MAX;
        options.block_nesting_limit = 2 * DEPTH_MAX;
        Self { events: Parser::new_from_str_with_options(text, options), aliased: 0, ended: false }
    }

    fn document(&mut self) -> Result<Option<YamlNode<'a>>, TreeError> {
        let mut builder = Builder { open: Vec::new(), anchors: BTreeMap::new(), aliased: self.aliased };
        let mut root = None;
        loop {
            let Some(next) = self.events.next() else { return Ok(None) };
            let (event, span) = next.map_err(|error| TreeError::scan(&error))?;
            match event {
                Event::StreamEnd => return Ok(None),
                Event::DocumentEnd => {
                    self.aliased = builder.aliased;
                    return Ok(root);
                }
                event => {
                    if let Some(node) = builder.take(event, span)? {
                        root = Some(node);
                    }
                }
            }
        }
    }
}

impl<'a> Iterator for Documents<'a> {
    type Item = Result<YamlNode<'a>, TreeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.document();
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

// === impl Builder ===

impl<'a> Builder<'a> {
    /// Takes one event; the answer is the root, once it is whole.
    fn take(&mut self, event: Event<'a>, span: Span) -> Result<Option<YamlNode<'a>>, TreeError> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let style = if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted };
                self.complete(YamlNode { line, value: Value::Scalar(text, style) }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(line, anchor, OpenKind::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                self.begin(line, anchor, OpenKind::Map { entries: Vec::new(), key: None, merges: Vec::new() })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(line),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(TreeError::at(line, "an alias stands inside the value it names: a cycle"));
                };
                self.charge(&node, line)?;
                self.complete(node, 0)
            }
            _ => Ok(None),
        }
    }

    fn begin(
        &mut self,
        line: usize,
        anchor: usize,
        kind: OpenKind<'a>,
    ) -> Result<Option<YamlNode<'a>>, TreeError> {
        if self.open.len() >= DEPTH_MAX {
            return Err(TreeError::at(line, format!("nested deeper than {DEPTH_MAX} levels")));
        }
        if let Some(OpenContainer { kind: OpenKind::Map { key: None, .. }, .. }) = self.open.last() {
            return Err(TreeError::at(line, "a key is a list or a map; expected text"));
        }
        self.open.push(OpenContainer { line, anchor, kind });
        Ok(None)
    }

    fn end(&mut self, line: usize) -> Result<Option<YamlNode<'a>>, TreeError> {
        let Some(open) = self.open.pop() else { return Err(TreeError::at(line, "unbalanced end")) };
        let value = match open.kind {
            OpenKind::List(items) => Value::List(items),
            OpenKind::Map { entries, merges, .. } => Value::Map(self.finish_map(entries, merges)?),
        };
        self.complete(YamlNode { line: open.line, value }, open.anchor)
    }

    /// Puts a whole node where it belongs: into the innermost container, or out as the root.
    fn complete(&mut self, node: YamlNode<'a>, anchor: usize) -> Result<Option<YamlNode<'a>>, TreeError> {
        if anchor != 0 {
            self.charge(&node, node.line)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.kind) {
            None => return Ok(Some(node)),
            Some(OpenKind::List(items)) => items.push(node),
            Some(OpenKind::Map { entries, key, merges }) => match key.take() {
                // In quotes it is a key like any other.
                Some((key, line, Style::Plain)) if key == "<<" => {
                    merges.push(MapEntry { key, line, value: node });
                }
                Some((key, line, _)) => entries.push(MapEntry { key, line, value: node }),
                None => match node.value {
                    Value::Scalar(text, style) => *key = Some((text, node.line, style)),
                    _ => return Err(TreeError::at(node.line, "a key is a list or a map; expected text")),
                },
            },
        }
        Ok(None)
    }

    fn finish_map(
        &mut self,
        mut entries: Vec<MapEntry<'a>>,
        merges: Vec<MapEntry<'a>>,
    ) -> Result<Vec<MapEntry<'a>>, TreeError> {
        if let Some(again) = twice(&merges) {
            return Err(TreeError::at(again.line, "the key `<<` appears twice"));
        }
        for merge in merges {
            self.merge(&mut entries, merge)?;
        }
        match twice(&entries) {
            Some(entry) => Err(TreeError::at(entry.line, format!("the key `{}` appears twice", entry.key))),
            None => Ok(entries),
        }
    }

    /// `<<`: the entries of another map, or of several, where the map has none of its own.
    fn merge(&mut self, entries: &mut Vec<MapEntry<'a>>, merge: MapEntry<'a>) -> Result<(), TreeError> {
        let sources = match merge.value.value {
            Value::List(items) => items,
            _ => vec![merge.value],
        };
        for source in sources {
            let Value::Map(more) = source.value else {
                return Err(TreeError::at(merge.line, "`<<` merges maps; found something else"));
            };
            for entry in more {
                if !entries.iter().any(|e| e.key == entry.key) {
                    self.charge(&entry.value, merge.line)?;
                    entries.push(entry);
                }
            }
        }
        Ok(())
    }

    fn charge(&mut self, node: &YamlNode<'_>, line: usize) -> Result<(), TreeError> {
        self.aliased = self.aliased.saturating_add(node.count());
        if self.aliased > ALIASED_NODES_MAX {
            let what = format!("aliases bring more than {ALIASED_NODES_MAX} values into the text");
            return Err(TreeError::at(line, what));
        }
        Ok(())
    }
}

fn twice<'e, 'a>(entries: &'e [MapEntry<'a>]) -> Option<&'e MapEntry<'a>> {
    if entries.len() <= SMALL_MAP {
        let seen_before = |i: usize, e: &MapEntry<'_>| entries[..i].iter().any(|other| other.key == e.key);
        return entries.iter().enumerate().find(|(i, e)| seen_before(*i, e)).map(|(_, e)| e);
    }
    let mut seen = BTreeSet::new();
    entries.iter().find(|e| !seen.insert(e.key.as_ref()))
}

// === impl YamlNode ===

impl<'a> YamlNode<'a> {
    fn count(&self) -> usize {
        match &self.value {
            Value::Scalar(..) => 1,
            Value::List(items) => 1 + items.iter().map(YamlNode::count).sum::<usize>(),
            Value::Map(entries) => 1 + entries.iter().map(|e| e.value.count()).sum::<usize>(),
        }
    }

    /// Whether it is YAML's null: nothing, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(text, Style::Plain) if is_null(text))
    }

    /// The value of a key of a map; `None` too where it is null or this is no map.
    pub(super) fn get(&self, key: &str) -> Option<&YamlNode<'a>> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|e| e.key == key).map(|e| &e.value).filter(|n| !n.is_null())
    }

    /// The items of a list; none of anything else.
    pub(super) fn list(&self) -> &[YamlNode<'a>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    /// What it is, in words for a message.
    pub(super) fn describe(&self) -> String {
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
pub(super) fn cut(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

// === impl TreeError ===

impl TreeError {
    fn at(line: usize, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }

    fn scan(error: &ScanError) -> Self {
        Self::at(error.marker().line(), format!("not YAML or JSON: {}", error.info()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<YamlNode<'_>>, TreeError> {
        Documents::of(text).collect()
    }

    fn error(text: &str) -> String {
        match all(text) {
            Err(error) => format!("{}: {error}", error.line),
            Ok(nodes) => panic!("read as {nodes:?}"),
        }
    }

    #[test]
    fn documents_come_one_by_one_with_their_lines() {
        let nodes = all("a: 1\nb:\n- x\n---\n# nothing\n---\nc: {d: \"2\"}\n").unwrap();
        assert_eq!(nodes.len(), 3);
        assert_eq!(nodes[0].get("b").unwrap().line, 3);
        assert!(nodes[1].is_null());
        assert_eq!(nodes[2].get("c").unwrap().get("d").unwrap().text(), Some("2"));
    }

    #[test]
    fn json_is_read_by_the_same_door() {
        let nodes = all("{\n\t\"a\": [1, true, null, \"x\\u00e9\"],\n\t\"b\": \"\\/\"}").unwrap();
        assert_eq!(nodes[0].get("b").unwrap().text(), Some("/"));
    }

    #[test]
    fn a_key_that_appears_twice_is_an_error_in_small_and_large_maps() {
        assert!(error("a: 1\nb: 2\na: 3\n").contains("3: the key `a` appears twice"));
        let many: String = (0..40).map(|i| format!("k{i}: 1\n")).collect();
        assert!(error(&format!("{many}k7: 2\n")).contains("41: the key `k7` appears twice"));
    }

    #[test]
    fn aliases_are_copied_within_a_bound() {
        let nodes = all("a: &x {n: 1}\nb: *x\nc:\n  <<: *x\n  m: 2\n").unwrap();
        assert_eq!(nodes[0].get("b").unwrap().get("n").unwrap().text(), Some("1"));
        assert_eq!(nodes[0].get("c").unwrap().get("n").unwrap().text(), Some("1"));
        let nodes = all("a: &x {n: 1}\nc:\n  '<<': *x\n  \"n\": 2\n").unwrap();
        assert!(nodes[0].get("c").unwrap().get("<<").is_some(), "in quotes it is a key");
        assert!(error("a: &x {n: 1}\nc:\n  <<: *x\n  <<: *x\n").contains("4: the key `<<` appears twice"));
        assert!(error("a: {<<: 1}\n").contains("merges maps"));
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for i in 1..12 {
            let list = vec![format!("*a{}", i - 1); 10].join(",");
            bomb.push_str(&format!("a{i}: &a{i} [{list}]\n"));
        }
        assert!(error(&bomb).contains("aliases bring more than"));
        assert!(error("a: &a [*a]\n").contains("a cycle"));
    }

    #[test]
    fn depth_is_bounded_whatever_the_notation() {
        assert!(!error(&"[".repeat(100_000)).is_empty());
        assert!(!error(&"{a: ".repeat(100_000)).is_empty());
        let block: String = (0..5_000).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
        assert!(!error(&block).is_empty());
        assert!(!error(&"- ".repeat(100_000)).is_empty());
    }

    #[test]
    fn torn_text_names_the_line() {
        assert!(error("a: 1\nb: [1, 2\n").starts_with('2') || error("a: 1\nb: [1, 2\n").starts_with('3'));
        assert!(error("a: 'x\n").contains("not YAML or JSON"));
        assert!(error("? [a]\n: b\n").contains("expected text"));
    }
}
