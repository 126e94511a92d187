//! Documents as JSON values, for a reader of objects that this module does not know.

use serde_json::Value;

use super::json;
use super::tree::{Documents, TreeError};

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
    let torn = |error: TreeError| DocumentError { line: error.line, what: error.to_string() };
    let mut values = Vec::new();
    for document in Documents::of(text) {
        let node = document.map_err(torn)?;
        if node.is_null() {
            continue;
        }
        let value = serde_json::from_str(&json::text_of(&node));
        values.push(value.map_err(|error| DocumentError { line: node.line, what: error.to_string() })?);
    }
    Ok(values)
}
