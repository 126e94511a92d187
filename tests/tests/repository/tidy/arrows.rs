//! Arrows between crates and between module folders, dependencies and their licences. Circles of files: see `circles`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::{none, root, rust_files};

/// Package, what it may use of ours, what it may use from outside in what ships.
pub(super) const ARROWS: &[(&str, &[&str], &[&str])] = &[
    ("aliquot_cel", &[], &["regex", "thiserror"]),
    ("aliquot_core", &["aliquot_cel"], &["serde", "thiserror", "toml"]),
    ("aliquot_abi", &[], &[]),
    // `shuttle` is the schedule explorer: a feature of tests, never built into what ships.
    ("aliquot_enforce", &[], &["shuttle"]),
    ("aliquot_cdi", &[], &["serde", "serde_json", "thiserror"]),
    (
        "aliquot_backend_nvidia",
        &["aliquot_core"],
        &["libloading", "nix", "nvml-wrapper", "nvml-wrapper-sys", "thiserror"],
    ),
    ("aliquot_backend_ascend", &["aliquot_core"], &["libloading", "thiserror"]),
    ("aliquot_backend_sim", &["aliquot_core"], &["nix", "serde", "thiserror", "toml"]),
    ("aliquot_sim_device", &[], &["libc", "serde", "thiserror", "toml"]),
    ("aliquot_sim_cuda", &["aliquot_sim_device"], &["libc"]),
    ("aliquot_sim_nvml", &["aliquot_sim_device"], &["libc"]),
    ("aliquot_sim_dcmi", &["aliquot_sim_device"], &["libc"]),
    ("aliquot_shim", &["aliquot_abi", "aliquot_enforce"], &["libc"]),
    ("aliquot_libraries", &[], &[]),
    (
        "aliquot_driver",
        &[
            "aliquot_abi",
            "aliquot_core",
            "aliquot_enforce",
            "aliquot_cdi",
            "aliquot_backend_ascend",
            "aliquot_backend_nvidia",
            "aliquot_backend_sim",
            "aliquot_libraries",
            "aliquot_sim_device",
        ],
        &[
            "axum",
            "clap",
            "clap_complete",
            "clap_mangen",
            "comfy-table",
            "crc32c",
            "flate2",
            "futures",
            "http",
            "k8s-openapi",
            "kube",
            "libc",
            "nix",
            "parking_lot",
            "prometheus-client",
            "prost",
            "prost-types",
            "rustix",
            "rustls",
            "serde",
            "serde-saphyr",
            "serde_json",
            "tar",
            "terminal_size",
            "thiserror",
            "tokio",
            "tokio-stream",
            "toml",
            "tonic",
            "tonic-prost",
            "tower",
            "tracing",
            "tracing-subscriber",
        ],
    ),
];

/// Packages that do not ship: they may use all of ours; everything from outside is listed in DECISIONS.md.
const NOT_SHIPPED: &[&str] = &["aliquot_benches", "aliquot_cluster", "aliquot_tests"];

