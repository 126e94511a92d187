//! Other drivers for Kubernetes that hand out the same cards, by their sockets in the kubelet's directories.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::vendors::on_host;

/// Most entries of a directory that are read.
const ENTRIES_MAX: usize = 4096;
/// Drivers for cards of several vendors, beside the vendors' own: directory, a word in the socket's name, name for people.
const OTHERS: [(&str, &str, &str); 3] = [
    ("device-plugins", "hami", "HAMi's device plugin"),
    ("device-plugins", "vgpu", "a vGPU device plugin"),
    ("plugins_registry", "hami-core-gpu.project-hami.io", "HAMi's DRA driver"),
];

/// A driver that hands out cards of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardOwner {
    name: &'static str,
    /// Its socket below the kubelet's directory.
    socket: String,
}

/// A directory of the kubelet that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{dir}: {source}")]
pub(crate) struct UnreadableDirectory {
    dir: &'static str,
    source: io::Error,
}

/// The other drivers of a node. `find` finds a directory below the kubelet's. A socket on which no process listens is none: it
/// is left of a driver that has ended.
///
/// # Errors
/// A directory cannot be read; one that is absent has no socket.
pub(crate) fn other_owners(
    find: impl Fn(&str) -> io::Result<PathBuf>,
) -> Result<Vec<CardOwner>, UnreadableDirectory> {
    let mut owners = Vec::new();
    for &(dir, word, name) in on_host().flat_map(|vendor| vendor.drivers).chain(&OTHERS) {
        let read = || socket_named(&find(dir)?, word);
        match read() {
            Ok(Some(file)) => owners.push(CardOwner { name, socket: format!("{dir}/{file}") }),
            Ok(None) => {}
            Err(source) if source.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(UnreadableDirectory { dir, source }),
        }
    }
    Ok(owners)
}

/// The first name in a directory that has this word and is in use; the kubelet's own sockets have none.
fn socket_named(dir: &Path, word: &str) -> io::Result<Option<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)?.take(ENTRIES_MAX) {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let is_its = |name: &String| name.to_lowercase().contains(word) && !name.starts_with("kubelet");
    Ok(names.into_iter().find(|name| is_its(name) && !is_left(&dir.join(name))))
}

/// Whether this is a socket on which no process listens. It never waits: a process that hangs accepts nothing.
fn is_left(path: &Path) -> bool {
    let is_socket = fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket && connect_at_once(path) == Err(Errno::CONNREFUSED)
}

fn connect_at_once(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

impl fmt::Display for CardOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.socket)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::{bind, listen};

    use super::*;

    /// A connection that waits in the queue of a socket.
    fn waits_at(path: &Path) -> Result<OwnedFd, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    #[test]
    fn only_a_socket_in_use_has_an_owner() {
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("device-plugins");
        let names = || {
            let found = other_owners(|name| Ok(dir.path().join(name))).unwrap();
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(names().is_empty());
        fs::create_dir(&plugins).unwrap();
        fs::write(plugins.join("kubelet_nvidia_checkpoint"), "").unwrap();
        let path = plugins.join("nvidia-gpu.sock");
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&socket, 1).unwrap();
        assert_eq!(names(), ["NVIDIA's device plugin (device-plugins/nvidia-gpu.sock)"]);
        // A process that accepts nothing: its queue is full, and a wait for it would not end.
        let waiting: Vec<_> = (0..100).map_while(|_| waits_at(&path).ok()).collect();
        assert!(waiting.len() < 100);
        assert_eq!(names(), ["NVIDIA's device plugin (device-plugins/nvidia-gpu.sock)"]);
        drop((socket, waiting));
        assert!(names().is_empty());
        let error = other_owners(|_| Err(io::ErrorKind::PermissionDenied.into())).unwrap_err();
        assert!(error.to_string().starts_with("device-plugins: "), "{error}");
    }
}
