//! Values of a card-model file, with errors that name file and field.

use super::error::CatalogueError;
use super::text::{self, RawAmount};
use crate::id::NameError;
use crate::partition::ShareSupport;
use crate::quantity::Quantity;
use crate::units::Bytes;

/// Longest free text that is published or shown in a table.
const NAME_CHARS_MAX: usize = 64;

/// Most entries of any list; what a person would write is far below.
const ENTRIES_MAX: usize = 64;

/// Where in which file we are; makes the errors.
#[derive(Clone, Copy)]
pub(super) struct SourceFile<'a> {
    pub(super) file: &'a str,
}

pub(super) const fn support(raw: text::Support) -> ShareSupport {
    match raw {
        text::Support::Enforceable => ShareSupport::Enforceable,
        text::Support::None => ShareSupport::No,
    }
}

// === impl SourceFile ===

impl SourceFile<'_> {
    pub(super) fn wrong(
        self,
        field: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
        fix: &str,
    ) -> CatalogueError {
        CatalogueError::Field {
            file: self.file.to_owned(),
            field: field.to_owned(),
            found: found.into(),
            expected: expected.into(),
            fix: fix.to_owned(),
        }
    }

    /// A name of core's own kinds.
    pub(super) fn name<N: std::str::FromStr<Err = NameError>>(
        self,
        field: &str,
        text: &str,
    ) -> Result<N, CatalogueError> {
        text.parse()
            .map_err(|e: NameError| self.wrong(field, format!("`{}`", e.found), e.expected, "rename it"))
    }

    /// A short text for people.
    pub(super) fn words(self, field: &str, text: &str) -> Result<String, CatalogueError> {
        let (length, printable) = (text.chars().count(), !text.chars().any(char::is_control));
        if (1..=NAME_CHARS_MAX).contains(&length) && printable && text.trim() == text {
            return Ok(text.to_owned());
        }
        let found =
            format!("`{}` ({length} characters)", text.chars().take(80).collect::<String>().escape_debug());
        let expected = format!("1 to {NAME_CHARS_MAX} printable characters without space around them");
        Err(self.wrong(field, found, expected, "shorten or correct it"))
    }

    pub(super) fn at_most(self, field: &str, entries: usize) -> Result<(), CatalogueError> {
        if entries <= ENTRIES_MAX {
            return Ok(());
        }
        let expected = format!("at most {ENTRIES_MAX}");
        Err(self.wrong(field, format!("a list of {entries}"), expected, "shorten the list"))
    }

    /// A whole number that is not negative, or a quantity of whole units.
    pub(super) fn whole(self, field: &str, amount: &RawAmount) -> Result<u64, CatalogueError> {
        let expected = "a whole number of 0 or more, or a quantity such as \"9984Mi\"";
        let refuse = |found: String, fix| Err(self.wrong(field, found, expected, fix));
        match amount {
            RawAmount::Integer(value) => match u64::try_from(*value) {
                Ok(value) => Ok(value),
                Err(_) => {
                    refuse(format!("{value}, which is negative"), "leave the field out or correct the sign")
                }
            },
            RawAmount::Fractional(_) => {
                refuse(format!("{amount}, which is not a whole number"), "use a smaller unit or round it")
            }
            RawAmount::Text(text) => match text.parse::<Quantity>() {
                Err(error) => {
                    refuse(format!("{amount}, where {}", error.problem()), "write a Kubernetes quantity")
                }
                Ok(quantity) if !quantity.is_whole() => {
                    refuse(format!("{amount}, which is not whole"), "use a smaller unit or round it")
                }
                Ok(quantity) => match u64::try_from(quantity.units_rounded_up()) {
                    Err(_) => refuse(format!("{amount}, which is negative"), "correct the sign"),
                    Ok(value) if value < i64::MAX.unsigned_abs() => Ok(value),
                    Ok(_) => refuse(format!("{amount}, which is 2^63 or more"), "correct the suffix"),
                },
            },
        }
    }

    /// Bytes on the grid of 1 MiB; more than none.
    pub(super) fn bytes(self, field: &str, amount: &RawAmount) -> Result<Bytes, CatalogueError> {
        let bytes = self.whole(field, amount)?;
        if bytes == 0 || !bytes.is_multiple_of(Bytes::MIB.0) {
            let expected = "a multiple of 1Mi above zero";
            return Err(self.wrong(
                field,
                amount.to_string(),
                expected,
                "write the size with a suffix, such as \"9984Mi\"",
            ));
        }
        Ok(Bytes(bytes))
    }

    /// A whole number up to `most`.
    pub(super) fn small(self, field: &str, amount: &RawAmount, most: u32) -> Result<u32, CatalogueError> {
        let value = self.whole(field, amount)?;
        match u32::try_from(value) {
            Ok(value) if value <= most => Ok(value),
            _ => Err(self.wrong(field, value.to_string(), format!("at most {most}"), "correct the number")),
        }
    }
}
