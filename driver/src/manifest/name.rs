//! Names in manifests: each rule of the API server with the message it deserves.

use aliquot_core::id::is_dns_label;

use super::field::{Context, Path};
use super::tree::{YamlNode, cut};

/// A DNS label: requests, devices, counters.
pub(super) fn label(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let text = cx.string(node, path)?;
    if is_dns_label(&text) {
        return Some(text);
    }
    let found = cut(&text);
    cx.error(path, format!("found \"{found}\", expected 1 to 63 of a-z, 0-9 and -, without - at either end"));
    None
}

/// A DNS subdomain: names of objects.
pub(super) fn subdomain(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let text = cx.string(node, path)?;
    if is_subdomain(&text, 253) {
        return Some(text);
    }
    let found = cut(&text);
    let hint = if text.contains(['/', '_']) || text.chars().any(char::is_uppercase) {
        "; a name has no capitals, slashes or underscores (aliquot classes prints the legal form)"
    } else {
        ""
    };
    cx.error(path, format!("found \"{found}\", expected at most 253 of a-z, 0-9, - and .{hint}"));
    None
}

/// A driver name: a DNS subdomain of at most 63 characters.
pub(super) fn driver(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let text = cx.string(node, path)?;
    if is_subdomain(&text.to_ascii_lowercase(), 63) {
        return Some(text);
    }
    let found = cut(&text);
    cx.error(path, format!("found \"{found}\", expected a driver name such as aliquot.dev, at most 63 long"));
    None
}

/// A pool name: DNS subdomains joined by `/`.
pub(super) fn pool(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    let text = cx.string(node, path)?;
    if text.len() <= 253 && text.split('/').all(|part| is_subdomain(part, 253)) {
        return Some(text);
    }
    let found = cut(&text);
    cx.error(path, format!("found \"{found}\", expected DNS names joined by /, at most 253 long"));
    None
}

/// Checks an attribute or capacity name: a C identifier of at most 32 characters, after `domain/` if need be.
pub(super) fn qualified(cx: &mut Context, text: &str, path: &Path<'_>) {
    let (domain, identifier) = match text.split_once('/') {
        Some((domain, identifier)) => (Some(domain), identifier),
        None => (None, text),
    };
    if domain.is_some_and(|d| !is_subdomain(&d.to_ascii_lowercase(), 63)) {
        let found = cut(text);
        cx.rule(path, format!("found \"{found}\", expected a DNS name of at most 63 before the /"));
    } else if !is_identifier(identifier) {
        let found = cut(text);
        cx.rule(path, format!("found \"{found}\", expected 1 to 32 letters, digits and _, no digit first"));
    }
}

/// Checks a label name, such as the key of a taint: at most 63 letters, digits, `-`, `_` and `.`, after `domain/` if
/// need be.
pub(super) fn label_name(cx: &mut Context, text: &str, path: &Path<'_>) {
    let (domain, rest) = match text.split_once('/') {
        Some((domain, rest)) => (Some(domain), rest),
        None => (None, text),
    };
    if domain.is_some_and(|d| !is_subdomain(d, 253)) {
        let found = cut(text);
        cx.rule(path, format!("found \"{found}\", expected a DNS name before the /"));
    } else if rest.is_empty() || !is_label_value(rest) {
        let found = cut(text);
        let expected = "1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends";
        cx.rule(path, format!("found \"{found}\", expected {expected}"));
    }
}

/// Checks a label value: as a label name without domain, or empty.
pub(super) fn label_value(cx: &mut Context, text: &str, path: &Path<'_>) {
    if !is_label_value(text) {
        let found = cut(text);
        let expected = "at most 63 letters, digits, -, _ and ., with a letter or digit at both ends";
        cx.rule(path, format!("found \"{found}\", expected {expected}"));
    }
}

/// Checks a namespace: a DNS label, or empty for the default one.
pub(super) fn namespace(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) {
    let Some(text) = cx.text(node, path) else { return };
    if !text.is_empty() && !is_dns_label(text) {
        let found = cut(text);
        cx.rule(
            path,
            format!("found \"{found}\", expected 1 to 63 of a-z, 0-9 and -, without - at either end"),
        );
    }
}

/// Checks the name of a node.
pub(super) fn node(cx: &mut Context, text: &str, path: &Path<'_>) {
    if !is_subdomain(text, 253) {
        let found = cut(text);
        cx.rule(path, format!("found \"{found}\", expected the name of a node: a-z, 0-9, - and ."));
    }
}

/// Whether a text is a DNS subdomain of at most `most` characters. The API server does not limit its parts.
pub(super) fn is_subdomain(text: &str, most: usize) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|b| letter(*b))
            && bytes.last().is_some_and(|b| letter(*b))
            && bytes.iter().all(|b| letter(*b) || *b == b'-')
    };
    text.len() <= most && text.split('.').all(part)
}

fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_none_or(u8::is_ascii_alphanumeric)
        && bytes.last().is_none_or(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

fn is_identifier(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=32).contains(&bytes.len())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && !bytes[0].is_ascii_digit()
}
