//! Context sizes on each card, as this host measured them with one version of the driver.
//!
//! ```text
//! aliquot-contexts 2 2b1f33c0
//! driver 580.65.06
//! GPU-a11c0de0-51a0-4c4d-8000-000000000000 whole 503316480 21 21
//! GPU-a11c0de0-51a0-4c4d-8000-000000000001 1g.10gb 260046848 0 0
//! GPU-a11c0de0-51a0-4c4d-8000-000000000002 whole failed 5a9c…-0e1f 7203 no context was there within 20 s
//! ```
//!
//! Behind a size are the pages of the driver, as powers of two: of memory with an address, and of arrays; 0 is not measured.
//!
//! A slow failure is stored for some minutes, with the boot and the seconds since then, so that not every claim waits for it
//! again.
//!
//! The number in the first line is the CRC-32C of all following lines. The file is a cache: all of it is measured again if the
//! file is missing, damaged or foreign, or of another format version or driver. A damaged or foreign file is reported.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use aliquot_abi::limits::Pages;
use aliquot_core::id::{CardUuid, TemplateName};
use aliquot_core::units::Bytes;

use crate::clock::Moment;
use crate::disk::{Disk, Mode};
use crate::region::{Footprint, open_to_look};

/// First word of the file.
const MAGIC: &str = "aliquot-contexts ";
/// Second word: the version of the format.
const VERSION: &str = "2";
/// Begins the line of the driver.
const DRIVER: &str = "driver ";
/// In the place of a template: the card as it is.
const WHOLE: &str = "whole";
/// In the place of a size: it could not be measured.
const FAILED: &str = "failed";
/// Longest file that is read: a line takes less than 512 bytes, and no machine has more than 512 parts to measure.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Longest reason that is stored.
const WHY_BYTES_MAX: usize = 256;
/// Largest plausible size: no card has more memory.
const LARGEST: Bytes = Bytes(1 << 40);

/// The device of a context: a card, or partitions of it of one template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContextDevice {
    /// Card.
    pub card: CardUuid,
    /// `None`: the card as it is.
    pub template: Option<TemplateName>,
}

/// Longest time that a failure is stored: after a repair of the card or its driver, the size is measured within this time.
pub const FAILURE_KEPT: Duration = Duration::from_secs(300);

/// Measurements with one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextSizes {
    driver: String,
    found: BTreeMap<ContextDevice, ContextFinding>,
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ContextFinding {
    Size(Footprint),
    Failed { at: Moment, why: String },
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum SizesFault {
    /// It cannot be opened or read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is torn, altered, too long or foreign.
    #[error(
        "content: found bytes that do not match the checksum or the form, expected {MAGIC:?} and its lines"
    )]
    Damaged,
}

// === impl ContextSizes ===

impl ContextSizes {
    /// No measurements.
    #[must_use]
    pub fn none(driver: &str) -> Self {
        Self { driver: driver.to_owned(), found: BTreeMap::new() }
    }

    /// The measurements of a file with this driver; none if the file is missing or invalid.
    #[must_use]
    pub fn load(path: &Path, driver: &str) -> Self {
        Self::read(path, driver).unwrap_or_else(|_| Self::none(driver))
    }

