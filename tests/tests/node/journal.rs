//! The journal reads back what was written, or refuses and keeps what it finds: no altered byte passes for another
//! promise, and nothing is ever wiped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::path::{Path, PathBuf};

use aliquot_core::id::ClaimUid;
use aliquot_driver::checkpoint::{CLAIMS_MAX, FILE_BYTES_MAX, decode, encode};
use aliquot_driver::node::OpenError;
use aliquot_driver::prepare::ReleaseOutcome;
use aliquot_tests::journal_text::{SEAL_BYTES, changes, framed, of_version_2};
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
fn journal_written_is_read_back() {
    let (_world, path, text) = prepared();
    let journal = decode(&path, text.as_bytes()).unwrap().journal;
    let snapshot = encode(&path, &journal).unwrap();
    assert_eq!(decode(&path, snapshot.as_bytes()).unwrap().journal, journal);
    assert!(snapshot.len() < text.len(), "the log has more than its content");
    assert_eq!(framed(1, 1, &changes(&text)), text, "the form that the documentation gives");
}

#[test]
fn journal_change_is_one_appended_line() {
    let (world, path, before) = prepared();
    let mut node = world.open();
    let half = Want { card: 0, part: "vir04 at vg3", memory_mib: None, cores: 50 };
    node.prepare(&claim(&node, "b", &[half])).unwrap();
    let after = fs::read_to_string(&path).unwrap();
    let lines = |text: &str| text.lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&after)[..lines(&before).len()], lines(&before));
    assert_eq!(lines(&after).len(), lines(&before).len() + 2, "planned, done: {after}");
}

/// What a kill in a write leaves behind the seal goes; nothing that was acknowledged does.
#[test]
fn journal_with_torn_tail_is_cut_to_what_counts() {
    let (world, path, text) = prepared();
    let mut all = changes(&text);
    all.push(r#"[{"record":"released","uid":"a"}]"#.to_owned());
    let longer = framed(1, 1, &all);
    let header = longer.lines().next().unwrap().len() + 1;
    // The line is there and its seal is not.
    let unsealed = format!("{}{}", &text[..header + SEAL_BYTES], &longer[header + SEAL_BYTES..]);
    for length in text.len()..unsealed.len() {
        for zeros in [0, 700] {
            let mut torn = unsealed.as_bytes()[..length].to_vec();
            // Bytes that a power failure kept from the disk, within the line.
            torn.resize((length + zeros).min(unsealed.len() - 1).max(length), 0);
            let decoded = decode(&path, &torn).unwrap_or_else(|e| panic!("{length}: {e}"));
            assert_eq!(decoded.torn_at(), (torn.len() > text.len()).then_some(text.len()));
            assert!(decoded.journal.claims.contains_key(&ClaimUid::new("a").unwrap()));
        }
    }
    fs::write(&path, &unsealed.as_bytes()[..unsealed.len() - 3]).unwrap();
    world.look().unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), unsealed.len() - 3, "a reader cuts nothing");
    let node = world.open();
    node.invariants().unwrap();
    assert_eq!((node.claims().count(), fs::read_to_string(&path).unwrap()), (1, text));
    drop(node);
    // The whole line counts, although a power failure took its seal.
    fs::write(&path, &unsealed).unwrap();
    let mut bytes = unsealed.clone().into_bytes();
    assert_eq!(decode(&path, &bytes).unwrap().journal.claims.len(), 0);
    for at in bytes.len() - 40..bytes.len() {
        bytes[at] ^= 1;
        assert!(decode(&path, &bytes).is_err(), "byte {at} of a whole line changed, and it was cut");
        bytes[at] ^= 1;
    }
}

