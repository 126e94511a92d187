//! Health records of a node's cards, in its state directory.
//!
//! ```text
//!  <state>/health        recorded events, for one boot and one load of the driver (checkpoint)
//!  <state>/health.lock   held by the one process that changes them
//!  <state>/xids          an administrator's overrides of Xid meanings, optional
//! ```
//!
//! Supervisors of runs record the events of their card, the node agent those of all cards; every discovery of cards applies the
//! records. Readers take no lock.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_core::card::Inventory;
use aliquot_core::health::{
    Cause, Era, NoteOutcome, Notes, Rediscovery, Subject, UnixSeconds, hold_against, hold_against_all,
};
use aliquot_core::id::CardUuid;
use nix::fcntl::Flock;

use crate::checkpoint::{CardHealth, CardHealthError};
use crate::clock::Moment;
use crate::disk::Disk;
use crate::hardware::vendors::{OVERRIDES_BYTES_MAX, VendorCodes};
use crate::region::open_to_look;
use crate::state_dir::{file, wait};

/// Longest wait for another process's change.
const WAIT: Duration = Duration::from_secs(2);

/// The health records of a state directory.
#[derive(Clone, Debug)]
pub struct HealthBook {
    state: PathBuf,
}

/// Why a record cannot be added or cleared.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The present records are invalid, and kept.
    #[error(transparent)]
    Unreadable(#[from] CardHealthError),
    /// The file cannot be written, or another process has the lock.
    #[error("cannot change {}", path.display())]
    Disk {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

/// What ends the loss of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossEnds {
    /// The card answers a query.
    ByAnswer,
    /// [`HealthBook::proven`]: a process that runs as long as the node has proof.
    ByProof,
}

/// This boot, and this load of the driver.
#[must_use]
pub fn era(driver: Option<String>) -> Era {
    Era { boot: Moment::now().boot, driver }
}

// === impl HealthBook ===

impl HealthBook {
    /// The records of a state directory.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.state.join("health")
    }

    /// The records of this era.
    ///
    /// # Errors
    /// The file is unreadable or invalid.
    pub fn notes(&self, now: &Era) -> Result<Notes, CardHealthError> {
        let kept = CardHealth::load(&self.path())?.filter(|kept| kept.era.counts_in(now));
        Ok(kept.map(|kept| kept.notes).unwrap_or_default())
    }

    /// The meanings of Xids here, and problems of the administrator's overrides.
    #[must_use]
    pub fn xids(&self) -> (VendorCodes, Vec<String>) {
        let path = self.state.join("xids");
        let mut bytes = Vec::new();
        let longest = u64::try_from(OVERRIDES_BYTES_MAX).unwrap_or(u64::MAX);
        match open_to_look(&path).and_then(|file| file.take(longest + 1).read_to_end(&mut bytes)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Default::default(),
            Err(error) => {
                return (
                    VendorCodes::default(),
                    vec![format!("{}: {error}; Xids mean what they always do", path.display())],
                );
            }
            Ok(_) => {}
        }
        let (xids, mut problems) = VendorCodes::parse(&String::from_utf8_lossy(&bytes));
        if bytes.len() > OVERRIDES_BYTES_MAX {
            problems.push(format!("found more than {OVERRIDES_BYTES_MAX} bytes; the rest is left out"));
        }
        (xids, problems.into_iter().map(|problem| format!("{}: {problem}", path.display())).collect())
    }

    /// Applies the records to discovered cards.
    pub fn hold_against(&self, inventory: &mut Inventory, driver: Option<String>, loss: LossEnds) {
        let found = match (loss, &driver) {
            (LossEnds::ByAnswer, Some(_)) => Rediscovery::Answering,
            (LossEnds::ByAnswer, None) | (LossEnds::ByProof, _) => Rediscovery::Described,
        };
        match self.notes(&era(driver)) {
            Ok(notes) if notes.is_empty() => {}
            Ok(notes) => hold_against(inventory, &notes, found, &self.xids().0),
            Err(error) => hold_against_all(inventory, &error.to_string()),
        }
    }

    /// Records an event of this era with its time; records of another era are dropped.
    ///
    /// # Errors
    /// The file cannot be written, or its records are invalid.
    pub fn note(
        &self,
        now: &Era,
        of: Subject,
        cause: Cause,
        at: UnixSeconds,
    ) -> Result<NoteOutcome, ChangeError> {
        let _lock = self.lock()?;
        let kept = CardHealth::load(&self.path())?.filter(|kept| kept.era.counts_in(now));
        let mut notes = kept.map(|kept| kept.notes).unwrap_or_default();
        notes.make_room(&of.card, &self.xids().0);
        let noted = notes.note(of, cause, at);
        if noted == NoteOutcome::New {
            self.store(&CardHealth { era: now.clone(), notes })?;
        }
        Ok(noted)
    }

    /// A card answers that may have been lost. If it was, it was reset: its earlier records are cleared.
    ///
    /// # Errors
    /// The file cannot be written, or its records are invalid.
    pub fn answers(&self, card: &CardUuid) -> Result<(), ChangeError> {
        self.after_loss(card, |notes| notes.clear(card))
    }

    /// A card answers that may have been lost. If it was, its records until the loss are cleared; the loss stays.
    ///
    /// # Errors
    /// The file cannot be written, or its records are invalid.
    pub fn answers_again(&self, card: &CardUuid) -> Result<(), ChangeError> {
        self.after_loss(card, |notes| notes.answers_again(card))
    }

    /// A card that was lost is proved to work: its loss is cleared.
    ///
    /// # Errors
    /// The file cannot be written, or its records are invalid.
    pub fn proven(&self, card: &CardUuid) -> Result<(), ChangeError> {
        self.after_loss(card, |notes| notes.is_proven(card))
    }

    /// Changes the records of a card if it was lost.
    fn after_loss(&self, card: &CardUuid, change: impl FnOnce(&mut Notes)) -> Result<(), ChangeError> {
        let lost =
            || CardHealth::load(&self.path()).map(|kept| kept.filter(|kept| kept.notes.was_lost(card)));
        if lost()?.is_none() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let Some(mut kept) = lost()? else { return Ok(()) };
        change(&mut kept.notes);
        self.store(&kept)
    }

    /// Clears the records of a card.
    ///
    /// # Errors
    /// The file cannot be written, or its records are invalid.
    pub fn clear(&self, card: &CardUuid) -> Result<(), ChangeError> {
        let _lock = self.lock()?;
        let Some(mut kept) = CardHealth::load(&self.path())? else { return Ok(()) };
        kept.notes.clear(card);
        self.store(&kept)
    }

    /// Clears all records, invalid ones included.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn clear_all(&self) -> Result<(), ChangeError> {
        let _lock = self.lock()?;
        let path = self.path();
        match Disk::default().remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(ChangeError::Disk { path, source })
            }
            _ => Ok(()),
        }
    }

    fn store(&self, health: &CardHealth) -> Result<(), ChangeError> {
        let path = self.path();
        health.store(&path, &Disk::default()).map_err(|source| ChangeError::Disk { path, source })
    }

    fn lock(&self) -> Result<Flock<File>, ChangeError> {
        let path = self.state.join("health.lock");
        let refused = |source: io::Error| ChangeError::Disk { path: path.clone(), source };
        let file = file::to_lock(&path).map_err(refused)?;
        wait::lock(file, WAIT, |_| {}).map_err(|missed| refused(missed.into()))
    }
}
