//! Tree → values: one field at a time, each with its path, so that a message can name it.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use aliquot_core::cel::{Cost, Selector};
use aliquot_core::quantity::Quantity;

use super::problem::{ManifestProblem, ProblemSeverity, Problems};
use super::tree::{self, MapEntry, Plain, Style, Value, YamlNode};

/// Origin of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A user: everything that the API server would refuse is an error.
    Manifest,
    /// An API server, which accepted it: an unknown field is of a later version, hence a warning.
    Dump,
}

/// The context of an object, for its problems.
pub(super) struct Context {
    pub(super) problems: Problems,
    pub(super) file: String,
    pub(super) origin: Origin,
    /// Kind of the object being read.
    pub(super) kind: String,
    /// Namespace and name of the object being read.
    pub(super) object: String,
    /// Verdicts on selectors read so far, by text: a thousand claims repeat a few selectors.
    pub(super) selectors: HashMap<String, SelectorVerdict>,
}

/// Whether the API server takes a selector; if not, why, with line and column in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SelectorVerdict {
    Sound,
    /// Only where attributes may be lists.
    NeedsLists(String),
    Faulty(String),
    /// Compiles, and no server stores it: it may cost so much.
    TooCostly(Cost),
}

/// Most selectors with a stored verdict; more are compiled again.
const SELECTORS_KEPT: usize = 1024;

/// Where a field is: a chain to the root, on the stack.
#[derive(Clone, Copy)]
pub(super) struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: PathStep<'p>,
    line: usize,
}

/// Most fields that a message names.
const FIELDS_NAMED: usize = 20;

/// A later API version may raise a limit this many times before a dump of it is cut short here.
const LATER_LIMITS: usize = 4;

#[derive(Clone, Copy)]
enum PathStep<'p> {
    Root,
    Key(&'p str),
    Item(usize),
}

// === impl Path ===

impl<'p> Path<'p> {
    pub(super) fn root(line: usize) -> Self {
        Self { parent: None, step: PathStep::Root, line }
    }

    /// The field of an entry.
    pub(super) fn key(&'p self, entry: &'p MapEntry<'_>) -> Self {
        Self { parent: Some(self), step: PathStep::Key(&entry.key), line: entry.line }
    }

    /// A field that may be missing: its line is that of what should have it.
    pub(super) fn missing(&'p self, key: &'p str) -> Self {
        Self { parent: Some(self), step: PathStep::Key(key), line: self.line }
    }

    /// An item of a list.
    pub(super) fn item(&'p self, index: usize, node: &YamlNode<'_>) -> Self {
        Self { parent: Some(self), step: PathStep::Item(index), line: node.line }
    }

    /// An item of a list without known lines: the line is that of what has it.
    pub(super) fn missing_item(&'p self, index: usize) -> Self {
        Self { parent: Some(self), step: PathStep::Item(index), line: self.line }
    }

    /// The same field, on the line of another path.
    pub(super) fn on_line(self, other: &Path<'_>) -> Self {
        Self { line: other.line, ..self }
    }

    /// Line of the field, from 1.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    fn last_key(&self) -> &str {
        match (self.step, self.parent) {
            (PathStep::Key(key), _) => key,
            (_, Some(parent)) => parent.last_key(),
            _ => "",
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        let below_key = self.parent.is_some_and(|p| !matches!(p.step, PathStep::Root));
        match self.step {
            PathStep::Root => Ok(()),
            PathStep::Item(index) => write!(f, "[{index}]"),
            // A key with dots or slashes is data (an attribute, a label), shown apart from the path.
            PathStep::Key(key) if key.contains(['.', '/']) => write!(f, "[{}]", tree::cut(key)),
            PathStep::Key(key) if below_key => write!(f, ".{}", tree::cut(key)),
            PathStep::Key(key) => f.write_str(&tree::cut(key)),
        }
    }
}

// === impl Context ===

impl Context {
    fn report(&mut self, severity: ProblemSeverity, path: &Path<'_>, message: String) {
        let object = match (self.kind.as_str(), self.object.as_str()) {
            (kind, "") => kind.to_owned(),
            (kind, object) => format!("{kind} {object}"),
        };
        let alike = format!("{}\u{0}{}", self.kind, path.last_key());
        let field = path.to_string();
        let file = self.file.clone();
        let problem = ManifestProblem { severity, file, line: path.line, object, field, message, more: 0 };
        self.problems.add(problem, &alike);
    }