/// Every byte that was acknowledged is missed, also those of the last line alone.
#[test]
fn journal_cut_at_any_length_is_refused() {
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
fn journal_with_any_bit_changed_is_refused() {
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
fn journal_with_bytes_added_anywhere_is_refused() {
    let (_world, path, text) = prepared();
    for at in 0..=text.len() {
        for extra in ["0", "\n", " ", "x"] {
            let grown = format!("{}{extra}{}", &text[..at], &text[at..]);
            assert!(decode(&path, grown.as_bytes()).is_err(), "{extra:?} at {at} was not detected");
        }
    }
}

#[test]
fn foreign_or_oversized_file_is_kept_and_refused() {
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
fn newer_journal_is_refused_by_its_own_word_alone() {
    let (world, path, text) = prepared();
    let error = refusal(&world, &path, framed(3, 2, &changes(&text)).as_bytes());
    assert!(error.contains("version 3") && error.contains("version 2 or later"), "{error}");

    fs::write(&path, of_version_2(&text, 1)).unwrap();
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
    let carried = |path: &Path| {
        let journal = decode(path, fs::read_to_string(path).unwrap().as_bytes()).unwrap().journal;
        encode(path, &journal).unwrap()
    };
    assert!(carried(&path).contains("\"sinceVersion2\":[1,2]"));
    node.release(&ClaimUid::new("a").unwrap()).unwrap();
    node.prepare(&claim(&node, "a", &[QUARTER])).unwrap();
    node.invariants().unwrap();
    assert!(!carried(&path).contains("sinceVersion2"), "it was of a claim that is gone");
}

#[test]
fn whole_records_that_make_no_sense_are_refused() {
    let (world, path, text) = prepared();
    let good = changes(&text);
    let changed = |from: &str, to: &str| -> Vec<String> {
        assert!(good.iter().any(|r| r.contains(from)), "no {from} in {good:?}");
        good.iter().map(|r| r.replace(from, to)).collect()
    };
    let with = |more: &str| good.iter().cloned().chain([format!("[{more}]")]).collect::<Vec<_>>();
    let cases = [
        (changed("\"coresPercent\":25", "\"coresPercent\":101"), "coresPercent is `101`"),
        (
            changed("\"failMode\":\"closed\"", "\"failMode\":\"ajar\""),
            "failMode is `ajar`; expected closed or open",
        ),
        (changed("\"uid\":\"a\"", "\"uid\":\"../a\""), "claim UID `../a`"),
        (changed("\"phase\":\"prepared\"", "\"phase\":\"perhaps\""), "perhaps"),
        (changed("\"compute\":", "\"compote\":"), "compote"),
        (changed("\"steps\":", "\"extra\":1,\"steps\":"), "unknown field extra in claim a"),
        (changed("\"kind\":\"container\"", "\"kind\":\"pod\""), "unknown variant `pod`"),
        (changed("\"memoryBytes\":", "\"memoryBytes\":-"), "-6442450944"),
        (changed("\"writeCdi\"", "{\"writeGrant\":{\"share\":\"9\"}}"), "the plan of claim a"),
        (with(r#"{"record":"released","uid":"b"}"#), "claim b is changed, and no earlier record has it"),
        (with(r#"{"record":"phase","uid":"b","phase":"prepared"}"#), "claim b is changed"),
        (with(r#"{"record":"phase","uid":"a","phase":"prepared","why":1}"#), "unknown field `why`"),
        (
            with(r#"{"record":"destroyed","card":"c","template":"t","placement":"p"}"#),
            "partition c t p is changed",
        ),
    ];
    for (records, word) in cases {
        let error = refusal(&world, &path, framed(1, 1, &records).as_bytes());
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn lost_journal_is_detected_by_its_grants() {
    let (world, path, text) = prepared();
    fs::remove_file(&path).unwrap();
    let before = world.files();
    let Err(OpenError::Journal(error)) = world.try_open(None) else { panic!("opened") };
    assert!(error.to_string().contains("is missing"), "{error}");
    assert_eq!(world.files(), before);
    fs::write(&path, text).unwrap();
    let mut node = world.open();
    node.invariants().unwrap();
    assert_eq!(node.release(&ClaimUid::new("a").unwrap()).unwrap(), ReleaseOutcome::Released);
}

#[test]
fn journal_of_a_full_node_fits_into_the_file() {
    let (_world, path, text) = prepared();
    let journal = decode(&path, text.as_bytes()).unwrap().journal;
    let one = encode(&path, &journal).unwrap().len();
    let all = u64::try_from(one * CLAIMS_MAX).unwrap();
    assert!(all * 4 < FILE_BYTES_MAX, "{all} bytes");
}

/// A log that has grown is replaced by what it says.
#[test]
fn journal_grown_long_becomes_a_snapshot() {
    let (world, path, _) = prepared();
    let mut node = world.open();
    let half = Want { card: 0, part: "vir04 at vg3", memory_mib: None, cores: 50 };
    let request = claim(&node, "b", &[half]);
    let (mut longest, mut last, mut snapshots) = (0, 0, 0);
    for _ in 0..300 {
        node.prepare(&request).unwrap();
        node.release(&ClaimUid::new("b").unwrap()).unwrap();
        let length = fs::metadata(&path).unwrap().len();
        snapshots += u32::from(length < last);
        (longest, last) = (longest.max(length), length);
    }
    assert!((1..10).contains(&snapshots), "{snapshots} snapshots");
    assert!(longest < 300 << 10, "{longest} bytes");
    node.invariants().unwrap();
    drop(node);
    world.open().invariants().unwrap();
}
