//! The shim as the containers of a claim load it: beside the shares of the claim, with the loader's list that names it.
//!
//! Each claim has copies of its own. Whoever is root in a container without a user namespace owns, as the kernel has it, what is
//! mounted there, read-only as it is, and may take a lease on it (`F_SETLEASE`): programs that open the very file wait until the
//! kernel ends that, for 45 s, and again then. So what one tenant can open no other one's programs load.
//!
//! What was spoilt gets a new file in its place, as does what a tenant keeps others from opening; who has the old one mapped keeps
//! it, also when the claim goes.

use std::io;
use std::path::{Path, PathBuf};

use aliquot_cdi::edits::EditError;
use aliquot_cdi::{Edit, preload};

use crate::disk::{Disk, Mode};
use crate::region::{Made, holds};

/// Name of the list on the host. No share has a name with a dot in it.
const LIST_NAME: &str = "ld.so.preload";

fn shim(claim: &Path) -> PathBuf {
    claim.join(aliquot_libraries::SHIM_NAME)
}

fn list(claim: &Path) -> PathBuf {
    claim.join(LIST_NAME)
}

/// Puts both files into the directory of a claim, where they are not there already.
pub(super) fn ensure(disk: &Disk, claim: &Path) -> io::Result<Made> {
    let mut made = Made::Nothing;
    for (path, bytes) in [(shim(claim), aliquot_libraries::SHIM), (list(claim), preload::LIST.as_bytes())] {
        if holds(&path, bytes) {
            continue;
        }
        disk.place(&path, bytes, Mode::ReadOnly)?;
        made = Made::Something;
    }
    Ok(made)
}

/// What a container mounts of them.
pub(super) fn edits(claim: &Path) -> Result<[Edit; 2], EditError> {
    let path = |path: PathBuf| path.display().to_string().parse();
    preload::preload(path(shim(claim))?, path(list(claim))?)
}