    /// Whether the API server takes a selector.
    pub(super) fn selector_verdict(&mut self, text: &str) -> SelectorVerdict {
        if let Some(known) = self.selectors.get(text) {
            return known.clone();
        }
        let verdict = match (Selector::compile_new(text), Selector::compile(text)) {
            (Ok(selector), _) | (Err(_), Ok(selector)) if selector.worst_case() > Cost::MAX => {
                SelectorVerdict::TooCostly(selector.worst_case())
            }
            (Ok(_), _) => SelectorVerdict::Sound,
            (Err(error), Ok(_)) => SelectorVerdict::NeedsLists(error.to_string()),
            (Err(_), Err(error)) => SelectorVerdict::Faulty(error.to_string()),
        };
        if self.selectors.len() < SELECTORS_KEPT {
            self.selectors.insert(text.to_owned(), verdict.clone());
        }
        verdict
    }

    /// The object cannot be taken. One that a server stored is left out with a warning: the rest of a dump is read.
    pub(super) fn error(&mut self, path: &Path<'_>, message: impl Into<String>) {
        match self.origin {
            Origin::Manifest => self.report(ProblemSeverity::Error, path, message.into()),
            Origin::Dump => {
                self.problems.left_out();
                self.report(
                    ProblemSeverity::Warning,
                    path,
                    format!("{}; the object is left out", message.into()),
                );
            }
        }
    }

    /// The text is invalid, of either origin.
    pub(super) fn fault(&mut self, path: &Path<'_>, message: impl Into<String>) {
        self.report(ProblemSeverity::Error, path, message.into());
    }

    /// Something has no effect.
    pub(super) fn warn(&mut self, path: &Path<'_>, message: impl Into<String>) {
        self.report(ProblemSeverity::Warning, path, message.into());
    }

    /// A rule of the API server is broken: an error in a manifest. In a dump the server took it, so it may be newer
    /// than we are.
    pub(super) fn rule(&mut self, path: &Path<'_>, message: impl Into<String>) {
        match self.origin {
            Origin::Manifest => self.error(path, message),
            Origin::Dump => self.warn(path, message),
        }
    }

    /// A field that this reader does not know.
    pub(super) fn unknown(&mut self, path: &Path<'_>, known: &[&str]) {
        let mut message = "unknown field".to_owned();
        match nearest(path.last_key(), known) {
            Some(near) => {
                if write!(message, "; did you mean {near}?").is_err() {
                    message.push_str("; see kubectl explain");
                }
            }
            None => {
                let more = known.len().saturating_sub(FIELDS_NAMED);
                message.push_str("; expected one of ");
                message.push_str(&known.iter().take(FIELDS_NAMED).copied().collect::<Vec<_>>().join(", "));
                message.push_str(if more > 0 { ", …" } else { "" });
            }
        }
        if self.origin == Origin::Dump {
            message = "unknown field of a later API version; it has no effect here".to_owned();
        }
        self.rule(path, message);
    }

    /// A field that is known and has no effect here.
    pub(super) fn without_effect(&mut self, path: &Path<'_>, why: &str) {
        self.warn(path, format!("has no effect here: {why}"));
    }

