//! What breaks the API server's rules, and where.

use std::collections::BTreeSet;
use std::fmt;

/// One rule that is broken, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceViolation {
    /// Name of the slice.
    pub slice: String,
    /// Field, as in the API: `spec.devices[3].name`.
    pub path: String,
    /// What is wrong there.
    pub fault: Fault,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fault {
    /// A text does not have the form it needs.
    Form {
        /// The text as found (cut at 80 characters).
        found: String,
        /// The form.
        expected: &'static str,
    },
    /// There is more than may be.
    TooMany {
        /// How many are there.
        found: usize,
        /// How many may be.
        max: usize,
    },
    /// Something is there twice.
    Duplicate(String),
    /// Something must be there.
    Missing(&'static str),
    /// Something may not be there.
    Forbidden(&'static str),
    /// A policy of a capacity is broken; the text is the rule.
    Policy(String),
    /// A counter or set that the pool does not have; the pool is then left out of scheduling.
    Unresolved(String),
}

/// What is found, with the slice that is being looked at.
#[derive(Default)]
pub(super) struct SliceReport {
    pub(super) slice: String,
    pub(super) found: Vec<SliceViolation>,
}

// === impl SliceReport ===

impl SliceReport {
    pub(super) fn add(&mut self, path: impl Into<String>, fault: Fault) {
        self.found.push(SliceViolation { slice: self.slice.clone(), path: path.into(), fault });
    }

    pub(super) fn form(
        &mut self,
        path: impl Into<String>,
        text: &str,
        legal: fn(&str) -> bool,
        expected: &'static str,
    ) {
        if !legal(text) {
            self.add(path, Fault::Form { found: text.chars().take(80).collect(), expected });
        }
    }

    pub(super) fn at_most(&mut self, path: impl Into<String>, found: usize, max: usize) {
        if found > max {
            self.add(path, Fault::TooMany { found, max });
        }
    }

    pub(super) fn unique<'a>(
        &mut self,
        path: impl Fn(usize) -> String,
        names: impl Iterator<Item = &'a str>,
    ) {
        let mut seen = BTreeSet::new();
        for (index, name) in names.enumerate() {
            if !seen.insert(name) {
                self.add(path(index), Fault::Duplicate(name.to_owned()));
            }
        }
    }
}

impl fmt::Display for SliceViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slice `{}`: {}: {}", self.slice, self.path, self.fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form { found, expected } => write!(f, "found `{found}`, expected {expected}"),
            Self::TooMany { found, max } => write!(f, "found {found}, expected at most {max}"),
            Self::Duplicate(name) => write!(f, "found {name} twice, expected it once"),
            Self::Missing(what) => write!(f, "found nothing, expected {what}"),
            Self::Forbidden(what) => write!(f, "found {what}, expected none"),
            Self::Policy(rule) => f.write_str(rule),
            Self::Unresolved(name) => {
                write!(f, "found {name}, expected a counter of this pool; the scheduler passes the pool over")
            }
        }
    }
}
