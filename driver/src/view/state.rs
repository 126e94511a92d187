//! Reads a state directory: the journal, and the region of each share.
//!
//! Claims come and go meanwhile. For a share without files the journal is read again: if its claim is released, the share is
//! dropped; if not, the missing files are reported.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_core::id::CardUuid;
use aliquot_core::ports::PartitionAt;

use super::snapshot::{CardRecords, Files, JournalView, PartitionView, Region, ShareView, StateView};
use crate::checkpoint::{Journal, JournalFile, PartitionProgress, Phase};
use crate::disk::Disk;
use crate::grant_file;
use crate::health::{self, HealthBook};
use crate::region::{self, GrantPaths, Life, UsageCopy};
use crate::run::processes::command;

/// Where local runs keep the state of simulated nodes, below a home of state.
const SIMULATED: &str = "simulated";
/// Beginning of the names of directories of simulated cards.
const CARDS: &str = "cards";

/// Reads one.
pub(super) fn read(dir: &Path, driver: Option<String>, clock: &impl Fn() -> Duration) -> StateView {
    let promised = journal(dir).map(|journal| promised(dir, &journal, clock));
    let book = HealthBook::of(dir);
    let notes = book.notes(&health::era(driver)).map_err(|error| error.to_string());
    let against = notes.map(|notes| CardRecords { xids: book.xids().0, notes });
    StateView { dir: dir.to_owned(), promised, against }
}

/// State directories of a home: the home itself if it is one or cannot be read, and those of simulated nodes.
pub(super) fn below(home: &Path) -> Vec<PathBuf> {
    let closed = fs::read_dir(home).is_err_and(|error| error.kind() != io::ErrorKind::NotFound);
    let own = (closed || home.join("journal").exists()).then(|| home.to_owned());
    let entries = fs::read_dir(home.join(SIMULATED)).into_iter().flatten().flatten();
    let mut nodes: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|dir| dir.join("journal").exists()).collect();
    nodes.sort();
    own.into_iter().chain(nodes).collect()
}

/// Whether a state directory belongs to another user and this user may not read its journal.
pub(super) fn is_closed(dir: &Path) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    let theirs = fs::symlink_metadata(dir).is_ok_and(|found| found.uid() != user);
    let is_refusal = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let journal = || region::open_to_look(&dir.join("journal"));
    theirs && (fs::read_dir(dir).is_err_and(is_refusal) || journal().is_err_and(is_refusal))
}

/// Whether a state directory is that of a simulated node.
pub(super) fn is_simulated(dir: &Path) -> bool {
    dir.join("hardware").exists() || !simulated_cards(dir).is_empty()
}

/// Directories of simulated cards in a state directory: those of the node, then those of partitions.
pub(super) fn simulated_cards(dir: &Path) -> Vec<PathBuf> {
    let ours =
        |name: &str| name == CARDS || name.strip_prefix(CARDS).is_some_and(|rest| rest.starts_with('-'));
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| entry.file_name().to_str().is_some_and(ours))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

fn journal(dir: &Path) -> Result<Journal, String> {
    let path = dir.join("journal");
    let refused = |error: &io::Error| format!("{}: {error}", path.display());
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_file() => {}
        // A pipe would block.
        Ok(_) => return Err(format!("{} is no plain file", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // An empty directory has no claims; an unreadable one may have any.
            return fs::read_dir(dir).map(|_| Journal::default()).map_err(|e| refused(&e));
        }
        Err(error) => return Err(refused(&error)),
    }
    let file = JournalFile::new(path.clone(), Disk::default());
    match file.load() {
        Ok(found) => Ok(found.map(|found| found.journal).unwrap_or_default()),
        Err(error) => Err(std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))),
    }
}

fn promised(dir: &Path, journal: &Journal, clock: &impl Fn() -> Duration) -> JournalView {
    let partitions = journal
        .partitions
        .iter()
        .map(|(at, making)| PartitionView { at: at.clone(), uuid: handle(making) })
        .collect();
    let grants = dir.join("grants");
    let mut shares = Vec::new();
    for record in journal.claims.values() {
        for grant in &record.plan.grants {
            let place = grant_file::place(&grants, &grant.claim, &grant.share);
            shares.push(ShareView {
                claim: record.plan.name.clone(),
                phase: record.phase,
                grant: grant.clone(),
                visible: visible(journal, &grant.card, grant.partition().as_ref()),
                region: region(&place, clock),
                dir: place.dir,
            });
        }
    }
    let gone = |share: &ShareView| share.phase == Phase::Prepared && !share.dir.exists();
    if shares.iter().any(gone)
        && let Ok(later) = self::journal(dir)
    {
        shares.retain(|share| !gone(share) || later.claims.contains_key(&share.grant.claim));
    }
    JournalView { shares, partitions }
}

fn handle(making: &PartitionProgress) -> Option<String> {
    match making {
        PartitionProgress::Made(handle) => Some(handle.uuid.to_string()),
        PartitionProgress::Planned => None,
    }
}

/// The UUID of a part that its tenant reads; unknown for a partition that no journal created.
fn visible(journal: &Journal, card: &CardUuid, at: Option<&PartitionAt>) -> Option<String> {
    match at {
        None => Some(card.to_string()),
        Some(at) => journal.partitions.get(at).and_then(handle),
    }
}

fn region(place: &GrantPaths, clock: &impl Fn() -> Duration) -> Region {
    let missing =
        |path: &Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if missing(&place.limits()) && missing(&place.usage()) {
        return if place.dir.is_dir() { Region::Absent } else { Region::Missing };
    }
    let words = |error: io::Error| error.to_string();
    let usage = UsageCopy::of(&place.usage()).map_err(words);
    let at = clock();
    let processes = usage.iter().flat_map(|seen| &seen.processes);
    let pids = processes.filter_map(|process| match process.life {
        Life::Held { pid } | Life::Named { pid } => pid,
        Life::Dead => None,
    });
    let commands = pids.filter_map(|pid| Some((pid, command(pid)?))).collect();
    let limits = region::read(&place.limits()).map_err(words);
    Region::There(Box::new(Files { limits, usage, commands, at }))
}
