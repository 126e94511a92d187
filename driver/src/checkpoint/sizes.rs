//! Context sizes on each card, as this host measured them with one version of the driver.
//!
//! ```text
//! aliquot-contexts 1 2b1f33c0
//! driver 580.65.06
//! GPU-a11c0de0-51a0-4c4d-8000-000000000000 whole 503316480
//! GPU-a11c0de0-51a0-4c4d-8000-000000000001 1g.10gb 260046848
//! GPU-a11c0de0-51a0-4c4d-8000-000000000002 whole failed 5a9c…-0e1f 7203 no context was there within 20 s
//! ```
//!
//! A slow failure is stored for some minutes, with the boot and the seconds since then, so that not every claim waits for it
//! again.
//!
//! The number in the first line is the CRC-32C of all following lines. The file is a cache: a missing, damaged or foreign one, or
//! one of another format version or driver, is measured again and rewritten.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use aliquot_core::id::{CardUuid, TemplateName};
use aliquot_core::units::Bytes;

use crate::clock::Moment;
use crate::disk::{Disk, Mode};
use crate::region::open_to_look;

/// First words of the file.
const MAGIC: &str = "aliquot-contexts 1 ";
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
pub struct Ground {
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
    found: BTreeMap<Ground, Found>,
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Size(Bytes),
    Failed { at: Moment, why: String },
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
        let read = || {
            let mut bytes = Vec::new();
            open_to_look(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(bytes)
        };
        let text = read().ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let found = text.and_then(|text| Self::decode(&text)).filter(|found| found.driver == driver);
        found.unwrap_or_else(|| Self::none(driver))
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
    pub fn of(&self, ground: &Ground) -> Option<Bytes> {
        match self.found.get(ground) {
            Some(Found::Size(bytes)) => Some(*bytes),
            Some(Found::Failed { .. }) | None => None,
        }
    }

    /// Why it could not be measured there, and how long ago; `None`: it was not tried, or must be tried again.
    #[must_use]
    pub fn failure(&self, ground: &Ground, now: &Moment) -> Option<(&str, Duration)> {
        let Some(Found::Failed { at, why }) = self.found.get(ground) else { return None };
        let ago = now.after(at).filter(|ago| *ago < FAILURE_KEPT)?;
        Some((why, ago))
    }

    /// Records a size.
    pub fn note(&mut self, ground: Ground, bytes: Bytes) {
        self.found.insert(ground, Found::Size(bytes));
    }

    /// Records a failure: its reason as one printable line.
    pub fn note_failure(&mut self, ground: Ground, at: Moment, why: &str) {
        let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
        let why = why.chars().take(WHY_BYTES_MAX).map(plain).collect();
        self.found.insert(ground, Found::Failed { at, why });
    }

    /// The text of the file.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut body = format!("{DRIVER}{}\n", self.driver);
        for (Ground { card, template }, found) in &self.found {
            let part = template.as_ref().map_or(WHOLE, TemplateName::as_str);
            // Writing to a String cannot fail.
            let written = match found {
                Found::Size(bytes) => writeln!(body, "{card} {part} {}", bytes.0),
                Found::Failed { at, why } => {
                    writeln!(body, "{card} {part} {FAILED} {} {} {why}", at.boot, at.since.as_secs())
                }
            };
            debug_assert!(written.is_ok(), "text takes what is written");
        }
        format!("{MAGIC}{:08x}\n{body}", crc32c::crc32c(body.as_bytes()))
    }

    /// Parses a text; `None`: this code did not write it.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let (header, body) = text.split_once('\n')?;
        let sum = u32::from_str_radix(header.strip_prefix(MAGIC)?, 16).ok()?;
        if sum != crc32c::crc32c(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        let driver = lines.next()?.strip_prefix(DRIVER)?.to_owned();
        let found = lines.map(line).collect::<Option<_>>()?;
        Some(Self { driver, found })
    }
}

fn line(text: &str) -> Option<(Ground, Found)> {
    let mut words = text.splitn(3, ' ');
    let (card, part, rest) = (words.next()?, words.next()?, words.next()?);
    let template = if part == WHOLE { None } else { Some(TemplateName::new(part).ok()?) };
    let found = match rest.strip_prefix(FAILED) {
        Some(rest) => failed(rest.strip_prefix(' ')?)?,
        None => {
            let bytes = Bytes(rest.parse().ok()?);
            let is_size = bytes > Bytes(0) && bytes <= LARGEST;
            is_size.then_some(Found::Size(bytes))?
        }
    };
    Some((Ground { card: CardUuid::new(card).ok()?, template }, found))
}

