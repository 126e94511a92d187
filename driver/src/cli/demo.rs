//! `aliquot demo`: real manifests on a simulated node, from the Pod to the CDI file and to the release; then real
//! processes on a simulated card.
//!
//! ```text
//!   for each manifest of deploy/examples: place ─▶ prepare ─▶ show devices and CDI file
//!   then: the ledger of the node, proximity of NPUs on four nodes, a claim that cannot fit and its reason, release of all
//!   then, with the shim and without ([`processes`]): a memory limit, a killed process, shares
//! ```
//!
//! The expected result is recorded beside each manifest. A difference is shown, and the command exits with 1.

mod on_cluster;
mod processes;
mod scenes;
pub(super) mod tenant;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aliquot_core::dra::{Device, ResourceClaim};
use serde_json::{Value, json};

use crate::clock::now;
use crate::node::{Access, Node};
use crate::run::supervise::{CommandExit, Signals, SupervisorTask};

use super::cluster::{Cluster, UnitOutcome};
use super::devices;
use super::examples;
use super::explain::UnitExplanation;
use super::failure::{CommandAnswer, Failure};
use super::manual;
use super::nodes::{Fleet, NodeArgs};
use super::output::{Format, RedrawMode, Side, Terminal, Tone};
use super::plan::takes;
use super::prepare::cdi_file_name;
use crate::error_text::chain;
use crate::hardware::node_spec;
use on_cluster::Move;
use scenes::{CLOSENESS, SCENES, Scene, read};

const EXAMPLES: &str = "\
Examples:
  aliquot demo
  aliquot demo --state /tmp/demo
  aliquot demo -o json
  aliquot demo --cluster
  aliquot demo --cluster --down";

/// Longest wait for the runs of a demo that was ended on the way.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether they are gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Run real manifests on a simulated node: no accelerator, cluster or privileges needed
///
/// Places, prepares and releases the manifests of deploy/examples on a node with H100, A100, T4, L4 and Ascend 310P cards,
/// then runs real processes on a simulated card, with the shim and without it, and compares every step with what must come
/// out. The figures of processes are those of the card.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Keep the node's state in this directory; without it, a temporary one is used and removed
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,

    /// Start a real Kubernetes on this machine, run this program as its node agent and show Pods: 1/4 of an NPU, and two
    /// that share a GPU. The cluster stays. Needs root, a checkout of Aliquot as current directory, and what
    /// tests/cluster/README.md lists
    #[arg(long, conflicts_with_all = ["state", "output"])]
    cluster: bool,

    /// Take the cluster of --cluster down
    #[arg(long, requires = "cluster")]
    down: bool,
}

/// What the demo found, and where it differs from what must come out.
#[derive(Default)]
struct DemoRecord {
    scenes: Vec<Value>,
    differences: Vec<String>,
}

/// Nothing goes on beside the demo that plays.
struct NoSideTask;

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    if args.cluster {
        return on_cluster::run(if args.down { Move::Down } else { Move::Up });
    }
    let Some(state) = &args.state else { return in_a_directory_of_its_own(terminal) };
    let mut record = DemoRecord::default();
    if args.output == Format::Table {
        play(state, &mut record, terminal)?;
        verdict(&record, terminal)?;
    } else {
        let mut unseen = std::io::sink();
        let mut silent = Terminal {
            out: &mut unseen,
            err: &mut *terminal.err,
            input: &mut *terminal.input,
            colour: terminal.colour,
            progress: terminal.progress,
            screen: RedrawMode::None,
        };
        play(state, &mut record, &mut silent)?;
        let verdict = if record.differences.is_empty() { "as expected" } else { "different" };
        let answer =
            json!({ "scenes": record.scenes, "differences": record.differences, "verdict": verdict });
        terminal.value(args.output, &answer)?;
    }
    Ok(if record.differences.is_empty() { CommandAnswer::Yes } else { CommandAnswer::No })
}

