//! The suite for real cards, on a simulated one: it runs, sees what is right and what is not, and stands aside alone.
//!
//! These tests say nothing about a real card; `tests/gpu/README.md` describes a run on one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use aliquot_sim_device::Placement;
use aliquot_tests::local::copy_program;
use aliquot_tests::preload::shim;
use aliquot_tests::simulated::{Bench, StoodAside, numba_python, root, run};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What is carried to a machine with a card, as it lies there.
struct Carried {
    place: TempDir,
    folder: PathBuf,
}

/// Lays it out in a folder of this name; `None` where there is no compiler.
fn carried_as(folder: &str, library: &Path) -> Option<Carried> {
    let place = TempDir::new().unwrap();
    if let Err(StoodAside(why)) = run(Command::new("cc").arg("--version")) {
        println!("stood aside: {why}");
        return None;
    }
    let folder = place.path().join(folder);
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    run(Command::new(root().join("tests/gpu/link")).arg(folder.join("bin/probe"))).unwrap();
    for (from, to) in [
        (Path::new(env!("CARGO_BIN_EXE_gpu_suite")), "bin/gpu_suite"),
        (library, "bin/libaliquot.so"),
        (&root().join("tests/gpu/package.py"), "bin/package.py"),
        (&root().join("tests/gpu/run"), "run"),
    ] {
        copy_program(from, &folder.join(to));
    }
    Some(Carried { place, folder })
}

fn carried(library: &Path) -> Option<Carried> {
    carried_as("gpu", library)
}

impl Carried {
    fn script(&self) -> PathBuf {
        self.folder.join("run")
    }

    fn probe(&self) -> PathBuf {
        self.folder.join("bin/probe")
    }

    fn result(&self) -> PathBuf {
        self.place.path().join("result.md")
    }

    /// The suite's page and how it ended; nothing of it stays here.
    fn suite(&self, mut command: Command, words: &[&str]) -> (String, Output) {
        let output = command.args(words).arg(self.result()).output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), output)
    }
}

/// The cells of a page's rows, headings and lines apart.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.filter(|row| !row.starts_with("check | ")).map(|row| row.split(" | ").collect()).collect()
}

/// The last column of the row that begins so.
#[track_caller]
fn verdict<'p>(page: &'p str, row: &str) -> &'p str {
    let found = rows(page).into_iter().find(|cells| cells.first().is_some_and(|cell| cell.starts_with(row)));
    found.and_then(|cells| cells.last().copied()).unwrap_or_else(|| panic!("no row {row}: {page}"))
}

/// A process at work on the bench's cards, ended with its handle.
struct Beside(Child);

impl Beside {
    fn start(bench: &Bench, carried: &Carried, words: &[&str]) -> Self {
        let mut command = bench.command(carried.probe());
        let child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut beside = Self(child);
        let output = BufReader::new(beside.0.stdout.as_mut().unwrap());
        assert!(output.lines().any(|line| line.unwrap() == "ready"), "{words:?}");
        beside
    }

