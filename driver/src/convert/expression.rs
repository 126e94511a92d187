//! Selectors over the devices of NVIDIA's DRA driver, in the names of ours.
//!
//! The expression is parsed; names are replaced word by word, so that a name in a string or in a longer name stays.

use aliquot_core::cel::{Lexeme, LexemeKind, Selector, lexemes};
use aliquot_core::offer::DRIVER;

/// The driver whose names are replaced.
pub(super) const NVIDIA: &str = "gpu.nvidia.com";

/// Attributes that both drivers publish, with equal values.
const ATTRIBUTES: [&str; 7] =
    ["architecture", "driverVersion", "parentUUID", "productName", "profile", "type", "uuid"];

/// Values of the attribute `type`.
const TYPES: [(&str, &str); 2] = [("gpu", "card"), ("mig", "partition")];

/// Words of the longest selection: `device.attributes[?"…"][?"type"]`.
const SELECTION_WORDS_MAX: usize = 12;

/// Why an expression has no equivalent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoEquivalent {
    /// It cannot be read.
    Unread(String),
    /// It asks for something that is not published.
    Attribute(String),
    /// It uses this, which has other values here, other than by comparison with a string.
    Use(&'static str),
}

/// An expression that was rewritten.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rewritten {
    pub(super) text: String,
    /// The one profile that it demands, if that is certain.
    pub(super) profile: Option<String>,
}

/// The expression in our names.
///
/// # Errors
/// It cannot be read, or asks for what is not published.
pub(super) fn rewritten(text: &str) -> Result<Rewritten, NoEquivalent> {
    let words = lexemes(text).map_err(|error| NoEquivalent::Unread(error.to_string()))?;
    let mut names = Vec::new();
    for at in 0..words.len() {
        if let Some((name, _)) = selected(&words, at).filter(|_| is_domain(&words, at)) {
            names.push(name);
        }
    }
    if let Some(name) = names.iter().find(|name| !ATTRIBUTES.contains(&name.as_str()) && *name != "memory") {
        return Err(NoEquivalent::Attribute(name.clone()));
    }
    if let Some(name) = misused(&words) {
        return Err(NoEquivalent::Use(name));
    }
    let mut out = String::new();
    let mut end = 0;
    for (at, word) in words.iter().enumerate() {
        let LexemeKind::Text(literal) = &word.kind else { continue };
        let ours = match compared(&words, at) {
            _ if literal.as_ref() == NVIDIA && is_domain(&words, at) => Some(DRIVER),
            Some(Side::Driver) if literal.as_ref() == NVIDIA => Some(DRIVER),
            Some(Side::Type) => {
                TYPES.iter().find(|(theirs, _)| *theirs == literal.as_ref()).map(|(_, ours)| *ours)
            }
            _ => None,
        };
        if let Some(ours) = ours {
            out.push_str(text.get(end..word.span.start).unwrap_or_default());
            out.push_str(&format!("\"{ours}\""));
            end = word.span.end;
        }
    }
    out.push_str(text.get(end..).unwrap_or_default());
    Selector::compile(&out).map_err(|error| NoEquivalent::Unread(error.to_string()))?;
    Ok(Rewritten { text: out, profile: profile(&words) })
}

/// What a string is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// `device.driver`
    Driver,
    /// The attribute `type` of the driver's devices.
    Type,
}

fn sign_at(words: &[Lexeme], at: Option<usize>, wanted: &str) -> bool {
    let word = at.and_then(|at| words.get(at));
    word.is_some_and(|word| matches!(&word.kind, LexemeKind::Sign(sign) if *sign == wanted))
}

fn is_comparison(words: &[Lexeme], at: Option<usize>) -> bool {
    ["==", "!="].iter().any(|sign| sign_at(words, at, sign))
}

fn text_at(words: &[Lexeme], at: usize) -> Option<&str> {
    match &words.get(at)?.kind {
        LexemeKind::Text(text) => Some(text),
        _ => None,
    }
}

fn name_at(words: &[Lexeme], at: usize) -> Option<&str> {
    match &words.get(at)?.kind {
        LexemeKind::Name(name) => Some(name),
        _ => None,
    }
}

/// Whether the word is the domain of attributes or capacity: `device.attributes["…"]`, or a member of that map.
fn is_domain(words: &[Lexeme], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back);
    let is_map = |at: Option<usize>| {
        at.and_then(|at| name_at(words, at)).is_some_and(|name| matches!(name, "attributes" | "capacity"))
    };
    let opens = sign_at(words, before(1), "[") && is_map(before(2))
        || sign_at(words, before(1), "?") && sign_at(words, before(2), "[") && is_map(before(3));
    let member = sign_at(words, Some(at + 1), "in") && is_map(Some(at + 4));
    opens && sign_at(words, Some(at + 1), "]") || member
}