    /// The entries of a map, without those that are null.
    pub(super) fn entries<'n, 'a>(
        &mut self,
        node: &'n YamlNode<'a>,
        path: &Path<'_>,
    ) -> impl Iterator<Item = &'n MapEntry<'a>> + use<'n, 'a> {
        let entries: &'n [MapEntry<'a>] = match &node.value {
            Value::Map(entries) => entries,
            _ => {
                self.expected(node, path, "a map");
                &[]
            }
        };
        entries.iter().filter(|e| !e.value.is_null())
    }

    /// The items of a list.
    pub(super) fn items<'n, 'a>(&mut self, node: &'n YamlNode<'a>, path: &Path<'_>) -> &'n [YamlNode<'a>] {
        match &node.value {
            Value::List(items) => items,
            _ => {
                self.expected(node, path, "a list");
                &[]
            }
        }
    }

    /// Each item of a list that may hold at most `most`, read by `read`; items that do not read are left out. Work
    /// on a longer list is bounded.
    pub(super) fn each<T>(
        &mut self,
        node: &YamlNode<'_>,
        path: &Path<'_>,
        most: usize,
        mut read: impl FnMut(&mut Self, &YamlNode<'_>, &Path<'_>) -> Option<T>,
    ) -> Vec<T> {
        let items = self.items(node, path);
        let taken = most.saturating_mul(LATER_LIMITS);
        if items.len() > most {
            let found = items.len();
            self.rule(path, format!("{found} items; at most {most} are allowed, {taken} are looked at"));
        }
        let mut values = Vec::with_capacity(items.len().min(most));
        for (index, item) in items.iter().take(taken).enumerate() {
            values.extend(read(self, item, &path.item(index, item)));
        }
        values
    }

    /// A text.
    pub(super) fn string(&mut self, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
        self.text(node, path).map(str::to_owned)
    }

    /// A text, borrowed.
    pub(super) fn text<'n>(&mut self, node: &'n YamlNode<'_>, path: &Path<'_>) -> Option<&'n str> {
        match &node.value {
            Value::Scalar(text, Style::Quoted) => Some(text),
            Value::Scalar(text, Style::Plain) if tree::plain(text) == Plain::Text => Some(text),
            Value::Scalar(..) => {
                self.error(path, format!("found {}, expected a text: put it in quotes", node.describe()));
                None
            }
            _ => {
                self.expected(node, path, "a text");
                None
            }
        }
    }

    /// A list of texts.
    pub(super) fn strings(&mut self, node: &YamlNode<'_>, path: &Path<'_>, most: usize) -> Vec<String> {
        self.each(node, path, most, Self::string)
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, node: &YamlNode<'_>, path: &Path<'_>) -> Option<bool> {
        if let Value::Scalar(text, Style::Plain) = &node.value
            && let Plain::Bool(value) = tree::plain(text)
        {
            return Some(value);
        }
        self.expected(node, path, "true or false");
        None
    }

    /// A whole number.
    pub(super) fn integer(&mut self, node: &YamlNode<'_>, path: &Path<'_>) -> Option<i64> {
        if let Value::Scalar(text, Style::Plain) = &node.value
            && let Plain::Int(value) = tree::plain(text)
        {
            return Some(value);
        }
        self.expected(node, path, "a whole number");
        None
    }

    /// A whole number of 0 or more.
    pub(super) fn count(&mut self, node: &YamlNode<'_>, path: &Path<'_>) -> Option<u32> {
        match u32::try_from(self.integer(node, path)?) {
            Ok(count) => Some(count),
            Err(_) => {
                self.error(path, format!("found {}, expected 0 to {}", node.describe(), u32::MAX));
                None
            }
        }
    }

    /// A quantity, written as text or as a number.
    pub(super) fn quantity(&mut self, node: &YamlNode<'_>, path: &Path<'_>) -> Option<Quantity> {
        let Value::Scalar(text, style) = &node.value else {
            self.expected(node, path, "a quantity such as 8Gi");
            return None;
        };
        let number = match (style, tree::plain(text)) {
            (Style::Plain, Plain::Int(number)) => Some(number.to_string()),
            _ => None,
        };
        match Quantity::from_str(number.as_deref().unwrap_or(text)) {
            Ok(quantity) => Some(quantity),
            Err(error) => {
                self.error(path, error.to_string());
                None
            }
        }
    }

    fn expected(&mut self, node: &YamlNode<'_>, path: &Path<'_>, what: &str) {
        self.error(path, format!("found {}, expected {what}", node.describe()));
    }

    /// Says that a field must be there.
    pub(super) fn required(&mut self, path: &Path<'_>, key: &str, what: &str) {
        self.error(&path.missing(key), format!("is missing; expected {what}"));
    }
}

/// The known word that a mistyped one most likely is.
pub(crate) fn nearest<'k>(found: &str, known: &[&'k str]) -> Option<&'k str> {
    let found = found.to_ascii_lowercase();
    let letters = |word: &str| word.chars().take(LETTERS_COMPARED).count();
    let length = letters(&found);
    let most = |word: &str| 1 + word.len() / 4;
    known
        .iter()
        .filter(|word| letters(word).abs_diff(length) <= most(word))
        .map(|word| (distance(&found, &word.to_ascii_lowercase()), *word))
        .filter(|(distance, word)| *distance <= most(word))
        .min()
        .map(|(_, word)| word)
}

/// Letters that are compared, from the first: a comparison takes their square.
const LETTERS_COMPARED: usize = 64;

/// How many letters must be put in, left out, replaced or swapped with their neighbour to turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let first = |word: &str| word.chars().take(LETTERS_COMPARED).collect::<Vec<char>>();
    let (a, b) = (first(a), first(b));
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(ca != cb);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *cb && *ca == b[j - 1] {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_words_find_their_neighbour() {
        assert_eq!(nearest("cout", &["count", "capacity"]), Some("count"));
        assert_eq!(nearest("conut", &["count", "capacity"]), Some("count"));
        assert_eq!(nearest("deviceclassname", &["deviceClassName"]), Some("deviceClassName"));
        assert_eq!(nearest("banana", &["count", "capacity"]), None);
    }
}
