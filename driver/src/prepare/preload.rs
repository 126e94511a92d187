//! The shim as the containers of a claim load it, with the loader's list that names it.
//!
//! | claim | library | list |
//! |---|---|---|
//! | prepared by the agent | the node's file (`super::shims`) | the claim's own |
//! | prepared by a command, or by an agent of an earlier version | a copy of the claim's own | the claim's own |
//!
//! A tenant may take a lease on its own files (`F_SETLEASE`), so that programs which open them wait 45 s, again and again: those are
//! its own programs. A corrupted copy, or one with a lease, is replaced by a new file. Processes that have the old one mapped keep
//! it, also after the release of the claim.

use std::io;
use std::path::{Path, PathBuf};

use aliquot_cdi::edits::EditError;
use aliquot_cdi::{Edit, preload};

use super::SharedShim;
use crate::disk::{Disk, Mode};
use crate::region::{WriteOutcome, holds};

/// Name of the list on the host. No share has a name with a dot in it.
const LIST_NAME: &str = "ld.so.preload";

/// Where the library of a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    /// The node's file.
    Shared,
    /// The claim's copy.
    Own,
}

fn copy(claim: &Path) -> PathBuf {
    claim.join(aliquot_libraries::SHIM_NAME)
}

fn list(claim: &Path) -> PathBuf {
    claim.join(LIST_NAME)
}

/// A copy that is whole stays in use. A claim with a list alone has the node's file, also for a process that does not keep that
/// open.
fn library(claim: &Path, shim: &SharedShim) -> Library {
    let copy = copy(claim);
    if holds(&copy, shim.bytes()) {
        return Library::Own;
    }
    let has_shared = || !copy.exists() && list(claim).exists() && shim.dir().exists();
    if shim.is_held() || has_shared() { Library::Shared } else { Library::Own }
}

/// Puts both files in place, where they are not there already.
pub(super) fn ensure(disk: &Disk, claim: &Path, shim: &SharedShim) -> io::Result<WriteOutcome> {
    let mut outcome = match library(claim, shim) {
        Library::Shared => shim.ensure(disk)?,
        Library::Own => ensure_holds(disk, &copy(claim), shim.bytes())?,
    };
    if ensure_holds(disk, &list(claim), preload::LIST.as_bytes())? == WriteOutcome::Something {
        outcome = WriteOutcome::Something;
    }
    Ok(outcome)
}

fn ensure_holds(disk: &Disk, path: &Path, bytes: &[u8]) -> io::Result<WriteOutcome> {
    if holds(path, bytes) {
        return Ok(WriteOutcome::Nothing);
    }
    disk.place(path, bytes, Mode::ReadOnly)?;
    Ok(WriteOutcome::Something)
}

/// What a container mounts of them.
pub(super) fn edits(claim: &Path, shim: &SharedShim) -> Result<[Edit; 2], EditError> {
    let library = match library(claim, shim) {
        Library::Shared => shim.path().to_owned(),
        Library::Own => copy(claim),
    };
    let path = |path: PathBuf| path.display().to_string().parse();
    preload::preload(path(library)?, path(list(claim))?)
}
