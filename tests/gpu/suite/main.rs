//! The suite for a real card: what the shim promises, held against the driver's own word.
//!
//! ```text
//!   card::Bench ─ probe (C), Python programs ─▶ one run with the shim, one without ─▶ check::Page: a verdict a row
//! ```
//!
//! Every check is run twice. With the shim it must hold; without, the same check must fail, or it would show nothing. Whatever
//! goes wrong in a check is its row's verdict, and the page goes on. The page belongs under `benches/results/`. Nothing is
//! compiled or fetched here, and no setting of the card is touched.

mod card;
mod check;
mod governor;
mod memory;
mod overhead;
mod packages;
mod part;
mod plan;
mod program;
mod share;
mod way;

use aliquot_tests::preload::Tenant;
use card::{Bench, NoCard};
use check::{Outcome, Page, Side};
use plan::{Plan, USAGE};
use program::Trouble;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Free memory below which a section stands aside, in MiB, by its name.
const NEEDED_MIB: [(&str, u64); 7] = [
    ("memory", 7 * 1024),
    ("reporting", 1024),
    ("mig", 7 * 1024),
    ("packages", 7 * 1024),
    ("shares", 1024),
    ("pairs", 3 * 1024),
    ("overhead", 3 * 1024),
];
/// Utilisation in percent above which another program is taken to compute; and how long it may take to fall
/// below.
const BUSY_MAX: u64 = 5;
const REST_MAX: Duration = Duration::from_secs(4);

fn heading(section: &str) -> &'static str {
    match section {
        "memory" => "Memory",
        "reporting" => "Reporting",
        "mig" => "MIG instance",
        "packages" => "Python packages",
        "shares" => "Share of one tenant",
        "pairs" => "Shares of tenants side by side",
        _ => "Overhead",
    }
}

/// Why a section cannot be run now: too little memory, or another program that computes on the card.
fn hindrance(bench: &Bench, section: &str) -> Result<(), Trouble> {
    let started = Instant::now();
    let needed = NEEDED_MIB.iter().find(|(name, _)| *name == section).map_or(0, |(_, needed)| *needed);
    loop {
        let now = bench.now()?;
        let free =
            now.get("total").zip(now.get("used")).map(|(total, used)| total.saturating_sub(used) >> 20);
        let short = free.filter(|free| *free < needed);
        let busy = now
            .get("busy")
            .filter(|busy| *busy > BUSY_MAX && ["shares", "pairs", "overhead"].contains(&section));
        // What was used by checks before may not be back yet.
        let why = match (short, busy) {
            (None, None) => return Ok(()),
            (Some(free), _) => format!("{free} MiB of the card are free, and {needed} needed"),
            (None, Some(busy)) => format!("another program computes on the card: it is {busy} % busy"),
        };
        if started.elapsed() > REST_MAX {
            return Err(Trouble::Aside(why));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The shim is in programs that are to have it, and in no others: else no row below would mean anything.
fn setup(bench: &Bench, page: &mut Page) -> Result<(), Trouble> {
    page.section("Setup");
    let mut is_there = true;
    page.check(bench, "the shim is loaded into programs", Duration::ZERO, |side| {
        let loaded = bench.probe(side, &Tenant::new(), &["loaded"])?.number("loaded")? == 1;
        is_there &= loaded || side == Side::Bare;
        let said = if loaded { "is there" } else { "is not there" };
        Ok(Outcome::of(
            said.to_owned(),
            [(loaded, "the loader did not take what LD_PRELOAD names".to_owned())],
        ))
    });
    if is_there { Ok(()) } else { Err(Trouble::Aside("programs run without the shim here".to_owned())) }
}

fn section(bench: &Bench, page: &mut Page, name: &str, setup: &Result<(), Trouble>) {
    page.section(heading(name));
    if name == "mig" && !bench.facts.is_part {
        return page.aside("all of it", "this is a whole card, and not an instance of one in MIG mode");
    }
    if let Err(trouble) = setup.clone().and_then(|()| hindrance(bench, name)) {
        return page.trouble("all of it", &trouble);
    }
    let run = || match name {
        "memory" => memory::held(bench, page),
        "reporting" => memory::told(bench, page),
        "mig" => part::held(bench, page),
        "packages" => packages::held(bench, page),
        "shares" => share::alone(bench, page),
        "pairs" => share::together(bench, page),
        _ => overhead::at_full_share(bench, page),
    };
    if let Err(error) = catch_unwind(AssertUnwindSafe(run)) {
        let text = error
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| error.downcast_ref::<&str>().copied());
        let why = format!("the suite stopped here: {}", text.unwrap_or("without a word"));
        page.trouble("the rest of it", &Trouble::Failed(why));
    }
}

fn run(plan: Plan) -> Result<ExitCode, NoCard> {
    let way = way::open(&plan.carried).map_err(NoCard)?;
    let bench = Bench::open(plan, way.path().to_owned())?;
    let started = Instant::now();
    let mut page = Page::new(&bench);
    bench.allow(bench.plan.time);
    let setup = setup(&bench, &mut page);
    for (name, part) in bench.plan.sections() {
        let left = bench.plan.time.saturating_sub(started.elapsed());
        bench.allow(left.mul_f64(part));
        section(&bench, &mut page, name, &setup);
    }
    Ok(page.finish(&bench, started.elapsed()))
}

fn main() -> ExitCode {
    let Some(plan) = Plan::from_words(&std::env::args().skip(1).collect::<Vec<_>>()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    run(plan).unwrap_or_else(|NoCard(why)| {
        println!("stood aside: {why}");
        ExitCode::SUCCESS
    })
}
