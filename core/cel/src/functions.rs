//! What every declared function does: one table a library.
//!
//! One implementation serves all signatures of a name in a style and distinguishes them by the values it
//! gets. An argument that fits no signature, possible where a type is known only at run time, is an error of the language.

mod builtin;
mod conversions;
mod format;
mod kubernetes;
mod operators;
pub(super) mod pattern;
mod printed;
mod re2;
mod sequence;
mod text;

use super::declarations::Style;
pub(crate) use builtin::Builtin;
use conversions::CONVERSIONS;
pub(super) use format::check_format;
use operators::OPERATORS;
pub(crate) use sequence::INCLUDES_MAX;

/// The implementation of `name`, with the name as it may outlive the expression.
pub(super) fn implementation(name: &str, style: Style) -> Option<(&'static str, Builtin)> {
    let found = |table: &[(&'static str, Builtin)]| table.iter().find(|(known, _)| *known == name).copied();
    match style {
        Style::Global => found(OPERATORS)
            .or_else(|| found(CONVERSIONS))
            .or_else(|| found(sequence::GLOBAL))
            .or_else(|| found(text::GLOBAL))
            .or_else(|| found(kubernetes::GLOBAL))
            .or_else(|| kubernetes::format_constant(name)),
        Style::Member => {
            found(sequence::MEMBER).or_else(|| found(text::MEMBER)).or_else(|| found(kubernetes::MEMBER))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declarations::all;

    /// What `calls::bind` turns into steps of their own.
    const STEPS: [&str; 3] = ["_?_:_", "or", "orValue"];

    #[test]
    fn declared_functions_and_implemented_functions_are_equal() {
        for (name, style) in all() {
            assert!(STEPS.contains(&name) || implementation(name, style).is_some(), "{name} {style:?}");
        }
        let declared =
            |name: &str, style| all().contains(&(all().iter().find(|(n, _)| *n == name).unwrap().0, style));
        for table in [OPERATORS, CONVERSIONS, sequence::GLOBAL, text::GLOBAL, kubernetes::GLOBAL] {
            table.iter().for_each(|(name, _)| assert!(declared(name, Style::Global), "{name}"));
        }
        for table in [sequence::MEMBER, text::MEMBER, kubernetes::MEMBER] {
            table.iter().for_each(|(name, _)| assert!(declared(name, Style::Member), "{name}"));
        }
    }
}
