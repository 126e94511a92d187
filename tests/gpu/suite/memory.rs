//! Memory: the limit held in every family of allocations, and told by every call.

use crate::card::Bench;
use crate::check::{Outcome, Page, Side};
use aliquot_abi::layout::usage;
use aliquot_tests::preload::{Tenant, memory_limit};

/// What a tenant may have.
pub(crate) const LIMIT: u64 = 4 << 30;
/// What it allocates at a time.
const CHUNK: u64 = 64 << 20;
/// How much beyond the limit it asks for.
const BEYOND: u64 = 1 << 30;
/// The vendor's out-of-memory.
const OUT_OF_MEMORY: u64 = 2;
/// What the driver may take beside what is asked for: its own pages of tables, and rounding.
const SLACK: u64 = 96 << 20;

const FAMILIES: [(&str, &str); 6] = [
    ("plain", "cuMemAlloc"),
    ("pitch", "cuMemAllocPitch"),
    ("managed", "cuMemAllocManaged"),
    ("async", "cuMemAllocAsync"),
    ("physical", "cuMemCreate"),
    ("array", "cuArrayCreate"),
];

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// What a context and its modules take, which no call asks for: measured with one small allocation.
fn overhead(bench: &Bench) -> Result<u64, String> {
    let before = bench.truth()?;
    let words = ["fill", "plain", &CHUNK.to_string(), &CHUNK.to_string()];
    let running = bench.start(Side::Bare, &Tenant::new(), &words)?;
    let during = bench.truth()?;
    running.ended()?;
    Ok(during.saturating_sub(before + CHUNK))
}

/// One process asks for more than its limit; what it really has is read by another, without the shim.
fn fill(bench: &Bench, side: Side, family: &str, context: u64) -> Result<Outcome, String> {
    let (tenant, files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
    let before = bench.truth()?;
    let words = ["fill", family, &CHUNK.to_string(), &(LIMIT + BEYOND).to_string()];
    let running = bench.start(side, &tenant, &words)?;
    let taken = bench.truth()?.saturating_sub(before);
    let (code, bytes) = (running.before.number("code")?, running.before.number("bytes")?);
    let booked = files.counter(usage::TOTAL);
    let untouched = running.before.number("untouched").is_ok_and(|answer| answer == 1);
    let again = running.before.number("again").is_ok_and(|answer| answer == 0);
    let freed = running.ended()?.number("freed")? == 0;
    // Nothing is refused while it fits: what is booked and one more chunk pass the limit.
    let full = booked <= LIMIT && booked + CHUNK + (2 << 20) > LIMIT;
    let held = bytes <= LIMIT && taken <= LIMIT + context + SLACK;
    let said = format!("{} given, {} on the card, code {code}", mib(bytes), mib(taken));
    Ok(Outcome { said, holds: code == OUT_OF_MEMORY && held && full && untouched && again && freed })
}

/// Several processes of one grant, together.
fn together(bench: &Bench, side: Side, context: u64) -> Result<Outcome, String> {
    const PROCESSES: u64 = 4;
    let (tenant, _files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
    let before = bench.truth()?;
    // Contexts are in the limit, too: three leave the fourth room for its own, and all four together want more than there is.
    let most = (LIMIT / PROCESSES + 2 * CHUNK).saturating_sub(context);
    let words = ["fill", "plain", &CHUNK.to_string(), &most.to_string()];
    let running =
        (0..PROCESSES).map(|_| bench.start(side, &tenant, &words)).collect::<Result<Vec<_>, _>>()?;
    let taken = bench.truth()?.saturating_sub(before);
    let bytes = running.iter().map(|one| one.before.number("bytes")).sum::<Result<u64, _>>()?;
    let said = format!("{} given to {PROCESSES} processes, {} on the card", mib(bytes), mib(taken));
    let holds = bytes <= LIMIT && bytes + PROCESSES * context + 2 * CHUNK > LIMIT && taken <= LIMIT + SLACK;
    Ok(Outcome { said, holds })
}

/// The limit is held.
///
/// # Errors
/// A program could not be run.
pub(crate) fn held(bench: &Bench, page: &mut Page) -> Result<(), String> {
    let context = overhead(bench)?;
    for (family, name) in FAMILIES {
        let what = format!("{name} stops at {}, with the vendor's error", mib(LIMIT));
        page.check("Memory", &what, |side| fill(bench, side, family, context))?;
    }
    page.check("Memory", "four processes of one grant together", |side| together(bench, side, context))
}

/// Everybody is told the grant.
///
/// # Errors
/// A program could not be run.
pub(crate) fn told(bench: &Bench, page: &mut Page) -> Result<(), String> {
    const SECTION: &str = "Reporting";
    page.check(SECTION, "cuMemGetInfo, cuDeviceTotalMem and NVML agree on the grant", |side| {
        let (tenant, _files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
        let told = bench.probe(side, &tenant, &["report"])?;
        let totals = ["info_total", "device_total", "nvml_total", "nvml2_total"];
        let totals = totals.map(|key| told.number(key).unwrap_or(0));
        let free = told.number("info_free")?;
        let said = format!("totals {}, free {}", totals.map(mib).join(", "), mib(free));
        // The second form of NVML's answer is not in every driver.
        let agree = totals[..3].iter().chain(totals[3..].iter().filter(|total| **total != 0));
        Ok(Outcome { said, holds: free <= LIMIT && agree.copied().all(|total| total == LIMIT) })
    })?;
    let ask = |side| {
        let (tenant, _files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
        let mut command = bench.command(side, &tenant, "nvidia-smi");
        command.args(["--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", &bench.facts.uuid]);
        command.output()
    };
    if let Err(error) = ask(Side::Bare) {
        page.aside(SECTION, "nvidia-smi", &error.to_string());
        return Ok(());
    }
    page.check(SECTION, "nvidia-smi shows the grant", |side| {
        let output = ask(side).map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Outcome { holds: said == (LIMIT >> 20).to_string(), said: format!("{said} MiB") })
    })
}
