//! The journal's bytes: a frozen header line, the seal, then one checksummed change a line.
//!
//! ```text
//! aliquot-journal 1 min-reader 1 header 90b6f1ae
//! sealed 00000000000000000841 chain 0f0a6c12 seal 5d3f0b77
//! 402 5d3f0b77 [{"record":"partition",…}]
//! 303 0f0a6c12 [{"record":"claim",…}]
//! ```
//!
//! | bytes | covered by |
//! |---|---|
//! | header line | `header`: the CRC-32C of the line before it |
//! | seal | `seal`: the CRC-32C of header and seal before it; its length is fixed, so that it is overwritten in place |
//! | a line | its length, and the chain: the CRC-32C of header and all JSON up to and including its own |
//! | lines up to `sealed` bytes of the file | `chain`: the last line's; a line that is absent, repeated or moved breaks it |
//!
//! Behind the sealed bytes follow whole lines, then at most one that was cut short. The header line keeps its form in every
//! version: a reader learns from it whether it may read on. `min-reader` is the lowest version with readers that keep
//! the sense of the file; such a reader carries top-level fields of claims and partitions that it does not know, and
//! writes them back; a number beyond 64 bits keeps the precision of a double.

use std::io;
use std::path::Path;

use super::bounds::{CLAIMS_MAX, MIN_READER, RECORD_BYTES_MAX, VERSION};
use super::convert::{add_record, to_record, to_records};
use super::journal::Header;
use super::{Change, Journal, JournalError, NewerFields, v1};

/// Longest header line, in bytes: all numbers at their largest.
const HEADER_BYTES_MAX: usize = 128;
/// First word of the file.
const MAGIC: &str = "aliquot-journal";

/// How far a log is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    /// Bytes of the file that are.
    pub(super) bytes: usize,
    /// The chain there.
    pub(super) chain: u32,
}

/// A journal, read.
#[derive(Clone, Debug)]
pub struct DecodedJournal {
    /// Everything that counts.
    pub journal: Journal,
    /// End of the last whole line, and the chain there.
    pub(super) whole: Seal,
    /// What the file says of that.
    pub(super) sealed: Seal,
    /// Where the seal stands.
    pub(super) seal_at: usize,
    /// Checksum of the header line, with which seal and chain begin.
    pub(super) header_crc: u32,
    /// Bytes that were read.
    pub(super) length: usize,
}

/// A place in the text that is wrong.
struct Wrong {
    offset: usize,
    found: String,
    expected: String,
}

// === impl DecodedJournal ===

impl DecodedJournal {
    /// Where a line was cut short that was never acknowledged.
    #[must_use]
    pub fn torn_at(&self) -> Option<usize> {
        (self.whole.bytes < self.length).then_some(self.whole.bytes)
    }
}

/// The text of a journal that holds this and nothing else; `path` is for messages.
///
/// # Errors
/// It is more than a journal may hold.
pub fn encode(path: &Path, journal: &Journal) -> Result<String, JournalError> {
    let full = |what, found, most| JournalError::Full { path: path.to_owned(), what, found, most };
    if journal.claims.len() > CLAIMS_MAX {
        return Err(full("the number of claims,", journal.claims.len(), CLAIMS_MAX));
    }
    let header = journal.carried.header.unwrap_or(Header { version: VERSION, min_reader: MIN_READER }).line();
    let header_crc = crc32c::crc32c(header.as_bytes());
    let (mut body, mut chain) = (String::new(), header_crc);
    for record in to_records(journal) {
        let (line, next) = line_of(path, &[record], chain)?;
        (body, chain) = (body + &line, next);
    }
    let bytes = header.len() + Seal::LENGTH + body.len();
    Ok(header + &Seal { bytes, chain }.line(header_crc) + &body)
}

/// The line of a change behind this chain, and the chain behind the line.
pub(super) fn encode_change(
    path: &Path,
    change: &Change,
    carried: &NewerFields,
    chain: u32,
) -> Result<(String, u32), JournalError> {
    let records: Vec<v1::Record> = change.entries().iter().map(|entry| to_record(entry, carried)).collect();
    line_of(path, &records, chain)
}

fn line_of(path: &Path, records: &[v1::Record], chain: u32) -> Result<(String, u32), JournalError> {
    let json = serde_json::to_string(records).map_err(|e| JournalError::Disk {
        path: path.to_owned(),
        verb: "render",
        source: io::Error::other(e),
    })?;
    if json.len() > RECORD_BYTES_MAX {
        let (what, found, most) = ("the length of a change,", json.len(), RECORD_BYTES_MAX);
        return Err(JournalError::Full { path: path.to_owned(), what, found, most });
    }
    let chain = crc32c::crc32c_append(chain, json.as_bytes());
    Ok((format!("{} {chain:08x} {json}\n", json.len()), chain))
}

