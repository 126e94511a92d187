//! What a launch costs with the shim, over a driver whose launches do nothing.
//!
//! The card of that driver takes two microseconds for a kernel, and the program pauses between bursts, so nobody waits for a
//! share: what is measured is the hook, with the markers, leases and bills that so many launches make.

use std::path::Path;
use std::process::{Command, ExitCode};

use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_benches::measure::{Effort, Spread, figures};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_tests::preload::{Tenant, memory_limit, shim, unlimited};
use aliquot_tests::simulated::{StoodAside, root, run as command};
use tempfile::TempDir;

const CARD: &str = "GPU-a11c0de0-51a0-4c4d-8000-000000000000";

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

fn once(place: &Path, tenant: Option<&Tenant>, bursts: u32) -> Result<Both, String> {
    let mut program = Command::new(place.join("launch_cost"));
    program.arg(bursts.to_string()).env("LD_LIBRARY_PATH", place);
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
    let share = Limits { policy: ComputePolicy::Cap, ..unlimited(CARD) };
    let (limited, _files) = Tenant::with(&share);
    // Memory alone is limited: launches are none of the shim's business.
    let (memory, _files_too) = Tenant::with(&memory_limit(CARD, 1 << 30));
    let cases =
        [("without the shim", None), ("compute not limited", Some(&memory)), ("limited", Some(&limited))];
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..effort.pick(15, 1) {
        for ((_, tenant), samples) in cases.iter().zip(&mut samples) {
            samples.push(once(place.path(), *tenant, effort.pick(4_000, 50))?);
        }
    }
    let spread = |samples: &[Both], way: usize| {
        Spread::of(&samples.iter().map(|both| both[way]).collect::<Vec<_>>()).ok_or("no samples".to_owned())
    };
    let mut rows = Vec::new();
    for ((name, _), samples) in cases.iter().zip(&samples) {
        for (way, by) in ["looked up", "linked"].into_iter().enumerate() {
            let Spread { min, median, max } = spread(samples, way)?;
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
            let more = spread(&samples[case], way)?.median - spread(&samples[0], way)?.median;
            report.promise(
                format!("{}, {by}: ns more a launch", cases[case].0),
                more,
                Promise::AtMost(bound),
            );
        }
    }
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run())
}
