//! Semantic versions 2.0.0, read as strictly as upstream reads them.

use std::cmp::Ordering;

/// A semantic version; build metadata is checked and dropped, as it never orders versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) major: u64,
    pub(super) minor: u64,
    pub(super) patch: u64,
    pre_release: Vec<Identifier>,
}

/// One dot-separated part of a pre-release; numbers come before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

// === impl Version ===

impl Version {
    /// Reads `1.2.3-pre.1+build`; the error says what is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts[..] else {
            return Err(format!("{text:?} is not a version: expected major.minor.patch"));
        };
        let (rest, build) = split_at_sign(rest, '+');
        let (patch, pre_release) = split_at_sign(rest, '-');
        for part in build.into_iter().flat_map(|build| build.split('.')) {
            word(text, part)?;
        }
        Ok(Self {
            major: number(text, major)?,
            minor: number(text, minor)?,
            patch: number(text, patch)?,
            pre_release: pre_release
                .into_iter()
                .flat_map(|pre_release| pre_release.split('.'))
                .map(|part| identifier(text, part))
                .collect::<Result<_, _>>()?,
        })
    }

    /// As [`Self::parse`] after a leading `v` and leading zeros are dropped and missing parts are taken as 0.
    pub(super) fn parse_loosely(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = bare.splitn(3, '.').map(without_leading_zeros).collect();
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err(format!(
                    "{text:?} is not a version: a short one may have no pre-release or build"
                ));
            }
            parts.resize(3, "0".to_owned());
        }
        Self::parse(&parts.join("."))
    }

    /// The order of two versions; build metadata does not count.
    pub(super) fn cmp_precedence(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch).cmp(&(other.major, other.minor, other.patch)).then_with(
            || match (self.pre_release.is_empty(), other.pre_release.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => self.pre_release.cmp(&other.pre_release),
            },
        )
    }
}

fn split_at_sign(text: &str, sign: char) -> (&str, Option<&str>) {
    text.split_once(sign).map_or((text, None), |(before, after)| (before, Some(after)))
}

fn without_leading_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let bare = part.trim_start_matches('0');
    if bare.starts_with(|c: char| c.is_ascii_digit()) { bare.to_owned() } else { format!("0{bare}") }
}

fn number(version: &str, part: &str) -> Result<u64, String> {
    let fail = |why: &str| Err(format!("{version:?} is not a version: {part:?} {why}"));
    if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        return fail("is not a number");
    }
    if part.len() > 1 && part.starts_with('0') {
        return fail("has a leading zero");
    }
    part.parse().or_else(|_| fail("is too large"))
}

fn word<'a>(version: &str, part: &'a str) -> Result<&'a str, String> {
    if part.is_empty() || !part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(format!(
            "{version:?} is not a version: {part:?} is not made of letters, digits and hyphens"
        ));
    }
    Ok(part)
}

fn identifier(version: &str, part: &str) -> Result<Identifier, String> {
    if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
        return number(version, part).map(Identifier::Number);
    }
    word(version, part).map(|part| Identifier::Word(part.to_owned()))
}
