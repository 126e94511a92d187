//! The journal's file: a frozen header line, then one checksummed record a line.
//!
//! ```text
//! aliquot-journal 1 min-reader 1 records 2 bytes 731 body 1c291ca3 header 90b6f1ae
//! 402 5d3f0b77 {"record":"partition",…}
//! 303 0f0a6c12 {"record":"claim",…}
//! ```
//!
//! `bytes` and `body` are length and CRC-32C of everything after the header line, `header` is the CRC-32C of the line
//! before it; a record line has length and CRC-32C of its JSON. Every byte is covered, so no altered file reads as
//! another one. The header line keeps its form in every version: a reader learns from it whether it may read on.
//! `min-reader` is the lowest version whose readers keep the sense of the file; such a reader carries
//! top-level fields of records that it does not know, and writes them back; a number beyond 64 bits keeps the precision
//! of a double.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::convert::{ConvertError, add_record, to_records};
use super::{Journal, v1};
use crate::disk::{Disk, Mode};

/// Version that this code writes.
pub const VERSION: u32 = 1;
/// Lowest version whose readers understand what this code writes.
pub const MIN_READER: u32 = 1;
/// Most claims: eight cards with seven partitions and ten shares each are 560.
pub const CLAIMS_MAX: usize = 4096;
/// Longest record, in bytes: a claim of 32 devices takes less than 16 KiB.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// Longest file, in bytes; checked before anything is read.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Longest header line, in bytes: all numbers at their largest.
const HEADER_BYTES_MAX: usize = 128;
/// First word of the file.
const MAGIC: &str = "aliquot-journal";

/// What a person can do about a file that cannot be read; every message ends with it.
const ADVICE: &str = "The file is kept as it is. Put a good copy in its place; or drain the node, destroy its \
                      partitions, move the file and the directory `grants` away, and start again";

/// What a person can do about a disk that refuses.
fn remedy(refusal: &io::Error) -> &'static str {
    match refusal.kind() {
        io::ErrorKind::PermissionDenied => "become a user who may, or name another directory",
        _ => "free space or mend the directory",
    }
}

/// The versions in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    version: u32,
    min_reader: u32,
}

/// Why the journal is not read or not written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk refuses; the file is as it was.
    #[error("journal {}: cannot {verb} it; it is as it was; {}, and try again", path.display(), remedy(source))]
    Disk {
        /// The file.
        path: PathBuf,
        /// What was tried.
        verb: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is damaged.
    #[error("journal {}: damaged at byte {offset}: found {found}; expected {expected}. {ADVICE}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: usize,
        /// As found.
        found: String,
        /// What belongs there.
        expected: String,
    },
    /// The file is of a newer version, whose sense this one would lose.
    #[error(
        "journal {}: version {version} wants a reader of version {min_reader} or later, this one has {VERSION}: start \
         the newer program. {ADVICE}",
        path.display()
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// Lowest version that may read it.
        min_reader: u32,
    },
    /// A whole record is not one of ours.
    #[error("journal {}: the record at byte {offset} is refused: {source}. {ADVICE}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        offset: usize,
        /// Why.
        source: Box<ConvertError>,
    },
    /// The file is far larger than ours can be.
    #[error("journal {}: {found} bytes; expected at most {FILE_BYTES_MAX}. {ADVICE}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// There is no journal, yet there are grants of one.
    #[error("journal {} is missing, but {} holds grants of claims. {ADVICE}", path.display(), grants.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// Where the grants are.
        grants: PathBuf,
    },
    /// More is promised than a journal may hold.
    #[error("journal {}: {what} {found} is more than {most}: release claims first", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: usize,
        /// The bound.
        most: usize,
    },
}

/// The journal of one state directory.
#[derive(Clone)]
pub struct JournalFile {
    path: PathBuf,
    disk: Disk,
}

/// A place in the text that is wrong.
struct Wrong {
    offset: usize,
    found: String,
    expected: String,
}

/// The header line, read.
struct HeaderLine {
    header: Header,
    records: usize,
    bytes: usize,
    body_crc: u32,
    length: usize,
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

