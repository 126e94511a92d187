//! Python packages that happen to be there: their own out-of-memory at the limit, and the total they see.

use crate::card::Bench;
use crate::check::{Outcome, Page, Side};
use crate::memory::LIMIT;
use crate::program::{Ended, Trouble};
use aliquot_tests::preload::{Tenant, memory_limit};
use std::time::Duration;

const PACKAGES: [&str; 4] = ["torch", "cupy", "jax", "numba"];
/// Exit code of the program where the package is not there or sees no card.
const ABSENT: i32 = 3;
/// Longest that a package may take to be read, to start and to fill its memory.
const PROGRAM_MAX: Duration = Duration::from_secs(75);

fn run(bench: &Bench, side: Side, package: &str) -> Result<Ended, Trouble> {
    let (tenant, _files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
    let mut command = bench.command(side, &tenant, "python3");
    command.arg(bench.carried("package.py")).args([package, &LIMIT.to_string()]);
    bench.program(&mut command, PROGRAM_MAX)?.end()
}

fn last(ended: &Ended) -> &str {
    ended.text.trim().lines().last().unwrap_or_default()
}

/// What a run came to: `given BYTES total BYTES stopped 0|1`, on the last line.
fn judged(ended: &Ended) -> Result<Outcome, Trouble> {
    let numbers: Vec<u64> = last(ended).split(' ').filter_map(|word| word.parse().ok()).collect();
    let [given, total, stopped] = numbers[..] else {
        return Err(Trouble::Failed(format!("{}: {} {}", ended.status, last(ended), ended.complaint)));
    };
    let text = format!(
        "{} MiB given, {} MiB told, {}",
        given >> 20,
        total >> 20,
        if stopped == 1 { "stopped" } else { "not stopped" }
    );
    let promises = [
        (stopped == 1, "it was not stopped".to_owned()),
        (given <= LIMIT, "it has more than the limit".to_owned()),
        (given >= LIMIT / 4, "it was stopped long before the limit".to_owned()),
        (total <= LIMIT, "it is told more than the limit".to_owned()),
    ];
    Ok(Outcome::of(text, promises))
}

/// Each package stops at the limit with its own out-of-memory, and sees the limit as the card's size.
pub(crate) fn held(bench: &Bench, page: &mut Page) {
    for package in PACKAGES {
        let what = format!("{package} stops at the limit");
        // The control comes first here: it says whether the package is there at all.
        let bare = match run(bench, Side::Bare, package) {
            Ok(ended) if ended.status.code() == Some(ABSENT) => Err(Trouble::Aside(last(&ended).to_owned())),
            // A package that is ill without the shim says nothing about the shim.
            Ok(ended) => judged(&ended)
                .map_err(|trouble| Trouble::Aside(format!("without the shim: {}", trouble.why()))),
            Err(trouble) => Err(Trouble::Aside(trouble.why().to_owned())),
        };
        match &bare {
            Err(trouble) => page.trouble(&what, trouble),
            Ok(_) if bench.left().is_zero() => page.late(&what),
            Ok(_) => {
                let shim = run(bench, Side::Shim, package).and_then(|ended| judged(&ended));
                page.verdict(&what, &shim, &bare);
            }
        }
    }
}
