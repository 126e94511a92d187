//! Why a card-model file is refused.

use crate::id::ModelId;

/// Why a catalogue file was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// Not read at all.
    #[error(
        "{file}: the file has {found} bytes, more than the {most} that a card model may have; split or shorten it"
    )]
    TooLarge {
        /// File name.
        file: String,
        /// Its size in bytes.
        found: usize,
        /// The limit in bytes.
        most: usize,
    },
    /// Not the file form: broken TOML, an unknown, missing or wrong kind of field.
    #[error(
        "{file}, line {line}: {problem}; correct the line, the form is described in core/catalogue/README.md"
    )]
    Shape {
        /// File name.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The reader's words, with the field's name.
        problem: String,
    },
    /// A field that says something impossible.
    #[error("{file}: {field} is {found}, expected {expected}; {fix}")]
    Field {
        /// File name.
        file: String,
        /// Path of the field.
        field: String,
        /// What it says.
        found: String,
        /// What would be right.
        expected: String,
        /// What to do.
        fix: String,
    },
    /// Two files describe the same model.
    #[error(
        "{file}: id is `{id}`, which {other} has too, expected one file a model; rename or remove one of them"
    )]
    DuplicateModel {
        /// The file that came second.
        file: String,
        /// The file that came first.
        other: String,
        /// The model.
        id: ModelId,
    },
    /// A name of one model is the id of another.
    #[error(
        "{file}: names has `{name}`, which is the id of another model, expected a name of its own; remove it"
    )]
    NameIsId {
        /// File name.
        file: String,
        /// The name.
        name: String,
    },
}
