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
        assert!(!why.contains("is not in cuda.h"), "{why}");
        println!("stood aside (needs python3 with pip, and 7 MiB from PyPI once): {why}");
        return;
    }
    for name in ["cuda.tsv", "nvml.tsv"] {
        let fresh = std::fs::read_to_string(out.path().join(name)).unwrap();
        let committed = std::fs::read_to_string(root().join("shim/symbols").join(name)).unwrap();
        assert_eq!(fresh, committed, "{name}: run tests/symbols/regenerate.py and read what changed");
    }
}

#[test]
fn tables_are_whole_and_in_order() {
    let cuda = table("cuda.tsv");
    let symbols = cuda.iter().map(|row| row[0].as_str()).collect::<BTreeSet<_>>();
    let exports = cuda.iter().map(|row| row[3].as_str()).collect::<BTreeSet<_>>();
    assert_eq!((cuda.len(), symbols.len(), exports.len()), (685, 485, 685));
    assert!(cuda.iter().all(|row| row.len() == 4 && ["legacy", "ptds", "ptsz"].contains(&row[2].as_str())));
    let key = |row: &Vec<String>| (row[0].clone(), row[1].parse::<u32>().unwrap(), row[2].clone());
    assert!(cuda.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
    let nvml = table("nvml.tsv");
    assert!(nvml.len() > 400);
    assert!(nvml.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
}
