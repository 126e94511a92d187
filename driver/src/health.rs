//! What is held against the cards of a node, in its state directory.
//!
//! ```text
//!  <state>/health        what was seen, for one start of the machine and one load of the driver (checkpoint)
//!  <state>/health.lock   one process at a time changes that
//!  <state>/xids          an admin's own word on what Xids mean, where there is one
//! ```
//!
//! Supervisors of runs note what their card tells them; whoever looks at the cards holds it against them. Readers take no lock.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_backend_nvidia::xid::{OVERRIDES_BYTES_MAX, Xids};
use aliquot_core::card::Inventory;
use aliquot_core::health::{
    Cause, Era, Found, Noted, Notes, Subject, UnixSeconds, hold_against, hold_against_all,
};
use aliquot_core::id::CardUuid;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use crate::checkpoint::{CardHealth, CardHealthError};
use crate::clock::{self, Moment};
use crate::disk::Disk;
use crate::region::open_to_look;

/// Longest that somebody else's change is waited for, and how often is looked.
const WAIT: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// Where it lies.
#[derive(Clone, Debug)]
pub struct HealthBook {
    state: PathBuf,
}

/// Why something is not noted or cleared.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// What is there is not believed, and kept.
    #[error(transparent)]
    Unreadable(#[from] CardHealthError),
    /// The disk refuses, or somebody else is at it.
    #[error("cannot change {}", path.display())]
    Disk {
        /// What.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// This start of the machine, and this load of the driver.
#[must_use]
pub fn era(driver: Option<String>) -> Era {
    Era { boot: Moment::now().boot, driver }
}

// === impl HealthBook ===

impl HealthBook {
    /// That of a state directory.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.state.join("health")
    }

    /// What was seen that still counts.
    ///
    /// # Errors
    /// What is kept is not believed.
    pub fn notes(&self, now: &Era) -> Result<Notes, CardHealthError> {
        let kept = CardHealth::load(&self.path())?.filter(|kept| kept.era.counts_in(now));
        Ok(kept.map(|kept| kept.notes).unwrap_or_default())
    }

    /// What Xids mean here, and what is wrong with the admin's word on it.
    #[must_use]
    pub fn xids(&self) -> (Xids, Vec<String>) {
        let path = self.state.join("xids");
        let mut bytes = Vec::new();
        let longest = u64::try_from(OVERRIDES_BYTES_MAX).unwrap_or(u64::MAX);
        match open_to_look(&path).and_then(|file| file.take(longest + 1).read_to_end(&mut bytes)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Default::default(),
            Err(error) => {
                return (
                    Xids::default(),
                    vec![format!("{}: {error}; Xids mean what they always do", path.display())],
                );
            }
            Ok(_) => {}
        }
        let (xids, mut problems) = Xids::parse(&String::from_utf8_lossy(&bytes));
        if bytes.len() > OVERRIDES_BYTES_MAX {
            problems.push(format!("found more than {OVERRIDES_BYTES_MAX} bytes; the rest is left out"));
        }
        (xids, problems.into_iter().map(|problem| format!("{}: {problem}", path.display())).collect())
    }

    /// Holds what was seen against cards that were found just now.
    pub fn hold_against(&self, inventory: &mut Inventory, driver: Option<String>) {
        let found = if driver.is_some() { Found::Answering } else { Found::Described };
        match self.notes(&era(driver)) {
            Ok(notes) if notes.is_empty() => {}
            Ok(notes) => hold_against(inventory, &notes, found, &self.xids().0),
            Err(error) => hold_against_all(inventory, &error.to_string()),
        }
    }

    /// Notes what was seen in this era, and when; what was seen in another one is over.
    ///
    /// # Errors
    /// The disk refuses, or what is there is not believed.
    pub fn note(&self, now: &Era, of: Subject, cause: Cause, at: UnixSeconds) -> Result<Noted, ChangeError> {
        let _lock = self.lock()?;
        let kept = CardHealth::load(&self.path())?.filter(|kept| kept.era.counts_in(now));
        let mut notes = kept.map(|kept| kept.notes).unwrap_or_default();
        notes.make_room(&of.card, &self.xids().0);
        let noted = notes.note(of, cause, at);
        if noted == Noted::New {
            self.store(&CardHealth { era: now.clone(), notes })?;
        }
        Ok(noted)
    }

    /// A card answers that may have been lost: what was seen of it until then went with its reset, and what comes from now on counts.
    ///
    /// # Errors
    /// The disk refuses, or what is there is not believed.
    pub fn answers(&self, card: &CardUuid) -> Result<(), ChangeError> {
        let lost =
            || CardHealth::load(&self.path()).map(|kept| kept.filter(|kept| kept.notes.was_lost(card)));
        if lost()?.is_none() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let Some(mut kept) = lost()? else { return Ok(()) };
        kept.notes.clear(card);
        self.store(&kept)
    }

    /// Forgets what was seen of a card.
    ///
    /// # Errors
    /// The disk refuses, or what is there is not believed.
    pub fn clear(&self, card: &CardUuid) -> Result<(), ChangeError> {
        let _lock = self.lock()?;
        let Some(mut kept) = CardHealth::load(&self.path())? else { return Ok(()) };
        kept.notes.clear(card);
        self.store(&kept)
    }

    /// Forgets everything, also what is not believed.
    ///
    /// # Errors
    /// The disk refuses.
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
        let mut options = OpenOptions::new();
        // A pipe in its place would be waited for.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let mut file = options.open(&path).map_err(refused)?;
        if !file.metadata().map_err(refused)?.is_file() {
            return Err(refused(io::Error::new(io::ErrorKind::InvalidData, "no plain file")));
        }
        let began = clock::now();
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((file, Errno::EWOULDBLOCK)) if began.elapsed() < WAIT => file,
                Err((_, errno)) => return Err(refused(errno.into())),
            };
            std::thread::sleep(LOOK);
        }
    }
}
