//! Health records of this node's cards, stored for later allocations.
//!
//! ```text
//! aliquot-health 1 5f1c02aa
//! boot 5a9c60ff-31c2-4e0f-8a55-0e1f6b3c9d21
//! driver 580.65.06/20713
//! GPU-a11c0de0-51a0-4c4d-8000-000000000000 whole code 79 1763838021
//! GPU-a11c0de0-51a0-4c4d-8000-000000000000 whole lost 1763838022
//! GPU-a11c0de0-51a0-4c4d-8000-000000000001 1g.10gb@0 code 48 1763837000
//! GPU-a11c0de0-51a0-4c4d-8000-000000000002 whole silent 1763830000
//! ```
//!
//! The number in the first line is the CRC-32C of all following lines; `-` in the place of a driver: unknown. Records count for one
//! boot and one load of the driver. The file is replaced as a whole, so that a damaged file was changed by another program. It is
//! kept and refused, as the journal is, and no card is allocated until the administrator clears it.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use aliquot_core::health::{
    CARDS_MAX, Cause, Era, NOTES_OF_A_CARD_MAX, NoteOutcome, Notes, Subject, UnixSeconds,
};
use aliquot_core::id::{CardUuid, TemplateName};
use aliquot_core::partition::{Part, PlacementName};

use crate::disk::{Disk, Mode};
use crate::region::open_to_look;

/// First word of the file.
const MAGIC: &str = "aliquot-health ";
/// Version of what this code writes, and the only one that it reads.
const VERSION: &str = "1";
/// Begins the lines of an era.
const BOOT: &str = "boot ";
const DRIVER: &str = "driver ";
/// In the place of a driver: unknown.
const NO_DRIVER: &str = "-";
/// In the place of a part: the card itself.
const WHOLE: &str = "whole";
/// Longest word of an era: a driver's is a version and a number.
const WORD_BYTES_MAX: usize = 128;
/// Longest line.
const LINE_BYTES_MAX: usize = 256;
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = (LINE_BYTES_MAX as u64) * (CARDS_MAX as u64) * (NOTES_OF_A_CARD_MAX as u64);

/// Health records of one era.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardHealth {
    /// One boot, one load of the driver.
    pub era: Era,
    /// The records.
    pub notes: Notes,
}

/// Why the file is refused.
#[derive(Debug, thiserror::Error)]
#[error(
    "health records of the cards: {}: {found}, expected a file that aliquot wrote: it is kept, and no card is allocated until it is \
     removed; check the cards with nvidia-smi and the kernel's log, then run `aliquot health --clear all`",
    path.display()
)]
pub struct CardHealthError {
    path: PathBuf,
    found: String,
}

// === impl CardHealth ===

impl CardHealth {
    /// Reads a file; `None`: there is none.
    ///
    /// # Errors
    /// The file is unreadable or invalid.
    pub fn load(path: &Path) -> Result<Option<Self>, CardHealthError> {
        let wrong = |found: String| CardHealthError { path: path.to_owned(), found };
        let mut bytes = Vec::new();
        let read = open_to_look(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(format!("found that it cannot be read ({error})"))),
            Ok(_) => {}
        }
        let text =
            std::str::from_utf8(&bytes).map_err(|_| wrong("found bytes that are no text".to_owned()))?;
        Self::decode(text).map(Some).map_err(wrong)
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The file cannot be written; the earlier one is unchanged.
    pub fn store(&self, path: &Path, disk: &Disk) -> io::Result<()> {
        disk.replace(path, self.encode().as_bytes(), Mode::Private)
    }

    /// The text of the file.
    #[must_use]
    pub fn encode(&self) -> String {
        let driver = self.era.driver.as_deref().unwrap_or(NO_DRIVER);
        let mut body = format!("{BOOT}{}\n{DRIVER}{driver}\n", self.era.boot);
        for (card, part, cause, at) in self.notes.all() {
            let part = match part {
                Part::Partition { template, placement } => format!("{template}@{}", placement.0),
                Part::Card | Part::Slot { .. } => WHOLE.to_owned(),
            };
            let cause = match cause {
                Cause::Code(code) => format!("code {code}"),
                Cause::Lost => "lost".to_owned(),
                Cause::Silent => "silent".to_owned(),
            };
            // Writing to a String cannot fail.
            let written = writeln!(body, "{card} {part} {cause} {}", at.0);
            debug_assert!(written.is_ok(), "text takes what is written");
        }
        format!("{MAGIC}{VERSION} {:08x}\n{body}", crc32c::crc32c(body.as_bytes()))
    }

