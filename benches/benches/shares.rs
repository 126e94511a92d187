//! Whether parts of a simulated card's time are what the grants guarantee, with real processes and the shim:
//! kernels of up to a second, many processes, graphs, streams, synchronous launches. One tenant runs alone,
//! or three share the card.
//!
//! The card's own accounting is the reference. A window of a share is half a second, or forty kernels where
//! that is longer, so that one kernel more or less is no error of the share. Tenants beside each other are
//! measured over spans of many turns of their longest kernels.
//!
//! A window is left out if a process was ready to run without a processor for half of the share's tolerance;
//! the report says how many count. For spans the report shows the lack of processor.
//!
//! `cargo bench … -- 50 100` measures tenants alone with kernels of so many milliseconds, `-- three` those beside each other.
//!
//! Long kernels hardly need a processor: cases of one tenant run side by side, each on a card of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use aliquot_benches::measure::{Effort, figures, percentile};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_sim_device::processor::Lack;
use aliquot_sim_device::{Card, Moment};
use aliquot_tests::local::{BOUND, Local, wait_for};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Most that a share is off in a window, in points.
const POINTS_MAX: f64 = 3.0;
/// Most that a part is off beside others, in percent of it.
const PART_MAX: f64 = 5.0;
/// Windows of a share that are measured.
const WINDOWS: u32 = 3;
/// Spans of three tenants that are measured.
const SPANS: u32 = 3;
/// Cases of one tenant that run side by side.
const SIDE_BY_SIDE: usize = 14;
/// What three tenants are promised.
const PERCENTS: [u32; 3] = [10, 30, 60];

/// What a program of `shim_share.c` launches, and how many of them a tenant has.
#[derive(Clone, Copy)]
struct Work {
    kind: &'static str,
    nanos: u64,
    processes: usize,
}

/// Whether programs run under the shim, or past it with the same cards before them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    Shim,
    Nothing,
}

/// A tenant: a run and its programs, which end with the value.
struct Tenant {
    supervisor: Child,
    pids: Vec<u32>,
}

/// Parts of one stretch of time, in percent of the card, and by how much the lack of a processor may have falsified one.
struct Seen {
    had: Vec<f64>,
    lacked: f64,
}

/// One case of a tenant alone.
#[derive(Clone, Copy)]
struct Alone {
    work: Work,
    percent: u32,
    under: Under,
}

// === impl Work ===

impl Work {
    const fn of(kind: &'static str, nanos: u64, processes: usize) -> Self {
        Self { kind, nanos, processes }
    }

    fn window(self) -> Duration {
        Duration::from_millis(500).max(Duration::from_nanos(40 * self.longest()))
    }

    /// Of its kernels: mixed ones are of a tenth to three times the length.
    fn longest(self) -> u64 {
        if self.kind == "mixed" { 3 * self.nanos } else { self.nanos }
    }

    fn shown(self) -> String {
        let micros = self.nanos / MICRO;
        let length = if micros < 1_000 {
            format!("{micros} µs")
        } else {
            format!("{} ms", figures(micros as f64 / 1e3))
        };
        format!("{} × {}, {length}", self.processes, self.kind)
    }
}

// === impl Tenant ===

