//! The suite for a real card: what the shim promises, held against the driver's own word.
//!
//! ```text
//!   card::Bench ─ probe (C), Python programs ─▶ one run with the shim, one without ─▶ check::Page: a verdict a row
//! ```
//!
//! Every check is run twice. With the shim it must hold; without, the same check must fail, or it would show nothing. The
//! page that comes out belongs under `benches/results/`. Nothing is compiled or fetched here, and no setting of the card
//! is touched.

mod card;
mod check;
mod governor;
mod memory;
mod overhead;
mod packages;
mod share;

use card::{Bench, NoCard};
use check::Page;
use std::path::PathBuf;
use std::process::ExitCode;

/// What is run: the rows of which sections, how long.
#[derive(Clone, Debug)]
struct Plan {
    /// Directory with the probe and the shim.
    carried: PathBuf,
    /// Sections; empty: all.
    only: Vec<String>,
    /// Seconds of each measurement of a share.
    seconds: f64,
    /// The cards are simulated: a kernel's length is what it is told, and figures mean nothing.
    simulated: bool,
    /// Of each kind of measurement one is enough.
    few: bool,
}

const USAGE: &str = "usage: gpu_suite --carried DIR [--seconds N] [--only SECTION,…] [--few] [--simulated]
sections: memory reporting packages shares pairs overhead";

impl Plan {
    fn from_args() -> Option<Self> {
        let mut plan =
            Self { carried: PathBuf::new(), only: Vec::new(), seconds: 5.0, simulated: false, few: false };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--carried" => plan.carried = words.next()?.into(),
                "--seconds" => plan.seconds = words.next()?.parse().ok()?,
                "--only" => plan.only = words.next()?.split(',').map(str::to_owned).collect(),
                "--simulated" => plan.simulated = true,
                "--few" => plan.few = true,
                _ => return None,
            }
        }
        plan.carried.is_dir().then_some(plan)
    }

    fn wants(&self, section: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == section)
    }
}

fn run(plan: &Plan) -> Result<ExitCode, String> {
    let bench = match Bench::open(plan) {
        Ok(bench) => bench,
        Err(NoCard(why)) => {
            println!("stood aside: {why}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let mut page = Page::new(&bench, plan.simulated);
    if plan.wants("memory") {
        memory::held(&bench, &mut page)?;
    }
    if plan.wants("reporting") {
        memory::told(&bench, &mut page)?;
    }
    if plan.wants("packages") {
        packages::held(&bench, &mut page)?;
    }
    if plan.wants("shares") {
        share::alone(&bench, &mut page, plan.seconds)?;
    }
    if plan.wants("pairs") {
        share::together(&bench, &mut page, plan.seconds)?;
    }
    if plan.wants("overhead") {
        overhead::at_full_share(&bench, &mut page, plan.seconds)?;
    }
    Ok(page.finish())
}

fn main() -> ExitCode {
    let Some(plan) = Plan::from_args() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    run(&plan).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
