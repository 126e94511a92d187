//! The directory of claim files, `/var/run/cdi`: the only input and output of this crate.
//!
//! ```text
//!  write    temp file ─▶ bytes ─▶ fsync ─▶ rename over aliquot.dev-claim-<uid>.json ─▶ fsync directory
//!  remove   unlink ─▶ fsync directory
//! ```
//!
//! A runtime reads the directory at any time, so a claim file is there whole or not at all. Runtimes read names that
//! end in `.json` or `.yaml`; a temp file ends in `.tmp` and begins with a dot.
//!
//! Invariants:
//! - A failed write leaves the earlier file as it was, and no temp file.
//! - No file is read. The only files that are removed are those of a named claim, and temp files of killed writers.
//! - Every operation may be repeated.
//!
//! One agent works in a directory. A second one does no harm beyond a failed write: temp names are random.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::claim::ClaimSpec;
use crate::name::ClaimUid;

/// Where every runtime reads files that a running program made.
pub const DEFAULT_DIR: &str = "/var/run/cdi";
/// How the name of each of our files begins.
const PREFIX: &str = "aliquot.dev-claim-";
/// How the name of each of our files ends.
const SUFFIX: &str = ".json";
/// How the name of a file in the making ends.
const TEMP_SUFFIX: &str = ".tmp";
/// Mode of a written file: runtimes of other users read it, only the agent's user writes it.
const FILE_MODE: u32 = 0o644;
/// Mode of a directory that had to be made.
const DIR_MODE: u32 = 0o755;

/// What was being done to the disk when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskStep {
    /// Making the directory.
    MakeDirectory,
    /// Making the temp file.
    CreateTemp,
    /// Writing the bytes.
    WriteBytes,
    /// Bringing the bytes to the disk.
    SyncFile,
    /// Putting the temp file in its place.
    Rename,
    /// Removing a file.
    Unlink,
    /// Bringing the directory to the disk.
    SyncDirectory,
    /// Reading the directory.
    ReadDirectory,
}

impl std::fmt::Display for DiskStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::MakeDirectory => "making the directory",
            Self::CreateTemp => "creating a temp file",
            Self::WriteBytes => "writing the bytes",
            Self::SyncFile => "syncing the file",
            Self::Rename => "renaming the temp file",
            Self::Unlink => "removing the file",
            Self::SyncDirectory => "syncing the directory",
            Self::ReadDirectory => "reading the directory",
        })
    }
}

