//! The shim as containers load it: installed below the state, with the loader's list that names it.
//!
//! A directory of one version and content never changes, and stays when the last claim goes: a container that still ends
//! has the files mounted. What was spoilt gets a new file in its place, as does what a tenant keeps others from opening; who has the
//! old one mapped keeps it.

use std::io;
use std::path::{Path, PathBuf};

use aliquot_cdi::edits::EditError;
use aliquot_cdi::{Edit, preload};

use crate::disk::{Disk, Mode};
use crate::region::{Made, holds};

/// Name of the list on the host.
const LIST_NAME: &str = "ld.so.preload";

fn shim(libraries: &Path) -> PathBuf {
    aliquot_libraries::shim_dir(libraries).join(aliquot_libraries::SHIM_NAME)
}

fn list(libraries: &Path) -> PathBuf {
    aliquot_libraries::shim_dir(libraries).join(LIST_NAME)
}

/// Puts both files below `libraries`, where they are not there already.
pub(super) fn ensure(disk: &Disk, libraries: &Path) -> io::Result<Made> {
    let mut made = Made::Nothing;
    for (path, bytes) in
        [(shim(libraries), aliquot_libraries::SHIM), (list(libraries), preload::LIST.as_bytes())]
    {
        if holds(&path, bytes) {
            continue;
        }
        disk.make_dir(&aliquot_libraries::shim_dir(libraries))?;
        disk.place(&path, bytes, Mode::ReadOnly)?;
        made = Made::Something;
    }
    Ok(made)
}

/// What a container mounts of them.
pub(super) fn edits(libraries: &Path) -> Result<[Edit; 2], EditError> {
    let path = |path: PathBuf| path.display().to_string().parse();
    preload::preload(path(shim(libraries))?, path(list(libraries))?)
}