    /// Its gate opens.
    fn go(&mut self) {
        drop(self.0.stdin.take());
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn without_a_card_the_suite_says_why_it_stands_aside() {
    let Some(place) = carried(shim()) else { return };
    let command = || {
        let mut command = Command::new(place.script());
        command.env_remove("LD_LIBRARY_PATH");
        command
    };
    if Command::new(place.probe()).arg("facts").output().unwrap().status.success() {
        return println!("stood aside: this machine has a card");
    }
    let (page, output) = place.suite(command(), &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(page.starts_with("stood aside: there is no card here: libcuda.so.1: cannot open"), "{page}");
    assert!(!place.result().exists());
    for wrong in [&["--only", "share"][..], &["--seconds", "0"], &["--minutes"], &["--other"]] {
        let (_, output) = place.suite(command(), wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: "), "{output:?}");
    }
    // No program there, and nothing that can be written to.
    let mut nowhere = command();
    nowhere.env("TMPDIR", "/proc/none");
    assert!(place.suite(nowhere, &[]).0.starts_with("stood aside: there is no card here"));
    std::fs::remove_file(place.folder.join("bin/gpu_suite")).unwrap();
    let (page, output) = place.suite(command(), &[]);
    assert_eq!((output.status.code(), page.as_str()), (Some(2), ""), "nothing was checked");
    let advice = String::from_utf8_lossy(&output.stderr);
    assert!(advice.contains("make them with tests/gpu/pack") && advice.contains("gpu/run there"), "{advice}");
}

/// From a path that no preload may have.
#[test]
fn the_suite_sees_that_the_shim_holds_limits() {
    let (bench, Some(place)) = (Bench::new(), carried_as("of the card: $LIB; all", shim())) else { return };
    let words = ["--simulated", "--minutes", "6", "--only", "memory,reporting"];
    let (page, output) = place.suite(bench.command(place.script()), &words);
    println!("{page}");
    for row in
        ["cuMemAlloc:", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemAllocFromPoolAsync"]
    {
        assert_eq!(verdict(&page, row), "OK", "{page}{output:?}");
    }
    for row in
        ["cuMemCreate", "cuArrayCreate:", "cuArrayCreate, ", "memory nodes", "modules", "three processes"]
    {
        assert_eq!(verdict(&page, row), "OK", "{page}{output:?}");
    }
    for row in ["the shim is loaded", "cuMemGetInfo, cuDeviceTotalMem and NVML agree"] {
        assert_eq!(verdict(&page, row), "OK", "{page}{output:?}");
    }
    assert!(page.contains("simulated card"), "a page of a simulated card says so");
    assert!(page.contains("    gpu/run --simulated --minutes 6 --only memory,reporting "), "{page}");
    assert_eq!(std::fs::read_to_string(place.result()).unwrap(), page);
}

/// Percent of the card's time with the shim and without, in the row that begins so.
#[track_caller]
fn share(page: &str, row: &str) -> [f64; 2] {
    let found = rows(page).into_iter().find(|cells| cells.first().is_some_and(|cell| cell.starts_with(row)));
    let cells = found.unwrap_or_else(|| panic!("no row {row}: {page}"));
    [1, 2].map(|at| {
        cells[at].split(' ').next().and_then(|part| part.parse().ok()).unwrap_or_else(|| panic!("{page}"))
    })
}

/// A share is seen where it is held, and its lack where it is not; how exact the shim is on simulated cards is other tests'
/// matter. A busy machine makes a share less, and never more: one that keeps the program without the shim from the whole card
/// says nothing of the other.
#[test]
fn the_suite_sees_that_the_shim_holds_a_share() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    let words = ["--simulated", "--few", "--seconds", "2", "--only", "shares"];
    let (mut pages, mut starved) = (String::new(), 0);
    for _ in 0..3 {
        let (page, output) = place.suite(bench.command(place.script()), &words);
        if output.status.success() && verdict(&page, "25 %, 100 µs") == "OK" {
            return;
        }
        let [held, bare] = share(&page, "25 %, 100 µs");
        assert!(held <= 28.0, "{page}");
        starved += i32::from(bare < 95.0);
        pages += &page;
    }
    assert_eq!(starved, 3, "{pages}");
    println!("stood aside: the machine has no processor left for what is measured");
}

/// As on a real card: lengths of kernels and the card's speed are found out. What they come to is the machine's matter here.
#[test]
fn every_row_of_a_whole_page_has_its_verdict() {
    let missing = ["cuMemAllocAsync", "cuMemPoolCreate", "cuMemCreate"];
    let (bench, Some(place)) = (Bench::without(&missing), carried(shim())) else { return };
    let words = ["--few", "--seconds", "0.5", "--minutes", "6"];
    let (page, output) = place.suite(bench.command(place.script()), &words);
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let all = ["Setup", "Memory", "Reporting", "MIG instance", "Python packages"];
    let all = all.into_iter().chain(["Share of one tenant", "Shares of tenants side by side", "Overhead"]);
    assert_eq!(headings, all.collect::<Vec<_>>(), "{page}");
    let (mut counts, rows) = ([0; 3], rows(&page));
    for cells in &rows {
        let [what, shim, bare, verdict] = cells[..] else { panic!("{cells:?}: {page}") };
        assert!(!what.is_empty() && !shim.is_empty() && !bare.is_empty(), "{cells:?}");
        let kind = ["OK", "FAILS: ", "stood aside: "].iter().position(|kind| verdict.starts_with(kind));
        assert!(
            verdict == "OK" || verdict.split_once(": ").is_some_and(|(_, why)| !why.is_empty()),
            "{cells:?}"
        );
        counts[kind.unwrap_or_else(|| panic!("{cells:?}: {page}"))] += 1;
    }
    assert!(rows.len() > 20, "{page}");
    let [well, failed, aside] = counts;
    let last = page.lines().last().unwrap();
    assert!(last.starts_with(&format!("{well} OK, {failed} FAILS, {aside} stood aside, in ")), "{page}");
    assert_eq!(output.status.code(), Some(i32::from(failed > 0)), "{page}");
    let absent = "stood aside: the driver has no ";
    for (row, symbol) in
        [("cuMemAllocAsync", missing[0]), ("cuMemAllocFromPool", missing[1]), ("cuMemCreate", missing[2])]
    {
        assert_eq!(verdict(&page, row), format!("{absent}{symbol}"), "{page}");
    }
    assert!(page.contains("stood aside: this is a whole card, and not an instance"), "{page}");
    assert!(!page.contains("simulated"), "{page}");
    assert_eq!(std::fs::read_to_string(place.result()).unwrap(), page);
}

/// A library that holds nothing fails every check: the suite can fail.
#[test]
fn the_suite_sees_a_library_that_holds_nothing() {
    let idle = TempDir::new().unwrap();
    let (source, library) = (idle.path().join("idle.c"), idle.path().join("idle.so"));
    std::fs::write(&source, "int aliquot_idle;\n").unwrap();
    let compiled = run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source));
    let (bench, Some(place)) = (Bench::new(), compiled.ok().and_then(|_| carried(&library))) else { return };
    let words = ["--simulated", "--minutes", "6", "--only", "memory,reporting"];
    let (page, output) = place.suite(bench.command(place.script()), &words);
    assert_eq!(output.status.code(), Some(1), "{page}");
    let rows: Vec<_> = rows(&page).into_iter().filter(|cells| cells[1].contains(" MiB")).collect();
    assert!(rows.len() >= 12, "{page}");
    for cells in rows {
        assert!(cells[3].starts_with("FAILS: ") && cells[3] != "FAILS: ", "{cells:?}");
    }
}

/// A library that the loader does not take is no row's failure but the first one's.
#[test]
fn a_shim_that_is_not_loaded_is_said_once() {
    let nothing = TempDir::new().unwrap();
    let library = nothing.path().join("library");
    std::fs::write(&library, "no library").unwrap();
    let (bench, Some(place)) = (Bench::new(), carried(&library)) else { return };
    let (page, output) = place.suite(bench.command(place.script()), &["--only", "memory,shares"]);
    assert_eq!(output.status.code(), Some(1), "{page}");
    assert!(verdict(&page, "the shim is loaded").starts_with("FAILS: the loader"), "{page}");
    let others: Vec<_> = rows(&page).into_iter().filter(|cells| cells[0] == "all of it").collect();
    assert_eq!(others.len(), 2, "{page}");
    assert!(
        others.iter().all(|cells| cells[3] == "stood aside: programs run without the shim here"),
        "{page}"
    );
}

#[test]
fn cards_that_the_suite_is_not_for_make_it_stand_aside() {
    let Some(place) = carried(shim()) else { return };
    let aside = |bench: &Bench, why: &str| {
        let (page, output) = place.suite(bench.command(place.script()), &[]);
        assert!(
            output.status.success() && page.starts_with("stood aside: ") && page.contains(why),
            "{page}{output:?}"
        );
        assert!(!place.result().exists());
    };
    let bench = Bench::new();
    bench.write("node.toml", "[[card]]\ncompute_mode = \"prohibited\"\n");
    aside(&bench, "compute mode is PROHIBITED");
    let bench = Bench::new();
    bench.write("node.toml", "[[card]]\nmig = \"on\"\n");
    aside(&bench, "CUDA_ERROR_NO_DEVICE); one in MIG mode without an instance is none to it");
    let bench = Bench::new();
    bench.write("faults.toml", "[[fault]]\nsymbol = \"nvmlDeviceGetMemoryInfo\"\naction = { error = 4 }\n");
    aside(&bench, "the card tells nothing: nvmlDeviceGetMemoryInfo: 4");
    let bench = Bench::new();
    bench.write("faults.toml", "[[fault]]\nsymbol = \"cuInit\"\naction = { error = 802 }\n");
    aside(&bench, "the driver answers 802");
}

/// A card in MIG mode with an instance of this profile, and one compute instance in it; its UUID.
fn instance(bench: &Bench, profile: u32, compute: u32) -> String {
    bench.write("node.toml", "[[card]]\nmig = \"on\"\n");
    let card = bench.card();
    let gpu = card.create_gpu_instance(profile, None::<Placement>).unwrap();
    card.mig_uuid(card.create_compute_instance(gpu.serial, compute).unwrap().compute)
}

/// By its UUID and by the older name; no instance is made or destroyed.
#[test]
fn instance_of_a_mig_card_is_checked_by_both_its_names() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    let uuid = instance(&bench, 19, 0);
    let before = bench.card().gpu_instances();
    let words = ["--simulated", "--minutes", "6", "--only", "memory,reporting,mig"];
    let (page, output) = place.suite(bench.command(place.script()), &words);
    println!("{page}");
    assert!(page.contains(&format!("the instance {uuid} of a card in MIG mode")), "{page}");
    assert!(page.contains(&format!("also called MIG-{}/1/0", bench.card().facts().uuid)), "{page}");
    let calls = [
        "cuMemAlloc:",
        "cuMemAllocPitch",
        "cuMemAllocManaged",
        "cuMemGetInfo, cuDeviceTotalMem and NVML agree",
    ];
    for call in calls {
        for row in [call.to_owned(), format!("as MIG-GPU-…/…/…: {call}")] {
            assert_eq!(verdict(&page, &row), "OK", "{page}{output:?}");
        }
    }
    for row in ["cuMemAllocAsync", "cuMemCreate", "memory nodes", "modules", "three processes"] {
        assert_eq!(verdict(&page, row), "OK", "{page}{output:?}");
    }
    assert!(
        verdict(&page, "nvidia-smi").starts_with("stood aside: its query is about whole cards"),
        "{page}"
    );
    assert_eq!(bench.card().gpu_instances(), before);
}

/// A share with the whole card's compute: a simulated kernel then lasts as long as its name says. A busy
/// machine reduces the rate, and never raises it.
#[test]
fn a_share_of_an_instance_is_held_by_both_of_its_names() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    instance(&bench, 0, 4);
    let words = ["--simulated", "--few", "--seconds", "2", "--only", "mig,shares"];
    let (page, _) = place.suite(bench.command(place.script()), &words);
    for row in ["25 %, 100 µs", "as MIG-GPU-…/…/…: 25 %, 100 µs"] {
        let [held, _] = share(&page, row);
        assert!(held > 0.0 && held <= 28.0, "{page}");
    }
}

