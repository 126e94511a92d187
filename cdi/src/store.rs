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
//! - Foreign files are never removed and never opened for writing. A file is ours if it is a regular file,
//!   its *name* is that of a claim, and its *content* is a spec of our kind for that claim.
//! - Every operation may be repeated.
//!
//! One agent works in a directory. A second one does no harm beyond a failed write: temp names are random, and
//! collecting takes away only whole temp files.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::claim::ClaimSpec;
use crate::name::{ClaimUid, Kind};
use crate::spec::{ParseSpecError, Spec};

/// Where every runtime reads files that a running program made.
pub const DEFAULT_DIR: &str = "/var/run/cdi";
/// How the name of each of our files begins.
const PREFIX: &str = "aliquot.dev-claim-";
/// How the name of each of our files ends.
const SUFFIX: &str = ".json";
/// How the name of a file in the making ends.
const TEMP_SUFFIX: &str = ".tmp";
/// Largest file that is read, in bytes. Ours have a few KiB; the bound keeps a foreign file from filling memory.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
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
    /// Reading a file.
    ReadFile,
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
            Self::ReadFile => "reading the file",
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
    /// The file of a claim cannot be taken for what we wrote.
    #[error("the file of claim {claim} is not usable")]
    NotOurs {
        /// The claim.
        claim: ClaimUid,
        /// What is wrong with it.
        #[source]
        source: ForeignFile,
    },
}

/// Why a file with our prefix is not taken for ours, and is left alone.
#[derive(Debug, Error)]
pub enum ForeignFile {
    /// After our prefix comes something else than a claim uid and `.json`.
    #[error("{}: the name is not {PREFIX}<claim uid>{SUFFIX}; kept", path.display())]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// A directory, link or other special thing.
    #[error("{}: not a regular file; kept", path.display())]
    NotAFile {
        /// The thing.
        path: PathBuf,
    },
    /// Too large to be ours.
    #[error("{}: {bytes} bytes, expected at most {FILE_BYTES_MAX}; kept", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// It cannot be read from the disk.
    #[error("{}: cannot be read; kept", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is not a CDI file that this version understands.
    #[error("{}: not a CDI file that this version understands; kept", path.display())]
    NotASpec {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: ParseSpecError,
    },
    /// Its kind belongs to another program.
    #[error("{}: kind is {found}, expected aliquot.dev/claim; kept", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// Kind found.
        found: Kind,
    },
    /// A device in it belongs to another claim than its name says.
    #[error("{}: device {device} is not one of claim {claim}; kept", path.display())]
    OtherClaim {
        /// The file.
        path: PathBuf,
        /// The claim by the file's name.
        claim: ClaimUid,
        /// The device.
        device: crate::name::DeviceName,
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

/// What is in the directory under our prefix.
#[derive(Debug, Default)]
pub struct Listing {
    /// Claims with a file of ours, in order.
    pub claims: Vec<ClaimUid>,
    /// What is left alone, and why, in the order of paths.
    pub kept: Vec<ForeignFile>,
    /// Temp files of interrupted writes, in the order of paths.
    temps: Vec<PathBuf>,
}

/// What a collection did.
#[derive(Debug, Default)]
pub struct Collection {
    /// Claims with their file removed.
    pub removed: Vec<ClaimUid>,
    /// Interrupted writes with their temp file removed.
    pub temps_removed: usize,
    /// What is left alone, and why.
    pub kept: Vec<ForeignFile>,
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

    /// The spec of a claim as it is on the disk; none where the claim has no file.
    ///
    /// # Errors
    /// [`StoreError::NotOurs`].
    pub fn read(&self, claim: &ClaimUid) -> Result<Option<Spec>, StoreError> {
        let path = self.path(claim);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => match read_ours(&path, claim) {
                Ok(spec) => Ok(Some(spec)),
                Err(source) => Err(StoreError::NotOurs { claim: claim.clone(), source }),
            },
        }
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

    /// What is in the directory under our prefix. A missing directory is an empty one. Files without our prefix are
    /// not looked at.
    ///
    /// # Errors
    /// [`StoreError::Disk`] when the directory cannot be read; a file that cannot be read is [`ForeignFile`].
    pub fn list(&self) -> Result<Listing, StoreError> {
        let disk =
            |source| StoreError::Disk { path: self.dir.clone(), step: DiskStep::ReadDirectory, source };
        let mut listing = Listing::default();
        let mut names = BTreeSet::new();
        match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listing),
            Err(error) => return Err(disk(error)),
            Ok(entries) => {
                for entry in entries {
                    names.insert(entry.map_err(disk)?.file_name());
                }
            }
        }
        for name in names {
            let path = self.dir.join(&name);
            let name = name.to_string_lossy();
            if is_temp(&name) {
                match fs::symlink_metadata(&path) {
                    Ok(metadata) if metadata.is_file() => listing.temps.push(path),
                    Ok(_) => listing.kept.push(ForeignFile::NotAFile { path }),
                    Err(source) => listing.kept.push(ForeignFile::Unreadable { path, source }),
                }
            } else if name.starts_with(PREFIX) {
                match claim_of(&name).ok_or_else(|| ForeignFile::Name { path: path.clone() }) {
                    Ok(claim) => match read_ours(&path, &claim) {
                        Ok(_) => listing.claims.push(claim),
                        Err(kept) => listing.kept.push(kept),
                    },
                    Err(kept) => listing.kept.push(kept),
                }
            }
        }
        Ok(listing)
    }

    /// Removes our files of claims that are not in `live`, and the temp files of interrupted writes. Foreign
    /// and unreadable files are kept and reported.
    ///
    /// No write of this process may be under way.
    ///
    /// # Errors
    /// [`StoreError::Disk`]; then some may be removed already, and it may be repeated.
    pub fn collect(&self, live: &BTreeSet<ClaimUid>) -> Result<Collection, StoreError> {
        let Listing { claims, kept, temps } = self.list()?;
        let mut collection = Collection { kept, ..Collection::default() };
        for claim in claims {
            if !live.contains(&claim) && unlink(&self.path(&claim))? == Removal::Removed {
                collection.removed.push(claim);
            }
        }
        for temp in temps {
            if unlink(&temp)? == Removal::Removed {
                collection.temps_removed += 1;
            }
        }
        if collection.removed.len() + collection.temps_removed > 0 {
            self.sync_dir()?;
        }
        Ok(collection)
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

/// Reads a file and makes sure that it is what we wrote for `claim`.
fn read_ours(path: &Path, claim: &ClaimUid) -> Result<Spec, ForeignFile> {
    let unreadable = |source| ForeignFile::Unreadable { path: path.to_owned(), source };
    let metadata = fs::symlink_metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(ForeignFile::NotAFile { path: path.to_owned() });
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(ForeignFile::TooLarge { path: path.to_owned(), bytes: metadata.len() });
    }
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(unreadable)?;
    let spec =
        Spec::parse(&text).map_err(|source| ForeignFile::NotASpec { path: path.to_owned(), source })?;
    if spec.kind != Kind::claim() {
        return Err(ForeignFile::Kind { path: path.to_owned(), found: spec.kind });
    }
    let start = format!("{claim}-");
    if let Some(device) = spec.devices.iter().find(|device| !device.name.as_str().starts_with(&start)) {
        let (path, claim, device) = (path.to_owned(), claim.clone(), device.name.clone());
        return Err(ForeignFile::OtherClaim { path, claim, device });
    }
    Ok(spec)
}

#[cfg(test)]
mod tests;
