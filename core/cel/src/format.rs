//! Named formats of the Kubernetes `format` library: which texts are labels, names, dates and the like.

use super::network::Url;

/// A format that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedFormat {
    Dns1123Label,
    Dns1123LabelPrefix,
    Dns1123Subdomain,
    Dns1123SubdomainPrefix,
    Dns1035Label,
    Dns1035LabelPrefix,
    QualifiedName,
    LabelValue,
    Uri,
    Uuid,
    Byte,
    Date,
    DateTime,
}

/// Every format with the name that expressions use.
pub(super) const FORMATS: [(&str, NamedFormat); 13] = [
    ("dns1123Label", NamedFormat::Dns1123Label),
    ("dns1123LabelPrefix", NamedFormat::Dns1123LabelPrefix),
    ("dns1123Subdomain", NamedFormat::Dns1123Subdomain),
    ("dns1123SubdomainPrefix", NamedFormat::Dns1123SubdomainPrefix),
    ("dns1035Label", NamedFormat::Dns1035Label),
    ("dns1035LabelPrefix", NamedFormat::Dns1035LabelPrefix),
    ("qualifiedName", NamedFormat::QualifiedName),
    ("labelValue", NamedFormat::LabelValue),
    ("uri", NamedFormat::Uri),
    ("uuid", NamedFormat::Uuid),
    ("byte", NamedFormat::Byte),
    ("date", NamedFormat::Date),
    ("datetime", NamedFormat::DateTime),
];

// === impl NamedFormat ===

impl NamedFormat {
    /// The format of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// What keeps `text` from having the format; `None` if it has it.
    pub(super) fn problem(self, text: &str) -> Option<&'static str> {
        let (has_it, problem) = match self {
            Self::Dns1123Label => {
                (is_label(text, Start::Alphanumeric), "not a lower-case DNS label (RFC 1123)")
            }
            Self::Dns1123LabelPrefix => {
                (is_label(unmasked(text), Start::Alphanumeric), "not the beginning of a DNS label (RFC 1123)")
            }
            Self::Dns1123Subdomain => (is_subdomain(text), "not a lower-case DNS name (RFC 1123)"),
            Self::Dns1123SubdomainPrefix => {
                (is_subdomain(unmasked(text)), "not the beginning of a DNS name (RFC 1123)")
            }
            Self::Dns1035Label => (is_label(text, Start::Letter), "not a lower-case DNS label (RFC 1035)"),
            Self::Dns1035LabelPrefix => {
                (is_label(unmasked(text), Start::Letter), "not the beginning of a DNS label (RFC 1035)")
            }
            Self::QualifiedName => (is_qualified_name(text), "not a name with an optional DNS prefix"),
            Self::LabelValue => (text.is_empty() || is_name_part(text), "not a label value"),
            Self::Uri => (Url::parse(text).is_ok(), "not an absolute URL or path"),
            Self::Uuid => (is_uuid(text), "does not match the UUID format"),
            Self::Byte => (is_base64(text), "invalid base64"),
            Self::Date => (is_date(text), "invalid date"),
            Self::DateTime => (is_date_time(text), "invalid datetime"),
        };
        (!has_it).then_some(problem)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Letter,
    Alphanumeric,
}

/// The text with a trailing hyphen replaced, as a generated suffix will follow it.
fn unmasked(prefix: &str) -> &str {
    if prefix.len() > 1 { prefix.strip_suffix('-').unwrap_or(prefix) } else { prefix }
}

fn is_label(text: &str, start: Start) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let starts = text
        .bytes()
        .next()
        .is_some_and(|b| lower(b) && (start == Start::Alphanumeric || b.is_ascii_lowercase()));
    starts && text.len() <= 63 && text.bytes().all(|b| lower(b) || b == b'-') && !text.ends_with('-')
}

fn is_subdomain(text: &str) -> bool {
    // Only the whole is bounded in length, not each label.
    text.len() <= 253
        && text.split('.').all(|part| {
            let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            part.bytes().next().is_some_and(lower)
                && part.bytes().all(|b| lower(b) || b == b'-')
                && !part.ends_with('-')
        })
}

fn is_name_part(text: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.bytes().next())
        && edge(text.bytes().next_back())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// 32 hexadecimal digits in groups of 8-4-4-4-12; each hyphen may be left out.
fn is_uuid(text: &str) -> bool {
    let mut rest = text.as_bytes();
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix(b"-").unwrap_or(rest);
        }
        let Some((group, tail)) = rest.split_at_checked(length) else {
            return false;
        };
        if !group.iter().all(u8::is_ascii_hexdigit) {
            return false;
        }
        rest = tail;
    }
    rest.is_empty()
}

/// Standard base64 with padding, not empty.
fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
}

fn digits(text: &str, range: std::ops::Range<usize>) -> Option<u32> {
    let part = text.get(range)?;
    part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok()).flatten()
}

/// `2006-01-02`, a day that exists.
fn is_date(text: &str) -> bool {
    let (Some(year), Some(month), Some(day)) = (digits(text, 0..4), digits(text, 5..7), digits(text, 8..10))
    else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => 0,
    };
    let bytes = text.as_bytes();
    bytes.len() == 10 && bytes[4] == b'-' && bytes[7] == b'-' && (1..=days).contains(&day)
}

/// A date, `T`, a time of day and a zone.
fn is_date_time(text: &str) -> bool {
    let (Some(date), Some(rest)) = (text.get(..10), text.get(10..)) else {
        return false;
    };
    let Some(rest) = rest.strip_prefix(['T', 't']) else {
        return false;
    };
    let clock = |text: &str| {
        matches!((digits(text, 0..2), digits(text, 3..5)), (Some(0..=23), Some(0..=59)))
            && text.as_bytes().get(2) == Some(&b':')
    };
    let seconds = matches!(digits(rest, 6..8), Some(0..=59)) && rest.as_bytes().get(5) == Some(&b':');
    let Some(mut zone) = rest.get(8..).filter(|_| clock(rest) && seconds && is_date(date)) else {
        return false;
    };
    if let Some(fraction) = zone.strip_prefix('.') {
        let end = fraction.find(|c: char| !c.is_ascii_digit()).unwrap_or(fraction.len());
        if end == 0 {
            return false;
        }
        zone = &fraction[end..];
    }
    matches!(zone, "Z" | "z")
        || zone.strip_prefix(['+', '-']).is_some_and(|zone| zone.len() == 5 && clock(zone))
}
