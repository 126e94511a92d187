//! Whose turn it is to measure on a card: a lock that goes with the process that has it.
//!
//! The locks of a state directory have an order, so that nobody waits in a circle:
//!
//! ```text
//!   runs/<claim>  ─▶  measuring/<card>  ─▶  lock (the node)  ─▶  limits.lock
//! ```
//!
//! Who has one may wait for those behind it alone. A run's own record is locked by nobody else for long, and governors take
//! theirs without waiting.

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

/// Who waits no longer has nothing to tell of.
const SLOW: Duration = Duration::from_secs(1);

/// The turn to measure on a card, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _file: Flock<File>,
}

// === impl Turn ===

impl Turn {
    /// Takes it where nobody has it; for who has the node open.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn now(state: &Path, card: &CardUuid) -> io::Result<Option<Self>> {
        match Flock::lock(open(state, card)?, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Self { _file: file })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Waits for it; where that takes long, `slow` is told. Not for who has the node open: who has the turn waits for that.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn wait(state: &Path, card: &CardUuid, slow: impl Fn() + Send) -> io::Result<Self> {
        let file = open(state, card)?;
        thread::scope(|scope| {
            let (waits, heard) = mpsc::channel::<()>();
            let tells = move || match heard.recv_timeout(SLOW) {
                Err(RecvTimeoutError::Timeout) => slow(),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
            };
            // Where no thread can be had nobody is told.
            drop(thread::Builder::new().name("aliquot-turn".to_owned()).spawn_scoped(scope, tells));
            let locked = lock(file);
            drop(waits);
            locked.map(|file| Self { _file: file })
        })
    }
}

/// A signal that is handled is no reason to stop waiting.
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
    // A link there would have a file of somebody else made.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(OFlag::O_NOFOLLOW.bits() | OFlag::O_NONBLOCK.bits()).open(path)
}

fn path(state: &Path, card: &CardUuid) -> PathBuf {
    state.join("measuring").join(card.as_str())
}
