//! The disk under our own files: atomic replacement, read-only records, removal; and the seam where a test stops it.
//!
//! ```text
//!   replace:  temp file ─▶ bytes ─▶ fsync ─▶ rename ─▶ fsync directory
//! ```
//!
//! A reader sees the old file or the new one, never half of one, whatever is killed and whenever. A failed replacement
//! takes its temp file away; a killed one leaves it, and the next replacement of the same file overwrites it.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode as FileMode;

use crate::state_dir::file::{make_dirs, parent};

/// End of the name of a file in the making.
pub const TEMP_SUFFIX: &str = ".next";

/// A place where the world can stop: before every effect on disk or hardware, and between the bytes of a write.
///
/// In service nothing ever stops here ([`NoFaults`]). A test stops at the n-th place and refuses every later effect, as
/// a kill would: nothing after it is done, undoing included.
pub trait Seam: Send + Sync {
    /// The world goes on, up to and including this effect.
    ///
    /// # Errors
    /// It stops before the effect.
    fn before(&self, effect: &str) -> io::Result<()>;

    /// How many of these bytes are written before the world stops; all of them, if it does not stop here.
    fn bytes(&self, effect: &str, length: usize) -> usize;
}

/// The seam of a program in service: nothing stops.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

/// The seam of a disk that nothing may change: to see whether anything would be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Still;

/// Whether a file may be written by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Ours alone to read and write.
    Private,
    /// Readable by every user, writable by none: what a tenant is shown.
    ReadOnly,
    /// Readable by every user, changed in place by us.
    Shown,
    /// Readable and writable by every user: what a tenant writes, as any user.
    Tenant,
}

/// What is left of what was written when the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PowerLoss {
    /// All of it.
    Through,
    /// Anything: no process that needs it survives.
    Until,
}

/// Our files, through the seam.
#[derive(Clone)]
pub struct Disk {
    seam: Arc<dyn Seam>,
    lasting: PowerLoss,
}

// === impl NoFaults ===

impl Seam for NoFaults {
    fn before(&self, _effect: &str) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self, _effect: &str, length: usize) -> usize {
        length
    }
}

// === impl Still ===

impl Seam for Still {
    fn before(&self, effect: &str) -> io::Result<()> {
        Err(io::Error::other(format!("not done: {effect}")))
    }

    fn bytes(&self, _effect: &str, _length: usize) -> usize {
        0
    }
}

// === impl Mode ===

impl Mode {
    const fn bits(self) -> u32 {
        match self {
            Self::Private => 0o600,
            Self::ReadOnly => 0o444,
            Self::Shown => 0o644,
            Self::Tenant => 0o666,
        }
    }
}

// === impl Disk ===

impl Default for Disk {
    fn default() -> Self {
        Self::new(Arc::new(NoFaults))
    }
}

impl Disk {
    /// A disk with this seam.
    #[must_use]
    pub fn new(seam: Arc<dyn Seam>) -> Self {
        Self { seam, lasting: PowerLoss::Through }
    }

    /// The same disk for files that are not needed after a power failure, and are checked when they are read. After a kill they are
    /// there whole or not at all; after a power failure they may be anything. No call waits for the disk.
    #[must_use]
    pub fn until_power_fails(&self) -> Self {
        Self { lasting: PowerLoss::Until, ..self.clone() }
    }

    /// Passes the seam before an effect that is not one of this disk's own.
    ///
    /// # Errors
    /// The world stops here.
    pub fn before(&self, effect: &str) -> io::Result<()> {
        self.seam.before(effect)
    }

    /// How many of these bytes are written before the world stops; all of them, if it does not stop here.
    #[must_use]
    pub fn bytes(&self, effect: &str, length: usize) -> usize {
        self.seam.bytes(effect, length)
    }

    /// Puts `bytes` in place of the file; when this returns, they survive a power failure.
    ///
    /// # Errors
    /// The disk refuses; the earlier file is as it was.
    pub fn replace(&self, path: &Path, bytes: &[u8], mode: Mode) -> io::Result<()> {
        self.replace_by(path, mode, |file| {
            let allowed = self.seam.bytes("write", bytes.len());
            file.write_all(bytes.get(..allowed).unwrap_or(bytes))?;
            if allowed < bytes.len() { Err(io::Error::other("stopped while writing")) } else { Ok(()) }
        })
    }

