//! Ends local runs from outside of them.
//!
//! ```text
//!   TERM ─▶ supervisor ─forwards─▶ command         its end ─▶ supervisor releases the part
//!   supervisor has ended, processes live ─▶ TERM to these
//!   grace is over ─▶ KILL to all but the supervisor ─▶ after a while to the supervisor as well
//! ```
//!
//! A signal is sent only to processes that the kernel's own evidence ties to the run (`liveness`): a tenant writes its usage file,
//! and could name any process there.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aliquot_core::id::ClaimUid;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::record::{self, RunProcesses};
use crate::clock;

/// Time after the grace period in which a supervisor releases the part of a command that was killed.
const SUPERVISOR: Duration = Duration::from_secs(2);
/// Time after that in which killed processes have to be gone: the driver may end their work first.
const GONE: Duration = Duration::from_secs(5);

/// Why a run goes on.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The caller is one of its processes.
    #[error("this command was started inside of the run; start it from another shell")]
    Inside,
    /// Its processes cannot be named here.
    #[error(
        "its processes are in another pid namespace or of another user; end them there, as the user that started it"
    )]
    OutOfSight,
    /// The kernel refuses the signal.
    #[error("process {pid} cannot be signalled: {errno}; end it as its user")]
    Refused {
        /// Process.
        pid: u32,
        /// Why.
        errno: Errno,
    },
    /// They do not end, or the driver does not end their work.
    #[error("processes {0:?} live on after SIGKILL: the driver or a file system holds them; try again later")]
    Stays(BTreeSet<u32>),
    /// The record cannot be read.
    #[error("its record cannot be read: {0}")]
    Record(#[from] io::Error),
}

/// A run that is being ended.
#[derive(Debug)]
pub struct StoppingRun {
    uid: ClaimUid,
    grants: PathBuf,
    began: Instant,
    /// Processes that were sent `SIGTERM`.
    asked: BTreeSet<u32>,
    /// Processes that were seen: one that the driver still ends has no name any more.
    seen: BTreeSet<u32>,
}

// === impl StoppingRun ===

impl StoppingRun {
    /// Ends nothing yet. `grants` is the directory of its claim.
    #[must_use]
    pub fn new(uid: ClaimUid, grants: PathBuf) -> Self {
        Self { uid, grants, began: clock::now(), asked: BTreeSet::new(), seen: BTreeSet::new() }
    }

    /// Signals the processes that are due; returns whether all have ended. To be called until then.
    ///
    /// # Errors
    /// [`StopError`]: no further call helps.
    pub fn step(&mut self, state: &Path, grace: Duration) -> Result<bool, StopError> {
        let elapsed = self.began.elapsed();
        let Some(RunProcesses { supervisor, others, in_sight }) =
            record::processes(state, &self.uid, self.grants.clone())?
        else {
            return Ok(true);
        };
        if others.contains(&std::process::id()) {
            return Err(StopError::Inside);
        }
        self.seen.extend(supervisor.iter().chain(&others));
        if !in_sight || self.seen.is_empty() {
            return Err(StopError::OutOfSight);
        }
        if elapsed < grace {
            // A supervisor forwards the signal, so that the command can end its own processes in order.
            let first = supervisor.map_or(others, |pid| BTreeSet::from([pid]));
            for pid in first {
                if self.asked.insert(pid) {
                    send(pid, Signal::SIGTERM)?;
                    // A stopped process acts on it once it goes on.
                    send(pid, Signal::SIGCONT)?;
                }
            }
            return Ok(false);
        }
        let last = supervisor.filter(|_| elapsed >= grace + SUPERVISOR);
        if elapsed >= grace + SUPERVISOR + GONE {
            let living: BTreeSet<u32> = others.into_iter().chain(last).collect();
            return Err(StopError::Stays(if living.is_empty() { self.seen.clone() } else { living }));
        }
        others.into_iter().chain(last).try_for_each(|pid| send(pid, Signal::SIGKILL))?;
        Ok(false)
    }
}

/// Sends a signal; a process that has ended meanwhile needs none.
fn send(pid: u32, signal: Signal) -> Result<(), StopError> {
    let Ok(number) = i32::try_from(pid) else { return Ok(()) };
    match kill(Pid::from_raw(number), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(StopError::Refused { pid, errno }),
    }
}
