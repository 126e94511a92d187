//! SELinux labels of the files that containers mount from the state directory.
//!
//! Container runtimes do not relabel the mounts of CDI files. Files below /var/lib inherit the type `var_lib_t`, which the
//! domain of containers, `container_t`, may not read. The loader ignores an `/etc/ld.so.preload` that it may not read, without
//! a message: the shim is not loaded, and no limit holds.
//!
//! | SELinux | files are labelled | a label that cannot be set |
//! |---|---|---|
//! | off | no | – |
//! | permissive | yes | a warning |
//! | enforcing | yes | shares with limits are refused |

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;

/// The label of files that containers of every level may read and write.
pub const LABEL: &str = "system_u:object_r:container_file_t:s0";
/// The file, below the root of the host, that holds `1` while SELinux is enforcing and `0` while it is permissive.
pub const ENFORCE: &str = "sys/fs/selinux/enforce";

/// Type of [`LABEL`].
const TYPE: &str = "container_file_t";
/// Level of [`LABEL`]. A level with categories closes a file to the containers of other categories.
const LEVEL: &str = "s0";
/// Name of the extended attribute.
const ATTRIBUTE: &str = "security.selinux";
/// Longest label in bytes; the kernel's own bound is one page.
const LABEL_BYTES_MAX: usize = 4096;

/// What SELinux does on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelinuxMode {
    /// It is not in this kernel, or disabled.
    Off,
    /// It logs what it would deny.
    Permissive,
    /// It denies.
    Enforcing,
}

/// Reads and writes the labels of files; links are not followed.
pub trait FileLabels: Send + Sync {
    /// The label of a file; `None`: it has none.
    ///
    /// # Errors
    /// The file system refuses.
    fn read(&self, path: &Path) -> io::Result<Option<String>>;

    /// Sets the label of a file.
    ///
    /// # Errors
    /// The file system or the policy refuses.
    fn write(&self, path: &Path, label: &str) -> io::Result<()>;
}

/// Labels as extended attributes.
#[derive(Clone, Copy, Debug, Default)]
pub struct XattrLabels;

/// SELinux on the host of this node.
#[derive(Clone)]
pub struct Selinux {
    /// `None`: files are never labelled.
    enforce: Option<PathBuf>,
    labels: Arc<dyn FileLabels>,
}

/// A file that containers cannot use under SELinux.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: containers cannot use it under SELinux: found {found}, expected label {LABEL}; {}",
    path.display(), remedy(tree, source)
)]
pub struct LabelError {
    /// The file.
    pub path: PathBuf,
    /// Its label, in words.
    pub found: String,
    /// The directory that is to be labelled with everything in it.
    pub tree: PathBuf,
    /// Why the label cannot be read or set.
    #[source]
    pub source: io::Error,
}

/// The commands that label a directory with everything in it, in words.
#[must_use]
pub fn label_commands(tree: &Path) -> String {
    let tree = tree.display();
    format!(
        "run `semanage fcontext -a -t {TYPE} '{tree}(/.*)?'` and `restorecon -RF {tree}`, or `chcon -R -t {TYPE} -l {LEVEL} {tree}`"
    )
}

fn remedy(tree: &Path, source: &io::Error) -> String {
    if source.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) {
        return format!(
            "put {} on a file system with labels, or mount this one with the option context=\"{LABEL}\"",
            tree.display()
        );
    }
    label_commands(tree)
}

/// Whether containers of every level may use a file with this label.
#[must_use]
pub fn fits(label: &str) -> bool {
    // user:role:type, and with a policy of levels `:level`.
    let mut fields = label.splitn(4, ':').skip(2);
    fields.next() == Some(TYPE) && fields.next().is_none_or(|level| level == LEVEL)
}

/// A label, or its absence, in words.
#[must_use]
pub fn in_words(label: Option<&str>) -> String {
    label.map_or_else(|| "no label".to_owned(), |label| format!("label {label}"))
}

// === impl SelinuxMode ===

impl SelinuxMode {
    /// What the content of [`ENFORCE`] says. A file that cannot be read counts as enforcing: nothing is promised that may not hold.
    #[must_use]
    pub fn of(enforce: &io::Result<String>) -> Self {
        match enforce {
            Ok(text) if text.trim() == "0" => Self::Permissive,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Off,
            Ok(_) | Err(_) => Self::Enforcing,
        }
    }
}

// === impl XattrLabels ===

