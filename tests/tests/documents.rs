//! What the documents tell a reader to type, typed: commands of the README, and the example of each page on a file.
//!
//! A command counts as a line of a `console` block that begins with `aliquot`. Those about files that only a reader has
//! (`READERS_OWN`) are left out; those for a real card stand in blocks of another kind, and are typed in `nvidia.rs`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_tests::command_line::{Ran, ran};

/// Names in commands that stand for files of the reader.
const READERS_OWN: [&str; 5] = ["my-workloads/", "cluster.yaml", "serve.py", "./train", "./batch"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a command line in this process; returns its exit code and what it wrote to standard error.
fn aliquot(words: impl IntoIterator<Item = OsString>) -> (u8, String) {
    let Ran { code, err, .. } = ran(words);
    (code, err)
}

/// The lines of all blocks of one kind.
fn blocks(page: &str, kind: &str) -> String {
    let mut inside = false;
    let mut lines = String::new();
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(language) => inside = language == kind,
            None if inside => lines.extend([line, "\n"]),
            None => {}
        }
    }
    lines
}

/// The words of a line, as a shell takes them: single quotes hold one together.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in line.split('\'').enumerate() {
        match number % 2 {
            1 => words.push(part.to_owned()),
            _ => words.extend(part.split_whitespace().map(str::to_owned)),
        }
    }
    words
}

#[test]
fn commands_of_the_readme_do_what_they_say() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().canonicalize().unwrap().join("state");
    let mut ran = 0;
    for line in blocks(&page, "console").lines().filter(|line| line.starts_with("aliquot ")) {
        if READERS_OWN.iter().any(|name| line.contains(name)) {
            continue;
        }
        let word = |word: String| match word.as_str() {
            "/tmp/aliquot" => state.clone().into_os_string(),
            file if file.starts_with("deploy/") => root().join(file).into_os_string(),
            other => OsString::from(other),
        };
        let (code, err) = aliquot(words(line).into_iter().map(word));
        assert_eq!((code, err.as_str()), (0, ""), "{line}");
        ran += 1;
    }
    assert!(ran > 5, "{ran} commands: the README has others now");
}

#[test]
fn examples_of_the_pages_are_read_as_they_stand() {
    let dir = tempfile::tempdir().unwrap();
    for (page, flags) in
        [("node-files.md", &["--node"][..]), ("policy-files.md", &["--node", "h100-8", "--policy"])]
    {
        let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
        let example = blocks(&text, "toml");
        assert!(example.lines().count() > 10, "{page} has no example");
        let file = dir.path().join(page).with_extension("toml");
        fs::write(&file, example).unwrap();
        let words = ["aliquot", "devices"].iter().chain(flags).map(OsString::from);
        let (code, err) = aliquot(words.chain([file.into_os_string()]));
        assert_eq!(code, 0, "{page}: {err}");
    }
}
