//! The last good layout policy of a node, and why a later one was refused.
//!
//! ```text
//!  <state>/policy           text of the last policy that an agent accepted
//!  <state>/policy.refused   one line: why the policy that it was given later is not in force
//! ```

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::disk::{Disk, Mode};
use crate::state_dir::file;

/// Name of the file with the last good policy.
const KEPT: &str = "policy";
/// Name of the file with the reason of a refusal.
pub const REFUSED: &str = "policy.refused";
/// Longest file that is read, as for a policy that a person writes.
const BYTES_MAX: u64 = 1 << 20;

/// The files of a state directory.
#[derive(Clone, Debug)]
pub struct KeptPolicy {
    state: PathBuf,
}

// === impl KeptPolicy ===

impl KeptPolicy {
    /// Those of this state directory.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }

    /// The last good policy, if there is one.
    ///
    /// # Errors
    /// The file cannot be read or is no text.
    pub fn text(&self) -> io::Result<Option<String>> {
        self.read(KEPT)
    }

    /// Why the policy that was given last is not in force.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.read(REFUSED).ok().flatten()
    }

    /// Keeps a policy that is in force; without one, none is kept.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn accept(&self, text: Option<&str>) -> io::Result<()> {
        let (disk, kept) = (Disk::default(), self.state.join(KEPT));
        match text {
            // Equal content is not written again at each start.
            Some(text) if self.text().is_ok_and(|kept| kept.as_deref() == Some(text)) => {}
            Some(text) => disk.replace(&kept, text.as_bytes(), Mode::Private)?,
            None => disk.remove_file(&kept)?,
        }
        disk.remove_file(&self.state.join(REFUSED))
    }

    /// Records why a policy is not in force.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn refuse(&self, why: &str) -> io::Result<()> {
        Disk::default().replace(&self.state.join(REFUSED), why.as_bytes(), Mode::Private)
    }

    fn read(&self, name: &str) -> io::Result<Option<String>> {
        let file = match file::to_read(&self.state.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text)?;
        Ok(Some(text))
    }
}
