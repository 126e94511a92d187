//! What a scalar is that stands without quotes.
//!
//! By YAML 1.2, but for whole numbers: `kubectl` reads those by YAML 1.1, where `010` is 8, `0b11` is 3 and `1_000` is 1000.

/// What a plain scalar is by the rules of YAML 1.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::manifest) enum Plain {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text,
}

/// Whether it is YAML's null: nothing, `~` or `null`.
pub(super) fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Reads a plain scalar by the rules of YAML 1.2.
pub(in crate::manifest) fn plain(text: &str) -> Plain {
    match text {
        "true" | "True" | "TRUE" => return Plain::Bool(true),
        "false" | "False" | "FALSE" => return Plain::Bool(false),
        _ if is_null(text) => return Plain::Null,
        _ => {}
    }
    let number = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Plain::Text;
    }
    if let Some(int) = integer(text) {
        return Plain::Int(int);
    }
    let shape = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    match text.parse::<f64>() {
        Ok(float) if float.is_finite() && text.chars().all(shape) => Plain::Float(float),
        _ => Plain::Text,
    }
}

/// A whole number as `kubectl` reads it: decimal, or octal (`010`, `0o10`), hexadecimal or binary, with `_` between digits.
fn integer(text: &str) -> Option<i64> {
    let (sign, number) = match text.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let digits: String = number.chars().filter(|c| *c != '_').collect();
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_alphanumeric());
    plain.then(|| i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_resolve_as_in_yaml_1_2() {
        assert_eq!(plain("12"), Plain::Int(12));
        assert_eq!(plain("1e9"), Plain::Float(1e9));
        for (text, number) in
            [("010", 8), ("-0o17", -15), ("0x1F", 31), ("0b101", 5), ("1_000", 1000), ("+7", 7), ("0", 0)]
        {
            assert_eq!(plain(text), Plain::Int(number), "{text}");
        }
        assert_eq!(plain("0x"), Plain::Text);
        assert_eq!(plain("09"), Plain::Float(9.0));
        assert_eq!(plain("8Gi"), Plain::Text);
        assert_eq!(plain("1.2.3"), Plain::Text);
        assert_eq!(plain("inf"), Plain::Text);
        assert_eq!(plain("~"), Plain::Null);
        assert_eq!(plain("yes"), Plain::Text);
    }
}
