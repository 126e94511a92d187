//! The card, the programs that run on it, and what it says of itself meanwhile.

use crate::check::Side;
use crate::plan::Plan;
use crate::program::{Program, Said, Trouble};
use aliquot_tests::preload::Tenant;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest that one program may take where nothing else is said.
const PROGRAM_MAX: Duration = Duration::from_secs(60);
/// What a program may take beyond the time of its section, so that a check that was begun can end: such a part of all the time.
const GRACE_PART: u32 = 48;
/// An idle driver may first have to start its card.
const START_MAX: Duration = Duration::from_secs(100);
/// Longest wait until memory of programs that ended is back, and how often it is looked at.
const SETTLE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_millis(50));
/// Variables that change what programs do on a card: they run as if there were none.
const CLEARED: [&str; 7] = [
    "LD_PRELOAD",
    "ALIQUOT_GRANTS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_INJECTION64_PATH",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_MODULE_LOADING",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
];
/// Where vendors' packages and container runtimes put the driver, for machines on which the loader does not look there.
const PLACES: [&str; 9] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia",
    "/run/opengl-driver/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/compat",
];

/// Why there is nothing to do here.
#[derive(Debug)]
pub(crate) struct NoCard(pub String);

/// What the probe says about the card.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// As the driver names it.
    pub(crate) name: String,
    /// As grants name it.
    pub(crate) uuid: String,
    /// Whether it is an instance of a card in MIG mode.
    pub(crate) is_part: bool,
    /// Bytes.
    pub(crate) total: u64,
    /// 1000 × major + 10 × minor.
    pub(crate) version: u64,
    /// Multiprocessors.
    pub(crate) processors: u32,
    /// Threads that one of them holds.
    pub(crate) threads: u32,
    /// How many processes may use it.
    pub(crate) mode: Mode,
    /// Whether processes meet in one server (MPS) and run side by side.
    pub(crate) is_served: bool,
}

/// The vendor's compute mode, as far as cards with it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Any number of processes.
    Default,
    /// One process at a time.
    Exclusive,
}

/// The card, and what was carried to it.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The card.
    pub(crate) facts: Facts,
    /// What is to be done.
    pub(crate) plan: Plan,
    /// More directories in which the loader searches for the driver.
    libraries: Option<PathBuf>,
    /// The carried programs, at a path that a preload may have.
    carried: PathBuf,
    watch: RefCell<Program>,
    /// What `CUDA_VISIBLE_DEVICES` is for programs, where it is not as it was found.
    visible: RefCell<Option<String>>,
    /// Of an instance `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`, where NVML reports it.
    pub(crate) path: Option<String>,
    /// Lines about the card and its driver, as the page begins with.
    pub(crate) about: Vec<String>,
    ends: Cell<Instant>,
}

/// What the card says now; a figure that it does not have is not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Now(BTreeMap<String, u64>);

impl Now {
    fn of(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let pairs = words.chunks(2).filter_map(|pair| match pair {
            [key, value] => Some(((*key).to_owned(), value.parse().ok()?)),
            _ => None,
        });
        Self(pairs.collect())
    }

    /// A figure.
    pub(crate) fn get(&self, key: &str) -> Option<u64> {
        self.0.get(key).copied()
    }
}

/// What `probe facts` says, with the driver where the loader finds it, or where it may be.
fn facts(carried: &Path) -> Result<(Said, Option<PathBuf>), NoCard> {
    let ask = |place: Option<&Path>| {
        let mut command = Command::new(carried.join("probe"));
        prepare(&mut command, place);
        let program = Program::start(command.arg("facts"), START_MAX).and_then(Program::ended);
        program.map_err(|trouble| match trouble {
            Trouble::Aside(why) => format!("there is no card here: {why}"),
            Trouble::Disturbed(why) | Trouble::Failed(why) => why,
        })
    };
    let first = match ask(None) {
        Ok(said) => return Ok((said, None)),
        Err(why) => why,
    };
    // What was not found may be elsewhere; what refuses does so from everywhere.
    let places = PLACES.map(PathBuf::from);
    let places =
        places.iter().filter(|place| first.contains("libcuda.so.1:") && place.join("libcuda.so.1").exists());
    let mut found = places.filter_map(|place| Some((ask(Some(place)).ok()?, Some(place.clone()))));
    found.next().ok_or(NoCard(first))
}

