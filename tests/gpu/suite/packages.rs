//! Python packages that happen to be there: their own out-of-memory at the limit, and the total they are told.

use crate::card::Bench;
use crate::check::{Outcome, Page, Side};
use crate::memory::LIMIT;
use aliquot_tests::preload::{Tenant, memory_limit};
use std::process::Output;

const SECTION: &str = "Python packages";
const PACKAGES: [&str; 4] = ["torch", "cupy", "jax", "numba"];
/// Exit code of the program where the package is not there or sees no card.
const ABSENT: i32 = 3;

fn run(bench: &Bench, side: Side, package: &str) -> Result<Output, String> {
    let (tenant, _files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
    let mut command = bench.command(side, &tenant, "python3");
    command.arg(bench.carried("package.py")).args([package, &LIMIT.to_string()]);
    command.output().map_err(|error| format!("python3: {error}"))
}

/// Each package stops at the limit with its own out-of-memory, and sees the limit as the card's size.
///
/// # Errors
/// A program could not be run.
pub(crate) fn held(bench: &Bench, page: &mut Page) -> Result<(), String> {
    for package in PACKAGES {
        let first = match run(bench, Side::Bare, package) {
            Ok(output) => output,
            Err(why) => {
                page.aside(SECTION, package, &why);
                continue;
            }
        };
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if first.status.code() == Some(ABSENT) {
            page.aside(SECTION, package, &text(&first));
            continue;
        }
        page.check(SECTION, &format!("{package} stops at the limit"), |side| {
            let output = run(bench, side, package)?;
            let said = text(&output);
            // `given BYTES total BYTES stopped 0|1`, on the last line.
            let last = said.lines().last().unwrap_or_default().to_owned();
            let numbers: Vec<u64> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
            let holds = matches!(numbers[..], [given, total, 1] if (LIMIT / 4..=LIMIT).contains(&given) && total <= LIMIT);
            let said = if numbers.is_empty() { format!("{} {last}", output.status) } else { last };
            Ok(Outcome { said: said.replace('|', " "), holds })
        })?;
    }
    Ok(())
}
