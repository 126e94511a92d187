//! Values of the policy file, and the errors that name their field.

use toml::Value;

use super::error::PolicyError;
use crate::quantity::Quantity;
use crate::units::{Bytes, Cores};

pub(super) fn memory(value: &Value, at: &str) -> Result<Bytes, PolicyError> {
    let expected = "a positive size in whole Mi, such as \"8Gi\" or \"10240Mi\"";
    let wrong = |found: &str| field(at, found, expected, "write it as a text with a unit");
    let quantity = match value {
        Value::String(text) => {
            text.parse::<Quantity>().map_err(|error| wrong(&format!("`{text}` ({})", error.problem())))?
        }
        Value::Integer(bytes) => Quantity::from_units(*bytes, crate::quantity::Format::BinarySi),
        other => return Err(wrong(&shown(other))),
    };
    let bytes = u64::try_from(quantity.units_rounded_up()).unwrap_or(0);
    if !quantity.is_whole() || bytes == 0 || bytes % Bytes::MIB.0 != 0 {
        return Err(wrong(&shown(value)));
    }
    Ok(Bytes(bytes))
}

pub(super) fn cores(value: &Value, at: &str) -> Result<Cores, PolicyError> {
    let expected = "a whole number of percent of the card, 0 to 100";
    let percent: u32 = whole(value, at, 100, expected)?;
    u8::try_from(percent)
        .ok()
        .and_then(Cores::new)
        .ok_or_else(|| field(at, &shown(value), expected, "correct it"))
}

pub(super) fn whole(value: &Value, at: &str, max: i64, expected: &str) -> Result<u32, PolicyError> {
    let number = value.as_integer().filter(|number| (0..=max).contains(number));
    number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| field(at, &shown(value), expected, "write a whole number in that range"))
}

pub(super) fn field(field: &str, found: &str, expected: &str, todo: &str) -> PolicyError {
    let text = |text: &str| text.to_owned();
    let (field, found, expected, todo) = (text(field), text(found), text(expected), text(todo));
    PolicyError::Field { line: 1, field, found, expected, todo }
}

pub(super) fn duplicate(at: &str, name: &str) -> PolicyError {
    field(at, &format!("`{name}` a second time"), "every name once", "rename or remove one")
}

pub(super) fn unknown(at: &str, name: &str, sort: &str, known: &[&str]) -> PolicyError {
    let expected = if known.is_empty() {
        format!("a [[{sort}]] of this file")
    } else {
        format!("one of {}", known.join(", "))
    };
    field(at, &format!("`{name}`"), &expected, &format!("add a [[{sort}]] with that name, or correct it"))
}

pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{}`", text.chars().take(80).collect::<String>()),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(answer) => answer.to_string(),
        Value::Datetime(_) => "a date".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}
