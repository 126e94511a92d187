//! Errors of opening hardware.

use std::io;
use std::path::{Path, PathBuf};

use aliquot_core::disposition::Disposition;

/// Why hardware is not opened.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// The name or number of nodes, cards or models is impossible.
    #[error("{0}")]
    Choice(String),
    /// A description of a node, a model or a layout is wrong.
    #[error("{file}: {message}")]
    Description {
        /// The file, or the option that names it.
        file: String,
        /// Found, expected, remedy.
        message: String,
    },
    /// A file or directory cannot be used.
    #[error("cannot {verb} {path}: {source}. {advice}", path = .path.display())]
    Path {
        /// Operation that failed.
        verb: &'static str,
        /// Its path.
        path: PathBuf,
        /// Cause.
        source: io::Error,
        /// Remedy.
        advice: &'static str,
    },
    /// The cards cannot be used.
    #[error("{0}")]
    Cards(String),
}

// === impl HardwareError ===

impl HardwareError {
    /// What the caller does about it.
    #[must_use]
    pub const fn disposition(&self) -> Disposition {
        match self {
            Self::Choice(_) | Self::Description { .. } => Disposition::Refuse,
            Self::Path { .. } | Self::Cards(_) => Disposition::Broken,
        }
    }

    pub(crate) fn description(file: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self::Description { file: file.into(), message: message.to_string() }
    }

    pub(crate) fn path(verb: &'static str, path: &Path, source: io::Error, advice: &'static str) -> Self {
        Self::Path { verb, path: path.to_owned(), source, advice }
    }
}
