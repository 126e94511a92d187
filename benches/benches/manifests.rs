//! Text in, text out: claims read from YAML, offers made, slices rendered, and `aliquot devices`.
//!
//! Slices of a node of 8 H100 in layout `dynamic`, the fullest, are promised in 5 ms and 200 kB: from the cards to JSON
//! as it goes to the API server. Times are of the processor, in one thread: what a clock shows on a quiet machine.

use std::ffi::OsString;
use std::hint::black_box;
use std::process::ExitCode;

use aliquot_benches::fleet::{Ask, Fleet, H100_NODE, claim, yaml};
use aliquot_benches::measure::{Effort, Spread, computed, figures};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_core::offer::LayoutKind;
use aliquot_driver::manifest::{self, Object};
use aliquot_tests::command_line::{Ran, ran};

const LAYOUTS: [(LayoutKind, &str); 5] = [
    (LayoutKind::Whole, "whole"),
    (LayoutKind::Shared, "shared"),
    (LayoutKind::Split, "split"),
    (LayoutKind::Slots, "slots"),
    (LayoutKind::Dynamic, "dynamic"),
];

/// Seconds of so many rounds.
fn rounds(count: usize, mut work: impl FnMut() -> Result<(), String>) -> Result<Spread, String> {
    let mut samples = Vec::with_capacity(count);
    for _ in 0..count {
        let (outcome, seconds) = computed(&mut work);
        outcome?;
        samples.push(seconds);
    }
    Spread::of(&samples).ok_or_else(|| "nothing was measured".to_owned())
}

fn reading(report: &Report, effort: Effort) -> Result<(), String> {
    let count = effort.pick(10_000, 100);
    let objects: Vec<_> = (0..count).map(|n| Object::Claim(&claim(n, Ask::Share)).json()).collect();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let mut rows = Vec::new();
    for (form, text) in [("YAML", yaml(objects)), ("JSON", list)] {
        let seconds = rounds(effort.pick(9, 1), || {
            let (manifests, problems) = manifest::read("claims", black_box(&text));
            match problems.first() {
                Some(problem) => Err(problem.to_string()),
                None if manifests.claims.len() == count => Ok(()),
                None => Err(format!("{} of {count} claims were read", manifests.claims.len())),
            }
        })?;
        rows.push([
            form.to_owned(),
            count.to_string(),
            (text.len() / 1_000).to_string(),
            seconds.times(1e3).to_string(),
            figures(count as f64 / seconds.min),
            figures(text.len() as f64 / seconds.min / 1e6),
        ]);
    }
    report.table(
        "Claims read from text. Times are lowest / median / highest, rates are of the lowest.",
        ["form", "claims", "kB", "CPU ms", "claims a second", "MB/s"],
        &rows,
    );
    Ok(())
}

fn rendering(report: &mut Report, effort: Effort) -> Result<(), String> {
    let mut rows = Vec::new();
    for (layout, name) in LAYOUTS {
        let mut bytes = 0;
        let fleet = Fleet::of(H100_NODE, layout, 1)?;
        let making = rounds(effort.pick(50, 1), || Fleet::of(H100_NODE, layout, 1).map(|_| ()))?;
        let render = || fleet.slices.iter().map(|slice| Object::Slice(slice).json().to_string().len()).sum();
        let rendering = rounds(effort.pick(50, 1), || {
            bytes = render();
            Ok(())
        })?;
        let devices: usize = fleet.slices.iter().map(|slice| slice.devices.len()).sum();
        rows.push([
            name.to_owned(),
            devices.to_string(),
            fleet.slices.len().to_string(),
            bytes.to_string(),
            rendering.times(1e3).to_string(),
            making.times(1e3).to_string(),
        ]);
        let what = format!("8 × H100, layout {name}");
        report.promise(format!("{what}: bytes of its slices"), bytes as f64, Promise::AtMost(200_000.0));
        let milliseconds = rendering.min * 1e3;
        report.promise(format!("{what}: ms to render them"), milliseconds, Promise::AtMost(5.0));
    }
    report.table(
        "Slices of a node of 8 H100. Rendering: slices to JSON. Making: node file to cards to slices and classes.",
        ["layout", "devices", "slices", "bytes", "rendering, CPU ms", "making, CPU ms"],
        &rows,
    );
    Ok(())
}

/// `aliquot devices` in this process, for the largest and the most mixed of the built-in nodes.
fn devices(report: &mut Report, effort: Effort) -> Result<(), String> {
    let mut rows = Vec::new();
    for node in [H100_NODE, "mixed"] {
        let arguments: [OsString; 4] = ["aliquot".into(), "devices".into(), "--node".into(), node.into()];
        let seconds = rounds(effort.pick(20, 1), || {
            let Ran { code, err, .. } = ran(arguments.clone());
            match code {
                0 => Ok(()),
                code => Err(format!("aliquot devices ended with {code}: {err}")),
            }
        })?;
        rows.push([node.to_owned(), seconds.times(1e3).to_string()]);
        let what = format!("ms of aliquot devices --node {node}");
        report.promise(what, seconds.min * 1e3, Promise::AtMost(50.0));
    }
    report.table("`aliquot devices`, without the start of the process.", ["node", "CPU ms"], &rows);
    Ok(())
}

fn run(effort: Effort) -> Result<ExitCode, String> {
    let mut report = Report::new("Reading manifests, rendering slices", effort);
    reading(&report, effort)?;
    rendering(&mut report, effort)?;
    devices(&mut report, effort)?;
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run(Effort::from_args()))
}
