//! The libraries that Aliquot brings along, as they ship: the shim, and the driver libraries of simulated cards.
//!
//! They are built by this package's build script and lie in the program itself, so that one file is all there is to
//! install. [`install`] puts them on disk where loaders find them:
//!
//! ```text
//!   <dir>/<version>-<content>/libaliquot.so                       what LD_PRELOAD names
//!   <dir>/<version>-<content>/{libcuda.so.1, libnvidia-ml.so.1}   what LD_LIBRARY_PATH names, for simulated cards
//!   <root>/usr/local/dcmi/libdcmi.so                              where Ascend's driver has it; <root> is the machine
//! ```
//!
//! A directory never changes: other content has another name, and a process that has a library mapped keeps it.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// `libaliquot.so`, the shim.
pub static SHIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libaliquot.so"));
/// `libcuda.so.1` of simulated cards.
pub static SIMULATED_CUDA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libcuda.so"));
/// `libnvidia-ml.so.1` of simulated cards.
pub static SIMULATED_NVML: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvml.so"));
/// `libdcmi.so` of simulated NPUs.
pub static SIMULATED_DCMI: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libdcmi.so"));

/// Name under which the shim is installed.
pub const SHIM_NAME: &str = "libaliquot.so";

/// What the shim's content is called, as in the directory it is installed in.
pub const SHIM_CONTENT: &str = env!("ALIQUOT_SHIM_ID");

/// Version and content of the shim.
const SHIM_DIR: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("ALIQUOT_SHIM_ID"));
/// Version and content of the simulated libraries.
const SIMULATED_DIR: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "-sim-",
    env!("ALIQUOT_SIM_CUDA_ID"),
    "-",
    env!("ALIQUOT_SIM_NVML_ID")
);

/// Where the libraries lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledLibraries {
    /// The shim.
    pub shim: PathBuf,
    /// Directory with the simulated driver libraries under their sonames.
    pub simulated: PathBuf,
}

/// Puts the libraries below `dir`, which is made where it is missing. What is there already stays as it is, to the inode;
/// what was spoilt is replaced by a new file.
///
/// # Errors
/// The disk refuses.
pub fn install(dir: &Path) -> io::Result<InstalledLibraries> {
    Ok(InstalledLibraries { shim: install_shim(dir)?, simulated: install_simulated(dir)? })
}

/// As [`install`], the shim alone.
///
/// # Errors
/// The disk refuses.
pub fn install_shim(dir: &Path) -> io::Result<PathBuf> {
    let shim = shim_dir(dir);
    put(&shim, SHIM_NAME, SHIM)?;
    Ok(shim.join(SHIM_NAME))
}

/// Directory below `dir` for this shim and nothing of another version or content, whether it is there or not.
#[must_use]
pub fn shim_dir(dir: &Path) -> PathBuf {
    dir.join(SHIM_DIR)
}

/// As [`install`], the simulated driver libraries alone.
///
/// # Errors
/// The disk refuses.
pub fn install_simulated(dir: &Path) -> io::Result<PathBuf> {
    let simulated = dir.join(SIMULATED_DIR);
    put(&simulated, "libcuda.so.1", SIMULATED_CUDA)?;
    put(&simulated, "libnvidia-ml.so.1", SIMULATED_NVML)?;
    Ok(simulated)
}

/// Puts the simulated `libdcmi.so` where Ascend's driver has it below a root, which is also the machine that the library
/// reports; the path of the library.
///
/// # Errors
/// The disk refuses.
pub fn install_dcmi(root: &Path) -> io::Result<PathBuf> {
    let dir = root.join("usr/local/dcmi");
    put(&dir, "libdcmi.so", SIMULATED_DCMI)?;
    Ok(dir.join("libdcmi.so"))
}

fn put(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    if fs::read(&path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    // Whatever the umask, no other user may replace a library.
    DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    // Several processes may install at once, each with a file of its own; the last name wins, with the same content.
    let temp = dir.join(format!(".{name}.{}", std::process::id()));
    let written = write(&temp, bytes).and_then(|()| fs::rename(&temp, &path));
    if written.is_err() {
        match fs::remove_file(&temp) {
            // The first failure is the news.
            Ok(()) | Err(_) => {}
        }
    }
    written
}

fn write(temp: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(temp)?;
    file.write_all(bytes)?;
    // The mode given at creation is cut by the umask; tenants of any user load these.
    file.set_permissions(Permissions::from_mode(0o444))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn libraries_are_installed_once_and_never_rewritten_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let first = install(dir.path()).unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let cuda = first.simulated.join("libcuda.so.1");
        let before = (inode(&first.shim), inode(&cuda));
        assert_eq!(install(dir.path()).unwrap(), first);
        assert_eq!((inode(&first.shim), inode(&cuda)), before);
        assert_eq!(fs::read(&first.shim).unwrap(), SHIM);
        assert_eq!(fs::metadata(&first.shim).unwrap().mode() & 0o777, 0o444);

        let mapped = fs::File::open(&first.shim).unwrap();
        fs::remove_file(&first.shim).unwrap();
        fs::write(&first.shim, "spoilt").unwrap();
        install(dir.path()).unwrap();
        assert_eq!(fs::read(&first.shim).unwrap(), SHIM);
        assert_eq!(
            mapped.metadata().unwrap().len(),
            SHIM.len() as u64,
            "a process that has it open keeps it"
        );
        let files = fs::read_dir(first.shim.parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "no file in the making stays");
    }

    #[test]
    fn the_shim_is_the_one_that_ships() {
        let has = |word: &str| SHIM.windows(word.len()).any(|part| part == word.as_bytes());
        assert_eq!(&SHIM[..4], b"\x7fELF");
        assert!(has("\0cuGetProcAddress_v2\0") && has("\0dlsym\0"), "built without exports");
        assert!(!has("/src/panicking.rs"), "built with a standard library inside");
    }
}
