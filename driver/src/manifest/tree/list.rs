//! A list of objects in block form, item by item, each read for itself.
//!
//! ```text
//!  apiVersion: v1      ┐ header ─────────────────────▶┐
//!  items:              ┘                              ├ map without items: is it a list of objects?
//!  - kind: Pod         ┐ item: block, or else yaml    │
//!    …                 ┘                              │
//!  kind: List          ┐ trailer ────────────────────▶┘
//!  metadata: …         ┘
//! ```
//!
//! A line in the column of the first dash, or left of it, ends an item: no value of YAML goes on there. What only the
//! whole document tells, such as an anchor of another item, is left to the reader of the whole document.

use super::node::{MapEntry, Piece, Value, YamlNode, is_list, twice};
use super::{block, yaml};

/// The items of a list that follow, and the list.
pub(super) struct Items<'a> {
    /// The text from the next item to the end of the last.
    rest: &'a str,
    /// Number of its first line.
    line: usize,
    /// Column of the dashes.
    column: usize,
    /// The list without its items.
    list: Option<YamlNode<'a>>,
    /// How many were handed out.
    pub(super) given: usize,
}

/// What comes next of a list.
pub(super) enum Next<'a> {
    Piece(Piece<'a>),
    End,
    /// The next item cannot be read for itself.
    Declined,
}

/// One line of a text.
struct TextLine<'a> {
    /// Where it begins.
    at: usize,
    /// How many lines are before it.
    before: usize,
    column: usize,
    text: &'a str,
}

/// The lines of a text that have something else than a comment on them.
fn lines(text: &str) -> impl Iterator<Item = TextLine<'_>> {
    let (mut at, mut before) = (0, 0);
    let all = std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let end = rest.bytes().position(|byte| byte == b'\n').unwrap_or(rest.len());
        let text = rest.get(..end)?.trim_start_matches(' ');
        let line = TextLine { at, before, column: end - text.len(), text: text.trim_end() };
        (at, before) = (at + end + 1, before + 1);
        Some(line)
    });
    all.filter(|line| !line.text.is_empty() && !line.text.starts_with('#'))
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// The line and the entries of a map that a text is whole; a text without a value has none.
fn map(text: &str, line: usize) -> Option<(usize, Vec<MapEntry<'_>>)> {
    let is_key =
        |line: TextLine<'_>| line.column > 0 || line.text.starts_with(|c: char| c.is_ascii_alphabetic());
    if yaml::ends_in_scalar_head(text) || !lines(text).all(is_key) {
        return None;
    }
    let mut pieces = yaml::Pieces::of(text, line, 0);
    let first = pieces.next().ok()?;
    let Some(Piece::Document(node)) = first else { return first.is_none().then(|| (line, Vec::new())) };
    match (node.value, pieces.next()) {
        (Value::Map(entries), Ok(None)) => Some((node.line, entries)),
        _ => None,
    }
}

// === impl Items ===

impl<'a> Items<'a> {
    /// Of a document whose first line has this number; `None`: it is no list of objects in this form.
    pub(super) fn of(document: &'a str, line: usize) -> Option<Self> {
        let mut all = lines(document);
        all.find(|line| line.column == 0 && line.text == "items:")?;
        let first = all.next().filter(|line| is_item(line.text))?;
        let column = first.column;
        let goes_on =
            |line: &TextLine<'_>| line.column > column || line.column == column && is_item(line.text);
        let (end, end_line) = match all.find(|line| !goes_on(line)) {
            None => (document.len(), line),
            Some(TextLine { column: 0, at, before, .. }) => (at, line + before),
            Some(_) => return None,
        };
        let (header, rest) = document.split_at_checked(first.at)?;
        let (rest, trailer) = rest.split_at_checked(end - first.at)?;
        let first_line = line + first.before;
        let (list_line, mut entries) = map(header, line)?;
        let entry = entries.last_mut().filter(|entry| entry.key == "items" && entry.value.is_null())?;
        entry.value = YamlNode { line: first_line, value: Value::List(Vec::new()) };
        entries.extend(map(trailer, end_line)?.1);
        let unique = twice(&entries).is_none();
        let list = YamlNode { line: list_line, value: Value::Map(entries) };
        (unique && is_list(&list)).then_some(Self {
            rest,
            line: first_line,
            column,
            list: Some(list),
            given: 0,
        })
    }

    /// The next item, or the list behind them. `aliased` counts the nodes that aliases brought.
    pub(super) fn next(&mut self, aliased: &mut usize) -> Next<'a> {
        if self.rest.is_empty() {
            return self.list.take().map_or(Next::End, |list| Next::Piece(Piece::Document(list)));
        }
        let following = lines(self.rest).skip(1).find(|line| line.column == self.column);
        let (end, line) = following.map_or((self.rest.len(), 0), |line| (line.at, line.before));
        let Some((text, rest)) = self.rest.split_at_checked(end) else { return Next::Declined };
        let list = block::read(text, self.line).or_else(|| whole(text, self.line, aliased));
        match list.map(|list| list.value) {
            Some(Value::List(mut items)) if items.len() == 1 => {
                self.rest = rest;
                self.line += line;
                self.given += 1;
                items.pop().map_or(Next::Declined, |item| Next::Piece(Piece::Item(item)))
            }
            _ => Next::Declined,
        }
    }
}

/// The one document of a text, read by the YAML parser.
fn whole<'a>(text: &'a str, line: usize, aliased: &mut usize) -> Option<YamlNode<'a>> {
    if yaml::ends_in_scalar_head(text) {
        return None;
    }
    let mut pieces = yaml::Pieces::of(text, line, *aliased);
    let Ok(Some(Piece::Document(node))) = pieces.next() else { return None };
    let end = pieces.next();
    *aliased = pieces.aliased();
    matches!(end, Ok(None)).then_some(node)
}