/// What the string at `at` is compared with, as one of a list too.
fn compared(words: &[Lexeme], at: usize) -> Option<Side> {
    if is_comparison(words, at.checked_sub(1)) {
        return ends_at(words, at.checked_sub(2)?);
    }
    if is_comparison(words, Some(at + 1)) {
        return begins_at(words, at + 2);
    }
    let mut open = at;
    while let Some(before) = open.checked_sub(1).filter(|before| !sign_at(words, Some(*before), "[")) {
        let is_item = text_at(words, before).is_some() || sign_at(words, Some(before), ",");
        open = if is_item { before } else { return None };
    }
    let list = open.checked_sub(1)?;
    sign_at(words, list.checked_sub(1), "in").then(|| ends_at(words, list.checked_sub(2)?)).flatten()
}

/// The selection that ends with the word at `end`.
fn ends_at(words: &[Lexeme], end: usize) -> Option<Side> {
    (0..=end)
        .rev()
        .take(SELECTION_WORDS_MAX)
        .find_map(|at| selection(words, at).filter(|found| found.1 == end + 1))
        .map(|found| found.0)
}

/// The selection that begins at `at`, unless it goes on behind that.
fn begins_at(words: &[Lexeme], at: usize) -> Option<Side> {
    let (side, end) = selection(words, at)?;
    let goes_on = [".", "[", "("].iter().any(|sign| sign_at(words, Some(end), sign));
    (!goes_on).then_some(side)
}

/// `device.driver`, or `device.attributes["…"].type` in any of its forms, and the word behind it.
fn selection(words: &[Lexeme], at: usize) -> Option<(Side, usize)> {
    if name_at(words, at) != Some("device") || !sign_at(words, Some(at + 1), ".") {
        return None;
    }
    match name_at(words, at + 2)? {
        "driver" => Some((Side::Driver, at + 3)),
        "attributes" => {
            let domain = if sign_at(words, Some(at + 4), "?") { at + 5 } else { at + 4 };
            let (name, end) = selected(words, domain)?;
            (name == "type").then_some((Side::Type, end))
        }
        _ => None,
    }
}

/// A use of the type or of the driver that is no comparison with a string: what it is true for cannot be told.
fn misused(words: &[Lexeme]) -> Option<&'static str> {
    (0..words.len()).find_map(|at| {
        let (side, end) = selection(words, at)?;
        let is_text = |at: Option<usize>| at.is_some_and(|at| text_at(words, at).is_some());
        let behind = is_comparison(words, Some(end)) && is_text(Some(end + 1));
        let before = is_comparison(words, at.checked_sub(1))
            && is_text(at.checked_sub(2))
            && begins_at(words, at).is_some();
        let listed = sign_at(words, Some(end), "in") && sign_at(words, Some(end + 1), "[");
        let name = if side == Side::Type { "type" } else { "driver" };
        (!behind && !before && !listed).then_some(name)
    })
}

/// The name that is selected from the driver's attributes or capacity, where the driver's name is the word at `at`, and
/// the word behind the selection.
fn selected(words: &[Lexeme], at: usize) -> Option<(String, usize)> {
    if text_at(words, at) != Some(NVIDIA) || !sign_at(words, Some(at + 1), "]") {
        return None;
    }
    // `.name`, `.?name`, `["name"]`, `[?"name"]`.
    let skip = if sign_at(words, Some(at + 3), "?") { at + 4 } else { at + 3 };
    if sign_at(words, Some(at + 2), ".") {
        let name = name_at(words, skip).or_else(|| text_at(words, skip))?;
        return Some((name.to_owned(), skip + 1));
    }
    let name = text_at(words, skip).filter(|_| sign_at(words, Some(at + 2), "["))?;
    Some((name.to_owned(), skip + 2))
}

