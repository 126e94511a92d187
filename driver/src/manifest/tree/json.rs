//! JSON text → tree: every value with its line, numbers as written, texts borrowed from the text.
//!
//! The items of a list of objects are handed out one by one, before the list: what a dump takes in memory is its text
//! and one item. `kubectl` writes the `kind` behind the `items`, so these are passed over first and read afterwards.

use std::borrow::Cow;

use crate::error_text::json_cause;

use super::node::{DEPTH_MAX, MapEntry, Piece, Style, TreeError, Value, YamlNode, is_list, twice};

/// The pieces of JSON documents that follow each other.
pub(super) struct Pieces<'a> {
    scanner: Scanner<'a>,
    list: Option<OpenList<'a>>,
}

/// Why a text is no JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is written in another way; it may be YAML.
    Syntax(TreeError),
    /// It is torn, too deep, or has a key twice: it would be no YAML either.
    Final(TreeError),
}

/// A list of objects whose items are being handed out.
struct OpenList<'a> {
    /// The list without its items.
    root: YamlNode<'a>,
    /// Where the text goes on behind the list.
    end: Place,
    next: ItemPlace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemPlace {
    /// Behind the opening bracket.
    First,
    /// Behind an item.
    Later,
}

/// A place in the text.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    line: usize,
}

struct Scanner<'a> {
    text: &'a str,
    place: Place,
}

/// What ends a container, or what is next in it.
enum Step {
    Next,
    End,
}

// === impl Pieces ===

impl<'a> Pieces<'a> {
    /// The pieces from a byte of the text on, which is in that line.
    pub(super) fn of(text: &'a str, at: usize, line: usize) -> Self {
        Self { scanner: Scanner { text, place: Place { at, line } }, list: None }
    }

    /// The first byte behind what was read that is not blank, and its line; `None`: within a list, or the end.
    pub(super) fn rest(&mut self) -> Option<(usize, usize)> {
        self.scanner.blank();
        let place = self.scanner.place;
        (self.list.is_none() && place.at < self.scanner.text.len()).then_some((place.at, place.line))
    }

    /// The next piece.
    pub(super) fn next(&mut self) -> Result<Piece<'a>, Fault> {
        let Some(list) = &mut self.list else { return self.document() };
        let step = match list.next {
            ItemPlace::First => self.scanner.first(b']')?,
            ItemPlace::Later => self.scanner.later(b']')?,
        };
        list.next = ItemPlace::Later;
        if let Step::Next = step {
            return Ok(Piece::Item(self.scanner.value(2)?));
        }
        match self.list.take() {
            Some(list) => {
                self.scanner.place = list.end;
                Ok(Piece::Document(list.root))
            }
            None => self.document(),
        }
    }

    fn document(&mut self) -> Result<Piece<'a>, Fault> {
        self.scanner.blank();
        let line = self.scanner.place.line;
        if self.scanner.byte() != Some(b'{') {
            return self.scanner.value(0).map(Piece::Document);
        }
        self.scanner.place.at += 1;
        let (mut entries, mut items) = (Vec::new(), None);
        let mut step = self.scanner.first(b'}')?;
        while let Step::Next = step {
            let (key, key_line) = self.scanner.key()?;
            let value = if key == "items" && items.is_none() && self.scanner.byte() == Some(b'[') {
                items = Some((entries.len(), self.scanner.place));
                self.scanner.pass_over()?
            } else {
                self.scanner.value(1)?
            };
            entries.push(MapEntry { key, line: key_line, value });
            step = self.scanner.later(b'}')?;
        }
        unique(&entries)?;
        let end = self.scanner.place;
        let mut root = YamlNode { line, value: Value::Map(entries) };
        let Some((index, begin)) = items else { return Ok(Piece::Document(root)) };
        self.scanner.place = begin;
        if is_list(&root) {
            self.scanner.place.at += 1;
            self.list = Some(OpenList { root, end, next: ItemPlace::First });
            return self.next();
        }
        let value = self.scanner.value(1)?;
        self.scanner.place = end;
        if let Value::Map(entries) = &mut root.value
            && let Some(entry) = entries.get_mut(index)
        {
            entry.value = value;
        }
        Ok(Piece::Document(root))
    }
}

