//! How soon a tenant gets idle compute time and how soon the owner has it back: two real processes with the
//! shim on a simulated card, and the governor in one of their supervisors.
//!
//! ```text
//!   owner, 60 %, cap:     ██░██░██░██░ rests ················ ██░██░██░██░██░
//!   borrower, 30 %, burst: ░  ░  ░  ░ ██████████████████████ ░  ░  ░  ░  ░
//!                                    │ lent after             │ back after
//! ```
//!
//! The card's own record of runs is the reference. A tenant has its rate from the moment after which it is
//! never behind that rate: the delay is the most it was behind until the next change. So a rate that comes
//! soon and does not stay counts as late.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use aliquot_benches::measure::{Effort, figures, percentile};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_sim_device::processor::Lack;
use aliquot_sim_device::{Busy, Card};
use aliquot_tests::local::Local;
use aliquot_tests::simulated::{StoodAside, root, run as command};

/// The owner's guarantee, and what the borrower may use while the owner rests, in thousandths of the card.
const OWNS: u64 = 600;
const MAY: u64 = 1_000;
/// The part of that which counts as reached, in thousandths: a share is guaranteed to three points.
const HAD: u64 = 950;
/// Turns that are left out: the shim learns the programs in them.
const LEARNING: usize = 5;
/// The fewest samples with a meaning.
const LEAST: usize = 12;
/// Longest time without a processor, of all four processes together, of half a turn that counts.
const LACK_MAX: Duration = Duration::from_millis(1);

/// A program of a tenant, under its supervisor.
struct Program {
    supervisor: Child,
    pid: u32,
    says: BufReader<ChildStdout>,
    told: ChildStdin,
}

/// Lengths of kernels in nanoseconds, and how long the owner works and rests at a time.
#[derive(Clone, Copy)]
struct Case {
    policy: &'static str,
    owner: u64,
    borrower: u64,
    turn: Duration,
    /// Milliseconds until the borrower has the card.
    lent: Option<Promise>,
    /// Milliseconds until the owner has its guarantee.
    back: Option<Promise>,
}

/// Milliseconds of one turn, where the processes had their processors.
struct Turn {
    lent: Option<f64>,
    back: Option<f64>,
}

/// Milliseconds.
#[derive(Default)]
struct Samples {
    lent: Vec<f64>,
    back: Vec<f64>,
    turns: usize,
}

// === impl Program ===

impl Program {
    fn start(local: &Local, grant: &[&str], program: &Path, kernel: u64) -> Result<Self, String> {
        let mut run = local.run(grant);
        run.arg("--").arg(program).arg(kernel.to_string());
        let mut supervisor =
            run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let (Some(told), Some(says)) = (supervisor.stdin.take(), supervisor.stdout.take()) else {
            return Err("a program without input or output".to_owned());
        };
        let mut program = Self { supervisor, pid: 0, says: BufReader::new(says), told };
        program.pid = u32::try_from(program.hear("is")?).map_err(|error| error.to_string())?;
        Ok(program)
    }

    /// The number behind the word that it says next.
    fn hear(&mut self, word: &str) -> Result<u64, String> {
        let mut line = String::new();
        self.says.read_line(&mut line).map_err(|error| error.to_string())?;
        let number = line.trim().strip_prefix(word).and_then(|rest| rest.trim().parse().ok());
        number.ok_or_else(|| format!("waited for {word}, heard {line:?}"))
    }

    fn tell(&mut self, what: &[u8], word: &str) -> Result<u64, String> {
        self.told.write_all(what).map_err(|error| error.to_string())?;
        self.hear(word)
    }

    fn end(self) -> Result<(), String> {
        let Self { mut supervisor, told, .. } = self;
        drop(told);
        let status = supervisor.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("a program: {status}")) }
    }
}

/// By how much a tenant with these stretches of the card was behind its rate at worst, from one moment to another, in
/// milliseconds.
fn behind(ran: &[Busy], from: u64, till: u64, thousandths: u64) -> f64 {
    let (mut had, mut worst) = (0_u64, 0_u64);
    let mut look = |at: u64, had: u64| {
        worst = worst.max((at - from).saturating_sub(had * 1_000_000 / (thousandths * HAD)));
    };
    for run in ran.iter().filter(|run| run.end > from && run.start < till) {
        let (start, end) = (run.start.max(from), run.end.min(till));
        look(start, had);
        had += end - start;
    }
    look(till, had);
    worst as f64 / 1e6
}

