//! Files of a state directory, opened by the descriptor of the directory that holds them. No link is followed, a pipe is not
//! waited for, and only a plain file is returned.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::geteuid;

/// Mode of the directories of a state, whatever the umask: no other user may write them.
pub(crate) const DIR_MODE: u32 = 0o755;

/// Mode of a lock file: another user that opens it could hold the lock for ever.
const LOCK_MODE: u32 = 0o600;

/// Opens a file for reading.
///
/// # Errors
/// It is absent, not a plain file, or cannot be opened.
pub fn to_read(path: &Path) -> io::Result<File> {
    open(path, OFlag::O_RDONLY)
}

/// Opens an existing file for reading and writing.
///
/// # Errors
/// As for [`to_read`].
pub fn to_change(path: &Path) -> io::Result<File> {
    open(path, OFlag::O_RDWR)
}

/// Opens a lock file, which is made if it is absent. Only its owner may open it afterwards.
///
/// # Errors
/// As for [`to_read`], or the file belongs to another user or has a second name.
pub fn to_lock(path: &Path) -> io::Result<File> {
    let file = open(path, OFlag::O_RDWR | OFlag::O_CREAT)?;
    let found = file.metadata()?;
    let own = geteuid().as_raw();
    if found.uid() != own {
        let text = format!("it belongs to user {}; expected user {own}", found.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if found.nlink() > 1 {
        return Err(invalid(
            "found a file with a second name (a hard link), expected a file of its own; remove it",
        ));
    }
    if found.mode() & 0o7777 != LOCK_MODE {
        file.set_permissions(Permissions::from_mode(LOCK_MODE))?;
    }
    Ok(file)
}

/// Makes a directory and those above it where they are absent; no other user may write them, whatever the umask.
///
/// # Errors
/// The disk refuses.
pub fn make_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
}

/// Opens the directory that holds a file, and names the file in it. A link in place of the directory is refused.
pub(crate) fn parent(path: &Path) -> io::Result<(File, &OsStr)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(invalid("expected the path of a file in a directory"));
    };
    let flags = (OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).bits();
    Ok((OpenOptions::new().read(true).custom_flags(flags).open(parent)?, name))
}

/// The kind of a file, in words.
pub(crate) fn word(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFREG => "a file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFIFO => "a named pipe",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    }
}

fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    let (dir, name) = parent(path)?;
    // Without O_NONBLOCK a pipe would be waited for.
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let opened = openat(&dir, name, flags, Mode::from_bits_truncate(LOCK_MODE));
    let file = opened.map_err(|errno| match errno {
        Errno::ELOOP => not_a_file(SFlag::S_IFLNK),
        Errno::ENXIO => not_a_file(SFlag::S_IFIFO),
        Errno::EISDIR => not_a_file(SFlag::S_IFDIR),
        errno => errno.into(),
    })?;
    let kind = SFlag::from_bits_truncate(fstat(&file)?.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFREG { Ok(File::from(file)) } else { Err(not_a_file(kind)) }
}

fn not_a_file(found: SFlag) -> io::Error {
    invalid(&format!("found {}, expected a plain file; move it away", word(found)))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}
