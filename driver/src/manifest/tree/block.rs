//! The fast path from text to tree, for YAML that programs print: maps and lists in block form, one scalar a line.
//!
//! ```text
//!  line ─▶ column + rest ─▶ `- ` list │ `key:` map │ scalar ─▶ Node, borrowed from the text
//!              └▶ anything else: None, and the full YAML parser reads the text
//! ```
//!
//! Invariants: the result equals that of the YAML parser for the same text, lines included (a property test compares both).
//! Ambiguous or invalid text is not read here. It never fails: it declines.

use std::borrow::Cow;

use super::{DEPTH_MAX, MapEntry, Style, Value, YamlNode, twice};

/// Longest key that is read here: YAML bounds those that stand before their colon on one line.
const KEY_BYTES_MAX: usize = 512;

/// The documents of a text that are in block form, one after another, up to the first that is not.
pub(super) struct Blocks<'a> {
    /// What comes after the current line.
    rest: &'a str,
    /// Number of the current line, from 1.
    line: usize,
    current: Current<'a>,
    /// Whether a document has been begun by `---` or the beginning of the text.
    begun: bool,
}

/// What stands on the current line, without what was read of it.
#[derive(Clone, Copy)]
enum Current<'a> {
    /// Text that begins in this column, from 0.
    Text { column: usize, text: &'a str },
    /// `---`
    DocumentStart,
    /// The end of the text.
    End,
}

/// What the text in block form has next.
pub(super) enum Next<'a> {
    /// A document.
    Document(YamlNode<'a>),
    /// Nothing.
    End,
    /// Something that is not in block form.
    Declined,
}

// === impl Blocks ===

impl<'a> Blocks<'a> {
    /// At the first document of a text; `None` where the text does not begin in block form.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let mut blocks = Self { rest: text, line: 0, current: Current::End, begun: true };
        blocks.advance()?;
        if matches!(blocks.current, Current::DocumentStart) {
            blocks.advance()?;
        }
        Some(blocks)
    }

    /// The next document.
    pub(super) fn next(&mut self) -> Next<'a> {
        self.document().unwrap_or(Next::Declined)
    }

    fn document(&mut self) -> Option<Next<'a>> {
        match self.current {
            Current::End if !self.begun => return Some(Next::End),
            Current::Text { .. } if self.begun => {}
            // An empty document, or text that nothing begins.
            _ => return None,
        }
        let node = self.node(0)?;
        self.begun = false;
        match self.current {
            Current::End => {}
            Current::DocumentStart => {
                self.advance()?;
                self.begun = true;
            }
            Current::Text { .. } => return None,
        }
        Some(Next::Document(node))
    }

    /// Goes to the next line that has something on it; `None` where it has what this does not read.
    fn advance(&mut self) -> Option<()> {
        while !self.rest.is_empty() {
            let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
            self.rest = rest;
            self.line += 1;
            if !line.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                return None;
            }
            let text = line.trim_start_matches(' ');
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let column = line.len() - text.len();
            let text = text.trim_end_matches(' ');
            self.current = match text {
                "---" if column == 0 => Current::DocumentStart,
                _ if column == 0 && (text.starts_with("---") || text.starts_with("...")) => return None,
                _ => Current::Text { column, text },
            };
            return Some(());
        }
        self.current = Current::End;
        Some(())
    }

    /// The list or map that begins here.
    fn node(&mut self, depth: usize) -> Option<YamlNode<'a>> {
        let Current::Text { column, text } = self.current else { return None };
        if depth >= DEPTH_MAX {
            return None;
        }
        let line = self.line;
        let value = if after_dash(text).is_some() {
            Value::List(self.list(column, depth)?)
        } else {
            Value::Map(self.map(column, depth)?)
        };
        Some(YamlNode { line, value })
    }

    /// Items while they begin in this column.
    fn list(&mut self, column: usize, depth: usize) -> Option<Vec<YamlNode<'a>>> {
        let mut items = Vec::new();
        while let Current::Text { column: found, text } = self.current {
            let item = match after_dash(text) {
                Some(item) if found == column => item,
                _ if found > column => return None,
                _ => break,
            };
            if after_dash(item).is_some() || key(item).is_some() {
                let inner = column + text.len() - item.len();
                self.current = Current::Text { column: inner, text: item };
                items.push(self.node(depth + 1)?);
            } else {
                items.push(YamlNode { line: self.line, value: scalar(item)? });
                self.advance()?;
            }
        }
        Some(items)
    }

    /// Entries while they begin in this column.
    fn map(&mut self, column: usize, depth: usize) -> Option<Vec<MapEntry<'a>>> {
        let mut entries = Vec::new();
        while let Current::Text { column: found, text } = self.current {
            if found < column {
                break;
            }
            let (key, value) = key(text).filter(|_| found == column)?;
            let line = self.line;
            let value = if value.is_empty() {
                self.advance()?;
                self.under(column, depth)?
            } else {
                let value = scalar(value)?;
                self.advance()?;
                YamlNode { line, value }
            };
            entries.push(MapEntry { key: Cow::Borrowed(key), line, value });
        }
        if twice(&entries).is_some() { None } else { Some(entries) }
    }

    /// The value of a key alone on its line: a deeper block, or a list in the same column.
    fn under(&mut self, column: usize, depth: usize) -> Option<YamlNode<'a>> {
        match self.current {
            Current::Text { column: found, .. } if found > column => self.node(depth + 1),
            Current::Text { column: found, text } if found == column && after_dash(text).is_some() => {
                self.node(depth + 1)
            }
            _ => None,
        }
    }
}

