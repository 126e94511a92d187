//! Answers for people and for programs: tables, JSON, YAML.

use std::io::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use serde_json::Value;

pub use crate::config::{Colour, RedrawMode};
use crate::manifest::yaml_document;
use crate::printable;

/// Form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs, one JSON value.
    Json,
    /// For programs and people, one YAML document.
    Yaml,
}

/// Form of an answer about a cluster, as kubectl has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ListFormat {
    /// For people.
    #[default]
    Table,
    /// For people, nothing left out.
    Wide,
    /// KIND/NAME, one a line.
    Name,
    /// For programs, one JSON value.
    Json,
    /// For programs and people, one YAML document.
    Yaml,
}

/// Where a command reads and writes, and what stands at the other end.
pub struct Terminal<'a> {
    /// Answers.
    pub out: &'a mut dyn Write,
    /// Progress, warnings, failures.
    pub err: &'a mut dyn Write,
    /// What `-f -` reads.
    pub input: &'a mut dyn io::Read,
    /// Whether `out` shows colours.
    pub colour: Colour,
    /// Whether `err` is watched by a person.
    pub progress: Progress,
    /// Whether `out` can be drawn on.
    pub screen: RedrawMode,
}

/// Whether progress is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// Meaning of a coloured word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// Success.
    Good,
    /// Failure.
    Bad,
    /// A heading.
    Strong,
}

/// Which side of a column the text stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// The terminal's code of a tone.
pub(super) const fn tone_code(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Strong => "1",
    }
}

/// What stands beside the items of a `List`.
pub(super) enum ListExtras<'a> {
    /// A value.
    Value(Value),
    /// A list, each item as it comes.
    List(Box<dyn Iterator<Item = Value> + 'a>),
}

/// Ends a tone in a text that is not written yet.
const TONE_END: char = '\u{fdd3}';
/// Widest line of an answer in words.
const PAGE_COLUMNS: usize = 100;

/// A tone in a text that is not written yet: escaping leaves these marks to [`coloured`].
const fn tone_mark(tone: Tone) -> char {
    match tone {
        Tone::Good => '\u{fdd0}',
        Tone::Bad => '\u{fdd1}',
        Tone::Strong => '\u{fdd2}',
    }
}

/// The text escaped, and its marks as terminal codes.
fn coloured(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c| printable::TONE_MARKS.contains(&c)) {
        out.push_str(&printable::lines(&rest[..at]));
        let mut after = rest[at..].chars();
        let mark = after.next();
        let tone =
            [Tone::Good, Tone::Bad, Tone::Strong].into_iter().find(|tone| mark == Some(tone_mark(*tone)));
        out.push_str(&format!("\u{1b}[{}m", tone.map_or("0", tone_code)));
        rest = after.as_str();
    }
    out.push_str(&printable::lines(rest));
    out
}

/// A stream of JSON text; characters that a terminal would not show are written as JSON writes them.
struct JsonText<'w>(&'w mut dyn Write);

impl Write for JsonText<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.0.write_all(printable::json(text).as_bytes())?,
            Err(_) => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A list of a JSON object's first level.
fn json_items(out: &mut impl Write, items: impl IntoIterator<Item = Value>) -> io::Result<()> {
    out.write_all(b"[")?;
    let mut empty = true;
    for item in items {
        out.write_all(if empty { b"\n    ".as_slice() } else { b",\n    " })?;
        out.write_all(serde_json::to_string_pretty(&item)?.replace('\n', "\n    ").as_bytes())?;
        empty = false;
    }
    out.write_all(if empty { b"]".as_slice() } else { b"\n  ]" })
}

/// A list of a YAML document's first level.
fn yaml_items(
    out: &mut (impl Write + ?Sized),
    key: &str,
    items: impl IntoIterator<Item = Value>,
) -> io::Result<()> {
    let mut empty = true;
    for item in items {
        if empty {
            writeln!(out, "{key}:")?;
        }
        out.write_all(yaml_document(&Value::Array(vec![item])).as_bytes())?;
        empty = false;
    }
    if empty { writeln!(out, "{key}: []") } else { Ok(()) }
}

// === impl Terminal ===

