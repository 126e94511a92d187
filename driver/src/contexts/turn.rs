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

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use aliquot_core::id::CardUuid;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

/// A longer wait is reported to the user.
const SLOW: Duration = Duration::from_secs(1);

/// The lock for measurements on a card, held until dropped.
#[derive(Debug)]
pub struct Turn {
    _file: Flock<File>,
}

// === impl Turn ===

impl Turn {
    /// Takes the lock if it is free. It never waits, so the caller may have the node open.
    ///
    /// # Errors
    /// The lock file cannot be created or locked.
    pub fn now(state: &Path, card: &CardUuid) -> io::Result<Option<Self>> {
        match Flock::lock(open(state, card)?, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Self { _file: file })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Waits for the lock; calls `slow` if that takes long. The caller must not have the node open, as the lock's holder may wait
    /// for the node.
    ///
    /// # Errors
    /// The lock file cannot be created or locked.
    pub fn wait(state: &Path, card: &CardUuid, slow: impl Fn() + Send) -> io::Result<Self> {
        let file = open(state, card)?;
        thread::scope(|scope| {
            let (waits, heard) = mpsc::channel::<()>();
            let tells = move || match heard.recv_timeout(SLOW) {
                Err(RecvTimeoutError::Timeout) => slow(),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
            };
            // Without a thread the wait is not reported.
            drop(thread::Builder::new().name("aliquot-turn".to_owned()).spawn_scoped(scope, tells));
            let locked = lock(file);
            drop(waits);
            locked.map(|file| Self { _file: file })
        })
    }
}

/// Waits for the lock, also across handled signals.
fn lock(mut file: File) -> io::Result<Flock<File>> {
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusive) {
            Ok(locked) => return Ok(locked),
            Err((file, Errno::EINTR)) => file,
            Err((_, errno)) => return Err(errno.into()),
        };
    }
}

fn open(state: &Path, card: &CardUuid) -> io::Result<File> {
    let path = path(state, card);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut options = OpenOptions::new();
    // A symbolic link would create a file elsewhere.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(OFlag::O_NOFOLLOW.bits() | OFlag::O_NONBLOCK.bits()).open(path)
}

fn path(state: &Path, card: &CardUuid) -> PathBuf {
    state.join("measuring").join(card.as_str())
}
