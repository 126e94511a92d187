//! What the shim costs a tenant that has the whole card, and what each call costs one that has not.

use crate::card::Bench;
use crate::check::{Page, Side};
use aliquot_abi::limits::Limits;
use aliquot_tests::preload::{Tenant, memory_limit, unlimited};

/// Most of the throughput that may be lost at full share.
const LOSS_MAX: f64 = 0.01;
/// Runs of each side, in turns; the best of each counts, as whatever else happens only takes.
const RUNS: usize = 5;
/// Calls of each kind in one run.
const CALLS: &str = "20000";

fn best(bench: &Bench, limits: &Limits, words: &[&str], key: &str) -> Result<[f64; 2], String> {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..RUNS {
        for (side, best) in [Side::Shim, Side::Bare].into_iter().zip(&mut best) {
            let (tenant, _files) = Tenant::with(limits);
            let said = bench.probe(side, &tenant, words)?;
            let figure = match said.rows("whole").first().map(Vec::as_slice) {
                Some([count, clock]) => clock / count,
                _ => said.number(key)? as f64 / 1e3,
            };
            *best = best.min(figure);
        }
    }
    Ok(best)
}

/// Throughput of a tenant without limits, and the cost of single calls.
///
/// # Errors
/// A program could not be run.
pub(crate) fn at_full_share(bench: &Bench, page: &mut Page, seconds: f64) -> Result<(), String> {
    const SECTION: &str = "Overhead";
    let (units, _) = bench.calibrate(10_000, 1)?;
    let (units, seconds) = (units.to_string(), (seconds / 2.0).to_string());
    let words = ["spin", &units, "1", "plain", "100", &seconds];
    let [shim, bare] = best(bench, &unlimited(&bench.facts.uuid), &words, "whole")?;
    let figures = [shim, bare].map(|nanos| format!("{:.2} µs each", nanos / 1e3));
    let what = "kernels of 10 µs, nothing limited";
    page.compare(SECTION, what, figures.each_ref().map(String::as_str), shim <= bare * (1.0 + LOSS_MAX));
    let limits = memory_limit(&bench.facts.uuid, 2 << 30);
    for (what, key, most) in [
        ("cuLaunchKernel, compute not limited", "launch_picos", 50.0),
        ("cuMemAlloc and cuMemFree under a limit", "alloc_picos", 1_000.0),
        ("cuMemGetInfo under a limit", "info_picos", 500.0),
    ] {
        let [shim, bare] = best(bench, &limits, &["launch", CALLS], key)?;
        let figures = [shim, bare].map(|nanos| format!("{nanos:.0} ns"));
        let within = shim <= bare * 1.02 + most;
        page.compare(SECTION, what, figures.each_ref().map(String::as_str), within);
    }
    Ok(())
}
