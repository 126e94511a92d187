//! What a launch costs with the shim, over a driver with launches that do nothing.
//!
//! The card of that driver takes two microseconds for a kernel, and the program pauses between bursts, so no
//! launch waits for a share. The measurement is the hook, with the markers, leases and bills that so many
//! launches make.

use std::path::Path;
use std::process::{Command, ExitCode};

use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_benches::measure::{Effort, Spread, figures};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_tests::preload::{Tenant, memory_limit, shim, unlimited};
use aliquot_tests::simulated::{StoodAside, root, run as command};
use tempfile::TempDir;

const CARDS: [&str; 2] =
    ["GPU-a11c0de0-51a0-4c4d-8000-000000000000", "GPU-a11c0de0-51a0-4c4d-8000-000000000001"];

/// By a pointer that was looked up, and by the linked name; in nanoseconds.
type Both = [f64; 2];

fn compile(place: &Path) -> Result<(), StoodAside> {
    let programs = root().join("tests/programs");
    command(Command::new("cc").arg("--version"))?;
    let cc = |arguments: &[&str], source: &str, to: &str| {
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-Werror"]).arg("-o").arg(place.join(to)).arg(programs.join(source));
        command(cc.args(arguments)).map(|_| ())
    };
    let library = place.display().to_string();
    cc(&["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"], "still_driver.c", "libcuda.so.1")?;
    cc(&["-L", &library, "-l:libcuda.so.1", "-ldl"], "launch_cost.c", "launch_cost")
}

/// How a program launches.
#[derive(Clone, Copy)]
struct Shape {
    /// Cards that it sees; it launches on the first.
    cards: u32,
    threads: u32,
    /// Of 50 launches each.
    bursts: u32,
}

fn once(place: &Path, tenant: Option<&Tenant>, shape: Shape) -> Result<Both, String> {
    let mut program = Command::new(place.join("launch_cost"));
    program.args([shape.bursts, shape.threads].map(|number| number.to_string()));
    program.env("LD_LIBRARY_PATH", place).env("STILL_CARDS", shape.cards.to_string());
    if let Some(tenant) = tenant {
        program.env("LD_PRELOAD", shim()).env("ALIQUOT_GRANTS", tenant.grants());
    }
    let said = command(&mut program).map_err(|error| error.0)?;
    let mut numbers = said.split_whitespace().map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(pointer)), Some(Ok(linked))) => Ok([pointer, linked]),
        _ => Err(format!("launch_cost said {said:?}")),
    }
}

fn run() -> Result<ExitCode, String> {
    let effort = Effort::from_args();
    let mut report = Report::new("Launches under the shim", effort);
    let place = TempDir::new().map_err(|error| error.to_string())?;
    if let Err(StoodAside(why)) = compile(place.path()) {
        println!("\nstood aside: {why}");
        return Ok(report.finish());
    }
    let share = |card| Limits { policy: ComputePolicy::Cap, ..unlimited(card) };
    let (limited, _files) = Tenant::with(&share(CARDS[0]));
    let _other = limited.grant("other", &share(CARDS[1]));
    one_thread(&mut report, effort, place.path(), &limited)?;
    several(&mut report, effort, place.path(), &limited)?;
    Ok(report.finish())
}

fn spread_of(samples: &[Both], way: usize) -> Result<Spread, String> {
    Spread::of(&samples.iter().map(|both| both[way]).collect::<Vec<_>>()).ok_or("no samples".to_owned())
}

/// One thread and one card.
fn one_thread(report: &mut Report, effort: Effort, place: &Path, limited: &Tenant) -> Result<(), String> {
    // Memory alone is limited: launches are none of the shim's business.
    let (memory, _files) = Tenant::with(&memory_limit(CARDS[0], 1 << 30));
    let cases =
        [("without the shim", None), ("compute not limited", Some(&memory)), ("limited", Some(limited))];
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..effort.pick(15, 1) {
        for ((_, tenant), samples) in cases.iter().zip(&mut samples) {
            let shape = Shape { cards: 1, threads: 1, bursts: effort.pick(4_000, 50) };
            samples.push(once(place, *tenant, shape)?);
        }
    }
    let mut rows = Vec::new();
    for ((name, _), samples) in cases.iter().zip(&samples) {
        for (way, by) in ["looked up", "linked"].into_iter().enumerate() {
            let Spread { min, median, max } = spread_of(samples, way)?;
            rows.push([(*name).to_owned(), by.to_owned(), figures(min), figures(median), figures(max)]);
        }
    }
    report.table(
        "Nanoseconds a launch, over programs of 200,000 launches of one kernel.",
        ["grant", "function", "lowest", "median", "highest"],
        &rows,
    );
    for (case, bound) in [(1, 5.0), (2, 20.0)] {
        for (way, by) in ["looked up", "linked"].into_iter().enumerate() {
            let more = spread_of(&samples[case], way)?.median - spread_of(&samples[0], way)?.median;
            report.promise(
                format!("{}, {by}: ns more a launch", cases[case].0),
                more,
                Promise::AtMost(bound),
            );
        }
    }
    Ok(())
}

/// Several threads, which share one controller, and several cards, where each launch finds its card.
/// Processor time of the threads, as they may be more than the processors.
fn several(report: &mut Report, effort: Effort, place: &Path, limited: &Tenant) -> Result<(), String> {
    let mut rows = Vec::new();
    // Threads that sleep between their bursts find their memory cold, or in another processor's cache.
    for (cards, threads, bursts, bound) in [
        (2, 1, 2_000, Some(20.0)),
        (1, 2, 1_000, Some(50.0)),
        (2, 2, 1_000, Some(50.0)),
        (1, 16, 200, Some(50.0)),
        (2, 16, 200, Some(50.0)),
    ] {
        let shape = Shape { cards, threads, bursts: effort.pick(bursts, 10) };
        let (mut bare, mut with) = (Vec::new(), Vec::new());
        for _ in 0..effort.pick(9, 1) {
            bare.push(once(place, None, shape)?);
            with.push(once(place, Some(limited), shape)?);
        }
        let (bare, with) = (spread_of(&bare, 0)?, spread_of(&with, 0)?);
        let more = with.min - bare.min;
        rows.push([
            cards.to_string(),
            threads.to_string(),
            bare.to_string(),
            with.to_string(),
            figures(more),
        ]);
        if let Some(bound) = bound {
            report.promise(
                format!("limited, {cards} cards, {threads} threads: ns more a launch"),
                more,
                Promise::AtMost(bound),
            );
        }
    }
    report.table(
        "Nanoseconds a launch of a limited program by a function that was looked up, lowest / median / highest.",
        ["cards", "threads", "without the shim", "with", "lowest more"],
        &rows,
    );
    Ok(())
}

fn main() -> ExitCode {
    ended(run())
}