fn prepare(command: &mut Command, libraries: Option<&Path>) {
    for name in CLEARED {
        command.env_remove(name);
    }
    if let Some(place) = libraries {
        let more = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let colon = if more.is_empty() { "" } else { ":" };
        command.env("LD_LIBRARY_PATH", format!("{}{colon}{more}", place.display()));
    }
}

impl Facts {
    fn of(said: &Said) -> Result<Self, NoCard> {
        let absent = |trouble: Trouble| NoCard(trouble.why().to_owned());
        let number = |key: &str| said.number(key).map_err(absent);
        let small = |key: &str| number(key).map(|value| u32::try_from(value).unwrap_or(u32::MAX));
        let text = |key: &str| said.word(key).ok_or_else(|| NoCard(format!("the card has no {key}")));
        let name = text("name")?;
        let mode = match said.number("compute_mode") {
            Ok(2) => return Err(NoCard(format!("{name}'s compute mode is PROHIBITED"))),
            Ok(1 | 3) => Mode::Exclusive,
            _ => Mode::Default,
        };
        Ok(Self {
            name,
            uuid: text("uuid")?,
            is_part: number("part")? == 1,
            total: number("total")?,
            version: number("version")?,
            processors: small("processors")?.max(1),
            threads: small("threads").unwrap_or(2_048),
            mode,
            is_served: said.number("mps").is_ok_and(|mps| mps == 1),
        })
    }
}

// === impl Bench ===

impl Bench {
    /// Opens the card. `carried` is where its programs are, at a path that a preload may have.
    ///
    /// # Errors
    /// There is none for this suite, or what was carried does not run here.
    pub(crate) fn open(plan: Plan, carried: PathBuf) -> Result<Self, NoCard> {
        let (said, libraries) = facts(&carried)?;
        let facts = Facts::of(&said)?;
        let mut command = Command::new(carried.join("probe"));
        prepare(&mut command, libraries.as_deref());
        let started = Program::start(command.args(["watch", &facts.uuid]), START_MAX);
        let opened = started.and_then(|mut watch| watch.ready().map(|said| (watch, said)));
        let (watch, told) = opened
            .map_err(|trouble| NoCard(format!("no source reports the card's memory: {}", trouble.why())))?;
        if facts.mode == Mode::Exclusive && told.word("without").is_some() {
            let why = "its compute mode lets one process at a time use it, and NVML is not here to tell what that one holds";
            return Err(NoCard(format!("{}: {why}", facts.name)));
        }
        let mut about = Vec::new();
        about.extend(facts.is_part.then(|| format!("the instance {} of a card in MIG mode", facts.uuid)));
        about.extend(told.word("driver").map(|version| format!("driver {version}")));
        about.extend(
            told.word("without")
                .map(|why| format!("no NVML ({why}): what the card holds is told by cuMemGetInfo")),
        );
        about.extend(libraries.as_ref().map(|place| format!("libcuda.so.1 found in {}", place.display())));
        // Every program has the very instance that was looked at.
        let visible = RefCell::new(facts.is_part.then(|| facts.uuid.clone()));
        let path = told.word("path").filter(|_| facts.is_part);
        about.extend(path.as_ref().map(|path| format!("also called {path}")));
        let bench = Self {
            facts,
            visible,
            path,
            plan,
            libraries,
            carried,
            watch: RefCell::new(watch),
            about,
            ends: Cell::new(Instant::now()),
        };
        match bench.now() {
            Ok(now) if now.get("mig") == Some(1) => {
                let why = "is in MIG mode, and the driver does not tell of which instance it shows";
                Err(NoCard(format!("{} {why}", bench.facts.name)))
            }
            Ok(_) => Ok(bench),
            Err(trouble) => Err(NoCard(format!("the card tells nothing: {}", trouble.why()))),
        }
    }

