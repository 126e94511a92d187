//! Whether a node's agent is parked for maintenance, and the slices that it keeps published meanwhile.
//!
//! `<state>/maintenance` is there from the moment at which an agent lets go of the drivers until its node is back.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::disk::{Disk, Mode};
use crate::state_dir::file;

/// Name of the file.
pub const MAINTENANCE: &str = "maintenance";
/// Longest file that is read: a node has at most some hundred KiB of slices.
const BYTES_MAX: u64 = 16 << 20;

/// The file of a state directory.
#[derive(Clone, Debug)]
pub struct MaintenanceFile(PathBuf);

// === impl MaintenanceFile ===

impl MaintenanceFile {
    /// That of this state directory.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self(state.join(MAINTENANCE))
    }

    /// The state directory.
    #[must_use]
    pub fn state(&self) -> &Path {
        self.0.parent().unwrap_or(&self.0)
    }

    /// What it holds; `None`: the agent is not parked.
    ///
    /// # Errors
    /// It cannot be read; whether the agent is parked is unknown then.
    pub fn read(&self) -> io::Result<Option<String>> {
        let file = match file::to_read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    /// Parks the next start of the agent, with these slices.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn write(&self, slices: &str) -> io::Result<()> {
        Disk::default().replace(&self.0, slices.as_bytes(), Mode::Private)
    }

    /// Ends it.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn remove(&self) -> io::Result<()> {
        Disk::default().remove_file(&self.0)
    }
}
