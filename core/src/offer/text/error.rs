//! Why a text is not a policy.

/// Why a text is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It is not TOML, or has a field that does not exist or is missing.
    #[error("line {line}: the policy cannot be read: found `{found}`: {message}; correct it")]
    Syntax {
        /// Line in the file, from 1.
        line: usize,
        /// The line.
        found: String,
        /// What is wrong with it, and what was expected there.
        message: String,
    },
    /// A field has a value that it cannot have.
    #[error("line {line}: `{field}`: found {found}, expected {expected}; {todo}")]
    Field {
        /// Line in the file, from 1: of the field, or of the table that it belongs to.
        line: usize,
        /// Path, such as `rule[2].default-memory`; rules, slots and recipes are counted from 1.
        field: String,
        /// What is there.
        found: String,
        /// What may be there.
        expected: String,
        /// What to do.
        todo: String,
    },
}