/// An NVML that reports no numbers of instances.
#[test]
fn an_instance_without_the_older_name_is_said_to_have_none() {
    let Some(place) = carried(shim()) else { return };
    let bench = Bench::without(&["nvmlDeviceGetComputeInstanceId"]);
    instance(&bench, 19, 0);
    let (page, output) = place.suite(bench.command(place.script()), &["--few", "--only", "mig"]);
    assert!(output.status.success(), "{page}{output:?}");
    assert_eq!(verdict(&page, "all of it"), "stood aside: NVML does not tell the numbers of the instance");
}

#[test]
fn exclusive_card_skips_the_impossible_and_reports_failures() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    bench.write("node.toml", "[[card]]\ncompute_mode = \"exclusive\"\n");
    let words = ["--simulated", "--few", "--minutes", "6", "--only", "memory,pairs"];
    let (page, output) = place.suite(bench.command(place.script()), &words);
    assert!(output.status.success(), "{page}{output:?}");
    assert_eq!(verdict(&page, "cuMemAlloc:"), "OK", "{page}");
    for row in ["three processes", "[25, 75] %", "[10, 30, 60] %"] {
        assert!(verdict(&page, row).starts_with("stood aside: the compute mode lets one process"), "{page}");
    }
    // Another process holds the memory: nothing works, and each row says so.
    let _beside = Beside::start(&bench, &place, &["fill", "plain", "1048576", "1"]);
    let (page, output) = place.suite(bench.command(place.script()), &words);
    assert_eq!(output.status.code(), Some(1), "{page}");
    for row in ["cuMemAlloc:", "cuMemCreate:", "modules with"] {
        let verdict = verdict(&page, row);
        assert!(
            verdict.starts_with("FAILS: ") && verdict.contains("46, CUDA_ERROR_DEVICE_UNAVAILABLE"),
            "{page}"
        );
    }
    assert!(page.trim_end().lines().last().unwrap().contains(" FAILS, "), "{page}");
}