/// The journal in these bytes; `path` is for messages.
///
/// # Errors
/// They are not a journal that this version may read.
pub fn decode(path: &Path, bytes: &[u8]) -> Result<DecodedJournal, JournalError> {
    let damaged = |wrong: Wrong| JournalError::Damaged {
        path: path.to_owned(),
        offset: wrong.offset,
        found: wrong.found,
        expected: wrong.expected,
    };
    let (header, seal_at) = Header::read(bytes).map_err(damaged)?;
    let Header { version, min_reader } = header;
    if min_reader > VERSION {
        return Err(JournalError::TooNew { path: path.to_owned(), version, min_reader });
    }
    let header_crc = crc32c::crc32c(bytes.get(..seal_at).unwrap_or_default());
    let sealed = Seal::read(bytes, seal_at, header_crc).map_err(damaged)?;
    if bytes.len() < sealed.bytes {
        let (found, expected) =
            (format!("the end of the file, at {} bytes", bytes.len()), format!("{} bytes", sealed.bytes));
        return Err(damaged(Wrong { offset: bytes.len(), found, expected }));
    }
    let mut journal = Journal::default();
    let start = Seal { bytes: seal_at, chain: header_crc };
    let mut whole = Seal { bytes: seal_at + Seal::LENGTH, chain: header_crc };
    sealed.passed_by(start, whole).map_err(damaged)?;
    while whole.bytes < bytes.len() {
        let (records, next) = match read_line(bytes, whole) {
            Ok(line) => line,
            Err(_) if whole.bytes >= sealed.bytes && bytes.get(whole.bytes..).is_some_and(is_torn) => break,
            Err(wrong) => return Err(damaged(wrong)),
        };
        sealed.passed_by(whole, next).map_err(damaged)?;
        for record in records {
            add_record(record, &mut journal).map_err(|source| JournalError::Record {
                path: path.to_owned(),
                offset: whole.bytes,
                source: Box::new(source),
            })?;
        }
        whole = next;
    }
    if version > VERSION {
        journal.carried.header = Some(header);
    } else if let Some((key, fields)) = journal.carried.fields.first_key_value() {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        let found = format!("unknown field {} in {key}", names.join(", "));
        return Err(damaged(Wrong { offset: 0, found, expected: "fields of version 1 alone".to_owned() }));
    }
    Ok(DecodedJournal { journal, whole, sealed, seal_at, header_crc, length: bytes.len() })
}

/// The line at this place, and the place behind it.
fn read_line(bytes: &[u8], from: Seal) -> Result<(Vec<v1::Record>, Seal), Wrong> {
    let at = from.bytes;
    let wrong =
        |offset: usize, found: String, expected: &str| Wrong { offset, found, expected: expected.to_owned() };
    let rest = bytes.get(at..).unwrap_or_default();
    let head_end = rest.iter().take(HEADER_BYTES_MAX).enumerate().filter(|(_, b)| **b == b' ').nth(1);
    let head = head_end.and_then(|(end, _)| rest.get(..end)).and_then(|h| std::str::from_utf8(h).ok());
    let head = head.ok_or_else(|| wrong(at, excerpt(rest), "length and checksum of a change"))?;
    let fields = head.split_once(' ').and_then(|(l, c)| Some((decimal(l)?, checksum(c)?)));
    let (length, crc) = fields.ok_or_else(|| wrong(at, excerpt(rest), "length and checksum of a change"))?;
    if length > RECORD_BYTES_MAX {
        return Err(wrong(at, format!("a change of {length} bytes"), "at most 65536"));
    }
    let start = at + head.len() + 1;
    let rest = bytes.get(start..).unwrap_or_default();
    let json = rest.get(..length).ok_or_else(|| wrong(start, excerpt(rest), "a whole change"))?;
    let chain = crc32c::crc32c_append(from.chain, json);
    if chain != crc {
        return Err(wrong(start, format!("checksum {chain:08x}"), &format!("checksum {crc:08x}")));
    }
    if rest.get(length) != Some(&b'\n') {
        return Err(wrong(
            start + length,
            excerpt(rest.get(length..).unwrap_or_default()),
            "the end of a line",
        ));
    }
    let records = serde_json::from_slice(json);
    let records = records.map_err(|e| wrong(start, e.to_string(), "records of version 1"))?;
    Ok((records, Seal { bytes: start + length + 1, chain }))
}

/// Whether these last bytes of a file are the beginning of one line, and nothing else: what a kill in a write leaves. Zeros
/// at the end stand for bytes that a power failure kept from the disk.
fn is_torn(rest: &[u8]) -> bool {
    let written = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let written = rest.get(..written).unwrap_or_default();
    let text = match std::str::from_utf8(written) {
        Ok(text) => text,
        // The last character may be cut as well.
        Err(cut) if cut.error_len().is_none() => written
            .get(..cut.valid_up_to())
            .and_then(|text| std::str::from_utf8(text).ok())
            .unwrap_or_default(),
        Err(_) => return false,
    };
    let most = longest_line_from(text);
    most.is_some_and(|most| rest.len() <= most && written.len() < most)
}

