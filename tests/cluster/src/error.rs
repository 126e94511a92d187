//! What can fail around a cluster.

use std::io;
use std::path::Path;

use thiserror::Error;

use crate::api::ApiError;

/// Why a cluster does not start or does not carry out a command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// This machine cannot run a cluster; a test stands aside.
    #[error("cluster: cannot run on this machine: {0}")]
    Missing(String),
    /// A component, a file or a command failed.
    #[error("{object}: {message}")]
    Failed {
        /// The component or file.
        object: String,
        /// The failure.
        message: String,
    },
    /// The API server refused or did not answer.
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl ClusterError {
    /// A failure of `object`.
    #[expect(clippy::needless_pass_by_value, reason = "texts and errors are passed alike")]
    pub(crate) fn failed(object: impl Into<String>, message: impl ToString) -> Self {
        Self::Failed { object: object.into(), message: message.to_string() }
    }

    /// A failure to read or write a file.
    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        Self::failed(path.display().to_string(), error)
    }
}
