//! Values as text.

use crate::value::{Outcome, Value, error};

/// The text as a literal of the language.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// What `string(value)` yields; `None` for a type that it does not take.
pub(super) fn printed(value: &Value) -> Option<Outcome<String>> {
    Some(match value {
        Value::String(text) => Ok(text.to_string()),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Int(i) => Ok(i.to_string()),
        Value::Uint(u) => Ok(u.to_string()),
        Value::Double(d) => Ok(shortest(*d)),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => error("invalid UTF-8 in bytes, cannot convert to string"),
        },
        Value::Ip(ip) => Ok(ip.0.to_string()),
        Value::Cidr(cidr) => Ok(cidr.to_string()),
        _ => return None,
    })
}

/// The shortest decimal that reads back as `value`; with an exponent below 1e-4 and from 1e6 on.
pub(super) fn shortest(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    match scientific
        .split_once('e')
        .and_then(|(mantissa, exponent)| Some((mantissa, exponent.parse::<i32>().ok()?)))
    {
        Some((mantissa, exponent)) if value != 0.0 && !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => format!("{value}"),
    }
}
