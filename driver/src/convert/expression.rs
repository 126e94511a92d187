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

/// Why an expression has no equivalent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoEquivalent {
    /// It cannot be read.
    Unread(String),
    /// It asks for something that is not published.
    Attribute(String),
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
        if let Some(name) = selected(&words, at) {
            names.push(name);
        }
    }
    if let Some(name) = names.iter().find(|name| !ATTRIBUTES.contains(&name.as_str()) && *name != "memory") {
        return Err(NoEquivalent::Attribute(name.clone()));
    }
    let about_type = names.iter().any(|name| name == "type");
    let mut out = String::new();
    let mut end = 0;
    for word in &words {
        let LexemeKind::Text(literal) = &word.kind else { continue };
        let kind = TYPES.iter().find(|(theirs, _)| about_type && *theirs == literal.as_ref());
        let ours = if literal.as_ref() == NVIDIA { DRIVER } else { kind.map_or("", |(_, ours)| ours) };
        if !ours.is_empty() {
            out.push_str(text.get(end..word.span.start).unwrap_or_default());
            out.push_str(&format!("\"{ours}\""));
            end = word.span.end;
        }
    }
    out.push_str(text.get(end..).unwrap_or_default());
    Selector::compile(&out).map_err(|error| NoEquivalent::Unread(error.to_string()))?;
    Ok(Rewritten { text: out, profile: profile(&words) })
}

/// The name that is selected from the driver's attributes or capacity, where the driver's name is the word at `at`.
fn selected(words: &[Lexeme], at: usize) -> Option<String> {
    let kind = |offset: usize| words.get(at + offset).map(|word| &word.kind);
    let sign =
        |offset: usize, wanted: &str| matches!(kind(offset), Some(LexemeKind::Sign(s)) if *s == wanted);
    match kind(0)? {
        LexemeKind::Text(text) if text.as_ref() == NVIDIA && sign(1, "]") => {}
        _ => return None,
    }
    // `.name`, `.?name`, `["name"]`, `[?"name"]`.
    let skip = if sign(3, "?") { 4 } else { 3 };
    match (sign(2, ".") || sign(2, "["), kind(skip)?) {
        (true, LexemeKind::Name(name) | LexemeKind::Text(name)) => Some(name.to_string()),
        _ => None,
    }
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
