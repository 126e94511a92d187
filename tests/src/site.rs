//! A bench with the cards of a prepared node: its claims have usage accounting in a state directory, and
//! `aliquot top` reads both.

#![expect(clippy::unwrap_used, reason = "a test world that cannot be made fails the test that wants it")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::command_line::{Ran, ran};
use crate::local;
use crate::preload::shim;
use crate::simulated::Bench;

/// A bench, and a state directory with a node that has its cards.
#[derive(Debug)]
pub struct Site {
    /// The cards, which need not be there yet.
    pub bench: Bench,
    dir: TempDir,
}

/// What `aliquot` prints.
///
/// # Panics
/// It ends with a code, or complains.
#[must_use]
pub fn aliquot(words: &[&str]) -> String {
    let Ran { code, out, err } = ran([&["aliquot"], words].concat().iter().map(OsString::from));
    assert_eq!((code, err.as_str()), (0, ""));
    out
}

impl Site {
    /// Of the first `cards` of a bench; all of them are free.
    ///
    /// # Panics
    /// There is no place for files.
    #[must_use]
    pub fn new(bench: Bench, cards: usize) -> Self {
        fs::create_dir_all(bench.cards()).unwrap();
        let uuid = |card| format!("\"GPU-a11c0de0-51a0-4c4d-8000-{card:012x}\"");
        let uuids: Vec<String> = (0..cards).map(uuid).collect();
        let node = format!(
            "schema = 1\nname = \"bench\"\n[[card]]\nmodel = \"nvidia-t4-16gb\"\ncount = {cards}\nuuid = [{}]\n",
            uuids.join(", ")
        );
        let site = Self { bench, dir: TempDir::new().unwrap() };
        fs::write(site.file("node.toml"), node).unwrap();
        site
    }

    /// Prepares a claim with this description under another name.
    ///
    /// # Panics
    /// It cannot be.
    pub fn prepare(&self, claim: &str, description: &str) {
        let file = self.file("claim.yaml");
        fs::write(&file, description.replace("name: share\n", &format!("name: {claim}\n"))).unwrap();
        let (node, state) = (self.file("node.toml"), self.file("state"));
        let _said = aliquot(&["prepare", "-f", &file, "--node", &node, "--state", &state]);
    }

    /// Of the node's description, its state and whatever the test needs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A file of this site.
    ///
    /// # Panics
    /// Its directory is gone.
    #[must_use]
    pub fn file(&self, name: &str) -> String {
        self.dir.path().canonicalize().unwrap().join(name).display().to_string()
    }

    /// Where the grants of all claims lie.
    #[must_use]
    pub fn grants(&self) -> PathBuf {
        Path::new(&self.file("state")).join("grants")
    }

    /// A program as a tenant that has these grants.
    #[must_use]
    pub fn tenant(&self, grants: impl AsRef<OsStr>, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.bench.command(program);
        command.env("LD_PRELOAD", shim()).env("ALIQUOT_GRANTS", grants);
        command
    }

    /// What `aliquot top` shows; rates are over so many seconds.
    ///
    /// # Panics
    /// It shows nothing.
    #[must_use]
    pub fn top(&self, interval: &str) -> Value {
        let cards = self.bench.cards().display().to_string();
        let (node, state) = (self.file("node.toml"), self.file("state"));
        let places = ["top", "--state", &state, "--node", &node, "--cards", &cards];
        serde_json::from_str(&aliquot(&[&places[..], &["-n", interval, "-o", "json"]].concat())).unwrap()
    }

    /// What `aliquot top --refusals` shows of a claim, or the error.
    ///
    /// # Errors
    /// It does not know the claim.
    ///
    /// # Panics
    /// The program does not start.
    pub fn refusals(&self, claim: &str) -> Result<String, String> {
        let mut top = self.bench.command(local::aliquot());
        top.args(["top", "--state", &self.file("state"), "--node", &self.file("node.toml"), "--cards"]);
        let output = top.arg(self.bench.cards()).args(["--refusals", claim]).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}
