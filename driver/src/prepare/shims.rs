//! Copies of the shim that are ready before a claim asks for one: a prepare moves a file instead of writing it.
//!
//! ```text
//!  thread: writes copies ahead ─▶ <state>/shims/<number> ─ rename ─▶ <state>/grants/<claim>/libaliquot.so
//! ```
//!
//! Each claim gets a file of its own, as [`super::preload`] promises: no copy is linked twice. A copy that is in place is read
//! again only if its inode has changed since: tenants cannot change that. The directory is made anew at each start, so a copy that a
//! kill or a power failure tore is never used.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use crate::region::holds;
use crate::selinux::Selinux;

/// Copies that are kept ready.
const READY: usize = 8;
/// Directory of copies below the state directory.
const DIRECTORY: &str = "shims";

/// The copies of a node. The thread that writes them ends with the value.
pub(crate) struct ShimCopies {
    shim: &'static [u8],
    ready: Arc<Mutex<Vec<PathBuf>>>,
    /// Files that were found to be whole, as they were then.
    whole: Mutex<BTreeMap<PathBuf, Inode>>,
    taken: Option<SyncSender<()>>,
    writer: Option<JoinHandle<()>>,
}

/// One state of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inode {
    number: u64,
    bytes: u64,
    changed: (i64, i64),
}

// === impl Inode ===

impl Inode {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        let changed = (found.ctime(), found.ctime_nsec());
        Some(Self { number: found.ino(), bytes: found.len(), changed })
    }
}

// === impl ShimCopies ===

impl ShimCopies {
    /// Begins to write copies of a shim below this state directory.
    ///
    /// # Errors
    /// The directory cannot be made, or there is no thread.
    pub(crate) fn start(state: &Path, shim: &'static [u8], selinux: &Selinux) -> io::Result<Self> {
        let dir = state.join(DIRECTORY);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&dir)?;
        // A rename keeps the label. Each prepare checks it in its new place.
        if let Err(error) = selinux.label_tree(&dir) {
            tracing::warn!("{error}");
        }
        let ready = Arc::new(Mutex::new(Vec::new()));
        let (taken, wanted) = sync_channel(1);
        let copies = Arc::clone(&ready);
        let write = move || keep_ready(&dir, shim, &copies, &wanted);
        let writer = thread::Builder::new().name("aliquot-shims".to_owned()).spawn(write)?;
        Ok(Self { shim, ready, whole: Mutex::default(), taken: Some(taken), writer: Some(writer) })
    }

    /// Puts a copy at this path, where no file is; whether one was ready.
    pub(super) fn place(&self, path: &Path) -> io::Result<bool> {
        let copy = self.ready.lock().pop();
        // A full channel has the thread at work already.
        if let Some(taken) = &self.taken {
            match taken.try_send(()) {
                Ok(()) | Err(_) => {}
            }
        }
        let Some(copy) = copy else { return Ok(false) };
        fs::rename(&copy, path)?;
        self.note_whole(path);
        Ok(true)
    }

    /// As [`holds`] of the shim; read only if the file has changed since.
    pub(super) fn holds(&self, path: &Path) -> bool {
        let now = Inode::of(path);
        if now.is_some() && self.whole.lock().get(path).copied() == now {
            return true;
        }
        let whole = holds(path, self.shim);
        if whole {
            self.note_whole(path);
        }
        whole
    }

    fn note_whole(&self, path: &Path) {
        if let Some(inode) = Inode::of(path) {
            self.whole.lock().insert(path.to_owned(), inode);
        }
    }

    /// Forgets a file that is removed.
    pub(super) fn forget(&self, path: &Path) {
        self.whole.lock().remove(path);
    }
}

impl Drop for ShimCopies {
    fn drop(&mut self) {
        self.taken = None;
        if let Some(writer) = self.writer.take() {
            // A writer that failed has said so.
            drop(writer.join());
        }
    }
}

/// Writes copies whenever some are taken, until the node is closed.
fn keep_ready(dir: &Path, shim: &[u8], ready: &Mutex<Vec<PathBuf>>, wanted: &Receiver<()>) {
    let mut next = 0_u64;
    loop {
        while ready.lock().len() < READY {
            let path = dir.join(next.to_string());
            if let Err(error) = write_copy(&path, shim) {
                tracing::warn!("{}: no copy of the shim is made ahead: {error}", path.display());
                return;
            }
            next += 1;
            ready.lock().push(path);
            if wanted.try_recv() == Err(TryRecvError::Disconnected) {
                return;
            }
        }
        if wanted.recv().is_err() {
            return;
        }
    }
}

fn write_copy(path: &Path, shim: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(path)?;
    file.write_all(shim)?;
    // The mode given at creation is cut by the umask.
    file.set_permissions(fs::Permissions::from_mode(0o444))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shim_copies_are_files_of_their_own_and_read_once() {
        let state = tempfile::tempdir().unwrap();
        let copies = ShimCopies::start(state.path(), b"shim", &Selinux::ignored()).unwrap();
        let paths: Vec<PathBuf> = (0..40).map(|n| state.path().join(format!("claim-{n}"))).collect();
        let mut inodes = std::collections::BTreeSet::new();
        for path in &paths {
            while !copies.place(path).unwrap() {
                thread::yield_now();
            }
            assert!(copies.holds(path) && inodes.insert(Inode::of(path).unwrap().number));
        }
        fs::remove_file(&paths[0]).unwrap();
        fs::write(&paths[0], "spoilt").unwrap();
        assert!(!copies.holds(&paths[0]));
        copies.forget(&paths[0]);
        assert_eq!(copies.whole.lock().len(), paths.len() - 1);
    }
}
