//! The shim as the containers of a claim load it: beside the shares of the claim, with the loader's list that names it.
//!
//! Each claim has copies of its own. Root in a container without a user namespace owns its mounts for the kernel, also read-only
//! ones, and may take a lease on them (`F_SETLEASE`). Programs that open the same file then wait 45 s until the kernel breaks the
//! lease, again and again. So no two tenants load the same file.
//!
//! A corrupted copy, or one with a lease, is replaced by a new file. Processes that have the old one mapped keep it, also after the
//! release of the claim.

use std::io;
use std::path::{Path, PathBuf};

use aliquot_cdi::edits::EditError;
use aliquot_cdi::{Edit, preload};

use super::ShimCopies;
use crate::disk::{Disk, Mode};
use crate::region::{WriteOutcome, holds};

/// Name of the list on the host. No share has a name with a dot in it.
const LIST_NAME: &str = "ld.so.preload";

fn shim(claim: &Path) -> PathBuf {
    claim.join(aliquot_libraries::SHIM_NAME)
}

fn list(claim: &Path) -> PathBuf {
    claim.join(LIST_NAME)
}

/// The shim of this node, and copies of it that are ready.
#[derive(Clone, Copy)]
pub(super) struct ShimSource<'a> {
    pub(super) bytes: &'static [u8],
    pub(super) copies: Option<&'a ShimCopies>,
}

/// Puts both files into the directory of a claim, where they are not there already.
pub(super) fn ensure(disk: &Disk, claim: &Path, source: ShimSource<'_>) -> io::Result<WriteOutcome> {
    let shim = ensure_shim(disk, &shim(claim), source)?;
    let (path, bytes) = (list(claim), preload::LIST.as_bytes());
    if holds(&path, bytes) {
        return Ok(shim);
    }
    disk.place(&path, bytes, Mode::ReadOnly)?;
    Ok(WriteOutcome::Something)
}

fn ensure_shim(disk: &Disk, path: &Path, source: ShimSource<'_>) -> io::Result<WriteOutcome> {
    let ShimSource { bytes, copies } = source;
    let whole = match copies {
        Some(copies) => copies.holds(path),
        None => holds(path, bytes),
    };
    if whole {
        return Ok(WriteOutcome::Nothing);
    }
    if let Some(copies) = copies {
        disk.before("place shim")?;
        if copies.place(path)? {
            return Ok(WriteOutcome::Something);
        }
    }
    disk.place(path, bytes, Mode::ReadOnly)?;
    Ok(WriteOutcome::Something)
}

/// Forgets what is known of a claim's files, which are about to be removed.
pub(super) fn forget(claim: &Path, copies: Option<&ShimCopies>) {
    if let Some(copies) = copies {
        copies.forget(&shim(claim));
    }
}

/// What a container mounts of them.
pub(super) fn edits(claim: &Path) -> Result<[Edit; 2], EditError> {
    let path = |path: PathBuf| path.display().to_string().parse();
    preload::preload(path(shim(claim))?, path(list(claim))?)
}
