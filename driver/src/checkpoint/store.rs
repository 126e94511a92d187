//! The journal of the process that owns a node's state: in memory, with a log on disk behind it.
//!
//! ```text
//!  commit: line appended ─▶ sync ─▶ acknowledged: applied in memory ─▶ seal overwritten (synced with the next line)
//!              │ failed       │ failed
//!              └──────────────┴─▶ log cut back to what is acknowledged; until that succeeds, the next change
//!                                 replaces the file by a snapshot first
//!  large: snapshot ─▶ temp file ─▶ sync ─▶ rename
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use super::frame::{self, Seal};
use super::{Change, DecodedJournal, Journal, JournalError, JournalFile};
use crate::checkpoint::CLAIMS_MAX;
use crate::disk::Mode;
use crate::state_dir;

/// A log is replaced by a snapshot when it is this many times longer than the last one,
const GROWTH: usize = 3;
/// and longer than this, in bytes.
const SNAPSHOT_AFTER: usize = 256 << 10;

/// The journal of this process. One process at a time has it.
pub struct JournalStore {
    file: JournalFile,
    journal: Journal,
    /// `None` until the first change, if the node is read only or has no journal yet.
    log: Option<Log>,
}

/// The file that is appended to.
struct Log {
    file: File,
    /// End of what is acknowledged.
    end: Seal,
    seal_at: usize,
    header_crc: u32,
    /// Bytes of the snapshot that it began with.
    snapshot: usize,
    /// Whether bytes behind the end may count at the next start.
    doubtful: bool,
}

// === impl JournalStore ===

impl JournalStore {
    /// A journal to look at.
    #[must_use]
    pub const fn to_look(file: JournalFile, journal: Journal) -> Self {
        Self { file, journal, log: None }
    }

    /// Goes on with a journal that was read, or begins one. What was cut short is removed.
    ///
    /// # Errors
    /// [`JournalError::Disk`]; the file is as it was.
    pub fn resume(file: JournalFile, found: Option<DecodedJournal>) -> Result<Self, JournalError> {
        let mut store = Self::to_look(file, Journal::default());
        let Some(found) = found else {
            // From now on an absent journal is a loss, and not the first day.
            store.snapshot()?;
            return Ok(store);
        };
        let file = store.open_log()?;
        let (end, torn, is_sealed) = (found.whole, found.torn_at(), found.sealed == found.whole);
        let (seal_at, header_crc) = (found.seal_at, found.header_crc);
        let log = Log { file, end, seal_at, header_crc, snapshot: end.bytes, doubtful: false };
        if torn.is_some() {
            store.file.disk.before("cut journal").map_err(|e| store.file.failed("cut", e))?;
            log.cut_back().map_err(|e| store.file.failed("cut", e))?;
        }
        if !is_sealed {
            let sealed = store.file.disk.before("seal journal").and_then(|()| log.seal());
            sealed.and_then(|()| log.file.sync_data()).map_err(|e| store.file.failed("seal", e))?;
        }
        (store.journal, store.log) = (found.journal, Some(log));
        Ok(store)
    }

    /// Everything promised.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Its file.
    #[must_use]
    pub const fn file(&self) -> &JournalFile {
        &self.file
    }

