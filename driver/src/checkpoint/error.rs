//! Why the journal is not read or not written.

use std::io;
use std::path::PathBuf;

use aliquot_core::disposition::Disposition;
use aliquot_core::id::{ClaimUid, NameError};
use aliquot_core::plan::PlanProblem;

use super::bounds::{FILE_BYTES_MAX, VERSION};

/// What a person can do about a file that cannot be read; every message ends with it.
const ADVICE: &str = "The file is kept as it is. Put a good copy in its place; or drain the node, destroy its \
                      partitions, move the file and the directory `grants` away, and start again";

/// What a person can do about a disk that refuses.
fn remedy(refusal: &io::Error) -> &'static str {
    match refusal.kind() {
        io::ErrorKind::PermissionDenied => "run as a user that may, or name another directory",
        _ => "free space or mend the directory",
    }
}

/// Why a record that is whole is not one of ours.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A name in it breaks its rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A word in it means nothing.
    #[error("{field} is `{found}`; expected {expected}")]
    Word {
        /// Field.
        field: &'static str,
        /// As found.
        found: String,
        /// Words that there are.
        expected: String,
    },
    /// A plan in it breaks a rule of plans.
    #[error("the plan of claim {claim} is none: {problem}")]
    Plan {
        /// Claim.
        claim: ClaimUid,
        /// Which rule.
        problem: PlanProblem,
    },
    /// A record changes a claim or partition that no earlier record has.
    #[error("{0} is changed, and no earlier record has it")]
    Unknown(String),
}

/// Why the journal is not read or not written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk refuses; the file is as it was.
    #[error("journal {}: cannot {verb} it; it is as it was; {}, and try again", path.display(), remedy(source))]
    Disk {
        /// The file.
        path: PathBuf,
        /// What was tried.
        verb: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is damaged.
    #[error("journal {}: damaged at byte {offset}: found {found}; expected {expected}. {ADVICE}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: usize,
        /// As found.
        found: String,
        /// What belongs there.
        expected: String,
    },
    /// The file is of a newer version: this one would lose some of it.
    #[error(
        "journal {}: version {version} wants a reader of version {min_reader} or later, this one has {VERSION}: start \
         the newer program. {ADVICE}",
        path.display()
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// Lowest version that may read it.
        min_reader: u32,
    },
    /// A whole record is not one of ours.
    #[error("journal {}: the record at byte {offset} is refused: {source}. {ADVICE}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        offset: usize,
        /// Why.
        source: Box<ConvertError>,
    },
    /// The file is far larger than ours can be.
    #[error("journal {}: {found} bytes; expected at most {FILE_BYTES_MAX}. {ADVICE}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// There is no journal, yet there are grants of one.
    #[error("journal {} is missing, but {} holds grants of claims. {ADVICE}", path.display(), grants.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// Where the grants are.
        grants: PathBuf,
    },
    /// More is promised than a journal may hold.
    #[error("journal {}: {what} {found} is more than {most}: release claims first", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: usize,
        /// The bound.
        most: usize,
    },
}

// === impl JournalError ===

impl JournalError {
    /// What the caller does about it.
    #[must_use]
    pub const fn disposition(&self) -> Disposition {
        match self {
            Self::Full { .. } => Disposition::Refuse,
            Self::Disk { .. }
            | Self::Damaged { .. }
            | Self::TooNew { .. }
            | Self::Record { .. }
            | Self::TooLarge { .. }
            | Self::Missing { .. } => Disposition::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_of_a_refusal_removes_its_cause() {
        let said = |kind: io::ErrorKind| {
            JournalError::Disk { path: "j".into(), verb: "read", source: kind.into() }.to_string()
        };
        let head = "journal j: cannot read it; it is as it was; ";
        let of_rights = format!("{head}run as a user that may, or name another directory, and try again");
        assert_eq!(said(io::ErrorKind::PermissionDenied), of_rights);
        let of_space = format!("{head}free space or mend the directory, and try again");
        assert_eq!(said(io::ErrorKind::StorageFull), of_space);
    }
}
