//! What a plan costs, and how the cost grows with cards and claims.
//!
//! Cards are H100 in nodes of 8, layout `dynamic`: 26 devices and a counter set for each card. Two claims of three ask
//! for a share, one for a `1g.10gb`; of the claims that do not fit a few too many have no place on any node. Three
//! things are measured: placing alone (the world is there), making the world and placing, and the whole command
//! `aliquot plan`, from a YAML file of claims to the printed answer.
//!
//! Times are of the processor, in one thread: what a clock shows on a quiet machine.
//!
//! Growth is the exponent between two sizes, 1 being linear: of placing alone, in claims with the cards fixed and in
//! cards with the claims fixed, and of making the world in cards.

use std::process::ExitCode;

use aliquot_benches::command::of_claims;
use aliquot_benches::fleet::{Ask, Fleet, H100_CARDS, H100_NODE, claim};
use aliquot_benches::measure::{Effort, Spread, computed, exponent, figures};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_core::allocate::{Candidates, World};
use aliquot_core::dra::ResourceClaim;
use aliquot_core::offer::LayoutKind;

/// The plan that is promised in a second: cards and claims.
const PROMISED: (usize, usize) = (1_000, 10_000);
/// Where growth is looked at: cards and claims.
const SIZES: [(usize, usize); 6] =
    [(1_000, 1_000), (1_000, 10_000), (10_000, 1_000), (10_000, 10_000), (10_000, 30_000), (10_000, 100_000)];
/// What passes for linear: caches get colder as the data grows.
const LINEAR: f64 = 1.2;

/// Lowest seconds of the rounds.
#[derive(Clone, Copy)]
struct Cost {
    world: Spread,
    placing: Spread,
    placed: usize,
}

fn claims(count: usize) -> Vec<ResourceClaim> {
    (0..count).map(|n| claim(n, if n % 3 == 2 { Ask::Partition } else { Ask::Share })).collect()
}

/// Each claim on the first node that can have it; what is placed is held.
fn place_all(world: &mut World, claims: &mut [ResourceClaim]) -> Result<usize, String> {
    let mut placed = 0;
    for claim in claims {
        if let Ok((_, mut results)) = world.place(std::slice::from_ref(claim), Candidates::All) {
            claim.allocation = results.pop();
            world.hold(claim).map_err(|error| error.to_string())?;
            placed += 1;
        }
    }
    Ok(placed)
}

fn measure(cards: usize, claims_count: usize, rounds: usize) -> Result<Cost, String> {
    let fleet = Fleet::of(H100_NODE, LayoutKind::Dynamic, cards / H100_CARDS)?;
    let claims = claims(claims_count);
    let (mut making, mut placing, mut placed) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        let (copy, mut asked) = (fleet.clone(), claims.clone());
        let (world, seconds) = computed(|| copy.world());
        making.push(seconds);
        let mut world = world?;
        let (outcome, seconds) = computed(|| place_all(&mut world, &mut asked));
        placing.push(seconds);
        placed = outcome?;
    }
    let spread = |samples: &[f64]| Spread::of(samples).ok_or("nothing was measured");
    Ok(Cost { world: spread(&making)?, placing: spread(&placing)?, placed })
}

/// `aliquot plan -f claims.yaml --node 8xh100*N` in this process: its seconds.
fn command(cards: usize, claims_count: usize, rounds: usize) -> Result<Spread, String> {
    // Without a policy every card is `auto`, which is `dynamic` for these cards.
    let node = format!("8xh100*{}", cards / H100_CARDS);
    let (spread, _) = of_claims("plan", &claims(claims_count), &["--node", &node], rounds)?;
    Ok(spread)
}

fn promised(report: &mut Report, effort: Effort) -> Result<(), String> {
    let (cards, claims) = effort.pick(PROMISED, (16, 100));
    let rounds = effort.pick(7, 1);
    let cost = measure(cards, claims, rounds)?;
    let whole = command(cards, claims, rounds)?;
    let row = |what: &str, seconds: Spread| [what.to_owned(), seconds.times(1e3).to_string()];
    let rows = [
        row("making the world", cost.world),
        row("placing and holding", cost.placing),
        row("the command `aliquot plan`, YAML to table", whole),
    ];
    let placed = cost.placed;
    report.table(
        &format!(
            "A plan of {cards} cards and {claims} claims, {placed} of them placed: lowest / median / highest."
        ),
        ["what", "CPU ms"],
        &rows,
    );
    let both = cost.world.min + cost.placing.min;
    report.promise(format!("seconds of {cards} cards × {claims} claims"), both, Promise::AtMost(1.0));
    report.promise(format!("seconds of aliquot plan, {cards} × {claims}"), whole.min, Promise::AtMost(1.0));
    Ok(())
}

fn growth(report: &mut Report, effort: Effort) -> Result<(), String> {
    let sizes = effort.pick(&SIZES[..], &[(16, 50), (32, 50), (32, 100)]);
    let mut costs = Vec::new();
    for size in sizes {
        costs.push((*size, measure(size.0, size.1, effort.pick(3, 1))?));
    }
    let rows: Vec<[String; 6]> = costs
        .iter()
        .map(|((cards, claims), cost)| {
            [
                cards.to_string(),
                claims.to_string(),
                cost.placed.to_string(),
                cost.world.times(1e3).to_string(),
                cost.placing.times(1e3).to_string(),
                figures(cost.placing.min * 1e6 / *claims as f64),
            ]
        })
        .collect();
    report.table(
        "Growth: times are lowest / median / highest.",
        ["cards", "claims", "placed", "making the world, CPU ms", "placing, CPU ms", "µs a claim"],
        &rows,
    );
    for (from, to) in costs.iter().flat_map(|from| costs.iter().map(move |to| (from, to))) {
        let ((cards, claims), (more_cards, more_claims)) = (from.0, to.0);
        let placing = (from.1.placing.min, to.1.placing.min);
        if cards == more_cards && claims < more_claims {
            let power = exponent((claims as f64, more_claims as f64), placing);
            let what = format!("exponent of placing, {cards} cards, {claims} to {more_claims} claims");
            report.promise(what, power, Promise::AtMost(LINEAR));
        }
        if claims == more_claims && cards < more_cards {
            let sizes = (cards as f64, more_cards as f64);
            let what = format!("exponent of placing, {cards} to {more_cards} cards, {claims} claims");
            report.promise(what, exponent(sizes, placing), Promise::AtMost(LINEAR));
            let making = exponent(sizes, (from.1.world.min, to.1.world.min));
            let what = format!("exponent of making the world, {cards} to {more_cards} cards");
            report.promise(what, making, Promise::AtMost(LINEAR));
        }
    }
    Ok(())
}

fn run(effort: Effort) -> Result<ExitCode, String> {
    let mut report = Report::new("What a plan costs, and how it grows", effort);
    promised(&mut report, effort)?;
    growth(&mut report, effort)?;
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run(Effort::from_args()))
}
