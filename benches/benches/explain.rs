//! What an explanation costs, and how the cost grows with nodes and held claims.
//!
//! Nodes have 8 H100, layout `dynamic`: 26 devices and a counter set for each card. Every card is held whole, so ten
//! pending claims, no two alike, have no place. Each is explained as `aliquot explain` does it: the first five nodes
//! device by device, and a change that would place it.
//!
//! The whole command `aliquot explain` is measured as well, from a YAML file of the claims to the printed answer.
//!
//! Times are of the processor, in one thread. Growth is the exponent between two sizes, 1 being linear.

use std::process::ExitCode;

use aliquot_benches::command::of_claims;
use aliquot_benches::fleet::{Ask, Fleet, H100_CARDS, H100_NODE, claim};
use aliquot_benches::measure::{Effort, Spread, computed, exponent};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_core::allocate::{Candidates, NodesExplained};
use aliquot_core::dra::ResourceClaim;
use aliquot_core::offer::LayoutKind;

/// Where growth is looked at.
const SIZES: [usize; 3] = [1_250, 2_500, 5_000];
/// Nodes that the command shows.
const SHOWN: NodesExplained = NodesExplained::First(5);
/// What passes for linear: caches get colder as the data grows.
const LINEAR: f64 = 1.2;
/// Seconds of the largest size: making the world, holding, and explaining ten.
const SECONDS: f64 = 5.0;
/// Most that explaining ten costs beside making the world and holding: a ratio is the same on any machine.
const BESIDE_MAKING: f64 = 1.0;

#[derive(Clone, Copy)]
struct Cost {
    /// Making the world and holding a claim a card.
    making: f64,
    explaining: f64,
}

/// Whole cards, partitions, shares, and a share of a kind that no card has.
fn pending(first: usize) -> Vec<ResourceClaim> {
    let asks = (0..10).map(|number| match number {
        0 => Ask::Card,
        1 => Ask::Partition,
        2 => Ask::Share,
        9 => Ask::Memory(90_000),
        more => Ask::Memory(more * 4_096),
    });
    asks.enumerate().map(|(number, ask)| claim(first + number, ask)).collect()
}

fn measure(nodes: usize) -> Result<Cost, String> {
    let fleet = Fleet::of(H100_NODE, LayoutKind::Dynamic, nodes)?;
    let cards = nodes * H100_CARDS;
    let (world, making) = computed(|| {
        let mut world = fleet.world()?;
        for number in 0..cards {
            let held = claim(number, Ask::Card);
            let (_, results) = world
                .place(std::slice::from_ref(&held), Candidates::All)
                .map_err(|refusal| refusal.to_string())?;
            let result = results.first().ok_or("an allocation is missing")?;
            world.hold_as(&held, result).map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(world)
    });
    let mut world = world?;
    let pending = pending(cards);
    let (explained, explaining) = computed(|| {
        let explain =
            |claim: &ResourceClaim| world.explain(std::slice::from_ref(claim), Candidates::All, SHOWN);
        pending.iter().map(explain).collect::<Vec<_>>()
    });
    if let Some(placed) = explained.iter().position(|explanation| explanation.outcome.is_ok()) {
        return Err(format!("pending claim {placed} has a place on a full cluster"));
    }
    if explained[..9].iter().any(|explanation| explanation.remedy.is_none()) {
        return Err("a change that places a pending claim was not found".to_owned());
    }
    Ok(Cost { making, explaining })
}

/// `aliquot explain -f claims.yaml --node 8xh100*N`: a claim of a card each that finds one, then the ten.
fn command(nodes: usize, rounds: usize) -> Result<Spread, String> {
    let cards = nodes * H100_CARDS;
    let mut claims: Vec<ResourceClaim> = (0..cards).map(|number| claim(number, Ask::Card)).collect();
    claims.extend(pending(cards));
    let (spread, said) = of_claims("explain", &claims, &["--node", &format!("8xh100*{nodes}")], rounds)?;
    let remedies = said.matches("It would fit if you").count();
    if remedies == 9 { Ok(spread) } else { Err(format!("found {remedies} changes, expected 9:\n{said}")) }
}

fn run(effort: Effort) -> Result<ExitCode, String> {
    let mut report = Report::new("What an explanation costs, and how it grows", effort);
    let sizes = effort.pick(&SIZES[..], &[4, 8]);
    let mut costs = Vec::new();
    for nodes in sizes {
        let rounds = effort.pick(3, 1);
        let command = command(*nodes, rounds)?;
        let rounds = (0..rounds).map(|_| measure(*nodes)).collect::<Result<Vec<_>, _>>()?;
        let spread = |of: fn(&Cost) -> f64| {
            Spread::of(&rounds.iter().map(of).collect::<Vec<_>>()).ok_or("nothing was measured")
        };
        costs.push((*nodes, spread(|cost| cost.making)?, spread(|cost| cost.explaining)?, command));
    }
    let rows: Vec<[String; 5]> = costs
        .iter()
        .map(|(nodes, making, explaining, command)| {
            let claims = (nodes * H100_CARDS).to_string();
            let [making, explaining, command] =
                [making, explaining, command].map(|s| s.times(1e3).to_string());
            [nodes.to_string(), claims, making, explaining, command]
        })
        .collect();
    report.table(
        "Ten pending claims on a full cluster, CPU ms: lowest / median / highest.",
        [
            "nodes",
            "held claims",
            "making the world and holding",
            "explaining ten",
            "the command `aliquot explain`",
        ],
        &rows,
    );
    if let [(fewest, made, cheapest, begun), .., (most, making, dearest, command)] = costs.as_slice() {
        let sizes = (*fewest as f64, *most as f64);
        let mut growth = |what: &str, costs: (&Spread, &Spread)| {
            let what = format!("exponent of {what}, {fewest} to {most} nodes with their claims");
            report.promise(what, exponent(sizes, (costs.0.min, costs.1.min)), Promise::AtMost(LINEAR));
        };
        growth("explaining", (cheapest, dearest));
        growth("making the world and holding", (made, making));
        growth("the command", (begun, command));
        let ratio = dearest.min / making.min;
        report.promise("explaining ten beside making", ratio, Promise::AtMost(BESIDE_MAKING));
        let seconds = making.min + dearest.min;
        report.promise(format!("seconds of {most} nodes and ten claims"), seconds, Promise::AtMost(SECONDS));
    }
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run(Effort::from_args()))
}
