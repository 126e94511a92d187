//! What a scalar is that stands without quotes.

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
    if let Ok(int) = text.parse::<i64>() {
        return Plain::Int(int);
    }
    let shape = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    match text.parse::<f64>() {
        Ok(float) if float.is_finite() && text.chars().all(shape) => Plain::Float(float),
        _ => Plain::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_resolve_as_in_yaml_1_2() {
        assert_eq!(plain("12"), Plain::Int(12));
        assert_eq!(plain("1e9"), Plain::Float(1e9));
        assert_eq!(plain("8Gi"), Plain::Text);
        assert_eq!(plain("1.2.3"), Plain::Text);
        assert_eq!(plain("inf"), Plain::Text);
        assert_eq!(plain("~"), Plain::Null);
        assert_eq!(plain("yes"), Plain::Text);
    }
}
