//! The Node that owns the slices.

use std::time::Instant;

/// The Node that owns the slices, so that they vanish with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SliceOwner {
    /// Not asked for yet.
    Unknown,
    /// The server has no such Node, or does not show it, as one that starts does for a while: slices have no owner. It is asked
    /// again later.
    Absent {
        /// When it was asked.
        asked: Instant,
    },
    /// Its UID.
    Node(String),
}

// === impl SliceOwner ===

impl SliceOwner {
    pub(super) fn uid(&self) -> Option<&str> {
        match self {
            Self::Node(uid) => Some(uid),
            Self::Unknown | Self::Absent { .. } => None,
        }
    }
}
