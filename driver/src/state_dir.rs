//! The state directory of a node: made for a change, required for reading.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::node::Access;

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path}: {source}. {advice}", path = .path.display())]
pub struct StateDirError {
    /// Operation that failed.
    pub verb: &'static str,
    /// The directory.
    pub path: PathBuf,
    /// Cause.
    pub source: io::Error,
    /// Remedy.
    pub advice: &'static str,
}

/// Makes the state directory, if only its last component is missing. For [`Access::Read`] it must exist.
///
/// # Errors
/// It cannot be made or read.
pub fn make(state: &Path, access: Access) -> Result<(), StateDirError> {
    if access != Access::Read {
        match fs::create_dir(state) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                let advice = "Make the directory above it, or name another one with --state";
                let (verb, path) = ("make state directory", state.to_owned());
                return Err(StateDirError { verb, path, source, advice });
            }
            _ => {}
        }
    }
    must_exist(state)
}

/// Refuses a path that is no directory, or one that cannot be read.
///
/// # Errors
/// It cannot be read.
pub fn must_exist(state: &Path) -> Result<(), StateDirError> {
    let advice = "`aliquot prepare` makes it; check the name given with --state";
    match fs::read_dir(state) {
        Ok(_) => Ok(()),
        Err(source) => {
            Err(StateDirError { verb: "read state directory", path: state.to_owned(), source, advice })
        }
    }
}