#[test]
fn a_card_that_others_fill_or_keep_busy_is_not_measured() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    bench.write("node.toml", "[[card]]\nmemory_bytes = 8589934592\n");
    // 2 GiB, and kernels of a second that are all handed in at once.
    let _memory = Beside::start(&bench, &place, &["fill", "plain", "67108864", "32"]);
    let mut busy =
        Beside::start(&bench, &place, &["spin", "1000000000", "1", "32", "plain", "600", "600", "1", "0"]);
    busy.go();
    let started = Instant::now();
    while bench.card().utilization() < 90 {
        assert!(started.elapsed() < Duration::from_secs(120), "the card is not busy");
        std::thread::sleep(Duration::from_millis(20));
    }
    let words = ["--minutes", "6", "--only", "memory,packages,shares,pairs,overhead"];
    let (page, output) = place.suite(bench.command(place.script()), &words);
    assert!(output.status.success(), "{page}{output:?}");
    let rows = rows(&page);
    let of =
        |why: &str| rows.iter().filter(|cells| cells[0] == "all of it" && cells[3].contains(why)).count();
    assert_eq!(
        (of("MiB of the card are free, and 7168 needed"), of("another program computes on the card")),
        (2, 3),
        "{page}"
    );
}

#[test]
fn lengths_that_do_not_settle_are_said() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    let slow = "[[fault]]\nsymbol = \"cuCtxSynchronize\"\naction = { slow_nanos = 60000000 }\n";
    bench.write("faults.toml", slow);
    let (page, output) = place.suite(bench.command(place.script()), &["--few", "--only", "shares"]);
    assert!(output.status.success(), "{page}{output:?}");
    let found = verdict(&page, "100 µs");
    assert!(
        found.starts_with("stood aside: a kernel of 100.0 us does not settle: after 16 steps it takes "),
        "{page}"
    );
}

