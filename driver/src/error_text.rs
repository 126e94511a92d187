//! Errors as one line of text.

use std::error::Error;

/// An error with its causes, as one sentence. A cause that the text already contains is left out.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

/// What is wrong in a JSON text, without the place in it: for a text that is a part of a file, or was made from one, the
/// place is not that in the file.
#[must_use]
pub fn json_cause(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).map_or_else(|| text.clone(), str::to_owned)
}
