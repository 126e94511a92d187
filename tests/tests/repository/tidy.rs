//! The house keeps itself: arrows between crates, "only X knows Y", sizes, names and documents, checked on every run.
//!
//! The tables here and in `arrows` are the rules. Change a rule together with ARCHITECTURE.md and a line in DECISIONS.md.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod arrows;
mod circles;
mod imports;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use arrows::ARROWS;

/// A word in code lines, and the only files that may hold it (path prefixes).
const ONLY: &[(&str, &[&str])] = &[
    ("aliquot_backend_nvidia", &["driver/src/hardware/vendors.rs", "driver/backends/nvidia/", "tests/"]),
    ("aliquot_backend_ascend", &["driver/src/hardware/vendors.rs", "driver/backends/ascend/", "tests/"]),
    ("regex::", &["core/cel/src/"]),
    (
        "toml::",
        &[
            "core/src/catalogue/text.rs",
            "core/src/offer/text",
            "driver/backends/sim/",
            "driver/src/doctor/runtime/settings.rs",
            "tests/",
        ],
    ),
    ("serde_saphyr", &["driver/src/manifest", "driver/src/cli/", "tests/"]),
    ("crc32c", &["driver/src/checkpoint", "tests/"]),
    ("clap", &["driver/src/cli", "driver/src/bin/", "tests/cluster/src/main.rs"]),
    ("k8s_openapi", &["driver/src/kube.rs", "driver/src/kube/"]),
    ("aliquot_backend_nvidia", VENDOR_HOMES),
    ("aliquot_backend_ascend", VENDOR_HOMES),
    ("NVIDIA", VENDOR_NAMES),
    (
        "env::var",
        &[
            "driver/src/config",
            "core/enforce/src/ablation.rs",
            "driver/libraries/build.rs",
            "driver/backends/sim/",
            "shim/build.rs",
            "core/abi/tests/",
            "tests/",
            "benches/",
            "cdi/tests/",
        ],
    ),
    ("Instant::now", &["driver/src/clock", "tests/", "benches/", "driver/tests/"]),
    ("SystemTime::now", &["driver/src/clock", "tests/", "benches/"]),
    (
        "unsafe {",
        &[
            "driver/backends/",
            "driver/src/agent/restart.rs",
            "driver/src/agent/unused_pages.rs",
            "driver/src/bin/aliquot.rs",
            "driver/src/cli/demo/tenant.rs",
            "driver/src/config.rs",
            "driver/src/region/futex.rs",
            "driver/src/region/mapping.rs",
            "driver/src/run/supervise.rs",
            "core/abi/src/view.rs",
            "core/abi/src/view/bytes.rs",
            "core/abi/tests/",
            "shim/",
        ],
    ),
];

/// A vendor is named in its crate and in one registration, beside what imitates its library.
const VENDOR_HOMES: &[&str] = &["driver/backends/", "driver/src/hardware/vendors.rs", "tests/", "benches/"];

/// Other systems' words name vendors as well.
const VENDOR_NAMES: &[&str] =
    &["driver/backends/", "driver/src/hardware/vendors.rs", "driver/src/convert", "tests/", "benches/"];

/// Names that say nothing.
const NO_NAMES: &[&str] = &["util", "utils", "common", "helpers", "manager", "types", "misc"];

/// Longest name of a test, in characters.
const TEST_NAME_MAX: usize = 60;
/// Longest file, in lines.
const LINES_MAX: usize = 1_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every file that git tracks or would track, relative to the root.
fn files() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    let files: Vec<String> = listed.lines().filter(|f| root().join(f).is_file()).map(str::to_owned).collect();
    assert!(files.len() > 20, "git lists only {} files", files.len());
    files
}

fn rust_files() -> Vec<(String, String)> {
    files()
        .into_iter()
        .filter(|f| f.ends_with(".rs"))
        .map(|f| {
            let text = fs::read_to_string(root().join(&f)).unwrap();
            (f, text)
        })
        .collect()
}

/// Code lines outside comments and outside what follows `#[cfg(test)]`.
fn shipped_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(number, line)| (number + 1, line))
}

#[track_caller]
fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn only_the_named_modules_know_the_named_things() {
    let mut wrong = Vec::new();
    for (file, text) in rust_files() {
        if file.starts_with("tests/tests/repository/tidy") || file.starts_with("tests/fuzz/") {
            continue;
        }
        for (number, line) in shipped_lines(&text) {
            for (word, homes) in ONLY {
                let known = homes.iter().any(|home| file.starts_with(home)) || file.ends_with("/tests.rs");
                let alone = line
                    .match_indices(word)
                    .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
                if alone && !known {
                    wrong.push(format!("{file}:{number}: `{word}` belongs to {}", homes.join(", ")));
                }
            }
        }
    }
    none("knowledge in the wrong place", &wrong);
}

#[test]
fn core_is_not_serializable_and_knows_no_vendor() {
    let mut wrong = Vec::new();
    for (file, text) in rust_files() {
        if !file.starts_with("core/src/") {
            continue;
        }
        for (number, line) in shipped_lines(&text) {
            if line.contains("Serialize") && !line.contains("Deserialize") {
                wrong.push(format!("{file}:{number}: core types do not serialize"));
            }
            if line.contains("match vendor") || line.contains("match card.vendor") {
                wrong.push(format!("{file}:{number}: a vendor is data, not a branch"));
            }
        }
    }
    none("core knows too much", &wrong);
}

