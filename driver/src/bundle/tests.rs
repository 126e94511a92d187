//! The archive as its readers find it, and what is never read.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use flate2::read::GzDecoder;
use nix::sys::stat::Mode;
use tempfile::TempDir;

use super::files::{Kept, file, names};
use super::*;

/// The files below a directory, as [`files::tree`] finds them.
fn tree(from: &Path, wanted: &dyn Fn(&str) -> Option<Kept>) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut sink = |entry| {
        found.push(entry);
        Ok(())
    };
    files::tree("state", from, wanted, &mut sink).unwrap();
    found
}

fn archive(entries: Vec<Entry>) -> (BTreeMap<String, Vec<u8>>, Contents) {
    let mut out = Vec::new();
    let mut archive = Archive::new(&mut out, "made-here", UnixSeconds(1_700_000_000));
    entries.into_iter().for_each(|entry| archive.add(entry).unwrap());
    let contents = archive.finish("About.\n").unwrap();
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(GzDecoder::new(&out[..])).entries().unwrap() {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().mode().unwrap(), 0o600);
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        files.insert(path, bytes);
    }
    (files, contents)
}

#[test]
fn archive_names_each_file_and_each_absent_one() {
    let large = vec![b'x'; ENTRY_BYTES_MAX + 1];
    let (files, contents) = archive(vec![
        Entry::of("one.txt", "1"),
        Entry::absent("two.txt", "no right\nto read"),
        Entry::of("large.bin", large),
    ]);
    assert_eq!(contents, Contents { files: 2, absent: 1 });
    assert_eq!(files["made-here/one.txt"], b"1");
    assert_eq!(files["made-here/large.bin"].len(), ENTRY_BYTES_MAX);
    let readme = String::from_utf8(files["made-here/README.txt"].clone()).unwrap();
    let expected = format!("1  one.txt\nabsent  two.txt: no right\\nto read\n  {ENTRY_BYTES_MAX}  large.bin");
    assert!(readme.contains(&expected), "{readme}");
    assert!(readme.contains(&format!(", of {}", ENTRY_BYTES_MAX + 1)), "{readme}");
}

#[test]
fn archive_has_a_bound_of_all_its_bytes() {
    let mut archive = Archive::new(std::io::sink(), "p", UnixSeconds(0));
    for number in 0..ARCHIVE_BYTES_MAX / ENTRY_BYTES_MAX {
        archive.add(Entry::of(format!("{number}"), vec![0; ENTRY_BYTES_MAX])).unwrap();
    }
    archive.add(Entry::of("last", "abc")).unwrap();
    assert!(archive.index.ends_with("         0  last, of 3\n"), "{}", archive.index);
}

#[test]
fn walk_reads_plain_files_alone() {
    let dir = TempDir::new().unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let walked = dir.path().join("walked");
    fs::create_dir_all(walked.join("below")).unwrap();
    fs::write(walked.join("below/kept"), "kept").unwrap();
    fs::write(walked.join("unwanted"), "no").unwrap();
    fs::write(walked.join("..%2f..%2fodd\n"), "no").unwrap();
    symlink(&secret, walked.join("link")).unwrap();
    symlink(dir.path(), walked.join("linked-directory")).unwrap();
    nix::unistd::mkfifo(&walked.join("pipe"), Mode::S_IRWXU).unwrap();
    let found = tree(&walked, &|path| (path != "unwanted").then_some(Kept::FIRST));
    assert_eq!(found, [Entry::of("state/below/kept", "kept")]);

    for special in ["link", "pipe", "below"] {
        assert!(file("f", &walked.join(special), Kept::FIRST).content.is_err(), "{special}");
    }
    let listed = String::from_utf8(names("n", &walked).content.unwrap()).unwrap();
    assert!(listed.starts_with("directory  below\nfile       ..%2f..%2fodd\\n\n"), "{listed}");
    assert!(tree(&dir.path().join("none"), &|_| Some(Kept::FIRST))[0].content.is_err());
}

#[test]
fn log_keeps_its_end_and_others_their_beginning() {
    let dir = TempDir::new().unwrap();
    let (path, mut bytes) = (dir.path().join("log"), vec![b'a'; ENTRY_BYTES_MAX]);
    bytes.extend_from_slice(b"the end");
    fs::write(&path, &bytes).unwrap();
    let end = file("log", &path, Kept::LAST);
    assert_eq!(end.whole, bytes.len());
    let end = end.content.unwrap();
    assert!(end.len() == ENTRY_BYTES_MAX && end.ends_with(b"the end"));
    assert!(file("log", &path, Kept::FIRST).content.unwrap().starts_with(b"aaa"));
}

/// Its owner is a tenant: a hole of any size costs nothing.
#[test]
fn large_file_of_a_tenant_is_read_as_far_as_it_is_wanted() {
    let dir = TempDir::new().unwrap();
    let usage = fs::File::create(dir.path().join("usage")).unwrap();
    usage.set_len(1 << 40).unwrap();
    let found = tree(dir.path(), &|_| Some(Kept::First(4096)));
    assert_eq!((found[0].content.as_ref().unwrap().len(), found[0].whole), (4096, 1 << 40));
}

#[test]
fn command_says_how_it_ended() {
    let run = |script: &str| {
        let entries = commands::answer("c", Command::new("sh").args(["-c", script]));
        let text = |entry: Entry| (entry.path, String::from_utf8(entry.content.unwrap()).unwrap());
        entries.into_iter().map(text).collect::<Vec<_>>()
    };
    let is = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    assert_eq!(run("echo fine"), [is("c", "fine\n")]);
    assert_eq!(
        run("echo half; echo why >&2; exit 3"),
        [is("c", "half\n"), is("c.stderr", "exit status: 3\nwhy\n")]
    );
    assert!(commands::answer("c", &mut Command::new("/none"))[0].content.is_err());
}
