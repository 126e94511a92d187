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
mod node;
mod scalar;
mod yaml;

use node::{ItemsGiven, is_list};
pub(super) use node::{MapEntry, Piece, Style, TreeError, Value, YamlNode, cut};
pub(super) use scalar::{Plain, plain};

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

/// Removes the first items of a list of objects.
fn drop_items(list: &mut YamlNode<'_>, count: usize) {
    if let Value::Map(entries) = &mut list.value
        && let Some(MapEntry { value, .. }) = entries.iter_mut().find(|entry| entry.key == "items")
        && let Value::List(items) = &mut value.value
    {
        items.drain(..count.min(items.len()));
    }
}

#[cfg(test)]
mod tests;
