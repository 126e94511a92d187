//! One thing to do for a claim, and what undoes it.

use std::fmt;

use crate::id::ShareName;
use crate::ports::PartitionAt;

/// One side effect. Repeating it is harmless.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Make a partition.
    CreatePartition(PartitionAt),
    /// Write the read-only record of a share's limits.
    WriteGrant(ShareName),
    /// Write the file by which a container runtime hands out the claim.
    WriteCdi,
}

/// The inverse of a step. Undoing what was not done is harmless.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Undo {
    /// Destroy the partition, unless another claim holds a share of it.
    DestroyPartition(PartitionAt),
    /// Remove the record of a share.
    RemoveGrant(ShareName),
    /// Remove the file of the claim.
    RemoveCdi,
}

// === impl Step ===

impl Step {
    /// What undoes it.
    #[must_use]
    pub fn inverse(&self) -> Undo {
        match self {
            Self::CreatePartition(at) => Undo::DestroyPartition(at.clone()),
            Self::WriteGrant(share) => Undo::RemoveGrant(share.clone()),
            Self::WriteCdi => Undo::RemoveCdi,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreatePartition(at) => write!(f, "create {at}"),
            Self::WriteGrant(share) => write!(f, "write the grant of share {share}"),
            Self::WriteCdi => f.write_str("write the CDI file"),
        }
    }
}

// === impl Undo ===

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DestroyPartition(at) => write!(f, "destroy {at}"),
            Self::RemoveGrant(share) => write!(f, "remove the grant of share {share}"),
            Self::RemoveCdi => f.write_str("remove the CDI file"),
        }
    }
}
