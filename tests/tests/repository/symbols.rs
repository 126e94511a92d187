//! The facts tables in `shim/symbols` are what NVIDIA publishes: regenerated and compared, where the publisher is reachable.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_tests::simulated::{StoodAside, kept, root, run};
use std::collections::BTreeSet;
use std::process::Command;

fn table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join("shim/symbols").join(name)).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn regenerated_tables_are_the_committed_ones() {
    let out = tempfile::tempdir().unwrap();
    let mut python = Command::new("python3");
    python.arg(root().join("tests/symbols/regenerate.py")).arg(kept("typedefs")).arg(out.path());
    if let Err(StoodAside(why)) = run(&mut python) {
        // The script stops with these words when the headers contradict its rule; anything else is the machine's.
        assert!(!why.contains("is in no header") && !why.contains("is declared"), "{why}");
        println!("stood aside (needs python3 with pip, and 8 MiB from PyPI once): {why}");
        return;
    }
    for name in ["cuda.tsv", "nvml.tsv"] {
        let fresh = std::fs::read_to_string(out.path().join(name)).unwrap();
        let committed = std::fs::read_to_string(root().join("shim/symbols").join(name)).unwrap();
        assert_eq!(fresh, committed, "{name}: run tests/symbols/regenerate.py and read what changed");
    }
}

/// Whether a name is of a pattern, in which `…` is any part.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn a_pattern_names_what_it_says() {
    for (pattern, name, expected) in [
        ("cuInit", "cuInit", true),
        ("cuInit", "cuInit2", false),
        ("cuCtx…", "cuCtx", true),
        ("cuIpc…EventHandle", "cuIpcGetEventHandle", true),
        ("cuIpc…EventHandle", "cuIpcGetMemHandle", false),
        ("cuGraph…Node…Set…", "cuGraphExecHostNodeSetParams", true),
        ("cuGraph…Node…Set…", "cuGraphHostNodeGetParams", false),
    ] {
        assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
    }
}

#[test]
fn every_function_is_intercepted_or_is_said_not_to_be() {
    let page = std::fs::read_to_string(root().join("docs/developer/not-intercepted.md")).unwrap();
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let patterns: BTreeSet<&str> =
        cells.flat_map(|cell| cell.split(", ").map(|name| name.trim_matches(['`', ' ']))).collect();
    let cuda = table("cuda.tsv");
    let bare = |row: &&Vec<String>| aliquot_shim::symbols::hook(row[3].as_bytes()).is_none();
    let symbols: BTreeSet<&str> = cuda.iter().filter(bare).map(|row| row[0].as_str()).collect();
    let unsaid: Vec<_> =
        symbols.iter().filter(|symbol| !patterns.iter().any(|pattern| fits(pattern, symbol))).collect();
    assert!(unsaid.is_empty(), "neither a hook nor a row in docs/developer/not-intercepted.md: {unsaid:?}");
    let idle: Vec<_> =
        patterns.iter().filter(|pattern| !symbols.iter().any(|symbol| fits(pattern, symbol))).collect();
    assert!(idle.is_empty(), "they all have hooks: {idle:?}");
    assert!(symbols.len() > 300, "{}", symbols.len());
}

#[test]
fn tables_are_whole_and_in_order() {
    let cuda = table("cuda.tsv");
    let symbols = cuda.iter().map(|row| row[0].as_str()).collect::<BTreeSet<_>>();
    let exports = cuda.iter().map(|row| row[3].as_str()).collect::<BTreeSet<_>>();
    assert_eq!((cuda.len(), symbols.len(), exports.len()), (723, 516, 723));
    assert!(cuda.iter().all(|row| row.len() == 4 && ["legacy", "ptds", "ptsz"].contains(&row[2].as_str())));
    let key = |row: &Vec<String>| (row[0].clone(), row[1].parse::<u32>().unwrap(), row[2].clone());
    assert!(cuda.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
    let nvml = table("nvml.tsv");
    assert!(nvml.len() > 400);
    assert!(nvml.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
}
