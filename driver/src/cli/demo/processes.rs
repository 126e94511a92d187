//! The demo's second part: real processes on a simulated card, with the shim and without it.
//!
//! ```text
//!   aliquot run ─▶ tenant ─▶ shim ─▶ simulated driver ─▶ card ◀── measurements: driver figures alone
//! ```
//!
//! Every figure comes from the card, not from the shim or the region under test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use aliquot_sim_device::processor::Lack;
use aliquot_sim_device::{Card, DIR_ENV, MemoryKind, Process};

use crate::clock::now;
use crate::config::VISIBLE_CARDS;
use crate::hardware::simulated_cards::cards_dir;

use super::super::failure::Failure;
use super::super::output::{Side, Terminal};
use super::record::{DemoRecord, heading};
use crate::error_text::chain;

/// Below the demo's state, that of the runs.
pub(super) const STATE: &str = "processes";
/// The node: one card.
const NODE: &str = "h200";
/// Bytes in a MiB.
const MIB: u64 = 1 << 20;
/// What the memory scenes grant, in MiB.
const LIMIT_MIB: u64 = 4096;
/// What a tenant there tries to have, in MiB.
const GREED_MIB: u64 = 8192;
/// What a tenant that computes asks the driver to run, in nanoseconds.
const KERNEL_NANOS: u64 = 1_000_000;
/// Time before shares are measured: both tenants then certainly run.
const WARM_UP: Duration = Duration::from_millis(700);
/// Time in which shares are measured.
const MEASURED: Duration = Duration::from_millis(1500);
/// How often shares are measured until they fit.
const ATTEMPTS: usize = 3;
/// How far a share may be off, in percent of the card.
const SHARE_ERROR: f64 = 3.0;
/// Longest single wait; a busier machine cannot run the demo.
const BOUND: Duration = Duration::from_secs(60);

/// Whether tenants are held to their grants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TenantEnforcement {
    ByTheShim,
    ByNothing,
}

/// The place of the scenes.
struct Stage<'t, 'io> {
    program: PathBuf,
    state: PathBuf,
    libraries: PathBuf,
    record: &'t mut DemoRecord,
    terminal: &'t mut Terminal<'io>,
    number: usize,
}

/// A tenant that runs; it ends with the value.
struct DemoTenant {
    child: Child,
    lines: Receiver<String>,
}

/// What processes had of a card's time.
struct Had {
    /// Percent, in the order of the processes.
    percents: Vec<f64>,
    /// Percent of the time in which one of them was ready to run and had no processor.
    lacked: f64,
}

/// What came of a scene that could not be played.
type SceneResult<T> = Result<T, String>;

/// Plays all scenes; `number` is that of the first.
pub(super) fn play(
    state: &Path,
    number: usize,
    record: &mut DemoRecord,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let advice = "Check the directory given with --state";
    let program = std::env::current_exe()
        .map_err(|source| Failure::path("find", Path::new("aliquot"), source, advice))?;
    let state = state.join(STATE);
    let lib = state.join("lib");
    let installed =
        aliquot_libraries::install(&lib).map_err(|source| Failure::path("write", &lib, source, advice))?;
    let mut stage = Stage { program, state, libraries: installed.simulated, record, terminal, number };
    stage.scene("One tenant asks for more memory than it has", Stage::greed)?;
    stage.scene("Two tenants compute: 25% and 75%", Stage::shares)
}

// === impl Stage ===