/// Plays in a process of its own, so that the directory goes however that ends: by itself, or by a signal.
fn in_a_directory_of_its_own(terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let advice = "Name a directory with --state";
    let dir = std::env::temp_dir().join(format!("aliquot-demo-{}", std::process::id()));
    fs::create_dir(&dir).map_err(|source| Failure::path("make", &dir, source, advice))?;
    let played = played_in(&dir);
    // What the end of the player ended in its turn may still write for a moment.
    let ended = now();
    while anybody_runs(&dir) && ended.elapsed() < GONE_WITHIN {
        std::thread::sleep(LOOK_EVERY);
    }
    if let Err(source) = fs::remove_dir_all(&dir) {
        terminal.last_note(Failure::path("remove", &dir, source, "Remove it by hand"));
    }
    let ended = played.map_err(|source| Failure::path("play in", &dir, source, advice))?;
    Ok(CommandAnswer::Code(ended.exit_code()))
}

fn played_in(state: &Path) -> io::Result<CommandExit> {
    let mut player = Command::new(std::env::current_exe()?);
    player.args(std::env::args_os().skip(1)).arg("--state").arg(state);
    let signals = Signals::block()?;
    signals.start(player, None)?.wait(&signals, &mut NoSideTask)
}

/// Whether a run of the demo's tenants has not been cleaned up.
fn anybody_runs(state: &Path) -> bool {
    fs::read_dir(state.join(processes::STATE).join("runs")).is_ok_and(|mut runs| runs.next().is_some())
}

fn play(state: &Path, record: &mut DemoRecord, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let before = held(state, record, terminal)?;
    if before > 0 {
        let message = format!("{}: holds {before} claims; name an empty directory", state.display());
        return Err(Failure::Usage(message));
    }
    for (number, scene) in SCENES.iter().enumerate() {
        play_scene(number + 1, scene, state, record, terminal)?;
    }
    heading("The books of the node", None, terminal)?;
    let mut fleet = mixed(state, Access::Read, terminal)?.1;
    devices::table_of(&fleet, terminal)?;
    closeness(record, terminal)?;
    cannot_fit(&mut fleet, record, terminal)?;
    release_all(state, record, terminal)?;
    processes::play(state, SCENES.len() + 4, record, terminal)
}

/// The simulated node on its state.
fn mixed(state: &Path, access: Access, terminal: &mut Terminal<'_>) -> Result<(Node, Fleet), Failure> {
    let args =
        NodeArgs { nodes: vec!["mixed".to_owned()], state: Some(state.to_owned()), ..NodeArgs::default() };
    Fleet::open_one(&args, access, terminal)
}

fn held(state: &Path, record: &mut DemoRecord, terminal: &mut Terminal<'_>) -> Result<usize, Failure> {
    let (node, fleet) = mixed(state, Access::Change, terminal)?;
    heading("A simulated node", None, terminal)?;
    devices::table_of(&fleet, terminal)?;
    check_books(&node, record);
    Ok(node.claims().count())
}

fn play_scene(
    number: usize,
    scene: &Scene,
    state: &Path,
    record: &mut DemoRecord,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    heading(&format!("{number}. {}", scene.title), Some(scene.example.name), terminal)?;
    let (mut node, mut fleet) = mixed(state, Access::Change, terminal)?;
    let manifests = scene.manifests()?;
    let mut cluster = Cluster::new(manifests, &mut fleet)?;
    cluster.warn(terminal)?;
    let placements = cluster.place_all(|_, _| {});
    let mut claims: Vec<ResourceClaim> = Vec::new();
    for placement in &placements {
        match &placement.outcome {
            UnitOutcome::Refused(why) => {
                record.differs(scene.title, &format!("{}: {why}", cluster.label(placement.unit)));
            }
            _ => claims.extend(cluster.claims_of(placement.unit).cloned()),
        }
    }
    let results = claims.iter().filter_map(|claim| claim.allocation.as_ref()).flat_map(|a| &a.devices);
    let described: Vec<Device> = results.filter_map(|r| cluster.world.device(&r.device)).cloned().collect();
    let mut rows = Vec::new();
    let mut files = Vec::new();
    for claim in &claims {
        match node.prepare(claim) {
            Ok(prepared) => {
                let names = prepared.devices.iter().map(|d| d.cdi_name.as_str());
                rows.extend(claim_rows(claim, names, &described));
                files.push(node.cdi_dir().join(cdi_file_name(&claim.uid)));
            }
            Err(error) => record.differs(scene.title, &chain(&error)),
        }
    }
    let columns =
        [("CLAIM", Side::Left), ("REQUEST", Side::Left), ("DEVICE", Side::Left), ("TAKES", Side::Left)];
    terminal.table(&columns, rows)?;
    for file in &files {
        show_cdi(file, state, record, terminal)?;
    }
    scene.check(&claims, &fleet, record);
    check_books(&node, record);
    Ok(())
}

