//! Text → tree: YAML or JSON as nodes that know their line, and nothing about Kubernetes but the form of a list.
//!
//! ```text
//!          ┌─ begins with { or [ ─▶ json ────────┬─▶ items of a list, one by one ─▶ the list without them
//!   text ──┤                        │ not JSON   └─▶ a document
//!          │                        ▼                    ▲
//!          │                      yaml ◀──┐ other forms  │
//!          └─ up to `---` ─▶ list, block ─┴──────────────┘
//! ```
//!
//! What programs print is read line by line, several times as fast as YAML of any form.
//!
//! The text may be hostile. Depth, the nodes that aliases may bring, and the size of the text are bounded; a key that
//! appears twice is an error, and so is an alias that stands inside what it names. Scalars stay as written: whether
//! `1e9` is a number or a quantity is for the field to say.

mod block;
mod json;
mod list;
mod scalar;
mod yaml;

use std::borrow::Cow;
use std::collections::BTreeSet;

use scalar::is_null;

pub(super) use scalar::{Plain, plain};

/// Deeper nesting is refused: the API nests to about 16, and readers recurse.
const DEPTH_MAX: usize = 64;
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

/// What a text holds, in its order.
#[derive(Debug, PartialEq)]
pub(super) enum Piece<'a> {
    /// An item of a list of objects; the list follows its items.
    Item(YamlNode<'a>),
    /// A document. A list of objects whose items were handed out has none left.
    Document(YamlNode<'a>),
}

/// The pieces of a text, one after another; ends at the first error.
pub(super) struct Pieces<'a> {
    text: &'a str,
    state: ReadState<'a>,
    /// Nodes that aliases brought so far.
    aliased: usize,
}

enum ReadState<'a> {
    /// Before a document, at a byte of the text that is in this line.
    Before(Place),
    /// In a document that begins as JSON does.
    Json {
        pieces: json::Pieces<'a>,
        place: Place,
        given: ItemsGiven,
    },
    /// In a list of objects in block form.
    List {
        items: list::Items<'a>,
        document: Document<'a>,
    },
    /// In YAML of any form.
    Yaml {
        pieces: Box<yaml::Pieces<'a>>,
        /// Items that were handed out before.
        skip: usize,
        after: Option<Place>,
    },
    Ended,
}

/// A byte of the text and its line.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    line: usize,
}

/// A document in YAML, up to the next `---`.
#[derive(Clone, Copy)]
struct Document<'a> {
    /// The text with its `---`.
    text: &'a str,
    line: usize,
    /// The text behind its `---`.
    content: &'a str,
    content_line: usize,
    /// Where the text goes on.
    after: Place,
}

/// Whether items of the document being read were handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemsGiven {
    None,
    Some,
}

// === impl Pieces ===