impl Tenant {
    fn start(
        local: &Local,
        percent: u32,
        program: &Path,
        work: Work,
        under: Under,
        time: Duration,
    ) -> Result<Self, String> {
        // The shell prints the process IDs of its programs, and ends with them.
        let one = format!(
            "{} {} {} 64 {} >/dev/null & echo $!;",
            program.display(),
            work.kind,
            work.nanos,
            time.as_millis()
        );
        let bare = if under == Under::Nothing { "unset LD_PRELOAD;" } else { "" };
        let script = format!("{bare} {} echo all; wait", one.repeat(work.processes));
        let mut run: Command = local.run(&["--memory", "40Gi", "--cores", &percent.to_string()]);
        run.args(["--", "sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut supervisor = run.spawn().map_err(|error| error.to_string())?;
        let says = supervisor.stdout.take().ok_or("a run without output")?;
        let mut pids = Vec::new();
        for line in BufReader::new(says).lines() {
            match line.map_err(|error| error.to_string())?.parse() {
                Ok(pid) => pids.push(pid),
                Err(_) => break,
            }
        }
        if pids.len() == work.processes {
            Ok(Self { supervisor, pids })
        } else {
            Err(format!("{} of {} programs began", pids.len(), work.processes))
        }
    }

    fn had(&self, moment: &Moment) -> u64 {
        self.pids.iter().map(|pid| moment.device_nanos(*pid)).sum()
    }

    /// Whether all of its programs are on the card.
    fn is_there(&self, moment: &Moment) -> bool {
        self.pids.iter().all(|pid| moment.processes.iter().any(|process| process.pid == *pid))
    }

    /// Its programs may be in the middle of a wait for their turn, of minutes where many have long kernels.
    fn end(mut self) -> Result<(), String> {
        for pid in self.pids.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
            // The shell has not reaped it, so its process ID is not reused.
            kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(|error| error.to_string())?;
        }
        let status = self.supervisor.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("a tenant: {status}")) }
    }
}

/// What tenants had of a card for some time.
fn see(card: &Card, tenants: &[Tenant], time: Duration) -> Seen {
    let lack = Lack::of(tenants.iter().flat_map(|tenant| tenant.pids.clone()));
    let before = card.moment();
    std::thread::sleep(time);
    let (after, lacked) = (card.moment(), lack.most());
    let part = |nanos: u64| nanos as f64 * 100.0 / (after.at - before.at) as f64;
    let had = tenants.iter().map(|tenant| part(tenant.had(&after).saturating_sub(tenant.had(&before))));
    Seen { had: had.collect(), lacked: part(u64::try_from(lacked.as_nanos()).unwrap_or(u64::MAX)) }
}

/// Tenants at work, watched for some stretches of time after a first one in which they are learnt.
fn watch(
    program: &Path,
    tenants: &[(u32, Work)],
    under: Under,
    (learn, time, times): (Duration, Duration, u32),
) -> Result<Vec<Seen>, String> {
    let local = Local::new("h200");
    // They are ended when all is seen.
    let whole = learn + time * times + 2 * BOUND;
    let tenants = tenants
        .iter()
        .map(|(percent, work)| Tenant::start(&local, *percent, program, *work, under, whole))
        .collect::<Result<Vec<_>, _>>()?;
    let card = local.card();
    wait_for("all programs on the card", || {
        let moment = card.moment();
        tenants.iter().all(|tenant| tenant.is_there(&moment))
    });
    std::thread::sleep(learn);
    let seen = (0..times).map(|_| see(&card, &tenants, time)).collect();
    tenants.into_iter().try_for_each(Tenant::end)?;
    local.settle();
    Ok(seen)
}

// === one tenant ===

fn alone_cases() -> Vec<Alone> {
    let mut cases = Vec::new();
    for nanos in [50 * MILLI, 100 * MILLI, 200 * MILLI, SECOND] {
        for percent in [10, 50, 90] {
            for processes in [1, 4, 16] {
                let work = Work::of("plain", nanos, processes);
                cases.push(Alone { work, percent, under: Under::Shim });
            }
        }
        let others = [("graph", 30, 2), ("mixed", 50, 4), ("synchronous", 70, 1), ("cooperative", 30, 3)];
        // Mixed ones of three seconds would take most of an hour to tell anything.
        for (kind, percent, processes) in
            others.into_iter().filter(|(kind, ..)| nanos < SECOND || *kind != "mixed")
        {
            let work = Work::of(kind, nanos, processes);
            cases.push(Alone { work, percent, under: Under::Shim });
        }
        cases.push(Alone { work: Work::of("plain", nanos, 2), percent: 50, under: Under::Nothing });
    }
    cases
}

/// Greatest distance from the share in the windows that count, in points, and how many count.
fn off(case: Alone, seen: &[Seen]) -> (Option<f64>, usize) {
    let off = |seen: &Seen| (seen.had[0] - f64::from(case.percent)).abs();
    let counts: Vec<f64> = seen.iter().filter(|seen| seen.lacked <= POINTS_MAX / 2.0).map(off).collect();
    (counts.iter().copied().reduce(f64::max), counts.len())
}

