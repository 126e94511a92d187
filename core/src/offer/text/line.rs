//! Lines of the policy file that errors name.

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use super::error::PolicyError;

/// Longest part of a line that an error repeats, in characters.
const SHOWN_MAX: usize = 80;

/// The error of a text that is no policy, with its line.
pub(super) fn syntax(text: &str, error: &Error) -> PolicyError {
    let at = error.span().map_or(0, |span| span.start);
    let line = line_at(text, at);
    let found = text.lines().nth(line - 1).unwrap_or_default().trim().chars().take(SHOWN_MAX).collect();
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    PolicyError::Syntax { line, found, message }
}

/// The error with the line of its field.
pub(super) fn placed(text: &str, error: PolicyError) -> PolicyError {
    match error {
        PolicyError::Field { field, found, expected, todo, .. } => {
            let line = line_of(text, &field);
            PolicyError::Field { line, field, found, expected, todo }
        }
        placed @ PolicyError::Syntax { .. } => placed,
    }
}

/// The line of a field such as `rule[2].default-memory`, or of the innermost table around it that is there.
fn line_of(text: &str, field: &str) -> usize {
    let Ok(file) = DeTable::parse(text) else { return 1 };
    let (mut at, mut table) = (0, Some(file.get_ref()));
    for part in field.split('.') {
        let (name, number) = match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((name, number)) => (name, number.parse::<usize>().ok()),
            None => (part, None),
        };
        let Some((key, value)) = table.and_then(|table| table.get_key_value(name)) else { break };
        let element = number.and_then(|number| element(value, number));
        at = element.map_or(key.span().start, |element| element.span().start);
        table = match element.unwrap_or(value).get_ref() {
            DeValue::Table(inner) => Some(inner),
            _ => None,
        };
    }
    line_at(text, at)
}

/// An element of a list, counted from 1.
fn element<'a, 'i>(list: &'a Spanned<DeValue<'i>>, number: usize) -> Option<&'a Spanned<DeValue<'i>>> {
    match list.get_ref() {
        DeValue::Array(values) => values.get(number.checked_sub(1)?),
        _ => None,
    }
}

/// The line with this byte, from 1.
fn line_at(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}
