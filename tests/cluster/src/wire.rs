//! The lines between a [`Cluster`](crate::Cluster) and the init of its namespaces: one JSON object each way a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ClusterError;

/// A process to start.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Start {
    /// The name that later requests use, and the name of its log file.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables beside those of init.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// A request to init.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Start a process in the background; it logs to `logs/NAME.log`.
    Start(Start),
    /// Send a signal to a process and wait until it has ended.
    End { name: String, signal: i32, patience_ms: u64 },
    /// Whether the process runs.
    Runs(String),
    /// Run a command to its end and capture its output.
    Run { start: Start, input: String, patience_ms: u64 },
}

/// A request with its number.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Numbered<T> {
    pub(crate) id: u64,
    pub(crate) body: T,
}

/// The output of a command.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Output {
    /// The exit code; 128 plus the signal if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Output {
    /// Exit code 0.
    ///
    /// # Errors
    /// Any other code; the message has what `object` wrote.
    pub fn expect_success(&self, object: &str) -> Result<(), ClusterError> {
        if self.code == 0 {
            return Ok(());
        }
        let message = format!("found exit code {}, expected 0: {}{}", self.code, self.err, self.out);
        Err(ClusterError::failed(object, message))
    }
}

/// An answer of init.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The process has this ID inside the namespace.
    Started(i32),
    /// The process ended with this code.
    Ended(i32),
    /// Whether it runs.
    Runs(bool),
    /// The command's output.
    Ran(Output),
    /// The request failed.
    Failed(String),
}
