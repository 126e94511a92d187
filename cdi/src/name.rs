//! Names, parsed at the door: a value of these types is a name that every runtime accepts.
//!
//! ```text
//!  aliquot.dev / claim = 4ee7…-gpu-0
//!  ─────┬─────   ──┬──   ─────┬─────
//!     Vendor     Class    DeviceName        Vendor/Class is the Kind, the whole is the QualifiedName
//! ```
//!
//! The character rules are those by which runtimes check: a vendor or class begins with a letter, a device name with a
//! letter or digit, all end with a letter or digit, with `-`, `_`, `.` (and `:` in device names) between. The lengths
//! are those of the CDI text (253 and 63 bytes).

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest vendor in bytes (a DNS subdomain).
pub const VENDOR_BYTES_MAX: usize = 253;
/// Longest class in bytes (a DNS label).
pub const CLASS_BYTES_MAX: usize = 63;
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
    /// A separator is missing.
    #[error("{text:?} has no {separator:?}, expected {form}")]
    Separator {
        /// The whole text.
        text: String,
        /// The separator that was looked for.
        separator: char,
        /// The form of such a name.
        form: &'static str,
    },
}

/// Which name a text was to be; for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamePart {
    /// A [`Vendor`].
    Vendor,
    /// A [`Class`].
    Class,
    /// A [`DeviceName`].
    Device,
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
            Self::Vendor => "vendor",
            Self::Class => "class",
            Self::Device => "device name",
            Self::ClaimUid => "claim uid",
            Self::Request => "request name",
            Self::Share => "share name",
        })
    }
}

/// What one kind of name allows; all names are checked by [`Rule::check`].
struct Rule {
    part: NamePart,
    max_bytes: usize,
    first: fn(char) -> bool,
    first_expected: &'static str,
    between: &'static str,
    between_expected: &'static str,
}

const LETTER_OR_DIGIT: &str = "a letter or digit (A-Z, a-z, 0-9)";

const VENDOR: Rule = Rule {
    part: NamePart::Vendor,
    max_bytes: VENDOR_BYTES_MAX,
    first: |c| c.is_ascii_alphabetic(),
    first_expected: "a letter (A-Z, a-z)",
    between: "-_.",
    between_expected: "letters, digits, '-', '_' or '.'",
};
const CLASS: Rule = Rule { part: NamePart::Class, max_bytes: CLASS_BYTES_MAX, ..VENDOR };
const DEVICE: Rule = Rule {
    part: NamePart::Device,
    max_bytes: usize::MAX,
    first: |c| c.is_ascii_alphanumeric(),
    first_expected: LETTER_OR_DIGIT,
    between: "-_.:",
    between_expected: "letters, digits, '-', '_', '.' or ':'",
};
const CLAIM_UID: Rule = Rule {
    part: NamePart::ClaimUid,
    max_bytes: CLAIM_UID_BYTES_MAX,
    between: "-",
    between_expected: "letters, digits or '-'",
    ..DEVICE
};
const SHARE: Rule = Rule { part: NamePart::Share, max_bytes: SHARE_BYTES_MAX, ..CLAIM_UID };
const REQUEST: Rule = Rule { part: NamePart::Request, max_bytes: REQUEST_BYTES_MAX, ..CLAIM_UID };

impl Rule {
    fn check(&self, text: &str) -> Result<(), NameError> {
        let part = self.part;
        if text.is_empty() {
            return Err(NameError::Empty { part });
        }
        if text.len() > self.max_bytes {
            return Err(NameError::TooLong { part, found_bytes: text.len(), max_bytes: self.max_bytes });
        }
        let wrong = |at: usize, found: char, expected: &'static str| {
            Err(NameError::Character { part, text: text.to_owned(), found, at, expected })
        };
        for (at, c) in text.char_indices() {
            if at == 0 && !(self.first)(c) {
                return wrong(at, c, self.first_expected);
            }
            if !c.is_ascii_alphanumeric() {
                if !self.between.contains(c) {
                    return wrong(at, c, self.between_expected);
                }
                if at + 1 == text.len() {
                    return wrong(at, c, LETTER_OR_DIGIT);
                }
            }
        }
        Ok(())
    }
}

/// Declares a checked name: parse, print, and serde through the same parser.
macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $rule:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                $rule.check(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                $rule.check(&text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
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
    /// The vendor that defines a kind of device: `aliquot.dev`.
    Vendor, VENDOR
}
checked_name! {
    /// Which kind of a vendor's devices: `claim`.
    Class, CLASS
}
checked_name! {
    /// One device of a kind, unique in its file.
    DeviceName, DEVICE
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

impl RequestName {
    /// The name as text, with the slash of a subrequest.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

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

/// Vendor and class of a file's devices: `aliquot.dev/claim`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Kind {
    /// The vendor that defines the kind.
    pub vendor: Vendor,
    /// Which of the vendor's kinds.
    pub class: Class,
}

impl Kind {
    /// The kind of every file that this crate writes, `aliquot.dev/claim`.
    #[must_use]
    pub fn claim() -> Self {
        Self { vendor: Vendor("aliquot.dev".to_owned()), class: Class("claim".to_owned()) }
    }
}

impl FromStr for Kind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let Some((vendor, class)) = text.split_once('/') else {
            let form = "<vendor>/<class>";
            return Err(NameError::Separator { text: text.to_owned(), separator: '/', form });
        };
        Ok(Self { vendor: vendor.parse()?, class: class.parse()? })
    }
}

impl TryFrom<String> for Kind {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.to_string()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vendor, self.class)
    }
}

/// The name that a runtime resolves: `aliquot.dev/claim=<device>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    /// The kind of the device.
    pub kind: Kind,
    /// The device among those of its kind.
    pub device: DeviceName,
}

impl QualifiedName {
    /// The device of one share of one request of a claim, `aliquot.dev/claim=<uid>-<request>-<share>`.
    ///
    /// A subrequest's slash becomes a dot, which neither half can hold.
    #[must_use]
    pub fn of_share(claim: &ClaimUid, request: &RequestName, share: &ShareName) -> Self {
        let request = request.0.replace('/', ".");
        Self { kind: Kind::claim(), device: DeviceName(format!("{claim}-{request}-{share}")) }
    }
}

impl FromStr for QualifiedName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let Some((kind, device)) = text.split_once('=') else {
            let form = "<vendor>/<class>=<device>";
            return Err(NameError::Separator { text: text.to_owned(), separator: '=', form });
        };
        Ok(Self { kind: kind.parse()?, device: device.parse()? })
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.device)
    }
}

#[cfg(test)]
mod tests;
