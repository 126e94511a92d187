//! What a call through the shim costs more than the same call without, on a driver that answers at once.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use aliquot_benches::measure::{Effort, Spread, figures};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_tests::preload::{Tenant, memory_limit, shim};
use aliquot_tests::simulated::{StoodAside, root, run};
use tempfile::TempDir;

/// The card of `tests/programs/bare_driver.c`.
const CARD: &str = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";

/// The card of `tests/programs/shim_info_cost.c`.
const INFO_CARD: &str = "GPU-01010101-0101-0101-0101-010101010101";

/// Allocations that are live beside those measured.
const LIVE: [u32; 3] = [100, 20_000, 200_000];

/// The driver and the program, compiled.
struct Place {
    held: TempDir,
}

impl Place {
    fn new() -> Result<Self, String> {
        let held = TempDir::new().map_err(|error| error.to_string())?;
        let place = Self { held };
        let programs = root().join("tests/programs");
        let cc = |arguments: &[&str], name: &str, to: &Path| {
            let mut command = Command::new("cc");
            command.args(["-O2", "-Wall", "-Werror"]).arg(programs.join(name)).args(arguments);
            run(command.arg("-o").arg(to)).map(|_| ()).map_err(|error| error.to_string())
        };
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        cc(&shared, "bare_driver.c", &place.held.path().join("libcuda.so.1"))?;
        let directory = format!("-L{}", place.held.path().display());
        cc(&[&directory, "-l:libcuda.so.1"], "hook_cost.c", &place.program())?;
        Ok(place)
    }

    fn program(&self) -> PathBuf {
        self.held.path().join("hook_cost")
    }

    fn bare(&self) -> Command {
        let mut command = Command::new(self.program());
        command.env("LD_LIBRARY_PATH", self.held.path());
        command
    }

    fn with(&self, tenant: &Tenant) -> Command {
        let mut command = self.bare();
        command.env("LD_PRELOAD", shim()).env("ALIQUOT_GRANTS", tenant.grants());
        command
    }
}

fn nanos(command: &mut Command) -> Result<f64, String> {
    let said = run(command).map_err(|error| error.to_string())?;
    said.trim().parse().map_err(|_| format!("no figure: {said}"))
}

/// An allocation and a free, with more and more allocations live.
fn alloc(report: &mut Report, effort: Effort, place: &Place) -> Result<(), String> {
    let (tenant, _files) = Tenant::with(&memory_limit(CARD, 1 << 40));
    let mut rows = Vec::new();
    for (order, live) in ["alloc", "replace"].into_iter().flat_map(|order| LIVE.map(|live| (order, live))) {
        let (mut bare, mut with) = (Vec::new(), Vec::new());
        let arguments = [order.to_owned(), live.to_string(), effort.pick(5_000, 10).to_string()];
        for _ in 0..effort.pick(11, 1) {
            bare.push(nanos(place.bare().args(&arguments))?);
            with.push(nanos(place.with(&tenant).args(&arguments))?);
        }
        let spread = |samples: &[f64]| Spread::of(samples).ok_or("nothing was measured");
        let (bare, with) = (spread(&bare)?, spread(&with)?);
        let more = with.min - bare.min;
        rows.push([order.to_owned(), live.to_string(), bare.to_string(), with.to_string(), figures(more)]);
        if order == "alloc" {
            let what = format!("{live} live: ns more for an allocation and a free");
            report.promise(what, more, Promise::AtMost(150.0));
        }
    }
    report.table(
        "An allocation and its free (`alloc`), or a free of any and an allocation in its place (`replace`, which waits for \
         memory, too), ns, lowest / median / highest of the quickest batches.",
        ["order", "live", "without", "with", "lowest more"],
        &rows,
    );
    Ok(())
}

/// Questions about memory, and look-ups, over libraries that answer at once.
fn info(report: &mut Report, effort: Effort) -> Result<(), String> {
    let place = TempDir::new().map_err(|error| error.to_string())?;
    let program = place.path().join("shim_info_cost");
    let cc = |arguments: &[&str], to: &Path| {
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(to);
        command.arg(root().join("tests/programs/shim_info_cost.c")).args(arguments);
        run(&mut command).map(|_| ()).map_err(|error| error.to_string())
    };
    cc(&["-ldl"], &program)?;
    for (define, soname) in [("-DCUDA", "libcuda.so.1"), ("-DNVML", "libnvidia-ml.so.1")] {
        let name = format!("-Wl,-soname,{soname}");
        cc(&["-shared", "-fPIC", define, &name], &place.path().join(soname))?;
    }
    let (tenant, _files) = Tenant::with(&memory_limit(INFO_CARD, 8 << 30));
    let (mut bare, mut with) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for _ in 0..effort.pick(11, 1) {
        for (samples, shim_there) in [(&mut bare, false), (&mut with, true)] {
            let mut command = Command::new(&program);
            command.env("LD_LIBRARY_PATH", place.path());
            if shim_there {
                command.env("LD_PRELOAD", shim()).env("ALIQUOT_GRANTS", tenant.grants());
            }
            let said = run(&mut command).map_err(|error| error.to_string())?;
            let figures: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [memory, nvml, look_up] = figures[..] else { return Err(format!("no figures: {said}")) };
            samples.iter_mut().zip([memory, nvml, look_up]).for_each(|(all, one)| all.push(one));
        }
    }
    let mut rows = Vec::new();
    // 500 look-ups at start-up are then at most half a millisecond.
    for (number, (call, most)) in
        [("cuMemGetInfo", 50.0), ("nvmlDeviceGetMemoryInfo", 50.0), ("dlsym", 1_000.0)]
            .into_iter()
            .enumerate()
    {
        let spread = |samples: &[f64]| Spread::of(samples).ok_or("nothing was measured");
        let (bare, with) = (spread(&bare[number])?, spread(&with[number])?);
        let more = with.min - bare.min;
        rows.push([call.to_owned(), bare.to_string(), with.to_string(), figures(more)]);
        report.promise(format!("{call}: ns more"), more, Promise::AtMost(most));
    }
    report.table(
        "Memory information and a look-up, ns of processor time, lowest / median / highest of the quickest batches.",
        ["call", "without", "with", "lowest more"],
        &rows,
    );
    Ok(())
}

fn measure() -> Result<ExitCode, String> {
    let effort = Effort::from_args();
    let mut report = Report::new("What a call through the shim costs", effort);
    if let Err(StoodAside(why)) = run(Command::new("cc").arg("--version")) {
        println!("\nstood aside: {why}");
        return Ok(ExitCode::SUCCESS);
    }
    let place = Place::new()?;
    alloc(&mut report, effort, &place)?;
    info(&mut report, effort)?;
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(measure())
}
