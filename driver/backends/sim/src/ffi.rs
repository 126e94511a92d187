//! The simulated hardware itself: which partitions exist, and how often it was called.
//!
//! Real backends keep the vendor's C library behind the file of this name; here the "hardware" is one text file in a
//! state directory, so that several processes see the same cards, as they would through a driver. It is replaced
//! by rename under a lock, so a killed process leaves the old or the new state, never half of one. It is not synced:
//! simulated hardware promises to outlive processes, not power cuts.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use aliquot_core::ports::BackendError;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

/// Name of the state in its directory.
const STATE_FILE: &str = "hardware.toml";
/// Name of the lock beside it.
const LOCK_FILE: &str = "hardware.lock";
/// Longest state that is read: thousands of partitions; stops a wrong file from filling the memory.
const STATE_BYTES_MAX: u64 = 4 << 20;
/// Time between two attempts to get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Attempts, 30 s of them: a call holds the lock for milliseconds.
const LOCK_TRIES: u32 = 6000;

/// Everything that the hardware remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// Partitions ever made on a card, by its UUID: gives each its own identity.
    #[serde(default)]
    pub(crate) made: BTreeMap<String, u64>,
    /// Calls so far, by kind.
    #[serde(default)]
    pub(crate) calls: BTreeMap<String, u64>,
    /// Cards that fail, by UUID, with the reason.
    #[serde(default)]
    pub(crate) unhealthy: BTreeMap<String, String>,
    /// Partitions that exist.
    #[serde(default, rename = "partition")]
    pub(crate) partitions: Vec<Entry>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) card: String,
    pub(crate) template: String,
    pub(crate) placement: String,
    pub(crate) id: u32,
    pub(crate) uuid: String,
}

/// The storage of the state.
#[derive(Debug)]
pub(crate) enum Hardware {
    /// In this process alone.
    Memory(Mutex<State>),
    /// In a directory, for every process; threads of one process take turns before they wait for the file's lock.
    Directory(PathBuf, Mutex<()>),
}

/// Whether a call changed the state.
pub(crate) enum StateChange<T> {
    /// It is to be kept.
    Yes(T),
    /// It is as it was.
    No(T),
}

// === impl Hardware ===

impl Hardware {
    /// Hardware in a directory, which is made if only its last component is missing; a first visit finds `initial`.
    pub(crate) fn open(dir: &Path, initial: &State) -> Result<Self, BackendError> {
        // No other user may write it, whatever the umask.
        match DirBuilder::new().mode(0o755).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make", dir, e)),
            _ => {}
        }
        let hardware = Self::Directory(dir.to_owned(), Mutex::default());
        let _lock = lock(dir)?;
        let path = dir.join(STATE_FILE);
        if !path.exists() {
            store(&path, initial)?;
        }
        Ok(hardware)
    }

    /// A number that the state's text determines. It is read whole and without a lock: a state is replaced by rename, and two
    /// may have the same size and time.
    pub(crate) fn digest(&self) -> Option<u64> {
        match self {
            Self::Memory(_) => None,
            Self::Directory(dir, _) => {
                let mut file = File::open(dir.join(STATE_FILE)).ok()?.take(STATE_BYTES_MAX);
                let mut text = Vec::new();
                file.read_to_end(&mut text).ok().map(|_| fnv(&text))
            }
        }
    }

    /// Runs one call on the state, alone; the new state is kept if the call says so, even when it fails.
    pub(crate) fn with<T>(
        &self,
        call: impl FnOnce(&mut State) -> StateChange<Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        match self {
            Self::Memory(state) => match call(&mut state.lock().unwrap_or_else(PoisonError::into_inner)) {
                StateChange::Yes(answer) | StateChange::No(answer) => answer,
            },
            Self::Directory(dir, turn) => {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                let _lock = lock(dir)?;
                let path = dir.join(STATE_FILE);
                let mut state = load(&path)?;
                match call(&mut state) {
                    StateChange::Yes(answer) => {
                        store(&path, &state)?;
                        answer
                    }
                    StateChange::No(answer) => answer,
                }
            }
        }
    }
}

/// 64-bit FNV-1a.
fn fnv(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Keeps every other process out until the file is dropped.
fn lock(dir: &Path) -> Result<File, BackendError> {
    let path = dir.join(LOCK_FILE);
    // Reading is enough for a lock, and all that a disk mounted for reading allows.
    let file = match options().read(true).open(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            options().create(true).write(true).mode(0o600).open(&path)
        }
        opened => opened,
    };
    let file = file.and_then(private).map_err(|e| failed("open", &path, e))?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(e)) => return Err(failed("lock", &path, e)),
        }
    }
    let seconds = (LOCK_PAUSE * LOCK_TRIES).as_secs();
    let held = format!("another process holds it for more than {seconds} s; end that process and try again");
    Err(failed("lock", &path, io::Error::new(io::ErrorKind::WouldBlock, held)))
}

/// Neither a link is followed nor a pipe waited for.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    options
}

/// A lock file that another user may open could be held by that user for ever.
fn private(file: File) -> io::Result<File> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "expected a plain file; move it away"));
    }
    if found.mode() & 0o077 != 0 {
        match file.set_permissions(Permissions::from_mode(0o600)) {
            // A disk mounted for reading keeps the mode of its files.
            Ok(()) | Err(_) => {}
        }
    }
    Ok(file)
}

fn load(path: &Path) -> Result<State, BackendError> {
    let length = fs::metadata(path).map_err(|e| failed("read", path, e))?.len();
    if length > STATE_BYTES_MAX {
        let e = io::Error::other(format!("{length} bytes, at most {STATE_BYTES_MAX} are expected"));
        return Err(failed("read", path, e));
    }
    let text = fs::read_to_string(path).map_err(|e| failed("read", path, e))?;
    toml::from_str(&text).map_err(|e| BackendError::Unreachable {
        what: format!("simulated hardware: {} is damaged; it is kept as it is", path.display()),
        source: Box::new(e),
    })
}

fn store(path: &Path, state: &State) -> Result<(), BackendError> {
    let text = toml::to_string(state).map_err(|e| failed("write", path, io::Error::other(e)))?;
    let next = path.with_extension("toml.next");
    let file = options().create(true).write(true).truncate(true).mode(0o644).open(&next);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| failed("write", &next, e))?;
    fs::rename(&next, path).map_err(|e| failed("replace", path, e))
}

fn failed(verb: &str, path: &Path, source: io::Error) -> BackendError {
    let remedy = match source.kind() {
        io::ErrorKind::StorageFull => "; free space on its file system, and try again",
        _ => "",
    };
    BackendError::Unreachable {
        what: format!("simulated hardware: cannot {verb} {}{remedy}", path.display()),
        source: Box::new(source),
    }
}