    /// What it holds; `None` where there is no file.
    ///
    /// # Errors
    /// It cannot be read; it stays as it is.
    pub fn load(&self) -> Result<Option<Journal>, JournalError> {
        let failed = |source| JournalError::Disk { path: self.path.clone(), verb: "read", source };
        let file = match File::open(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let found = file.metadata().map_err(failed)?.len();
        if found > FILE_BYTES_MAX {
            return Err(JournalError::TooLarge { path: self.path.clone(), found });
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        decode(&self.path, &bytes).map(Some)
    }

    /// Puts these promises in place of the earlier ones; when this returns, they survive a power failure.
    ///
    /// # Errors
    /// The disk refuses, or it is more than a journal may hold; the file is as it was.
    pub fn store(&self, journal: &Journal) -> Result<(), JournalError> {
        let text = encode(&self.path, journal)?;
        self.disk.replace(&self.path, text.as_bytes(), Mode::Private).map_err(|source| JournalError::Disk {
            path: self.path.clone(),
            verb: "replace",
            source,
        })
    }

    /// Refuses a directory whose grants have lost their journal.
    ///
    /// # Errors
    /// There are grants.
    pub fn check_missing(&self, grants: &Path) -> Result<(), JournalError> {
        match fs::read_dir(grants).map(|mut entries| entries.next().is_some()) {
            Ok(true) => Err(JournalError::Missing { path: self.path.clone(), grants: grants.to_owned() }),
            Ok(false) | Err(_) => Ok(()),
        }
    }
}

/// The text of a journal; `path` is for messages.
///
/// # Errors
/// It is more than a journal may hold.
pub fn encode(path: &Path, journal: &Journal) -> Result<String, JournalError> {
    let full = |what, found, most| JournalError::Full { path: path.to_owned(), what, found, most };
    if journal.claims.len() > CLAIMS_MAX {
        return Err(full("the number of claims,", journal.claims.len(), CLAIMS_MAX));
    }
    let records = to_records(journal);
    let mut body = String::new();
    for record in &records {
        let json = serde_json::to_string(record).map_err(|e| JournalError::Disk {
            path: path.to_owned(),
            verb: "render",
            source: io::Error::other(e),
        })?;
        if json.len() > RECORD_BYTES_MAX {
            return Err(full("the length of a record,", json.len(), RECORD_BYTES_MAX));
        }
        let written = writeln!(body, "{} {:08x} {json}", json.len(), crc32c::crc32c(json.as_bytes()));
        written.map_err(|e| JournalError::Disk {
            path: path.to_owned(),
            verb: "render",
            source: io::Error::other(e),
        })?;
    }
    let header = journal.carried.header.unwrap_or(Header { version: VERSION, min_reader: MIN_READER });
    Ok(header.line(records.len(), &body) + &body)
}

/// The journal in these bytes; `path` is for messages.
///
/// # Errors
/// They are not a journal that this version may read.
pub fn decode(path: &Path, bytes: &[u8]) -> Result<Journal, JournalError> {
    let damaged = |wrong: Wrong| JournalError::Damaged {
        path: path.to_owned(),
        offset: wrong.offset,
        found: wrong.found,
        expected: wrong.expected,
    };
    let line = HeaderLine::read(bytes).map_err(damaged)?;
    let Header { version, min_reader } = line.header;
    if min_reader > VERSION {
        return Err(JournalError::TooNew { path: path.to_owned(), version, min_reader });
    }
    let body = bytes.get(line.length..).unwrap_or_default();
    if body.len() != line.bytes {
        let (found, expected) = (format!("{} bytes", body.len()), format!("{} bytes", line.bytes));
        return Err(damaged(Wrong { offset: line.length + body.len().min(line.bytes), found, expected }));
    }
    let mut journal = Journal::default();
    let mut at = 0;
    for _ in 0..line.records {
        let offset = line.length + at;
        let (record, next) = read_record(body, at, line.length).map_err(damaged)?;
        add_record(record, &mut journal).map_err(|source| JournalError::Record {
            path: path.to_owned(),
            offset,
            source: Box::new(source),
        })?;
        at = next;
    }
    let crc = crc32c::crc32c(body);
    if at != body.len() || crc != line.body_crc {
        let found = format!("{} more bytes, checksum {crc:08x}", body.len() - at);
        let expected = format!("the end, checksum {:08x}", line.body_crc);
        return Err(damaged(Wrong { offset: line.length + at, found, expected }));
    }
    if version > VERSION {
        journal.carried.header = Some(line.header);
    } else if let Some((key, fields)) = journal.carried.fields.first_key_value() {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        let found = format!("unknown field {} in {key}", names.join(", "));
        return Err(damaged(Wrong { offset: 0, found, expected: "fields of version 1 alone".to_owned() }));
    }
    Ok(journal)
}

fn read_record(body: &[u8], at: usize, base: usize) -> Result<(v1::Record, usize), Wrong> {
    let wrong = |at: usize, found: String, expected: &str| Wrong {
        offset: base + at,
        found,
        expected: expected.to_owned(),
    };
    let rest = body.get(at..).unwrap_or_default();
    let head_end = rest.iter().take(HEADER_BYTES_MAX).enumerate().filter(|(_, b)| **b == b' ').nth(1);
    let head = head_end.and_then(|(end, _)| rest.get(..end)).and_then(|h| std::str::from_utf8(h).ok());
    let head = head.ok_or_else(|| wrong(at, excerpt(rest), "length and checksum of a record"))?;
    let fields = head.split_once(' ').and_then(|(l, c)| Some((decimal(l)?, checksum(c)?)));
    let (length, crc) = fields.ok_or_else(|| wrong(at, excerpt(rest), "length and checksum of a record"))?;
    if length > RECORD_BYTES_MAX {
        return Err(wrong(at, format!("a record of {length} bytes"), "at most 65536"));
    }
    let start = at + head.len() + 1;
    let json = body.get(start..start + length);
    let json =
        json.ok_or_else(|| wrong(start, excerpt(body.get(start..).unwrap_or_default()), "a whole record"))?;
    let found = crc32c::crc32c(json);
    if found != crc {
        return Err(wrong(start, format!("checksum {found:08x}"), &format!("checksum {crc:08x}")));
    }
    if body.get(start + length) != Some(&b'\n') {
        return Err(wrong(
            start + length,
            excerpt(body.get(start + length..).unwrap_or_default()),
            "the end of a line",
        ));
    }
    let record = serde_json::from_slice(json);
    let record = record.map_err(|e| wrong(start, e.to_string(), "a record of version 1"))?;
    Ok((record, start + length + 1))
}

// === impl Header ===

impl Header {
    fn line(self, records: usize, body: &str) -> String {
        let Self { version, min_reader } = self;
        let (bytes, crc) = (body.len(), crc32c::crc32c(body.as_bytes()));
        let text = format!(
            "{MAGIC} {version} min-reader {min_reader} records {records} bytes {bytes} body {crc:08x} header "
        );
        format!("{text}{:08x}\n", crc32c::crc32c(text.as_bytes()))
    }
}

// === impl HeaderLine ===

impl HeaderLine {
    fn read(bytes: &[u8]) -> Result<Self, Wrong> {
        let wrong =
            |expected: &str| Wrong { offset: 0, found: excerpt(bytes), expected: expected.to_owned() };
        let end = bytes.iter().take(HEADER_BYTES_MAX).position(|b| *b == b'\n');
        let line = end.and_then(|end| bytes.get(..end)).and_then(|l| std::str::from_utf8(l).ok());
        let line = line.ok_or_else(|| wrong("the header line of a journal"))?;
        let words: Vec<&str> = line.split(' ').collect();
        let &[
            MAGIC,
            version,
            "min-reader",
            min_reader,
            "records",
            records,
            "bytes",
            length,
            "body",
            body,
            "header",
            own,
        ] = words.as_slice()
        else {
            return Err(wrong("the header line of a journal"));
        };
        let covered = line.len() - own.len();
        let crc = line.get(..covered).map(|text| crc32c::crc32c(text.as_bytes()));
        if checksum(own).is_none() || checksum(own) != crc {
            let expected = format!("header checksum {:08x}", crc.unwrap_or_default());
            return Err(Wrong { offset: covered, found: own.to_owned(), expected });
        }
        let numbers = || {
            Some(Self {
                header: Header {
                    version: u32::try_from(decimal(version)?).ok()?,
                    min_reader: u32::try_from(decimal(min_reader)?).ok()?,
                },
                records: decimal(records)?,
                bytes: decimal(length)?,
                body_crc: checksum(body)?,
                length: line.len() + 1,
            })
        };
        numbers().ok_or_else(|| wrong("numbers in the header line"))
    }
}

/// A number as we write it: no sign, no leading zero.
fn decimal(text: &str) -> Option<usize> {
    let plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
    if plain { text.parse().ok() } else { None }
}

/// A checksum as we write it: eight lower-case digits.
fn checksum(text: &str) -> Option<u32> {
    let plain = text.len() == 8 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if plain { u32::from_str_radix(text, 16).ok() } else { None }
}

/// The beginning of some bytes, for people.
fn excerpt(bytes: &[u8]) -> String {
    match bytes.get(..24.min(bytes.len())) {
        Some([]) | None => "the end of the file".to_owned(),
        Some(start) => format!("{:?}", String::from_utf8_lossy(start)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_of_a_refusal_removes_its_cause() {
        let said = |kind: io::ErrorKind| {
            JournalError::Disk { path: "j".into(), verb: "read", source: kind.into() }.to_string()
        };
        let head = "journal j: cannot read it; it is as it was; ";
        let of_rights = format!("{head}become a user who may, or name another directory, and try again");
        assert_eq!(said(io::ErrorKind::PermissionDenied), of_rights);
        let of_space = format!("{head}free space or mend the directory, and try again");
        assert_eq!(said(io::ErrorKind::StorageFull), of_space);
    }
}
