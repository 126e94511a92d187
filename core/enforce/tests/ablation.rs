//! Each heuristic on virtual time, on and off: what it decides differs somewhere, so its switch works. The figures say what it is
//! worth in this model only; the suite for a real card measures the same with `ALIQUOT_ABLATE`.

#![cfg(not(feature = "shuttle"))]
#![expect(clippy::cast_possible_truncation, reason = "a model's numbers are small")]

#[path = "pace/model.rs"]
#[expect(dead_code, reason = "other tests run more in it")]
mod model;

use aliquot_enforce::ablation::{Heuristic, without};
use aliquot_enforce::share::{BorrowPolicy, Tenant, Terms};
use aliquot_enforce::units::Ppm;
use model::{Bench, MICRO, MILLI, Program, SECOND};

use BorrowPolicy::{Burst, Cap};

const SEED: u64 = 0x5eed;

fn part(percent: u32) -> Ppm {
    Ppm::new(percent * 10_000)
}

/// Kernels of one function in this shape, launched in turn.
fn lengths(blocks: u32, lengths: &[(usize, u64)]) -> Program {
    let lengths = lengths.iter().flat_map(|(launches, length)| std::iter::repeat_n(*length, *launches));
    Program { kernels: lengths.map(|length| (1, blocks, length)).collect(), ..Program::of(0) }
}

/// One function in five shapes, on four streams.
fn five_shapes() -> Program {
    let lengths = [30, 900, 120, 300, 60];
    let kernels = (0..).zip(lengths).map(|(number, micros)| (1, 1 + 64 * number, micros * MICRO)).collect();
    Program { kernels, streams: 4, ..Program::of(0) }
}

/// 3,000 functions of 10 us.
fn functions() -> Program {
    Program { kernels: (1..=3_000).map(|function| (function, 64, 10 * MICRO)).collect(), ..Program::of(0) }
}

/// 3,000 shapes of one function, 10 us each.
fn shapes() -> Program {
    Program { kernels: (1..=3_000).map(|blocks| (1, blocks, 10 * MICRO)).collect(), ..Program::of(0) }
}

/// Sixteen processes that begin within two seconds, with kernels of 200 ms.
fn begin_in_turn() -> Vec<Program> {
    let from = |number: u64| number * 125 * MILLI;
    (0..16).map(|number| Program { from: from(number), ..Program::of(200 * MILLI) }).collect()
}

/// Shares in parts per million, from one moment to another, of processes of one tenant that no governor corrects.
fn alone(percent: u32, programs: &[Program], from: u64, till: u64) -> Vec<u64> {
    let mut bench = Bench::new(SEED);
    bench.tenant(Some(part(percent)), programs);
    bench.run(till);
    vec![bench.share(0, from, till)]
}

/// The same of tenants under a governor, and the most work of any that waited on the card, in microseconds.
fn beside(tenants: &[(u32, BorrowPolicy, Program)], from: u64, till: u64) -> Vec<u64> {
    let mut bench = Bench::new(SEED);
    for (percent, _, program) in tenants {
        bench.tenant(Some(part(*percent)), std::slice::from_ref(program));
    }
    let terms = |percent, lending| Tenant::new(Terms { guaranteed: part(percent), lending, priority: 1 });
    bench.govern(tenants.iter().map(|(percent, lending, _)| terms(*percent, *lending)).collect());
    let mut queue = 0;
    for at in (from / MILLI..till / MILLI).step_by(7) {
        bench.run(at * MILLI);
        queue = (0..tenants.len()).map(|seat| bench.queue(seat)).max().unwrap_or(0).max(queue);
    }
    bench.run(till);
    let shares = (0..tenants.len()).map(|tenant| bench.share(tenant, from, till));
    shares.chain([queue / MICRO]).collect()
}

/// Caps of these percentages with kernels of these lengths.
fn caps(tenants: &[(u32, u64)]) -> Vec<u64> {
    let longest = tenants.iter().map(|(_, length)| *length).max().unwrap_or(0);
    let tenants: Vec<_> =
        tenants.iter().map(|(percent, length)| (*percent, Cap, Program::of(*length))).collect();
    beside(&tenants, 20 * SECOND, 20 * SECOND + (60 * longest).max(10 * SECOND))
}

/// A tenant of 60 % that works and rests in turns, beside one of 30 % that borrows meanwhile.
fn lent_and_back(length: u64) -> Vec<u64> {
    let owner = Program { turns: Some((83 * MILLI, 79 * MILLI)), ..Program::of(length) };
    beside(&[(30, Burst, Program::of(length)), (60, Cap, owner)], SECOND, 8 * SECOND)
}

/// Milliseconds until a program whose launches are all the first of their kind has had 30 ms of the card.
fn first_launches(program: Program) -> Vec<u64> {
    let mut bench = Bench::new(SEED);
    bench.tenant(Some(part(50)), &[program]);
    let had = |bench: &mut Bench, at: u64| {
        bench.run(at * MILLI);
        bench.share(0, 0, at * MILLI) * at / 1_000 >= 29_970
    };
    vec![(1..60_000).find(|at| had(&mut bench, *at)).unwrap_or(60_000)]
}

/// A tenant alone, of whose programs one bypasses the controller.
fn bypassed() -> Vec<u64> {
    let mut bench = Bench::new(SEED);
    let tenant = bench.tenant(Some(part(50)), &[Program::of(MILLI)]);
    bench.outside(tenant, &[Program { depth: 1, pause: 160 * MILLI, ..Program::of(20 * MILLI) }]);
    bench.govern(vec![Tenant::new(Terms { guaranteed: part(50), lending: Cap, priority: 1 })]);
    bench.run(14 * SECOND);
    vec![bench.share(tenant, 4 * SECOND, 14 * SECOND)]
}

