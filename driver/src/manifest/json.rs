//! Tree → JSON text, for parameters that only their driver understands.

use super::field::{Context, Path};
use super::tree::{MapEntry, Plain, Style, Value, YamlNode, plain};

/// A map as compact JSON with its keys in order, as `kubectl` sends it; anything else is an error.
pub(super) fn object(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<String> {
    if !matches!(node.value, Value::Map(_)) {
        cx.error(path, format!("found {}, expected an object", node.describe()));
        return None;
    }
    Some(text_of(node))
}

/// Any value as compact JSON.
pub(super) fn text_of(node: &YamlNode<'_>) -> String {
    let mut out = String::new();
    write(node, &mut out);
    out
}

fn write(node: &YamlNode<'_>, out: &mut String) {
    match &node.value {
        Value::Map(entries) => {
            out.push('{');
            let mut entries: Vec<&MapEntry<'_>> = entries.iter().collect();
            entries.sort_by(|a, b| a.key.cmp(&b.key));
            for (index, entry) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                text(&entry.key, out);
                out.push(':');
                write(&entry.value, out);
            }
            out.push('}');
        }
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Scalar(scalar, Style::Quoted) => text(scalar, out),
        Value::Scalar(scalar, Style::Plain) => plain_scalar(scalar, out),
    }
}

fn plain_scalar(scalar: &str, out: &mut String) {
    match plain(scalar) {
        Plain::Null => out.push_str("null"),
        Plain::Bool(value) => out.push_str(if value { "true" } else { "false" }),
        Plain::Int(value) => out.push_str(&value.to_string()),
        // JSON has larger whole numbers than an i64.
        Plain::Float(_) if scalar.parse::<u64>().is_ok() => out.push_str(scalar),
        Plain::Float(value) => out.push_str(&serde_json::json!(value).to_string()),
        Plain::Text => text(scalar, out),
    }
}

fn text(value: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(value).to_string());
}
