//! The state directory and its lock: what lies in it lies there and is ours, and one process at a time makes changes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use aliquot_core::id::NodeName;
use aliquot_core::offer::{PoolKind, pool_name};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::{Access, OpenError};
use crate::checkpoint::Journal;

/// The state directory, made if only its last component is missing.
pub(super) fn make_state(state: &Path) -> Result<PathBuf, OpenError> {
    let failed =
        |verb, source| OpenError::State { state: state.to_owned(), verb, path: state.to_owned(), source };
    match fs::create_dir(state) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make", e)),
        _ => {}
    }
    // Container runtimes resolve mounts from their own directory, so every path must be absolute.
    fs::canonicalize(state).map_err(|e| failed("resolve", e))
}

/// Refuses what stands where a directory of the state belongs and is none; what is not there yet will be one. A link is
/// not followed: grants, modes and CDI files would land wherever it leads.
pub(super) fn must_be_directory(state: &Path, path: &Path) -> Result<PathBuf, OpenError> {
    let refused = |found| OpenError::NotADirectory { state: state.to_owned(), path: path.to_owned(), found };
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => Ok(path.to_owned()),
        Ok(there) if there.is_symlink() => Err(refused(match fs::read_link(path) {
            Ok(target) => format!("a symbolic link to {}", target.display()),
            Err(_) => "a symbolic link".to_owned(),
        })),
        Ok(there) if there.is_file() => Err(refused("a file".to_owned())),
        Ok(_) => Err(refused("neither a directory nor a file".to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        Err(source) => {
            Err(OpenError::State { state: state.to_owned(), verb: "look at", path: path.to_owned(), source })
        }
    }
}

/// Refuses promises of another node: its claims would be made again on cards that never had them. The pool of a device
/// begins with the name of its node.
pub(super) fn must_be_own(state: &Path, node: &NodeName, journal: &Journal) -> Result<(), OpenError> {
    let of_node =
        |pool: &str| pool.rsplit_once('/').map_or_else(|| pool.to_owned(), |(node, _)| node.to_owned());
    let own = [PoolKind::Plain, PoolKind::Dynamic].map(|kind| of_node(&pool_name(node, kind)));
    for record in journal.claims.values() {
        let mut pools = record.plan.grants.iter().map(|grant| of_node(&grant.device.pool));
        if let Some(found) = pools.find(|pool| !own.contains(pool)) {
            let (state, claim, expected) = (state.to_owned(), record.plan.name.clone(), node.clone());
            return Err(OpenError::OtherNode { state, claim, found, expected });
        }
    }
    Ok(())
}

/// Keeps other processes from making changes, until the file is dropped.
pub(super) fn lock(state: &Path, access: Access) -> Result<Option<Flock<File>>, OpenError> {
    let take: &dyn Fn(File) -> Result<Flock<File>, (File, Errno)> = match access {
        Access::Read => return Ok(None),
        Access::Change => &|file| Flock::lock(file, FlockArg::LockExclusive),
        Access::ChangeNow => &|file| Flock::lock(file, FlockArg::LockExclusiveNonblock),
        Access::ChangeWithin(limit) => &move |file| within(file, limit),
    };
    let path = state.join("lock");
    let failed =
        |verb, source| OpenError::State { state: state.to_owned(), verb, path: path.clone(), source };
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut lock = match take(file.map_err(|e| failed("open", e))?) {
        Ok(lock) => lock,
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut holder = String::new();
            match Read::by_ref(&mut file).take(20).read_to_string(&mut holder) {
                Ok(_) => {}
                Err(e) => return Err(failed("read", e)),
            }
            // Who has just got the lock has not written its number yet.
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                number => format!("process {number}"),
            };
            return Err(OpenError::Locked { state: state.to_owned(), holder });
        }
        Err((_, errno)) => return Err(failed("lock", errno.into())),
    };
    let own = format!("{}\n", std::process::id());
    let written = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(own.as_bytes()));
    match written {
        // The lock holds without its note for people; a full disk must not keep anybody from releasing.
        Ok(()) | Err(_) => Ok(Some(lock)),
    }
}

/// Waits for the lock in the order in which others do, and no longer than this.
fn within(file: File, limit: Duration) -> Result<Flock<File>, (File, Errno)> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Err((file, Errno::EWOULDBLOCK)) => file,
        ended => return ended,
    };
    let Ok(again) = file.try_clone() else { return Err((file, Errno::EWOULDBLOCK)) };
    let (says, heard) = mpsc::channel();
    // Who gets it when nobody listens any more gives it back at once.
    let waits = move || drop(says.send(Flock::lock(again, FlockArg::LockExclusive)));
    match thread::Builder::new().name("aliquot-lock".to_owned()).spawn(waits) {
        Ok(_) => heard.recv_timeout(limit).unwrap_or(Err((file, Errno::EWOULDBLOCK))),
        Err(_) => Err((file, Errno::EWOULDBLOCK)),
    }
}
