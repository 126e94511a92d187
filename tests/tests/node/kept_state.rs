//! State directories that a version of this program left, kept as files: they are read, and what they hold is given back.
//!
//! `tests/kept/<version>` holds what a state directory of that version had in it that is not written anew:
//! the journal, the hardware of a simulated node, a prepared claim and a run that was killed with its
//! supervisor, with the usage accounting of both. A binary file is `<name>.hex`: an offset and 32 bytes a
//! line, lines of zeros left out. Simulated cards, of 24 MiB each, are not kept.
//!
//! `ALIQUOT_GOLDEN=write cargo test -p aliquot_tests --test node kept_state::` has the program write that of its own version. Files of a
//! released version are never written anew: one that stands in a numbered section of CHANGELOG.md.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use aliquot_driver::region::UsageCopy;
use aliquot_tests::local::{Local, aliquot, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const NODE: &str = "t4-2";
/// What is kept of a state directory.
const KEPT: [&str; 5] = ["journal", "hardware/hardware.toml", "grants", "runs", "living"];
/// What of it is no text.
const BINARY: [&str; 2] = ["limits", "usage"];
/// Bytes of a line of what is not.
const LINE: usize = 32;

/// The folder of kept states; with `ALIQUOT_GOLDEN=write` it is written before its first use.
fn kept() -> PathBuf {
    static WRITTEN: OnceLock<()> = OnceLock::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("kept");
    WRITTEN.get_or_init(|| {
        if std::env::var_os("ALIQUOT_GOLDEN").is_some_and(|v| v == "write") {
            write_own(&dir.join(env!("CARGO_PKG_VERSION")));
        }
    });
    dir
}

fn on_state(local: &Local, words: &[&str]) -> Output {
    Command::new(aliquot()).args(words).args(["--node", NODE, "--state"]).arg(local.state()).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn claim(local: &Local) -> String {
    let file = local.dir().join("claim.yaml");
    let text = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: one, uid: \
                11111111-2222-4333-8444-555555555555}\nspec:\n  devices:\n    requests:\n    - name: gpu\n      exactly:\n        \
                deviceClassName: share.aliquot.dev\n        capacity: {requests: {memory: 4Gi, cores: 30}}\n";
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Files of a directory and below, by their paths from there.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), PathBuf::from(entry.file_name()));
        if path.is_dir() {
            found.extend(files_below(&path).into_iter().map(|file| name.join(file)));
        } else {
            found.push(name);
        }
    }
    found
}

fn is_binary(file: &Path) -> bool {
    file.file_name().is_some_and(|name| BINARY.iter().any(|other| name == *other))
}

fn to_hex(bytes: &[u8]) -> String {
    let mut text = format!("{} bytes\n", bytes.len());
    for (number, line) in bytes.chunks(LINE).enumerate().filter(|(_, line)| line.iter().any(|b| *b != 0)) {
        write!(text, "{:06x} ", number * LINE).unwrap();
        line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    let (size, lines) = text.split_once(" bytes\n").unwrap();
    let mut bytes = vec![0; size.parse().unwrap()];
    for line in lines.lines() {
        let (at, digits) = line.split_once(' ').unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (number, byte) in bytes[at..].iter_mut().take(digits.len() / 2).enumerate() {
            *byte = u8::from_str_radix(&digits[2 * number..2 * number + 2], 16).unwrap();
        }
    }
    bytes
}

/// A state with a prepared claim, and a run that was killed with memory on its card.
fn write_own(to: &Path) {
    let local = Local::new(NODE);
    let prepared = on_state(&local, &["prepare", "-f", &claim(&local)]);
    assert!(prepared.status.success(), "{}", said(&prepared));
    let mut run = local.tenant(&["--card", "0", "--memory", "1Gi"], &["fill", "64"]);
    for pid in [run.child.id(), run.pid] {
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
    }
    run.child.wait().unwrap();
    let _gone = fs::remove_dir_all(to);
    for file in
        files_below(&local.state()).into_iter().filter(|file| KEPT.iter().any(|k| file.starts_with(k)))
    {
        let (from, to) = (local.state().join(&file), to.join(&file));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        if is_binary(&file) {
            fs::write(to.with_extension("hex"), to_hex(&fs::read(from).unwrap())).unwrap();
        } else {
            fs::write(to, fs::read(from).unwrap()).unwrap();
        }
    }
}

fn restore(from: &Path, state: &Path) {
    for file in files_below(from) {
        let to = state.join(&file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        if file.extension().is_some_and(|end| end == "hex") {
            let text = fs::read_to_string(from.join(&file)).unwrap();
            fs::write(to.with_extension(""), from_hex(&text)).unwrap();
        } else {
            fs::write(to, fs::read(from.join(&file)).unwrap()).unwrap();
        }
    }
}

#[test]
fn states_that_were_kept_are_read_and_what_they_hold_goes_back() {
    let versions: Vec<PathBuf> = fs::read_dir(kept()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(versions.iter().any(|dir| dir.ends_with(env!("CARGO_PKG_VERSION"))), "{versions:?}");
    for version in versions {
        let local = Local::new(NODE);
        restore(&version, &local.state());
        let held = said(&on_state(&local, &["devices"]));
        assert!(
            held.contains("5Gi of 15Gi") && held.contains("30% of 100%"),
            "{}: {held}",
            version.display()
        );
        // The accounting of the killed run shows what it had: a context and 64 MiB.
        let usages = || files_below(&local.state()).into_iter().filter(|file| file.ends_with("usage"));
        let seen = usages().map(|usage| UsageCopy::of(&local.state().join(usage)).unwrap());
        let most = seen.map(|seen| seen.high_water.0).max().unwrap();
        assert!(most > 64 << 20 && most < 1 << 30, "{most}");
        let again = on_state(&local, &["prepare", "-f", &claim(&local)]);
        assert!(again.status.success() && !said(&again).contains("changed"), "{}", said(&again));
        // The next run finds that no process of the killed run is left.
        let all_but_the_claim = on_run(&local, "11Gi");
        assert!(all_but_the_claim.status.success(), "{}", said(&all_but_the_claim));
        assert_eq!((local.claims(), local.records()), (1, 0));
        let released = on_state(&local, &["release", "--all"]);
        assert!(released.status.success(), "{}", said(&released));
        wait_for("everything given back", || local.claims() == 0);
        assert_eq!(usages().count(), 0);
    }
}

fn on_run(local: &Local, memory: &str) -> Output {
    local.run(&["--card", "0", "--memory", memory, "--", "true"]).output().unwrap()
}

/// Cards of another version are in the way of runs alone, and it is said what to do.
#[test]
fn cards_of_another_version_are_refused_with_what_to_do() {
    let local = Local::new(NODE);
    restore(&kept().join(env!("CARGO_PKG_VERSION")), &local.state());
    let cards = local.state().join("cards");
    fs::create_dir_all(&cards).unwrap();
    fs::write(cards.join("card-0"), vec![7; 1 << 20]).unwrap();
    let refused = on_run(&local, "1Gi");
    assert_eq!(refused.status.code(), Some(125), "{}", said(&refused));
    assert!(
        said(&refused).contains("card-0") && said(&refused).contains("remove the directory"),
        "{}",
        said(&refused)
    );
    assert!(said(&on_state(&local, &["devices"])).contains("of 15Gi"));
    fs::remove_dir_all(&cards).unwrap();
    assert!(on_run(&local, "1Gi").status.success());
}
