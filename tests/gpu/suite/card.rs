//! The card and the programs that run on it.

use crate::Plan;
use crate::check::Side;
use aliquot_tests::preload::Tenant;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Exit code of the probe where there is no driver or card.
const ABSENT: i32 = 3;

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
    /// Bytes.
    pub(crate) total: u64,
    /// 1000 × major + 10 × minor.
    pub(crate) version: u64,
    /// Multiprocessors.
    pub(crate) processors: u64,
}

/// The card, and what was carried to it.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The card.
    pub(crate) facts: Facts,
    /// Whether it is simulated.
    pub(crate) simulated: bool,
    /// Of each kind of measurement one is enough.
    pub(crate) few: bool,
    carried: PathBuf,
}

/// Keys and numbers that a program said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    text: String,
    numbers: BTreeMap<String, u64>,
}

/// A probe that does something now, or holds something until it is let go.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    /// What it said before it was ready.
    pub(crate) before: Said,
}

// === impl Said ===

impl Said {
    fn of(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        let numbers = pairs.filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?)));
        Self { text: text.to_owned(), numbers: numbers.collect() }
    }

    /// A number by its key.
    ///
    /// # Errors
    /// It was not said.
    pub(crate) fn number(&self, key: &str) -> Result<u64, String> {
        self.numbers.get(key).copied().ok_or_else(|| format!("the program did not say {key}: {}", self.text))
    }

    fn word(&self, key: &str) -> Option<String> {
        self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned))
    }

    /// The lines of this key, each as the numbers after it.
    pub(crate) fn rows(&self, key: &str) -> Vec<Vec<f64>> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        lines.map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect()).collect()
    }
}

// === impl Bench ===

impl Bench {
    /// Looks at the card.
    ///
    /// # Errors
    /// There is none, or what was carried does not run here.
    pub(crate) fn open(plan: &Plan) -> Result<Self, NoCard> {
        let probe = plan.carried.join("probe");
        let output = Command::new(&probe)
            .arg("facts")
            .output()
            .map_err(|error| NoCard(format!("{}: {error}", probe.display())))?;
        let said = Said::of(&String::from_utf8_lossy(&output.stdout));
        let number = |key: &str| said.number(key).map_err(NoCard);
        if !output.status.success() {
            let absent = output.status.code() == Some(ABSENT);
            let why = said.word("reason").unwrap_or_else(|| format!("{output:?}"));
            return Err(NoCard(if absent { format!("there is no card here: {why}") } else { why }));
        }
        let text = |key: &str| said.word(key).ok_or_else(|| NoCard(format!("the card has no {key}")));
        let facts = Facts {
            name: text("name")?,
            uuid: text("uuid")?,
            total: number("total")?,
            version: number("version")?,
            processors: number("processors")?,
        };
        Ok(Self { facts, simulated: plan.simulated, few: plan.few, carried: plan.carried.clone() })
    }

    /// A program on this side; the tenant's grants count on the shim's alone.
    pub(crate) fn command(&self, side: Side, tenant: &Tenant, program: &str) -> Command {
        let carried = self.carried.join(program);
        let mut command = Command::new(if carried.is_file() { carried } else { program.into() });
        if side == Side::Shim {
            command
                .env("LD_PRELOAD", self.carried.join("libaliquot.so"))
                .env("ALIQUOT_GRANTS", tenant.grants());
        }
        command
    }

    /// A file that was carried along.
    pub(crate) fn carried(&self, name: &str) -> PathBuf {
        self.carried.join(name)
    }

    /// Runs the probe to its end.
    ///
    /// # Errors
    /// It failed.
    pub(crate) fn probe(&self, side: Side, tenant: &Tenant, words: &[&str]) -> Result<Said, String> {
        let output = self.command(side, tenant, "probe").args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("probe {words:?}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(Said::of(&text))
        } else {
            Err(format!("probe {words:?}: {text}{output:?}"))
        }
    }

    /// Starts the probe and waits until it is ready.
    ///
    /// # Errors
    /// It failed before.
    pub(crate) fn start(&self, side: Side, tenant: &Tenant, words: &[&str]) -> Result<Running, String> {
        let mut command = self.command(side, tenant, "probe");
        let child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("probe {words:?}: {error}"))?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut running = Running { child, output: BufReader::new(output), before: Said::default() };
        let mut text = String::new();
        loop {
            let mut line = String::new();
            let read = running.output.read_line(&mut line).map_err(|error| error.to_string())?;
            match line.trim_end() {
                "ready" => break,
                _ if read == 0 => return Err(format!("probe {words:?} ended: {text}")),
                _ => text.push_str(&line),
            }
        }
        running.before = Said::of(&text);
        Ok(running)
    }

    /// Bytes used on the card, as a process without the shim is told.
    ///
    /// # Errors
    /// The card does not tell.
    pub(crate) fn truth(&self) -> Result<u64, String> {
        self.probe(Side::Bare, &Tenant::new(), &["truth", &self.facts.uuid])?.number("nvml_used")
    }

    /// Units of work of a kernel that takes this long on an idle card, and how long it takes exactly.
    ///
    /// # Errors
    /// The probe failed.
    pub(crate) fn calibrate(&self, nanos: u64, blocks: u32) -> Result<(u64, f64), String> {
        if self.simulated {
            return Ok((nanos, nanos as f64));
        }
        let words = ["calibrate", &nanos.to_string(), &blocks.to_string()];
        let said = self.probe(Side::Bare, &Tenant::new(), &words)?;
        Ok((said.number("units")?, said.number("nanos")? as f64))
    }
}

// === impl Running ===

impl Running {
    /// Lets it go on.
    pub(crate) fn go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It failed.
    pub(crate) fn ended(mut self) -> Result<Said, String> {
        self.go();
        let mut text = String::new();
        self.output.read_to_string(&mut text).map_err(|error| error.to_string())?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(Said::of(&text)) } else { Err(format!("probe: {status}: {text}")) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone is gone: it may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
