//! Launches of which nothing is known, on virtual time: programs that begin, and that have more functions than are remembered.

#![cfg(not(feature = "shuttle"))]
#![expect(clippy::cast_possible_truncation, reason = "a model's numbers are small")]

#[path = "pace/model.rs"]
#[expect(dead_code, reason = "other tests run more in it")]
mod model;

use aliquot_enforce::share::{BorrowPolicy, Tenant, Terms};
use aliquot_enforce::units::Ppm;
use model::{Bench, MICRO, MILLI, Program, SECOND};

const SEED: u64 = 0x5eed;

fn part(percent: u32) -> Ppm {
    Ppm::new(percent * 10_000)
}

/// So many functions of that length, each launched once and then again.
fn different(functions: u64, length: u64) -> Program {
    let kernels = (1..=functions).map(|function| (function, 64, length)).collect();
    Program { kernels, ..Program::of(0) }
}

/// When the first program of the first tenant has had so much of the card, in whole milliseconds.
fn has_had(bench: &mut Bench, nanos: u64) -> u64 {
    let mut at = 0;
    while bench.share(0, 0, at.max(1)) * at / 1_000_000 < nanos * 999 / 1_000 {
        at += MILLI;
        assert!(at < 60 * SECOND, "it never comes to {nanos} ns");
        bench.run(at);
    }
    at / MILLI
}

#[test]
fn functions_launched_once_hardly_wait_if_short() {
    println!("seed {SEED:#x}");
    let mut wrong = Vec::new();
    for (percent, launches, most) in [
        (90, 3_000, 180),
        (50, 3_000, 180),
        (25, 3_000, 200),
        (10, 3_000, 400),
        // More than are remembered, in turns.
        (90, 12_000, 600),
        (25, 12_000, 600),
    ] {
        let mut bench = Bench::new(SEED);
        bench.tenant(Some(part(percent)), &[different(3_000, 10 * MICRO)]);
        let took = has_had(&mut bench, launches * 10 * MICRO);
        println!("{launches} launches of 10 us at {percent} %: {took} ms");
        if took > most {
            wrong.push(format!("{launches} launches at {percent} %: {took} ms, {most} at most"));
        }
    }
    let mut bench = Bench::new(SEED);
    bench.tenant(Some(part(50)), &[different(3_000, 10 * MICRO)]);
    bench.tenant(Some(part(50)), &[Program::of(MILLI)]);
    let half = Terms { guaranteed: part(50), lending: BorrowPolicy::Cap, priority: 1 };
    bench.govern(vec![Tenant::new(half); 2]);
    let took = has_had(&mut bench, 30 * MILLI);
    println!("beside another: {took} ms");
    assert!(wrong.is_empty() && took <= 400, "{wrong:#?}, {took} ms beside another");
}

/// Most work of 200 ms each, of functions that were never seen, that waits on the card behind so many short ones: before any of it
/// was measured, and once some was; in milliseconds.
fn unmeasured(percent: u32, short: u64) -> [u64; 2] {
    let mut kernels = different(short, 10 * MICRO).kernels;
    kernels.extend((0..100).map(|number| (10_000 + number, 64, 200 * MILLI)));
    let mut bench = Bench::new(SEED);
    bench.tenant(Some(part(percent)), &[Program { kernels, ..Program::of(0) }]);
    let mut most = [0; 2];
    for at in 1..10_000 {
        bench.run(at * MILLI);
        let later = usize::from(bench.share(0, 0, at * MILLI) * at / 1_000_000 > 850);
        most[later] = most[later].max(bench.queue(0) / MILLI);
    }
    most
}

#[test]
fn at_most_four_unknown_launches_turn_out_long() {
    println!("seed {SEED:#x}");
    for percent in [10, 50, 90] {
        for (short, first) in [(0, 200), (20, 200), (200, 800), (2_000, 800)] {
            let [before, after] = unmeasured(percent, short);
            println!("{percent} %, after {short} short ones: {before} and {after} ms");
            assert!(before <= first && after <= 200, "{percent} %, {short}: {before} and {after} ms");
        }
    }
}