/// What follows the dash of an item.
fn after_dash(text: &str) -> Option<&str> {
    text.strip_prefix("- ").map(|item| item.trim_start_matches(' '))
}

/// A plain key and what follows its colon. Merge keys are not among them.
fn key(text: &str) -> Option<(&str, &str)> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'/' | b'-');
    let end = text.bytes().position(|byte| !letter(byte))?;
    let (key, rest) = (&text[..end], text[end..].strip_prefix(':')?);
    let plain = key.len() <= KEY_BYTES_MAX && key.starts_with(|c: char| c.is_ascii_alphanumeric());
    (plain && (rest.is_empty() || rest.starts_with(' '))).then(|| (key, rest.trim_start_matches(' ')))
}

/// A scalar that is the rest of its line, or an empty list or map.
fn scalar(text: &str) -> Option<Value<'_>> {
    match (text, text.as_bytes().first()?) {
        ("[]", _) => Some(Value::List(Vec::new())),
        ("{}", _) => Some(Value::Map(Vec::new())),
        (_, b'"') => double_quoted(text.strip_prefix('"')?),
        (_, b'\'') => single_quoted(text.strip_prefix('\'')?),
        _ => plain(text),
    }
}

fn plain(text: &str) -> Option<Value<'_>> {
    let begins = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.' | '$' | '(' | '+');
    let signed = |c: char| c.is_ascii_alphanumeric();
    let sound = text.starts_with(begins) || text.strip_prefix('-')?.starts_with(signed);
    let ambiguous = text.ends_with(':') || text.contains(": ") || text.contains(" #");
    (sound && !ambiguous).then_some(Value::Scalar(Cow::Borrowed(text), Style::Plain))
}

/// Up to the closing quote, which is the last character.
fn double_quoted(text: &str) -> Option<Value<'_>> {
    let text = text.strip_suffix('"')?;
    let quoted = |text| Some(Value::Scalar(text, Style::Quoted));
    if !text.bytes().any(|byte| matches!(byte, b'"' | b'\\')) {
        return quoted(Cow::Borrowed(text));
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        plain.push(match c {
            '"' => return None,
            '\\' => match characters.next()? {
                c @ ('"' | '\\' | '/') => c,
                'n' => '\n',
                't' => '\t',
                _ => return None,
            },
            c => c,
        });
    }
    quoted(Cow::Owned(plain))
}