impl Terminal<'_> {
    /// Writes a line of an answer.
    pub(super) fn line(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        let text = text.to_string();
        match self.colour {
            Colour::Off => writeln!(self.out, "{}", printable::lines(&text)),
            Colour::On => writeln!(self.out, "{}", coloured(&text)),
        }
    }

    /// Writes lines of an answer no longer than a page is wide, broken between words.
    pub(super) fn paragraph(&mut self, text: &str) -> io::Result<()> {
        let mut line = String::new();
        for word in text.split(' ') {
            if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > PAGE_COLUMNS {
                self.line(&line)?;
                line = format!("  {word}");
            } else {
                line.push_str(if line.is_empty() { "" } else { " " });
                line.push_str(word);
            }
        }
        self.line(line)
    }

    /// Writes a line beside the answer.
    pub(super) fn note(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.err, "{}", printable::lines(text.to_string().trim_end()))
    }

    /// As [`Terminal::note`], before a command ends with its own exit code. A failure of standard error cannot be reported, and
    /// the exit code remains.
    pub(super) fn last_note(&mut self, text: impl std::fmt::Display) {
        match self.note(text) {
            Ok(()) | Err(_) => {}
        }
    }

    /// Writes a value in a program's form.
    pub(super) fn value(&mut self, format: Format, value: &Value) -> io::Result<()> {
        match format {
            Format::Json | Format::Table => {
                serde_json::to_writer_pretty(JsonText(&mut *self.out), value)?;
                writeln!(self.out)
            }
            Format::Yaml => self.out.write_all(yaml_document(value).as_bytes()),
        }
    }

    /// Writes a `List` in a program's form, each item as it comes: what it takes does not grow with the list. The text is
    /// that of [`Terminal::value`] for the whole list.
    pub(super) fn list(
        &mut self,
        format: Format,
        items: impl IntoIterator<Item = Value>,
        beside: Vec<(&str, ListExtras<'_>)>,
    ) -> io::Result<()> {
        match format {
            Format::Json | Format::Table => self.json_list(items, beside),
            Format::Yaml => {
                self.out.write_all(b"apiVersion: v1\n")?;
                yaml_items(self.out, "items", items)?;
                self.out.write_all(b"kind: List\n")?;
                for (key, what) in beside {
                    match what {
                        ListExtras::List(items) => yaml_items(self.out, key, items)?,
                        ListExtras::Value(value) => {
                            let entry = serde_json::Map::from_iter([(key.to_owned(), value)]);
                            self.out.write_all(yaml_document(&Value::Object(entry)).as_bytes())?;
                        }
                    }
                }
                Ok(())
            }
        }
    }

    fn json_list(
        &mut self,
        items: impl IntoIterator<Item = Value>,
        beside: Vec<(&str, ListExtras<'_>)>,
    ) -> io::Result<()> {
        let mut out = JsonText(&mut *self.out);
        out.write_all(b"{\n  \"apiVersion\": \"v1\",\n  \"items\": ")?;
        json_items(&mut out, items)?;
        out.write_all(b",\n  \"kind\": \"List\"")?;
        for (key, what) in beside {
            write!(out, ",\n  \"{key}\": ")?;
            match what {
                ListExtras::List(items) => json_items(&mut out, items)?,
                ListExtras::Value(value) => {
                    let text = serde_json::to_string_pretty(&value)?.replace('\n', "\n  ");
                    out.write_all(text.as_bytes())?;
                }
            }
        }
        out.write_all(b"\n}\n")
    }

    /// A word in its tone, where colours are shown.
    pub(super) fn toned(&self, tone: Tone, text: &str) -> String {
        match self.colour {
            Colour::On => format!("{}{}{TONE_END}", tone_mark(tone), printable::lines(text)),
            Colour::Off => text.to_owned(),
        }
    }

    /// Writes a table: columns with their side, then rows.
    pub(super) fn table(&mut self, columns: &[(&str, Side)], rows: Vec<Vec<String>>) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(columns.iter().map(|(name, _)| Cell::new(name)));
        let printable = |row: Vec<String>| -> Vec<String> {
            row.into_iter().map(|cell| printable::line(&cell).into_owned()).collect()
        };
        table.add_rows(rows.into_iter().map(printable));
        let last = columns.len().saturating_sub(1);
        for (index, (_, side)) in columns.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, if index == last { 0 } else { 2 }));
                if *side == Side::Right {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        for line in table.lines() {
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
