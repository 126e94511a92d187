//! Static edits: the only changes to a container that this crate ever requests of a runtime.
//!
//! A device node, a read-only mount, a constant in the environment, and two writable mounts: the usage file
//! of a grant ([`Mount::usage_file`]) and the simulated cards of a node without hardware
//! ([`Mount::simulated_cards`]). The host never trusts the content of the writable mounts.
//!
//! There is no hook, no other writable mount and no network interface. Nothing runs on the host, and a tenant
//! changes nothing that the host reads except through that file. Each edit fills one *slot* of the container,
//! an environment name or a path. Two edits can clash only in the same slot.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::spec;

/// Longest path in bytes: Linux's `PATH_MAX` less the closing NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// Longest environment value in bytes. Linux stops one argument at 128 KiB; ours are paths and numbers.
pub const ENV_VALUE_BYTES_MAX: usize = 4096;

/// Mount options of every mount but the one of a usage file.
pub const MOUNT_OPTIONS: [&str; 4] = ["ro", "nosuid", "nodev", "bind"];

/// Mount options of a usage file.
pub const USAGE_MOUNT_OPTIONS: [&str; 5] = ["rw", "nosuid", "nodev", "noexec", "bind"];
/// Directory of the container below which usage files may be mounted.
pub const USAGE_BELOW: &str = "/run/aliquot/grants";
/// The only name that a writable mount may have, on either side.
pub const USAGE_NAME: &str = "usage";
/// Where containers find simulated cards.
pub const SIMULATED_CARDS_AT: &str = "/run/aliquot/cards";
/// Beginning of the name of a directory of simulated cards on the host.
pub const SIMULATED_CARDS_NAME: &str = "cards";

/// Why a text is not a part of an edit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EditError {
    /// Not an absolute, plain path.
    #[error("path {path:?} {wrong}, expected an absolute path such as /dev/card0")]
    Path {
        /// The text found.
        path: String,
        /// What is wrong with it.
        wrong: &'static str,
    },
    /// Not the name of an environment variable.
    #[error(
        "environment name {name:?} is not one, expected a letter or '_' and then letters, digits or '_' (A-Z, a-z, 0-9)"
    )]
    EnvName {
        /// The text found.
        name: String,
    },
    /// Not a value for the environment.
    #[error(
        "environment value of {found_bytes} bytes {wrong}, expected at most {ENV_VALUE_BYTES_MAX} bytes of plain text"
    )]
    EnvValue {
        /// Length found, in bytes.
        found_bytes: usize,
        /// What is wrong with it.
        wrong: &'static str,
    },
    /// A writable mount of anything but a usage file.
    #[error(
        "writable mount of host {host} at {container}: only a file `{USAGE_NAME}` may be writable, below {USAGE_BELOW}"
    )]
    Writable {
        /// Path in the container.
        container: PlainPath,
        /// Path on the host.
        host: PlainPath,
    },
    /// A mount of anything but simulated cards as these.
    #[error(
        "simulated cards {host} at {container}: expected a directory `{SIMULATED_CARDS_NAME}…` mounted at {SIMULATED_CARDS_AT}"
    )]
    SimulatedCards {
        /// Path in the container.
        container: PlainPath,
        /// Path on the host.
        host: PlainPath,
    },
    /// Major number 0, which a runtime takes for "not given".
    #[error("device node {path} has major number 0, expected the number that the host's node has")]
    MajorZero {
        /// Path in the container.
        path: PlainPath,
    },
}

/// An absolute path without empty, `.` or `..` parts and without control characters, on the host or in the container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlainPath(String);

impl PlainPath {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PlainPath {
    type Err = EditError;

    fn from_str(path: &str) -> Result<Self, EditError> {
        let wrong = |wrong| Err(EditError::Path { path: path.to_owned(), wrong });
        if path.len() > PATH_BYTES_MAX {
            return wrong("is longer than 4095 bytes");
        }
        if path.chars().any(char::is_control) {
            return wrong("holds a control character");
        }
        let Some(rest) = path.strip_prefix('/') else {
            return wrong("does not begin with '/'");
        };
        if rest.is_empty() {
            return wrong("is the root");
        }
        if rest.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return wrong("has an empty, '.' or '..' part");
        }
        Ok(Self(path.to_owned()))
    }
}

impl fmt::Display for PlainPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of an environment variable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvName(String);

impl EnvName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EnvName {
    type Err = EditError;

    fn from_str(name: &str) -> Result<Self, EditError> {
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if begins && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            Ok(Self(name.to_owned()))
        } else {
            Err(EditError::EnvName { name: name.to_owned() })
        }
    }
}

impl fmt::Display for EnvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of an environment variable; may be empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvValue(String);

impl EnvValue {
    /// The value as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EnvValue {
    type Err = EditError;

