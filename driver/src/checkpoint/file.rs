//! The journal's file, read.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::bounds::FILE_BYTES_MAX;
use super::{DecodedJournal, JournalError, decode};
use crate::disk::Disk;
use crate::state_dir;

/// How often a file is read again that changes meanwhile.
const READS_MAX: usize = 50;
/// Time between two reads of a file that changes.
const BETWEEN_READS: Duration = Duration::from_millis(2);

/// The journal of one state directory.
#[derive(Clone)]
pub struct JournalFile {
    pub(super) path: PathBuf,
    pub(super) disk: Disk,
}

// === impl JournalFile ===

impl JournalFile {
    /// The journal at this path.
    #[must_use]
    pub const fn new(path: PathBuf, disk: Disk) -> Self {
        Self { path, disk }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds now, beside a process that may append to it; `None` where there is no file.
    ///
    /// # Errors
    /// [`JournalError`]; the file stays as it is.
    pub fn load(&self) -> Result<Option<DecodedJournal>, JournalError> {
        let mut earlier = None;
        for _ in 1..READS_MAX {
            let Some(bytes) = self.bytes()? else { return Ok(None) };
            match decode(&self.path, &bytes) {
                // A line or the seal may be on its way: a damaged file stays the same.
                Err(JournalError::Damaged { .. }) if earlier.as_ref() != Some(&bytes) => {
                    earlier = Some(bytes);
                }
                decoded => return decoded.map(Some),
            }
            thread::sleep(BETWEEN_READS);
        }
        self.read()
    }

    /// What it holds, with how far it is whole; `None` where there is no file. No other process appends meanwhile.
    ///
    /// # Errors
    /// [`JournalError`]; the file stays as it is.
    pub(crate) fn read(&self) -> Result<Option<DecodedJournal>, JournalError> {
        let Some(bytes) = self.bytes()? else { return Ok(None) };
        decode(&self.path, &bytes).map(Some)
    }

    fn bytes(&self) -> Result<Option<Vec<u8>>, JournalError> {
        let failed = |source| self.failed("read", source);
        let file = match state_dir::file::to_read(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let found = file.metadata().map_err(failed)?.len();
        if found > FILE_BYTES_MAX {
            return Err(JournalError::TooLarge { path: self.path.clone(), found });
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        Ok(Some(bytes))
    }

    /// Refuses a directory with grants and no journal.
    ///
    /// # Errors
    /// There are grants.
    pub fn check_missing(&self, grants: &Path) -> Result<(), JournalError> {
        match fs::read_dir(grants).map(|mut entries| entries.next().is_some()) {
            Ok(true) => Err(JournalError::Missing { path: self.path.clone(), grants: grants.to_owned() }),
            Ok(false) | Err(_) => Ok(()),
        }
    }

    pub(super) fn failed(&self, verb: &'static str, source: io::Error) -> JournalError {
        JournalError::Disk { path: self.path.clone(), verb, source }
    }
}