/// The fields behind the word of a failure.
fn failed(text: &str) -> Option<Found> {
    let mut words = text.splitn(3, ' ');
    let (boot, since, why) = (words.next()?, words.next()?, words.next()?);
    let at = Moment { boot: boot.to_owned(), since: Duration::from_secs(since.parse().ok()?) };
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let is_why = why.len() <= WHY_BYTES_MAX && why.as_bytes().iter().all(is_plain);
    is_why.then(|| Found::Failed { at, why: why.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode as Bits;

    use super::*;

    const CARD: &str = "GPU-a11c0de0-51a0-4c4d-8000-000000000000";

    fn ground(template: Option<&str>) -> Ground {
        let template = template.map(|name| TemplateName::new(name).unwrap());
        Ground { card: CardUuid::new(CARD).unwrap(), template }
    }

    fn known() -> ContextSizes {
        let mut known = ContextSizes::none("580.65.06");
        known.note(ground(None), Bytes(503_316_480));
        known.note(ground(Some("1g.10gb")), Bytes(260_046_848));
        known.note_failure(ground(Some("2g.20gb")), moment("b", 100), "no\ncontext");
        known
    }

    fn moment(boot: &str, since: u64) -> Moment {
        Moment { boot: boot.to_owned(), since: Duration::from_secs(since) }
    }

    fn with_sum(body: &str) -> String {
        format!("{MAGIC}{:08x}\n{body}", crc32c::crc32c(body.as_bytes()))
    }

    #[test]
    fn kept_sizes_are_read_for_the_same_driver_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts");
        known().store(&path, &Disk::default()).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), known());
        assert_eq!(ContextSizes::load(&path, "580.65.07"), ContextSizes::none("580.65.07"));
        assert_eq!(known().of(&ground(Some("1g.10gb"))), Some(Bytes(260_046_848)));
        assert_eq!(known().of(&ground(Some("2g.20gb"))), None);
    }

    #[test]
    fn measurement_failure_is_kept_for_minutes_of_one_boot() {
        let kept = ContextSizes::decode(&known().encode()).unwrap();
        let failed = ground(Some("2g.20gb"));
        let ago = |now: &Moment| kept.failure(&failed, now).map(|(why, ago)| (why.to_owned(), ago.as_secs()));
        assert_eq!(ago(&moment("b", 100)), Some(("no?context".to_owned(), 0)));
        assert_eq!(ago(&moment("b", 399)), Some(("no?context".to_owned(), 299)));
        for other in [moment("b", 400), moment("b", 99), moment("c", 100)] {
            assert_eq!(ago(&other), None, "{other:?}");
        }
        assert_eq!(kept.failure(&ground(None), &moment("b", 100)), None, "its size is known");
        let mut found = kept.clone();
        found.note(failed.clone(), Bytes(5));
        assert_eq!((found.failure(&failed, &moment("b", 100)), found.of(&failed)), (None, Some(Bytes(5))));
    }

    #[test]
    fn the_longest_reason_is_kept_and_read_again() {
        let mut kept = ContextSizes::none("1");
        kept.note_failure(ground(None), moment("b", 1), &"é".repeat(1000));
        assert_eq!(ContextSizes::decode(&kept.encode()), Some(kept));
    }

    #[test]
    fn a_file_that_is_cut_or_altered_anywhere_says_nothing() {
        let text = known().encode();
        for end in 0..text.len() {
            assert_eq!(ContextSizes::decode(&text[..end]), None, "{end}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let altered = String::from_utf8(bytes).unwrap();
            assert_eq!(ContextSizes::decode(&altered), None, "{altered}");
        }
    }

    #[test]
    fn impossible_size_or_line_is_refused_whatever_its_checksum() {
        let rest = [
            "whole 0",
            "whole 1099511627777",
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
            assert_eq!(
                ContextSizes::decode(&with_sum(&format!("driver 1\n{CARD} {rest}\n"))),
                None,
                "{rest}"
            );
        }
        let right = with_sum(&format!("driver 1\n{CARD} whole 5\n"));
        assert!(ContextSizes::decode(&right).is_some());
        assert_eq!(ContextSizes::decode(&right.replacen(" 1 ", " 2 ", 1)), None, "another version");
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
        known().store(&path, &Disk::default()).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), known());
    }
}