    /// The checks from here on have so much time together.
    pub(crate) fn allow(&self, time: Duration) {
        self.ends.set(Instant::now() + time);
    }

    /// What of it is left.
    pub(crate) fn left(&self) -> Duration {
        self.ends.get().saturating_duration_since(Instant::now())
    }

    fn limit(&self, most: Duration) -> Duration {
        most.min(self.left() + self.plan.time / GRACE_PART)
    }

    /// A program on this side; the tenant's grants count on the shim's alone.
    pub(crate) fn command(&self, side: Side, tenant: &Tenant, program: &str) -> Command {
        let carried = self.carried.join(program);
        let mut command = Command::new(if carried.is_file() { carried } else { program.into() });
        prepare(&mut command, self.libraries.as_deref());
        if let Some(visible) = self.visible.borrow().as_ref() {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        if side == Side::Shim {
            command
                .env("LD_PRELOAD", self.carried.join("libaliquot.so"))
                .env("ALIQUOT_GRANTS", tenant.grants());
        }
        command
    }

    /// While `run` runs, programs have the card by this name.
    pub(crate) fn by_name(&self, name: &str, run: impl FnOnce()) {
        let before = self.visible.replace(Some(name.to_owned()));
        run();
        self.visible.replace(before);
    }

    /// A file that was carried along.
    pub(crate) fn carried(&self, name: &str) -> PathBuf {
        self.carried.join(name)
    }

    /// Starts a program that may take this long, and as its section has time.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn program(&self, command: &mut Command, most: Duration) -> Result<Program, Trouble> {
        Program::start(command, self.limit(most))
    }

    /// Runs the probe to its end.
    ///
    /// # Errors
    /// It failed.
    pub(crate) fn probe(&self, side: Side, tenant: &Tenant, words: &[&str]) -> Result<Said, Trouble> {
        self.program(self.command(side, tenant, "probe").args(words), PROGRAM_MAX)?.ended()
    }

    /// Starts the probe and waits until it is ready; what it said until then.
    ///
    /// # Errors
    /// It failed before.
    pub(crate) fn start(
        &self,
        side: Side,
        tenant: &Tenant,
        words: &[&str],
    ) -> Result<(Program, Said), Trouble> {
        let mut program = self.program(self.command(side, tenant, "probe").args(words), PROGRAM_MAX)?;
        let said = program.ready()?;
        Ok((program, said))
    }

    /// What the card says now.
    ///
    /// # Errors
    /// It says nothing.
    pub(crate) fn now(&self) -> Result<Now, Trouble> {
        let mut watch = self.watch.borrow_mut();
        watch.allow(PROGRAM_MAX);
        let line = watch.ask("now")?;
        match line.strip_prefix("failed ") {
            Some(why) => Err(Trouble::Failed(why.to_owned())),
            None => Ok(Now::of(&line)),
        }
    }

    /// Bytes used on the card, as reported to a process without the shim.
    ///
    /// # Errors
    /// The card does not tell.
    pub(crate) fn truth(&self) -> Result<u64, Trouble> {
        let used = self.now()?.get("used");
        used.ok_or_else(|| Trouble::Failed("the card does not tell what is used".to_owned()))
    }

    /// The same once it does not change any more: what programs held that ended comes back with a delay.
    ///
    /// # Errors
    /// The card does not tell.
    pub(crate) fn settled(&self) -> Result<u64, Trouble> {
        let until = Instant::now() + SETTLE.0;
        let mut used = self.truth()?;
        loop {
            std::thread::sleep(SETTLE.1);
            let next = self.truth()?;
            if next == used || Instant::now() > until {
                return Ok(next);
            }
            used = next;
        }
    }
}
