//! Compute: the share that a tenant really gets, by the work it gets done.
//!
//! A kernel here is a fixed amount of work. Its rate without the shim and without other tenants, launched in
//! the same way, is the whole card; a tenant's rate is its share of that. The whole card is measured right
//! before each tenant and right after it, as clocks go up and down with the card's recent work. If the two
//! differ, the tenant's measurement is inconclusive.

use crate::card::{Bench, Mode};
use crate::check::{Outcome, Page, Side};
use crate::governor::Governor;
use crate::program::{Program, Said, Trouble};
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{Tenant, unlimited};
use std::time::Duration;

/// Most that a share may be off, in parts of the card.
const OFF_MAX: f64 = 0.03;
/// The same, where tenants take turns on the card.
const OFF_TOGETHER_MAX: f64 = 0.05;
/// Most that the whole card may be faster or slower after a tenant than before it, in parts of it.
const DRIFT_MAX: f64 = 0.03;
/// How often a row is tried while the card is not the same before and after.
const TRIES: usize = 2;
/// Seconds of a measurement of the whole card, of one of its windows, and of the work before it that gets the clocks up.
const WHOLE: (f64, f64, f64) = (0.8, 0.1, 0.3);
/// Seconds of a window of a share.
const WINDOW: f64 = 0.5;
/// Seconds that a process needs beside what it measures: the driver's start, a context, the kernel.
const START: f64 = 0.7;
/// Kernels that a measurement holds at least.
const KERNELS_MIN: f64 = 12.0;

/// Blocks of a kernel.
#[derive(Clone, Copy, Debug)]
enum Blocks {
    /// So many.
    Number(u32),
    /// So many on each multiprocessor.
    Each(u32),
    /// As many as the card holds at once, of the most threads a block can have.
    Full,
}

/// What the kernels of one measurement are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    name: &'static str,
    nanos: u64,
    blocks: Blocks,
    how: &'static str,
    /// Kernels between two reads of the clock.
    batch: u32,
}

/// The smallest.
pub(crate) const ONE_BLOCK: Shape =
    Shape { name: "10 µs, 1 block", nanos: 10_000, blocks: Blocks::Number(1), how: "plain", batch: 100 };
const SMALL: Shape = Shape {
    name: "100 µs, 1 block a multiprocessor",
    nanos: 100_000,
    blocks: Blocks::Each(1),
    how: "plain",
    batch: 20,
};
const LONG: Shape = Shape {
    name: "50 ms, 15 blocks a multiprocessor",
    nanos: 50_000_000,
    blocks: Blocks::Each(15),
    how: "plain",
    batch: 1,
};
const GRAPH: Shape = Shape { name: "graphs of 10 × 100 µs", how: "graph", batch: 10, ..SMALL };
const MANY: Shape = Shape {
    name: "10⁶ blocks, 4 ms",
    nanos: 4_000_000,
    blocks: Blocks::Number(1_000_000),
    how: "plain",
    batch: 2,
};
const STREAMS: Shape = Shape {
    name: "4 streams, 200 µs, side by side",
    nanos: 200_000,
    blocks: Blocks::Each(1),
    how: "streams",
    batch: 8,
};
const FULL_STREAMS: Shape =
    Shape { name: "4 streams, 200 µs, full blocks", blocks: Blocks::Full, ..STREAMS };
const SECOND: Shape = Shape {
    name: "1 s, 1 block a multiprocessor",
    nanos: 1_000_000_000,
    blocks: Blocks::Each(1),
    how: "plain",
    batch: 1,
};

/// In the order in which they are worth their time.
const SHAPES: [Shape; 8] = [SMALL, ONE_BLOCK, FULL_STREAMS, GRAPH, LONG, STREAMS, MANY, SECOND];
const SHARES: [u32; 3] = [25, 10, 60];

/// Kernels a nanosecond: how fast work gets done, and the length of one kernel in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Rate(f64);