/// Nanoseconds billed in a second of 30 us kernels, and the launches that waited.
fn short_launches() -> Vec<u64> {
    let mut bench = Bench::new(SEED);
    bench.tenant(Some(part(95)), &[Program::of(30 * MICRO)]);
    bench.run(SECOND);
    let billed = bench.regions[0].words[0].load(std::sync::atomic::Ordering::Relaxed);
    vec![billed, bench.waits]
}

/// What a heuristic is for, in figures that it changes.
fn figures(heuristic: Heuristic) -> (&'static str, Vec<u64>) {
    let seconds = |number: u64| number * SECOND;
    match heuristic {
        Heuristic::LaunchAhead => ("borrower and owner of 1 ms kernels", lent_and_back(MILLI)),
        Heuristic::LoanLead => ("borrower and owner of 0.1 ms kernels", lent_and_back(100 * MICRO)),
        Heuristic::FewUnmeasured => ("3,000 functions of 10 us at 50 %, ms", first_launches(functions())),
        Heuristic::Probes => {
            let growing: Vec<_> = (1..40).map(|number| (1, number * 50 * MICRO)).collect();
            ("lengths of 0.05 to 2 ms, 30 %", alone(30, &[lengths(64, &growing)], SECOND, seconds(4)))
        }
        Heuristic::MarkerBefore => ("30 us, 95 %: ns billed, waits", short_launches()),
        Heuristic::Deposits => {
            let phases = lengths(64, &[(64, 2 * MICRO), (64, MILLI)]);
            ("phases of 2 us and 1 ms, 10 %", alone(10, &[phases], seconds(5), seconds(10)))
        }
        Heuristic::Lateness => {
            ("16 processes of 200 ms begin in turn, 50 %", alone(50, &begin_in_turn(), 0, seconds(20)))
        }
        Heuristic::SureTime => {
            let phases = lengths(64, &[(64, 10 * MICRO), (64, MILLI)]);
            ("phases of 10 us and 1 ms, four processes, 25 %", alone(25, &vec![phases; 4], 0, seconds(10)))
        }
        Heuristic::Siblings => {
            ("five shapes, two processes, 70 %", alone(70, &vec![five_shapes(); 2], 0, seconds(4)))
        }
        Heuristic::SideBySide => {
            ("five shapes on four streams, 30 %", alone(30, &[five_shapes()], 0, seconds(4)))
        }
        Heuristic::Guesses => ("3,000 shapes of 10 us at 50 %, ms", first_launches(shapes())),
        Heuristic::LongTurns => {
            ("10, 30 and 60 % of 20 ms", caps(&[(10, 20 * MILLI), (30, 20 * MILLI), (60, 20 * MILLI)]))
        }
        Heuristic::MeanCosts => {
            let two = || lengths(64, &[(1, 500 * MICRO), (1, 30 * MILLI)]);
            let tenants = [(10, Cap, two()), (30, Cap, two()), (60, Cap, two())];
            ("10, 30 and 60 % of 0.5 or 30 ms", beside(&tenants, seconds(5), seconds(15)))
        }
        Heuristic::SavedRoom | Heuristic::EarlyWake => {
            let tenants = [(10, 200 * MILLI), (30, 200 * MILLI), (60, 130 * MICRO)];
            ("10, 30 % of 200 ms, 60 % of 0.13 ms", caps(&tenants))
        }
        Heuristic::Correction | Heuristic::Rounding | Heuristic::MeasuredPart => {
            ("10, 30 and 60 % of 10 ms", caps(&[(10, 10 * MILLI), (30, 10 * MILLI), (60, 10 * MILLI)]))
        }
        Heuristic::QuietWindows | Heuristic::Owed => {
            ("30 % of 1 s, 60 % of 1 ms", caps(&[(30, SECOND), (60, MILLI)]))
        }
        Heuristic::CorrectionAlone => ("50 %, one program not controlled", bypassed()),
        Heuristic::Headroom => {
            let light = Program { depth: 1, pause: MILLI, ..Program::of(100 * MICRO) };
            let tenants = [(30, Burst, Program::of(MILLI)), (60, Cap, light)];
            ("a borrower beside 60 % hardly used", beside(&tenants, seconds(1), seconds(4)))
        }
        Heuristic::HeldBound => unreachable!("held streams have a model of their own"),
    }
}

#[test]
fn each_switch_changes_what_its_heuristic_decides() {
    println!("seed {SEED:#x}; shares in ppm, then the most work of a tenant on the card in us");
    println!("| off | measured | with | without |\n|---|---|---|---|");
    let mut without_effect = Vec::new();
    for (heuristic, name) in Heuristic::ALL {
        if heuristic == Heuristic::HeldBound {
            continue;
        }
        let (what, with) = figures(heuristic);
        let (_, without) = without(heuristic, || figures(heuristic));
        println!("| `{name}` | {what} | {with:?} | {without:?} |");
        if with == without {
            without_effect.push(name);
        }
    }
    assert!(without_effect.is_empty(), "no figure depends on {without_effect:?}");
}

#[test]
fn names_are_unique_and_the_switch_ends_with_its_call() {
    let names: std::collections::BTreeSet<_> = Heuristic::ALL.iter().map(|(_, name)| *name).collect();
    assert_eq!(names.len(), Heuristic::ALL.len());
    let (_, before) = figures(Heuristic::Guesses);
    let unwound = std::panic::catch_unwind(|| without(Heuristic::Guesses, || panic!("within the call")));
    assert!(unwound.is_err());
    assert_eq!(figures(Heuristic::Guesses).1, before, "it is on again, also after a panic");
}
