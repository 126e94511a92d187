//! Watches beside a command whether the limits of its run hold: what `aliquot top` calls `bypassed` and `broken`.
//!
//! ```text
//!   the driver's processes on the part ─┐
//!   process slots of the usage file ────┼─▶ LimitWatch::look ─▶ Loss, each once ─▶ the supervisor's standard error
//!   grants that a process started under ┘
//! ```
//!
//! The driver lists a process of the run that has no slot: it does not use the shim. A process counts if two looks in a row find it:
//! a process that begins or exits may be seen without its slot for a moment. The thread sleeps between looks, ever longer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use aliquot_core::units::Bytes;

use super::cards::CardProcesses;
use super::commands::Commands;
use super::processes::{command, grants_of, grants_of_run};
use crate::region::{GrantPaths, Life, UsageCopy, start_time};

/// Time before the first look, and the shortest between two.
const FIRST: Duration = Duration::from_millis(250);
/// The longest.
const LONGEST: Duration = Duration::from_millis(10_000);
/// Processes that are reported of one run.
const REPORTED_MAX: usize = 8;

/// The share to watch.
#[derive(Debug)]
pub struct LimitWatch {
    /// Its files.
    pub share: GrantPaths,
    /// Directory of all grants.
    pub grants: PathBuf,
    /// The driver's account of the part.
    pub driver: Arc<dyn CardProcesses>,
    found: Found,
}

/// What earlier looks found.
#[derive(Debug, Default)]
struct Found {
    /// Processes without a slot at the look before: pid and start time.
    suspects: BTreeSet<(u32, u64)>,
    reported: BTreeSet<(u32, u64)>,
    is_broken: bool,
}

/// A limit that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A process of the run uses the part without the shim.
    Bypassed {
        /// Its pid.
        pid: u32,
        /// Name of its program, which the program can change.
        command: Option<String>,
        /// Its memory, if the driver reports it.
        held: Option<Bytes>,
    },
    /// The usage file cannot be read, and the reason.
    Broken(String),
}

/// A thread beside a command; it ends after the value is dropped.
#[derive(Debug)]
pub struct Watching(#[expect(dead_code, reason = "dropping it ends the thread")] Sender<()>);

// === impl LimitWatch ===

impl LimitWatch {
    /// Of a share that no look was taken of yet.
    #[must_use]
    pub fn new(share: GrantPaths, grants: PathBuf, driver: Arc<dyn CardProcesses>) -> Self {
        Self { share, grants, driver, found: Found::default() }
    }

    /// Looks from now on, in its own thread, and reports each loss once. The thread is not joined: it may wait for a card that hangs.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(mut self, report: impl Fn(&Loss) + Send + 'static) -> io::Result<Watching> {
        let (watching, ended) = channel::<()>();
        std::thread::Builder::new().name("limits".to_owned()).spawn(move || {
            let mut rest = FIRST;
            while ended.recv_timeout(rest) == Err(RecvTimeoutError::Timeout) {
                self.look().iter().for_each(&report);
                // A suspect is looked at again soon.
                rest = if self.found.suspects.is_empty() { (rest * 2).min(LONGEST) } else { FIRST };
            }
        })?;
        Ok(Watching(watching))
    }

    /// Losses that no earlier look reported.
    pub fn look(&mut self) -> Vec<Loss> {
        // Before the slots: a process has its slot before the driver lists it.
        let listed = self.driver.processes().unwrap_or_default();
        let slots = match UsageCopy::of(&self.share.usage()) {
            Ok(usage) => usage.processes.into_iter().filter_map(|process| match process.life {
                Life::Held { pid } | Life::Named { pid } => pid,
                Life::Dead => None,
            }),
            // The part was given back.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => return self.found.broken(&error).into_iter().collect(),
        };
        let slots: BTreeSet<u32> = slots.collect();
        let commands = Commands::of(self.grants.parent());
        let missing = listed.into_iter().filter(|(pid, _)| !slots.contains(pid));
        let ours = missing.filter(|(pid, _)| is_of(*pid, &self.share.dir, &commands));
        let known = ours.filter_map(|(pid, held)| Some(((pid, start_time(pid)?), held)));
        self.found.bypassed(&known.collect())
    }
}

