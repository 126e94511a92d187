//! Shares of a simulated card, measured on the card while real processes run with the shim; the control runs without.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_sim_device::Card;
use aliquot_sim_device::processor::Lack;
use aliquot_tests::preload::{Tenant, shim, unlimited};
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Most that a share may be off in a window, in parts per million.
const OFF_MAX: u64 = 30_000;
/// Windows measured, after one that is left out.
const WINDOWS: u64 = 4;

fn share(card: &Card, percent: u32) -> Limits {
    let ppm = percent * 10_000;
    Limits { share_ppm: ppm, granted_ppm: ppm, policy: ComputePolicy::Cap, ..unlimited(&card.facts().uuid) }
}

/// Work of one kind.
#[derive(Clone, Copy, Debug)]
struct Work {
    kind: &'static str,
    nanos: u64,
    blocks: u32,
}

impl Work {
    /// Windows of half a second; of forty kernels where that is longer, since one kernel more or less is no error of the share.
    fn window(self) -> Duration {
        Duration::from_millis(500).max(Duration::from_nanos(40 * self.nanos))
    }

    fn start(self, mut command: Command, windows: u64) -> Child {
        let millis = self.window().as_millis() * u128::from(windows) + 300;
        command
            .arg(self.kind)
            .arg(self.nanos.to_string())
            .arg(self.blocks.to_string())
            .arg(millis.to_string());
        command.stdout(Stdio::null()).spawn().unwrap()
    }
}

/// What was seen while processes ran.
#[derive(Debug)]
struct Seen {
    /// Share of the card in each window, in parts per million.
    shares: Vec<u64>,
    window: Duration,
    /// Time in which a process was ready to run and had no processor, of the one that lacked it most. A program that does not
    /// run launches nothing: that is no fault of its share.
    lacked: Duration,
}

impl Seen {
    /// Card time that all windows together have too little, below `least` parts per million.
    fn missing(&self, least: u64) -> Duration {
        let parts: u64 = self.shares.iter().map(|share| least.saturating_sub(*share)).sum();
        Duration::from_nanos(u64::try_from(self.window.as_nanos()).unwrap() / 1_000_000 * parts)
    }
}

/// Programs at work, killed with the value.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Running {
    fn lack(&self) -> Lack {
        Lack::of(self.0.iter().map(Child::id))
    }
}

/// Watches the card while the programs run.
fn measure(card: &Card, window: Duration, running: &Running) -> Seen {
    // The first window is for starting and for learning.
    std::thread::sleep(window + Duration::from_millis(100));
    let lack = running.lack();
    let mut before = card.moment();
    let mut shares = Vec::new();
    for _ in 0..WINDOWS {
        std::thread::sleep(window);
        let after = card.moment();
        shares.push((after.busy_nanos - before.busy_nanos) * 1_000_000 / (after.at - before.at));
        before = after;
    }
    Seen { shares, window, lacked: lack.most() }
}

fn program(bench: &Bench) -> Result<PathBuf, StoodAside> {
    bench.compile("shim_share", Link::Direct)
}

/// Runs the work in so many processes of one container.
fn run(bench: &Bench, program: &Path, percent: u32, work: Work, processes: usize) -> Seen {
    let (tenant, _files) = Tenant::with(&share(&bench.card(), percent));
    measure(&bench.card(), work.window(), &start(bench, &tenant, program, work, processes))
}

fn start(bench: &Bench, tenant: &Tenant, program: &Path, work: Work, processes: usize) -> Running {
    let one = |_| work.start(tenant.command(bench, program), WINDOWS + 2);
    Running((0..processes).map(one).collect())
}

fn off(shares: &[u64], percent: u32) -> u64 {
    let wanted = u64::from(percent) * 10_000;
    shares.iter().map(|share| share.abs_diff(wanted)).max().unwrap_or(u64::MAX)
}

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;

