//! Files that a tenant may have changed, opened without blocking and without following links.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

/// Name of the limits file in the directory of a share.
pub const LIMITS: &str = "limits";

/// Opens a file to change it, without blocking: its tenant may have a lease on it, and the node is locked meanwhile.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(|error| {
        match error.kind() {
            io::ErrorKind::WouldBlock => {
                let words =
                    "a process of its tenant has a lease on it, which the kernel ends within a minute";
                io::Error::new(io::ErrorKind::WouldBlock, format!("{}: {words}", path.display()))
            }
            _ => error,
        }
    })
}

/// Opens a file to read it. Its directory may be writable by others: a symbolic link is not followed, and a pipe does not
/// block.
pub(crate) fn open_to_look(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "no plain file"))
}

pub(super) fn bytes_of(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

pub(super) fn fault(fault: aliquot_abi::view::RegionFault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault.to_string())
}
