//! Where the agent's sockets are, and the rules that a path and its directory meet before anything is bound there.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use aliquot_core::offer::DRIVER;
use nix::unistd::geteuid;
use tokio::net::UnixListener;

/// Where a stock kubelet keeps its files.
pub const KUBELET_ROOT: &str = "/var/lib/kubelet";
/// Longest path that a socket address holds, in bytes: `sun_path` has 108, the last is NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Bits of a mode that let the group or everybody else write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The bit of a directory that is for all users, such as /tmp.
const STICKY: u32 = 0o1000;

/// The agent's two sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPaths {
    /// What the kubelet's plugin watcher finds.
    pub registration: PathBuf,
    /// What it calls then.
    pub service: PathBuf,
}

/// Why a socket or directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit a socket address.
    #[error(
        "socket {}: its path is too long: found {found} bytes, expected at most {SOCKET_PATH_BYTES_MAX}; \
         name a shorter --kubelet-root or --plugin-dir",
        path.display()
    )]
    TooLong {
        /// Path.
        path: PathBuf,
        /// Its length.
        found: usize,
    },
    /// The directory belongs to another user, and that user could replace the socket.
    #[error(
        "directory {}: found owner {found}, expected {expected}; \
         give it to root (chown) or name another directory",
        path.display()
    )]
    Owner {
        /// Directory.
        path: PathBuf,
        /// Its owner.
        found: u32,
        /// User of this process.
        expected: u32,
    },
    /// Other users may write into the directory.
    #[error(
        "directory {}: found mode {found:03o}, expected no write permission for group and others; {}",
        path.display(), owner_alone(*found)
    )]
    Writable {
        /// Directory.
        path: PathBuf,
        /// Its mode.
        found: u32,
    },
    /// A file that is no socket stands where one belongs.
    #[error("socket {}: found another kind of file there; move it away", path.display())]
    NotASocket {
        /// Path.
        path: PathBuf,
    },
    /// The file system or kernel refuses.
    #[error("cannot {verb} {}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// What makes a directory root's alone. One that is for all users stays so.
const fn owner_alone(mode: u32) -> &'static str {
    match mode & STICKY {
        0 => "chmod go-w it",
        _ => "it is for all users: name another --plugin-dir or --kubelet-root",
    }
}

// === impl SocketPaths ===

impl SocketPaths {
    /// The sockets of an agent below the kubelet's directories. The Pod's UID keeps the sockets of two agents apart while one
    /// replaces the other.
    ///
    /// The registration socket's name contains an `@`: gRPC clients written in Go send the socket's path as `:authority`,
    /// percent-encoded. Only the part before an `@` may contain `%`, or the HTTP/2 layer refuses the stream.
    ///
    /// # Errors
    /// [`SocketError::TooLong`].
    pub fn new(registry: &Path, plugin: &Path, pod: Option<&str>) -> Result<Self, SocketError> {
        let paths = |suffix: &str| Self {
            registration: registry.join(format!("{DRIVER}{suffix}@reg.sock")),
            service: plugin.join(format!("dra{suffix}.sock")),
        };
        let fits = |paths: &Self| {
            [&paths.registration, &paths.service].into_iter().all(|p| length(p) <= SOCKET_PATH_BYTES_MAX)
        };
        let made = match pod {
            None => paths(""),
            Some(uid) => {
                let plain = !uid.is_empty() && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
                let full = paths(&format!("-{uid}"));
                if plain && fits(&full) { full } else { paths(&format!("-{:016x}", hash(uid))) }
            }
        };
        for path in [&made.registration, &made.service] {
            let found = length(path);
            if found > SOCKET_PATH_BYTES_MAX {
                return Err(SocketError::TooLong { path: path.clone(), found });
            }
        }
        Ok(made)
    }
}

fn length(path: &Path) -> usize {
    path.as_os_str().len()
}

/// FNV-1a: tells two Pods apart in a file name.
fn hash(text: &str) -> u64 {
    let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Makes a directory and those above it where they are absent, and refuses one that other users can change.
///
/// # Errors
/// [`SocketError`].
pub fn secure_directory(path: &Path) -> Result<(), SocketError> {
    let failed = |verb| move |source| SocketError::Io { verb, path: path.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o750).create(path).map_err(failed("make directory"))?;
    let metadata = fs::metadata(path).map_err(failed("read"))?;
    let (found, expected) = (metadata.uid(), geteuid().as_raw());
    if found != 0 && found != expected {
        return Err(SocketError::Owner { path: path.to_owned(), found, expected });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(SocketError::Writable { path: path.to_owned(), found: mode });
    }
    Ok(())
}

/// Binds a socket for the owner alone. A socket that an exited process left there is removed.
///
/// # Errors
/// [`SocketError`].
pub fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    let failed = |verb| move |source| SocketError::Io { verb, path: path.to_owned(), source };
    remove(path)?;
    let listener = UnixListener::bind(path).map_err(failed("bind socket"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed("set the mode of"))?;
    Ok(listener)
}

/// Removes a socket; one that is absent is removed already.
///
/// # Errors
/// [`SocketError::NotASocket`], [`SocketError::Io`].
pub fn remove(path: &Path) -> Result<(), SocketError> {
    let failed = |verb| move |source| SocketError::Io { verb, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("read")(error)),
        Ok(found) if !found.file_type().is_socket() => Err(SocketError::NotASocket { path: path.to_owned() }),
        Ok(_) => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove")(error)),
            _ => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(registry: &str, pod: Option<&str>) -> Result<(String, String), String> {
        let paths = SocketPaths::new(Path::new(registry), Path::new("/p"), pod).map_err(|e| e.to_string())?;
        let text = |path: PathBuf| path.display().to_string();
        Ok((text(paths.registration), text(paths.service)))
    }

    #[test]
    fn socket_names_contain_an_at_sign_and_the_pod() {
        let uid = "6f1de5a4-8d0c-4f2d-9d0f-2b1c7f6a0001";
        for (pod, registration, service) in [
            (None, "/r/aliquot.dev@reg.sock".to_owned(), "/p/dra.sock".to_owned()),
            (Some(uid), format!("/r/aliquot.dev-{uid}@reg.sock"), format!("/p/dra-{uid}.sock")),
        ] {
            assert_eq!(names("/r", pod), Ok((registration, service)));
        }
    }

    #[test]
    fn socket_names_of_long_or_hostile_pods_are_hashed() {
        let long = format!("/{}", "r".repeat(60));
        for (registry, pod) in [(long.as_str(), "6f1de5a4-8d0c-4f2d-9d0f-2b1c7f6a0001"), ("/r", "../../etc")]
        {
            let (registration, service) = names(registry, Some(pod)).unwrap();
            assert!(registration.ends_with("@reg.sock") && !registration.contains(".."), "{registration}");
            assert_eq!(service.len(), "/p/dra-.sock".len() + 16, "{service}");
        }
        let error = names(&format!("/{}", "r".repeat(90)), None).unwrap_err();
        assert!(error.contains("found 112 bytes, expected at most 107"), "{error}");
    }

    #[test]
    fn directory_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        secure_directory(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = secure_directory(&path).unwrap_err().to_string();
        assert!(error.contains("found mode 777"), "{error}");
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        drop(bind(&path).unwrap());
        assert!(path.exists());
        drop(bind(&path).unwrap());
        remove(&path).unwrap();
        remove(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(matches!(bind(&path), Err(SocketError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
