//! The pages: commands and examples in them work, paths and links lead somewhere, sizes stay within their limits.
//!
//! A command counts as a line of a `console` block that begins with `aliquot`. Those about files that only a reader has
//! (`READERS_OWN`) are left out; those for a real card stand in blocks of another kind, and are typed in `nvidia.rs`.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_tests::command_line::{Ran, ran};

/// Names in commands that stand for files of the reader.
const READERS_OWN: [&str; 3] = ["COMMAND", "cluster.yaml", "--cluster"];

/// Longest page, in bytes; longest line of prose, in characters; longest paragraph, in lines.
const PAGE_BYTES: usize = 20 * 1024;
const LINE_WIDTH: usize = 120;
const PARAGRAPH_LINES: usize = 5;

/// Most lines of the README, promises, rows of limits, and changes of one version.
const README_LINES: usize = 150;
const PROMISES: usize = 60;
const LIMITS: usize = 60;
const CHANGES: usize = 40;

/// Longest promise, in characters, without the tests that hold it.
const PROMISE_WIDTH: usize = 160;

/// Folders that begin a path in a page.
const HOMES: [&str; 9] =
    ["core/", "cdi/", "driver/", "shim/", "tests/", "benches/", "deploy/", "docs/", ".ci/"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a command line in this process; returns its exit code and what it wrote to standard error.
fn aliquot(words: impl IntoIterator<Item = OsString>) -> (u8, String) {
    let Ran { code, err, .. } = ran(words);
    (code, err)
}

fn text(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// Every page that git tracks or would track, relative to the root; results of benches are records, not pages.
fn pages() -> Vec<String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"]).current_dir(root());
    let listed = String::from_utf8(git.output().unwrap().stdout).unwrap();
    let pages =
        listed.lines().filter(|page| !page.starts_with("benches/results/") && root().join(page).is_file());
    let pages: Vec<String> = pages.map(str::to_owned).collect();
    assert!(pages.len() > 15, "git lists only {pages:?}");
    pages
}

/// The lines of a page outside code blocks, with their numbers.
fn prose(page: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut lines = Vec::new();
    for (number, line) in page.lines().enumerate() {
        match line.starts_with("```") {
            true => inside = !inside,
            false if !inside && !line.starts_with("    ") => lines.push((number + 1, line)),
            false => lines.push((number + 1, "")),
        }
    }
    lines
}

/// Rows of the tables of a page, without headings: the cells of `| cell | cell |`.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = page.lines().collect();
    let heading = |at: usize| lines.get(at + 1).is_some_and(|next| next.starts_with("|---"));
    let mut rows = Vec::new();
    for (_, line) in lines.iter().enumerate().filter(|(at, _)| !heading(*at)) {
        if let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) {
            rows.push(cells.split(" | ").map(str::trim).collect());
        }
    }
    rows
}

#[track_caller]
fn none(found: &[String]) {
    assert!(found.is_empty(), "\n  {}", found.join("\n  "));
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
        let text = fs::read_to_string(root().join("docs/user").join(page)).unwrap();
        let example = blocks(&text, "toml");
        assert!(example.lines().count() > 10, "{page} has no example");
        let file = dir.path().join(page).with_extension("toml");
        fs::write(&file, example).unwrap();
        let words = ["aliquot", "devices"].iter().chain(flags).map(OsString::from);
        let (code, err) = aliquot(words.chain([file.into_os_string()]));
        assert_eq!(code, 0, "{page}: {err}");
    }
}

#[test]
fn pages_and_paragraphs_stay_short() {
    let mut long = Vec::new();
    for page in pages() {
        let text = text(&page);
        if text.len() > PAGE_BYTES {
            long.push(format!("{page}: found {} bytes, expected at most {PAGE_BYTES}", text.len()));
        }
        let mut lines = 0;
        for (number, line) in prose(&text) {
            let item = line.trim_start().split_once(' ').is_some_and(|(mark, _)| {
                mark == "-" || mark.strip_suffix('.').is_some_and(|n| n.parse::<u32>().is_ok())
            });
            let apart = line.trim().is_empty() || line.starts_with(['|', '#']);
            lines = if apart {
                0
            } else if item {
                1
            } else {
                lines + 1
            };
            if lines == PARAGRAPH_LINES + 1 {
                long.push(format!("{page}:{number}: a paragraph has more than {PARAGRAPH_LINES} lines"));
            }
            if !apart && line.chars().count() > LINE_WIDTH {
                long.push(format!("{page}:{number}: a line is wider than {LINE_WIDTH} characters"));
            }
        }
    }
    none(&long);
}

