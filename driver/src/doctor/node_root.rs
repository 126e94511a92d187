//! Files of a node below the directory where its file system is seen.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, eaccess};

use crate::hardware::vendors::resolve_within;
use crate::selinux::{FileLabels as _, XattrLabels};

/// Longest file that is read.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// Most entries of a directory that are read.
const ENTRIES_MAX: usize = 4096;

/// The root of a node's file system.
pub(super) struct NodeRoot(PathBuf);

/// Something of the node, if it is there and may be read.
pub(super) enum NodeObject<T> {
    /// It is there.
    Here(T),
    /// It is not there.
    Absent,
    /// This user may not look, or the disk refuses.
    Unreadable(io::Error),
}

/// Owner and mode of a directory.
pub(super) struct DirectoryOwner {
    pub(super) user: u32,
    pub(super) mode: u32,
}

/// Group and mode of a file.
pub(super) struct FileMode {
    pub(super) group: u32,
    pub(super) mode: u32,
}

/// Room of a file system.
pub(super) struct DiskRoom {
    pub(super) bytes: u64,
    /// Files that can be made; `None`: the file system has no such limit.
    pub(super) inodes: Option<u64>,
    /// Whether programs and libraries run from there.
    pub(super) runs_programs: bool,
}

// === impl NodeObject ===

impl<T> NodeObject<T> {
    fn of(result: io::Result<T>) -> Self {
        match result {
            Ok(value) => Self::Here(value),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Self::Absent
            }
            Err(error) => Self::Unreadable(error),
        }
    }

    /// The value, if it was read.
    pub(super) fn here(self) -> Option<T> {
        match self {
            Self::Here(value) => Some(value),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }
}

// === impl NodeRoot ===

impl NodeRoot {
    pub(super) fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// Where this process finds a path of the node, links followed as on the node.
    pub(super) fn find(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(self.0.join(resolve_within(&self.0, path)?))
    }

    /// The text of a file.
    pub(super) fn text(&self, path: &Path) -> NodeObject<String> {
        let read = || {
            let mut text = String::new();
            fs::File::open(self.find(path)?)?.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
            Ok(text)
        };
        NodeObject::of(read())
    }

    /// Names in a directory, in their order.
    pub(super) fn names(&self, dir: &Path) -> NodeObject<Vec<String>> {
        let read = || {
            let mut names = Vec::new();
            for entry in fs::read_dir(self.find(dir)?)?.take(ENTRIES_MAX) {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(names)
        };
        NodeObject::of(read())
    }

    /// Owner and mode of a directory.
    pub(super) fn owner(&self, dir: &Path) -> NodeObject<DirectoryOwner> {
        let read = || {
            let found = fs::metadata(self.find(dir)?)?;
            if !found.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            Ok(DirectoryOwner { user: found.uid(), mode: found.mode() & 0o7777 })
        };
        NodeObject::of(read())
    }

    /// Room for programs of all users on the file system of a directory.
    pub(super) fn room(&self, dir: &Path) -> NodeObject<DiskRoom> {
        let read = || {
            let found = statvfs(&self.find(dir)?)?;
            let bytes = found.blocks_available().saturating_mul(found.fragment_size());
            let inodes = (found.files() > 0).then(|| found.files_available());
            let runs_programs = !found.flags().contains(FsFlags::ST_NOEXEC);
            Ok(DiskRoom { bytes, inodes, runs_programs })
        };
        NodeObject::of(read())
    }

    /// SELinux label of a file, if it has one.
    pub(super) fn label(&self, path: &Path) -> NodeObject<Option<String>> {
        NodeObject::of(self.find(path).and_then(|path| XattrLabels.read(&path)))
    }

    /// Whether this user has all these permissions for a file.
    pub(super) fn permits(&self, path: &Path, wanted: AccessFlags) -> NodeObject<bool> {
        NodeObject::of(self.find(path).and_then(|found| permitted(&found, wanted)))
    }

    /// Group and mode of a file.
    pub(super) fn mode(&self, path: &Path) -> NodeObject<FileMode> {
        let read = || {
            let found = fs::metadata(self.find(path)?)?;
            Ok(FileMode { group: found.gid(), mode: found.mode() & 0o777 })
        };
        NodeObject::of(read())
    }

    /// Whether something is there.
    pub(super) fn exists(&self, path: &Path) -> bool {
        self.find(path).is_ok()
    }

    /// Whether a process listens on a socket.
    pub(super) fn answers(&self, socket: &Path) -> NodeObject<bool> {
        let ask = || {
            let path = self.find(socket)?;
            if !fs::metadata(&path)?.file_type().is_socket() {
                return Ok(false);
            }
            match std::os::unix::net::UnixStream::connect(&path) {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
                Err(error) => Err(error),
            }
        };
        NodeObject::of(ask())
    }
}

/// Whether this user has all these permissions for a file that [`NodeRoot::find`] found.
pub(super) fn permitted(found: &Path, wanted: AccessFlags) -> io::Result<bool> {
    match eaccess(found, wanted) {
        Ok(()) => Ok(true),
        Err(Errno::EACCES | Errno::EROFS | Errno::EPERM) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
