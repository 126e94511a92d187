//! The journal: what this node has promised, on disk before it is done.
//!
//! ```text
//!   Change ──convert──▶ v1 (its own types) ──frame──▶ one line ──log──▶ appended and synced ──▶ Journal (values)
//! ```
//!
//! Each claim has a record with its whole plan, its kind and its phase. Each partition of ours has a record with the handle
//! that hardware gave it. The record of a partition is on disk before the partition exists, so nothing of ours exists
//! that the journal does not know, and nothing that it does not know is ever destroyed.
//!
//! **One change, one line, one sync.** A change is appended as one line and synced; it counts from then on
//! ([`JournalStore::commit`]). A log that has grown to several times its content is replaced by rename with a snapshot.
//!
//! **A torn line is told apart from a damaged one.** After each sync the log notes in its second line, the seal, how far it
//! is acknowledged. A kill can cut short only the one line behind the seal, which no caller was told of: that line is cut.
//! Every other missing or altered byte is damage. A power failure may lose the newest seal, never a synced line: a whole line
//! behind the seal counts.
//!
//! **What cannot be read is kept.** A truncated, altered, foreign or newer file is refused with its name, the offset,
//! what was found and what to do. Nothing is wiped; no claim is prepared until a person has decided.

mod change;
mod convert;
mod error;
mod file;
mod frame;
mod health;
mod maintenance;
mod policy;
mod sizes;
mod store;
mod v1;

use std::collections::BTreeMap;

use aliquot_core::id::ClaimUid;
use aliquot_core::plan::Plan;
use aliquot_core::ports::{PartitionAt, PartitionHandle};

pub use change::{Change, JournalEntry};
pub use convert::ConvertError;
pub use error::JournalError;
pub use file::{CLAIMS_MAX, FILE_BYTES_MAX, JournalFile};
pub use frame::{DecodedJournal, MIN_READER, RECORD_BYTES_MAX, VERSION, decode, encode};
pub use health::{CardHealth, CardHealthError};
pub use maintenance::{MAINTENANCE, MaintenanceFile};
pub use policy::{KeptPolicy, REFUSED};
pub use sizes::{ContextDevice, ContextSizes, FAILURE_KEPT, SizesFault};
pub use store::JournalStore;

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
    header: Option<frame::Header>,
    fields: BTreeMap<String, serde_json::Map<String, serde_json::Value>>,
}

// === impl Journal ===

impl Journal {
    /// Nothing promised.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.partitions.is_empty()
    }
}