/// Why an operation on the directory failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A claim's file was not written; the earlier one, if any, is as it was.
    #[error("CDI file {} was not written: {step} failed; the earlier file is untouched; free space or mend the directory, then prepare again", path.display())]
    Write {
        /// The claim's file.
        path: PathBuf,
        /// Where it failed.
        step: DiskStep,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A write failed, and so did removing its temp file.
    #[error("CDI file {} was not written: {step} failed; temp file {} could not be removed ({cleanup}): remove it by hand", path.display(), temp.display())]
    LeftBehind {
        /// The claim's file.
        path: PathBuf,
        /// The temp file that is still there.
        temp: PathBuf,
        /// Where it failed.
        step: DiskStep,
        /// Why the temp file is still there.
        cleanup: io::Error,
        /// Why the write failed.
        #[source]
        source: io::Error,
    },
    /// Something else failed; it may be repeated.
    #[error("{}: {step} failed", path.display())]
    Disk {
        /// File or directory.
        path: PathBuf,
        /// What failed.
        step: DiskStep,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// What a removal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The file was there and is gone.
    Removed,
    /// There was no file.
    Absent,
}

/// A directory of CDI files.
#[derive(Debug, Clone)]
pub struct CdiDir {
    dir: PathBuf,
}

impl CdiDir {
    /// The directory at `dir`; it is made by the first write if it does not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory's path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of a claim's file, whether it exists or not.
    #[must_use]
    pub fn path(&self, claim: &ClaimUid) -> PathBuf {
        self.dir.join(format!("{PREFIX}{claim}{SUFFIX}"))
    }

    /// Writes a claim's file, in place of an earlier one. When this returns, the file survives a power failure.
    ///
    /// # Errors
    /// [`StoreError::Write`], [`StoreError::LeftBehind`]; [`StoreError::Disk`] when the file is in place and only
    /// its survival of a power failure is not certain.
    pub fn write(&self, claim_spec: &ClaimSpec) -> Result<(), StoreError> {
        let path = self.path(claim_spec.claim());
        let failed = |step, source| StoreError::Write { path: path.clone(), step, source };
        DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(&self.dir)
            .map_err(|source| failed(DiskStep::MakeDirectory, source))?;
        let (temp, file) =
            self.create_temp(claim_spec.claim()).map_err(|source| failed(DiskStep::CreateTemp, source))?;
        if let Err((step, source)) = fill_and_rename(file, claim_spec.text(), &temp, &path) {
            return Err(match fs::remove_file(&temp) {
                Ok(()) => failed(step, source),
                Err(cleanup) => StoreError::LeftBehind { path, temp, step, cleanup, source },
            });
        }
        self.sync_dir()
    }

    /// Removes a claim's file, whatever is in it. No file is no error.
    ///
    /// # Errors
    /// [`StoreError::Disk`].
    pub fn remove(&self, claim: &ClaimUid) -> Result<Removal, StoreError> {
        let removal = unlink(&self.path(claim))?;
        if removal == Removal::Removed {
            self.sync_dir()?;
        }
        Ok(removal)
    }

    /// Removes the temp files of interrupted writes, and returns their number. No write of this process may be under way. A missing
    /// directory has none.
    ///
    /// # Errors
    /// [`StoreError::Disk`]; then some may be removed already, and it may be repeated.
    pub fn remove_temps(&self) -> Result<usize, StoreError> {
        let disk =
            |source| StoreError::Disk { path: self.dir.clone(), step: DiskStep::ReadDirectory, source };
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries.map_err(disk)?,
        };
        let mut removed = 0;
        for entry in entries {
            let path = entry.map_err(disk)?.path();
            let is_temp = path.file_name().is_some_and(|name| is_temp(&name.to_string_lossy()));
            let is_file = || fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file());
            if is_temp && is_file() && unlink(&path)? == Removal::Removed {
                removed += 1;
            }
        }
        if removed > 0 {
            self.sync_dir()?;
        }
        Ok(removed)
    }

    /// A new file that no other writer has, named after the claim.
    fn create_temp(&self, claim: &ClaimUid) -> io::Result<(PathBuf, File)> {
        let random = RandomState::new().build_hasher().finish();
        let temp = self.dir.join(format!(".{PREFIX}{claim}{SUFFIX}.{random:016x}{TEMP_SUFFIX}"));
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&temp)?;
        Ok((temp, file))
    }

    fn sync_dir(&self) -> Result<(), StoreError> {
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(|source| StoreError::Disk {
            path: self.dir.clone(),
            step: DiskStep::SyncDirectory,
            source,
        })
    }
}

/// Fills the temp file and puts it in its place.
fn fill_and_rename(
    mut file: File,
    text: &str,
    temp: &Path,
    path: &Path,
) -> Result<(), (DiskStep, io::Error)> {
    file.write_all(text.as_bytes())
        // The mode given at creation is cut by the umask; readers of other users need it whole.
        .and_then(|()| file.set_permissions(Permissions::from_mode(FILE_MODE)))
        .map_err(|error| (DiskStep::WriteBytes, error))?;
    file.sync_all().map_err(|error| (DiskStep::SyncFile, error))?;
    fs::rename(temp, path).map_err(|error| (DiskStep::Rename, error))
}

fn unlink(path: &Path) -> Result<Removal, StoreError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(Removal::Removed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Removal::Absent),
        Err(source) => Err(StoreError::Disk { path: path.to_owned(), step: DiskStep::Unlink, source }),
    }
}

/// The claim that a file name stands for.
fn claim_of(name: &str) -> Option<ClaimUid> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Whether a name is one that [`CdiDir::create_temp`] gives.
fn is_temp(name: &str) -> bool {
    let middle = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(TEMP_SUFFIX));
    let parts = middle.and_then(|middle| middle.rsplit_once('.'));
    parts.is_some_and(|(file, random)| {
        claim_of(file).is_some() && random.len() == 16 && random.chars().all(|c| c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests;