/// One call that hangs costs its section's time, and not the page.
#[test]
fn a_driver_that_hangs_does_not_end_the_page() {
    let (bench, Some(place)) = (Bench::new(), carried(shim())) else { return };
    let slow = "[[fault]]\nsymbol = \"cuMemAlloc_v2\"\naction = { slow_nanos = 3600000000000 }\n";
    bench.write("faults.toml", slow);
    let (page, output) =
        place.suite(bench.command(place.script()), &["--minutes", "0.5", "--only", "memory,reporting"]);
    assert_eq!(output.status.code(), Some(1), "{page}");
    let found = verdict(&page, "cuMemAlloc:");
    assert!(
        found.starts_with("FAILS: with the shim and without: ") && found.contains("did not end in time"),
        "{page}"
    );
    assert!(verdict(&page, "modules with").starts_with("stood aside: the section's time is over"), "{page}");
    assert!(page.contains("## Reporting") && page.contains(" stood aside, in "), "{page}");
}

/// The kernels' text is one that the vendor's own compiler takes, for every card from 2018 on, and does not take for nothing.
#[test]
fn the_vendors_compiler_takes_the_kernels() {
    let Some(place) = carried(shim()) else { return };
    let python = match numba_python() {
        Ok(python) => python,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let texts = run(Command::new(place.probe()).arg("text")).unwrap();
    let kernels = place.place.path().join("kernels");
    std::fs::write(&kernels, texts).unwrap();
    let program = root().join("tests/programs/assemble.py");
    let said = run(Command::new(python).arg(program).arg(&kernels)).unwrap();
    let made: Vec<Vec<&str>> = said.lines().map(|line| line.split(' ').collect()).collect();
    // Two texts, each with a head for each generation, for each card that is not older.
    assert_eq!(made.len(), 2 * (5 + 5 + 4 + 3 + 2), "{said}");
    for words in made {
        let [_, _, _, kernel, bytes] = words[..] else { panic!("{said}") };
        // What is left of a kernel without useful work takes 256.
        assert!(kernel != "kp" || bytes.parse::<u32>().unwrap() >= 512, "{said}");
    }
}

/// A carried program runs on a C library as old as 2.17, by the symbol versions that it requires.
#[test]
fn the_probe_runs_on_old_systems() {
    let Some(place) = carried(shim()) else { return };
    let mut readelf = Command::new("readelf");
    let symbols = run(readelf.args(["--dyn-syms", "--wide"]).arg(place.probe())).unwrap();
    let versions = symbols.split("@GLIBC_").skip(1).map(|rest| rest.split([' ', '\n']).next().unwrap());
    let mut seen = 0;
    for version in versions {
        let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
        assert!(numbers <= vec![2, 17], "{version}: {symbols}");
        seen += 1;
    }
    assert!(seen > 10, "{symbols}");
}
