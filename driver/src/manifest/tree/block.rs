//! The fast path from text to tree, for YAML that programs print: maps and lists in block form, one scalar a line.
//!
//! ```text
//!  line ─▶ column + rest ─▶ `- ` list │ `key:` map │ scalar ─▶ node, borrowed from the text
//!              └▶ anything else: None, and the YAML parser reads this document, or this item of a list
//! ```
//!
//! Invariants: the result equals that of the YAML parser for the same text, lines included (a property test compares
//! both). Ambiguous or invalid text is not read here. It never fails: it declines.

use std::borrow::Cow;

use super::node::{DEPTH_MAX, MapEntry, Style, Value, YamlNode, twice};

/// Longest key that is read here: YAML bounds those that stand before their colon on one line.
const KEY_BYTES_MAX: usize = 512;

/// The list or map that a text is whole; its first line has this number. `None`: it has another form.
pub(super) fn read(text: &str, line: usize) -> Option<YamlNode<'_>> {
    let mut lines = Lines { rest: text, line: line.saturating_sub(1), current: Current::End };
    lines.advance()?;
    let node = lines.node(0)?;
    matches!(lines.current, Current::End).then_some(node)
}

/// What is left of a text, line by line.
struct Lines<'a> {
    /// What comes after the current line.
    rest: &'a str,
    /// Number of the current line, from 1.
    line: usize,
    current: Current<'a>,
}

/// What stands on the current line, without what was read of it.
#[derive(Clone, Copy)]
enum Current<'a> {
    /// Text that begins in this column, from 0.
    Text { column: usize, text: &'a str },
    /// The end of the text.
    End,
}

// === impl Lines ===

impl<'a> Lines<'a> {
    /// Goes to the next line that has something on it; `None` where it has what this does not read.
    fn advance(&mut self) -> Option<()> {
        while !self.rest.is_empty() {
            let end = self.rest.bytes().position(|byte| !(b' '..=b'~').contains(&byte));
            let end = end.unwrap_or(self.rest.len());
            if self.rest.as_bytes().get(end).is_some_and(|byte| *byte != b'\n') {
                return None;
            }
            let line = self.rest.get(..end)?;
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            self.line += 1;
            let text = line.trim_start_matches(' ');
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let column = line.len() - text.len();
            let text = text.trim_end_matches(' ');
            if column == 0 && (text.starts_with("---") || text.starts_with("...")) {
                return None;
            }
            self.current = Current::Text { column, text };
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

    use super::super::{Piece, Pieces, TreeError, yaml};
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
    const LISTED: &str = r#"---
apiVersion: v1
items:
- kind: Pod
  metadata: {name: a}
- apiVersion: v1
  x: &x |
    text

    - more
  y: *x
# between
- z: "a
    b"
  é: 1
kind: List
metadata:
  resourceVersion: ""
---
apiVersion: v1
kind: PodList
items:
  - a: &a 1

  - b: *a
  - c
other: *a
---
apiVersion: v1
items:
- - 1
  - 2
-
  a: 1
- b: 1
kind: ConfigMap
"#;
    const PIECES: [&str; 35] = [
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
        "items:",
        "kind: List",
        "apiVersion: v1",
        "'z",
        "\"",
        "A: *q",
        "- *q",
    ];

    /// The documents of a text up to its first error, each with its items, and whether there is no error.
    fn documents<'a>(
        pieces: impl Iterator<Item = Result<Piece<'a>, TreeError>>,
    ) -> (Vec<YamlNode<'a>>, bool) {
        let (mut documents, mut items) = (Vec::new(), Vec::new());
        for piece in pieces {
            match piece {
                Err(_) => return (documents, false),
                Ok(Piece::Item(item)) => items.push(item),
                Ok(Piece::Document(mut node)) => {
                    if let (false, Value::Map(entries)) = (items.is_empty(), &mut node.value) {
                        let entry = entries.iter_mut().find(|entry| entry.key == "items").unwrap();
                        items.extend_from_slice(entry.value.list());
                        entry.value.value = Value::List(std::mem::take(&mut items));
                    }
                    documents.push(node);
                }
            }
        }
        assert!(items.is_empty());
        (documents, true)
    }

    /// Checks that a text is read as by the YAML parser alone; returns whether the fast path reads it whole.
    fn agree(text: &str) -> bool {
        let mut parser = yaml::Pieces::of(text, 1, 0);
        let expected = documents(std::iter::from_fn(|| parser.next().transpose()));
        let begins_as_json = text.trim_start().starts_with(['{', '[']);
        assert!(begins_as_json || documents(Pieces::of(text)) == expected, "{text:?}");
        read(text, 1).is_some()
    }

    #[test]
    fn printed_block_form_is_read() {
        let (first, second) = PRINTED.split_once("---\n").unwrap();
        assert!(agree(first) && agree(second));
        agree(PRINTED);
        agree(&format!("---\n{PRINTED}"));
        agree(LISTED);
        agree("apiVersion: v1\nitems:\n- a: &x 1\n- b: 2\n- *x\nkind : List\n");
        agree("apiVersion: v1\nitems:\n- a: &x 1\n- b: 2\n- *x\nkind: List\n");
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

        #[test]
        fn spoilt_lists_are_read_as_the_parser_reads_them(
            at in 0..LISTED.len(), gone in 0_usize..5, put in "[-:#'\" a\n{}\\[\\]|&*!0?,.%]{0,3}"
        ) {
            let end = (at + gone).min(LISTED.len());
            if let (Some(before), Some(behind)) = (LISTED.get(..at), LISTED.get(end..)) {
                agree(&format!("{before}{put}{behind}"));
            }
        }

        #[test]
        fn random_lists_are_read_as_the_parser_reads_them(
            lines in prop::collection::vec((0_usize..4, prop::sample::select(&PIECES[..])), 1..9),
            end in prop::sample::select(&["", "kind: List\n", "kind : List\n", "kind: 'PodList' # x\nb: 1\n", "---\nkind: List\n"][..])
        ) {
            let items: String = lines.iter().map(|(indent, piece)| format!("{:indent$}{piece}\n", "")).collect();
            agree(&format!("apiVersion: v1\nitems:\n{items}{end}"));
        }
    }
}
