//! A claim is prepared and released: decided as a whole, written down, done, recorded.
//!
//! ```text
//!  ResourceClaim ─decode─▶ ClaimRequest ─core::plan─▶ Plan ─▶ journal: Preparing ─▶ execute ─▶ journal: Prepared ─▶ answer
//!                                           │                       │                 │ failed
//!                                           ▼                       ▼ killed          ▼
//!                                        Refusal                 recover ──────────▶ undo ─▶ journal: gone
//!
//!  release: journal: Releasing ─▶ undo ─▶ journal: gone
//! ```
//!
//! Prepare and release may be repeated at any time: a prepared claim is looked over, what is missing or altered is
//! made again, and the answer is the same; what its manifest asks for by now is put in force where that can be
//! (`node/amend.rs`); releasing an unknown claim succeeds. An error leaves the claim as it was
//! before the call, or, where the disk or hardware refuses even that, in the journal as something to be undone.

pub(crate) mod decode;
mod execute;
pub(crate) mod host_paths;
mod preload;
mod settings;
mod shims;
mod undo;

pub use decode::DecodeError;
pub(crate) use execute::{CONTAINER_GRANTS, Hands, PrepareOutcome, access_edits, run_steps};
pub(crate) use settings::{fault, recorded};
pub(crate) use shims::SharedShim;
pub(crate) use undo::{remove_files, run_undo, unknown_claims};

use std::io;

use aliquot_cdi::StoreError;
use aliquot_core::disposition::Disposition;
use aliquot_core::id::{ClaimUid, ShareName};
use aliquot_core::plan::PlanRefusal;
use aliquot_core::ports::{BackendError, PartitionAt};
use aliquot_core::units::Bytes;

use crate::checkpoint::JournalError;
use crate::selinux::LabelError;

/// What the kubelet, or a local run, needs of a prepared claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedClaim {
    /// UID.
    pub uid: ClaimUid,
    /// One entry a device, in the order of the allocation.
    pub devices: Vec<PreparedDevice>,
}

/// One prepared device or share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedDevice {
    /// Request, `req` or `req/sub`.
    pub request: String,
    /// Pool of the device.
    pub pool: String,
    /// Device.
    pub device: String,
    /// Share.
    pub share: ShareName,
    /// What a container runtime is asked for.
    pub cdi_name: String,
}

/// Whether there was anything to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The claim was prepared, and is released now.
    Released,
    /// The claim was not prepared here.
    Unknown,
}