    /// Parses a text.
    ///
    /// # Errors
    /// The first difference from a text that this code writes.
    pub fn decode(text: &str) -> Result<Self, String> {
        let (header, body) = text.split_once('\n').ok_or("found no whole line")?;
        let words = header.strip_prefix(MAGIC).and_then(|rest| rest.split_once(' '));
        let (version, sum) = words.ok_or("found another kind of file")?;
        if version != VERSION {
            let version: String = version.chars().take(32).collect();
            return Err(format!("found version `{}` of it", version.escape_debug()));
        }
        if u32::from_str_radix(sum, 16).ok() != Some(crc32c::crc32c(body.as_bytes())) {
            return Err("found it damaged (its sum is another one)".to_owned());
        }
        let mut lines = body.lines();
        let mut word = |key: &str| {
            let word = lines.next().and_then(|line| line.strip_prefix(key)).filter(|word| is_word(word));
            word.map(str::to_owned).ok_or_else(|| format!("found no line `{key}…`"))
        };
        let (boot, driver) = (word(BOOT)?, word(DRIVER)?);
        let driver = Some(driver).filter(|driver| driver != NO_DRIVER);
        let mut notes = Notes::default();
        for text in lines {
            let (of, cause, at) = line(text).ok_or("found a line that says nothing of a card")?;
            if notes.note(of, cause, at) == NoteOutcome::Known {
                return Err("found more of a card than is kept, or the same twice".to_owned());
            }
        }
        Ok(Self { era: Era { boot, driver }, notes })
    }
}

fn is_word(text: &str) -> bool {
    (1..=WORD_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn line(text: &str) -> Option<(Subject, Cause, UnixSeconds)> {
    // More words are no line, however many they are.
    let words: Vec<&str> = text.splitn(6, ' ').collect();
    let [card, part, cause @ .., at] = words.as_slice() else { return None };
    let part = match part.rsplit_once('@') {
        None if *part == WHOLE => Part::Card,
        None => return None,
        Some((template, placement)) => {
            let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            if !(1..=63).contains(&placement.len()) || !placement.bytes().all(is_label) {
                return None;
            }
            let placement = PlacementName(placement.to_owned());
            Part::Partition { template: TemplateName::new(template).ok()?, placement }
        }
    };
    let cause = match cause {
        ["code", code] => Cause::Code(code.parse().ok()?),
        ["lost"] => Cause::Lost,
        ["silent"] => Cause::Silent,
        _ => return None,
    };
    Some((Subject { card: CardUuid::new(*card).ok()?, part }, cause, UnixSeconds(at.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: &str = "GPU-a11c0de0-51a0-4c4d-8000-000000000000";

    fn kept() -> CardHealth {
        let mut notes = Notes::default();
        let card = CardUuid::new(CARD).unwrap();
        let (template, placement) = (TemplateName::new("1g.10gb+me").unwrap(), PlacementName("0".to_owned()));
        let part = Part::Partition { template, placement };
        notes.note(Subject { card: card.clone(), part }, Cause::Code(48), UnixSeconds(1_763_837_000));
        for cause in [Cause::Code(u64::MAX), Cause::Lost, Cause::Silent] {
            notes.note(Subject { card: card.clone(), part: Part::Card }, cause, UnixSeconds(0));
        }
        CardHealth { era: Era { boot: "b-1".to_owned(), driver: Some("580.65.06/7".to_owned()) }, notes }
    }

    fn with_sum(body: &str) -> String {
        format!("{MAGIC}1 {:08x}\n{body}", crc32c::crc32c(body.as_bytes()))
    }

    #[test]
    fn kept_notes_read_back_equal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("health");
        assert_eq!(CardHealth::load(&path).unwrap(), None);
        kept().store(&path, &Disk::default()).unwrap();
        assert_eq!(CardHealth::load(&path).unwrap(), Some(kept()));
        let nobodys = CardHealth { era: Era { driver: None, ..kept().era }, notes: Notes::default() };
        assert_eq!(CardHealth::decode(&nobodys.encode()), Ok(nobodys));
    }

    #[test]
    fn cut_or_altered_notes_are_refused_and_named() {
        let text = kept().encode();
        for end in 0..text.len() {
            assert!(CardHealth::decode(&text[..end]).is_err(), "{end}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let altered = String::from_utf8(bytes).unwrap();
            assert!(CardHealth::decode(&altered).is_err(), "{altered}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("health");
        for (content, words) in [
            (&b"\xff\xfe"[..], "bytes that are no text"),
            (b"", "no whole line"),
            (b"#!/bin/sh\n", "another kind of file"),
            (b"aliquot-health 2 00000000\n", "version `2`"),
            (b"aliquot-health 1 00000000\nboot x\n", "damaged"),
        ] {
            std::fs::write(&path, content).unwrap();
            let said = CardHealth::load(&path).unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("aliquot health --clear all"), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(CardHealth::load(&path).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn lines_that_say_nothing_are_refused_whatever_their_sum() {
        let right = format!("boot b\ndriver -\n{CARD} whole lost 5\n");
        assert!(CardHealth::decode(&with_sum(&right)).is_ok());
        let wrong =
            ["whole lost", "whole lost -5", "whole code lost 5", "whole code 5", "a b lost 5", "@0 lost 5"];
        let more =
            ["1g.10gb@ lost 5", "1g.10gb@A lost 5", "1g.10gb lost 5", "whole gone 5", "whole lost 5 ", ""];
        for rest in wrong.iter().chain(&more) {
            let text = with_sum(&format!("boot b\ndriver -\n{CARD} {rest}\n"));
            assert!(CardHealth::decode(&text).is_err(), "{rest}");
        }
        let twice = format!("{right}{CARD} whole lost 6\n");
        for body in [
            twice.as_str(),
            "",
            "boot b\n",
            "boot \ndriver -\n",
            "boot b\ndriver a b\n",
            "driver -\nboot b\n",
        ] {
            assert!(CardHealth::decode(&with_sum(body)).is_err(), "{body}");
        }
    }
}