/// Whether a process was started under a share.
fn is_of(pid: u32, share: &Path, commands: &Commands) -> bool {
    let started = grants_of(pid).into_iter().chain(grants_of_run(pid, commands));
    started.filter(|dir| dir.is_absolute()).any(|dir| share.starts_with(dir))
}

// === impl Found ===

impl Found {
    fn broken(&mut self, error: &io::Error) -> Option<Loss> {
        self.suspects.clear();
        let first = !std::mem::replace(&mut self.is_broken, true);
        first.then(|| Loss::Broken(error.to_string()))
    }

    /// Those of the processes without a slot that are certain and new.
    fn bypassed(&mut self, missing: &BTreeMap<(u32, u64), Option<Bytes>>) -> Vec<Loss> {
        let before = std::mem::take(&mut self.suspects);
        let mut losses = Vec::new();
        for (process, held) in missing {
            if self.reported.contains(process) || self.reported.len() >= REPORTED_MAX {
                continue;
            }
            if before.contains(process) {
                self.reported.insert(*process);
                let pid = process.0;
                losses.push(Loss::Bypassed { pid, command: command(pid), held: *held });
            } else {
                self.suspects.insert(*process);
            }
        }
        losses
    }
}

// === impl Loss ===

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bypassed { pid, command, held } => {
                write!(f, "process {pid}")?;
                command.iter().try_for_each(|command| write!(f, " ({command})"))?;
                f.write_str(" uses the card without the shim: ")?;
                match held {
                    Some(held) => write!(f, "found {held} of memory that no limit of the run holds"),
                    None => f.write_str("no limit of the run holds for it"),
                }
            }
            Self::Broken(why) => {
                write!(
                    f,
                    "usage file of the run: found {why}, expected its process slots: nothing shows whether its limits hold"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(processes: &[(u32, u64)]) -> BTreeMap<(u32, u64), Option<Bytes>> {
        processes.iter().map(|process| (*process, Some(Bytes(3 << 30)))).collect()
    }

    fn pids(losses: Vec<Loss>) -> Vec<u32> {
        let pid = |loss| match loss {
            Loss::Bypassed { pid, .. } => pid,
            Loss::Broken(_) => 0,
        };
        losses.into_iter().map(pid).collect()
    }

    #[test]
    fn process_without_slot_counts_at_the_second_look_once() {
        let mut found = Found::default();
        let looks = [
            (&[(7, 1)][..], &[][..]),
            // The number belongs to another process now.
            (&[(7, 2), (8, 1)], &[]),
            (&[(7, 2)], &[7]),
            (&[(7, 2), (8, 1)], &[]),
            (&[(7, 2), (8, 1)], &[8]),
        ];
        for (number, (processes, expected)) in looks.into_iter().enumerate() {
            assert_eq!(pids(found.bypassed(&missing(processes))), expected, "look {number}");
        }
    }

    #[test]
    fn reports_of_one_run_are_bounded() {
        let mut found = Found::default();
        let many: Vec<(u32, u64)> = (1..100).map(|pid| (pid, 1)).collect();
        assert_eq!(found.bypassed(&missing(&many)), []);
        assert_eq!(found.bypassed(&missing(&many)).len(), REPORTED_MAX);
        assert_eq!(found.bypassed(&missing(&many)), []);
        assert!(found.suspects.is_empty(), "the thread may sleep long");
    }

    #[test]
    fn loss_names_process_and_memory_outside_the_limit() {
        let loss = Loss::Bypassed { pid: 7, command: Some("python".to_owned()), held: Some(Bytes(3 << 30)) };
        let text = "process 7 (python) uses the card without the shim: found 3Gi of memory that no limit of the run holds";
        assert_eq!(loss.to_string(), text);
        let mut found = Found::default();
        let error = io::Error::other("it is short");
        assert!(found.broken(&error).is_some_and(|loss| loss.to_string().contains("it is short")));
        assert_eq!(found.broken(&error), None);
    }
}