    fn from_str(value: &str) -> Result<Self, EditError> {
        let wrong = |wrong| Err(EditError::EnvValue { found_bytes: value.len(), wrong });
        if value.len() > ENV_VALUE_BYTES_MAX {
            return wrong("is too long");
        }
        if value.chars().any(char::is_control) {
            return wrong("holds a control character");
        }
        Ok(Self(value.to_owned()))
    }
}

impl fmt::Display for EnvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A character device that the container may read and write. It may never create other nodes of the device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNode {
    container: PlainPath,
    host: PlainPath,
    major: u32,
    minor: u32,
}

impl DeviceNode {
    /// The node `host`, with its numbers, seen at `container`.
    ///
    /// # Errors
    /// [`EditError::MajorZero`].
    pub fn new(container: PlainPath, host: PlainPath, (major, minor): (u32, u32)) -> Result<Self, EditError> {
        if major == 0 {
            return Err(EditError::MajorZero { path: container });
        }
        Ok(Self { container, host, major, minor })
    }

    /// The node as it stands in a file. The host path is left out where it is the container's.
    pub(crate) fn to_spec(&self) -> spec::DeviceNode {
        spec::DeviceNode {
            path: self.container.0.clone(),
            host_path: (self.host != self.container).then(|| self.host.0.clone()),
            node_type: "c",
            major: self.major,
            minor: self.minor,
            permissions: "rw",
        }
    }
}

/// A bind mount of a host file or directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mount {
    container: PlainPath,
    host: PlainPath,
    access: MountAccess,
}

/// What the container may do with what is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum MountAccess {
    /// Read it.
    Read,
    /// Write it, too.
    Write,
}

impl Mount {
    /// `host` seen at `container`, with [`MOUNT_OPTIONS`].
    #[must_use]
    pub fn read_only(container: PlainPath, host: PlainPath) -> Self {
        Self { container, host, access: MountAccess::Read }
    }

    /// The usage file of a grant, which the tenant's processes write: `host` seen at `container`, with
    /// [`USAGE_MOUNT_OPTIONS`].
    ///
    /// # Errors
    /// [`EditError::Writable`] unless both end in [`USAGE_NAME`] and `container` lies below [`USAGE_BELOW`]: nothing
    /// else is ever mounted writable.
    pub fn usage_file(container: PlainPath, host: PlainPath) -> Result<Self, EditError> {
        let named = |path: &PlainPath| path.0.rsplit('/').next() == Some(USAGE_NAME);
        let below = container.0.strip_prefix(USAGE_BELOW).is_some_and(|rest| rest.starts_with('/'));
        if named(&container) && named(&host) && below {
            Ok(Self { container, host, access: MountAccess::Write })
        } else {
            Err(EditError::Writable { container, host })
        }
    }

    /// The directory of simulated cards, which takes the place of device memory: `host` seen at [`SIMULATED_CARDS_AT`], with
    /// [`USAGE_MOUNT_OPTIONS`].
    ///
    /// # Errors
    /// [`EditError::SimulatedCards`] for any other path of the container, or another name on the host.
    pub fn simulated_cards(container: PlainPath, host: PlainPath) -> Result<Self, EditError> {
        let name = host.0.rsplit('/').next().unwrap_or_default();
        if container.0 == SIMULATED_CARDS_AT && name.starts_with(SIMULATED_CARDS_NAME) {
            Ok(Self { container, host, access: MountAccess::Write })
        } else {
            Err(EditError::SimulatedCards { container, host })
        }
    }

    /// The mount as it stands in a file.
    pub(crate) fn to_spec(&self) -> spec::Mount {
        spec::Mount {
            host_path: self.host.0.clone(),
            container_path: self.container.0.clone(),
            options: match self.access {
                MountAccess::Read => &MOUNT_OPTIONS,
                MountAccess::Write => &USAGE_MOUNT_OPTIONS,
            },
        }
    }
}

/// One static edit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Edit {
    /// A constant in the environment.
    Env(EnvName, EnvValue),
    /// A device node.
    Node(DeviceNode),
    /// A mount.
    Mount(Mount),
}

impl Edit {
    /// What of the container this edit fills.
    #[must_use]
    pub fn slot(&self) -> Slot {
        match self {
            Self::Env(name, _) => Slot::Env(name.clone()),
            Self::Node(node) => Slot::Path(node.container.clone()),
            Self::Mount(mount) => Slot::Path(mount.container.clone()),
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(_, value) => write!(f, "the value {:?}", value.0),
            Self::Node(node) => {
                let DeviceNode { host, major, minor, .. } = node;
                write!(f, "the character device {major}:{minor} from host {host}, read and write")
            }
            Self::Mount(mount) => {
                let access = match mount.access {
                    MountAccess::Read => "read-only",
                    MountAccess::Write => "writable",
                };
                write!(f, "a {access} mount of host {}", mount.host)
            }
        }
    }
}

/// A place in the container that holds at most one edit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// An environment variable.
    Env(EnvName),
    /// A path, of a node or a mount.
    Path(PlainPath),
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Path(path) => write!(f, "container path {path}"),
        }
    }
}

#[cfg(test)]
mod tests;
