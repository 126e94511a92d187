//! The simulated cards by themselves: no limits are involved, and nothing of the shim.
//!
//! Programs use the vendor's ABI; what they did is read on the driver's side, through `aliquot_sim_device`.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_sim_device::processor::Lack;
use aliquot_sim_device::{Card, Health, MemoryKind, Moment};
use aliquot_tests::preload::UNPAGED;
use aliquot_tests::simulated::{Bench, Link, StoodAside, numba_python, python, root, said, small_python};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Memory of a context and of a module, as the default node has them.
const CONTEXT: u64 = 480 * MIB;
const MODULE: u64 = 2 * MIB;

/// A program that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Gone is gone: it may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self(child)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ready(mut self) -> Self {
        assert_eq!(self.line(), "ready");
        self
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A bench with the probe; `None` where there is no compiler, and the test says so.
fn probe() -> Option<(Bench, std::path::PathBuf)> {
    let bench = Bench::new();
    compiled(&bench, "sim_probe", Link::Opened).map(|program| (bench, program))
}

fn compiled(bench: &Bench, name: &str, link: Link) -> Option<std::path::PathBuf> {
    match bench.compile(name, link) {
        Ok(program) => Some(program),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

/// Waits for a level, with a bound.
fn until(what: &str, reached: impl Fn() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_linked_program_finds_every_family_at_work() {
    let bench = Bench::new();
    bench.write("node.toml", UNPAGED);
    let Some(tour) = compiled(&bench, "sim_tour", Link::Direct) else { return };
    assert_eq!(said(&bench.command(tour).output().unwrap()), "OK\n");
    bench.card().reap();
    assert_eq!(bench.card().in_use(), 0);
}

#[test]
fn copies_of_every_form_move_what_they_should() {
    let bench = Bench::new();
    let Some(copies) = compiled(&bench, "copies", Link::Direct) else { return };
    assert_eq!(said(&bench.command(copies).output().unwrap()), "OK\n");
}

#[test]
fn two_processes_have_half_of_the_card_each_in_every_window() {
    let Some((bench, program)) = probe() else { return };
    let busy = || Running::start(bench.command(&program).args(["busy", "300000"])).ready();
    let (first, second) = (busy(), busy());
    let card = bench.card();
    let took = |moment: &Moment| [&first, &second].map(|running| moment.device_nanos(running.0.id()));
    until("both run", || took(&card.moment()).iter().all(|nanos| *nanos > 0));
    for _ in 0..4 {
        let lack = Lack::of([first.0.id(), second.0.id()]);
        let before = card.moment();
        std::thread::sleep(Duration::from_millis(500));
        let after = card.moment();
        let lacked = u64::try_from(lack.most().as_nanos()).unwrap();
        let [mine, yours] = [0, 1].map(|n| took(&after)[n] - took(&before)[n]);
        // Never more than the card has; all of it, in halves, as long as both have work on it.
        assert!(mine + yours <= after.at - before.at, "{mine} + {yours} of {}", after.at - before.at);
        let most = (mine + yours) * 53 / 100 + lacked;
        assert!(mine <= most && yours <= most, "{mine} and {yours}, {lacked} without a processor");
    }
    until("a full window", || card.utilization() == 100);
    // The trace is the same time, stretch by stretch, and one process at a time runs.
    let (mut mine, yours) = (card.trace(first.0.id()), card.trace(second.0.id()));
    mine.extend(yours);
    mine.sort_by_key(|busy| busy.start);
    assert!(mine.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(mine.iter().all(|busy| busy.end > busy.start));
}

#[test]
fn lengths_add_up_and_take_their_time() {
    let Some((bench, program)) = probe() else { return };
    let start = Instant::now();
    assert_eq!(said(&bench.command(&program).args(["count", "100000", "3000"]).output().unwrap()), "ready\n");
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(bench.card().busy_nanos(), 300_000_000);
    assert_eq!(said(&bench.command(&program).args(["count", "7", "10"]).output().unwrap()), "ready\n");
    assert_eq!(bench.card().busy_nanos(), 300_000_070);
}

#[test]
fn the_high_water_mark_is_exact() {
    let Some((bench, program)) = probe() else { return };
    bench.write("node.toml", UNPAGED);
    let hold =
        |bytes: u64| Running::start(bench.command(&program).args(["hold", &bytes.to_string()])).ready();
    let card = bench.card();
    let first = hold(1_000);
    let second = hold(3 << 30);
    let top = 2 * CONTEXT + 1_024 + (3 << 30);
    assert_eq!((card.in_use(), card.high_water()), (top, top));
    let mut second = second;
    drop(second.0.stdin.take());
    second.0.wait().unwrap();
    assert_eq!((card.in_use(), card.high_water()), (CONTEXT + 1_024, top));
    // A present process allocates after a kill: memory of the killed one is not counted beside it.
    let seat = card.join().unwrap();
    let mut first = first;
    first.kill();
    seat.take(MemoryKind::Plain, top + 512).unwrap();
    assert_eq!((card.in_use(), card.high_water()), (top + 512, top + 512));
    seat.leave();
}

#[test]
fn killed_process_releases_everything_and_hangs_nothing() {
    let Some((bench, program)) = probe() else { return };
    let card = bench.card();
    let mut survivor = Running::start(bench.command(&program).args(["churn", "1"])).ready();
    for seed in 2..60 {
        let mut victim = Running::start(bench.command(&program).args(["churn", &seed.to_string()])).ready();
        until("the victim is at work", || card.processes().len() == 2);
        victim.kill();
        assert_eq!(card.processes().len(), 1, "{seed}");
        let held = card.processes().iter().map(|process| process.held_bytes).sum::<u64>();
        assert!((CONTEXT..=CONTEXT + 64 * 9 * MIB).contains(&held));
    }
    assert!(survivor.0.try_wait().unwrap().is_none());
    survivor.kill();
    card.reap();
    assert_eq!((card.in_use(), card.processes().len()), (0, 0));
    let left = std::fs::read_dir(bench.cards()).unwrap();
    let content =
        left.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("content"));
    assert_eq!(content.count(), 0);
}

#[test]
fn trim_takes_nothing_left_by_a_launch_in_flight() {
    let Some((bench, program)) = probe() else { return };
    bench.write("node.toml", &format!("pool_bytes = {}\n", 2 * MIB));
    let told = said(&bench.command(&program).args(["trims", "2"]).output().unwrap());
    assert_eq!(told, format!("{0} {0}\n", 2 * 2 * MIB));
}

#[test]
fn pool_short_for_concurrent_threads_grows_by_their_sum() {
    let Some((bench, program)) = probe() else { return };
    bench.write("node.toml", &format!("pool_bytes = {}\n", 2 * MIB));
    // Eight blocks of a quarter of a MiB are one unit, in any order.
    let told = said(&bench.command(&program).args(["grows", "400"]).output().unwrap());
    assert_eq!(told, format!("{}\n", 2 * MIB));
}

#[test]
fn allocation_during_context_end_leaves_nothing_on_the_card() {
    let bench = Bench::new();
    let Some(program) = compiled(&bench, "sim_ends", Link::Opened) else { return };
    let left = |arguments: &[&str]| said(&bench.command(&program).args(arguments).output().unwrap());
    assert_eq!(left(&["green"]), "0 MiB have no owner\n");
    let seed = aliquot_tests::seed::seed().to_string();
    assert_eq!(left(&["threads", &seed]), "0 MiB have no owner\n", "seed {seed}");
    // Threads use what others of them ended: that is what it is about.
    drop(bench.misuses());
}

#[test]
fn memory_is_shared_by_handle_and_the_exporter_pays() {
    let Some((bench, program)) = probe() else { return };
    let mut exporter = Running::start(bench.command(&program).arg("export"));
    let handle = exporter.line();
    let opened = said(&bench.command(&program).args(["open", &handle]).output().unwrap());
    assert_eq!(opened, "the same bytes\n1\n");
    assert_eq!(bench.card().high_water(), 2 * CONTEXT + 2 * MIB, "a small allocation takes a page");
    exporter.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(exporter.line(), "THE same bytes");
}

#[test]
fn a_forked_child_has_no_driver() {
    let Some((bench, program)) = probe() else { return };
    assert_eq!(said(&bench.command(&program).arg("fork").output().unwrap()), "3 0\n");
}

#[test]
fn visible_devices_are_chosen_in_every_form() {
    let Some((bench, program)) = probe() else { return };
    bench.write(
        "node.toml",
        "[[card]]\nuuid = \"GPU-aaaa0000-0000-0000-0000-000000000001\"\n\
         [[card]]\nuuid = \"GPU-aaab0000-0000-0000-0000-000000000002\"\n\
         [[card]]\nuuid = \"GPU-bbbb0000-0000-0000-0000-000000000003\"\n",
    );
    let last = |visible: &str| {
        let output = bench.command(&program).arg("devices").env("CUDA_VISIBLE_DEVICES", visible).output();
        let text = said(&output.unwrap());
        text.lines().map(|line| line.chars().last().unwrap()).collect::<String>()
    };
    for (visible, expected) in [
        ("0,1,2", "123"),
        ("2,0", "31"),
        ("1,-1,0", "2"),
        ("GPU-bbbb0000-0000-0000-0000-000000000003,GPU-aaab", "32"),
        ("GPU-b,0", "31"),
        ("7", "0"),
        ("", "0"),
        ("GPU-aaa", "0"),
        ("0,0", "0"),
    ] {
        // Nothing visible: cuInit answers 100.
        assert_eq!(last(visible), expected, "{visible}");
    }
}

#[test]
fn faults_strike_as_written() {
    let Some((bench, program)) = probe() else { return };
    let allocs = |count: &str| bench.command(&program).args(["allocs", count]).output().unwrap();
    bench.write("faults.toml", "[[fault]]\nsymbol = \"cuMemAlloc_v2\"\ncall = 3\naction = { error = 2 }\n");
    assert_eq!(said(&allocs("4")), "0\n0\n2\n0\n");
    bench.write("faults.toml", "[[fault]]\nsymbol = \"cuMemAlloc_v2\"\ncall = 2\naction = \"kill\"\n");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&allocs("4").status), Some(9));
    bench.write("faults.toml", "[[fault]]\nsymbol = \"cuInit\"\naction = { slow_nanos = 30000000 }\n");
    let start = Instant::now();
    assert_eq!(said(&allocs("1")), "0\n");
    assert!(start.elapsed() >= Duration::from_millis(30));
    bench.write("faults.toml", "[[fault]]\nsymbol = \"cuMemAlloc_v2\"\ncall = 1\naction = { xid = 79 }\n");
    assert_eq!(said(&allocs("1")), "0\n");
    assert_eq!(bench.card().last_xid(), 79);
    bench.write("faults.toml", "[[fault]]\nsymbol = \"cuMemAlloc_v2\"\ncall = 2\naction = \"lost\"\n");
    assert_eq!(said(&allocs("3")), "0\n46\n46\n");
    assert_eq!(bench.card().health(), Health::Lost);
}

#[test]
fn a_missing_symbol_is_missing_on_every_way() {
    let bench = Bench::without(&["cuMemAlloc_v2"]);
    bench.write("faults.toml", "[[fault]]\nsymbol = \"cuMemAlloc_v2\"\naction = \"missing\"\n");
    let Some(program) = compiled(&bench, "sim_probe", Link::Opened) else { return };
    let output = bench.command(&program).args(["allocs", "1"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "missing cuMemAlloc_v2\n");
    let answers = resolve(&bench, &program, "cuMemAlloc 13050 0\ncuMemFree 13050 0\n");
    assert_eq!(answers, ["0 cuMemAlloc 0 0 cuMemAlloc", "0 cuMemFree_v2 0 0 cuMemFree_v2"]);
}

/// With the vendor's driver that is undefined, and may end the process.
#[test]
fn use_of_an_ended_stream_event_or_context_is_recorded() {
    let Some((bench, program)) = probe() else { return };
    let answers = said(&bench.command(&program).arg("stale").output().unwrap());
    assert_eq!(answers, "400 400 400 400 201 400\n");
    let calls = [
        "cuStreamQuery: Stream",
        "cuEventQuery: Event",
        "cuStreamSynchronize: Stream",
        "cuEventDestroy_v2: Event",
    ];
    let expected = calls.into_iter().chain(["cuCtxPushCurrent_v2: Context"]);
    assert_eq!(bench.misuses(), expected.map(|call| format!("{call} after its end")).collect::<Vec<_>>());
    assert!(bench.misuses().is_empty(), "told once");
}

fn resolve(bench: &Bench, program: &std::path::Path, questions: &str) -> Vec<String> {
    let place = bench.cards().with_file_name("questions");
    std::fs::write(&place, questions).unwrap();
    let input = std::fs::File::open(&place).unwrap();
    let text = said(&bench.command(program).arg("resolve").stdin(input).output().unwrap());
    text.lines().map(str::to_owned).collect()
}

/// What the documentation promises for a question, worked out from the facts table alone.
fn promised(rows: &[(u32, bool, String)], version: u32, flags: u64) -> String {
    if version > 13050 {
        return "1 - 1 -1 -".into();
    }
    let usable = |row: &&(u32, bool, String)| (!row.1 || flags == 2) && row.0 <= version;
    let newest = rows.iter().filter(usable).max_by_key(|row| (row.0, row.1));
    newest.map_or("500 - 0 2 -".into(), |(_, _, export)| format!("0 {export} 0 0 {export}"))
}

#[test]
fn cu_get_proc_address_keeps_its_rule_for_the_whole_table() {
    let Some((bench, program)) = probe() else { return };
    let text = std::fs::read_to_string(root().join("shim/symbols/cuda.tsv")).unwrap();
    let mut symbols = BTreeMap::<String, Vec<(u32, bool, String)>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let [symbol, version, mode, export] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let row = (version.parse().unwrap(), mode != "legacy", export.to_owned());
        symbols.entry(symbol.to_owned()).or_default().push(row);
    }
    let mut versions = symbols.values().flatten().map(|row| row.0).collect::<std::collections::BTreeSet<_>>();
    versions.extend(versions.clone().iter().flat_map(|version| [version - 1, version + 1]));
    versions.extend([0, 2000, 13040, 13050, 13051, 14000]);
    let (mut questions, mut expected) = (String::new(), Vec::new());
    for (symbol, rows) in &symbols {
        // The table is newer than this driver only where a row says so.
        let known = rows.iter().filter(|row| row.0 <= 13050).cloned().collect::<Vec<_>>();
        for version in &versions {
            for flags in 0..3 {
                questions.push_str(&format!("{symbol} {version} {flags}\n"));
                expected.push(promised(&known, *version, flags));
            }
        }
    }
    questions.push_str("cuNoSuchThing 13050 0\ncuMemAlloc_v2 13050 0\ncuInit 13050 3\n");
    expected.extend(["500 - 0 1 -", "500 - 0 1 -", "1 - 1 -1 -"].map(str::to_owned));
    let answers = resolve(&bench, &program, &questions);
    assert_eq!(answers.len(), expected.len());
    for ((question, answer), promise) in questions.lines().zip(&answers).zip(&expected) {
        assert_eq!(answer, promise, "{question}");
    }
    println!("{} questions", answers.len());
}

/// Runs a Python client, or says why not.
fn client(bench: &Bench, python: Result<std::path::PathBuf, StoodAside>, name: &str, arguments: &[String]) {
    match python {
        Ok(python) => {
            let program = root().join("tests/programs").join(name);
            let log = bench.cards().with_file_name("unsupported");
            let mut command = bench.command(python);
            let output = command.arg(program).args(arguments).env(aliquot_sim_device::LOG_ENV, &log).output();
            assert_eq!(said(&output.unwrap()), "OK\n");
            let asked = std::fs::read_to_string(&log).unwrap_or_default();
            println!("calls without behaviour: {asked:?}");
        }
        Err(StoodAside(why)) => println!("stood aside: {why}"),
    }
}

/// The page of the simulated drivers says so, and why.
#[test]
fn runtime_library_stops_at_the_private_tables_it_asks_for() {
    let packages = ["nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-runtime==13.0.96"];
    let python = match python("runtimes", &packages, &[]) {
        Ok(python) => python,
        Err(StoodAside(why)) => return println!("stood aside (needs 6 MB from PyPI once): {why}"),
    };
    let place = python.ancestors().nth(2).unwrap().join("lib");
    for (directory, name) in [("cuda_runtime", "libcudart.so.12"), ("cu13", "libcudart.so.13")] {
        let bench = Bench::new();
        let log = bench.cards().with_file_name("unsupported");
        let version = std::fs::read_dir(&place).unwrap().next().unwrap().unwrap().path();
        let library = version.join("site-packages/nvidia").join(directory).join("lib").join(name);
        let client = root().join("tests/programs/cudart_client.py");
        let mut command = bench.command(&python);
        let output = command.arg(client).arg(library).env(aliquot_sim_device::LOG_ENV, &log).output();
        assert_eq!(said(&output.unwrap()), "500 500 500\n", "{name}");
        let asked = std::fs::read_to_string(&log).unwrap();
        assert!(asked.lines().all(|line| line.starts_with("cuGetExportTable ")), "{name}: {asked}");
    }
}

#[test]
fn nvidia_ml_py_sees_memory_processes_load_and_xids() {
    let Some((bench, program)) = probe() else { return };
    let xid = "[[fault]]\nsymbol = \"nvmlDeviceGetFanSpeed\"\naction = { xid = 48 }\ncard = 1\n";
    bench.write("faults.toml", xid);
    let holder = Running::start(bench.command(&program).args(["hold", &(256 * MIB).to_string()])).ready();
    // Load comes from the driver's side, so that one process is to be seen.
    let card = bench.card();
    let seat = card.join().unwrap();
    seat.submit(600_000_000_000);
    until("a full window", || card.utilization() == 100);
    let mut arguments = vec![holder.0.id().to_string()];
    arguments.push(std::process::id().to_string());
    client(&bench, small_python(), "nvml_client.py", &arguments);
    seat.leave();
}

#[test]
fn cuda_python_runs_unmodified() {
    let bench = Bench::new();
    bench.write("node.toml", UNPAGED);
    client(&bench, small_python(), "cuda_python_client.py", &[]);
    bench.card().reap();
    assert_eq!(bench.card().in_use(), 0);
}

#[test]
fn numba_compiles_and_launches_unmodified() {
    client(&Bench::new(), numba_python(), "numba_client.py", &[]);
}

#[test]
fn first_in_is_first_out_and_marks_have_their_time() {
    let bench = Bench::new();
    let seat = bench.card().join().unwrap();
    let marks = (1..=50).map(|n| seat.submit(n * 10_000)).collect::<Vec<_>>();
    seat.wait(*marks.last().unwrap());
    let times = marks.iter().map(|mark| seat.reached(*mark).unwrap()).collect::<Vec<_>>();
    for (index, pair) in times.windows(2).enumerate() {
        assert_eq!(pair[1] - pair[0], (u64::try_from(index).unwrap() + 2) * 10_000);
    }
    seat.leave();
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, usize, u64),
    Give(usize, usize, u64),
}

