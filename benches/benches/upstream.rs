//! Decisions per second against upstream's Go allocator: the same slices, classes and claims, in turn, in one run.
//!
//! A node of 8 H100 is filled claim by claim, each the only claim of a Pod, until nothing more fits. Upstream copies the
//! allocated state, makes an allocator, asks it and commits: what the scheduler does for each Pod; that it has read its
//! objects is not counted. Ours is measured three times:
//!
//! | | what is counted |
//! |---|---|
//! | warm | allocate and hold, in a world that has been filled and emptied before |
//! | new world | the same in a world that has seen no claim yet |
//! | from YAML | reading slices, classes and claims as text, making the world, allocate and hold |
//!
//! Upstream and ours take turns, and each turn gives one ratio, so that a load from elsewhere falls on both. Before
//! anything is measured both must give every claim the same device.

use std::collections::BTreeMap;
use std::process::ExitCode;

use aliquot_benches::fleet::{Ask, Fleet, H100_NODE, claim, claims_json};
use aliquot_benches::measure::{Effort, Spread, timed};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_core::allocate::{NodeIndex, World};
use aliquot_core::dra::{Node, ResourceClaim};
use aliquot_core::offer::LayoutKind;
use aliquot_driver::manifest::{self, ProblemSeverity};
use aliquot_tests::oracle::Oracle;
use serde_json::{Value, json};

/// Claims that are tried at most; a node has room for far fewer.
const CLAIMS_MAX: usize = 1_000;

struct Case {
    name: &'static str,
    layout: LayoutKind,
    ask: Ask,
    /// Times upstream. `None` where nothing is promised.
    promised: Option<PromisedRatios>,
}

/// How many times as fast as upstream's decision, which starts from objects in memory.
#[derive(Clone, Copy)]
struct PromisedRatios {
    warm: f64,
    from_yaml: f64,
    from_json: f64,
}

const PROMISED: PromisedRatios = PromisedRatios { warm: 100.0, from_yaml: 10.0, from_json: 10.0 };

const CASES: [Case; 3] = [
    Case {
        name: "8Gi and 10 % of `dynamic` cards",
        layout: LayoutKind::Dynamic,
        ask: Ask::Share,
        promised: Some(PROMISED),
    },
    Case {
        name: "`1g.10gb` of `dynamic` cards",
        layout: LayoutKind::Dynamic,
        ask: Ask::Partition,
        promised: Some(PROMISED),
    },
    // Eight devices without counters: upstream is quick here too.
    Case {
        name: "8Gi and 10 % of `shared` cards",
        layout: LayoutKind::Shared,
        ask: Ask::Share,
        promised: None,
    },
];

/// Seconds a decision, one sample a turn.
#[derive(Default)]
struct Samples {
    upstream: Vec<f64>,
    warm: Vec<f64>,
    new_world: Vec<f64>,
    yaml: Vec<f64>,
    json: Vec<f64>,
}

/// Allocates and holds the claims in turn; their devices.
fn fill(world: &mut World, claims: &[ResourceClaim]) -> Result<Vec<String>, String> {
    let mut devices = Vec::with_capacity(claims.len());
    for claim in claims {
        let results = world.allocate(NodeIndex(0), std::slice::from_ref(claim));
        let results = results.map_err(|refusal| format!("{}: {refusal}", claim.name))?;
        let result = results.first().ok_or("an allocation is missing")?;
        world.hold_as(claim, result).map_err(|error| error.to_string())?;
        devices.extend(result.devices.iter().map(|given| given.device.device.clone()));
    }
    Ok(devices)
}

fn empty(world: &mut World, claims: &[ResourceClaim]) -> Result<(), String> {
    claims.iter().try_for_each(|claim| world.release(&claim.uid).map_err(|error| error.to_string()))
}

/// As many claims as fit.
fn claims_that_fit(fleet: &Fleet, ask: Ask) -> Result<Vec<ResourceClaim>, String> {
    let mut world = fleet.clone().world()?;
    let fits = |claim: &ResourceClaim| fill(&mut world, std::slice::from_ref(claim)).is_ok();
    let claims: Vec<ResourceClaim> =
        (0..CLAIMS_MAX).map(|number| claim(number, ask)).take_while(fits).collect();
    if claims.is_empty() { Err(format!("not one claim fits: {ask:?}")) } else { Ok(claims) }
}

/// Reads a text, makes a world of it and places its claims.
fn from_text(text: &str) -> Result<usize, String> {
    let (manifests, problems) = manifest::read("bench", text);
    if let Some(problem) = problems.iter().find(|problem| problem.severity == ProblemSeverity::Error) {
        return Err(problem.to_string());
    }
    let nodes = vec![Node { name: "node-00000".to_owned(), labels: BTreeMap::new() }];
    let (mut world, _) = World::new(manifests.slices, manifests.classes, nodes);
    fill(&mut world, &manifests.claims).map(|devices| devices.len())
}

/// Devices that upstream gave, claim by claim.
fn devices_of(answer: &Value) -> Vec<String> {
    let placed = answer["allocations"].as_array().into_iter().flatten();
    let results = placed.flat_map(|p| p["allocation"]["devices"]["results"].as_array().into_iter().flatten());
    results.filter_map(|result| result["device"].as_str().map(str::to_owned)).collect()
}

struct Bench {
    oracle: Oracle,
    effort: Effort,
}

