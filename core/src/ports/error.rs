//! Why hardware did not do what it was asked.

use std::error::Error;

use super::partition_at::{PartitionAt, PartitionHandle};
use crate::disposition::Disposition;
use crate::id::{CardUuid, CounterName};

/// Why hardware did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// No such card.
    #[error("card {0} is not on this node: list the cards with `aliquot devices`")]
    UnknownCard(CardUuid),
    /// The card does not know the template, or not at this placement.
    #[error("{at} is impossible: the card has no such template at that placement")]
    UnknownPlace {
        /// What was asked.
        at: PartitionAt,
    },
    /// There is one already.
    #[error("{at} exists already: another program made it; try again")]
    AlreadyThere {
        /// What was asked.
        at: PartitionAt,
    },
    /// There is none.
    #[error("{at} does not exist")]
    Absent {
        /// What was asked.
        at: PartitionAt,
    },
    /// Another partition is there than the caller means.
    #[error("{at} is another partition by now: expected {expected}, found {found}; it is left alone")]
    Replaced {
        /// What was asked.
        at: PartitionAt,
        /// The one that was meant.
        expected: Box<PartitionHandle>,
        /// The one that is there.
        found: Box<PartitionHandle>,
    },
    /// A counter does not allow it.
    #[error("{at} does not fit: it needs {asked} of `{counter}`, {left} left on the card")]
    NoRoom {
        /// What was asked.
        at: PartitionAt,
        /// First counter that is short, by name.
        counter: CounterName,
        /// Needed.
        asked: u64,
        /// There.
        left: u64,
    },
    /// The hardware is in use and cannot be changed now.
    #[error("{what}: the hardware is busy; try again")]
    Busy {
        /// What was asked.
        what: String,
    },
    /// The vendor's library answered with an error.
    #[error("{what}: vendor error {code}: {message}")]
    Vendor {
        /// What was asked.
        what: String,
        /// The vendor's code.
        code: i32,
        /// The vendor's words.
        message: String,
    },
    /// The hardware or its library has no such function.
    #[error("{what}: the hardware does not report it")]
    Unsupported {
        /// What was asked.
        what: String,
    },
    /// The host lacks what a container needs of the vendor's driver.
    #[error("{what}: found {found}, expected {expected}; {remedy}")]
    NotOnHost {
        /// A path of the host.
        what: String,
        /// What is there.
        found: String,
        /// What is needed.
        expected: String,
        /// What to do.
        remedy: String,
        /// Whether it may come by itself.
        disposition: Disposition,
    },
    /// The library or device could not be reached at all.
    #[error("{what}")]
    Unreachable {
        /// What was asked, and of what.
        what: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

// === impl BackendError ===

impl BackendError {
    /// What the caller does about it.
    #[must_use]
    pub const fn disposition(&self) -> Disposition {
        match self {
            Self::AlreadyThere { .. } | Self::Absent { .. } | Self::NoRoom { .. } | Self::Busy { .. } => {
                Disposition::Retry
            }
            Self::NotOnHost { disposition, .. } => *disposition,
            Self::UnknownCard(_) | Self::UnknownPlace { .. } | Self::Replaced { .. } => Disposition::Refuse,
            Self::Vendor { .. } | Self::Unsupported { .. } | Self::Unreachable { .. } => Disposition::Broken,
        }
    }
}
