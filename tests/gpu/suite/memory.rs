//! Memory: the limit held in every family of allocations, and reported by every call.

use crate::card::{Bench, Mode};
use crate::check::{Outcome, Page, Side};
use crate::program::{Program, Said, Trouble};
use aliquot_abi::layout::usage;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit};
use std::time::Duration;

/// What a tenant may have.
pub(crate) const LIMIT: u64 = 4 << 30;
/// What it allocates at a time.
const CHUNK: u64 = 64 << 20;
/// How much beyond the limit it requests.
const BEYOND: u64 = 1 << 30;
/// The vendor's out-of-memory.
const OUT_OF_MEMORY: u64 = 2;
/// What the driver may take beside a request: its own pages of tables, and rounding.
const SLACK: u64 = 96 << 20;
/// Pools and graphs take memory by so much at a time, more than the request.
const GROWTH: u64 = 32 << 20;
/// What may change on the card meanwhile without a check's doing.
const STRANGE_MAX: u64 = 32 << 20;
/// Allocations by which the cost of one is measured where it is not the request.
const WEIGHED: u64 = 8;
/// What a check needs of its section's time.
const TAKES: Duration = Duration::from_secs(4);

/// How a family of calls is held against the limit.
struct Family {
    /// The probe's word.
    word: &'static str,
    /// The page's.
    name: &'static str,
    /// Bytes of one request; `None`: the cost of one is measured.
    chunk: Option<u64>,
    /// What it may leave of the limit.
    leaves: u64,
}

const fn family(word: &'static str, name: &'static str) -> Family {
    Family { word, name, chunk: Some(CHUNK), leaves: CHUNK + (2 << 20) }
}

const FAMILIES: [Family; 10] = [
    family("plain", "cuMemAlloc"),
    family("pitch", "cuMemAllocPitch"),
    family("managed", "cuMemAllocManaged, written to"),
    Family { leaves: CHUNK + GROWTH, ..family("async", "cuMemAllocAsync") },
    Family { leaves: CHUNK + GROWTH, ..family("pool", "cuMemAllocFromPoolAsync") },
    family("physical", "cuMemCreate"),
    family("array", "cuArrayCreate"),
    Family { leaves: CHUNK + 2 * GROWTH, ..family("graph", "memory nodes of graphs") },
    Family { chunk: None, ..family("thin", "cuArrayCreate, arrays 1 byte wide and 65,536 high") },
    Family { chunk: None, leaves: LIMIT / 8, ..family("module", "modules with 256 MiB of data") },
];

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// What the card holds more than before, of processes that are at rest.
fn more(bench: &Bench, before: u64) -> Result<u64, Trouble> {
    Ok(bench.truth()?.saturating_sub(before))
}

/// What a number of allocations of a family takes without the shim, the context with it.
fn weighed(bench: &Bench, word: &str, count: u64) -> Result<u64, Trouble> {
    let before = bench.settled()?;
    let words = ["fill", word, &CHUNK.to_string(), &count.to_string()];
    let (running, _) = bench.start(Side::Bare, &Tenant::new(), &words)?;
    let taken = more(bench, before)?;
    running.ended()?;
    Ok(taken)
}

/// Memory of a context and its modules, which no call requests: measured with one small allocation.
fn overhead(bench: &Bench) -> Result<u64, Trouble> {
    Ok(weighed(bench, "plain", 1)?.saturating_sub(CHUNK))
}

/// What one allocation takes that does not say it.
fn each(bench: &Bench, family: &Family) -> Result<u64, Trouble> {
    if let Some(chunk) = family.chunk {
        return Ok(chunk);
    }
    // What small ones take shows in large numbers only.
    for scale in [1, 32] {
        let (few, many) =
            (weighed(bench, family.word, WEIGHED)?, weighed(bench, family.word, WEIGHED * (1 + scale))?);
        let each = many.saturating_sub(few) / (WEIGHED * scale);
        if each > 0 {
            return Ok(each);
        }
    }
    Err(Trouble::Aside("what one takes cannot be seen on the card".to_owned()))
}

