//! What our slices cost the scheduler: upstream's milliseconds a Pod, by layout and size of the cluster.
//!
//! Every node has 8 H100. A Pod asks for one device that the layout offers; upstream makes one allocator over the slices
//! of the whole cluster and tries up to 100 nodes, which are feasible all, and the first is taken: the CPU time that the
//! scheduler of 1.36 spends on the Pod in all its threads together, without its other plugins. The next Pod begins where
//! the last one stopped. Beside it stands what Aliquot takes to place the same Pods.
//!
//! A cell is the median of its Pods; the dear cells have few. Nothing is promised of them: this is upstream's time, and
//! our slices can only be chosen well. What is checked is that every Pod is placed.

use std::process::ExitCode;

use aliquot_benches::fleet::{Fleet, H100_NODE, ask_for, claim, claims_json};
use aliquot_benches::measure::{Effort, Spread, figures, timed};
use aliquot_benches::report::{Report, ended};
use aliquot_core::allocate::Candidates;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::offer::LayoutKind;
use aliquot_tests::oracle::Oracle;
use serde_json::json;

/// Layouts by name, and how many Pods are placed on 20, 100 and 500 nodes: few where one takes seconds.
const LAYOUTS: [(LayoutKind, &str, [usize; 3]); 5] = [
    (LayoutKind::Whole, "whole", [40, 40, 40]),
    (LayoutKind::Shared, "shared", [40, 40, 40]),
    (LayoutKind::Split, "split", [40, 40, 40]),
    (LayoutKind::Slots, "slots", [40, 40, 40]),
    (LayoutKind::Dynamic, "dynamic", [40, 8, 4]),
];
const SIZES: [usize; 3] = [20, 100, 500];

struct Cell {
    devices: usize,
    slices: usize,
    /// Milliseconds of half the Pods, and of the dearest.
    upstream: (f64, f64),
    /// Milliseconds of each Pod.
    ours: Spread,
}

/// Milliseconds that we take for each claim, each on the first node that can have it.
fn place(fleet: Fleet, claims: &[ResourceClaim]) -> Result<Spread, String> {
    let mut world = fleet.world()?;
    let mut samples = Vec::new();
    for claim in claims {
        let (outcome, seconds) = timed(|| {
            let placed = world.place(std::slice::from_ref(claim), Candidates::All);
            let (_, results) = placed.map_err(|refusal| refusal.to_string())?;
            let result = results.first().ok_or("an allocation is missing")?;
            world.hold_as(claim, result).map_err(|error| error.to_string())
        });
        outcome?;
        samples.push(seconds * 1e3);
    }
    Spread::of(&samples).ok_or_else(|| "nothing was measured".to_owned())
}

fn measure(oracle: &mut Oracle, layout: LayoutKind, nodes: usize, pods: usize) -> Result<Cell, String> {
    let fleet = Fleet::of(H100_NODE, layout, nodes)?;
    let claims: Vec<ResourceClaim> = (0..pods).map(|number| claim(number, ask_for(layout, number))).collect();
    let request = json!({
        "op": "cluster-fill", "mode": "filterAll", "triesPerPod": 100, "nodes": fleet.nodes_json(),
        "slices": fleet.slices_json(), "classes": fleet.classes_json(), "claims": claims_json(&claims),
    });
    let answer = oracle.ask(request).map_err(|error| error.to_string())?;
    if answer["placed"].as_u64() != u64::try_from(pods).ok() {
        return Err(format!("upstream placed {} of {pods} Pods: {}", answer["placed"], answer["errors"]));
    }
    let time = |which: &str| {
        let found = answer["millisecondsPerPod"][which].as_f64();
        found.ok_or_else(|| format!("the answer has no {which}"))
    };
    let upstream = (time("p50")?, time("max")?);
    let devices = fleet.slices.iter().map(|slice| slice.devices.len()).sum();
    let slices = fleet.slices.len();
    Ok(Cell { devices, slices, upstream, ours: place(fleet, &claims)? })
}

fn run(effort: Effort) -> Result<ExitCode, String> {
    let oracle = Oracle::start_or_say_why_not().map_err(|error| error.to_string())?;
    let Some(mut oracle) = oracle else { return Ok(ExitCode::SUCCESS) };
    let report = Report::new("Upstream's time a Pod over our slices", effort);
    let sizes = effort.pick(&SIZES[..], &[3]);
    let mut rows = Vec::new();
    for (layout, name, pods) in LAYOUTS {
        for (nodes, pods) in sizes.iter().zip(effort.pick(pods, [2; 3])) {
            let cell = measure(&mut oracle, layout, *nodes, pods)?;
            rows.push([
                name.to_owned(),
                nodes.to_string(),
                format!("{} in {}", cell.devices, cell.slices),
                pods.to_string(),
                figures(cell.upstream.0),
                figures(cell.upstream.1),
                cell.ours.to_string(),
            ]);
        }
    }
    report.table(
        "Nodes of 8 H100; upstream tries up to 100 nodes a Pod, Aliquot takes the first that fits.",
        [
            "layout",
            "nodes",
            "devices in slices",
            "Pods",
            "upstream, ms a Pod, median",
            "upstream, dearest Pod",
            "Aliquot, ms a Pod, lowest / median / highest",
        ],
        &rows,
    );
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run(Effort::from_args()))
}