fn books(card: &Card) -> u64 {
    card.processes().iter().map(|process| process.held_bytes).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn books_are_the_sum_over_seats_and_never_above_the_card(
        steps in prop::collection::vec(
            (0_usize..4, 0_usize..8, 0_u64..60 << 30, any::<bool>()).prop_map(|(seat, kind, bytes, take)| {
                if take { Step::Take(seat, kind, bytes) } else { Step::Give(seat, kind, bytes) }
            }),
            0..60,
        ),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let device = aliquot_sim_device::open(dir.path()).unwrap();
        let card = device.card(0).unwrap();
        let capacity = card.facts().memory_bytes;
        let seats = (0..4).map(|_| card.join().unwrap()).collect::<Vec<_>>();
        let (mut held, mut top) = ([[0_u64; 8]; 4], 0);
        for step in steps {
            let before = held.iter().flatten().sum::<u64>();
            match step {
                Step::Take(seat, kind, bytes) => {
                    let taken = seats[seat].take(MemoryKind::ALL[kind], bytes).is_ok();
                    prop_assert_eq!(taken, bytes <= capacity - before);
                    held[seat][kind] += if taken { bytes } else { 0 };
                }
                Step::Give(seat, kind, bytes) => {
                    seats[seat].give(MemoryKind::ALL[kind], bytes);
                    held[seat][kind] = held[seat][kind].saturating_sub(bytes);
                }
            }
            let now = held.iter().flatten().sum::<u64>();
            top = top.max(now);
            prop_assert_eq!((card.in_use(), card.high_water(), books(card)), (now, top, now));
        }
        prop_assert_eq!(MODULE, device.node().module_bytes);
        seats.into_iter().for_each(aliquot_sim_device::Seat::leave);
        prop_assert_eq!(card.in_use(), 0);
    }
}
