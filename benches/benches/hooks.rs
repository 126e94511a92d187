//! What a call through the shim costs more than the same call without, on a driver that answers at once.

use std::process::ExitCode;

use aliquot_benches::measure::{Effort, Spread, figures};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_tests::bare::{Bare, CARD, number};
use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::StoodAside;

/// Allocations that are live beside those measured.
const LIVE: [u32; 3] = [100, 20_000, 200_000];
/// Pools that hold memory beside a context, a module and a pool that holds none.
const POOLS: [u32; 2] = [0, 3];

/// Most that an allocation and its free may take, in calls of the driver that answers at once, of the same run: nanoseconds
/// are those of a machine, and proportions hold on most.
const PAIR_MAX: f64 = 40.0;
/// The same of a memory query.
const QUERY_MAX: f64 = 30.0;

/// What is called: its name for the program, its name for the reader, and the most that it may take, in calls of the driver.
const CALLS: [(&str, &str, f64); 7] = [
    ("info", "cuMemGetInfo", QUERY_MAX),
    ("nvml", "nvmlDeviceGetMemoryInfo", QUERY_MAX),
    ("freeasync", "cuMemFreeAsync", QUERY_MAX),
    ("graph", "cuGraphLaunch, compute not limited", QUERY_MAX),
    ("function", "cuModuleGetFunction, once more", QUERY_MAX),
    ("lookup", "dlsym of a hooked name", QUERY_MAX),
    ("pooled", "cuMemAllocAsync and cuMemFreeAsync", PAIR_MAX),
];

/// Without the shim and with it.
struct Both {
    bare: Spread,
    with: Spread,
}

impl Both {
    fn measure(effort: Effort, bare: &Bare, tenant: &Tenant, what: &str, count: u32) -> Result<Self, String> {
        let arguments = [what.to_owned(), count.to_string(), effort.pick(5_000, 10).to_string()];
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..effort.pick(11, 1) {
            for (mut command, samples) in
                [(bare.command(), &mut without), (bare.command_of(tenant), &mut with)]
            {
                samples.push(number(command.args(&arguments)).map_err(|error| error.to_string())?);
            }
        }
        let spread = |samples: &[f64]| Spread::of(samples).ok_or("nothing was measured");
        Ok(Self { bare: spread(&without)?, with: spread(&with)? })
    }

    fn more(&self) -> f64 {
        self.with.min - self.bare.min
    }

    /// How many calls of the driver it takes.
    fn times(&self) -> f64 {
        self.with.min / self.bare.min
    }

    /// Without, with, and the difference and proportion of the quickest.
    fn cells(&self) -> [String; 4] {
        [self.bare.to_string(), self.with.to_string(), figures(self.more()), figures(self.times())]
    }
}

/// An allocation and a free, with more and more allocations live.
fn alloc(report: &mut Report, effort: Effort, bare: &Bare) -> Result<(), String> {
    let (tenant, _files) = Tenant::with(&memory_limit(CARD, 1 << 40));
    let mut rows = Vec::new();
    for (order, live) in ["alloc", "replace"].into_iter().flat_map(|order| LIVE.map(|live| (order, live))) {
        let both = Both::measure(effort, bare, &tenant, order, live)?;
        let [without, with, more, times] = both.cells();
        rows.push([order.to_owned(), live.to_string(), without, with, more, times]);
        // Where any of very many is freed, what is measured is how busy the machine's memory is.
        if order == "alloc" || live < 200_000 {
            let what = format!("{order}, {live} live: an allocation and a free, in calls of the driver");
            report.promise(what, both.times(), Promise::AtMost(PAIR_MAX));
        }
    }
    report.table(
        "An allocation and its free (`alloc`), or a free of any and an allocation in its place (`replace`, which waits for \
         memory, too), ns, lowest / median / highest of the quickest batches.",
        ["order", "live", "without", "with", "lowest more", "times"],
        &rows,
    );
    Ok(())
}

/// Calls that programs make all the time, in a process that uses its card.
fn calls(report: &mut Report, effort: Effort, bare: &Bare) -> Result<(), String> {
    let (tenant, _files) = Tenant::with(&memory_limit(CARD, 1 << 40));
    let mut rows = Vec::new();
    for (what, name, bound) in CALLS {
        for pools in POOLS {
            let both = Both::measure(effort, bare, &tenant, what, pools)?;
            let [without, with, more, times] = both.cells();
            rows.push([name.to_owned(), pools.to_string(), without, with, more, times]);
            let what = format!("{name}, {pools} pools: in calls of the driver");
            report.promise(what, both.times(), Promise::AtMost(bound));
        }
    }
    report.table(
        "In a process with its primary context, a module, a pool that holds nothing, and so many that hold memory: ns, lowest / \
         median / highest of the quickest batches.",
        ["call", "pools", "without", "with", "lowest more", "times"],
        &rows,
    );
    Ok(())
}

fn measure() -> Result<ExitCode, String> {
    let effort = Effort::from_args();
    let mut report = Report::new("What a call through the shim costs", effort);
    let bare = match Bare::new() {
        Ok(bare) => bare,
        Err(StoodAside(why)) => {
            println!("\nstood aside: {why}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    alloc(&mut report, effort, &bare)?;
    calls(&mut report, effort, &bare)?;
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(measure())
}
