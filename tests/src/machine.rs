//! A machine with NVIDIA cards: the simulated libraries are where a loader finds the vendor's, and `aliquot`
//! runs without options for simulation.

#![expect(clippy::unwrap_used, reason = "a test world that cannot be made fails the test that wants it")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use aliquot_driver::region;
use serde_json::Value;
use tempfile::TempDir;

use crate::local::aliquot;
use crate::simulated::Bench;

/// Three cards: one of the catalogue, one of it without MIG, one that it does not have.
pub const CARDS: &str = r#"
[[card]]
[[card]]
name = "Tesla T4"
uuid = "GPU-74740000-0000-0000-0000-000000000001"
memory_bytes = 16106127360
pci_id = 0x1eb810de
major = 7
minor = 5
bus = 33
mig = "none"
[[card]]
name = "NVIDIA GeForce RTX 4090"
uuid = "GPU-40900000-0000-0000-0000-000000000002"
memory_bytes = 25757220864
pci_id = 0x268410de
major = 8
minor = 9
bus = 34
mig = "none"
"#;

/// A machine with NVIDIA's libraries.
#[derive(Debug)]
pub struct Machine {
    /// The cards, and the libraries that show them.
    pub bench: Bench,
    place: TempDir,
}

impl Machine {
    /// With cards of the default kind.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Bench::new())
    }

    /// With these libraries.
    #[must_use]
    pub fn with(bench: Bench) -> Self {
        let place = TempDir::new().unwrap();
        fs::create_dir(place.path().join("state")).unwrap();
        Self { bench, place }
    }

    /// With these cards and what else the text says.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let machine = Self::new();
        machine.bench.write("node.toml", text);
        machine
    }

    /// A directory for whatever the test needs; goes with the value.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.place.path()
    }

    /// The state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// `aliquot` on this state.
    #[must_use]
    pub fn aliquot(&self, command: &str, arguments: &[&str]) -> Command {
        let mut aliquot = self.bench.command(aliquot());
        aliquot.arg(command).arg("--state").arg(self.state()).args(arguments);
        aliquot
    }

    /// The cards, as `devices` reports them.
    #[must_use]
    pub fn devices(&self) -> Vec<Value> {
        let output = self.aliquot("devices", &["-o", "json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        value["nodes"][0]["cards"].as_array().unwrap().clone()
    }

    /// A run of a tenant of the demo, and the words that it said first.
    #[must_use]
    pub fn tenant(&self, grant: &[&str], what: &[&str]) -> (Child, Vec<String>) {
        let mut command = self.aliquot("run", grant);
        command.arg("--").arg(aliquot()).arg("demo-tenant").args(what);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        (child, line.split(' ').map(str::to_owned).collect())
    }

    /// What `top` says.
    #[must_use]
    pub fn top(&self, arguments: &[&str]) -> Value {
        let output = self.aliquot("top", &["-o", "json"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Every call of a symbol goes wrong like this from now on.
    pub fn fault(&self, symbol: &str, action: &str) {
        self.bench.write("faults.toml", &format!("[[fault]]\nsymbol = \"{symbol}\"\naction = {action}\n"));
    }

    /// Nothing goes wrong any more.
    pub fn no_fault(&self) {
        fs::remove_file(self.bench.cards().join("faults.toml")).unwrap();
    }

    /// A run, and what its limits said of contexts; 0: nothing.
    #[must_use]
    pub fn told(&self, ask: &[&str]) -> (Output, u64) {
        let limits = self.dir().join("seen");
        let script = format!("cat $ALIQUOT_GRANTS/*/limits >{}", limits.display());
        let output = self.aliquot("run", ask).args(["--", "sh", "-c", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let published = region::read(&limits).unwrap().context_bytes;
        (output, published)
    }

    /// The same of a run that says nothing of contexts.
    #[must_use]
    #[track_caller]
    pub fn told_quietly(&self) -> u64 {
        let (output, published) = self.told(&["--memory", "1Gi"]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        published
    }

    /// How many claims have grants.
    #[must_use]
    pub fn claims(&self) -> usize {
        fs::read_dir(self.state().join("grants")).map_or(0, Iterator::count)
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}