#[test]
fn files_are_short_named_and_begin_with_their_story() {
    let mut wrong = Vec::new();
    for (file, text) in rust_files() {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{file}: {lines} lines, at most {LINES_MAX}"));
        }
        let first = text.lines().find(|line| !line.starts_with("#!")).unwrap_or("");
        // The tests of a module tell their story in their names; the module tells its own.
        if !first.starts_with("//!") && !file.ends_with("/tests.rs") {
            wrong.push(format!("{file}: does not begin with a module text (//!)"));
        }
        let stem = Path::new(&file).file_stem().unwrap().to_str().unwrap().to_owned();
        if NO_NAMES.contains(&stem.as_str()) || stem == "mod" {
            wrong.push(format!("{file}: `{stem}` says nothing"));
        }
    }
    none("files out of shape", &wrong);
}

#[test]
fn test_names_are_short_and_name_their_subject() {
    let (mut wrong, mut names) = (Vec::new(), 0);
    for (file, text) in rust_files() {
        let mut test = false;
        for line in text.lines().map(str::trim_start) {
            test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let Some((_, rest)) = line.split_once("fn ").filter(|_| test && !line.starts_with('#')) else {
                continue;
            };
            let name = rest.split('(').next().unwrap_or(rest);
            (test, names) = (false, names + 1);
            if name.len() > TEST_NAME_MAX {
                wrong
                    .push(format!("{file}: `{name}` has {} characters, at most {TEST_NAME_MAX}", name.len()));
            }
            if ["what_", "who_", "whoever_", "whatever_"].iter().any(|start| name.starts_with(start)) {
                wrong.push(format!("{file}: `{name}` does not begin with its subject"));
            }
        }
    }
    none("test names out of shape", &wrong);
    assert!(names > 1000, "only {names} tests found");
}

#[test]
fn no_unfinished_marks_and_no_paths_of_one_machine() {
    let marks =
        [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["todo", "!("].concat(), ["#[ign", "ore"].concat()];
    let paths = [["/wo", "rk/"].concat(), ["/ro", "ot/"].concat(), ["/ho", "me/"].concat()];
    // Where Google's node images have the vendor's driver.
    let of_images = ["/ho", "me/kubernetes/bin/"].concat();
    let mut wrong = Vec::new();
    for file in files() {
        let binary = ["corpus/", "Cargo.lock", "go.sum", "LICENSE"].iter().any(|skip| file.contains(skip));
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        for (number, line) in text.lines().enumerate().filter(|_| !binary) {
            for word in marks.iter().chain(&paths) {
                if line.replace(of_images.as_str(), "").contains(word.as_str()) {
                    wrong.push(format!("{file}:{}: `{word}`", number + 1));
                }
            }
        }
    }
    none("marks and paths that do not belong in the tree", &wrong);
}

#[test]
fn architecture_names_what_is_there() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut wrong = Vec::new();
    for (package, _, _) in ARROWS {
        if !text.contains(&format!("`{package}`")) {
            wrong.push(format!("package {package} is not in ARCHITECTURE.md"));
        }
    }
    let mut named = 0;
    for word in text.split('`').skip(1).step_by(2) {
        let place = word.split_once("::").map_or(word, |(file, _)| file);
        let looks =
            place.contains('/') && !place.contains(['<', ' ', '*', '{', '|', ':']) && !place.starts_with('/');
        let home = ["core/", "cdi/", "driver/", "tests/", "benches/", "deploy/", "docs/", ".ci/"];
        if looks && home.iter().any(|h| place.starts_with(h)) {
            named += 1;
            if !root().join(place).exists() {
                wrong.push(format!("ARCHITECTURE.md names `{place}`, which is not there"));
            }
        }
    }
    none("ARCHITECTURE.md and the tree differ", &wrong);
    assert!(named >= 10, "ARCHITECTURE.md names only {named} places");
}

/// Promises name their proof: each row of SPECIFICATION.md ends with a test or bench that exists.
#[test]
fn every_promise_names_a_test_or_bench_that_exists() {
    let text = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let code: String = rust_files().into_iter().map(|(file, text)| format!("{file}\n{text}\n")).collect();
    let go: String = files()
        .into_iter()
        .filter(|f| f.ends_with(".go") || f.ends_with(".sh"))
        .map(|f| fs::read_to_string(root().join(f)).unwrap())
        .collect();
    let mut wrong = Vec::new();
    let mut rows = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let Some(cells) = line.strip_prefix("| ").and_then(|l| l.strip_suffix(" |")) else { continue };
        let Some(proof) = cells.rsplit(" | ").next() else { continue };
        if proof == "held by" || proof.starts_with("---") {
            continue;
        }
        let names: Vec<&str> = proof.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            wrong.push(format!("SPECIFICATION.md:{}: names no test or bench: {proof}", number + 1));
        }
        for name in names {
            let there = root().join(name.split("::").next().unwrap_or(name)).exists()
                || code.contains(&format!("fn {}", name.rsplit("::").next().unwrap_or(name)))
                || code.contains(&format!("\"{name}"))
                || go.contains(name);
            if !there {
                wrong.push(format!("SPECIFICATION.md:{}: `{name}` does not exist", number + 1));
            }
            rows.insert(number, name.to_owned());
        }
    }
    none("promises without proof", &wrong);
    assert!(rows.len() >= 10, "only {} promises", rows.len());
}