impl<'a> Pieces<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, state: ReadState::Before(Place { at: 0, line: 1 }), aliased: 0 }
    }

    fn read(&mut self) -> Result<Option<Piece<'a>>, TreeError> {
        loop {
            match &mut self.state {
                ReadState::Ended => return Ok(None),
                ReadState::Before(place) => {
                    let place = *place;
                    if let Some(document) = self.begin(place) {
                        return Ok(Some(Piece::Document(document)));
                    }
                }
                ReadState::List { items, document } => match items.next(&mut self.aliased) {
                    list::Next::Piece(piece) => return Ok(Some(piece)),
                    list::Next::End => self.state = ReadState::Before(document.after),
                    list::Next::Declined => {
                        let (document, skip) = (*document, items.given);
                        self.state = self.yaml(document.text, document.line, skip, Some(document.after));
                    }
                },
                ReadState::Yaml { pieces, skip, after } => match pieces.next()? {
                    Some(Piece::Item(_)) if *skip > 0 => *skip -= 1,
                    Some(Piece::Document(mut node)) => {
                        drop_items(&mut node, std::mem::take(skip));
                        return Ok(Some(Piece::Document(node)));
                    }
                    Some(item) => return Ok(Some(item)),
                    None => {
                        self.aliased = pieces.aliased();
                        self.state = after.map_or(ReadState::Ended, ReadState::Before);
                    }
                },
                ReadState::Json { pieces, place, given } => match pieces.next() {
                    Ok(Piece::Item(node)) => {
                        *given = ItemsGiven::Some;
                        return Ok(Some(Piece::Item(node)));
                    }
                    Ok(Piece::Document(node)) => {
                        let rest = pieces.rest().map(|(at, line)| ReadState::Before(Place { at, line }));
                        self.state = rest.unwrap_or(ReadState::Ended);
                        return Ok(Some(Piece::Document(node)));
                    }
                    Err(json::Fault::Syntax(error)) if *given == ItemsGiven::None => {
                        let place = *place;
                        return self.json_or_yaml(place, error);
                    }
                    Err(json::Fault::Syntax(error) | json::Fault::Final(error)) => return Err(error),
                },
            }
        }
    }

    /// Finds out in which form a document is written; the document, if it is read already.
    fn begin(&mut self, place: Place) -> Option<YamlNode<'a>> {
        let rest = self.text.get(place.at..).filter(|rest| !rest.is_empty());
        let Some(rest) = rest else {
            self.state = ReadState::Ended;
            return None;
        };
        let begin = rest.trim_start_matches('\u{feff}').trim_ascii_start();
        if begin.starts_with(['{', '[']) {
            let skipped = rest.len() - begin.len();
            let line = place.line + rest.bytes().take(skipped).filter(|byte| *byte == b'\n').count();
            let place = Place { at: place.at + skipped, line };
            let pieces = json::Pieces::of(self.text, place.at, line);
            self.state = ReadState::Json { pieces, place, given: ItemsGiven::None };
            return None;
        }
        let Some(document) = Document::of(rest, place) else {
            self.state = self.yaml(rest, place.line, 0, None);
            return None;
        };
        if let Some(items) = list::Items::of(document.content, document.content_line) {
            self.state = ReadState::List { items, document };
            return None;
        }
        let read = block::read(document.content, document.content_line).filter(|node| !is_list(node));
        self.state = match &read {
            Some(_) => ReadState::Before(document.after),
            None => self.yaml(document.text, document.line, 0, Some(document.after)),
        };
        read
    }

    fn yaml(&self, text: &'a str, line: usize, skip: usize, after: Option<Place>) -> ReadState<'a> {
        let pieces = Box::new(yaml::Pieces::of(text, line, self.aliased));
        ReadState::Yaml { pieces, skip, after }
    }

    /// Reads as YAML what begins as JSON does and is none: `{a: 1}`. If it is no YAML either, what follows the bracket
    /// says which of the two was meant.
    fn json_or_yaml(&mut self, place: Place, error: TreeError) -> Result<Option<Piece<'a>>, TreeError> {
        let rest = self.text.get(place.at..).unwrap_or_default();
        let mut pieces = Box::new(yaml::Pieces::of(rest, place.line, self.aliased));
        let first = pieces.next();
        self.state = ReadState::Yaml { pieces, skip: 0, after: None };
        let within = rest.get(1..).unwrap_or_default().trim_ascii_start();
        match first {
            Err(_) if !within.starts_with(char::is_alphanumeric) => Err(error),
            first => first,
        }
    }
}

// === impl Document ===

impl<'a> Document<'a> {
    /// The document that begins at this place; `None`: only a reader of the whole text finds its end, as with directives.
    fn of(rest: &'a str, place: Place) -> Option<Self> {
        let (mut at, mut line) = (0, place.line);
        let (mut content, mut content_line) = (0, place.line);
        let mut begun = false;
        for text in rest.split_inclusive('\n') {
            let plain = text.trim_end();
            let marker = plain == "---";
            if marker && begun {
                break;
            }
            if text.starts_with("...")
                || !marker && text.starts_with("---")
                || !begun && text.starts_with('%')
            {
                return None;
            }
            begun |= !plain.is_empty() && !plain.starts_with('#');
            (at, line) = (at + text.len(), line + 1);
            if marker {
                (content, content_line) = (at, line);
            }
        }
        let text = rest.get(..at)?;
        if at < rest.len() && yaml::ends_in_scalar_head(text) {
            return None;
        }
        let after = Place { at: place.at + at, line };
        Some(Self { text, line: place.line, content: text.get(content..)?, content_line, after })
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<Piece<'a>, TreeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.read();
        if !matches!(next, Ok(Some(_))) {
            self.state = ReadState::Ended;
        }
        next.transpose()
    }
}

/// Whether a document without its items is a list of objects, whose items stand for themselves.
fn is_list(root: &YamlNode<'_>) -> bool {
    let text = |key| root.get(key).and_then(YamlNode::text).unwrap_or_default();
    !text("apiVersion").is_empty() && text("kind").ends_with("List")
}

/// Removes the first items of a list of objects.
fn drop_items(list: &mut YamlNode<'_>, count: usize) {
    if let Value::Map(entries) = &mut list.value
        && let Some(MapEntry { value, .. }) = entries.iter_mut().find(|entry| entry.key == "items")
        && let Value::List(items) = &mut value.value
    {
        items.drain(..count.min(items.len()));
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

    fn too_deep(line: usize) -> Self {
        Self::at(line, format!("nested deeper than {DEPTH_MAX} levels"))
    }

    fn key_twice(entry: &MapEntry<'_>) -> Self {
        Self::at(entry.line, format!("the key `{}` appears twice", cut(&entry.key)))
    }
}

#[cfg(test)]
mod tests;