fn unique(entries: &[MapEntry<'_>]) -> Result<(), Fault> {
    match twice(entries) {
        Some(entry) => Err(Fault::Final(TreeError::key_twice(entry))),
        None => Ok(()),
    }
}

// === impl Scanner ===

impl<'a> Scanner<'a> {
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.place.at).copied()
    }

    fn blank(&mut self) {
        while let Some(byte) = self.byte() {
            match byte {
                b'\n' => self.place.line += 1,
                b' ' | b'\t' | b'\r' => {}
                _ => return,
            }
            self.place.at += 1;
        }
    }

    /// One value; `depth` is that of the containers around it.
    fn value(&mut self, depth: usize) -> Result<YamlNode<'a>, Fault> {
        self.blank();
        let line = self.place.line;
        let value = match self.byte() {
            Some(b'{') => self.map(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Value::Scalar(self.string()?, Style::Quoted),
            Some(b'-' | b'0'..=b'9') => Value::Scalar(Cow::Borrowed(self.number()?), Style::Plain),
            _ => Value::Scalar(Cow::Borrowed(self.word()?), Style::Plain),
        };
        Ok(YamlNode { line, value })
    }

    fn map(&mut self, depth: usize) -> Result<Value<'a>, Fault> {
        self.deeper(depth)?;
        let mut entries = Vec::new();
        let mut step = self.first(b'}')?;
        while let Step::Next = step {
            let (key, line) = self.key()?;
            entries.push(MapEntry { key, line, value: self.value(depth + 1)? });
            step = self.later(b'}')?;
        }
        unique(&entries)?;
        Ok(Value::Map(entries))
    }

    fn list(&mut self, depth: usize) -> Result<Value<'a>, Fault> {
        self.deeper(depth)?;
        let mut items = Vec::new();
        let mut step = self.first(b']')?;
        while let Step::Next = step {
            items.push(self.value(depth + 1)?);
            step = self.later(b']')?;
        }
        Ok(Value::List(items))
    }

    /// Steps over an opening bracket.
    fn deeper(&mut self, depth: usize) -> Result<(), Fault> {
        if depth >= DEPTH_MAX {
            return Err(Fault::Final(TreeError::too_deep(self.place.line)));
        }
        self.place.at += 1;
        Ok(())
    }

    /// What follows an opening bracket.
    fn first(&mut self, end: u8) -> Result<Step, Fault> {
        self.blank();
        match self.byte() {
            Some(byte) if byte == end => {
                self.place.at += 1;
                Ok(Step::End)
            }
            Some(_) => Ok(Step::Next),
            None => Err(self.found(&format!("a value or `{}`", char::from(end)))),
        }
    }

    /// What follows a value in a container.
    fn later(&mut self, end: u8) -> Result<Step, Fault> {
        self.blank();
        match self.byte() {
            Some(b',') => {
                self.place.at += 1;
                self.blank();
                Ok(Step::Next)
            }
            Some(byte) if byte == end => {
                self.place.at += 1;
                Ok(Step::End)
            }
            _ => Err(self.found(&format!("`,` or `{}`", char::from(end)))),
        }
    }

    /// A key with its colon, and its line.
    fn key(&mut self) -> Result<(Cow<'a, str>, usize), Fault> {
        let line = self.place.line;
        if self.byte() != Some(b'"') {
            return Err(self.found("a key in double quotes"));
        }
        let key = self.string()?;
        self.blank();
        if self.byte() != Some(b':') {
            return Err(self.found("`:` behind a key"));
        }
        self.place.at += 1;
        self.blank();
        Ok((key, line))
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Fault> {
        let begin = self.place.at;
        let escapes = self.string_end()?;
        let quoted = self.text.get(begin..self.place.at).unwrap_or_default();
        if escapes == Escapes::None {
            return Ok(Cow::Borrowed(quoted.get(1..quoted.len() - 1).unwrap_or_default()));
        }
        serde_json::from_str(quoted).map(Cow::Owned).map_err(|error| {
            self.place.at = begin;
            Fault::Syntax(TreeError::at(
                self.place.line,
                format!("not JSON: found a text with {}", json_cause(&error)),
            ))
        })
    }

    /// Steps over a text in quotes.
    fn string_end(&mut self) -> Result<Escapes, Fault> {
        let begin = self.place.at;
        let mut escapes = Escapes::None;
        let bytes = self.text.as_bytes();
        let mut at = begin + 1;
        loop {
            match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escapes = Escapes::Some;
                    at += 2;
                }
                Some(0..0x20) => {
                    self.place.at = at;
                    return Err(self.found("the closing quote of a text"));
                }
                Some(_) => at += 1,
                None => {
                    self.place.at = bytes.len();
                    return Err(self.found("the closing quote of a text"));
                }
            }
        }
        self.place.at = at + 1;
        Ok(escapes)
    }

    fn number(&mut self) -> Result<&'a str, Fault> {
        let begin = self.place.at;
        self.step_over(b"-");
        if !self.step_over(b"0") {
            self.digits()?;
        }
        if self.step_over(b".") {
            self.digits()?;
        }
        if self.step_over(b"eE") {
            self.step_over(b"+-");
            self.digits()?;
        }
        Ok(self.text.get(begin..self.place.at).unwrap_or_default())
    }

    /// Steps over one of these bytes, if there is one.
    fn step_over(&mut self, bytes: &[u8]) -> bool {
        let is = self.byte().is_some_and(|byte| bytes.contains(&byte));
        self.place.at += usize::from(is);
        is
    }

    fn digits(&mut self) -> Result<(), Fault> {
        if !self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.found("a digit"));
        }
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.place.at += 1;
        }
        Ok(())
    }

    /// `true`, `false` or `null`.
    fn word(&mut self) -> Result<&'a str, Fault> {
        let rest = self.text.get(self.place.at..).unwrap_or_default();
        let Some(word) = ["true", "false", "null"].into_iter().find(|word| rest.starts_with(word)) else {
            return Err(self.found("a value"));
        };
        self.place.at += word.len();
        Ok(rest.get(..word.len()).unwrap_or_default())
    }

    /// Steps over a list without a look at what is in it; what is wrong there shows when it is read.
    fn pass_over(&mut self) -> Result<YamlNode<'a>, Fault> {
        let line = self.place.line;
        let mut open = 0_usize;
        loop {
            match self.byte() {
                Some(b'"') => {
                    self.string_end()?;
                    continue;
                }
                Some(b'[' | b'{') => open += 1,
                Some(b']' | b'}') => open -= 1,
                Some(b'\n') => self.place.line += 1,
                Some(_) => {}
                None => return Err(self.found("the end of a list")),
            }
            self.place.at += 1;
            if open == 0 {
                return Ok(YamlNode { line, value: Value::List(Vec::new()) });
            }
        }
    }

    /// Something else than expected.
    fn found(&self, expected: &str) -> Fault {
        let Place { at, line } = self.place;
        let found = self.text.get(at..).and_then(|rest| rest.chars().next());
        let error =
            |found: &str| TreeError::at(line, format!("not JSON: found {found}, expected {expected}"));
        let is_comment = |text: &str| text.starts_with("//") || text.starts_with("/*");
        match found {
            // YAML would take a comment for a part of a key.
            Some('/') if self.text.get(at..).is_some_and(is_comment) => Fault::Final(error("a comment")),
            Some(found) => Fault::Syntax(error(&format!("`{}`", found.escape_debug()))),
            None => Fault::Final(error("the end of the text")),
        }
    }
}

/// Whether a text in quotes has backslashes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    None,
    Some,
}