impl<'io> Stage<'_, 'io> {
    fn scene(
        &mut self,
        title: &str,
        play: impl FnOnce(&mut Self) -> SceneResult<Vec<Vec<String>>>,
    ) -> Result<(), Failure> {
        heading(&format!("{}. {title}", self.number), self.terminal)?;
        self.number += 1;
        match play(self) {
            Ok(rows) => {
                let columns =
                    [("TENANT", Side::Left), ("WITH THE SHIM", Side::Left), ("WITHOUT", Side::Left)];
                self.terminal.table(&columns, rows)?;
            }
            Err(why) => {
                self.terminal.line(format_args!("not played: {why}"))?;
                self.record.differs(title, &why);
            }
        }
        Ok(())
    }

    /// What must hold, or what was found instead.
    fn check(&mut self, scene: &str, holds: bool, found: &str) {
        if !holds {
            self.record.differs(scene, found);
        }
    }

    /// The driver's side of the card.
    fn card(&self) -> SceneResult<Card> {
        let device = aliquot_sim_device::open(&cards_dir(&self.state)).map_err(|error| chain(&error))?;
        device.card(0).cloned().ok_or_else(|| "the node has no card".to_owned())
    }

    /// Starts a tenant; held ones through `aliquot run` with these arguments.
    fn start(&self, held: TenantEnforcement, grant: &[&str], what: &[&str]) -> SceneResult<DemoTenant> {
        let mut command = Command::new(&self.program);
        // The cards of the scenes are their own.
        command.env_remove(VISIBLE_CARDS);
        match held {
            TenantEnforcement::ByTheShim => {
                command.args(["run", "--node", NODE, "--state"]).arg(&self.state).args(grant).arg("--");
                command.arg(&self.program);
            }
            TenantEnforcement::ByNothing => {
                command.env("LD_LIBRARY_PATH", &self.libraries).env(DIR_ENV, cards_dir(&self.state));
            }
        }
        command.arg("demo-tenant").args(what);
        DemoTenant::start(command)
    }

    fn greed(&mut self) -> SceneResult<Vec<Vec<String>>> {
        let (limit, greed) = (format!("{LIMIT_MIB}Mi"), GREED_MIB.to_string());
        let mut cells = vec![format!("{limit} granted, {GREED_MIB}Mi wanted")];
        for held in [TenantEnforcement::ByTheShim, TenantEnforcement::ByNothing] {
            let tenant = self.start(held, &["--memory", &limit], &["fill", &greed])?;
            let words = tenant.next_words("filled")?;
            let (pid, name) = (pid(&words, 0)?, words.get(3).cloned().unwrap_or_default());
            let process = process(&self.card()?, pid)?;
            let bytes = allocated(&process);
            let beside = process.held_bytes.saturating_sub(bytes);
            cells.push(format!("{name} at {}Mi, and {}Mi of contexts", bytes / MIB, beside / MIB));
            let most = process.high_water_bytes;
            let found = format!("{name} with at most {most} bytes on the card");
            match held {
                TenantEnforcement::ByTheShim => {
                    let refused = name == "CUDA_ERROR_OUT_OF_MEMORY";
                    let nearly = process.held_bytes + 512 * MIB > LIMIT_MIB * MIB;
                    self.check("memory limit", refused && nearly && most <= LIMIT_MIB * MIB, &found);
                    let (free, total) = (number(&words, 4)?, number(&words, 5)?);
                    let shown = total == LIMIT_MIB * MIB && free < total;
                    self.check("memory shown", shown, &format!("{free} of {total} bytes are shown as free"));
                }
                TenantEnforcement::ByNothing => {
                    self.check("without the shim", bytes >= GREED_MIB * MIB, &found);
                }
            }
            tenant.end()?;
        }
        Ok(vec![cells])
    }

    fn shares(&mut self) -> SceneResult<Vec<Vec<String>>> {
        let percents = ["25", "75"];
        let mut rows: Vec<Vec<String>> =
            percents.iter().map(|percent| vec![format!("{percent}% granted")]).collect();
        for held in [TenantEnforcement::ByTheShim, TenantEnforcement::ByNothing] {
            let kernel = KERNEL_NANOS.to_string();
            let work = |percent: &&str| {
                self.start(held, &["--memory", "1Gi", "--cores", percent], &["work", &kernel])
            };
            let tenants = percents.iter().map(work).collect::<SceneResult<Vec<DemoTenant>>>()?;
            let pids = tenants
                .iter()
                .map(|tenant| pid(&tenant.next_words("works")?, 0))
                .collect::<SceneResult<Vec<u32>>>()?;
            let card = self.card()?;
            std::thread::sleep(WARM_UP);
            let expected = percents.map(|percent| match held {
                TenantEnforcement::ByTheShim => percent.parse().unwrap_or(0.0),
                TenantEnforcement::ByNothing => 50.0,
            });
            let mut had = Had::of(&card, &pids);
            // On a machine that is busy a tenant may be late with its work; a limit that does not hold never fits.
            for _ in 1..ATTEMPTS {
                if had.fits(expected) {
                    break;
                }
                had = Had::of(&card, &pids);
            }
            self.judge(held, percents, expected, &had)?;
            for (row, share) in rows.iter_mut().zip(&had.percents) {
                row.push(format!("{share:.1}% of the card's time"));
            }
            for tenant in tenants {
                tenant.end()?;
            }
        }
        Ok(rows)
    }

    /// What must have come of two shares, or why nothing can be said of them.
    fn judge(
        &mut self,
        held: TenantEnforcement,
        granted: [&str; 2],
        expected: [f64; 2],
        had: &Had,
    ) -> SceneResult<()> {
        for ((granted, expected), share) in granted.into_iter().zip(expected).zip(&had.percents) {
            let off = (share - expected).abs();
            if off <= SHARE_ERROR {
                continue;
            }
            // A tenant without a processor launches less. A cap still holds for the other tenant; without one that gets more.
            if off <= SHARE_ERROR + had.lacked && (*share < expected || held == TenantEnforcement::ByNothing)
            {
                let lacked = had.lacked;
                let line = format!(
                    "the machine is too busy: for {lacked:.1}% of the time a tenant had no processor"
                );
                self.terminal.line(line).map_err(|error| error.to_string())?;
            } else {
                let found =
                    format!("{granted}% granted, {share:.1}% of the card's time had, not {expected}%");
                self.record.differs("compute", &found);
            }
        }
        Ok(())
    }
}

