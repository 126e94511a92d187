//! YAML text → tree, by the events of a YAML parser.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::node::{
    DEPTH_MAX, ItemsGiven, MapEntry, Piece, SMALL_MAP, Style, TreeError, Value, YamlNode, is_list, twice,
};

/// Nodes that aliases and merge keys may add to a text; stops the kind of file that doubles with every line.
const ALIASED_NODES_MAX: usize = 200_000;

/// The pieces of a text in YAML.
pub(super) struct Pieces<'a> {
    events: Parser<'a, StrInput<'a>>,
    builder: Builder<'a>,
}

/// A document under construction.
struct Builder<'a> {
    text: &'a str,
    /// Line of the text's first line, from 0.
    line: usize,
    open: Vec<OpenContainer<'a>>,
    anchors: BTreeMap<usize, YamlNode<'a>>,
    aliased: usize,
    given: ItemsGiven,
    first_items: FirstItems,
    root: Option<YamlNode<'a>>,
}

/// Whether the first `items` of the document's map have been met; a list of objects has them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstItems {
    Ahead,
    Met,
}

/// A container without its end yet.
struct OpenContainer<'a> {
    line: usize,
    anchor: usize,
    kind: OpenKind<'a>,
}

enum OpenKind<'a> {
    List(Vec<YamlNode<'a>>),
    /// The items of a list of objects, which are handed out.
    Items,
    Map {
        entries: Vec<MapEntry<'a>>,
        /// Read, and its value is not.
        key: Option<(Cow<'a, str>, usize, Style)>,
        /// `<<`, which is no entry.
        merges: Vec<MapEntry<'a>>,
    },
}

// === impl Pieces ===

impl<'a> Pieces<'a> {
    /// The pieces of a text whose first line has this number; aliases before it brought so many nodes.
    pub(super) fn of(text: &'a str, line: usize, aliased: usize) -> Self {
        let mut options = Options::default();
        options.set_emit_comments(false);
        options.flow_nesting_limit = DEPTH_MAX;
        options.block_nesting_limit = 2 * DEPTH_MAX;
        let builder = Builder::new(text, line.saturating_sub(1), aliased);
        Self { events: Parser::new_from_str_with_options(text, options), builder }
    }

    /// Nodes that aliases brought, with those before the text.
    pub(super) const fn aliased(&self) -> usize {
        self.builder.aliased
    }

    pub(super) fn next(&mut self) -> Result<Option<Piece<'a>>, TreeError> {
        loop {
            let Some(next) = self.events.next() else { return Ok(None) };
            let (event, span) = next.map_err(|error| self.builder.scan_error(&error))?;
            match event {
                Event::StreamEnd => return Ok(None),
                Event::DocumentEnd => {
                    let Builder { text, line, aliased, .. } = self.builder;
                    let document = std::mem::replace(&mut self.builder, Builder::new(text, line, aliased));
                    return document.finish().map(|root| root.map(Piece::Document));
                }
                event => {
                    if let Some(item) = self.builder.take(event, span)? {
                        return Ok(Some(Piece::Item(item)));
                    }
                }
            }
        }
    }
}

// === impl Builder ===

impl<'a> Builder<'a> {
    fn new(text: &'a str, line: usize, aliased: usize) -> Self {
        let (open, anchors) = (Vec::new(), BTreeMap::new());
        let (given, first_items) = (ItemsGiven::None, FirstItems::Ahead);
        Self { text, line, open, anchors, aliased, given, first_items, root: None }
    }

    fn scan_error(&self, error: &ScanError) -> TreeError {
        TreeError::at(self.line + error.marker().line(), format!("not YAML or JSON: {}", error.info()))
    }

