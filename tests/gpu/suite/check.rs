//! The page: one row a check, with the shim and without, and a verdict. A row is written as soon as it is known.

use crate::card::{Bench, Mode};
use crate::program::Trouble;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whether a program runs under the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Preloaded, with a grant.
    Shim,
    /// As if there were no Aliquot: the control.
    Bare,
}

/// What one side of a check came to.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Figures, in words.
    pub(crate) said: String,
    /// What does not hold; nothing: the check holds.
    pub(crate) faults: Vec<String>,
}

impl Outcome {
    /// These figures; each promise with whether it was kept, and what is the matter where it was not.
    pub(crate) fn of(said: String, promises: impl IntoIterator<Item = (bool, String)>) -> Self {
        let broken = promises.into_iter().filter(|(kept, _)| !kept);
        Self { said, faults: broken.map(|(_, fault)| fault).collect() }
    }
}

/// The page as it is written.
#[derive(Debug)]
pub(crate) struct Page {
    file: Option<(PathBuf, File)>,
    failed: Vec<String>,
    counts: [usize; 3],
    heading: &'static str,
    /// What rows begin with.
    label: String,
}

/// Year, month and day of a moment, in universal time.
fn date(at: SystemTime) -> String {
    let days = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    // The calendar repeats after 400 years, counted from a first of March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

/// The card's name as a part of a file's.
fn slug(name: &str) -> String {
    let plain = name.to_lowercase().replace("nvidia", " ");
    let words = plain.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// The file that was named, or a dated one here; none where nothing can be written.
fn file(named: Option<&Path>, dated: &str) -> Option<(PathBuf, File)> {
    if let Some(path) = named {
        return File::create(path).ok().map(|file| (path.to_owned(), file));
    }
    let numbered = (1..100)
        .map(|number| if number == 1 { format!("{dated}.md") } else { format!("{dated}-{number}.md") });
    let mut paths = numbered.map(PathBuf::from);
    paths.find_map(|path| Some((path.clone(), File::create_new(&path).ok()?)))
}

/// A text that does not break a table.
fn cell(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('|', "/").trim().to_owned()
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

impl Page {
    /// Begins the page: when, with what, on which card, on which machine.
    pub(crate) fn new(bench: &Bench) -> Self {
        let (facts, plan) = (&bench.facts, &bench.plan);
        let today = date(SystemTime::now());
        let dated = format!("{today}-gpu-{}", slug(&facts.name));
        let file = file(plan.result.as_deref(), &dated);
        let mut page = Self { file, failed: Vec::new(), counts: [0; 3], heading: "", label: String::new() };
        if page.file.is_none() {
            eprintln!("no file can be written here: the page is the output alone");
        }
        page.line(&format!(
            "# The shim on {}\n\n    gpu/run {}\n",
            cell(&facts.name),
            plan.words.join(" ").trim_end()
        ));
        if plan.simulated {
            page.line("On a simulated card: this shows that the suite works, and says nothing about any real card.\n");
        }
        let version = read(&bench.carried("version").to_string_lossy());
        let mut about = vec![today];
        about.extend(version.map(|version| format!("Aliquot {version}")));
        about.push(format!("{} MiB, {} multiprocessors", facts.total >> 20, facts.processors));
        about.push(format!("CUDA {}.{}", facts.version / 1000, facts.version % 1000 / 10));
        about.extend(bench.about.iter().cloned());
        about.extend((facts.mode == Mode::Exclusive).then(|| "compute mode EXCLUSIVE_PROCESS".to_owned()));
        about.extend(facts.is_served.then(|| "MPS".to_owned()));
        about.extend(read("/proc/sys/kernel/osrelease").map(|release| format!("Linux {release}")));
        about.extend(std::thread::available_parallelism().ok().map(|count| format!("{count} processors")));
        page.line(&format!("{}.", about.iter().map(|text| cell(text)).collect::<Vec<_>>().join(", ")));
        page.moment(bench, "Before");
        page
    }

    fn line(&mut self, text: &str) {
        println!("{text}");
        if let Some((path, file)) = &mut self.file
            && let Err(error) = writeln!(file, "{text}")
        {
            eprintln!("{}: {error}", path.display());
            self.file = None;
        }
    }

    /// What the card says of itself at this point.
    fn moment(&mut self, bench: &Bench, when: &str) {
        let Ok(now) = bench.now() else { return };
        let figures = [
            ("processes", "other processes", 1),
            ("used", "MiB in use", 1 << 20),
            ("busy", "% busy", 1),
            ("clock", "MHz", 1),
            ("temperature", "°C", 1),
            ("milliwatts", "W at most", 1000),
        ];
        let mut said: Vec<String> = figures
            .iter()
            .filter_map(|(key, unit, divisor)| Some(format!("{} {unit}", now.get(key)? / divisor)))
            .collect();
        for (key, what) in [("persistence", "persistence mode"), ("ecc", "ECC")] {
            said.extend(now.get(key).map(|on| format!("{what} {}", if on == 1 { "on" } else { "off" })));
        }
        said.extend(now.get("slowed").map(|reasons| format!("reasons for lower clocks {reasons:#x}")));
        self.line(&format!("{when}: {}.", said.join(", ")));
    }

    /// Begins a section.
    pub(crate) fn section(&mut self, heading: &'static str) {
        if self.heading != heading {
            self.line(&format!(
                "\n## {heading}\n\n| check | with the shim | without | verdict |\n|---|---|---|---|"
            ));
            self.heading = heading;
        }
    }

    /// Rows that `run` writes begin with this.
    pub(crate) fn under(&mut self, label: &str, run: impl FnOnce(&mut Self)) {
        self.label = format!("{label}: ");
        run(self);
        self.label.clear();
    }

    /// Runs a check on both sides, where its section has so much time left.
    pub(crate) fn check(
        &mut self,
        bench: &Bench,
        what: &str,
        takes: Duration,
        mut run: impl FnMut(Side) -> Result<Outcome, Trouble>,
    ) {
        if bench.left() < takes {
            return self.late(what);
        }
        let shim = run(Side::Shim);
        let bare = run(Side::Bare);
        self.verdict(what, &shim, &bare);
    }

    /// There is no time left for this.
    pub(crate) fn late(&mut self, what: &str) {
        self.aside(what, "the section's time is over (--only and --minutes give it more)");
    }

    /// What both sides came to; without the shim the check must fail.
    pub(crate) fn verdict(
        &mut self,
        what: &str,
        shim: &Result<Outcome, Trouble>,
        bare: &Result<Outcome, Trouble>,
    ) {
        let said = |side: &Result<Outcome, Trouble>| {
            side.as_ref().map_or("–".to_owned(), |outcome| outcome.said.clone())
        };
        use Trouble::{Aside, Disturbed, Failed};
        let verdict = match (shim, bare) {
            (Err(Failed(why)), Err(Failed(_))) => Ok(format!("with the shim and without: {why}")),
            (Err(Failed(why)), _) => Ok(format!("with the shim: {why}")),
            (Err(Disturbed(why)), _) | (_, Err(Disturbed(why) | Aside(why))) => Err(why.clone()),
            (Err(Aside(why)), _) => Ok(format!("with the shim alone: {why}")),
            (Ok(_), Err(Failed(why))) => Ok(format!("without the shim: {why}")),
            (Ok(shim), Ok(bare)) if shim.faults.is_empty() && bare.faults.is_empty() => {
                Ok("it holds without the shim as well, and so shows nothing".to_owned())
            }
            (Ok(shim), Ok(_)) => Ok(shim.faults.join("; ")),
        };
        let cells = [said(shim), said(bare)];
        let cells = cells.each_ref().map(String::as_str);
        match verdict {
            Err(why) => self.row(what, cells, 2, &format!("stood aside: {why}")),
            Ok(fault) if fault.is_empty() => self.row(what, cells, 0, "OK"),
            Ok(fault) => self.row(what, cells, 1, &format!("FAILS: {fault}")),
        }
    }

    /// A figure of both sides, and what is the matter with the difference.
    pub(crate) fn compare(&mut self, what: &str, sides: [&str; 2], fault: Option<&str>) {
        match fault {
            None => self.row(what, sides, 0, "OK"),
            Some(fault) => self.row(what, sides, 1, &format!("FAILS: {fault}")),
        }
    }

    /// What was left out, and why.
    pub(crate) fn aside(&mut self, what: &str, why: &str) {
        self.row(what, ["–", "–"], 2, &format!("stood aside: {why}"));
    }

    /// What could not be done at all.
    pub(crate) fn trouble(&mut self, what: &str, trouble: &Trouble) {
        match trouble {
            Trouble::Aside(why) | Trouble::Disturbed(why) => self.aside(what, why),
            Trouble::Failed(why) => self.row(what, ["–", "–"], 1, &format!("FAILS: {why}")),
        }
    }

    fn row(&mut self, what: &str, [shim, bare]: [&str; 2], kind: usize, verdict: &str) {
        let (what, verdict) = (cell(&format!("{}{what}", self.label)), cell(verdict));
        self.line(&format!("| {what} | {} | {} | {verdict} |", cell(shim), cell(bare)));
        if let Some(count) = self.counts.get_mut(kind) {
            *count += 1;
        }
        if kind == 1 {
            self.failed.push(format!("{what}: {verdict}"));
        }
    }

    /// Ends the page; fails where a check failed.
    pub(crate) fn finish(mut self, bench: &Bench, took: Duration) -> ExitCode {
        self.line("");
        self.moment(bench, "After");
        let [well, failed, aside] = self.counts;
        self.line(&format!("{well} OK, {failed} FAILS, {aside} stood aside, in {} s.", took.as_secs()));
        for line in &self.failed {
            eprintln!("failed: {line}");
        }
        if let Some((path, _)) = &self.file {
            eprintln!("page: {}", path.display());
        }
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