fn alone(program: &Path, case: Alone, effort: Effort) -> Result<Vec<Seen>, String> {
    let window = case.work.window();
    // At first each process may run a kernel before anything is known, and all of it is paid back.
    let first = 100 * case.work.longest() * (case.work.processes as u64) / u64::from(case.percent);
    let learn = window.mul_f64(0.5) + Duration::from_nanos(first) + Duration::from_secs(1);
    let (learn, window, windows) =
        effort.pick((learn, window, WINDOWS), (Duration::from_millis(500), Duration::from_millis(200), 1));
    watch(program, &[(case.percent, case.work)], case.under, (learn, window, windows))
}

/// Cases side by side: their programs sleep nearly all of the time.
fn all_alone(program: &Path, cases: &[Alone], effort: Effort) -> Result<Vec<Vec<Seen>>, String> {
    let mut all = Vec::new();
    for some in cases.chunks(SIDE_BY_SIDE) {
        let seen: Vec<_> = std::thread::scope(|scope| {
            let each = |case: &Alone| {
                let case = *case;
                scope.spawn(move || alone(program, case, effort))
            };
            let running: Vec<_> = some.iter().map(each).collect();
            running
                .into_iter()
                .map(|case| case.join().unwrap_or_else(|_| Err("a case panicked".to_owned())))
                .collect()
        });
        for seen in seen {
            all.push(seen?);
        }
    }
    Ok(all)
}

/// Requested lengths in milliseconds; none: all of them.
fn wanted() -> Vec<u64> {
    std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect()
}

fn measure_alone(report: &mut Report, program: &Path, effort: Effort) -> Result<(), String> {
    let wanted = wanted();
    let is_wanted = |case: &Alone| wanted.is_empty() || wanted.contains(&(case.work.nanos / MILLI));
    let cases = alone_cases().into_iter().filter(is_wanted).take(effort.pick(usize::MAX, 1));
    let cases: Vec<Alone> = cases.collect();
    let mut rows = Vec::new();
    for (case, seen) in cases.iter().zip(all_alone(program, &cases, effort)?) {
        let (worst, counts) = off(*case, &seen);
        // Of sixteen each learns alone, in turns with all others: it may take a window more.
        let (promised, _) = off(*case, &seen[usize::from(case.work.processes == 16 && seen.len() > 1)..]);
        let had: Vec<String> = seen.iter().map(|seen| format!("{:.1}", seen.had[0])).collect();
        rows.push([
            format!("{}{}", case.work.shown(), if case.under == Under::Nothing { ", no shim" } else { "" }),
            case.percent.to_string(),
            figures(case.work.window().as_secs_f64()),
            had.join(" "),
            worst.map_or("–".to_owned(), |off| format!("{off:.1}")),
            format!("{counts} of {}", seen.len()),
        ]);
        let name = format!("{} at {} %: points off in any window", case.work.shown(), case.percent);
        match (promised, case.under) {
            (Some(off), Under::Shim) => report.promise(name, off, Promise::AtMost(POINTS_MAX)),
            (Some(off), Under::Nothing) => {
                report.promise(format!("{name}, without the shim"), off, Promise::AtLeast(POINTS_MAX));
            }
            (None, _) => println!("\n{name}: no window counts"),
        }
    }
    report.table(
        "A tenant alone under a cap: its part of the card in each window, and by how many points the worst is off. A window \
         counts in which no process lacked a processor for more than a point and a half of it. Of sixteen processes the first \
         window is not promised.",
        ["programs, kind, kernels", "share, %", "window, s", "had, %", "off, points", "windows"],
        &rows,
    );
    Ok(())
}

// === three tenants ===

