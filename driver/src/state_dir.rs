//! The state directory of a node: checked before any file in it is opened, and its files opened without following links.
//!
//! A command of root meets directories that other users made. So a directory is refused if it belongs to another user, if
//! every user may write it, or if one of its entries is not what it should be:
//!
//! | entries | expected |
//! |---|---|
//! | `journal`, `lock`, `contexts`, `health`, `health.lock`, `limits.lock`, `xids` | files |
//! | `maintenance`, `policy`, `policy.refused` | files |
//! | `cards`, `cdi`, `governors`, `grants`, `hardware`, `lib`, `living`, `runs`, `shims` | directories |
//! | others | none, unless `journal` or `lock` is there: the directory is in use for something else |
//!
//! Files are then opened by the descriptor of their directory ([`mod@file`]), and locks are awaited for a bounded time
//! ([`wait`]). Programs load the shim from below the directory where its path and mount allow that ([`loading`]).

pub mod file;
pub mod loading;
pub mod wait;

pub(crate) use file::DIR_MODE;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, SFlag, fstatat};
use nix::unistd::geteuid;

/// The bit of a mode that lets every user write.
const WRITABLE_BY_OTHERS: u32 = 0o002;
/// The bit of a directory that is for all users, such as /tmp: each may remove its own entries alone.
const STICKY: u32 = 0o1000;

const FILES: [&str; 10] = [
    "journal",
    "lock",
    "contexts",
    "health",
    "health.lock",
    "limits.lock",
    "maintenance",
    "policy",
    "policy.refused",
    "xids",
];
const DIRECTORIES: [&str; 9] =
    ["cards", "cdi", "governors", "grants", "hardware", "lib", "living", "runs", "shims"];
/// Further entries that a directory may have before its first journal; a file system has the last at its root.
const OTHERS: [&str; 3] = ["npus", "simulated", "lost+found"];

/// What a node is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading, beside any other process.
    Read,
    /// To change it; waits while another command does, for at most [`wait::LONGEST`]; refused while the agent runs.
    Change,
    /// To change it; refused while another process does.
    ChangeNow,
    /// To change it; refused where another command does for longer than this, and while the agent runs.
    ChangeWithin(Duration),
    /// To own it while this process runs, as the node agent does; refused where another process holds it for longer than this.
    Own(Duration),
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// The disk refuses.
    #[error("cannot {verb} {}. {advice}", path.display())]
    Disk {
        /// Operation that failed.
        verb: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
        /// Remedy.
        advice: &'static str,
    },
    /// The directory or an entry belongs to another user.
    #[error(
        "state directory {}: {} belongs to user {found}; expected user {expected}, as which this command runs. Run it as \
         user {found}, or name another directory with --state", state.display(), path.display()
    )]
    OtherUser {
        /// The state directory.
        state: PathBuf,
        /// Itself or an entry.
        path: PathBuf,
        /// Owner.
        found: u32,
        /// User of this process.
        expected: u32,
    },
    /// Every user may write the directory.
    #[error(
        "state directory {0}: every user may write it (mode {found:04o}); expected its owner alone. {1}",
        state.display(), owner_alone(state, *found)
    )]
    Writable {
        /// The state directory.
        state: PathBuf,
        /// Its mode.
        found: u32,
    },
    /// The directory is in use for something else.
    #[error(
        "state directory {}: found `{found}` in it and no journal; expected an empty directory or one that Aliquot made. Name a \
         new one with --state", state.display()
    )]
    Foreign {
        /// The state directory.
        state: PathBuf,
        /// The first entry that is of no state.
        found: String,
    },
    /// Something else stands where a file or directory of the state belongs.
    #[error(
        "state directory {}: {} is {found}; expected {expected}, so that what is written there lies there: move it away and \
         start again", state.display(), path.display()
    )]
    Kind {
        /// The state directory.
        state: PathBuf,
        /// The entry.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// Makes the state directory, if only its last component is missing, and checks it: its absolute path. For [`Access::Read`] it must
/// exist.
///
/// # Errors
/// [`StateDirError`]; nothing in it was touched.
pub fn make(state: &Path, access: Access) -> Result<PathBuf, StateDirError> {
    if access != Access::Read {
        match DirBuilder::new().mode(DIR_MODE).create(state) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                let advice = "Make the directory above it, or name another one with --state";
                return Err(disk("make state directory", state, source, advice));
            }
            _ => {}
        }
    }
    must_exist(state)?;
    check(state)
}

