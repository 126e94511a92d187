//! The page: one row a check, with the shim and without, and a verdict.

use crate::card::Bench;
use std::process::ExitCode;

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
    /// Whether the check holds.
    pub(crate) holds: bool,
}

/// The page as it is printed.
#[derive(Debug)]
pub(crate) struct Page {
    failed: Vec<String>,
    section: &'static str,
}

impl Page {
    /// Begins the page: what the card is.
    pub(crate) fn new(bench: &Bench, simulated: bool) -> Self {
        let facts = &bench.facts;
        println!("# The shim on a card\n");
        if simulated {
            println!(
                "On a simulated card: this shows that the suite works, and says nothing about any real card.\n"
            );
        }
        println!(
            "{}, {} MiB, {} multiprocessors, CUDA {}.{}.",
            facts.name,
            facts.total >> 20,
            facts.processors,
            facts.version / 1000,
            facts.version % 1000 / 10
        );
        Self { failed: Vec::new(), section: "" }
    }

    /// Runs a check on both sides.
    ///
    /// # Errors
    /// A program could not be run at all.
    pub(crate) fn check(
        &mut self,
        section: &'static str,
        what: &str,
        mut run: impl FnMut(Side) -> Result<Outcome, String>,
    ) -> Result<(), String> {
        let (shim, bare) = (run(Side::Shim)?, run(Side::Bare)?);
        let verdict = match (shim.holds, bare.holds) {
            (true, false) => "holds",
            (true, true) => "SHOWS NOTHING: holds without the shim as well",
            (false, _) => "FAILS",
        };
        self.row(section, what, [&shim.said, &bare.said], verdict);
        if verdict != "holds" {
            self.failed.push(format!("{what}: {verdict}"));
        }
        Ok(())
    }

    /// A figure of both sides, and whether the difference is within its bound.
    pub(crate) fn compare(&mut self, section: &'static str, what: &str, sides: [&str; 2], within: bool) {
        let verdict = if within { "within" } else { "TOO MUCH" };
        self.row(section, what, sides, verdict);
        if !within {
            self.failed.push(format!("{what}: {verdict}"));
        }
    }

    /// What was left out, and why.
    pub(crate) fn aside(&mut self, section: &'static str, what: &str, why: &str) {
        self.row(section, what, ["–", "–"], &format!("stood aside: {}", why.replace(['\n', '|'], " ")));
    }

    fn row(&mut self, section: &'static str, what: &str, [shim, bare]: [&str; 2], verdict: &str) {
        if self.section != section {
            println!("\n## {section}\n\n| check | with the shim | without | verdict |\n|---|---|---|---|");
            self.section = section;
        }
        println!("| {what} | {shim} | {bare} | {verdict} |");
    }

    /// Ends the page; fails where a check failed.
    pub(crate) fn finish(self) -> ExitCode {
        for line in &self.failed {
            eprintln!("failed: {line}");
        }
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
