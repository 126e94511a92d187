//! Names, checked on entry: a value of these types is part of a name that every runtime accepts.
//!
//! ```text
//!  aliquot.dev/claim = 4ee7…-gpu-0
//!  ────────┬────────   ──────┬─────
//!      CLAIM_KIND      <ClaimUid>-<RequestName>-<ShareName>
//! ```
//!
//! Each part begins and ends with a letter or digit, with `-` between. The lengths are those of the CDI text.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Longest claim uid in bytes. A Kubernetes uid has 36; the bound keeps the file name below 255.
pub const CLAIM_UID_BYTES_MAX: usize = 128;
/// Longest request name in bytes: two DNS labels of 63 with a slash between.
pub const REQUEST_BYTES_MAX: usize = 127;
/// Longest share name in bytes. A Kubernetes share id has 36.
pub const SHARE_BYTES_MAX: usize = 64;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// The text is empty.
    #[error("{part} is empty, expected at least one letter or digit")]
    Empty {
        /// Which name it was to be.
        part: NamePart,
    },
    /// The text is longer than such a name may be.
    #[error("{part} has {found_bytes} bytes, expected at most {max_bytes}: shorten it")]
    TooLong {
        /// Which name it was to be.
        part: NamePart,
        /// Length found, in bytes.
        found_bytes: usize,
        /// Longest allowed, in bytes.
        max_bytes: usize,
    },
    /// A character that such a name may not hold, or not at this place.
    #[error("{part} {text:?} has {found:?} at byte {at}, expected {expected}")]
    Character {
        /// Which name it was to be.
        part: NamePart,
        /// The whole text.
        text: String,
        /// The character found.
        found: char,
        /// Where, in bytes from the start.
        at: usize,
        /// What may stand there.
        expected: &'static str,
    },
}

/// Which name a text was to be; for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamePart {
    /// A [`ClaimUid`].
    ClaimUid,
    /// A [`RequestName`].
    Request,
    /// A [`ShareName`].
    Share,
}

impl fmt::Display for NamePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClaimUid => "claim uid",
            Self::Request => "request name",
            Self::Share => "share name",
        })
    }
}

/// What one kind of name allows: letters and digits, and dashes between.
struct Rule {
    part: NamePart,
    max_bytes: usize,
}

const CLAIM_UID: Rule = Rule { part: NamePart::ClaimUid, max_bytes: CLAIM_UID_BYTES_MAX };
const SHARE: Rule = Rule { part: NamePart::Share, max_bytes: SHARE_BYTES_MAX };
const REQUEST: Rule = Rule { part: NamePart::Request, max_bytes: REQUEST_BYTES_MAX };

impl Rule {
    fn check(&self, text: &str) -> Result<(), NameError> {
        let part = self.part;
        if text.is_empty() {
            return Err(NameError::Empty { part });
        }
        if text.len() > self.max_bytes {
            return Err(NameError::TooLong { part, found_bytes: text.len(), max_bytes: self.max_bytes });
        }
        let mut wrong = text.char_indices().filter(|(_, c)| !c.is_ascii_alphanumeric());
        let Some((at, found)) = wrong.find(|(at, c)| *c != '-' || *at == 0 || at + 1 == text.len()) else {
            return Ok(());
        };
        let expected = if at == 0 || found == '-' { LETTER_OR_DIGIT } else { "letters, digits or '-'" };
        Err(NameError::Character { part, text: text.to_owned(), found, at, expected })
    }
}

const LETTER_OR_DIGIT: &str = "a letter or digit (A-Z, a-z, 0-9)";

/// Declares a checked name.
macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $rule:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                $rule.check(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

checked_name! {
    /// The uid of a claim, as Kubernetes or a local run gave it. Fit for file names and device names.
    ClaimUid, CLAIM_UID
}
checked_name! {
    /// One share of a request's devices: a share id, or an ordinal where there is none.
    ShareName, SHARE
}

/// A request of a claim: `gpu`, or `gpu/big` for a subrequest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestName(String);

impl FromStr for RequestName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.len() > REQUEST_BYTES_MAX {
            let (found_bytes, max_bytes) = (text.len(), REQUEST_BYTES_MAX);
            return Err(NameError::TooLong { part: NamePart::Request, found_bytes, max_bytes });
        }
        match text.split_once('/') {
            None => REQUEST.check(text)?,
            Some((request, subrequest)) => {
                REQUEST.check(request)?;
                REQUEST.check(subrequest)?;
            }
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Vendor and class of every device that this crate writes.
pub const CLAIM_KIND: &str = "aliquot.dev/claim";

/// The name that a runtime resolves: `aliquot.dev/claim=<device>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    device: String,
}

impl QualifiedName {
    /// The device of one share of one request of a claim, `aliquot.dev/claim=<uid>-<request>-<share>`.
    ///
    /// A subrequest's slash becomes a dot, which neither half can hold.
    #[must_use]
    pub fn of_share(claim: &ClaimUid, request: &RequestName, share: &ShareName) -> Self {
        Self { device: format!("{claim}-{}-{share}", request.0.replace('/', ".")) }
    }

    /// The name of the device in its file.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CLAIM_KIND}={}", self.device)
    }
}

#[cfg(test)]
mod tests;