/// How long the line that begins like this can be; `None`: no line begins like this.
fn longest_line_from(text: &str) -> Option<usize> {
    const AT_MOST: usize = "65536 01234567 \n".len() + RECORD_BYTES_MAX;
    let mut words = text.splitn(3, ' ');
    let (length, crc, json) = (words.next().unwrap_or_default(), words.next(), words.next());
    if text.is_empty() {
        return Some(AT_MOST);
    }
    let bytes = decimal(length).filter(|length| (1..=RECORD_BYTES_MAX).contains(length))?;
    let Some(crc) = crc else { return Some(AT_MOST) };
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if crc.len() > 8 || !crc.bytes().all(hex) {
        return None;
    }
    let whole = length.len() + " 01234567 \n".len() + bytes;
    let Some(json) = json else { return Some(whole) };
    let begins = json.is_empty() || json.starts_with('[');
    (crc.len() == 8 && begins && !json.contains('\n')).then_some(whole)
}

// === impl Header ===

impl Header {
    fn line(self) -> String {
        let Self { version, min_reader } = self;
        let text = format!("{MAGIC} {version} min-reader {min_reader} header ");
        format!("{text}{:08x}\n", crc32c::crc32c(text.as_bytes()))
    }

    /// The header line, and its length.
    fn read(bytes: &[u8]) -> Result<(Self, usize), Wrong> {
        let wrong =
            |expected: &str| Wrong { offset: 0, found: excerpt(bytes), expected: expected.to_owned() };
        let end = bytes.iter().take(HEADER_BYTES_MAX).position(|b| *b == b'\n');
        let line = end.and_then(|end| bytes.get(..end)).and_then(|l| std::str::from_utf8(l).ok());
        let line = line.ok_or_else(|| wrong("the header line of a journal"))?;
        let words: Vec<&str> = line.split(' ').collect();
        let &[MAGIC, version, "min-reader", min_reader, "header", own] = words.as_slice() else {
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
                version: u32::try_from(decimal(version)?).ok()?,
                min_reader: u32::try_from(decimal(min_reader)?).ok()?,
            })
        };
        Ok((numbers().ok_or_else(|| wrong("numbers in the header line"))?, line.len() + 1))
    }
}

// === impl Seal ===

impl Seal {
    /// Bytes of a seal.
    pub(super) const LENGTH: usize = "sealed 00000000000000000000 chain 00000000 seal 00000000\n".len();

    /// The line of a seal below this header.
    pub(super) fn line(self, header_crc: u32) -> String {
        let text = format!("sealed {:020} chain {:08x} seal ", self.bytes, self.chain);
        format!("{text}{:08x}\n", crc32c::crc32c_append(header_crc, text.as_bytes()))
    }

    fn read(bytes: &[u8], at: usize, header_crc: u32) -> Result<Self, Wrong> {
        let rest = bytes.get(at..).unwrap_or_default();
        let wrong =
            || Wrong { offset: at, found: excerpt(rest), expected: "the seal of a journal".to_owned() };
        let line =
            rest.get(..Self::LENGTH).and_then(|line| std::str::from_utf8(line).ok()).ok_or_else(wrong)?;
        let words: Vec<&str> = line.trim_end_matches('\n').split(' ').collect();
        let &["sealed", length, "chain", chain, "seal", _] = words.as_slice() else { return Err(wrong()) };
        let digits = length.bytes().all(|byte| byte.is_ascii_digit());
        let read = || Some(Self { bytes: digits.then(|| length.parse().ok())??, chain: checksum(chain)? });
        let seal = read().ok_or_else(wrong)?;
        // It stands there exactly as it would be written.
        if seal.line(header_crc) == line { Ok(seal) } else { Err(wrong()) }
    }

    /// Refuses a line, from one place to another, that contradicts the seal.
    fn passed_by(self, from: Self, to: Self) -> Result<(), Wrong> {
        let (offset, sealed) = (from.bytes, self.bytes);
        if to.bytes == sealed && to.chain != self.chain {
            let (found, expected) = (format!("checksum {:08x}", to.chain), format!("{:08x}", self.chain));
            return Err(Wrong {
                offset,
                found,
                expected: format!("checksum {expected}, as the seal has it"),
            });
        }
        if from.bytes < sealed && sealed < to.bytes {
            let found = format!("a line up to byte {}", to.bytes);
            return Err(Wrong {
                offset,
                found,
                expected: format!("one up to byte {sealed}, as the seal has it"),
            });
        }
        Ok(())
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