/// Why a claim is not prepared or not released.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The claim cannot be understood.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It was decided against; nothing was touched.
    #[error(transparent)]
    Refused(#[from] Box<PlanRefusal>),
    /// It is prepared already with another allocation.
    #[error(
        "claim {claim} is prepared with another allocation: it holds {held}, asked is {asked}; memory, compute and settings of \
         its shares can change in place, nothing else: release it first"
    )]
    OtherAllocation {
        /// Claim.
        claim: String,
        /// With what it is prepared.
        held: String,
        /// What is asked.
        asked: String,
    },
    /// Its processes began where nothing was held, and would not look at what is.
    #[error(
        "claim {claim} holds {held}, and asked is {asked}: processes that began without that limit would not feel it: end those \
         that run, and release it first"
    )]
    NothingHeld {
        /// Claim.
        claim: String,
        /// With what it is prepared.
        held: String,
        /// What is asked.
        asked: String,
    },
    /// Its processes hold more memory than is asked for it now.
    #[error(
        "claim {claim}: request `{request}` holds {held}, asked is {asked}, and its processes use {used}: ask for no less than that, or \
         end some of them first"
    )]
    InUse {
        /// Claim.
        claim: String,
        /// Request.
        request: String,
        /// With what it is prepared.
        held: Bytes,
        /// What its processes have.
        used: Bytes,
        /// What is asked.
        asked: Bytes,
    },
    /// What its processes hold cannot be known: one of them stays in a call that takes memory, spoilt its books or has a lease on them.
    #[error(
        "claim {claim}: request `{request}`: how much its processes use cannot be known, as one of them stays in a call that takes \
         memory (does it load something large, is it stopped?), spoilt its books or has a lease on them: prepare again when that is over, \
         or end it"
    )]
    Unsettled {
        /// Claim.
        claim: String,
        /// Request.
        request: String,
    },
    /// It asks for what cannot be had, and stays as it was.
    #[error("{source}; it stays prepared with {held}")]
    Keeps {
        /// With what.
        held: String,
        /// Why not.
        source: Box<PrepareError>,
    },
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The hardware refuses.
    #[error("claim {claim}: {source}")]
    Hardware {
        /// Claim.
        claim: String,
        /// Why.
        source: Box<BackendError>,
    },
    /// Hardware says that a partition was made, and does not show it.
    #[error("claim {claim}: {at} was made but is not there: prepare again")]
    Vanished {
        /// Claim.
        claim: String,
        /// Which.
        at: PartitionAt,
    },
    /// The record of a share cannot be written or removed.
    #[error("claim {claim}: cannot {verb} {path}: free space or mend the directory, and try again")]
    Grant {
        /// Claim.
        claim: String,
        /// What was tried.
        verb: &'static str,
        /// Where.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Its containers could not read the shim, so that its limits would not hold.
    #[error("claim {claim}: limits would not hold: {source}")]
    Label {
        /// Claim.
        claim: String,
        /// Which file.
        source: Box<LabelError>,
    },
    /// The container's edits contradict each other or break a rule.
    #[error("claim {claim}: the CDI file cannot be made: {what}")]
    Edits {
        /// Claim.
        claim: String,
        /// What is wrong.
        what: String,
    },
    /// The CDI file cannot be written or removed.
    #[error("claim {claim}: the CDI file cannot be written or removed")]
    Cdi {
        /// Claim.
        claim: String,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
    /// The claim is not prepared here.
    #[error("claim {claim} is not prepared on this node")]
    Unknown {
        /// UID.
        claim: ClaimUid,
    },
    /// The node was opened for reading alone.
    #[error("this node was opened to look at it: open it for changes")]
    ReadOnly,
}

// === impl PrepareError ===

impl PrepareError {
    /// What the caller does about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Refused(refusal) => refusal.disposition(),
            Self::Keeps { source, .. } => source.disposition(),
            Self::Journal(error) => error.disposition(),
            Self::Hardware { source, .. } => source.disposition(),
            Self::Unsettled { .. } | Self::Vanished { .. } => Disposition::Retry,
            // A tenant has a lease on the file, which the kernel ends.
            Self::Grant { source, .. } if source.kind() == io::ErrorKind::WouldBlock => Disposition::Retry,
            Self::Decode(_)
            | Self::OtherAllocation { .. }
            | Self::NothingHeld { .. }
            | Self::InUse { .. }
            | Self::Unknown { .. }
            | Self::ReadOnly => Disposition::Refuse,
            Self::Grant { .. } | Self::Label { .. } | Self::Edits { .. } | Self::Cdi { .. } => {
                Disposition::Broken
            }
        }
    }

    /// Why the plan was refused, if it was.
    pub(crate) fn refusal(&self) -> Option<&PlanRefusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Keeps { source, .. } => source.refusal(),
            _ => None,
        }
    }

    /// The claims that hold what is asked, if nothing else is in the way.
    pub(crate) fn holding_claims(&self) -> Vec<&ClaimUid> {
        match self.refusal() {
            Some(PlanRefusal::Held { source, .. }) => source.holding_claims(),
            _ => Vec::new(),
        }
    }

    /// Whether the journal has no room on its disk.
    pub(crate) fn is_for_room(&self) -> bool {
        let no_room = |source: &io::Error| {
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        matches!(self, Self::Journal(JournalError::Disk { source, .. }) if no_room(source))
    }

    /// Whether another process took the place between the discovery of the cards and this.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Self::Refused(_)) || self.not_made().is_some()
    }

    /// The partition that hardware refused to make, because something else is there: nothing there is ours.
    pub(crate) fn not_made(&self) -> Option<&PartitionAt> {
        match self {
            Self::Hardware { source, .. } => match source.as_ref() {
                BackendError::AlreadyThere { at } | BackendError::NoRoom { at, .. } => Some(at),
                _ => None,
            },
            _ => None,
        }
    }
}
