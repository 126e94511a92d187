//! Documents as JSON values, for a reader of objects that this module does not know.

use serde_json::Value;

use crate::error_text::json_cause;

use super::json;
use super::tree::{Piece, Pieces, TreeError, YamlNode};

/// Why a text has no further document.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct DocumentError {
    /// Line where it showed, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// The documents of a text that are not empty, up to the first error.
///
/// # Errors
/// The text is not YAML or JSON, or nests too deeply, or its aliases bring too much.
pub fn values(text: &str) -> Result<Vec<Value>, DocumentError> {
    let (mut values, mut items) = (Vec::new(), Vec::new());
    for piece in Pieces::of(text) {
        match piece.map_err(|error| DocumentError::torn(&error))? {
            Piece::Item(node) => items.push(value(&node)?),
            Piece::Document(node) if node.is_null() => {}
            Piece::Document(node) => {
                let mut document = value(&node)?;
                if !items.is_empty() {
                    document["items"] = Value::Array(std::mem::take(&mut items));
                }
                values.push(document);
            }
        }
    }
    Ok(values)
}

fn value(node: &YamlNode<'_>) -> Result<Value, DocumentError> {
    let value = serde_json::from_str(&json::text_of(node));
    value.map_err(|error| DocumentError { line: node.line, what: json_cause(&error) })
}

// === impl DocumentError ===

impl DocumentError {
    fn torn(error: &TreeError) -> Self {
        Self { line: error.line, what: error.to_string() }
    }
}