    /// The same, with the reason why the file is not used. A missing file, another format version or another driver is none.
    ///
    /// # Errors
    /// The file cannot be read, or this code did not write it so.
    pub fn read(path: &Path, driver: &str) -> Result<Self, SizesFault> {
        let mut bytes = Vec::new();
        let file = match open_to_look(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::none(driver)),
            Err(error) => return Err(error.into()),
        };
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= FILE_BYTES_MAX);
        let kept = Self::decode(&text.ok_or(SizesFault::Damaged)?)?;
        Ok(kept.filter(|kept| kept.driver == driver).unwrap_or_else(|| Self::none(driver)))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The file cannot be written; the earlier one is unchanged.
    pub fn store(&self, path: &Path, disk: &Disk) -> io::Result<()> {
        disk.replace(path, self.encode().as_bytes(), Mode::Private)
    }

    /// Size of a context there, if it is known.
    #[must_use]
    pub fn of(&self, ground: &ContextDevice) -> Option<Footprint> {
        match self.found.get(ground) {
            Some(ContextFinding::Size(bytes)) => Some(*bytes),
            Some(ContextFinding::Failed { .. }) | None => None,
        }
    }

    /// Why it could not be measured there, and how long ago; `None`: it was not tried, or must be tried again.
    #[must_use]
    pub fn failure(&self, ground: &ContextDevice, now: &Moment) -> Option<(&str, Duration)> {
        let Some(ContextFinding::Failed { at, why }) = self.found.get(ground) else { return None };
        let ago = now.after(at).filter(|ago| *ago < FAILURE_KEPT)?;
        Some((why, ago))
    }

    /// Records a size.
    pub fn note(&mut self, ground: ContextDevice, bytes: Footprint) {
        self.found.insert(ground, ContextFinding::Size(bytes));
    }

    /// Records a failure: its reason as one printable line.
    pub fn note_failure(&mut self, ground: ContextDevice, at: Moment, why: &str) {
        let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
        let why = why.chars().take(WHY_BYTES_MAX).map(plain).collect();
        self.found.insert(ground, ContextFinding::Failed { at, why });
    }

    /// The text of the file.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut body = format!("{DRIVER}{}\n", self.driver);
        for (ContextDevice { card, template }, found) in &self.found {
            let part = template.as_ref().map_or(WHOLE, TemplateName::as_str);
            // Writing to a String cannot fail.
            let written = match found {
                ContextFinding::Size(Footprint { context, pages }) => {
                    let [pointers, arrays] = pages.measured_bits();
                    writeln!(body, "{card} {part} {} {pointers} {arrays}", context.0)
                }
                ContextFinding::Failed { at, why } => {
                    writeln!(body, "{card} {part} {FAILED} {} {} {why}", at.boot, at.since.as_secs())
                }
            };
            debug_assert!(written.is_ok(), "text takes what is written");
        }
        format!("{MAGIC}{VERSION} {:08x}\n{body}", crc32c::crc32c(body.as_bytes()))
    }

    /// Parses a text; `None`: another version of the format.
    ///
    /// # Errors
    /// This code did not write it.
    pub fn decode(text: &str) -> Result<Option<Self>, SizesFault> {
        let (header, body) = text.split_once('\n').unwrap_or((text, ""));
        let (version, sum) = numbers(header).ok_or(SizesFault::Damaged)?;
        if version != VERSION {
            return Ok(None);
        }
        let lines = || {
            let mut lines = body.lines();
            let driver = lines.next()?.strip_prefix(DRIVER)?.to_owned();
            Some(Self { driver, found: lines.map(line).collect::<Option<_>>()? })
        };
        if sum != crc32c::crc32c(body.as_bytes()) {
            return Err(SizesFault::Damaged);
        }
        lines().map(Some).ok_or(SizesFault::Damaged)
    }
}

/// Version and checksum of a first line.
fn numbers(header: &str) -> Option<(&str, u32)> {
    let (version, sum) = header.strip_prefix(MAGIC)?.split_once(' ')?;
    let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    Some((version, u32::from_str_radix(sum, 16).ok().filter(|_| is_number && sum.len() == 8)?))
}

fn line(text: &str) -> Option<(ContextDevice, ContextFinding)> {
    let mut words = text.splitn(3, ' ');
    let (card, part, rest) = (words.next()?, words.next()?, words.next()?);
    let template = if part == WHOLE { None } else { Some(TemplateName::new(part).ok()?) };
    let found = match rest.strip_prefix(FAILED) {
        Some(rest) => failed(rest.strip_prefix(' ')?)?,
        None => ContextFinding::Size(size(rest)?),
    };
    Some((ContextDevice { card: CardUuid::new(card).ok()?, template }, found))
}

/// A size and the pages behind it.
fn size(text: &str) -> Option<Footprint> {
    let mut words = text.split(' ');
    let context = Bytes(words.next()?.parse().ok()?);
    let bits = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
    let pages = if bits == [0, 0] { Pages::ASSUMED } else { Pages::measured(bits[0], bits[1])? };
    let is_size = context > Bytes(0) && context <= LARGEST && words.next().is_none();
    is_size.then_some(Footprint { context, pages })
}

