//! The suite for real cards, on a simulated one: it runs, sees what is right and what is not, and stands aside alone.
//!
//! Nothing here says anything about a real card; `tests/gpu/README.md` says how one is asked.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use aliquot_tests::preload::shim;
use aliquot_tests::simulated::{Bench, StoodAside, root, run};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// What is carried to a machine with a card, without the archive around it; `None` where there is no compiler.
fn carried(library: &Path) -> Option<TempDir> {
    let place = TempDir::new().unwrap();
    if let Err(StoodAside(why)) = run(Command::new("cc").arg("--version")) {
        println!("stood aside: {why}");
        return None;
    }
    run(Command::new(root().join("tests/gpu/link")).arg(place.path().join("probe"))).unwrap();
    for (from, to) in [
        (Path::new(env!("CARGO_BIN_EXE_gpu_suite")), "gpu_suite"),
        (library, "libaliquot.so"),
        (&root().join("tests/gpu/package.py"), "package.py"),
    ] {
        std::fs::copy(from, place.path().join(to)).unwrap();
    }
    Some(place)
}

/// The suite's page and how it ended; nothing of it stays here.
fn suite(mut command: Command, carried: &TempDir, words: &[&str]) -> (String, Output) {
    let result = carried.path().join("result.md");
    command.arg("--carried").arg(carried.path()).args(words).arg(&result);
    let output = command.output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output)
}

fn script() -> std::path::PathBuf {
    root().join("tests/gpu/run")
}

/// The last column of the row that begins so.
#[track_caller]
fn verdict<'p>(page: &'p str, row: &str) -> &'p str {
    let line = page.lines().find(|line| line.starts_with(&format!("| {row}")));
    let cells = line.unwrap_or_else(|| panic!("no row {row}: {page}")).trim_end_matches(" |").rsplit(" | ");
    cells.into_iter().next().unwrap()
}

#[test]
fn without_a_card_the_suite_says_why_it_stands_aside() {
    let Some(place) = carried(shim()) else { return };
    let mut command = Command::new(script());
    command.env_remove("LD_LIBRARY_PATH");
    if Command::new(place.path().join("probe")).arg("facts").output().unwrap().status.success() {
        return println!("stood aside: this machine has a card");
    }
    let (page, output) = suite(command, &place, &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(page.starts_with("stood aside: there is no card here: libcuda.so.1: cannot open"), "{page}");
    assert!(!place.path().join("result.md").exists());

    let empty = TempDir::new().unwrap();
    let (page, output) = suite(Command::new(script()), &empty, &[]);
    assert!(output.status.success() && page.starts_with("stood aside: "), "{page}");
}

#[test]
fn the_suite_sees_that_the_shim_holds_limits() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    let words = ["--simulated", "--seconds", "1", "--only", "memory"];
    let (page, output) = suite(bench.command(script()), &place, &words);
    println!("{page}");
    let families = [
        "cuMemAlloc ",
        "cuMemAllocPitch ",
        "cuMemAllocManaged ",
        "cuMemAllocAsync ",
        "cuMemCreate ",
        "cuArrayCreate ",
    ];
    for row in families.into_iter().chain(["four processes"]) {
        assert_eq!(verdict(&page, row), "holds", "{page}{output:?}");
    }
    assert!(page.contains("simulated card"), "a page of a simulated card says so");
    assert_eq!(std::fs::read_to_string(place.path().join("result.md")).unwrap(), page);
}

/// A share is seen where it is held, and its lack where it is not; how exact the shim is on simulated cards is other tests'
/// matter, and a loaded machine is given two more tries to get its processes to run.
#[test]
fn the_suite_sees_that_the_shim_holds_a_share() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    let words = ["--simulated", "--few", "--seconds", "2", "--only", "shares"];
    let mut pages = String::new();
    for _ in 0..3 {
        let (page, output) = suite(bench.command(script()), &place, &words);
        if output.status.success() && verdict(&page, "25 %, 100 µs") == "holds" {
            return;
        }
        pages += &page;
    }
    panic!("{pages}");
}

/// A library that holds nothing fails every check: the suite can fail.
#[test]
fn the_suite_sees_a_library_that_holds_nothing() {
    let idle = TempDir::new().unwrap();
    let (source, library) = (idle.path().join("idle.c"), idle.path().join("idle.so"));
    std::fs::write(&source, "int aliquot_idle;\n").unwrap();
    let compiled = run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source));
    let (bench, Some(place)) = (Bench::new(), compiled.ok().and_then(|_| carried(&library))) else { return };
    let words = ["--simulated", "--few", "--seconds", "1", "--only", "memory,reporting"];
    let (page, output) = suite(bench.command(script()), &place, &words);
    assert_eq!(output.status.code(), Some(1), "{page}");
    let rows: Vec<&str> =
        page.lines().filter(|line| line.contains(" MiB") && line.starts_with("| ")).collect();
    assert!(rows.len() >= 7, "{page}");
    for row in rows {
        assert!(row.ends_with("| FAILS |") || row.contains("stood aside"), "{row}");
    }
}

/// What is carried runs on a C library as old as 2.17, by the versions of what it asks for.
#[test]
fn the_probe_runs_on_old_systems() {
    let Some(place) = carried(shim()) else { return };
    let mut readelf = Command::new("readelf");
    let symbols = run(readelf.args(["--dyn-syms", "--wide"]).arg(place.path().join("probe"))).unwrap();
    let versions = symbols.split("@GLIBC_").skip(1).map(|rest| rest.split([' ', '\n']).next().unwrap());
    let mut seen = 0;
    for version in versions {
        let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
        assert!(numbers <= vec![2, 17], "{version}: {symbols}");
        seen += 1;
    }
    assert!(seen > 10, "{symbols}");
}
