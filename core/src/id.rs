//! Names of things, parsed once at the door; inside, a name that exists is well formed.

use std::fmt;
use std::str::FromStr;

/// Why a text is not a name of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} `{found}` is not valid: expected {expected}")]
pub struct NameError {
    /// What was to be named.
    pub kind: &'static str,
    /// The text as found (cut at 80 characters).
    pub found: String,
    /// The rule.
    pub expected: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $expected:literal, $rule:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Parses the name.
            ///
            /// # Errors
            /// The text breaks the rule; the error says which.
            pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
                let text = text.into();
                let rule: fn(&str) -> bool = $rule;
                if rule(&text) {
                    Ok(Self(text))
                } else {
                    let found = text.chars().take(80).collect();
                    Err(NameError { kind: $kind, found, expected: $expected })
                }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }
    };
}

name!(
    /// Vendor's own identity of a card, such as `GPU-8f4e…` or an Ascend VDIE.
    CardUuid, "card UUID", "1 to 64 letters, digits, `-`, `_`, `.` or `:`",
    |t| (1..=64).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
);
name!(
    /// Name of a card model in the catalogue, such as `nvidia-h100-80gb-sxm`.
    ModelId, "model", "a DNS label of at most 63 characters (a-z, 0-9, `-`)", is_dns_label
);
name!(
    /// Vendor, such as `nvidia` or `huawei`.
    Vendor, "vendor", "a DNS label of at most 63 characters (a-z, 0-9, `-`)", is_dns_label
);
name!(
    /// A template as its vendor spells it, such as `1g.10gb+me` or `vir02_1c`.
    TemplateName, "template", "1 to 32 letters, digits, `.`, `_`, `-` or `+`",
    |t| (1..=32).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+".contains(&b))
);
name!(
    /// Counter of a card, such as `multiprocessors` or `vg0`; the same text is published.
    CounterName, "counter", "a DNS label of at most 63 characters (a-z, 0-9, `-`)", is_dns_label
);
name!(
    /// A Kubernetes node, or the local machine.
    NodeName, "node name", "a DNS subdomain of at most 253 characters (a-z, 0-9, `-`, `.`)",
    |t| t.len() <= 253 && t.split('.').all(is_dns_label)
);
name!(
    /// UID of a claim; part of file names, hence the rule.
    ClaimUid, "claim UID", "1 to 63 letters, digits or `-`, beginning and ending with a letter or digit",
    |t| {
        let bytes = t.as_bytes();
        (1..=63).contains(&t.len())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
            && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
    }
);
name!(
    /// One share of a claim: the share id of the allocation, or the place of the device in it; part of file names.
    ShareName, "share", "1 to 63 letters, digits or `-`, beginning and ending with a letter or digit",
    |t| {
        let bytes = t.as_bytes();
        (1..=63).contains(&t.len())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
            && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
    }
);
name!(
    /// PCI address `dddd:bb:dd.f` in lower case.
    PciAddress, "PCI address", "`dddd:bb:dd.f` in lower-case hexadecimal, such as 0000:81:00.0",
    |t| {
        let shape = b"xxxx:xx:xx.x";
        t.len() == shape.len()
            && t.bytes().zip(shape).all(|(b, s)| match s {
                b'x' => b.is_ascii_digit() || (b'a'..=b'f').contains(&b),
                _ => b == *s,
            })
    }
);

/// Whether the text is a DNS-1123 label: what Kubernetes wants of device, counter and counter-set names.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|b| plain(b) || *b == b'-')
        && bytes.first().is_some_and(plain)
        && bytes.last().is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_at_the_door() {
        assert!(CardUuid::new("GPU-8f4e0a2b").is_ok());
        assert!(CardUuid::new("a/b").is_err());
        assert!(ModelId::new("nvidia-h100-80gb-sxm").is_ok());
        assert!(ModelId::new("-h100").is_err());
        assert!(TemplateName::new("1g.10gb+me").is_ok());
        assert!(TemplateName::new("1g 10gb").is_err());
        assert!(NodeName::new("gpu-1.rack.example").is_ok());
        assert!(NodeName::new("a..b").is_err());
        assert!(ClaimUid::new("../../etc/passwd").is_err());
        assert!(PciAddress::new("0000:81:00.0").is_ok());
        assert!(PciAddress::new("0000:81:00.G").is_err());
        let error = CounterName::new("Copy_Engines").unwrap_err().to_string();
        assert!(error.contains("counter `Copy_Engines`") && error.contains("DNS label"), "{error}");
    }
}
