//! A support archive, `aliquot bundle`: what a machine, its agent and its cluster said at one moment, as files of one `tar.gz`.
//!
//! ```text
//!  commands of this program (60 s each) ─┐
//!  answers of the API server             ├─▶ Entry { path, bytes | why not } ─▶ Archive ─▶ PREFIX/… , at last PREFIX/README.txt
//!  files (bounded, links not followed)   ─┘
//! ```
//! Entries are written as they come, so that one at a time is in memory. What tenants can make large comes last. Each part stands alone: one that cannot be had is named with its reason in `README.txt`, and hides no other. Nothing on the
//! machine is changed. What may carry a secret is not read: environments, arguments of commands, Secrets, ConfigMaps, the
//! environment and arguments in Pods. Names are of this program alone; contents may be a tenant's, and are never run.

pub mod commands;
pub mod files;

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use aliquot_core::health::UnixSeconds;

/// Most bytes of one entry; the rest is left out, and said.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;
/// Most bytes of all entries before compression.
pub const ARCHIVE_BYTES_MAX: usize = 512 << 20;

/// One file of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path below the archive's directory.
    pub path: String,
    /// Its bytes, or why it is absent.
    pub content: Result<Vec<u8>, String>,
    /// How many bytes there were, of which these are the first or the last.
    pub whole: usize,
}

/// Takes the entries.
pub type Sink<'a> = dyn FnMut(Entry) -> io::Result<()> + 'a;

/// An archive that is being written.
pub struct Archive<W: Write> {
    tar: tar::Builder<GzEncoder<W>>,
    prefix: String,
    made: UnixSeconds,
    room: usize,
    index: String,
    absent: usize,
}

/// What an archive holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Files.
    pub files: usize,
    /// Parts that could not be had; each has its reason in `README.txt`.
    pub absent: usize,
}

// === impl Entry ===

impl Entry {
    /// An entry with these bytes.
    #[must_use]
    pub fn of(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self { path: path.into(), whole: bytes.len(), content: Ok(bytes) }
    }

    /// An entry that cannot be had.
    #[must_use]
    pub fn absent(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), content: Err(why.into()), whole: 0 }
    }
}

// === impl Archive ===

impl<W: Write> Archive<W> {
    /// An empty archive whose files lie in the directory `prefix`.
    pub fn new(out: W, prefix: &str, made: UnixSeconds) -> Self {
        let tar = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        Self {
            tar,
            prefix: prefix.to_owned(),
            made,
            room: ARCHIVE_BYTES_MAX,
            index: String::new(),
            absent: 0,
        }
    }

    /// Adds an entry: its bytes as far as limits allow, or a line that says why it is absent.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn add(&mut self, entry: Entry) -> io::Result<()> {
        let bytes = match entry.content {
            Ok(bytes) => bytes,
            Err(why) => {
                self.absent += 1;
                let why = crate::printable::line_of(&why, 400);
                self.index.push_str(&format!("absent  {}: {why}\n", entry.path));
                return Ok(());
            }
        };
        let kept = bytes.len().min(ENTRY_BYTES_MAX).min(self.room);
        let cut = match kept < entry.whole {
            true => format!(", of {}", entry.whole),
            false => String::new(),
        };
        self.room -= kept;
        self.index.push_str(&format!("{kept:>10}  {}{cut}\n", entry.path));
        self.append(&entry.path, bytes.get(..kept).unwrap_or_default())
    }

    /// Ends the archive with its `README.txt`.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn finish(mut self, about: &str) -> io::Result<Contents> {
        let files = self.index.lines().filter(|line| !line.starts_with("absent")).count();
        let text = format!("{about}\nBytes and name of each file, or why it is absent:\n\n{}", self.index);
        self.append("README.txt", text.as_bytes())?;
        self.tar.into_inner()?.finish()?.flush()?;
        Ok(Contents { files, absent: self.absent })
    }

    fn append(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.made.0);
        self.tar.append_data(&mut header, format!("{}/{path}", self.prefix), bytes)
    }
}

#[cfg(test)]
#[path = "bundle/tests.rs"]
mod tests;