/// A folder, and the folders that it uses.
type Uses = (&'static str, &'static [&'static str]);

/// Module folders of a crate, each with the folders that it uses: only ones above it in the list, so there is no cycle.
const FOLDERS: &[(&str, &[Uses])] = &[("shim/src/", SHIM_FOLDERS), ("driver/src/", DRIVER_FOLDERS)];

const SHIM_FOLDERS: &[Uses] = &[
    ("sys", &[]),
    ("loader", &["sys"]),
    ("grants", &["sys", "loader"]),
    ("accounting", &["sys", "loader", "grants"]),
    ("memory", &["sys", "loader", "grants", "accounting"]),
    ("compute", &["sys", "loader", "grants", "accounting", "memory"]),
    ("reporting", &["sys", "loader", "grants", "accounting"]),
    ("hooks", &["sys", "loader", "grants", "accounting", "memory", "compute", "reporting"]),
];

const DRIVER_FOLDERS: &[Uses] = &[
    ("printable", &[]),
    ("clock", &[]),
    ("error_text", &[]),
    ("ports", &[]),
    ("config", &[]),
    ("selinux", &[]),
    ("state_dir", &["printable"]),
    ("bundle", &["printable", "clock", "error_text"]),
    ("disk", &["state_dir"]),
    ("region", &["clock", "state_dir", "disk"]),
    ("checkpoint", &["clock", "state_dir", "disk", "region"]),
    ("grant_file", &["region"]),
    ("hardware", &["error_text", "config", "state_dir", "region"]),
    ("contexts", &["clock", "config", "state_dir", "region", "hardware"]),
    ("health", &["clock", "state_dir", "disk", "region", "checkpoint", "hardware"]),
    ("prepare", &["error_text", "config", "selinux", "disk", "region", "checkpoint", "grant_file"]),
    (
        "node",
        &[
            "clock",
            "error_text",
            "selinux",
            "state_dir",
            "disk",
            "region",
            "checkpoint",
            "grant_file",
            "hardware",
            "contexts",
            "health",
            "prepare",
        ],
    ),
    (
        "run",
        &[
            "clock",
            "error_text",
            "config",
            "state_dir",
            "disk",
            "region",
            "hardware",
            "health",
            "prepare",
            "node",
        ],
    ),
    (
        "view",
        &["clock", "error_text", "disk", "region", "checkpoint", "grant_file", "hardware", "health", "run"],
    ),
    ("manifest", &["error_text", "prepare"]),
    ("convert", &["printable", "manifest"]),
    ("kubelet", &["ports"]),
    ("kube", &["printable", "clock", "error_text", "ports", "config", "checkpoint", "manifest"]),
    (
        "agent",
        &[
            "printable",
            "clock",
            "error_text",
            "ports",
            "selinux",
            "state_dir",
            "region",
            "checkpoint",
            "grant_file",
            "hardware",
            "health",
            "prepare",
            "node",
            "run",
            "kubelet",
            "kube",
        ],
    ),
    ("doctor", &["error_text", "selinux", "state_dir", "disk", "checkpoint", "hardware", "kube", "agent"]),
    (
        "cli",
        &[
            "printable",
            "clock",
            "error_text",
            "config",
            "state_dir",
            "bundle",
            "region",
            "checkpoint",
            "hardware",
            "contexts",
            "health",
            "prepare",
            "node",
            "run",
            "view",
            "manifest",
            "convert",
            "kubelet",
            "kube",
            "agent",
            "doctor",
        ],
    ),
];

/// Files of a crate that join its folders, and so lie in none.
const ROOT_FILES: &[&str] = &["lib", "unwind", "bin"];

/// Licences that what we link may carry.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unlicense",
    "Unicode-3.0",
    "CC0-1.0",
    "BSL-1.0",
    "MIT-0",
];

/// The platform we run on: packages of others are neither built nor fetched.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--all-features", "--locked"])
        .args(["--filter-platform", &host()])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn arrows_between_crates_are_those_of_the_table() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        if !name.starts_with("aliquot_") || NOT_SHIPPED.contains(&name) {
            continue;
        }
        seen.insert(name.to_owned());
        let Some((_, ours, outside)) = ARROWS.iter().find(|(n, _, _)| *n == name) else {
            wrong.push(format!("{name} is not in the table of arrows"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            if dependency["kind"].is_null() && !ours.contains(&to) && !outside.contains(&to) {
                wrong.push(format!("{name} -> {to}"));
            }
        }
    }
    none("arrows that are not in the table", &wrong);
    let listed: BTreeSet<String> = ARROWS.iter().map(|(n, _, _)| (*n).to_owned()).collect();
    assert_eq!(seen, listed, "packages and table differ");
}

#[test]
fn every_dependency_is_argued_in_decisions() {
    let decisions = fs::read_to_string(root().join("DECISIONS.md")).unwrap();
    let mut missing = BTreeSet::new();
    for package in metadata()["packages"].as_array().unwrap() {
        if !package["name"].as_str().unwrap().starts_with("aliquot_") {
            continue;
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            if !to.starts_with("aliquot_") && !decisions.contains(&format!("`{to}`")) {
                missing.insert(to.to_owned());
            }
        }
    }
    none("dependencies without a line in DECISIONS.md", &missing.into_iter().collect::<Vec<_>>());
}

#[test]
fn licences_of_dependencies_are_permissive() {
    let mut wrong = Vec::new();
    for package in metadata()["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or("");
        let fine = licence
            .replace('/', " OR ")
            .split(" AND ")
            .all(|all| all.split(" OR ").any(|one| LICENCES.contains(&one.trim().trim_matches(['(', ')']))));
        if !fine {
            wrong.push(format!("{name}: `{licence}`"));
        }
    }
    none("licences outside the list", &wrong);
}

/// Folders that a line of code names after `crate::`.
fn folders_named(line: &str) -> impl Iterator<Item = &str> {
    let starts =
        line.match_indices("crate::").filter(|(at, _)| !line[..*at].ends_with('$')).map(|(at, _)| at + 7);
    starts.map(|at| line[at..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(""))
}

/// Arrows of the table that do not point upwards, and uses in these files (path, text) that the table does not have.
fn wrong_uses(crate_root: &str, folders: &[Uses], files: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (place, (folder, uses)) in folders.iter().enumerate() {
        let above: Vec<_> = folders[..place].iter().map(|(name, _)| *name).collect();
        let upwards = uses.iter().filter(|used| !above.contains(used));
        wrong.extend(
            upwards.map(|used| format!("{crate_root}{folder}: `{used}` is not above it in the table")),
        );
    }
    for (file, text) in files {
        let Some(inside) = file.strip_prefix(crate_root) else { continue };
        let own = inside.split('/').next().unwrap_or("").trim_end_matches(".rs");
        let Some((_, uses)) = folders.iter().find(|(name, _)| *name == own) else {
            if !ROOT_FILES.contains(&own) {
                wrong.push(format!("{file}: lies in no folder of the table"));
            }
            continue;
        };
        // So many steps up from a file of this depth leave its folder.
        let leaves = "super::".repeat(inside.split('/').count().max(2));
        for (number, line) in
            text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            let named = folders_named(line).filter(|named| *named != own && !uses.contains(named));
            wrong.extend(named.map(|named| format!("{file}:{}: `{own}` does not use `{named}`", number + 1)));
            if line.contains(&leaves) {
                wrong.push(format!("{file}:{}: name the folder after `crate::`", number + 1));
            }
        }
    }
    wrong
}

#[test]
fn arrows_between_module_folders_are_those_of_the_table() {
    let files = rust_files();
    let wrong: Vec<String> =
        FOLDERS.iter().flat_map(|(crate_root, folders)| wrong_uses(crate_root, folders, &files)).collect();
    none("arrows between module folders outside the table", &wrong);
}

#[test]
fn forbidden_arrows_and_cycles_are_refused() {
    let table: &[Uses] = &[("low", &[]), ("high", &["low"])];
    let check =
        |table, file: &str, text: &str| wrong_uses("x/src/", table, &[(file.to_owned(), text.to_owned())]);
    for (file, text) in [
        ("x/src/high.rs", "use crate::low::Thing;"),
        ("x/src/low/part.rs", "// crate::high is not used here"),
        ("x/src/lib.rs", "use crate::high::Thing;"),
        ("y/src/low.rs", "use crate::high::Thing;"),
        ("x/src/low/part.rs", "use super::Thing;"),
    ] {
        assert_eq!(check(table, file, text), Vec::<String>::new(), "{file}: {text}");
    }
    for (file, text, found) in [
        ("x/src/low.rs", "use crate::high::Thing;", "x/src/low.rs:1: `low` does not use `high`"),
        (
            "x/src/low/part.rs",
            "\nfn f(_: &crate::high::T) {}",
            "x/src/low/part.rs:2: `low` does not use `high`",
        ),
        ("x/src/high.rs", "use crate::{low, high};", "x/src/high.rs:1: `high` does not use ``"),
        ("x/src/low/part.rs", "use super::super::T;", "x/src/low/part.rs:1: name the folder after `crate::`"),
        ("x/src/other.rs", "", "x/src/other.rs: lies in no folder of the table"),
    ] {
        assert_eq!(check(table, file, text), [found], "{file}: {text}");
    }
    let cycle: &[Uses] = &[("low", &["high"]), ("high", &["low"])];
    assert_eq!(check(cycle, "", ""), ["x/src/low: `high` is not above it in the table"]);
}