fn three_cases() -> Vec<[Work; 3]> {
    let plain = |micros: [u64; 3], processes| micros.map(|one| Work::of("plain", one * MICRO, processes));
    vec![
        plain([1_000; 3], 1),
        plain([130, 5_000, 20_000], 1),
        plain([50_000, 1_000, 200], 1),
        plain([200_000, 1_000, 300], 1),
        [
            Work::of("graph", 800 * MICRO, 1),
            Work::of("mixed", 300 * MICRO, 1),
            Work::of("synchronous", MILLI, 1),
        ],
        plain([5_000; 3], 3),
        plain([300, 5_000, 2_000], 3),
        [Work::of("graph", 2 * MILLI, 3), Work::of("mixed", MILLI, 3), Work::of("plain", 5 * MILLI, 3)],
        plain([2_500, 10_000, 5_000], 5),
        plain([5_000; 3], 16),
        plain([20_000, 5_000, 10_000], 16),
        plain([1_000, 1_000_000, 1_000], 1),
    ]
}

fn measure_three(report: &mut Report, program: &Path, effort: Effort) -> Result<(), String> {
    let mut rows = Vec::new();
    let shim = three_cases().into_iter().map(|works| (works, Under::Shim));
    let cases = shim.chain([(three_cases()[0], Under::Nothing)]);
    for (works, under) in cases.take(effort.pick(usize::MAX, 1)) {
        let longest = Duration::from_nanos(works.iter().map(|work| work.longest()).max().unwrap_or(0));
        let learn = Duration::from_secs(6).max(40 * longest);
        let span = Duration::from_secs(6).max(40 * longest);
        let short = (Duration::from_millis(500), Duration::from_millis(200), 1);
        let times = effort.pick((learn, span, SPANS), short);
        let tenants: Vec<(u32, Work)> = PERCENTS.into_iter().zip(works).collect();
        let seen = watch(program, &tenants, under, times)?;
        let each = |of: &dyn Fn(&Seen) -> String| seen.iter().map(of).collect::<Vec<_>>().join(", ");
        let off: Vec<f64> = seen.iter().map(|seen| part_off(&seen.had)).collect();
        let middle = percentile(&off, 0.5);
        let of = works.map(Work::shown).join("; ");
        rows.push([
            format!("{of}{}", if under == Under::Nothing { ", no shim" } else { "" }),
            figures(times.1.as_secs_f64()),
            each(&|seen| shown(&seen.had)),
            each(&|seen| format!("{:.1}", part_off(&seen.had))),
            each(&|seen| format!("{:.1}", seen.lacked)),
        ]);
        match under {
            Under::Shim => report.promise(of, middle, Promise::AtMost(PART_MAX)),
            Under::Nothing => {
                report.promise(format!("{of}, without the shim"), middle, Promise::AtLeast(PART_MAX));
            }
        }
    }
    report.table(
        "Three tenants of 10, 30 and 60 %: their parts of the card in each span, by how many percent of itself the worst is off, \
         and for how much of the span the process that lacked a processor most had none. The middle of the spans is promised.",
        ["programs, kind, kernels of each", "span, s", "had, %", "off, % of a part", "lacked, %"],
        &rows,
    );
    Ok(())
}

fn shown(had: &[f64]) -> String {
    had.iter().map(|part| format!("{part:.1}")).collect::<Vec<_>>().join("/")
}

/// By how many percent of itself the worst part is off.
fn part_off(had: &[f64]) -> f64 {
    let off = |(percent, had): (&u32, &f64)| (had - f64::from(*percent)).abs() * 100.0 / f64::from(*percent);
    PERCENTS.iter().zip(had).map(off).fold(0.0, f64::max)
}

fn run() -> Result<ExitCode, String> {
    let effort = Effort::from_args();
    let mut report = Report::new("Parts of a card's time", effort);
    let bench = Bench::new();
    let program = match bench.compile("shim_share", Link::Direct) {
        Ok(program) => program,
        Err(StoodAside(why)) => {
            println!("\nstood aside: {why}");
            return Ok(report.finish());
        }
    };
    let three_alone = std::env::args().any(|word| word == "three");
    if !three_alone {
        measure_alone(&mut report, &program, effort)?;
    }
    if three_alone || wanted().is_empty() {
        measure_three(&mut report, &program, effort)?;
    }
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run())
}