impl Shape {
    fn grid(self, bench: &Bench) -> (u32, u32) {
        let facts = &bench.facts;
        match self.blocks {
            Blocks::Number(number) => (number, 32),
            Blocks::Each(number) => (number.saturating_mul(facts.processors), 32),
            Blocks::Full => ((facts.threads / 1024).max(1).saturating_mul(facts.processors), 1024),
        }
    }

    /// The probe's words: seconds of all, of a window, and of work before.
    pub(crate) fn words(
        self,
        bench: &Bench,
        units: u64,
        seconds: f64,
        window: f64,
        warm: f64,
    ) -> [String; 9] {
        let (blocks, threads) = self.grid(bench);
        let [units, blocks, threads, batch] =
            [units, blocks.into(), threads.into(), self.batch.into()].map(|number: u64| number.to_string());
        let times = [seconds, window, warm].map(|seconds| seconds.to_string());
        let [seconds, window, warm] = times;
        ["spin".to_owned(), units, blocks, threads, self.how.to_owned(), batch, seconds, window, warm]
    }

    fn seconds(self) -> f64 {
        self.nanos as f64 / 1e9
    }
}

/// Units of work of a kernel of this shape, found out by the card.
///
/// # Errors
/// The probe failed, or lengths do not settle.
pub(crate) fn calibrated(bench: &Bench, shape: Shape) -> Result<u64, Trouble> {
    if bench.plan.simulated {
        return Ok(shape.nanos);
    }
    let (blocks, threads) = shape.grid(bench);
    let words = ["calibrate", &shape.nanos.to_string(), &blocks.to_string(), &threads.to_string()];
    bench.probe(Side::Bare, &Tenant::new(), &words)?.number("units")
}

fn capped(bench: &Bench, percent: u32) -> Limits {
    let ppm = percent * 10_000;
    Limits { share_ppm: ppm, granted_ppm: ppm, policy: ComputePolicy::Cap, ..unlimited(&bench.facts.uuid) }
}

fn counted(row: &[f64]) -> Option<Rate> {
    match row {
        [count, clock] if *clock > 0.0 && *count > 0.0 => Some(Rate(count / clock)),
        _ => None,
    }
}

/// How fast a process was, over all.
fn overall(said: &Said) -> Result<Rate, Trouble> {
    let whole = said.rows("whole").first().and_then(|row| counted(row));
    whole.ok_or_else(|| Trouble::Failed("the probe counted nothing".to_owned()))
}

/// How fast the whole card is: the middle one of its windows, as a single stop of the process says nothing about the card.
fn whole(bench: &Bench, shape: Shape, units: u64) -> Result<Rate, Trouble> {
    let words = shape.words(bench, units, WHOLE.0.max(3.0 * shape.seconds()), WHOLE.1, WHOLE.2);
    let said = bench.start(Side::Bare, &Tenant::new(), &words.each_ref().map(String::as_str))?.0.ended()?;
    let mut rates: Vec<f64> =
        said.rows("window").iter().filter_map(|row| counted(row)).map(|rate| rate.0).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).map_or_else(|| overall(&said), |rate| Ok(Rate(*rate)))
}

/// The greatest distance of a window from the share; `None` where kernels are too long for windows to tell.
fn worst(said: &Said, card: Rate, wanted: f64) -> Option<f64> {
    let windows = said.rows("window").into_iter().filter_map(|row| match row[..] {
        [count, clock] if clock > 0.0 && clock * card.0 >= 50.0 => {
            Some((count / clock / card.0 - wanted).abs())
        }
        _ => None,
    });
    // The first window holds what may be used at once, before any limit takes hold.
    windows.skip(1).reduce(f64::max)
}

