//! The command line, word for word: each file of `golden/` is a transcript that must come out again.
//!
//! A transcript is one or more commands, each with its exit code and what it wrote:
//!
//! ```text
//! $ aliquot devices --node t4-2
//! exit 0
//! …standard output
//! ! …a line of standard error
//! ```
//!
//! `{STATE}` stands for a directory that does not exist before the first command of a transcript, in a parent that
//! does. New and changed transcripts are written with `ALIQUOT_GOLDEN=write cargo test -p aliquot_tests --test answers golden::`
//! and reviewed as code.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_tests::command_line::{Ran, ran};
use aliquot_tests::local::{BOUND, aliquot as program, wait_for};

const STATE: &str = "{STATE}";

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Runs one command line in this process; `@name` is a file of `golden/input`.
fn aliquot(line: &str, state: &Path) -> Ran {
    let words = line.split_whitespace().map(|word| {
        let word = word.replace(STATE, &state.display().to_string());
        match word.strip_prefix('@') {
            Some(name) => golden_dir().join("input").join(name).into_os_string(),
            None => OsString::from(word),
        }
    });
    let Ran { code, out, err } = ran(words);
    let text = |text: String| {
        let inputs = format!("{}/", golden_dir().join("input").display());
        text.replace(&state.display().to_string(), STATE).replace(&inputs, "@")
    };
    Ran { code, out: text(out), err: text(err) }
}

/// The transcript of the commands of another transcript.
fn transcript(old: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().canonicalize().unwrap().join("state");
    let mut new = String::new();
    for command in old.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let Ran { code, out, err } = aliquot(command, &state);
        write!(new, "$ {command}\nexit {code}\n{out}").unwrap();
        for line in err.lines() {
            writeln!(new, "! {line}").unwrap();
        }
        new.push('\n');
    }
    new
}

#[test]
fn every_transcript_comes_out_again() {
    let write = std::env::var_os("ALIQUOT_GOLDEN").is_some_and(|v| v == "write");
    let mut files: Vec<PathBuf> =
        fs::read_dir(golden_dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "txt"));
    files.sort();
    assert!(files.len() > 10, "the transcripts are gone");
    let mut different = Vec::new();
    for file in files {
        let old = fs::read_to_string(&file).unwrap();
        let new = transcript(&old);
        assert!(new.contains("exit "), "{} has no command", file.display());
        if old != new && write {
            fs::write(&file, new).unwrap();
        } else if old != new {
            let line = old.lines().zip(new.lines()).find(|(a, b)| a != b);
            different.push(format!("{}: {line:#?}", file.display()));
        }
    }
    assert!(different.is_empty(), "ALIQUOT_GOLDEN=write writes them anew:\n{}", different.join("\n"));
}

#[test]
fn a_refused_command_leaves_nothing_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    for line in [
        "aliquot prepare -f @unknown-field.yaml --node t4-2 --state {STATE}",
        "aliquot prepare -f @share.yaml --node nowhere --state {STATE}",
        "aliquot prepare -f @share.yaml --node t4-2 --state {STATE}/deeper",
        "aliquot devices --node t4-2 --state {STATE}",
        "aliquot plan -f @share.yaml --node t4-2 --state {STATE}",
    ] {
        assert!(aliquot(line, &state).code >= 2, "{line}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{line}");
    }
}

#[test]
fn every_example_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let line = format!("aliquot plan -f {} --node mixed --node ascend-310p-duo", examples.display());
    let ran = aliquot(&line, dir.path());
    assert_eq!(ran.err, "");
    assert!(ran.out.contains("1 without a place"), "{}", ran.out);
}

/// The demo starts itself again as tenants, so it has to be the program. Its commands are compared word for word, and the figures
/// of its processes by the demo itself.
#[test]
fn the_demo_comes_out_as_expected() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().canonicalize().unwrap().join("state");
    let output = Command::new(program()).args(["demo", "--state"]).arg(&state).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()), "{text}");
    assert!(text.ends_with("Everything came out as expected, and everything was given back.\n"), "{text}");
    let (commands, processes) = text.split_once("== 12.").unwrap();
    assert!(processes.contains("CUDA_ERROR_OUT_OF_MEMORY at 3584Mi"), "{processes}");
    let file = golden_dir().join("input/demo.out");
    let found = commands.replace(&state.display().to_string(), STATE);
    if std::env::var_os("ALIQUOT_GOLDEN").is_some_and(|v| v == "write") {
        fs::write(&file, &found).unwrap();
    }
    assert_eq!(found, fs::read_to_string(&file).unwrap());
}

/// Whatever ends the demo on the way, nothing of it is left.
#[test]
fn a_demo_that_is_ended_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let mut demo = Command::new(program());
    demo.arg("demo").env("TMPDIR", place.path()).stdout(Stdio::null()).process_group(0);
    let mut demo = demo.spawn().unwrap();
    let runs = place.path().join(format!("aliquot-demo-{}/processes/runs", demo.id()));
    // Scenes without processes come first, and take their time on a busy machine.
    let has_come = || fs::read_dir(&runs).is_ok_and(|mut runs| runs.next().is_some());
    let begun = Instant::now();
    while !has_come() && demo.try_wait().unwrap().is_none() && begun.elapsed() < 5 * BOUND {
        std::thread::sleep(Duration::from_millis(5));
    }
    let kill = |signal: &str, whom: &str| {
        let mut kill = Command::new("kill");
        kill.args([signal, "--", whom]).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(kill("-TERM", &demo.id().to_string()));
    assert_eq!(demo.wait().unwrap().code(), Some(128 + 15));
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
    let group = format!("-{}", demo.id());
    wait_for("the end of all processes in its group", || !kill("-0", &group));
}

#[test]
fn a_plan_can_be_read_back_as_what_it_decided() {
    let dir = tempfile::tempdir().unwrap();
    for form in ["json", "yaml"] {
        let plan = aliquot(&format!("aliquot plan -f @share.yaml --node t4-2 -o {form}"), dir.path());
        let file = dir.path().join(format!("plan.{form}"));
        fs::write(&file, &plan.out).unwrap();
        let again = aliquot(&format!("aliquot plan -f {} --node t4-2", file.display()), dir.path());
        assert_eq!((again.code, again.err.as_str()), (0, ""));
        assert!(again.out.contains("1 held already, everything fits"), "{}", again.out);
    }
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = aliquot(&format!("aliquot completions {shell}"), Path::new("/"));
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        assert!(ran.out.contains("devices") && ran.out.contains("demo"), "{shell}");
    }
}
