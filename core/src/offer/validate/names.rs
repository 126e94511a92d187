//! Forms of names in the API, each with its rule in words.

pub(super) const LABEL: &str = "a DNS label of at most 63 characters (a-z, 0-9, `-`)";
pub(super) const SUBDOMAIN: &str = "a DNS subdomain of at most 253 characters (a-z, 0-9, `-`, `.`)";
pub(super) const DRIVER: &str = "a DNS subdomain of at most 63 characters";
pub(super) const POOL: &str = "DNS subdomains joined by `/`, at most 253 characters";
pub(super) const QUALIFIED: &str =
    "a C identifier of at most 32 characters, with a domain of at most 63 and a `/` before it or not";
pub(super) const LABEL_NAME: &str =
    "a label name of at most 63 characters, with a domain and a `/` before it or not";
pub(super) const LABEL_VALUE: &str = "a label value: at most 63 letters, digits, `-`, `_`, `.`, or nothing";

/// A DNS-1123 subdomain. Kubernetes does not limit its labels to 63 characters.
pub(in crate::offer) fn is_subdomain(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.iter().all(|b| plain(*b) || *b == b'-')
            && bytes.first().is_some_and(|b| plain(*b))
            && bytes.last().is_some_and(|b| plain(*b))
    };
    text.len() <= 253 && text.split('.').all(part)
}

/// A driver name; Kubernetes lowers its case before it compares.
pub(super) fn is_driver(text: &str) -> bool {
    text.len() <= 63 && is_subdomain(&text.to_ascii_lowercase())
}

pub(in crate::offer) fn is_pool(text: &str) -> bool {
    text.len() <= 253 && text.split('/').all(is_subdomain)
}

/// The name of an attribute or capacity.
pub(super) fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        None => is_identifier(text),
        Some((domain, name)) => is_driver(domain) && is_identifier(name),
    }
}

fn is_identifier(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.len() <= 32
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && bytes.first().is_some_and(|b| !b.is_ascii_digit())
}

pub(super) fn is_label_name(text: &str) -> bool {
    match text.split_once('/') {
        None => is_label_part(text),
        Some((domain, name)) => is_subdomain(domain) && is_label_part(name),
    }
}

pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_part(text)
}

fn is_label_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.len() <= 63
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

/// A strict semantic version 2.0.0.
pub(super) fn is_semantic_version(text: &str) -> bool {
    let (text, build) = match text.split_once('+') {
        None => (text, None),
        Some((text, build)) => (text, Some(build)),
    };
    let (core, pre) = match text.split_once('-') {
        None => (text, None),
        Some((core, pre)) => (core, Some(pre)),
    };
    let number =
        |part: &str| part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let numeric = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.iter().all(|part| !part.is_empty() && number(part) && part.parse::<u64>().is_ok())
        && pre.is_none_or(|pre| pre.split('.').all(|part| word(part) && (!numeric(part) || number(part))))
        && build.is_none_or(|build| build.split('.').all(word))
}
