//! What is to be done for a claim, step by step, and what undoes it.

use std::fmt;

use crate::grant::Grant;
use crate::id::{ClaimUid, ShareName};
use crate::ports::PartitionAt;

/// Everything that is to be done for one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// UID of the claim.
    pub claim: ClaimUid,
    /// `namespace/name`, for messages.
    pub name: String,
    /// What the claim gets, in the order of its allocation.
    pub grants: Vec<Grant>,
    /// What is to be done, in this order.
    pub steps: Vec<Step>,
}

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
