//! The lock for measurements on a card; it is released when its process exits.
//!
//! The locks of a state directory have an order, so that no deadlock is possible:
//!
//! ```text
//!   runs/<claim>  ─▶  measuring/<card>  ─▶  lock (the node)  ─▶  limits.lock
//! ```
//!
//! A process that holds one waits only for locks behind it. Another process locks a run's record only briefly, and governors take
//! their locks without waiting.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_core::id::CardUuid;
use nix::fcntl::Flock;

use crate::state_dir::wait::{LockFailure, LockHolder};
use crate::state_dir::{file, wait};

/// Longest wait for a measurement of another process, which takes some seconds on a driver that answers.
const LONGEST: Duration = Duration::from_secs(60);

/// The lock for measurements on a card, held until dropped.
#[derive(Debug)]
pub struct MeasuringTurn {
    _file: Flock<File>,
}

// === impl MeasuringTurn ===

impl MeasuringTurn {
    /// Takes the lock if it is free. It never waits, so the caller may have the node open.
    ///
    /// # Errors
    /// The lock file cannot be created or locked.
    pub fn now(state: &Path, card: &CardUuid) -> io::Result<Option<Self>> {
        match wait::try_lock(open(state, card)?) {
            Ok(file) => Ok(Some(Self { _file: file })),
            Err(LockFailure::Held(_)) => Ok(None),
            Err(LockFailure::Refused(error)) => Err(error),
        }
    }

    /// Waits for the lock, for at most `LONGEST`; after a second `slow` is called with its holder. The caller must not have the node
    /// open, as the holder may wait for the node.
    ///
    /// # Errors
    /// The lock file cannot be created or locked, or the wait ends without the lock.
    pub fn wait(state: &Path, card: &CardUuid, slow: impl FnOnce(&LockHolder)) -> io::Result<Self> {
        Ok(Self { _file: wait::lock(open(state, card)?, LONGEST, slow)? })
    }
}

fn open(state: &Path, card: &CardUuid) -> io::Result<File> {
    let path = path(state, card);
    if let Some(dir) = path.parent() {
        file::make_dirs(dir)?;
    }
    file::to_lock(&path)
}

fn path(state: &Path, card: &CardUuid) -> PathBuf {
    state.join("measuring").join(card.as_str())
}