/// The card's rates before and after, put together; or how much they differ. A simulated card has the speed
/// it is set to.
fn steady(bench: &Bench, units: u64, before: Rate, after: Rate) -> Result<Rate, Trouble> {
    if bench.plan.simulated {
        return Ok(Rate(1.0 / units as f64));
    }
    let middle = f64::midpoint(before.0, after.0);
    let drift = (after.0 - before.0).abs() / middle;
    if drift <= DRIFT_MAX {
        return Ok(Rate(middle));
    }
    let why = "clocks, temperature, or another program on it";
    Err(Trouble::Disturbed(format!(
        "without the shim the card's own speed differed by {:.1} % before and after ({why})",
        drift * 100.0
    )))
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn judged(said: &Said, card: Rate, wanted: f64) -> Result<Outcome, Trouble> {
    let got = overall(said)?.0 / card.0;
    let off = worst(said, card, wanted);
    let window = off.map_or(String::new(), |off| format!(", worst window {:.1} points off", off * 100.0));
    let promises = [
        ((got - wanted).abs() <= OFF_MAX, format!("{} instead of {}", percent(got), percent(wanted))),
        (
            off.is_none_or(|off| off <= OFF_MAX),
            format!("a window is {:.1} points off", off.unwrap_or(0.0) * 100.0),
        ),
    ];
    Ok(Outcome::of(format!("{}{window}", percent(got)), promises))
}

/// One row: the tenant between two measurements of the whole card. What the second of them found stays in `card`.
fn row(
    bench: &Bench,
    page: &mut Page,
    shape: Shape,
    units: u64,
    asked: u32,
    card: &mut Rate,
) -> Result<(), Trouble> {
    let (wanted, what) = (f64::from(asked) / 100.0, format!("{asked} %, {}", shape.name));
    let seconds = bench.plan.seconds.max(KERNELS_MIN * shape.seconds() / wanted);
    let takes = Duration::from_secs_f64(seconds + WHOLE.0.max(3.0 * shape.seconds()) + WHOLE.2 + 2.0 * START);
    let words = shape.words(bench, units, seconds, WINDOW, 0.0);
    let words = words.each_ref().map(String::as_str);
    for tried in 1.. {
        if bench.left() < takes {
            page.late(&what);
            break;
        }
        let (tenant, _files) = Tenant::with(&capped(bench, asked));
        let said = bench.start(Side::Shim, &tenant, &words).and_then(|(program, _)| program.ended());
        let before = std::mem::replace(card, whole(bench, shape, units)?);
        let rate = steady(bench, units, before, *card);
        if rate.is_err() && tried < TRIES {
            continue;
        }
        let shim = said.and_then(|said| judged(&said, rate.as_ref().map_or(*card, |rate| *rate), wanted));
        let bare = rate.map(|rate| {
            let share = card.0 / if bench.plan.simulated { rate.0 } else { before.0 };
            let fault = ((share - wanted).abs() > OFF_MAX).then(|| percent(share));
            Outcome { said: percent(share), faults: fault.into_iter().collect() }
        });
        page.verdict(&what, &shim, &bare);
        break;
    }
    Ok(())
}

/// One tenant with a capped share, every shape of kernels.
pub(crate) fn alone(bench: &Bench, page: &mut Page) {
    let few = bench.plan.few;
    let (shapes, shares) = if few { (&SHAPES[..1], &SHARES[..1]) } else { (&SHAPES[..], &SHARES[..]) };
    of_shapes(bench, page, shapes, shares);
}

/// The same with one shape and share.
pub(crate) fn alone_in_short(bench: &Bench, page: &mut Page) {
    of_shapes(bench, page, &SHAPES[..1], &SHARES[..1]);
}

fn of_shapes(bench: &Bench, page: &mut Page, shapes: &[Shape], shares: &[u32]) {
    for shape in shapes.iter().copied() {
        // Long kernels need long measurements: at a tenth, a kernel of a second comes every ten.
        let shares = shares.iter().copied().filter(|asked| shape.seconds() < 0.5 || *asked == 60);
        let rows = || -> Result<(), Trouble> {
            let units = calibrated(bench, shape)?;
            let mut card = whole(bench, shape, units)?;
            shares.clone().try_for_each(|asked| row(bench, page, shape, units, asked, &mut card))
        };
        if bench.left() < Duration::from_secs(8) {
            page.late(shape.name);
        } else if let Err(trouble) = { rows }() {
            page.trouble(shape.name, &trouble);
        }
    }
}

/// Several tenants that all want more than their shares, side by side.
fn side_by_side(bench: &Bench, side: Side, percents: &[u32], words: &[&str]) -> Result<Vec<Rate>, Trouble> {
    let tenants: Vec<_> = percents.iter().map(|percent| Tenant::with(&capped(bench, *percent))).collect();
    let governor =
        (side == Side::Shim).then(|| Governor::over(tenants.iter().map(|(_, files)| files))).transpose();
    let governor = governor.map_err(Trouble::Failed)?;
    let mut running = tenants
        .iter()
        .map(|(tenant, _)| Ok(bench.start(side, tenant, words)?.0))
        .collect::<Result<Vec<_>, Trouble>>()?;
    running.iter_mut().for_each(Program::go);
    let said = running.into_iter().map(Program::ended).collect::<Result<Vec<_>, _>>()?;
    drop(governor);
    said.iter().map(overall).collect()
}

/// Whether each tenant has its part of what all did, and all did as much as without the shim (`bare`). A card that changes between
/// processes does less than for one alone, whatever divides it.
fn shared(got: &[Rate], bare: &[Rate], percents: &[u32], card: Rate) -> Outcome {
    let sum = |rates: &[Rate]| rates.iter().map(|rate| rate.0).sum::<f64>();
    let list = |whole: f64| got.iter().map(|rate| percent(rate.0 / whole)).collect::<Vec<_>>().join(", ");
    let all = sum(got);
    let lost = (sum(bare) - all) / card.0;
    let parts = got.iter().zip(percents).map(|(rate, asked)| {
        let part = rate.0 / all;
        let is_near = (part - f64::from(*asked) / 100.0).abs() <= OFF_TOGETHER_MAX;
        (is_near, format!("{} of what all did instead of {asked} %", percent(part)))
    });
    let less = (
        lost <= OFF_TOGETHER_MAX,
        format!("all did {:.1} points of the card less than without the shim", lost * 100.0),
    );
    Outcome::of(format!("{}; of what all did {}", list(card.0), list(all)), parts.chain([less]))
}

fn pair(bench: &Bench, shape: Shape, percents: &[u32]) -> Result<[Result<Outcome, Trouble>; 2], Trouble> {
    let units = calibrated(bench, shape)?;
    let seconds = bench.plan.seconds.max(KERNELS_MIN * shape.seconds() / 0.1);
    let words = shape.words(bench, units, seconds, WINDOW, 0.0);
    let words = words.each_ref().map(String::as_str);
    let before = whole(bench, shape, units)?;
    // A failure of the shim's side is said whatever becomes of the rest.
    let shim = side_by_side(bench, Side::Shim, percents, &words)?;
    let bare = side_by_side(bench, Side::Bare, percents, &words)?;
    let card = steady(bench, units, before, whole(bench, shape, units)?)?;
    Ok([&shim, &bare].map(|got| Ok(shared(got, &bare, percents, card))))
}

/// Tenants that share the card.
pub(crate) fn together(bench: &Bench, page: &mut Page) {
    let shapes = [SMALL, LONG, GRAPH].into_iter().take(if bench.plan.few { 1 } else { 3 });
    let cases = shapes.flat_map(|shape| [(shape, &[25, 75][..]), (shape, &[10, 30, 60])]);
    for (shape, percents) in cases {
        let what = format!("{percents:?} %, {}", shape.name);
        if bench.facts.mode == Mode::Exclusive {
            page.aside(&what, "the compute mode lets one process at a time use the card");
        } else if bench.facts.is_served {
            page.aside(&what, "MPS is on: kernels of several processes run at the same time, and there is no share of its time");
        } else if bench.left() < Duration::from_secs_f64(2.0 * bench.plan.seconds + 5.0) {
            page.late(&what);
        } else {
            match pair(bench, shape, percents) {
                Ok([shim, bare]) => page.verdict(&what, &shim, &bare),
                Err(trouble) => page.trouble(&what, &trouble),
            }
        }
    }
}