    /// Makes a change: on disk first, then in memory. When this returns, it survives a power failure.
    ///
    /// # Errors
    /// [`JournalError::Disk`] or [`JournalError::Full`]; nothing has changed.
    pub fn commit(&mut self, change: Change) -> Result<(), JournalError> {
        let change = change.news_to(&self.journal);
        if change.is_empty() {
            return Ok(());
        }
        self.check_room(&change)?;
        if self.log.as_ref().is_none_or(|log| log.doubtful) {
            self.snapshot()?;
        }
        let Some(log) = &mut self.log else {
            return Err(self.file.failed("open", io::ErrorKind::NotFound.into()));
        };
        let (path, carried) = (self.file.path(), &self.journal.carried);
        let (line, chain) = frame::encode_change(path, &change, carried, log.end.chain)?;
        let end = Seal { bytes: log.end.bytes + line.len(), chain };
        if let Err(source) = log.append(&self.file, line.as_bytes()) {
            log.doubtful = true;
            let cut = self.file.disk.before("cut journal").and_then(|()| log.cut_back());
            log.doubtful = cut.is_err();
            return Err(self.file.failed("append to", source));
        }
        log.end = end;
        self.journal.apply(change);
        // The change is acknowledged whether or not this succeeds; the next line has another try.
        drop(self.file.disk.before("seal journal").and_then(|()| log.seal()));
        if end.bytes > SNAPSHOT_AFTER.max(log.snapshot.saturating_mul(GROWTH)) {
            // A log that stays long costs nothing but room.
            drop(self.snapshot());
        }
        Ok(())
    }

    fn check_room(&self, change: &Change) -> Result<(), JournalError> {
        let new = |entry: &&super::JournalEntry| matches!(entry, super::JournalEntry::Claim(record) if !self.journal.claims.contains_key(&record.plan.claim));
        let found = self.journal.claims.len() + change.entries().iter().filter(new).count();
        if found > CLAIMS_MAX && change.entries().iter().any(|entry| new(&entry)) {
            let (path, what, most) = (self.file.path.clone(), "the number of claims,", CLAIMS_MAX);
            return Err(JournalError::Full { path, what, found, most });
        }
        Ok(())
    }

    /// Puts a file that holds the journal and nothing else in place of the log.
    fn snapshot(&mut self) -> Result<(), JournalError> {
        let text = frame::encode(self.file.path(), &self.journal)?;
        let replaced = self.file.disk.replace(self.file.path(), text.as_bytes(), Mode::Private);
        if let Err(source) = replaced {
            // Which of the two files is in place decides where the next change goes.
            if let Some(log) = &mut self.log {
                log.doubtful |= !log.is_at(&self.file);
            }
            return Err(self.file.failed("replace", source));
        }
        let decoded = frame::decode(self.file.path(), text.as_bytes())?;
        let (seal_at, header_crc, end) = (decoded.seal_at, decoded.header_crc, decoded.whole);
        let file = match self.open_log() {
            Ok(file) => file,
            Err(error) => {
                self.log = None;
                return Err(error);
            }
        };
        self.log = Some(Log { file, end, seal_at, header_crc, snapshot: end.bytes, doubtful: false });
        Ok(())
    }

    fn open_log(&self) -> Result<File, JournalError> {
        state_dir::file::to_change(self.file.path()).map_err(|source| self.file.failed("open", source))
    }
}

// === impl Log ===

impl Log {
    fn append(&self, to: &JournalFile, line: &[u8]) -> io::Result<()> {
        let allowed = to.disk.bytes("append to journal", line.len());
        let at = u64::try_from(self.end.bytes).map_err(io::Error::other)?;
        self.file.write_all_at(line.get(..allowed).unwrap_or(line), at)?;
        if allowed < line.len() {
            return Err(io::Error::other("stopped while writing"));
        }
        to.disk.before("sync journal")?;
        self.file.sync_data()
    }

    fn seal(&self) -> io::Result<()> {
        let at = u64::try_from(self.seal_at).map_err(io::Error::other)?;
        self.file.write_all_at(self.end.line(self.header_crc).as_bytes(), at)
    }

    /// Removes whatever lies behind what is acknowledged.
    fn cut_back(&self) -> io::Result<()> {
        self.file.set_len(u64::try_from(self.end.bytes).map_err(io::Error::other)?)?;
        self.file.sync_data()
    }

    /// Whether this is still the file that a start would find.
    fn is_at(&self, place: &JournalFile) -> bool {
        let (here, there) = (self.file.metadata(), std::fs::metadata(place.path()));
        matches!((here, there), (Ok(here), Ok(there)) if (here.dev(), here.ino()) == (there.dev(), there.ino()))
    }
}
