//! What the shim adds to the start of a process: one that uses no card, and up to 256 at once that use one.
//!
//! Cards are simulated. Promised is processor time, which is what the shim takes on a machine with a processor for each
//! process; where processes outnumber processors, the clock shows mostly how they wait for each other, so it is shown and
//! promised nothing.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use aliquot_benches::measure::{Effort, Spread, figures, percentile, timed};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_tests::preload::{Tenant, memory_limit, shim};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// How many processes begin at once.
const AT_ONCE: [usize; 5] = [1, 4, 16, 64, 256];

/// Processor time and clock of one start, in nanoseconds.
#[derive(Clone, Copy)]
struct Start {
    processor: f64,
    clock: f64,
}

/// With the shim, and without.
struct Both<T> {
    with: T,
    bare: T,
}

/// Processor time of all children that have ended, in nanoseconds.
fn children() -> Result<f64, String> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| error.to_string())?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 * 1e3)
}

/// One run of a program that uses no card.
fn plain_run(preload: Option<&Path>) -> Result<Start, String> {
    let mut command = Command::new("ls");
    command.arg("/").stdout(Stdio::null());
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let before = children()?;
    let (status, seconds) = timed(|| command.status());
    let status = status.map_err(|error| format!("ls: {error}"))?;
    if !status.success() {
        return Err(format!("ls: {status}"));
    }
    Ok(Start { processor: children()? - before, clock: seconds * 1e9 })
}

/// `ls`, in turns with and without.
fn plain(report: &mut Report, effort: Effort) -> Result<(), String> {
    let mut runs = Both { with: Vec::new(), bare: Vec::new() };
    for _ in 0..effort.pick(500, 2) {
        runs.bare.push(plain_run(None)?);
        runs.with.push(plain_run(Some(shim()))?);
    }
    let spread = |runs: &[Start], field: fn(&Start) -> f64| {
        let samples: Vec<f64> = runs.iter().map(field).collect();
        Spread::of(&samples).map(|spread| spread.times(1e-3)).ok_or("nothing was measured")
    };
    let mut rows = Vec::new();
    for (name, field) in
        [("processor", (|s| s.processor) as fn(&Start) -> f64), ("clock", |start: &Start| start.clock)]
    {
        let (bare, with) = (spread(&runs.bare, field)?, spread(&runs.with, field)?);
        let (least, middle) = (with.min - bare.min, with.median - bare.median);
        rows.push([name.to_owned(), bare.to_string(), with.to_string(), figures(least), figures(middle)]);
        // On a busy machine the median of the clock measures the other programs; its minimum is an
        // undisturbed run.
        let figure = if name == "clock" { least } else { middle };
        report.promise(format!("ls: µs more of {name}"), figure, Promise::AtMost(200.0));
    }
    report.table(
        "`ls /`, µs, lowest / median / highest.",
        ["time", "without", "with", "lowest more", "median more"],
        &rows,
    );
    Ok(())
}

/// Starts so many at once and waits for all.
fn starts(count: usize, command: impl Fn() -> Command) -> Result<Vec<Start>, String> {
    let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    let mut running: Vec<Child> = Vec::new();
    for _ in 0..count {
        let gate = reader.try_clone().map_err(|error| error.to_string())?;
        let child = command().stdin(gate).stdout(Stdio::piped()).spawn();
        running.push(child.map_err(|error| error.to_string())?);
    }
    // The end of their input: all go.
    drop(writer);
    running.into_iter().map(finished).collect()
}

fn finished(mut child: Child) -> Result<Start, String> {
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut said).map_err(|error| error.to_string())?;
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let mut numbers = said.split_whitespace().map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(processor)), Some(Ok(clock))) if status.success() => Ok(Start { processor, clock }),
        _ => Err(format!("a process that uses the card: {status}: {said}")),
    }
}

/// Many at once under one grant, in turns with and without.
fn using(report: &mut Report, effort: Effort, bench: &Bench, program: &Path) -> Result<(), String> {
    let (tenant, _files) = Tenant::with(&memory_limit(&bench.card().facts().uuid, 256 << 30));
    let mut rows = Vec::new();
    for count in AT_ONCE.into_iter().filter(|count| *count <= effort.pick(256, 4)) {
        let mut runs = Both { with: Vec::new(), bare: Vec::new() };
        for _ in 0..effort.pick(1_024_usize.div_ceil(count).clamp(6, 200), 1) {
            runs.bare.extend(starts(count, || bench.command(program))?);
            runs.with.extend(starts(count, || tenant.command(bench, program))?);
        }
        let at = |runs: &[Start], field: fn(&Start) -> f64, part| {
            percentile(&runs.iter().map(field).collect::<Vec<_>>(), part) * 1e-6
        };
        let processor = |start: &Start| start.processor;
        let clock = |start: &Start| start.clock;
        let mut row = vec![count.to_string(), runs.with.len().to_string()];
        for (part, bound) in [(0.5, 1.0), (0.99, 5.0)] {
            let (bare, with) = (at(&runs.bare, processor, part), at(&runs.with, processor, part));
            row.push(format!("{} / {}", figures(bare), figures(with)));
            let name = format!("{count} at once: processor ms more at the {}th percentile", part * 100.0);
            report.promise(name, with - bare, Promise::AtMost(bound));
        }
        for part in [0.5, 0.99] {
            row.push(format!(
                "{} / {}",
                figures(at(&runs.bare, clock, part)),
                figures(at(&runs.with, clock, part))
            ));
        }
        rows.push(<[String; 6]>::try_from(row).map_err(|row| format!("{} columns", row.len()))?);
    }
    report.table(
        "Processes that begin to use a card under one grant, ms without / with the shim. Processor time is that of the \
         process from its beginning; the clock runs from the moment all may go.",
        ["at once", "runs", "processor, p50", "processor, p99", "clock, p50", "clock, p99"],
        &rows,
    );
    Ok(())
}

fn run() -> Result<ExitCode, String> {
    let effort = Effort::from_args();
    let bench = Bench::new();
    bench.write("node.toml", "[[card]]\nname = \"card\"\nuuid = \"GPU-a11c0de0-51a0-4c4d-8000-000000000000\"\nmemory_bytes = 549755813888\nsms = 132\n");
    let mut report = Report::new("Start of a process under the shim", effort);
    plain(&mut report, effort)?;
    match bench.compile("start_up", Link::Opened) {
        Ok(program) => using(&mut report, effort, &bench, &program)?,
        Err(StoodAside(why)) => println!("\nstood aside: {why}"),
    }
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run())
}
