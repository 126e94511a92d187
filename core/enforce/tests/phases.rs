//! Functions with phases of short and of long launches, on virtual time: only their arguments differ, and the program waits for
//! no launch.

#![cfg(not(feature = "shuttle"))]
#![expect(clippy::cast_possible_truncation, reason = "a model's numbers are small")]

#[path = "pace/model.rs"]
#[expect(dead_code, reason = "other tests run more in it")]
mod model;

use aliquot_enforce::share::{BorrowPolicy, Tenant, Terms};
use aliquot_enforce::units::Ppm;
use model::{Bench, MICRO, MILLI, Program, SECOND};

const SEED: u64 = 0x5eed;

/// Most a share may be off, in parts per million: three points.
const OFF_MAX: u64 = 30_000;

const WINDOW: u64 = 500 * MILLI;
const WINDOWS: u64 = 10;

/// One function or, without blocks, one graph: so many launches of each length.
fn phases(blocks: u32, lengths: &[(usize, u64)]) -> Program {
    let lengths = lengths.iter().flat_map(|(launches, length)| std::iter::repeat_n(*length, *launches));
    Program { kernels: lengths.map(|length| (1, blocks, length)).collect(), ..Program::of(0) }
}

fn cap(percent: u32) -> Ppm {
    Ppm::new(percent * 10_000)
}

/// Alone under a cap, once the function is known: the least and the most of windows of half a second.
fn alone(percent: u32, programs: &[Program], from: u64) -> [u64; 2] {
    let mut bench = Bench::new(SEED);
    bench.tenant(Some(cap(percent)), programs);
    bench.run(from + WINDOWS * WINDOW);
    let windows = (0..2 * WINDOWS - 1).map(|half| from + half * WINDOW / 2);
    let shares: Vec<u64> = windows.map(|at| bench.share(0, at, at + WINDOW)).collect();
    let least = shares.iter().min().copied().unwrap_or(0);
    [least, shares.iter().max().copied().unwrap_or(u64::MAX)]
}

/// The same of several caps; returns the shares with too great an error.
fn wrong_alone(name: &str, percents: &[u32], programs: &[Program], from: u64) -> Vec<String> {
    let off = |percent: u32| {
        let shares = alone(percent, programs, from);
        let line = format!("{name}, {percent} %: {shares:?} ppm");
        println!("{line}");
        shares.iter().any(|share| share.abs_diff(u64::from(percent) * 10_000) > OFF_MAX).then_some(line)
    };
    percents.iter().filter_map(|percent| off(*percent)).collect()
}

/// Launches of a phase, and the two lengths.
const PHASES: [(usize, u64, u64); 11] = [
    (16, 2 * MICRO, MILLI),
    (64, 2 * MICRO, MILLI),
    (256, 2 * MICRO, MILLI),
    (1_000, 2 * MICRO, MILLI),
    (64, 10 * MICRO, MILLI),
    (1_000, 10 * MICRO, MILLI),
    (16, 2 * MICRO, 10 * MILLI),
    (64, 2 * MICRO, 10 * MILLI),
    (256, 2 * MICRO, 10 * MILLI),
    (16, 10 * MICRO, 10 * MILLI),
    (64, 10 * MICRO, 10 * MILLI),
];

#[test]
fn share_holds_for_functions_first_short_then_long() {
    println!("seed {SEED:#x}");
    let mut wrong = Vec::new();
    for (launches, short, long) in PHASES {
        // Before anything is known a phase of its own length may run, by each process, and is paid back.
        let from = 10 * SECOND + 10 * launches as u64 * long;
        for (streams, processes) in [(1, 1), (4, 1), (1, 4)] {
            // Each process learns alone, and all may have one on the card when the other phase begins.
            if processes > 1 && (launches > 256 || long > MILLI) {
                continue;
            }
            let program = Program { streams, ..phases(64, &[(launches, short), (launches, long)]) };
            let name =
                format!("{launches} of {short} and of {long} ns, {streams} streams of {processes} processes");
            wrong.extend(wrong_alone(&name, &[10, 25, 50], &vec![program; processes], from));
        }
    }
    for launches in [16, 256] {
        let graph = phases(0, &[(launches, 10 * MICRO), (launches, MILLI)]);
        wrong.extend(wrong_alone(&format!("a graph, {launches}"), &[10, 50, 90], &[graph], 10 * SECOND));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_neighbour_of_phases_has_its_part_and_so_have_they() {
    println!("seed {SEED:#x}");
    let mut wrong = Vec::new();
    for (launches, short, long) in PHASES {
        for streams in [1, 4] {
            let program = Program { streams, ..phases(64, &[(launches, short), (launches, long)]) };
            let mut bench = Bench::new(SEED);
            bench.tenant(Some(cap(25)), &[program]);
            bench.tenant(Some(cap(75)), &[Program::of(MILLI)]);
            let terms = |percent| Terms { guaranteed: cap(percent), lending: BorrowPolicy::Cap, priority: 1 };
            bench.govern([25, 75].map(|percent| Tenant::new(terms(percent))).into());
            let from = 10 * SECOND + 10 * launches as u64 * long;
            bench.run(from + 20 * SECOND);
            let shares = [0, 1].map(|tenant| bench.share(tenant, from, from + 20 * SECOND));
            let line = format!("{launches} of {short} and of {long} ns, {streams} streams: {shares:?} ppm");
            println!("{line}");
            if shares[0].abs_diff(250_000) > 25_000 || shares[1].abs_diff(750_000) > 25_000 {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What seldom is long is launched ahead by what it costs in the mean: its program has its share.
#[test]
fn a_function_that_is_seldom_long_has_its_share() {
    println!("seed {SEED:#x}");
    let mut wrong = Vec::new();
    for (name, lengths) in [
        ("1 of 5 ms among 50 of 2 us", [(49, 2 * MICRO), (1, 5 * MILLI)]),
        ("1 of 5 ms among 500 of 2 us", [(499, 2 * MICRO), (1, 5 * MILLI)]),
        ("1 of 5 ms among 500 of 10 us", [(499, 10 * MICRO), (1, 5 * MILLI)]),
        ("1 of 5 ms among 5,000 of 10 us", [(4_999, 10 * MICRO), (1, 5 * MILLI)]),
        ("16 of 1 ms among 1,000 of 10 us", [(984, 10 * MICRO), (16, MILLI)]),
    ] {
        wrong.extend(wrong_alone(name, &[10, 25], &[phases(64, &lengths)], 6 * SECOND));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