/// Whether another program changed the card's memory use, which makes the check inconclusive.
fn undisturbed(bench: &Bench, before: u64) -> Result<(), Trouble> {
    let strange = bench.settled()?.abs_diff(before);
    if strange <= STRANGE_MAX {
        return Ok(());
    }
    Err(Trouble::Disturbed(format!(
        "another program changed what the card holds by {} meanwhile",
        mib(strange)
    )))
}

/// One process requests more than its limit; another, without the shim, reads what it really has.
fn fill(bench: &Bench, side: Side, family: &Family, each: u64) -> Result<Outcome, Trouble> {
    let (tenant, files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
    let before = bench.settled()?;
    let count = (LIMIT + BEYOND).div_ceil(each);
    let words = ["fill", family.word, &CHUNK.to_string(), &count.to_string()];
    let (running, said) = bench.start(side, &tenant, &words)?;
    let taken = more(bench, before)?;
    let booked = files.counter(usage::TOTAL);
    let freed = running.ended()?.number("freed")? == 0;
    undisturbed(bench, before)?;
    let outcome = judged(&said, [taken, booked], family, each, freed)?;
    Ok(outcome)
}

fn judged(
    said: &Said,
    [taken, booked]: [u64; 2],
    family: &Family,
    each: u64,
    freed: bool,
) -> Result<Outcome, Trouble> {
    let (code, count) = (said.number("code")?, said.number("count")?);
    let answered = |key: &str, wanted: u64| said.number(key).is_ok_and(|answer| answer == wanted);
    let bytes = count * each;
    let refused = code == OUT_OF_MEMORY;
    let text =
        format!("{} given, {} on the card, {} accounted, code {code}", mib(bytes), mib(taken), mib(booked));
    let full = booked + family.leaves.max(each) > LIMIT;
    let promises = [
        (
            refused,
            if code == 0 {
                "nothing was refused".to_owned()
            } else {
                format!("code {code} is not out-of-memory")
            },
        ),
        (bytes <= LIMIT, format!("{} were given", mib(bytes))),
        (taken <= LIMIT + SLACK, format!("the card holds {}", mib(taken))),
        (booked <= LIMIT, format!("{} are accounted", mib(booked))),
        (!refused || full, "refused, though there was room for more".to_owned()),
        (!refused || answered("untouched", 1), "the refused call wrote into its out-parameter".to_owned()),
        (!refused || answered("again", 0), "what was given back could not be had again".to_owned()),
        (freed, "a free failed".to_owned()),
    ];
    Ok(Outcome::of(text, promises))
}

/// Several processes of one grant, together.
fn together(bench: &Bench, side: Side, context: u64) -> Result<Outcome, Trouble> {
    const PROCESSES: u64 = 3;
    let (tenant, files): (Tenant, GrantFiles) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
    let before = bench.settled()?;
    // Contexts are in the limit, too: two processes leave the third room for its own, and all together want more than there is.
    let most = ((LIMIT + BEYOND / 2) / PROCESSES).saturating_sub(context) / CHUNK;
    let words = ["fill", "plain", &CHUNK.to_string(), &most.to_string()];
    let running =
        (0..PROCESSES).map(|_| bench.start(side, &tenant, &words)).collect::<Result<Vec<_>, _>>()?;
    let taken = more(bench, before)?;
    let booked = files.counter(usage::TOTAL);
    let counts = running.iter().map(|(_, said)| said.number("count")).sum::<Result<u64, _>>()?;
    running.into_iter().map(|(program, _)| Program::ended(program)).collect::<Result<Vec<_>, _>>()?;
    undisturbed(bench, before)?;
    let bytes = counts * CHUNK;
    let text = format!(
        "{} given to {PROCESSES} processes, {} on the card, {} accounted",
        mib(bytes),
        mib(taken),
        mib(booked)
    );
    let promises = [
        (bytes <= LIMIT && booked <= LIMIT, format!("{} are accounted", mib(booked))),
        (taken <= LIMIT + 2 * SLACK, format!("the card holds {}", mib(taken))),
        (
            side == Side::Bare || booked + 2 * CHUNK > LIMIT,
            "refused, though there was room for more".to_owned(),
        ),
    ];
    Ok(Outcome::of(text, promises))
}

fn stops(bench: &Bench, page: &mut Page, family: &Family) {
    let what = format!("{}: stops at {}", family.name, mib(LIMIT));
    if bench.left() < TAKES {
        return page.late(&what);
    }
    match each(bench, family) {
        Ok(each) => page.check(bench, &what, TAKES, |side| fill(bench, side, family, each)),
        Err(trouble) => page.trouble(&what, &trouble),
    }
}

/// The limit is held in the first families, which need nothing of a newer driver.
pub(crate) fn held_in_short(bench: &Bench, page: &mut Page) {
    FAMILIES.iter().take(3).for_each(|family| stops(bench, page, family));
}

/// The limit is held.
pub(crate) fn held(bench: &Bench, page: &mut Page) {
    FAMILIES.iter().for_each(|family| stops(bench, page, family));
    let what = "three processes of one grant together";
    if bench.facts.mode == Mode::Exclusive {
        return page.aside(what, "the compute mode lets one process at a time use the card");
    }
    match overhead(bench) {
        Ok(context) => page.check(bench, what, TAKES, |side| together(bench, side, context)),
        Err(trouble) => page.trouble(what, &trouble),
    }
}

/// The calls of the libraries tell the grant.
pub(crate) fn agreed(bench: &Bench, page: &mut Page) {
    page.check(bench, "cuMemGetInfo, cuDeviceTotalMem and NVML agree on the grant", TAKES, |side| {
        let (tenant, _files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
        let told = bench.probe(side, &tenant, &["report"])?;
        let totals = ["info_total", "device_total", "nvml_total", "nvml2_total"];
        // NVML is not everywhere, and the second form of its answer not in every driver.
        let totals: Vec<u64> = totals.iter().filter_map(|key| told.number(key).ok()).collect();
        let free = told.number("info_free")?;
        let text = totals.iter().map(|total| mib(*total)).collect::<Vec<_>>().join(", ");
        let agree = totals.len() > 1 && totals.iter().all(|total| *total == LIMIT);
        let promises = [
            (agree, format!("not all of them tell {}", mib(LIMIT))),
            (free <= LIMIT, format!("free are {}", mib(free))),
        ];
        Ok(Outcome::of(format!("totals {text}, free {}", mib(free)), promises))
    });
}

/// Every process reports the grant.
pub(crate) fn told(bench: &Bench, page: &mut Page) {
    agreed(bench, page);
    let what = "nvidia-smi shows the grant";
    if bench.facts.is_part {
        return page.aside(what, "its query is about whole cards, and this is an instance of one");
    }
    page.check(bench, what, TAKES, |side| {
        let (tenant, _files) = Tenant::with(&memory_limit(&bench.facts.uuid, LIMIT));
        let mut command = bench.command(side, &tenant, "nvidia-smi");
        command.args(["--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", &bench.facts.uuid]);
        let ended = bench.program(&mut command, Duration::from_secs(20))?.end()?;
        let said = ended.text.trim().to_owned();
        if !ended.status.success() {
            let why = format!("nvidia-smi: {}: {said} {}", ended.status, ended.complaint);
            // What it cannot do without the shim is not the shim's matter.
            return Err(if side == Side::Bare { Trouble::Aside(why) } else { Trouble::Failed(why) });
        }
        let right = said == (LIMIT >> 20).to_string();
        Ok(Outcome::of(format!("{said} MiB"), [(right, format!("it is not {}", mib(LIMIT)))]))
    });
}
