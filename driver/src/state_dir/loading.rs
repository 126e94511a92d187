//! Whether the loader of programs takes a library from a directory.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

/// Why programs cannot load a library of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadObstacle {
    /// Its path has a byte that the loader's lists take for the end of an entry, or for a variable.
    Separator(u8),
    /// It is mounted `noexec`.
    NoExec,
}

/// Why the libraries below an absolute path cannot be loaded by every program; `None`: they can.
///
/// # Errors
/// The file system of the path cannot be examined.
pub fn load_obstacle(path: &Path) -> io::Result<Option<LoadObstacle>> {
    let separates = |byte: &u8| byte.is_ascii_whitespace() || b":;$".contains(byte);
    if let Some(byte) = path.as_os_str().as_bytes().iter().copied().find(separates) {
        return Ok(Some(LoadObstacle::Separator(byte)));
    }
    let is_noexec = statvfs(path)?.flags().contains(FsFlags::ST_NOEXEC);
    Ok(is_noexec.then_some(LoadObstacle::NoExec))
}

impl fmt::Display for LoadObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Separator(byte) => write!(
                f,
                "found '{}', which the loader treats as a separator in LD_PRELOAD and LD_LIBRARY_PATH, so that the command would \
                 run without its limits; expected a path without spaces, ':', ';' and '$'",
                byte.escape_ascii()
            ),
            Self::NoExec => f.write_str(
                "found a file system mounted noexec, from which no program can load the shim, so that the command would run \
                 without its limits",
            ),
        }
    }
}