#[test]
fn a_share_is_a_share_of_the_cards_time_for_every_kind_of_work() {
    let bench = Bench::new();
    let Ok(program) = program(&bench) else { return println!("stood aside: no C compiler") };
    bench.write("node.toml", "copy_bytes_per_micro = 10\n");
    let work = |kind, nanos, blocks| Work { kind, nanos, blocks };
    let cases = [
        (work("plain", 10 * MICRO, 1), 50, 1),
        (work("plain", 100 * MICRO, 1_000_000), 10, 1),
        (work("plain", MILLI, 132), 90, 1),
        (work("plain", 20 * MILLI, 65_536), 30, 1),
        (work("plain", 200 * MICRO, 64), 70, 4),
        (work("plain", 2 * MILLI, 64), 30, 16),
        (work("per_thread", 300 * MICRO, 64), 50, 1),
        (work("legacy", 300 * MICRO, 64), 30, 2),
        (work("described", 50 * MICRO, 64), 70, 1),
        (work("cooperative", 500 * MICRO, 64), 50, 1),
        (work("graph", 800 * MICRO, 64), 50, 1),
        (work("mixed", 300 * MICRO, 64), 50, 2),
        (work("synchronous", MILLI, 64), 70, 1),
        (work("set", 400 * MICRO, 64), 50, 1),
        (work("copy", 2 * MILLI, 64), 30, 2),
        (work("array", 600 * MICRO, 64), 40, 1),
        (work("batch", 800 * MICRO, 64), 60, 2),
    ];
    let mut wrong = Vec::new();
    for (work, percent, processes) in cases {
        if let Err(why) = check(&bench, &program, (work, percent, processes)) {
            wrong.push(why);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Kernels of which few fit into a window of half a second, on cards of their own side by side: they hardly need a processor.
#[test]
fn a_share_holds_for_kernels_of_a_tenth_of_a_second_too() {
    let makes = Bench::new();
    let Ok(program) = program(&makes) else { return println!("stood aside: no C compiler") };
    let work = |kind, millis| Work { kind, nanos: millis * MILLI, blocks: 64 };
    let cases = [
        (work("plain", 50), 30, 4),
        (work("graph", 50), 70, 2),
        (work("synchronous", 100), 70, 1),
        (work("plain", 100), 50, 3),
    ];
    let (wrong, without) = std::thread::scope(|scope| {
        let program = &program;
        let one = |case| scope.spawn(move || check(&Bench::new(), program, case).err());
        let running: Vec<_> = cases.into_iter().map(one).collect();
        let (bench, work) = (Bench::new(), cases[0].0);
        let without = Running(vec![work.start(bench.command(program), WINDOWS + 2)]);
        let without = measure(&bench.card(), work.window(), &without);
        let wrong: Vec<String> = running.into_iter().filter_map(|case| case.join().unwrap()).collect();
        (wrong, without)
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(off(&without.shares, 30) > OFF_MAX, "without the shim: {without:?}");
}

/// Runs one case until a run was within the bound, three times at most: on a busy machine any one run may be off. Where none was,
/// too much in any of them is wrong; too little is wrong unless the programs lacked a processor for as long as the card lacked
/// work.
fn check(
    bench: &Bench,
    program: &Path,
    (work, percent, processes): (Work, u32, usize),
) -> Result<(), String> {
    let wanted = u64::from(percent) * 10_000;
    let (least, most) = (wanted.saturating_sub(OFF_MAX), wanted + OFF_MAX);
    let mut tries = Vec::new();
    for _ in 0..3 {
        let seen = run(bench, program, percent, work, processes);
        println!("{work:?} {percent} % {processes} processes: {seen:?}");
        if seen.shares.iter().all(|share| (least..=most).contains(share)) {
            return Ok(());
        }
        tries.push(seen);
    }
    let excused =
        |seen: &Seen| seen.missing(least) <= seen.lacked && seen.shares.iter().all(|share| *share <= most);
    if tries.iter().all(excused) {
        println!("stood aside: the machine is too busy to run {work:?}");
        return Ok(());
    }
    Err(format!("{work:?} {percent} % {processes} processes: {tries:?}"))
}

/// Programs may be given another time; the shim uses the machine's.
#[test]
fn a_clock_that_is_wrong_for_the_program_changes_no_share() {
    let bench = Bench::new();
    let Ok(program) = program(&bench) else { return println!("stood aside: no C compiler") };
    let clock =
        bench.compile_as("shim_interposer", "libclock.so", &["-shared", "-fPIC", "-DCLOCK", "-ldl"]).unwrap();
    let work = Work { kind: "plain", nanos: MILLI, blocks: 64 };
    for wrong in ["still", "fast"] {
        let (tenant, _files) = Tenant::with(&share(&bench.card(), 25));
        let mut command = tenant.command(&bench, &program);
        command
            .env("LD_PRELOAD", format!("{}:{}", clock.display(), shim().display()))
            .env("WRONG_CLOCK", wrong);
        let running = Running(vec![work.start(command, WINDOWS + 2)]);
        let seen = measure(&bench.card(), work.window(), &running);
        println!("{wrong}: {seen:?}");
        let mean = seen.shares.iter().sum::<u64>() / WINDOWS;
        // Where it is believed: nothing at all, and nine tenths.
        assert!((20_000..500_000).contains(&mean), "{wrong}: {seen:?}");
    }
}

/// Streams of a card, and the current context where work is put into them.
#[derive(Clone, Copy, Debug)]
struct Streams {
    card: usize,
    current: &'static str,
}

/// How much of a card the work has in parts per million, over all of a program's run: too little of it on a busy machine.
fn most(bench: &Bench, mut command: Command, work: Work, streams: Streams) -> u64 {
    let card = bench.device().card(streams.card).unwrap().clone();
    let words =
        [work.nanos.to_string(), work.blocks.to_string(), "1500".to_owned(), streams.card.to_string()];
    command.arg(work.kind).args(words).arg(streams.current);
    let before = card.moment();
    let said = said(&command.output().unwrap());
    let after = card.moment();
    assert!(said.strip_prefix("ok ").unwrap().trim().parse::<u64>().unwrap() > 0, "{said}");
    (after.busy_nanos - before.busy_nanos) * 1_000_000 / (after.at - before.at)
}

/// The driver takes the context from the stream: which one is current, if any, is no way round a share, nor onto another card's.
#[test]
fn work_on_a_stream_is_its_cards_whichever_context_is_current() {
    let (alone, two) = (Bench::new(), Bench::new());
    let Ok(program) = program(&alone) else { return println!("stood aside: no C compiler") };
    alone.write("node.toml", "copy_bytes_per_micro = 10\n[[card]]\n");
    two.write("node.toml", "copy_bytes_per_micro = 10\n");
    let kinds = ["plain", "described", "cooperative", "graph", "set", "move", "batch"];
    let capped = share(&alone.card(), 10);
    let (tenant, _files) = Tenant::with(&capped);
    let both = Tenant::new();
    let uuid = |card: usize| two.device().card(card).unwrap().facts().uuid.clone();
    let limits = |card, percent: u32| {
        let ppm = percent * 10_000;
        Limits { share_ppm: ppm, granted_ppm: ppm, policy: ComputePolicy::Cap, ..unlimited(&uuid(card)) }
    };
    let grants = [both.grant("first", &limits(0, 100)), both.grant("second", &limits(1, 10))];
    let mut wrong = Vec::new();
    for kind in kinds {
        let work = Work { kind, nanos: MILLI, blocks: 64 };
        for (bench, tenant, streams) in [
            (&alone, &tenant, Streams { card: 0, current: "none" }),
            (&two, &both, Streams { card: 1, current: "none" }),
            (&two, &both, Streams { card: 1, current: "0" }),
        ] {
            let had = most(bench, tenant.command(bench, &program), work, streams);
            println!("{kind} {streams:?}: {had} of a million");
            // A tenth, and what may run before anything is known; without a limit it has nearly all.
            if had > 250_000 {
                wrong.push((kind, streams, had));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Nor does one card pay for the other.
    let books = || grants.each_ref().map(|files| files.counter(usage::DEVICE_NANOS));
    let (work, before) = (Work { kind: "plain", nanos: MILLI, blocks: 64 }, books());
    most(&two, both.command(&two, &program), work, Streams { card: 0, current: "1" });
    let after = books();
    assert!(after[0] > before[0] && after[1] == before[1], "{before:?}, then {after:?}");
}

/// Content goes where it should and wrong calls are refused as without the shim, while all of it is metered.
#[test]
fn copies_under_a_limit_move_what_they_move_without() {
    let bench = Bench::new();
    let Ok(copies) = bench.compile("copies", Link::Direct) else {
        return println!("stood aside: no C compiler");
    };
    let (tenant, files) = Tenant::with(&share(&bench.card(), 50));
    let output = tenant.command(&bench, copies).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "OK\n");
    assert!(files.counter(usage::DEVICE_NANOS) > 0, "nothing was metered");
}

/// Without the shim, or with a grant that does not limit compute, the same check fails: the card is full.
#[test]
fn without_a_limit_the_same_check_fails() {
    let bench = Bench::new();
    let Ok(program) = program(&bench) else { return println!("stood aside: no C compiler") };
    let work = Work { kind: "plain", nanos: MILLI, blocks: 132 };
    let (tenant, files) = Tenant::with(&unlimited(&bench.card().facts().uuid));
    for command in [bench.command(&program), tenant.command(&bench, &program)] {
        let running = Running(vec![work.start(command, WINDOWS + 2)]);
        let seen = measure(&bench.card(), work.window(), &running);
        assert!(off(&seen.shares, 50) > OFF_MAX, "{seen:?}");
    }
    assert_eq!(files.counter(usage::DEVICE_NANOS), 0, "nothing was metered");
}

/// The tenant's accounted time is the card's.
#[test]
fn time_on_the_books_is_time_on_the_card() {
    let bench = Bench::new();
    let Ok(program) = program(&bench) else { return println!("stood aside: no C compiler") };
    let work = Work { kind: "mixed", nanos: 500 * MICRO, blocks: 64 };
    let card = bench.card();
    let (tenant, files) = Tenant::with(&share(&card, 40));
    let running = start(&bench, &tenant, &program, work, 3);
    let lack = running.lack();
    measure(&card, work.window(), &running);
    let lacked = u64::try_from(lack.sum().as_nanos()).unwrap();
    drop(running);
    let (booked, truth) = (files.counter(usage::DEVICE_NANOS), card.busy_nanos());
    println!("booked {booked} ns, truth {truth} ns; for {lacked} ns a program had no processor");
    // What a launch costs is an upper bound until it was measured often, and gaps in which a program was kept from launching the
    // next one may be billed; nothing that ran is left out.
    assert!(booked <= truth + truth / 8 + lacked, "{booked} ns accounted, {truth} ns on the card, {lacked}");
    assert!(booked + truth / 50 >= truth, "{booked} ns accounted, {truth} ns on the card");
}
