//! The journal reads back what was written, or refuses and keeps what it finds: no altered byte passes for another
//! promise, and nothing is ever wiped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::path::{Path, PathBuf};

use aliquot_core::id::ClaimUid;
use aliquot_driver::checkpoint::{CLAIMS_MAX, FILE_BYTES_MAX, decode, encode};
use aliquot_driver::node::OpenError;
use aliquot_driver::prepare::Released;
use aliquot_tests::node::{Want, World, claim};

const QUARTER: Want = Want { card: 0, part: "vir02 at vg0", memory_mib: None, cores: 25 };

/// A node with one prepared claim, and its journal.
fn prepared() -> (World, PathBuf, String) {
    let world = World::new("ascend-310p", "");
    let mut node = world.open();
    let request = claim(&node, "a", &[QUARTER]);
    node.prepare(&request).unwrap();
    node.invariants().unwrap();
    let path = world.state().join("journal");
    let text = fs::read_to_string(&path).unwrap();
    (world, path, text)
}

/// Frames records as a journal of this version.
fn framed(version: u32, min_reader: u32, records: &[String]) -> String {
    let mut body = String::new();
    for json in records {
        body += &format!("{} {:08x} {json}\n", json.len(), crc32c::crc32c(json.as_bytes()));
    }
    let crc = crc32c::crc32c(body.as_bytes());
    let (count, bytes) = (records.len(), body.len());
    let header = format!(
        "aliquot-journal {version} min-reader {min_reader} records {count} bytes {bytes} body {crc:08x} header "
    );
    let own = crc32c::crc32c(header.as_bytes());
    format!("{header}{own:08x}\n{body}")
}

/// The records in a journal.
fn records(text: &str) -> Vec<String> {
    text.lines().skip(1).map(|line| line.splitn(3, ' ').nth(2).unwrap().to_owned()).collect()
}

/// Why the node does not open; everything on disk must be as it was.
fn refusal(world: &World, path: &Path, bytes: &[u8]) -> String {
    fs::write(path, bytes).unwrap();
    let before = world.files();
    let error = match world.try_open(None) {
        Err(error @ OpenError::Journal(_)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    };
    assert_eq!(world.files(), before, "something was changed");
    error
}

#[test]
fn written_journal_reads_back_equal() {
    let (_world, path, text) = prepared();
    let journal = decode(&path, text.as_bytes()).unwrap();
    assert_eq!(encode(&path, &journal).unwrap(), text);
    assert_eq!(framed(1, 1, &records(&text)), text, "the form that the documentation gives");
}

#[test]
fn a_journal_cut_at_any_length_is_refused() {
    let (world, path, text) = prepared();
    for length in 0..text.len() {
        let error = decode(&path, &text.as_bytes()[..length]).unwrap_err().to_string();
        let told = error.contains("damaged at byte") && error.contains("journal") && error.contains("kept");
        assert!(told, "{length}: {error}");
    }
    for length in [0, 1, 60, text.len() / 2, text.len() - 1] {
        let error = refusal(&world, &path, &text.as_bytes()[..length]);
        assert!(error.contains("found") && error.contains("expected"), "{error}");
    }
}

#[test]
fn a_journal_with_any_bit_changed_is_refused() {
    let (_world, path, text) = prepared();
    let mut bytes = text.into_bytes();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            assert!(decode(&path, &bytes).is_err(), "bit {bit} of byte {at} changed, and was not detected");
            bytes[at] ^= 1 << bit;
        }
    }
}

#[test]
fn bytes_added_anywhere_are_refused() {
    let (_world, path, text) = prepared();
    for at in 0..=text.len() {
        for extra in ["0", "\n", " ", "x"] {
            let grown = format!("{}{extra}{}", &text[..at], &text[at..]);
            assert!(decode(&path, grown.as_bytes()).is_err(), "{extra:?} at {at} was not detected");
        }
    }
}

#[test]
fn a_foreign_or_oversized_file_is_kept_and_refused() {
    let (world, path, _) = prepared();
    let error = refusal(&world, &path, b"{\"checkpoint\":\"of another program\"}\n");
    assert!(error.contains("header line of a journal") && error.contains("checkpoint"), "{error}");
    let file = fs::File::create(&path).unwrap();
    file.set_len(FILE_BYTES_MAX + 1).unwrap();
    let Err(OpenError::Journal(error)) = world.try_open(None) else { panic!("opened") };
    assert!(error.to_string().contains("expected at most"), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), FILE_BYTES_MAX + 1);
}

