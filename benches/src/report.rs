//! Markdown on standard output: what was measured, where, and whether the promises are kept.

use std::fmt::Display;
use std::fs;
use std::process::{Command, ExitCode};

use crate::measure::{Effort, figures};

/// What a bench prints, and which of its promises were broken.
#[derive(Debug)]
pub struct Report {
    effort: Effort,
    promises: Vec<String>,
    broken: Vec<String>,
}

/// A bound on a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// The figure is this or more.
    AtLeast(f64),
    /// The figure is this or less.
    AtMost(f64),
}

// === impl Report ===

impl Report {
    /// Begins a page: its title and the machine.
    #[must_use]
    pub fn new(title: &str, effort: Effort) -> Self {
        println!("# {title}\n\n{}", machine());
        if effort == Effort::Once {
            println!("\nEach thing once and small: these figures mean nothing.");
        }
        Self { effort, promises: Vec::new(), broken: Vec::new() }
    }

    /// A table with a sentence above it.
    pub fn table<const COLUMNS: usize>(
        &self,
        about: &str,
        columns: [&str; COLUMNS],
        rows: &[[String; COLUMNS]],
    ) {
        println!("\n{about}\n\n| {} |", columns.join(" | "));
        println!("|{}", "---|".repeat(COLUMNS));
        for row in rows {
            println!("| {} |", row.join(" | "));
        }
    }

    /// Holds a figure against its promise; the end of the page says so. Small runs promise nothing.
    pub fn promise(&mut self, what: impl Display, figure: f64, promise: Promise) {
        if self.effort == Effort::Once {
            return;
        }
        let (kept, bound) = match promise {
            Promise::AtLeast(bound) => (figure >= bound, format!("at least {bound}")),
            Promise::AtMost(bound) => (figure <= bound, format!("at most {bound}")),
        };
        let word = if kept { "kept" } else { "BROKEN" };
        let line = format!("{what}: {}, promised {bound}", figures(figure));
        self.promises.push(format!("- {word}: {line}"));
        if !kept {
            self.broken.push(line);
        }
    }

    /// Ends the page; fails where a promise is broken.
    #[must_use]
    pub fn finish(self) -> ExitCode {
        if !self.promises.is_empty() {
            println!("\n{}", self.promises.join("\n"));
        }
        for line in &self.broken {
            eprintln!("broken promise: {line}");
        }
        if self.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The exit code of a bench: an error is said on standard error.
#[must_use]
pub fn ended(outcome: Result<ExitCode, String>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

/// Cores, kernel and compilers, without a name.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    let rust = version("rustc", &["--version"]).unwrap_or_else(|| "Rust unknown".to_owned());
    let go = version("go", &["version"]).unwrap_or_else(|| "no Go".to_owned());
    format!("{cores} cores, Linux {kernel}, {rust}, {go}.")
}

/// The part of a compiler's answer that names it: up to a date or an architecture.
fn version(program: &str, arguments: &[&str]) -> Option<String> {
    let answer = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let words = text.split_whitespace().filter(|word| *word != "version" && *word != "go");
    let words: Vec<&str> = words.take_while(|word| !word.starts_with('(') && !word.contains('/')).collect();
    Some(words.join(" ")).filter(|words| !words.is_empty())
}
