//! What the journal says.

use std::collections::BTreeMap;

use aliquot_core::id::ClaimUid;
use aliquot_core::plan::Plan;
use aliquot_core::ports::{PartitionAt, PartitionHandle};

/// Everything that the node has promised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Claims by UID.
    pub claims: BTreeMap<ClaimUid, ClaimRecord>,
    /// Partitions that we made or were about to make.
    pub partitions: BTreeMap<PartitionAt, PartitionProgress>,
    /// What a newer version wrote and this one only carries along.
    pub carried: NewerFields,
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    /// Everything that was decided for it.
    pub plan: Plan,
    /// Which processes use it.
    pub kind: ClaimKind,
    /// How far it is.
    pub phase: Phase,
}

/// Which processes use a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// Containers: their runtime reads the CDI file, also after a power failure.
    Container,
    /// Processes of a local run: no runtime asks for them, they load the shim from elsewhere, and a power failure ends them.
    Run,
}

/// How far a claim is. Only a prepared claim was ever reported as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Side effects may have begun; a restart undoes them.
    Preparing,
    /// Everything is done, and a container may use it.
    Prepared,
    /// Undoing may have begun; a restart finishes it.
    Releasing,
}

/// How far a partition of ours is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionProgress {
    /// It was planned; whether it exists is for the hardware to say.
    Planned,
    /// It was made, with this handle.
    Made(PartitionHandle),
}

/// The header of a newer version and its unknown fields, by record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewerFields {
    pub(super) header: Option<Header>,
    pub(super) fields: BTreeMap<String, serde_json::Map<String, serde_json::Value>>,
}

/// The versions in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) min_reader: u32,
}

// === impl Journal ===

impl Journal {
    /// Nothing promised.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.partitions.is_empty()
    }
}
