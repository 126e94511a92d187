//! Compute: the share that a tenant really gets, by the work it gets done.
//!
//! A kernel here is a fixed amount of work, whose time on an idle card is measured first. Work done, times that time, by the
//! clock, is the share; it is the same number whoever took turns with the process, which a kernel that spins for a time
//! would not show.

use crate::card::{Bench, Said};
use crate::check::{Outcome, Page, Side};
use crate::governor::Governor;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{Tenant, unlimited};

/// Most that a share may be off, in parts of the card.
const OFF_MAX: f64 = 0.03;
/// The same, where tenants take turns on the card.
const OFF_TOGETHER_MAX: f64 = 0.05;

/// What the kernels of one measurement are like.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    nanos: u64,
    blocks: u32,
    how: &'static str,
    /// Kernels between two looks at the clock.
    batch: u32,
}

const SHAPES: [Shape; 7] = [
    Shape { name: "10 µs, 1 block", nanos: 10_000, blocks: 1, how: "plain", batch: 100 },
    Shape { name: "100 µs, 132 blocks", nanos: 100_000, blocks: 132, how: "plain", batch: 20 },
    Shape { name: "1 ms, 10⁶ blocks", nanos: 1_000_000, blocks: 1_000_000, how: "plain", batch: 4 },
    Shape { name: "50 ms, 2,000 blocks", nanos: 50_000_000, blocks: 2_000, how: "plain", batch: 1 },
    Shape { name: "1 s, 132 blocks", nanos: 1_000_000_000, blocks: 132, how: "plain", batch: 1 },
    Shape { name: "graphs of 10 × 100 µs", nanos: 100_000, blocks: 132, how: "graph", batch: 10 },
    Shape { name: "4 streams, 200 µs", nanos: 200_000, blocks: 132, how: "streams", batch: 8 },
];
const SHARES: [u32; 3] = [10, 25, 60];

fn capped(bench: &Bench, percent: u32) -> Limits {
    let ppm = percent * 10_000;
    Limits { share_ppm: ppm, granted_ppm: ppm, policy: ComputePolicy::Cap, ..unlimited(&bench.facts.uuid) }
}

/// The part of the card's time that the counted work took.
fn share(said: &Said, nanos: f64) -> Result<f64, String> {
    let whole = said.rows("whole");
    match whole.first().map(Vec::as_slice) {
        Some([count, clock]) if *clock > 0.0 => Ok(count * nanos / clock),
        _ => Err("the probe counted nothing".to_owned()),
    }
}

/// The greatest distance of a window of half a second from the share; `None` where kernels are too long for windows to tell.
fn worst(said: &Said, nanos: f64, wanted: f64) -> Option<f64> {
    let windows = said.rows("window").into_iter().filter_map(|row| match row[..] {
        [count, clock] if clock > 0.0 && nanos < clock / 50.0 => Some((count * nanos / clock - wanted).abs()),
        _ => None,
    });
    // The first window holds what may be used at once, before any limit takes hold.
    windows.skip(1).reduce(f64::max)
}

fn words(shape: Shape, units: u64, seconds: f64) -> [String; 6] {
    let batch = shape.batch.to_string();
    ["spin".into(), units.to_string(), shape.blocks.to_string(), shape.how.into(), batch, seconds.to_string()]
}

/// Whether this share is measured with this shape.
fn is_asked(bench: &Bench, shape: Shape, percent: u32) -> bool {
    // Long kernels need long measurements: at a tenth, a kernel of a second comes every ten.
    let short = shape.nanos < 500_000_000;
    if bench.few { percent == 25 } else { short || percent > 20 }
}

/// One tenant with a capped share, every shape of kernels.
///
/// # Errors
/// A program could not be run.
pub(crate) fn alone(bench: &Bench, page: &mut Page, seconds: f64) -> Result<(), String> {
    let shapes = if bench.few { &SHAPES[1..2] } else { &SHAPES[..] };
    for shape in shapes.iter().copied() {
        let (units, nanos) = bench.calibrate(shape.nanos, shape.blocks)?;
        for percent in SHARES.into_iter().filter(|percent| is_asked(bench, shape, *percent)) {
            let wanted = f64::from(percent) / 100.0;
            let seconds = seconds.max(12.0 * nanos / 1e9 / wanted);
            let words = words(shape, units, seconds);
            let words = words.each_ref().map(String::as_str);
            page.check("Share of one tenant", &format!("{percent} %, {}", shape.name), |side| {
                let (tenant, _files) = Tenant::with(&capped(bench, percent));
                let said = bench.start(side, &tenant, &words)?.ended()?;
                let (got, off) = (share(&said, nanos)?, worst(&said, nanos, wanted));
                let holds = (got - wanted).abs() <= OFF_MAX && off.is_none_or(|off| off <= OFF_MAX);
                let window =
                    off.map_or(String::new(), |off| format!(", worst window {:.1} off", off * 100.0));
                Ok(Outcome { said: format!("{:.1} %{window}", got * 100.0), holds })
            })?;
        }
    }
    Ok(())
}

/// Several tenants that all want more than their shares, side by side.
fn side_by_side(
    bench: &Bench,
    side: Side,
    percents: &[u32],
    shape: Shape,
    seconds: f64,
) -> Result<Outcome, String> {
    let (units, nanos) = bench.calibrate(shape.nanos, shape.blocks)?;
    let words = words(shape, units, seconds);
    let words = words.each_ref().map(String::as_str);
    let tenants: Vec<_> = percents.iter().map(|percent| Tenant::with(&capped(bench, *percent))).collect();
    let governor =
        (side == Side::Shim).then(|| Governor::over(tenants.iter().map(|(_, files)| files))).transpose()?;
    let mut running =
        tenants.iter().map(|(tenant, _)| bench.start(side, tenant, &words)).collect::<Result<Vec<_>, _>>()?;
    running.iter_mut().for_each(crate::card::Running::go);
    let said = running.into_iter().map(crate::card::Running::ended).collect::<Result<Vec<_>, _>>()?;
    drop(governor);
    let got = said.iter().map(|said| share(said, nanos)).collect::<Result<Vec<_>, _>>()?;
    let off = |(got, wanted): (&f64, &u32)| (got - f64::from(*wanted) / 100.0).abs();
    let holds = got.iter().zip(percents).map(off).all(|off| off <= OFF_TOGETHER_MAX);
    let text = got.iter().map(|got| format!("{:.1} %", got * 100.0)).collect::<Vec<_>>().join(", ");
    Ok(Outcome { said: text, holds })
}

/// Tenants that share the card.
///
/// # Errors
/// A program could not be run.
pub(crate) fn together(bench: &Bench, page: &mut Page, seconds: f64) -> Result<(), String> {
    for percents in [&[25, 75][..], &[10, 30, 60]] {
        for shape in [SHAPES[1], SHAPES[3], SHAPES[5]].into_iter().take(if bench.few { 1 } else { 3 }) {
            let what = format!("{percents:?} %, {}", shape.name);
            page.check("Shares of tenants side by side", &what, |side| {
                side_by_side(bench, side, percents, shape, seconds * 2.0)
            })?;
        }
    }
    Ok(())
}