/// One turn: the owner rests, and comes back.
fn turn(
    card: &Card,
    owner: &mut Program,
    borrower: &Program,
    case: Case,
    number: u32,
) -> Result<Turn, String> {
    let pids = [owner.pid, borrower.pid, owner.supervisor.id(), borrower.supervisor.id()];
    // Nothing may come at the same moment of a tick each time.
    let time = case.turn + Duration::from_micros(u64::from(number) * 373 % 4_000);
    let lack = Lack::of(pids);
    let rests = owner.tell(b"r", "rests")?;
    std::thread::sleep(time);
    let resting = lack.sum();
    let lack = Lack::of(pids);
    let works = owner.tell(b"w", "works")?;
    let lent = card.trace(borrower.pid);
    // The program says so a moment after its last kernel ended.
    let ended = card.trace(owner.pid).iter().map(|run| run.end).filter(|end| *end < works).max();
    std::thread::sleep(time);
    let till = works + u64::try_from(time.as_nanos()).unwrap_or(0);
    let back = card.trace(owner.pid);
    let working = lack.sum();
    let from = ended.unwrap_or(rests).min(rests);
    let counts = |lacked: Duration, behind: f64| (lacked <= LACK_MAX).then_some(behind);
    Ok(Turn {
        lent: counts(resting, behind(&lent, from, works, MAY)),
        back: counts(working, behind(&back, works, till, OWNS)),
    })
}

fn measure(program: &Path, case: Case, effort: Effort) -> Result<Samples, String> {
    let local = Local::new("h200");
    let part = |more: &[&'static str]| {
        ["--memory", "1Gi", "--cores"].into_iter().chain(more.iter().copied()).collect::<Vec<_>>()
    };
    let mut borrower =
        Program::start(&local, &part(&["30", "--compute-policy", case.policy]), program, case.borrower)?;
    let mut owner = Program::start(&local, &part(&["60"]), program, case.owner)?;
    let card = local.card();
    borrower.tell(b"w", "works")?;
    owner.tell(b"w", "works")?;
    std::thread::sleep(case.turn);
    let mut samples = Samples::default();
    let turns = effort.pick(60, 1) + LEARNING;
    for number in 0..turns {
        let turn = turn(&card, &mut owner, &borrower, case, u32::try_from(number).unwrap_or(0))?;
        if number >= LEARNING {
            samples.lent.extend(turn.lent);
            samples.back.extend(turn.back);
            samples.turns += 1;
        }
    }
    owner.end()?;
    borrower.end()?;
    local.settle();
    Ok(samples)
}

fn cases() -> Vec<Case> {
    let case = |policy, [owner, borrower]: [u64; 2], millis, lent, back| Case {
        policy,
        owner: owner * 1_000,
        borrower: borrower * 1_000,
        turn: Duration::from_millis(millis),
        lent,
        back,
    };
    let soon = Some(Promise::AtMost(10.0));
    vec![
        case("burst", [100, 100], 80, soon, soon),
        case("burst", [1_000, 1_000], 80, soon, soon),
        case("burst", [5_000, 5_000], 100, soon, soon),
        case("burst", [100, 5_000], 100, soon, soon),
        case("burst", [5_000, 100], 100, soon, soon),
        case("burst", [20_000, 20_000], 200, None, None),
        case("burst", [1_000, 50_000], 250, None, None),
        // The control: a tenant with a cap stays behind what a borrower may use, in the end by 68 % of the
        // owner's rest.
        case("cap", [1_000, 1_000], 80, Some(Promise::AtLeast(40.0)), soon),
    ]
}

fn shown(samples: &[f64]) -> String {
    if samples.is_empty() {
        return "–".to_owned();
    }
    [0.5, 0.9, 1.0].map(|part| figures(percentile(samples, part))).join(" / ")
}

fn run() -> Result<ExitCode, String> {
    let effort = Effort::from_args();
    let mut report = Report::new("Idle compute, lent and taken back", effort);
    let place = tempfile::TempDir::new().map_err(|error| error.to_string())?;
    let program = place.path().join("turns");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(root().join("tests/programs/turns.c"))
        .arg("-ldl");
    if let Err(StoodAside(why)) = command(&mut cc) {
        println!("\nstood aside: {why}");
        return Ok(report.finish());
    }
    let mut rows = Vec::new();
    for case in cases().into_iter().take(effort.pick(usize::MAX, 1)) {
        let Samples { lent, back, turns } = measure(&program, case, effort)?;
        let micros = |nanos: u64| (nanos / 1_000).to_string();
        rows.push([
            case.policy.to_owned(),
            micros(case.owner),
            micros(case.borrower),
            format!("{} and {} of {turns}", lent.len(), back.len()),
            shown(&lent),
            shown(&back),
        ]);
        for (what, samples, promise) in [("lent", &lent, case.lent), ("back", &back, case.back)] {
            let name = format!(
                "{}, kernels of {} and {} µs: ms until {what}, 90th percentile",
                case.policy,
                micros(case.owner),
                micros(case.borrower)
            );
            if samples.len() < LEAST {
                println!("\n{name}: {} turns count, too few to tell", samples.len());
            } else if let Some(promise) = promise {
                report.promise(name, percentile(samples, 0.9), promise);
            }
        }
    }
    report.table(
        "A tenant of 60 % rests and comes back beside a borrower of 30 %: ms until 95 % of what the borrower may have then, \
         the card, is had by it, and 95 % of its guarantee by the owner; median / 90th percentile / highest of the turns in \
         which the four processes lacked a processor for no more than 1 ms together, of either kind.",
        ["borrower's policy", "owner's kernels, µs", "borrower's", "turns", "lent after", "back after"],
        &rows,
    );
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run())
}