    /// As [`Disk::replace`], for a large file of which half is as good as nothing: its bytes are one effect.
    ///
    /// # Errors
    /// The disk refuses; the earlier file is as it was.
    pub fn place(&self, path: &Path, bytes: &[u8], mode: Mode) -> io::Result<()> {
        self.replace_by(path, mode, |file| {
            self.seam.before("write")?;
            file.write_all(bytes)
        })
    }

    /// As [`Disk::place`], with a hole after the bytes, up to this length. The disk may have no room for the hole later.
    ///
    /// # Errors
    /// The disk refuses; the earlier file is as it was.
    pub fn place_with_hole(&self, path: &Path, bytes: &[u8], length: u64, mode: Mode) -> io::Result<()> {
        self.replace_by(path, mode, |file| {
            self.seam.before("write")?;
            file.write_all(bytes)?;
            file.set_len(length)
        })
    }

    fn replace_by(
        &self,
        path: &Path,
        mode: Mode,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let temp = temp_of(path);
        // Everything happens in this directory, whatever takes its name meanwhile.
        let (dir, name) = parent(path)?;
        let temp_name = temp.file_name().unwrap_or_default();
        match self.fill(&dir, &temp, mode, write).and_then(|()| {
            self.seam.before("rename")?;
            Ok(renameat(&dir, temp_name, &dir, name)?)
        }) {
            Ok(()) => self.sync(&dir),
            Err(error) => match self.remove_file(&temp) {
                // The first failure is the news; a temp file that stays is overwritten by the next replacement.
                Ok(()) | Err(_) => Err(error),
            },
        }
    }

    fn fill(
        &self,
        dir: &File,
        temp: &Path,
        mode: Mode,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        // A read-only temp file of a killed writer could be opened for writing by root alone.
        self.remove_file(temp)?;
        self.seam.before("create")?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let bits = FileMode::from_bits_truncate(mode.bits());
        let mut file = File::from(openat(dir, temp.file_name().unwrap_or_default(), flags, bits)?);
        write(&mut file)?;
        // The mode given at creation is cut by the umask.
        file.set_permissions(Permissions::from_mode(mode.bits()))?;
        if self.lasting == PowerLoss::Until {
            // A file system over a network says only now that there is no room.
            return Ok(nix::unistd::close(file)?);
        }
        self.seam.before("sync")?;
        file.sync_all()
    }

    /// Makes a directory and those above it; one that is there is no error.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn make_dir(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        self.seam.before("make directory")?;
        make_dirs(path)
    }

    /// Removes a file; one that is not there is no error.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path).is_err() {
            return Ok(());
        }
        self.seam.before("remove file")?;
        absent_is_fine(fs::remove_file(path))
    }

    /// Removes a directory with everything in it; one that is not there is no error.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn remove_tree(&self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path).is_err() {
            return Ok(());
        }
        self.seam.before("remove directory")?;
        absent_is_fine(fs::remove_dir_all(path))
    }

    /// Takes away what a killed replacement of the file left.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn remove_temp(&self, path: &Path) -> io::Result<()> {
        self.remove_file(&temp_of(path))
    }

    fn sync(&self, dir: &File) -> io::Result<()> {
        if self.lasting == PowerLoss::Until {
            return Ok(());
        }
        self.seam.before("sync directory")?;
        dir.sync_all()
    }
}

/// The temp file of a file.
fn temp_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(TEMP_SUFFIX);
    path.with_file_name(name)
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_replacement_leaves_the_earlier_file_and_no_temp() {
        struct Full;
        impl Seam for Full {
            fn before(&self, effect: &str) -> io::Result<()> {
                if effect == "sync" { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
            }
            fn bytes(&self, _effect: &str, length: usize) -> usize {
                length
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        Disk::default().replace(&path, b"old", Mode::ReadOnly).unwrap();
        Disk::default().replace(&path, b"older", Mode::ReadOnly).unwrap();
        let error = Disk::new(Arc::new(Full)).replace(&path, b"new", Mode::Private).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"older");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o444);
    }
}