impl FileLabels for XattrLabels {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        let mut bytes = [0; LABEL_BYTES_MAX];
        match lgetxattr(path, ATTRIBUTE, &mut bytes) {
            Ok(length) => {
                let label = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
                Ok(Some(label.trim_end_matches('\0').to_owned()))
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&self, path: &Path, label: &str) -> io::Result<()> {
        // With a closing NUL, as setfilecon(3) writes it.
        let bytes = [label.as_bytes(), &[0]].concat();
        Ok(lsetxattr(path, ATTRIBUTE, &bytes, XattrFlags::empty())?)
    }
}

// === impl Selinux ===

impl fmt::Debug for Selinux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selinux").field("enforce", &self.enforce).finish_non_exhaustive()
    }
}

impl Selinux {
    /// Of a node with files that are never labelled.
    #[must_use]
    pub fn ignored() -> Self {
        Self { enforce: None, labels: Arc::new(XattrLabels) }
    }

    /// Of the host with its root directory seen here.
    #[must_use]
    pub fn of_host(root: &Path) -> Self {
        Self { enforce: Some(root.join(ENFORCE)), ..Self::ignored() }
    }

    /// The same with another way to labels.
    #[must_use]
    pub fn with_labels(self, labels: Arc<dyn FileLabels>) -> Self {
        Self { labels, ..self }
    }

    /// The mode now: an admin may change it at any time.
    #[must_use]
    pub fn mode(&self) -> SelinuxMode {
        let Some(enforce) = &self.enforce else { return SelinuxMode::Off };
        SelinuxMode::of(&fs::read_to_string(enforce))
    }

    /// Lets containers use a directory with everything in it, and what is created in it later: a new file inherits the type of its
    /// directory. A directory that does not exist is no error.
    ///
    /// # Errors
    /// [`LabelError`] while SELinux is enforcing; while it is permissive, the error is logged.
    pub fn label_tree(&self, tree: &Path) -> Result<(), LabelError> {
        let mode = self.mode();
        if mode == SelinuxMode::Off {
            return Ok(());
        }
        match self.label_all(tree) {
            Err(error) if mode == SelinuxMode::Permissive => {
                tracing::warn!(
                    "SELinux is permissive; once it enforces, shares with limits are refused: {error}"
                );
                Ok(())
            }
            result => result,
        }
    }

    fn label_all(&self, tree: &Path) -> Result<(), LabelError> {
        let mut waiting = vec![tree.to_owned()];
        while let Some(path) = waiting.pop() {
            let failed = |source| LabelError {
                path: path.clone(),
                found: "files that cannot be listed".to_owned(),
                tree: tree.to_owned(),
                source,
            };
            match fs::symlink_metadata(&path) {
                // It was released meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
                Ok(found) if found.is_dir() => {
                    // Before its content: a file that is created meanwhile inherits the type.
                    self.label(&path, tree)?;
                    for entry in fs::read_dir(&path).map_err(failed)? {
                        waiting.push(entry.map_err(failed)?.path());
                    }
                }
                Ok(_) => self.label(&path, tree)?,
            }
        }
        Ok(())
    }

    fn label(&self, path: &Path, tree: &Path) -> Result<(), LabelError> {
        let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let failed =
            |found, source| LabelError { path: path.to_owned(), found, tree: tree.to_owned(), source };
        let found = match self.labels.read(path) {
            Ok(found) => found,
            Err(error) if gone(&error) => return Ok(()),
            Err(error) => return Err(failed("a label that cannot be read".to_owned(), error)),
        };
        if found.as_deref().is_some_and(fits) {
            return Ok(());
        }
        match self.labels.write(path, LABEL) {
            Err(error) if !gone(&error) => Err(failed(in_words(found.as_deref()), error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_other_types_or_with_categories_do_not_fit() {
        for (label, expected) in [
            (LABEL, true),
            ("unconfined_u:object_r:container_file_t:s0", true),
            ("system_u:object_r:container_file_t", true),
            ("system_u:object_r:container_file_t:s0:c1,c2", false),
            ("system_u:object_r:var_lib_t:s0", false),
            ("unlabeled", false),
            ("", false),
        ] {
            assert_eq!(fits(label), expected, "{label}");
        }
    }

    #[test]
    fn mode_that_cannot_be_read_counts_as_enforcing() {
        let text = |text: &str| Ok(text.to_owned());
        assert_eq!(SelinuxMode::of(&Err(io::ErrorKind::NotFound.into())), SelinuxMode::Off);
        assert_eq!(SelinuxMode::of(&text("0")), SelinuxMode::Permissive);
        assert_eq!(SelinuxMode::of(&text("1\n")), SelinuxMode::Enforcing);
        assert_eq!(SelinuxMode::of(&text("")), SelinuxMode::Enforcing);
        assert_eq!(SelinuxMode::of(&Err(io::ErrorKind::PermissionDenied.into())), SelinuxMode::Enforcing);
    }
}
