//! `aliquot demo`: commands on a simulated node, from the Pod to the CDI file and to the release; then real processes on a
//! simulated card.
//!
//! ```text
//!   for each of STEPS: print the command ─▶ cli::run, as from a shell ─▶ compare its exit code
//!   then, with the shim and without ([`processes`]): a memory limit, shares
//! ```
//!
//! A difference is shown, and the command exits with 1.

mod on_cluster;
mod processes;
mod record;
pub(super) mod tenant;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::clock::now;
use crate::run::supervise::{CommandExit, Signals, SupervisorTask};

use super::examples::EXAMPLE_FILES;
use super::failure::{CommandAnswer, Failure};
use super::manual::manual;
use super::output::{Terminal, Tone};
use on_cluster::Move;
use record::{DemoRecord, heading};

const EXAMPLES: &str = "\
Examples:
  aliquot demo
  aliquot demo --state /tmp/demo
  aliquot demo --cluster
  aliquot demo --cluster --down";

/// Longest wait for the runs of a demo that was ended on the way.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether they are gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Commands of a scene, and the exit code of each. `EX/` stands for the directory of the examples, `ON` for the simulated node
/// with its state.
type DemoScene = (&'static str, &'static [(&'static str, u8)]);

const STEPS: &[DemoScene] = &[
    ("A simulated node", &[("devices --node mixed", 0)]),
    ("1/4 of an Ascend 310P", &[("prepare -f EX/ascend-310p-quarter.yaml ON", 0)]),
    (
        "Four quarters on one chip; a prepared claim stays as it is",
        &[("prepare -f EX/ascend-310p-four-quarters.yaml -f EX/ascend-310p-quarter.yaml ON", 0)],
    ),
    ("A MIG partition", &[("prepare -f EX/mig.yaml ON", 0)]),
    ("Two shares of one card: memory and cores", &[("prepare -f EX/shares.yaml ON", 0)]),
    ("Two shares inside one MIG partition", &[("prepare -f EX/share-in-partition.yaml ON", 0)]),
    ("A partition where there is one, else a share", &[("prepare -f EX/prefer-partition.yaml ON", 0)]),
    ("The accounts of the node", &[("devices ON", 0)]),
    (
        "Two NPUs: same card, else HCCS, else PCIe",
        &[
            ("plan -f EX/two-npus.yaml --node ascend-310p-duo", 0),
            ("plan -f EX/two-npus.yaml --node ascend-910a-8", 0),
            ("plan -f EX/two-npus.yaml --node EX/pcie-pair.toml", 0),
            ("plan -f EX/two-npus.yaml --node ascend-310p", 1),
        ],
    ),
    ("A claim that cannot fit, and why", &[("explain -f EX/too-large.yaml ON", 1)]),
    ("Release of everything", &[("release --all ON", 0), ("devices ON", 0)]),
];

/// Run real manifests on a simulated node: no accelerator, cluster or privileges needed
///
/// Places, prepares and releases the manifests of deploy/examples on a node with H100, A100, T4, L4 and Ascend 310P cards,
/// then runs real processes on a simulated card, with the shim and without it, and compares exit codes and figures with what
/// must come out. The figures of processes are those of the card.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Keep the state in this directory, which is empty or absent; without it, a temporary one is used and removed
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Start a real Kubernetes on this machine, run this program as its node agent and show Pods: 1/4 of an NPU, and two
    /// that share a GPU. The cluster stays. Needs root, a checkout of Aliquot as current directory, and what
    /// tests/cluster/README.md lists
    #[arg(long, conflicts_with = "state")]
    cluster: bool,

    /// Take the cluster of --cluster down
    #[arg(long, requires = "cluster")]
    down: bool,
}

/// Nothing goes on beside the demo that plays.
struct NoSideTask;

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    if args.cluster {
        return on_cluster::run(if args.down { Move::Down } else { Move::Up });
    }
    let Some(state) = &args.state else { return in_a_directory_of_its_own(terminal) };
    let mut record = DemoRecord::default();
    write_examples(state)?;
    for (number, step) in STEPS.iter().enumerate() {
        play(number + 1, step, state, &mut record, terminal)?;
    }
    processes::play(state, STEPS.len() + 1, &mut record, terminal)?;
    verdict(&record, terminal)?;
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

/// The examples as files, in an empty directory.
fn write_examples(state: &Path) -> Result<(), Failure> {
    let failed = |source| Failure::path("write", state, source, "Check the directory given with --state");
    if fs::read_dir(state).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::Usage(format!("{}: is not empty; name an empty directory", state.display())));
    }
    let dir = state.join("examples");
    fs::create_dir_all(&dir).map_err(failed)?;
    EXAMPLE_FILES.iter().try_for_each(|(name, text)| fs::write(dir.join(name), text)).map_err(failed)
}

fn play(
    number: usize,
    (title, commands): &DemoScene,
    state: &Path,
    record: &mut DemoRecord,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    heading(&format!("{number}. {title}"), terminal)?;
    for (command, expected) in *commands {
        let mut words: Vec<OsString> = vec!["aliquot".into()];
        for word in command.split(' ') {
            match (word, word.strip_prefix("EX/")) {
                (_, Some(name)) => words.push(state.join("examples").join(name).into()),
                ("ON", _) => {
                    words.extend([
                        "--node".into(),
                        "mixed".into(),
                        "--state".into(),
                        state.join("node").into(),
                    ]);
                }
                _ => words.push(word.into()),
            }
        }
        let shown = words.join(" ".as_ref()).to_string_lossy().into_owned();
        terminal.line(format_args!("$ {shown}"))?;
        let code = super::run(words, terminal);
        if code != *expected {
            record.differs(title, &format!("`{shown}`: found exit code {code}, expected {expected}"));
        }
    }
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

// === impl NoSideTask ===

impl SupervisorTask for NoSideTask {
    fn pause(&mut self) {}
    fn go_on(&mut self) {}
}
