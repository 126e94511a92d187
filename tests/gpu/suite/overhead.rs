//! What the shim costs a tenant that has the whole card, and what each call costs one that has not.

use crate::card::Bench;
use crate::check::{Page, Side};
use crate::program::{Said, Trouble};
use crate::share::{ONE_BLOCK, Shape, calibrated};
use aliquot_abi::limits::Limits;
use aliquot_tests::preload::{Tenant, memory_limit, unlimited};

/// Most of the throughput that may be lost at full share.
const LOSS_MAX: f64 = 0.01;
/// Runs of each side, in turns; the best of each counts, as whatever else happens only takes.
const RUNS: usize = 5;
/// Calls of each kind in one run.
const CALLS: &str = "20000";
/// Seconds of one run of kernels.
const SECONDS: f64 = 1.5;

/// Nanoseconds of one kind of call by a key: what it may cost more beside two parts in a hundred.
const CALLS_OF: [(&str, &str, f64); 3] = [
    ("cuLaunchKernel, compute not limited", "launch_picos", 50.0),
    ("cuMemAlloc and cuMemFree under a limit", "alloc_picos", 1_000.0),
    ("cuMemGetInfo under a limit", "info_picos", 500.0),
];

/// Runs a program on both sides in turns; for each figure the best of each side.
fn best<const N: usize>(
    bench: &Bench,
    limits: &Limits,
    words: &[&str],
    figures: impl Fn(&Said) -> Result<[f64; N], Trouble>,
) -> Result<[[f64; 2]; N], Trouble> {
    let mut best = [[f64::INFINITY; 2]; N];
    for run in 0..RUNS {
        // A few turns less say less, but say it.
        if run > 1 && bench.left().is_zero() {
            break;
        }
        for (at, side) in [Side::Shim, Side::Bare].into_iter().enumerate() {
            let (tenant, _files) = Tenant::with(limits);
            let found = figures(&bench.probe(side, &tenant, words)?)?;
            for (best, found) in best.iter_mut().zip(found) {
                if let Some(best) = best.get_mut(at) {
                    *best = best.min(found);
                }
            }
        }
    }
    Ok(best)
}

fn throughput(bench: &Bench, shape: Shape) -> Result<[f64; 2], Trouble> {
    let units = calibrated(bench, shape)?;
    let words = shape.words(bench, units, SECONDS, SECONDS, 0.3);
    let words = words.each_ref().map(String::as_str);
    let [sides] = best(bench, &unlimited(&bench.facts.uuid), &words, |said| {
        match said.rows("whole").first().map(Vec::as_slice) {
            Some([count, clock]) if *count > 0.0 => Ok([clock / count]),
            _ => Err(Trouble::Failed("the probe counted nothing".to_owned())),
        }
    })?;
    Ok(sides)
}

/// Throughput of a tenant without limits, and the cost of single calls.
pub(crate) fn at_full_share(bench: &Bench, page: &mut Page) {
    let what = "kernels of 10 µs, nothing limited";
    match throughput(bench, ONE_BLOCK) {
        Err(trouble) => page.trouble(what, &trouble),
        Ok([shim, bare]) => {
            let figures = [shim, bare].map(|nanos| format!("{:.3} µs each", nanos / 1e3));
            let fault = format!("more than {} % are lost", LOSS_MAX * 100.0);
            let fault = (shim > bare * (1.0 + LOSS_MAX)).then_some(fault.as_str());
            page.compare(what, figures.each_ref().map(String::as_str), fault);
        }
    }
    let limits = memory_limit(&bench.facts.uuid, 2 << 30);
    let figures = |said: &Said| {
        let nanos = |key: &str| Ok(said.number(key)? as f64 / 1e3);
        let [launch, alloc, info] = CALLS_OF.map(|(_, key, _)| nanos(key));
        Ok([launch?, alloc?, info?])
    };
    match best(bench, &limits, &["launch", CALLS], figures) {
        Err(trouble) => page.trouble("single calls", &trouble),
        Ok(found) => {
            for ((what, _, most), [shim, bare]) in CALLS_OF.into_iter().zip(found) {
                let figures = [shim, bare].map(|nanos| format!("{nanos:.0} ns"));
                let fault = format!("more than {most:.0} ns and 2 % more");
                let fault = (shim > bare * 1.02 + most).then_some(fault.as_str());
                page.compare(what, figures.each_ref().map(String::as_str), fault);
            }
        }
    }
}