fn claim_rows<'n>(
    claim: &ResourceClaim,
    names: impl Iterator<Item = &'n str>,
    devices: &[Device],
) -> Vec<Vec<String>> {
    let results = claim.allocation.iter().flat_map(|a| &a.devices);
    let row = |(result, _): (&aliquot_core::dra::DeviceResult, &str)| {
        let device = devices.iter().find(|device| device.name == result.device.device);
        vec![claim.name.clone(), result.request.clone(), result.device.device.clone(), takes(result, device)]
    };
    results.zip(names).map(row).collect()
}

/// What a container would get: the edits of a CDI file, one line a device.
fn show_cdi(
    file: &Path,
    state: &Path,
    record: &mut DemoRecord,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let text = fs::read_to_string(file);
    let spec: Option<Value> = text.ok().and_then(|t| serde_json::from_str(&t).ok());
    let shown = file.strip_prefix(state.canonicalize().as_deref().unwrap_or(state)).unwrap_or(file);
    let Some(spec) = spec else {
        record.differs("CDI", &format!("{} is missing or no JSON", shown.display()));
        return Ok(());
    };
    terminal.line(format_args!(
        "CDI file {} (version {}):",
        shown.display(),
        text_of(&spec["cdiVersion"])
    ))?;
    for device in list(&spec["devices"]) {
        let edits = &device["containerEdits"];
        let nodes: Vec<&str> = list(&edits["deviceNodes"]).map(|n| text_of(&n["path"])).collect();
        let mounts: Vec<&str> = list(&edits["mounts"]).map(|m| text_of(&m["containerPath"])).collect();
        let env: Vec<&str> = list(&edits["env"]).map(text_of).collect();
        terminal.line(format_args!("  {}", text_of(&device["name"])))?;
        for (what, values) in [("devices", nodes), ("mounts", mounts), ("environment", env)] {
            if !values.is_empty() {
                terminal.line(format_args!("    {what}: {}", values.join(", ")))?;
            }
        }
    }
    Ok(())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Two NPUs: the same manifest on four nodes, each as close as the node allows.
fn closeness(record: &mut DemoRecord, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let title = "Two NPUs: same card, else HCCS, else PCIe";
    heading(&format!("{}. {title}", SCENES.len() + 1), Some(examples::TWO_NPUS.name), terminal)?;
    let columns =
        [("NODE", Side::Left), ("FIRST ALTERNATIVE THAT FITS", Side::Left), ("BECAUSE", Side::Left)];
    let mut rows = Vec::new();
    for (name, expected, because) in CLOSENESS {
        let mut fleet = Fleet::none();
        match *name {
            "pcie-pair" => fleet.add_text(examples::PCIE_PAIR.text)?,
            builtin => fleet.add_spec(&node_spec(builtin, fleet.catalogue())?)?,
        }
        let mut cluster = Cluster::new(read(&[examples::TWO_NPUS])?, &mut fleet)?;
        let placements = cluster.place_all(|_, _| {});
        let requests: Vec<String> = placements
            .iter()
            .flat_map(|p| cluster.claims_of(p.unit))
            .flat_map(|c| c.allocation.iter().flat_map(|a| &a.devices))
            .map(|d| d.request.clone())
            .collect();
        let found = requests.first().cloned().unwrap_or_default();
        if found != *expected || (!expected.is_empty() && requests.len() != 2) {
            record.differs(title, &format!("{name}: expected `{expected}`, found `{found}`"));
        }
        record.scenes.push(json!({ "scene": title, "node": name, "found": found }));
        rows.push(vec![
            (*name).to_owned(),
            if found.is_empty() { "-".to_owned() } else { found },
            (*because).to_owned(),
        ]);
    }
    terminal.table(&columns, rows)?;
    Ok(())
}

fn cannot_fit(
    fleet: &mut Fleet,
    record: &mut DemoRecord,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let title = "A claim that cannot fit, and why";
    heading(&format!("{}. {title}", SCENES.len() + 2), Some(examples::TOO_LARGE.name), terminal)?;
    let mut cluster = Cluster::new(read(&[examples::TOO_LARGE])?, fleet)?;
    for placement in cluster.place_all(|_, _| {}) {
        let label = cluster.label(placement.unit);
        match placement.outcome {
            UnitOutcome::Refused(why) => {
                let explained = UnitExplanation::of(&mut cluster, placement.unit, label, why);
                explained.text(terminal)?;
                let helps = explained.explanation.as_ref().is_some_and(|e| e.remedy.is_some());
                if !helps {
                    record.differs(title, "no change is proposed that would place it");
                }
                record.scenes.push(json!({ "scene": title, "explanation": explained.json() }));
            }
            _ => record.differs(title, "it fits"),
        }
    }
    Ok(())
}

fn release_all(state: &Path, record: &mut DemoRecord, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    heading(&format!("{}. Release of everything", SCENES.len() + 3), None, terminal)?;
    let (mut node, _) = mixed(state, Access::Change, terminal)?;
    let claims: Vec<_> = node.claims().map(|r| r.plan.claim.clone()).collect();
    let count = claims.len();
    for uid in claims {
        if let Err(error) = node.release(&uid) {
            record.differs("release", &chain(&error));
        }
    }
    check_books(&node, record);
    let partitions = node.partitions().count();
    let files = count_files(node.cdi_dir())? + count_files(node.grants_dir())?;
    drop(node);
    let (node, fleet) = mixed(state, Access::Read, terminal)?;
    let left = node.claims().count();
    terminal.line(format_args!(
        "{count} claims released; {left} claims, {partitions} partitions and {files} files of tenants are left"
    ))?;
    if left + partitions + files > 0 {
        record.differs("release", &format!("{left} claims, {partitions} partitions, {files} files are left"));
    }
    record
        .scenes
        .push(json!({ "scene": "release", "released": count, "claimsLeft": left, "filesLeft": files }));
    devices::table_of(&fleet, terminal)
}

fn count_files(dir: &Path) -> Result<usize, Failure> {
    match fs::read_dir(dir) {
        Ok(entries) => Ok(entries.count()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(Failure::path("list", dir, source, "Check the directory given with --state")),
    }
}

/// Hardware, journal, files and ledger must agree after every step.
fn check_books(node: &Node, record: &mut DemoRecord) {
    if let Err(differs) = node.invariants() {
        record.differs("books", &differs.to_string());
    }
}

fn heading(title: &str, file: Option<&str>, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let title = terminal.toned(Tone::Strong, title);
    let file = file.map(|f| format!(" (deploy/examples/{f})")).unwrap_or_default();
    terminal.line("")?;
    terminal.line(format_args!("== {title}{file}"))?;
    Ok(())
}

fn verdict(record: &DemoRecord, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    terminal.line("")?;
    for difference in &record.differences {
        terminal.line(format_args!("different: {difference}"))?;
    }
    let (tone, text) = match record.differences.len() {
        0 => (Tone::Good, "Everything came out as expected, and everything was given back.".to_owned()),
        count => (Tone::Bad, format!("{count} things differ from what was expected.")),
    };
    let line = terminal.toned(tone, &text);
    terminal.line(line)?;
    Ok(())
}

// === impl DemoRecord ===

impl DemoRecord {
    fn differs(&mut self, scene: &str, what: &str) {
        self.differences.push(format!("{scene}: {what}"));
    }
}

// === impl NoSideTask ===

impl SupervisorTask for NoSideTask {
    fn pause(&mut self) {}
    fn go_on(&mut self) {}
}
