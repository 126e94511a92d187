//! How much of each card a context takes, as this host measured it with one version of the driver.
//!
//! ```text
//! aliquot-contexts 1 2b1f33c0
//! driver 580.65.06
//! GPU-a11c0de0-51a0-4c4d-8000-000000000000 whole 503316480
//! GPU-a11c0de0-51a0-4c4d-8000-000000000001 1g.10gb 260046848
//! ```
//!
//! The number in the first line is the CRC-32C of all lines behind it. Nothing is promised in this file: what is missing,
//! damaged, of another version of this format or of another driver is measured again and written anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;

use aliquot_core::id::{CardUuid, TemplateName};
use aliquot_core::units::Bytes;

use crate::disk::{Disk, Mode};
use crate::region::open_to_look;

/// First words of the file.
const MAGIC: &str = "aliquot-contexts 1 ";
/// Begins the line of the driver.
const DRIVER: &str = "driver ";
/// In the place of a template: the card as it is.
const WHOLE: &str = "whole";
/// Longest file that is read: a line takes less than 128 bytes, and no machine has more than 512 parts to measure.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Largest size that is believed: no card has more memory.
const LARGEST: Bytes = Bytes(1 << 40);

/// What a context is made on: a card, or partitions of it of one template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ground {
    /// Card.
    pub card: CardUuid,
    /// `None`: the card as it is.
    pub template: Option<TemplateName>,
}

/// What was measured with one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextSizes {
    driver: String,
    sizes: BTreeMap<Ground, Bytes>,
}

// === impl ContextSizes ===

impl ContextSizes {
    /// Nothing is known of a driver.
    #[must_use]
    pub fn none(driver: &str) -> Self {
        Self { driver: driver.to_owned(), sizes: BTreeMap::new() }
    }

    /// What a file says of a driver; nothing where it is no such file.
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

    /// Puts it in the place of the file.
    ///
    /// # Errors
    /// The disk refuses; the earlier file is as it was.
    pub fn store(&self, path: &Path, disk: &Disk) -> io::Result<()> {
        disk.replace(path, self.encode().as_bytes(), Mode::Private)
    }

    /// Size of a context there, if it is known.
    #[must_use]
    pub fn of(&self, ground: &Ground) -> Option<Bytes> {
        self.sizes.get(ground).copied()
    }

    /// Notes a size.
    pub fn note(&mut self, ground: Ground, bytes: Bytes) {
        self.sizes.insert(ground, bytes);
    }

    /// The text of the file.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut body = format!("{DRIVER}{}\n", self.driver);
        for (Ground { card, template }, bytes) in &self.sizes {
            let part = template.as_ref().map_or(WHOLE, TemplateName::as_str);
            // Writing to a String cannot fail.
            let written = writeln!(body, "{card} {part} {}", bytes.0);
            debug_assert!(written.is_ok(), "text takes what is written");
        }
        format!("{MAGIC}{:08x}\n{body}", crc32c::crc32c(body.as_bytes()))
    }

    /// What a text says; `None`: it is not one that this code wrote.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let (header, body) = text.split_once('\n')?;
        let sum = u32::from_str_radix(header.strip_prefix(MAGIC)?, 16).ok()?;
        if sum != crc32c::crc32c(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        let driver = lines.next()?.strip_prefix(DRIVER)?.to_owned();
        let sizes = lines.map(line).collect::<Option<_>>()?;
        Some(Self { driver, sizes })
    }
}

fn line(text: &str) -> Option<(Ground, Bytes)> {
    let mut words = text.split(' ');
    let (Some(card), Some(part), Some(bytes), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return None;
    };
    let template = if part == WHOLE { None } else { Some(TemplateName::new(part).ok()?) };
    let bytes = Bytes(bytes.parse().ok()?);
    let is_size = bytes > Bytes(0) && bytes <= LARGEST;
    is_size.then_some((Ground { card: CardUuid::new(card).ok()?, template }, bytes))
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
        known
    }

    fn with_sum(body: &str) -> String {
        format!("{MAGIC}{:08x}\n{body}", crc32c::crc32c(body.as_bytes()))
    }

    #[test]
    fn what_is_kept_is_read_again_for_the_same_driver_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts");
        known().store(&path, &Disk::default()).unwrap();
        assert_eq!(ContextSizes::load(&path, "580.65.06"), known());
        assert_eq!(ContextSizes::load(&path, "580.65.07"), ContextSizes::none("580.65.07"));
        assert_eq!(known().of(&ground(Some("1g.10gb"))), Some(Bytes(260_046_848)));
        assert_eq!(known().of(&ground(Some("2g.20gb"))), None);
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
    fn what_no_context_takes_and_no_line_is_refused_whatever_its_sum() {
        let rest =
            ["whole 0", "whole 1099511627777", "whole -1", "whole 5 6", "whole", "a/b 5", "w hole 5", ""];
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
    fn what_lies_in_the_place_of_the_file_is_not_followed_and_keeps_nobody_waiting() {
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