// === impl DemoTenant ===

impl DemoTenant {
    fn start(mut command: Command) -> SceneResult<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", shown(command.get_program())))?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { child, lines })
    }

    /// The words behind `word` of the next line, which begins with it.
    fn next_words(&self, word: &str) -> SceneResult<Vec<String>> {
        let line = self.lines.recv_timeout(BOUND).map_err(|_| format!("the tenant never said `{word}`"))?;
        let words = line.strip_prefix(word).ok_or_else(|| format!("the tenant said: {line}"))?;
        Ok(words.split_whitespace().map(str::to_owned).collect())
    }

    /// Lets it end, and waits until it has.
    fn end(mut self) -> SceneResult<()> {
        drop(self.child.stdin.take());
        let child = &mut self.child;
        wait_for("the tenant's end", || !matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for DemoTenant {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // What a failed scene leaves: its command ends with its input, and so does the run.
            drop(self.child.stdin.take());
        }
    }
}

fn shown(program: &OsStr) -> String {
    program.to_string_lossy().into_owned()
}

fn number(words: &[String], at: usize) -> SceneResult<u64> {
    let word = words.get(at).and_then(|word| word.parse().ok());
    word.ok_or_else(|| format!("the tenant said something else than numbers: {words:?}"))
}

fn pid(words: &[String], at: usize) -> SceneResult<u32> {
    u32::try_from(number(words, at)?).map_err(|error| error.to_string())
}

/// A process as the driver knows it.
fn process(card: &Card, pid: u32) -> SceneResult<Process> {
    let found = card.processes().into_iter().find(|process| process.pid == pid);
    found.ok_or_else(|| format!("process {pid} is not on the card"))
}

/// What a process has allocated on the card; contexts and modules are the driver's own.
fn allocated(process: &Process) -> u64 {
    let own = [MemoryKind::Context, MemoryKind::Module];
    let kinds = MemoryKind::ALL.iter().zip(&process.held_by_kind);
    kinds.filter(|(kind, _)| !own.contains(kind)).map(|(_, bytes)| bytes).sum()
}

// === impl Had ===

impl Had {
    /// Measures for [`MEASURED`].
    fn of(card: &Card, pids: &[u32]) -> Self {
        let (lack, before) = (Lack::of(pids.iter().copied()), card.moment());
        std::thread::sleep(MEASURED);
        let (after, lacked) = (card.moment(), lack.most());
        let time = after.at.saturating_sub(before.at);
        let part = |pid: &u32| after.device_nanos(*pid).saturating_sub(before.device_nanos(*pid));
        Self {
            percents: pids.iter().map(|pid| percent_of(part(pid), time)).collect(),
            lacked: percent_of(u64::try_from(lacked.as_nanos()).unwrap_or(u64::MAX), time).min(100.0),
        }
    }

    fn fits(&self, expected: [f64; 2]) -> bool {
        self.percents.iter().zip(expected).all(|(share, expected)| (share - expected).abs() <= SHARE_ERROR)
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds in nanoseconds fit a double")]
fn percent_of(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// Waits for a level.
fn wait_for(what: &str, mut there: impl FnMut() -> bool) -> SceneResult<()> {
    let begun = now();
    while !there() {
        if begun.elapsed() > BOUND {
            return Err(format!("waited for {what} in vain"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