/// Refuses a path that is no directory, or one that cannot be read.
///
/// # Errors
/// [`StateDirError::Disk`].
pub fn must_exist(state: &Path) -> Result<(), StateDirError> {
    let advice = "`aliquot prepare` and `aliquot run` make it; check the name given with --state";
    match fs::read_dir(state) {
        Ok(_) => Ok(()),
        Err(source) => Err(disk("read state directory", state, source, advice)),
    }
}

/// The absolute path of a state directory that is safe to use as this user.
///
/// # Errors
/// [`StateDirError`]; nothing in it was touched.
pub fn check(state: &Path) -> Result<PathBuf, StateDirError> {
    let advice = "Name another directory with --state";
    // Container runtimes resolve mounts from their own directory, so every path must be absolute.
    let state = fs::canonicalize(state).map_err(|e| disk("resolve state directory", state, e, advice))?;
    let failed = |source| disk("open state directory", &state, source, advice);
    let flags = (OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).bits();
    let dir = OpenOptions::new().read(true).custom_flags(flags).open(&state).map_err(failed)?;
    let found = dir.metadata().map_err(failed)?;
    let mode = found.mode() & 0o7777;
    let is_writable = mode & WRITABLE_BY_OTHERS != 0;
    let is_for_all = is_writable && mode & STICKY != 0;
    if !is_for_all {
        must_be_own(&state, &state, found.uid())?;
    }
    if is_writable {
        return Err(StateDirError::Writable { state, found: mode });
    }
    let files = FILES.map(|name| (name, SFlag::S_IFREG));
    let directories = DIRECTORIES.map(|name| (name, SFlag::S_IFDIR));
    for (name, expected) in files.into_iter().chain(directories) {
        let path = state.join(name);
        match fstatat(&dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(disk("examine", &path, errno.into(), advice)),
            Ok(entry) => {
                must_be(&state, &path, &entry, expected)?;
                must_be_own(&state, &path, entry.st_uid)?;
            }
        }
    }
    match foreign(&state).map_err(failed)? {
        Some(found) => Err(StateDirError::Foreign { state, found }),
        None => Ok(state),
    }
}

/// The first entry, by name, of a directory that was never a state directory.
fn foreign(state: &Path) -> io::Result<Option<String>> {
    let names = fs::read_dir(state)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: BTreeSet<String> = names.collect::<io::Result<_>>()?;
    if names.contains("journal") || names.contains("lock") {
        return Ok(None);
    }
    let is_known = |name: &str| {
        let name = name.strip_suffix(".next").unwrap_or(name);
        FILES.contains(&name) || DIRECTORIES.contains(&name) || OTHERS.contains(&name)
    };
    Ok(names.into_iter().find(|name| !is_known(name)))
}

/// What makes a directory its owner's alone. One that is for all users stays so.
fn owner_alone(state: &Path, mode: u32) -> String {
    let state = state.display();
    match mode & STICKY {
        0 => format!("Run `chmod o-w {state}`, or name another directory with --state"),
        _ => format!("It is for all users: name a directory below it with --state, such as {state}/aliquot"),
    }
}

fn must_be_own(state: &Path, path: &Path, found: u32) -> Result<(), StateDirError> {
    let expected = geteuid().as_raw();
    if found == expected {
        return Ok(());
    }
    Err(StateDirError::OtherUser { state: state.to_owned(), path: path.to_owned(), found, expected })
}

fn must_be(state: &Path, path: &Path, entry: &FileStat, expected: SFlag) -> Result<(), StateDirError> {
    let kind = SFlag::from_bits_truncate(entry.st_mode) & SFlag::S_IFMT;
    if kind == expected {
        return Ok(());
    }
    let found = match fs::read_link(path) {
        Ok(target) if kind == SFlag::S_IFLNK => format!("a symbolic link to {}", target.display()),
        _ => file::word(kind).to_owned(),
    };
    let (state, path) = (state.to_owned(), path.to_owned());
    Err(StateDirError::Kind { state, path, found, expected: file::word(expected) })
}

fn disk(verb: &'static str, path: &Path, source: io::Error, advice: &'static str) -> StateDirError {
    StateDirError::Disk { verb, path: path.to_owned(), source, advice }
}
