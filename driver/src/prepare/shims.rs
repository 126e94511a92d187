//! The shim of a node, one file for the containers of all claims, which the agent keeps open.
//!
//! ```text
//!  <state>/shims/<version>-<content>/libaliquot.so ─▶ every container of a share with limits
//!        ▲ open for reading, as long as the agent runs
//! ```
//!
//! Root in a container without a user namespace may take a lease on a file that it has mounted (`F_SETLEASE`), if the file is its
//! own or it becomes the file's owner. The programs of all other tenants would then wait 45 s for the shim, again and again.
//!
//! | answer | holds |
//! |---|---|
//! | the kernel refuses a write lease while any other descriptor or mapping of the file is there: the agent has a descriptor | while the agent runs, and while any program has the shim loaded |
//! | the file belongs to [`OWNER`] | where containers lack `CAP_SETUID`, also without the agent |
//! | a file with a lease gets a successor, and the kernel ends the lease for the agent | from the agent's start on, and 45 s later for containers of before |
//!
//! A read lease delays only programs that write the file, and there are none. A process without an agent's lifetime, such as
//! `aliquot prepare`, gives each claim a copy of its own instead (`super::preload`). Files of earlier versions stay: containers that
//! were started with them have them mounted.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::libc;
use parking_lot::Mutex;

use crate::disk::{Disk, Mode};
use crate::region::{WriteOutcome, holds, open_to_look};
use crate::selinux::Selinux;

/// Directory of all versions below the state directory.
const DIRECTORY: &str = "shims";
/// Owner of the files: beyond the user ids of Pods (at most 2³¹ − 1) and of the first 61,034 Pods with a user namespace.
const OWNER: u32 = 4_000_000_000;

/// The shim's file.
pub(crate) struct SharedShim {
    bytes: &'static [u8],
    dir: PathBuf,
    path: PathBuf,
    /// Whether this process keeps the files open for as long as containers are started.
    is_held: AtomicBool,
    /// The file when it was last found whole.
    whole: Mutex<Option<Inode>>,
    open: OpenFiles,
}

/// Files that are kept open, by inode.
type OpenFiles = Arc<Mutex<BTreeMap<u64, File>>>;

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

// === impl SharedShim ===

impl SharedShim {
    /// Of a state directory; nothing is written yet.
    pub(crate) fn of(state: &Path, bytes: &'static [u8]) -> Self {
        let dir = state.join(DIRECTORY);
        let version = format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), fingerprint(bytes));
        let path = dir.join(version).join(aliquot_libraries::SHIM_NAME);
        Self {
            bytes,
            dir,
            path,
            is_held: AtomicBool::new(false),
            whole: Mutex::default(),
            open: Arc::default(),
        }
    }

    /// Keeps the files of all versions open from now on, and puts this version's in place.
    ///
    /// # Errors
    /// The directory cannot be read or written. The file is then placed by the first claim that needs it.
    pub(crate) fn hold(&self, disk: &Disk, selinux: &Selinux) -> io::Result<()> {
        if self.is_held.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            match path.is_dir() {
                true => self.keep_open(&path.join(aliquot_libraries::SHIM_NAME)),
                // A copy that an agent of an earlier version made ahead; one that stays takes room alone.
                false => {
                    if let Err(error) = fs::remove_file(&path) {
                        tracing::warn!("{} is not needed, and cannot be removed: {error}", path.display());
                    }
                }
            }
        }
        self.ensure(disk)?;
        if let Err(error) = selinux.label_tree(&self.dir) {
            tracing::warn!("{error}");
        }
        Ok(())
    }

    /// Whether this process keeps the files open.
    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    pub(super) const fn bytes(&self) -> &'static [u8] {
        self.bytes
    }

    /// Directory of all versions.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the file in place, unless it is there. Read again only if its inode has changed since: tenants cannot change that.
    pub(super) fn ensure(&self, disk: &Disk) -> io::Result<WriteOutcome> {
        let mut whole = self.whole.lock();
        let now = Inode::of(&self.path);
        if now.is_some() && *whole == now {
            return Ok(WriteOutcome::Nothing);
        }
        let mut outcome = WriteOutcome::Nothing;
        if !holds(&self.path, self.bytes) {
            disk.make_dir(self.path.parent().unwrap_or(&self.dir))?;
            // Containers of before may have it mounted.
            self.keep_open(&self.path);
            disk.place(&self.path, self.bytes, Mode::ReadOnly)?;
            outcome = WriteOutcome::Something;
        }
        let file = open_to_look(&self.path)?;
        if file.metadata()?.uid() != OWNER {
            // Only root gives files away. The other answers hold without it.
            match fchown(&file, Some(OWNER), None) {
                Ok(()) | Err(_) => {}
            }
        }
        keep(&self.open, file)?;
        *whole = Inode::of(&self.path);
        Ok(outcome)
    }

    /// Keeps a file open that may be absent. One with a lease is opened by a thread, once the kernel has ended the lease.
    fn keep_open(&self, path: &Path) {
        let opened = match open_to_look(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.outlast_lease(path),
            file => file.and_then(|file| keep(&self.open, file)),
        };
        if let Err(error) = opened {
            tracing::warn!(
                "{}: it is not kept open, so a tenant may take a lease on it: {error}",
                path.display()
            );
        }
    }

    fn outlast_lease(&self, path: &Path) -> io::Result<()> {
        tracing::warn!(
            "{}: a process of a tenant has a lease on it, which the kernel ends within a minute",
            path.display()
        );
        // By its inode: the name may soon be its successor's.
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let inode = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let open = Arc::clone(&self.open);
        let waits = move || {
            let opened = File::open(format!("/proc/self/fd/{}", inode.as_raw_fd()));
            if let Err(error) = opened.and_then(|file| keep(&open, file)) {
                tracing::warn!("a file with a lease is not kept open: {error}");
            }
        };
        thread::Builder::new().name("aliquot-lease".to_owned()).spawn(waits).map(drop)
    }
}

/// FNV-1a: tells versions apart that share a number. Whether a file is whole is decided by its bytes.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn keep(open: &OpenFiles, file: File) -> io::Result<()> {
    let inode = file.metadata()?.ino();
    open.lock().entry(inode).or_insert(file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(state: &Path) -> SharedShim {
        SharedShim::of(state, b"shim")
    }

    #[test]
    fn shim_is_placed_once_and_kept_open_across_versions() {
        let state = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let other = SharedShim::of(state.path(), b"another version");
        other.hold(&disk, &Selinux::ignored()).unwrap();
        drop(other);
        fs::write(state.path().join("shims/7"), "a copy made ahead").unwrap();
        let shim = shared(state.path());
        shim.hold(&disk, &Selinux::ignored()).unwrap();
        assert_eq!((shim.open.lock().len(), fs::read_dir(shim.dir()).unwrap().count()), (2, 2));
        let before = Inode::of(shim.path()).unwrap();
        assert_eq!(shim.ensure(&disk).unwrap(), WriteOutcome::Nothing);
        assert_eq!(Inode::of(shim.path()), Some(before));
        fs::remove_file(shim.path()).unwrap();
        fs::write(shim.path(), "spoilt").unwrap();
        assert_eq!(shim.ensure(&disk).unwrap(), WriteOutcome::Something);
        assert_eq!(fs::read(shim.path()).unwrap(), b"shim");
        let kept: Vec<u64> = shim.open.lock().keys().copied().collect();
        assert!(kept.contains(&before.number) && kept.contains(&Inode::of(shim.path()).unwrap().number));
    }
}