/// Up to the closing quote, which is the last character; two stand for one.
fn single_quoted(text: &str) -> Option<Value<'_>> {
    let text = text.strip_suffix('\'')?;
    if !text.contains('\'') {
        return Some(Value::Scalar(Cow::Borrowed(text), Style::Quoted));
    }
    let whole = !text.replace("''", "").contains('\'');
    whole.then(|| Value::Scalar(Cow::Owned(text.replace("''", "'")), Style::Quoted))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::DocumentStream;
    use super::*;

    const PRINTED: &str = r#"apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: one
  annotations: {}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: share.aliquot.dev
        selectors:
        - cel:
            expression: "device.attributes[\"a\"].model == 'h100'"
        capacity:
          requests:
            memory: 8Gi
            cores: '25'
    - name: 'it''s'
      values: []
      lists:
        - - 1
          - -2
        - a: b:c
---
kind: X
n: ""
"#;
    const PIECES: [&str; 28] = [
        "a:",
        "b:",
        "c: 1",
        "a: x y",
        "- ",
        "-",
        "- a",
        "- b: 2",
        "- - c",
        "- c:",
        "d: \"q\"",
        "e: 'r'",
        "f: \"\\n\"",
        "g: ''''",
        "---",
        "...",
        "# x",
        "h: i #",
        "j: k: l",
        "m: [1]",
        "n: {}",
        "o: |",
        "p: &q r",
        "<<: s",
        "t : u",
        "v: -1",
        "w: - x",
        "y: ~",
    ];

    /// What was read in block form, and whether that was all.
    fn quick(text: &str) -> (Vec<YamlNode<'_>>, bool) {
        let mut documents = Vec::new();
        let Some(mut blocks) = Blocks::of(text) else { return (documents, false) };
        loop {
            match blocks.next() {
                Next::Document(node) => documents.push(node),
                Next::End => return (documents, true),
                Next::Declined => return (documents, false),
            }
        }
    }

    /// Checks that the fast path's result equals the YAML parser's; returns whether it covers the whole text.
    fn agree(text: &str) -> bool {
        let (documents, all) = quick(text);
        let mut whole = DocumentStream::of(text);
        for document in &documents {
            assert_eq!(whole.document().ok().flatten().as_ref(), Some(document), "{text}");
        }
        if all {
            assert_eq!(whole.document(), Ok(None), "{text}");
        }
        all
    }

    #[test]
    fn printed_block_form_is_read() {
        assert!(agree(PRINTED));
        assert!(agree(&format!("---\n{PRINTED}")));
        assert_eq!(quick(PRINTED).0.len(), 2);
    }

    #[test]
    fn text_beyond_block_form_is_declined() {
        let declined = [
            "",
            "a:\n",
            "a: 1\na: 2\n",
            "a: b\n  c\n",
            "a: |\n  b\n",
            "a: [1, 2]\n",
            "a: &x 1\n",
            "<<: 1\n",
            "a:\tb\n",
            "a: \"b\n",
            "a: 'b'c'\n",
            "a: é\n",
            "- a\n - b\n",
            "a: 1\n...\n",
            "a: b: c\n",
            "--- a\n",
            "a: 1\n---\n",
            "%YAML 1.2\n---\na: 1\n",
            "? a\n: b\n",
            "a: !x b\n",
            "a: *b\n",
            "- \n",
            "a: 1\r\n",
            "a\n",
            "\"a\": 1\n",
        ];
        for text in declined {
            assert!(!agree(text), "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn random_lines_are_read_as_the_parser_reads_them(
            lines in prop::collection::vec((0_usize..5, prop::sample::select(&PIECES[..])), 1..9)
        ) {
            let text: String = lines.iter().map(|(indent, piece)| format!("{:indent$}{piece}\n", "")).collect();
            agree(&text);
        }

        #[test]
        fn spoilt_prints_are_read_as_the_parser_reads_them(
            at in 0..PRINTED.len(), gone in 0_usize..3, put in "[-:#'\" a\n{}\\[\\]|&*!0?,]{0,2}"
        ) {
            let end = (at + gone).min(PRINTED.len());
            agree(&format!("{}{put}{}", &PRINTED[..at], &PRINTED[end..]));
        }
    }
}