impl Bench {
    fn measure(&mut self, case: &Case) -> Result<(Samples, usize), String> {
        let fleet = Fleet::of(H100_NODE, case.layout, 1)?;
        let claims = claims_that_fit(&fleet, case.ask)?;
        let request = json!({
            "op": "fill", "node": fleet.nodes_json()[0], "slices": fleet.slices_json(),
            "classes": fleet.classes_json(), "claims": claims_json(&claims),
        });
        let mut warm = fleet.clone().world()?;
        let ours = fill(&mut warm, &claims)?;
        self.agree(&request, &ours)?;
        empty(&mut warm, &claims)?;
        let (yaml, json) = (fleet.yaml(&claims), fleet.json(&claims));
        let mut samples = Samples::default();
        let decisions = claims.len() as f64;
        for _ in 0..self.effort.pick(11, 1) {
            let answer = self.ask(request.clone())?;
            let seconds = answer["seconds"].as_f64().ok_or("the answer has no seconds")?;
            samples.upstream.push(seconds / decisions);
            samples.warm.push(self.average(50, || {
                let (filled, seconds) = timed(|| fill(&mut warm, &claims));
                filled?;
                empty(&mut warm, &claims).map(|()| seconds / decisions)
            })?);
            samples.new_world.push(self.average(20, || {
                let mut world = fleet.clone().world()?;
                let (filled, seconds) = timed(|| fill(&mut world, &claims));
                filled.map(|_| seconds / decisions)
            })?);
            for (text, samples) in [(&yaml, &mut samples.yaml), (&json, &mut samples.json)] {
                samples.push(self.average(5, || {
                    let (placed, seconds) = timed(|| from_text(text));
                    placed.map(|_| seconds / decisions)
                })?);
            }
        }
        Ok((samples, claims.len()))
    }

    /// Both must place every claim, and on the same device.
    fn agree(&mut self, request: &Value, ours: &[String]) -> Result<(), String> {
        let mut request = request.clone();
        request["detail"] = json!(true);
        let theirs = devices_of(&self.ask(request)?);
        let differs = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at));
        differs.map_or(Ok(()), |at| {
            Err(format!("claim {at}: we give {:?}, upstream {:?}", ours.get(at), theirs.get(at)))
        })
    }

    fn ask(&mut self, request: Value) -> Result<Value, String> {
        self.oracle.ask(request).map_err(|error| error.to_string())
    }

    fn average(&self, times: u32, mut work: impl FnMut() -> Result<f64, String>) -> Result<f64, String> {
        let times = self.effort.pick(times, 1);
        let sum = (0..times).try_fold(0.0, |sum, _| work().map(|seconds| sum + seconds))?;
        Ok(sum / f64::from(times))
    }
}

fn ratios(upstream: &[f64], ours: &[f64]) -> Result<Spread, String> {
    let ratios: Vec<f64> = upstream.iter().zip(ours).map(|(theirs, ours)| theirs / ours).collect();
    Spread::of(&ratios).ok_or_else(|| "nothing was measured".to_owned())
}

fn run(effort: Effort) -> Result<ExitCode, String> {
    let oracle = Oracle::start_or_say_why_not().map_err(|error| error.to_string())?;
    let Some(oracle) = oracle else { return Ok(ExitCode::SUCCESS) };
    let mut bench = Bench { oracle, effort };
    let mut report = Report::new("Decisions per second against upstream's Go allocator", effort);
    let (mut rows, mut promises) = (Vec::new(), Vec::new());
    for case in &CASES {
        let (samples, claims) = bench.measure(case)?;
        let upstream = Spread::of(&samples.upstream).ok_or("nothing was measured")?;
        let row = |name: &str, seconds: Spread, ratio: Option<Spread>| {
            let ratio = ratio.map_or_else(|| "1".to_owned(), |ratio| ratio.to_string());
            let each = Spread { min: seconds.max, median: seconds.median, max: seconds.min };
            let rate = Spread { min: 1.0 / each.min, median: 1.0 / each.median, max: 1.0 / each.max };
            [case.name.to_owned(), name.to_owned(), seconds.times(1e6).to_string(), rate.to_string(), ratio]
        };
        rows.push(row("upstream", upstream, None));
        let (yaml, json) = (format!("from YAML ({claims} claims)"), format!("from JSON ({claims} claims)"));
        for (name, seconds, promise) in [
            ("warm", &samples.warm, case.promised.map(|promised| promised.warm)),
            ("new world", &samples.new_world, None),
            (yaml.as_str(), &samples.yaml, case.promised.map(|promised| promised.from_yaml)),
            (json.as_str(), &samples.json, case.promised.map(|promised| promised.from_json)),
        ] {
            let ratio = ratios(&samples.upstream, seconds)?;
            rows.push(row(name, Spread::of(seconds).ok_or("nothing was measured")?, Some(ratio)));
            promises.extend(promise.map(|bound| (format!("{}, {name}", case.name), ratio.median, bound)));
        }
    }
    report.table(
        "A node of 8 H100 filled claim by claim. Each cell is lowest / median / highest of the turns.",
        ["claims", "allocator", "µs a decision", "decisions a second", "times upstream"],
        &rows,
    );
    for (what, ratio, bound) in promises {
        report.promise(what, ratio, Promise::AtLeast(bound));
    }
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run(Effort::from_args()))
}