/// The fields behind the word of a failure.
fn failed(text: &str) -> Option<ContextFinding> {
    let mut words = text.splitn(3, ' ');
    let (boot, since, why) = (words.next()?, words.next()?, words.next()?);
    let at = Moment { boot: boot.to_owned(), since: Duration::from_secs(since.parse().ok()?) };
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let is_why = why.len() <= WHY_BYTES_MAX && why.as_bytes().iter().all(is_plain);
    is_why.then(|| ContextFinding::Failed { at, why: why.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode as Bits;

    use super::*;

    const CARD: &str = "GPU-a11c0de0-51a0-4c4d-8000-000000000000";

    fn ground(template: Option<&str>) -> ContextDevice {
        let template = template.map(|name| TemplateName::new(name).unwrap());
        ContextDevice { card: CardUuid::new(CARD).unwrap(), template }
    }

    fn of_context(bytes: u64) -> Footprint {
        Footprint { context: Bytes(bytes), pages: Pages::ASSUMED }
    }

    fn known() -> ContextSizes {
        let mut known = ContextSizes::none("580.65.06");
        known.note(
            ground(None),
            Footprint { pages: Pages::measured(21, 16).unwrap(), ..of_context(503_316_480) },
        );
        known.note(ground(Some("1g.10gb")), of_context(260_046_848));
        known.note_failure(ground(Some("2g.20gb")), moment("b", 100), "no\ncontext");
        known
    }

    fn moment(boot: &str, since: u64) -> Moment {
        Moment { boot: boot.to_owned(), since: Duration::from_secs(since) }
    }

    fn with_sum(body: &str) -> String {
        format!("{MAGIC}{VERSION} {:08x}\n{body}", crc32c::crc32c(body.as_bytes()))
    }

    #[test]
    fn kept_sizes_are_read_for_the_same_driver_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts");
        known().store(&path, &Disk::default()).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), known());
        assert_eq!(ContextSizes::load(&path, "580.65.07"), ContextSizes::none("580.65.07"));
        assert_eq!(known().of(&ground(Some("1g.10gb"))), Some(of_context(260_046_848)));
        assert_eq!(known().of(&ground(Some("2g.20gb"))), None);
    }

    #[test]
    fn measurement_failure_is_kept_for_minutes_of_one_boot() {
        let kept = ContextSizes::decode(&known().encode()).unwrap().unwrap();
        let failed = ground(Some("2g.20gb"));
        let ago = |now: &Moment| kept.failure(&failed, now).map(|(why, ago)| (why.to_owned(), ago.as_secs()));
        assert_eq!(ago(&moment("b", 100)), Some(("no?context".to_owned(), 0)));
        assert_eq!(ago(&moment("b", 399)), Some(("no?context".to_owned(), 299)));
        for other in [moment("b", 400), moment("b", 99), moment("c", 100)] {
            assert_eq!(ago(&other), None, "{other:?}");
        }
        assert_eq!(kept.failure(&ground(None), &moment("b", 100)), None, "its size is known");
        let mut found = kept.clone();
        found.note(failed.clone(), of_context(5));
        assert_eq!(
            (found.failure(&failed, &moment("b", 100)), found.of(&failed)),
            (None, Some(of_context(5)))
        );
    }

    #[test]
    fn the_longest_reason_is_kept_and_read_again() {
        let mut kept = ContextSizes::none("1");
        kept.note_failure(ground(None), moment("b", 1), &"é".repeat(1000));
        assert_eq!(ContextSizes::decode(&kept.encode()).unwrap(), Some(kept));
    }

    #[test]
    fn a_file_that_is_cut_or_altered_anywhere_says_nothing() {
        let text = known().encode();
        for end in 0..text.len() {
            assert!(ContextSizes::decode(&text[..end]).is_err(), "{end}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let altered = String::from_utf8(bytes).unwrap();
            // An altered version is another version.
            assert!(!matches!(ContextSizes::decode(&altered), Ok(Some(_))), "{altered}");
        }
    }

    #[test]
    fn impossible_size_or_line_is_refused_whatever_its_checksum() {
        let rest = [
            "whole 0 0 0",
            "whole 5",
            "whole 5 21 0",
            "whole 5 8 21",
            "whole 5 21 21 21",
            "whole 1099511627777 0 0",
            "whole -1",
            "whole 5 6",
            "whole",
            "a/b 5",
            "w hole 5",
            "",
            "whole failed",
            "whole failed b",
            "whole failed b 1",
            "whole failed b x y",
            "whole failedb 1 y",
            "whole failed b 1 \t",
        ];
        for rest in rest {
            assert!(
                ContextSizes::decode(&with_sum(&format!("driver 1\n{CARD} {rest}\n"))).is_err(),
                "{rest}"
            );
        }
        let right = with_sum(&format!("driver 1\n{CARD} whole 5 0 0\n"));
        assert!(ContextSizes::decode(&right).unwrap().is_some());
        assert_eq!(ContextSizes::decode(&right.replacen(" 2 ", " 3 ", 1)).unwrap(), None, "another version");
    }

    #[test]
    fn foreign_object_at_the_path_is_not_followed_and_never_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts");
        let nothing = ContextSizes::none("580.65.06");
        known().store(&dir.path().join("other"), &Disk::default()).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), nothing);
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, Bits::S_IRWXU).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), nothing);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), nothing);
        fs::remove_dir(&path).unwrap();
        fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), nothing);
        let said = ContextSizes::read(&path, "580.65.06").unwrap_err().to_string();
        assert!(said.starts_with("content: found bytes that do not match"), "{said}");
        known().store(&path, &Disk::default()).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), known());
    }
}
