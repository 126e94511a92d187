//! Failures of commands, and their exit codes.

use std::io;
use std::path::{Path, PathBuf};

use aliquot_core::disposition::Disposition;

use crate::hardware::HardwareError;
use crate::manifest::ManifestProblem;
use crate::state_dir::StateDirError;

/// How a command that ran to its end answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandAnswer {
    /// Everything fits, or was done: exit code 0.
    Yes,
    /// Something does not fit, or differs from what was expected: exit code 1.
    No,
    /// What a command that was run answered, or why it was not run.
    Code(u8),
}

/// Why a command did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line asks for something that cannot be: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// A file is not what it should be: exit code 2.
    #[error("{file}: {message}")]
    Input {
        /// File as named on the command line.
        file: String,
        /// The problem, the expected value, the remedy.
        message: String,
    },
    /// Manifests have errors: exit code 2.
    #[error("{}", ProblemList(.0))]
    Manifests(Vec<ManifestProblem>),
    /// A file or directory cannot be used: exit code 3.
    #[error("cannot {verb} {path}: {source}. {advice}", path = .path.display())]
    Path {
        /// What was tried: `read`, `write`, …
        verb: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// The node or its state refuses: exit code 3.
    #[error("{0}")]
    Node(String),
    /// The node agent owns the state: exit code 3.
    #[error("{0}")]
    AgentRuns(String),
    /// Standard output cannot be written: exit code 3.
    #[error("cannot write the answer: {0}")]
    Output(#[from] io::Error),
}

struct ProblemList<'a>(&'a [ManifestProblem]);

impl std::fmt::Display for ProblemList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

// === impl CommandAnswer ===

impl CommandAnswer {
    /// The answer of a command that did several things, each of which may have failed for one of these reasons.
    #[must_use]
    pub fn of(failures: impl IntoIterator<Item = Disposition>) -> Self {
        match failures.into_iter().max() {
            None => Self::Yes,
            Some(Disposition::Retry | Disposition::Refuse) => Self::No,
            // As for a state that cannot be opened.
            Some(Disposition::Broken) => Self::Code(3),
        }
    }

    /// Its exit code.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Yes => 0,
            Self::No => 1,
            Self::Code(code) => code,
        }
    }
}

// === impl Failure ===

impl From<HardwareError> for Failure {
    fn from(error: HardwareError) -> Self {
        match error {
            HardwareError::Choice(text) => Self::Usage(text),
            HardwareError::Description { file, message } => Self::Input { file, message },
            HardwareError::Path { verb, path, source, advice } => Self::Path { verb, path, source, advice },
            HardwareError::Cards(text) => Self::Node(text),
        }
    }
}

impl From<StateDirError> for Failure {
    fn from(error: StateDirError) -> Self {
        match error {
            StateDirError::Disk { verb, path, source, advice } => Self::Path { verb, path, source, advice },
            unsafe_to_use => Self::Node(unsafe_to_use.to_string()),
        }
    }
}

impl Failure {
    /// Its exit code.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Input { .. } | Self::Manifests(_) => 2,
            Self::Path { .. } | Self::Node(_) | Self::AgentRuns(_) | Self::Output(_) => 3,
        }
    }

    /// Its messages, one for each problem.
    pub(super) fn texts(&self) -> Vec<String> {
        match self {
            Self::Manifests(problems) => problems.iter().map(ToString::to_string).collect(),
            other => vec![other.to_string()],
        }
    }

    pub(super) fn path(verb: &'static str, path: &Path, source: io::Error, advice: &'static str) -> Self {
        Self::Path { verb, path: path.to_owned(), source, advice }
    }

    pub(super) fn input(file: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self::Input { file: file.into(), message: message.to_string() }
    }
}
