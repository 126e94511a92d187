//! How a node is opened: its directory, its lock, its journal, and recovery from whatever interrupted the last process.

use std::path::Path;
use std::sync::OnceLock;

use aliquot_cdi::CdiDir;

use super::lock::{lock, must_be_own};
use super::parts::{Dirs, NodeParts, OpenError};
use super::recover::{Recovery, recover};
use super::single::Node;
use super::site::Site;
use super::state::State;

use crate::checkpoint::{JournalFile, JournalStore};
use crate::region::close_to_others;
use crate::state_dir::{self, Access};

// === impl Node ===

impl Node {
    /// Opens a node. For changes, this takes the lock and recovers from whatever interrupted the last process.
    ///
    /// # Errors
    /// The directory or the journal cannot be used; nothing of them is lost.
    pub fn open(parts: NodeParts, dirs: &Dirs, access: Access) -> Result<(Self, Recovery), OpenError> {
        let state = state_dir::make(&dirs.state, access)?;
        let grants = state.join("grants");
        // The user names it, maybe by a symbolic link: /var/run is one.
        let cdi = CdiDir::new(dirs.cdi.clone().unwrap_or_else(|| state.join("cdi")));
        let failed = |verb, path: &Path, source| OpenError::State {
            state: state.clone(),
            verb,
            path: path.to_owned(),
            source,
        };
        let lock = lock(&state, access, parts.on_wait)?;
        let file = JournalFile::new(state.join("journal"), parts.disk.clone());
        let offers = parts.offers.clone().map_or_else(OnceLock::new, OnceLock::from);
        let server = parts.server;
        let (disk, notes) = (parts.disk.clone(), Vec::new());
        let found = match lock {
            Some(_) => file.read()?,
            None => file.load()?,
        };
        match &found {
            Some(found) => must_be_own(&state, &parts.name, &found.journal)?,
            None => file.check_missing(&grants)?,
        }
        if lock.is_none() {
            let store = JournalStore::to_look(file, found.map(|found| found.journal).unwrap_or_default());
            let site = Site::new(parts, state.clone(), grants, cdi);
            return Ok((
                Self { site, state: State::new(store, offers, server), notes, lock },
                Recovery::default(),
            ));
        }
        disk.remove_temp(file.path()).map_err(|e| failed("clean up", file.path(), e))?;
        let store = JournalStore::resume(file, found)?;
        disk.make_dir(&grants).map_err(|e| failed("make", &grants, e))?;
        close_to_others(&grants).map_err(|e| failed("close to others", &grants, e))?;
        let site = Site::new(parts, state.clone(), grants, cdi);
        if let Access::Own(_) = access {
            // Before recovery: claims without a copy of their own share the file.
            site.hold_shim();
        }
        let mut node = Self { site, state: State::new(store, offers, server), notes, lock };
        node.collect_temps().map_err(|e| OpenError::Recovery(Box::new(e)))?;
        let recovery = recover(&mut node).map_err(|e| OpenError::Recovery(Box::new(e)))?;
        Ok((node, recovery))
    }
}
