//! Files of simulated cards that this build did not make, or not so: refused with what was found, what was expected and what to do, and
//! left as they are.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_sim_device::{Device, OpenError};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use std::error::Error as _;
use std::path::{Path, PathBuf};

/// The first word, and eight pairs of bytes and count.
const HEADER: usize = 8 + 8 * 8;
/// The pair of the seats in it.
const SEATS: usize = 8 + 2 * 8;

/// The file of a card as it was made, in a directory of its own.
struct Made {
    dir: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Made {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("node.toml"), "[[card]]\n").unwrap();
        drop(aliquot_sim_device::open(dir.path()).unwrap());
        let bytes = std::fs::read(dir.path().join("card-0")).unwrap();
        Self { dir, bytes }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("card-0")
    }

    /// Puts another file in its place: this process has the first one mapped.
    fn put(&self, bytes: &[u8]) {
        std::fs::remove_file(self.path()).unwrap();
        std::fs::write(self.path(), bytes).unwrap();
    }

    /// How opening and looking both refuse it.
    fn refused(&self, bytes: &[u8]) -> String {
        self.put(bytes);
        let told = said(aliquot_sim_device::open(self.dir.path()));
        assert_eq!(told, said(aliquot_sim_device::look(self.dir.path()).map(|found| found.unwrap())));
        assert!(std::fs::read(self.path()).unwrap() == bytes, "it was changed: {told}");
        assert!(told.starts_with(&self.path().display().to_string()), "{told}");
        assert!(
            told.ends_with("use the build that made it, or remove the directory once no process uses it"),
            "{told}"
        );
        told
    }
}

fn said(opened: Result<Device, OpenError>) -> String {
    let error = opened.unwrap_err();
    assert!(error.source().is_none(), "said once");
    error.to_string()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The file as a build with other records would make it: those at `at` of the header have half the width and
/// twice the number.
fn halved(bytes: &[u8], at: usize) -> (Vec<u8>, String) {
    let (width, count) = (word(bytes, at), word(bytes, at + 4));
    let mut other = bytes.to_vec();
    other[at..at + 4].copy_from_slice(&(width / 2).to_ne_bytes());
    other[at + 4..at + 8].copy_from_slice(&(count * 2).to_ne_bytes());
    (other, format!("{} of {} bytes, expected {count} of {width}", count * 2, width / 2))
}

#[test]
fn card_with_records_of_half_width_is_refused() {
    let made = Made::new();
    for at in (8..HEADER).step_by(8) {
        let (other, expected) = halved(&made.bytes, at);
        let told = made.refused(&other);
        assert!(told.contains(&expected), "{told}");
        assert_eq!(told.contains("its seats are "), at == SEATS, "{told}");
    }
}

#[test]
fn a_card_of_another_layout_and_what_is_no_card_are_refused() {
    let made = Made::new();
    // The layout's number is the last byte of the first word as it is written.
    let number = if cfg!(target_endian = "little") { 0 } else { 7 };
    let mut earlier = made.bytes.clone();
    earlier[number] -= 1;
    let (found, expected) = (earlier[number], made.bytes[number]);
    let told = made.refused(&earlier);
    assert!(told.contains(&format!("it has layout {found} of cards, expected {expected}")), "{told}");
    let told = made.refused(b"notes of a person about some cards, in words");
    assert!(told.contains("it begins with 0x"), "{told}");
    assert!(made.refused(&made.bytes[..7]).contains("it begins with 0x"));
}

#[test]
fn a_card_that_was_torn_is_refused_wherever_that_was() {
    let made = Made::new();
    let whole = made.bytes.len();
    for length in [HEADER, HEADER + 1, 4096, whole / 2, whole - 1] {
        let told = made.refused(&made.bytes[..length]);
        assert!(told.contains(&format!("it ends after {length} bytes, expected {whole}")), "{told}");
    }
    // In the header: records that are not there are none.
    for length in (8..HEADER).step_by(4) {
        let told = made.refused(&made.bytes[..length]);
        assert!(told.contains("are 0 of 0 bytes, expected ") || told.contains(" are 0 of "), "{told}");
    }
    // Its first page was not written, and one behind it was.
    let mut headless = made.bytes.clone();
    headless[..4096].fill(0);
    headless[whole / 2] = 1;
    assert!(made.refused(&headless).contains("first 72 bytes are not written, and some behind them are"));
}

/// The creator of a card's file is killed: before the file has a size, a lock, or its first word.
#[test]
fn card_of_a_killed_maker_is_made_by_the_next() {
    let made = Made::new();
    let mut without_first_word = made.bytes.clone();
    without_first_word[..8].fill(0);
    for left in [&[][..], &vec![0; made.bytes.len()], &without_first_word] {
        made.put(left);
        let device = aliquot_sim_device::open(made.dir.path()).unwrap();
        assert_eq!(device.card(0).unwrap().in_use(), 0);
        assert!(std::fs::read(made.path()).unwrap()[..HEADER] == made.bytes[..HEADER]);
    }
}

/// The libraries ask the same way: a program has no driver then, and nothing of the file changes.
#[test]
fn a_program_has_no_driver_where_its_card_is_of_another_build() {
    let bench = Bench::new();
    let program = match bench.compile("sim_tour", Link::Direct) {
        Ok(program) => program,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    drop(bench.device());
    let path: &Path = &bench.cards().join("card-0");
    let (other, _) = halved(&std::fs::read(path).unwrap(), SEATS);
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, &other).unwrap();
    let output = bench.command(program).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(std::fs::read(path).unwrap() == other);
}
