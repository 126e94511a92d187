//! The two looks that a picture is computed from, and what is wrong in them.

use aliquot_core::units::Bytes;

use crate::view::snapshot::Snapshot;

/// An unreadable source or an impossible value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewProblem {
    /// The object.
    pub subject: String,
    /// The problem.
    pub text: String,
}

/// The two looks that a picture is computed from.
#[derive(Clone, Copy)]
pub(super) struct SnapshotPair<'a> {
    pub(super) before: Option<&'a Snapshot>,
    pub(super) now: &'a Snapshot,
}

// === impl ViewProblem ===

impl ViewProblem {
    pub(super) fn new(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into() }
    }
}

/// Saturating sum: a tenant may write any number.
pub(super) fn sum(bytes: impl IntoIterator<Item = Bytes>) -> Bytes {
    Bytes(bytes.into_iter().fold(0, |sum: u64, bytes| sum.saturating_add(bytes.0)))
}
