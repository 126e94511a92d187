//! Problems of a manifest, with all that a correction needs: file, line, object, field, found, expected.

use std::collections::BTreeMap;
use std::fmt;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemSeverity {
    /// The object is taken, but something in it has no effect here.
    Warning,
    /// The object is not taken.
    Error,
}

/// One problem in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestProblem {
    /// How bad it is.
    pub severity: ProblemSeverity,
    /// File as the caller named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Kind, namespace and name of the object, where they could be read.
    pub object: String,
    /// Path of the field, such as `spec.devices.requests[0].name`; empty for the object itself.
    pub field: String,
    /// What was found, what was expected, what to do.
    pub message: String,
    /// How many further times the same was found elsewhere in the same kind of object.
    pub more: usize,
}

/// Problems as they are found; the same warning over thousands of objects is kept once and counted.
#[derive(Debug, Default)]
pub(super) struct Problems {
    list: Vec<ManifestProblem>,
    warned: BTreeMap<String, usize>,
    errors: usize,
    left_out: usize,
    dropped: usize,
}

/// Errors kept; a file with more has one cause for most of them.
const ERRORS_MAX: usize = 1_000;

// === impl ManifestProblem ===

impl fmt::Display for ManifestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if !self.object.is_empty() {
            write!(f, "{}: ", self.object)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}", self.message)?;
        match self.more {
            0 => Ok(()),
            more => write!(f, " (and {more} more like it)"),
        }
    }
}

// === impl Problems ===

impl Problems {
    /// Adds a problem; warnings with equal `alike` count as the same.
    pub(super) fn add(&mut self, problem: ManifestProblem, alike: &str) {
        match problem.severity {
            ProblemSeverity::Error => {
                self.errors += 1;
                if self.errors > ERRORS_MAX {
                    self.dropped += 1;
                    return;
                }
            }
            ProblemSeverity::Warning => {
                let key = format!("{alike}\u{0}{}", problem.message);
                if let Some(at) = self.warned.get(&key) {
                    self.list[*at].more += 1;
                    return;
                }
                self.warned.insert(key, self.list.len());
            }
        }
        self.list.push(problem);
    }

    /// Notes that an object of a dump is left out.
    pub(super) fn left_out(&mut self) {
        self.left_out += 1;
    }

    /// Errors so far, with those for which objects of dumps are left out.
    pub(super) fn errors(&self) -> usize {
        self.errors + self.left_out
    }

    /// All of them, in the order found.
    pub(super) fn into_list(mut self) -> Vec<ManifestProblem> {
        if let (true, Some(last)) = (self.dropped > 0, self.list.last_mut()) {
            last.more += self.dropped;
        }
        self.list
    }
}