/// The profile of an expression that is a chain of `&&` with one `.profile == "…"` in it.
fn profile(words: &[Lexeme]) -> Option<String> {
    let is = |word: &Lexeme, wanted: &str| matches!(&word.kind, LexemeKind::Sign(s) if *s == wanted);
    if words.iter().any(|word| ["||", "!", "?", "(", "!="].iter().any(|sign| is(word, sign))) {
        return None;
    }
    let named = |word: &Lexeme| matches!(&word.kind, LexemeKind::Name(name) if name.as_ref() == "profile");
    let mut places = (0..words.len()).filter(|at| named(&words[*at]));
    let at = places.next()?;
    match (places.next(), words.get(at + 1), words.get(at + 2).map(|word| &word.kind)) {
        (None, Some(equal), Some(LexemeKind::Text(profile))) if is(equal, "==") => Some(profile.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(expression: &str) -> Result<String, NoEquivalent> {
        rewritten(expression).map(|rewritten| rewritten.text)
    }

    #[test]
    fn names_are_replaced_where_they_are_names() {
        for (theirs, ours) in [
            (
                "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
                "device.driver == \"aliquot.dev\" && device.attributes[\"aliquot.dev\"].type == \"card\"",
            ),
            (
                "device.attributes[\"gpu.nvidia.com\"].productName.contains(\"gpu.nvidia.com A100\")",
                "device.attributes[\"aliquot.dev\"].productName.contains(\"gpu.nvidia.com A100\")",
            ),
            (
                "'mig' == device.attributes['gpu.nvidia.com'].type && 'gpu.nvidia.com' != 'mig'",
                "\"partition\" == device.attributes[\"aliquot.dev\"].type && 'gpu.nvidia.com' != 'mig'",
            ),
            (
                "device.attributes['gpu.nvidia.com'].type in ['gpu', 'mig'] && ['gpu.nvidia.com'].size() == 1",
                "device.attributes[\"aliquot.dev\"].type in [\"card\", \"partition\"] && ['gpu.nvidia.com'].size() == 1",
            ),
            (
                "device.driver in ['gpu.nvidia.com', 'other'] && device.attributes['gpu.nvidia.com'].type != 'mig'",
                "device.driver in [\"aliquot.dev\", 'other'] && device.attributes[\"aliquot.dev\"].type != \"partition\"",
            ),
            (
                "'gpu.nvidia.com' in device.attributes && device.attributes['gpu.nvidia.com']['type'] == 'gpu' && \
                 device.attributes['gpu.nvidia.com'].productName == 'gpu'",
                "\"aliquot.dev\" in device.attributes && device.attributes[\"aliquot.dev\"]['type'] == \"card\" && \
                 device.attributes[\"aliquot.dev\"].productName == 'gpu'",
            ),
            (
                "device.attributes['gpu.nvidia.com'].productName == 'mig' || device.attributes['gpu.nvidia.com'].type == 'x'",
                "device.attributes[\"aliquot.dev\"].productName == 'mig' || device.attributes[\"aliquot.dev\"].type == 'x'",
            ),
            (
                "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0 // gpu.nvidia.com",
                "device.capacity[\"aliquot.dev\"].memory.compareTo(quantity('40Gi')) >= 0 // gpu.nvidia.com",
            ),
        ] {
            assert_eq!(text(theirs).as_deref(), Ok(ours));
        }
    }

    #[test]
    fn attributes_without_equivalent_are_named() {
        for name in ["brand", "cudaComputeCapability", "index"] {
            let expression = format!("device.attributes['gpu.nvidia.com'].{name} == 'x'");
            assert_eq!(text(&expression), Err(NoEquivalent::Attribute(name.to_owned())));
        }
        let expression = "device.attributes['gpu.nvidia.com'][?'brand'].orValue('') == 'x'";
        assert!(text(expression).is_err());
        for use_of in [
            "device.attributes['gpu.nvidia.com'].type.startsWith('g')",
            "device.attributes['gpu.nvidia.com'].type == device.driver",
            "'gpu' == device.attributes['gpu.nvidia.com'].type.lowerAscii()",
            "device.driver.startsWith('gpu.nvidia.com')",
            "device.attributes['gpu.nvidia.com'][?'type'].orValue('gpu') == 'gpu'",
        ] {
            assert!(matches!(text(use_of), Err(NoEquivalent::Use(_))), "{use_of}: {:?}", text(use_of));
        }
        for torn in ["device.attributes[", "", "1 +", "device.nothing"] {
            assert!(matches!(text(torn), Err(NoEquivalent::Unread(_))), "{torn}");
        }
    }

    #[test]
    fn profile_is_certain_in_a_chain_of_conditions_only() {
        let attribute = "device.attributes['gpu.nvidia.com'].profile";
        let of = |expression: &str| rewritten(expression).ok().and_then(|found| found.profile);
        assert_eq!(of(&format!("{attribute} == '1g.5gb'")).as_deref(), Some("1g.5gb"));
        assert_eq!(of(&format!("true && {attribute} == '1g.5gb'")).as_deref(), Some("1g.5gb"));
        assert_eq!(of(&format!("{attribute} != '1g.5gb'")), None);
        assert_eq!(of(&format!("{attribute} == '1g.5gb' || {attribute} == '2g.10gb'")), None);
        assert_eq!(of(&format!("!({attribute} == '1g.5gb')")), None);
    }
}