#[test]
fn paths_and_links_in_pages_exist() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = text(&page);
        let folder = root().join(Path::new(&page).parent().unwrap());
        for (number, line) in prose(&text) {
            for word in line.split('`').skip(1).step_by(2) {
                let place = word.split_once("::").map_or(word, |(file, _)| file);
                let path = HOMES.iter().any(|home| place.starts_with(home));
                let plain = !place.contains(['<', ' ', '*', '{', '|', ':', '…', '$']);
                if path && plain && !root().join(place).exists() && !folder.join(place).exists() {
                    wrong.push(format!("{page}:{number}: `{place}` does not exist"));
                }
            }
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = target.split('#').next().unwrap();
                if !target.contains("://") && !file.is_empty() && !folder.join(file).exists() {
                    wrong.push(format!("{page}:{number}: link to {target}, which does not exist"));
                }
            }
        }
    }
    none(&wrong);
}

#[test]
fn counted_pages_stay_within_their_limits() {
    let readme = text("README.md").lines().count();
    assert!(readme <= README_LINES, "README.md: found {readme} lines, expected at most {README_LINES}");
    let changes = text("CHANGELOG.md");
    for version in changes.split("\n## ").skip(1) {
        let name = version.lines().next().unwrap();
        let bullets = version.lines().filter(|line| line.starts_with("- ")).count();
        assert!(
            bullets <= CHANGES,
            "CHANGELOG.md, {name}: found {bullets} bullets, expected at most {CHANGES}"
        );
    }
}

#[test]
fn promises_are_few_short_and_without_measurements() {
    let page = text("SPECIFICATION.md");
    let rows = rows(&page);
    assert!(
        rows.len() > 20 && rows.len() <= PROMISES,
        "found {} promises, expected at most {PROMISES}",
        rows.len()
    );
    for row in &rows {
        let [promise, proof] = row[..] else { panic!("expected a promise and its tests, found {row:?}") };
        assert!(promise.chars().count() <= PROMISE_WIDTH, "wider than {PROMISE_WIDTH} characters: {promise}");
        assert!(proof.contains('`'), "without a test or bench: {promise}");
        assert!(!promise.contains("measured:"), "a measurement belongs in benches/results: {promise}");
    }
}

#[test]
fn limits_name_affected_users_and_a_remedy() {
    let page = text("docs/limits.md");
    let (headings, limits): (Vec<_>, Vec<_>) =
        rows(&page).into_iter().partition(|row| row[0].starts_with("**"));
    assert!(headings.len() > 3, "{headings:?}");
    assert!(
        limits.len() > 20 && limits.len() <= LIMITS,
        "found {} limits, expected at most {LIMITS}",
        limits.len()
    );
    for limit in limits {
        let filled = limit.len() == 3 && limit.iter().all(|cell| !cell.is_empty());
        assert!(filled, "expected limit, affected users and remedy, found {limit:?}");
    }
}

/// Every source of the program, in one text.
fn sources() -> String {
    let mut git = Command::new("git");
    git.args(["ls-files", "driver/src/*.rs", "core/src/*.rs"]).current_dir(root());
    let listed = String::from_utf8(git.output().unwrap().stdout).unwrap();
    listed.lines().map(text).collect()
}

#[test]
fn symptoms_quote_what_the_program_says() {
    let page = text("docs/user/troubleshooting.md");
    let sources = sources();
    let first_cells = rows(&page).into_iter().map(|row| row[0].to_owned());
    let spans = first_cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
    // Commands and names of resources are no messages.
    let quotes: Vec<String> =
        spans.filter(|span| !span.starts_with("aliquot ") && !span.contains('/')).collect();
    assert!(quotes.len() > 8, "{quotes:?}");
    let unsaid: Vec<&String> = quotes.iter().filter(|quote| !sources.contains(quote.as_str())).collect();
    assert!(unsaid.is_empty(), "docs/user/troubleshooting.md: found quotes that no message has: {unsaid:?}");
}
