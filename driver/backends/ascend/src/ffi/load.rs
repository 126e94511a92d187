//! Where `libdcmi.so` may lie, and whether its file may be trusted: it runs in a process of root.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Fault;

/// File name of the library.
pub(crate) const LIBRARY: &str = "libdcmi.so";

/// Directories of the driver's packages, below the root.
const DIRECTORIES: [&str; 5] = [
    "usr/local/dcmi",
    "usr/local/Ascend/driver/lib64/driver",
    "usr/local/Ascend/driver/lib64/common",
    "usr/lib64",
    "usr/local/lib",
];

/// Where this machine's NPUs and their driver are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Root of the file system that has the driver, device nodes and settings: `/`, or where a container has the host's.
    pub root: PathBuf,
    /// Directories to search for the library before the driver's own.
    pub search: Vec<PathBuf>,
    /// Where this process sees the host's files, of which containers get the driver's: `/` outside of containers.
    pub host: PathBuf,
}

impl Site {
    /// This machine, with these directories searched first.
    #[must_use]
    pub fn machine(search: Vec<PathBuf>) -> Self {
        Self { root: PathBuf::from("/"), search, host: PathBuf::from("/") }
    }

    /// A machine below another root.
    #[must_use]
    pub fn below(root: PathBuf) -> Self {
        Self { root, search: Vec::new(), host: PathBuf::from("/") }
    }

    /// A path of the machine, given without its first `/`.
    pub(crate) fn path(&self, inner: &str) -> PathBuf {
        self.root.join(inner)
    }

    /// The place of the driver's files that containers mount: in a container the host's, if the machine is this one.
    pub(crate) fn files(&self) -> &Path {
        if self.root == Path::new("/") { &self.host } else { &self.root }
    }

    /// The library's file, once it is known to be safe to load.
    pub(crate) fn library(&self) -> Result<PathBuf, Fault> {
        let places = self.search.iter().cloned().chain(DIRECTORIES.iter().map(|dir| self.path(dir)));
        let mut found = places.map(|dir| dir.join(LIBRARY)).filter(|path| path.is_file());
        let path = found.next().ok_or_else(|| Fault::NotLoaded(format!("{LIBRARY}: no such file")))?;
        let path = fs::canonicalize(&path).map_err(|error| Fault::NotLoaded(error.to_string()))?;
        check(&path)?;
        Ok(path)
    }
}

/// Refuses a file that another user could have written.
fn check(path: &Path) -> Result<(), Fault> {
    let unsafe_file = |found: String, expected: &str| {
        Err(Fault::Unsafe { path: path.to_owned(), found, expected: expected.to_owned() })
    };
    let own = fs::metadata("/proc/self").map_or(0, |own| own.uid());
    for place in [path, path.parent().unwrap_or(path)] {
        let facts = fs::metadata(place).map_err(|error| Fault::NotLoaded(error.to_string()))?;
        let is_ours = facts.uid() == 0 || facts.uid() == own;
        if !is_ours {
            return unsafe_file(format!("{} of user {}", place.display(), facts.uid()), "one of root");
        }
        // In a sticky directory only the owner of a file replaces it.
        let is_sticky = facts.is_dir() && facts.mode() & 0o1000 != 0;
        if facts.mode() & 0o022 != 0 && !is_sticky {
            let mode = facts.mode() & 0o7777;
            return unsafe_file(
                format!("{} with mode {mode:o}", place.display()),
                "no write bit of group and others",
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn library_writable_by_others_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("usr/local/dcmi");
        let site = Site::below(root.path().to_owned());
        assert!(matches!(site.library(), Err(Fault::NotLoaded(_))));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(LIBRARY), "x").unwrap();
        fs::set_permissions(dir.join(LIBRARY), fs::Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(site.library().unwrap(), fs::canonicalize(dir.join(LIBRARY)).unwrap());
        fs::set_permissions(dir.join(LIBRARY), fs::Permissions::from_mode(0o664)).unwrap();
        let refused = site.library().unwrap_err().to_string();
        assert!(refused.contains("mode 664"), "{refused}");
        fs::set_permissions(dir.join(LIBRARY), fs::Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(site.library(), Err(Fault::Unsafe { .. })));
    }
}