    /// The document; what its items were taken for has to be what it is.
    fn finish(self) -> Result<Option<YamlNode<'a>>, TreeError> {
        match self.root {
            Some(root) if self.given == ItemsGiven::Some && !is_list(&root) => {
                let what =
                    "has `kind` twice, once as the kind of a list; expected one kind at the start of a line";
                Err(TreeError::at(root.line, what))
            }
            root => Ok(root),
        }
    }

    /// Takes one event; the answer is an item that is handed out.
    fn take(&mut self, event: Event<'a>, span: Span) -> Result<Option<YamlNode<'a>>, TreeError> {
        let line = self.line + span.start.line();
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let style = if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted };
                self.complete(YamlNode { line, value: Value::Scalar(text, style) }, anchor)
            }
            Event::SequenceStart(_, 0, _) if self.is_items_of_list(span) => {
                self.given = ItemsGiven::Some;
                self.begin(line, 0, OpenKind::Items)
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
            return Err(TreeError::too_deep(line));
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
            OpenKind::Items => Value::List(Vec::new()),
            OpenKind::Map { entries, merges, .. } => Value::Map(self.finish_map(entries, merges)?),
        };
        self.complete(YamlNode { line: open.line, value }, open.anchor)
    }

    /// Whether a list that begins here is that of the items of a list of objects. `kubectl` writes the kind behind them.
    fn is_items_of_list(&mut self, span: Span) -> bool {
        let [OpenContainer { kind: OpenKind::Map { entries, key: Some((key, ..)), .. }, .. }] =
            self.open.as_slice()
        else {
            return false;
        };
        if key != "items" || self.first_items == FirstItems::Met {
            return false;
        }
        self.first_items = FirstItems::Met;
        let read =
            |key: &str| entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.value.text());
        if read("apiVersion").is_none_or(str::is_empty) {
            return false;
        }
        let behind = || span.start.byte_offset().and_then(|at| kind_behind(self.text.get(at..)?.lines()));
        read("kind").or_else(behind).is_some_and(|kind| kind.ends_with("List"))
    }

    /// Puts a whole node where it belongs: into the innermost container, to be the root, or out as an item.
    fn complete(&mut self, node: YamlNode<'a>, anchor: usize) -> Result<Option<YamlNode<'a>>, TreeError> {
        if anchor != 0 {
            self.charge(&node, node.line)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.kind) {
            None => self.root = Some(node),
            Some(OpenKind::Items) => return Ok(Some(node)),
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
            Some(entry) => Err(TreeError::key_twice(entry)),
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
            let Value::Map(mut more) = source.value else {
                return Err(TreeError::at(merge.line, "`<<` merges maps; found something else"));
            };
            keep_absent(&mut more, entries);
            for entry in &more {
                self.charge(&entry.value, merge.line)?;
            }
            entries.append(&mut more);
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

/// Whether a text ends in the head of a block scalar without a line: what the parser makes of it depends on what
/// follows.
pub(super) fn ends_in_scalar_head(text: &str) -> bool {
    let line = text.trim_end().rsplit('\n').next().unwrap_or_default();
    let line = line.split(" #").next().unwrap_or_default().trim_end();
    let word = line.rsplit([' ', '\t']).next().unwrap_or_default();
    word.starts_with(['|', '>']) && word[1..].bytes().all(|byte| matches!(byte, b'+' | b'-' | b'0'..=b'9'))
}

/// Removes the entries whose key `present` has. No key of a map that was read is there twice.
fn keep_absent(entries: &mut Vec<MapEntry<'_>>, present: &[MapEntry<'_>]) {
    if present.len() <= SMALL_MAP {
        entries.retain(|entry| !present.iter().any(|other| other.key == entry.key));
        return;
    }
    let keys: BTreeSet<&str> = present.iter().map(|entry| entry.key.as_ref()).collect();
    entries.retain(|entry| !keys.contains(entry.key.as_ref()));
}

/// The kind that a document states at the start of one of its further lines; the first is the end of a line. No line
/// behind the document is read.
fn kind_behind<'a>(lines: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let of_document = |line: &&str| !line.starts_with("---") && !line.starts_with("...");
    let value = lines.skip(1).take_while(of_document).find_map(|line| line.strip_prefix("kind:"))?;
    Some(value.split(" #").next()?.trim().trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_behind_reads_no_line_of_the_next_document() {
        let text = "\n- a\nspec: 1\n---\nkind: List\n";
        let mut read = Vec::new();
        let kind = kind_behind(text.lines().inspect(|line| read.push(*line)));
        assert_eq!((kind, read), (None, vec!["", "- a", "spec: 1", "---"]));
        assert_eq!(kind_behind("- a\nkind: 'PodList' # all\nkind: x".lines()), Some("PodList"));
    }
}