#[test]
fn a_newer_journal_is_refused_by_its_own_word_alone() {
    let (world, path, text) = prepared();
    let error = refusal(&world, &path, framed(3, 2, &records(&text)).as_bytes());
    assert!(error.contains("version 3") && error.contains("version 2 or later"), "{error}");

    let mut later = records(&text);
    let claims = later.iter_mut().filter(|r| r.contains("\"record\":\"claim\""));
    claims.for_each(|r| r.insert_str(r.len() - 1, ",\"sinceVersion2\":[1,2]"));
    fs::write(&path, framed(2, 1, &later)).unwrap();
    let mut node = world.open();
    node.invariants().unwrap();
    let half = Want { card: 0, part: "vir04 at vg3", memory_mib: None, cores: 50 };
    node.prepare(&claim(&node, "b", &[half])).unwrap();
    node.invariants().unwrap();
    let written = fs::read_to_string(&path).unwrap();
    assert!(written.starts_with("aliquot-journal 2 min-reader 1 "), "{written}");
    assert_eq!(
        written.matches("\"sinceVersion2\":[1,2]").count(),
        1,
        "what is not understood is carried along"
    );
    node.release(&ClaimUid::new("a").unwrap()).unwrap();
    node.prepare(&claim(&node, "a", &[QUARTER])).unwrap();
    node.invariants().unwrap();
    assert!(!fs::read_to_string(&path).unwrap().contains("sinceVersion2"), "it was of a claim that is gone");
}

#[test]
fn whole_records_that_make_no_sense_are_refused() {
    let (world, path, text) = prepared();
    let good = records(&text);
    let changed = |from: &str, to: &str| -> Vec<String> {
        assert!(good.iter().any(|r| r.contains(from)), "no {from} in {good:?}");
        good.iter().map(|r| r.replace(from, to)).collect()
    };
    let mut twice = good.clone();
    twice.push(good[0].clone());
    let cases = [
        (changed("\"coresPercent\":25", "\"coresPercent\":101"), "coresPercent is `101`"),
        (
            changed("\"failMode\":\"closed\"", "\"failMode\":\"ajar\""),
            "failMode is `ajar`; expected closed or open",
        ),
        (changed("\"uid\":\"a\"", "\"uid\":\"../a\""), "claim UID `../a`"),
        (changed("\"phase\":\"prepared\"", "\"phase\":\"perhaps\""), "perhaps"),
        (changed("\"compute\":", "\"compote\":"), "compote"),
        (changed("\"name\":", "\"extra\":1,\"name\":"), "unknown field extra in claim a"),
        (changed("\"memoryBytes\":", "\"memoryBytes\":-"), "-6442450944"),
        (changed("\"writeCdi\"", "{\"writeGrant\":{\"share\":\"9\"}}"), "the plan of claim a"),
        (twice, "is there twice"),
    ];
    for (records, word) in cases {
        let error = refusal(&world, &path, framed(1, 1, &records).as_bytes());
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn a_lost_journal_is_noticed_as_long_as_it_left_grants() {
    let (world, path, text) = prepared();
    fs::remove_file(&path).unwrap();
    let before = world.files();
    let Err(OpenError::Journal(error)) = world.try_open(None) else { panic!("opened") };
    assert!(error.to_string().contains("is missing"), "{error}");
    assert_eq!(world.files(), before);
    fs::write(&path, text).unwrap();
    let mut node = world.open();
    node.invariants().unwrap();
    assert_eq!(node.release(&ClaimUid::new("a").unwrap()).unwrap(), Released::Released);
}

#[test]
fn a_node_full_of_claims_still_fits_into_the_file() {
    let (_world, _path, text) = prepared();
    let one = records(&text).iter().map(String::len).sum::<usize>();
    let all = u64::try_from((one + 64) * CLAIMS_MAX).unwrap();
    assert!(all < FILE_BYTES_MAX, "{all} bytes");
}
