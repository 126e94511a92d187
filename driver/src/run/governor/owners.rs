//! Assigns a process that the driver reports to a grant: the grant with a present or recent slot for it, else the grant that it was
//! started under.
//!
//! The driver reports a process after it used the card, maybe after it exited. So the slots are recorded at each step, and the
//! process id is enough. The driver reports ids of the host; of a process in a container the kernel names the id of its slot's
//! lock. The tenant writes its slots; one that writes another's process id is billed for that process. A process without a slot
//! bypasses the shim; its mounts, its environment and those of its ancestors show its grant, else the record of the run whose
//! command it or an ancestor is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aliquot_enforce::units::Nanos;

use crate::region::start_time;
use crate::run::processes::started_under;

/// How long an exited process is remembered: the driver reports the last second, some drivers somewhat later.
const REMEMBERED: Nanos = Nanos::from_millis(5_000);
/// Most processes that are remembered of one grant: four times the number of slots.
const PROCESSES_MAX: usize = 4_096;

/// Processes of one grant, or of none.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: BTreeMap<u32, KnownOwner>,
}

#[derive(Clone, Copy, Debug)]
struct KnownOwner {
    /// Start time; 0: unknown.
    start: u64,
    seen_at: Nanos,
}

/// Grant directories that a process was started under.
#[derive(Debug)]
pub(super) struct StartedGrants(Vec<PathBuf>);

// === impl Owners ===

impl Owners {
    /// Records live processes.
    pub(super) fn see(&mut self, now: Nanos, processes: impl IntoIterator<Item = (u32, u64)>) {
        for (pid, start) in processes {
            if self.known.len() >= PROCESSES_MAX && !self.known.contains_key(&pid) {
                self.known.retain(|_, known| known.seen_at == now);
            }
            if self.known.len() < PROCESSES_MAX || self.known.contains_key(&pid) {
                self.known.insert(pid, KnownOwner { start, seen_at: now });
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Forgets processes that exited long ago.
    pub(super) fn forget(&mut self, now: Nanos) {
        self.known.retain(|_, known| now.minus(known.seen_at) <= REMEMBERED);
    }

    /// Whether this process is or was among them. A later process with the same id is not.
    pub(super) fn have(&self, pid: u32) -> bool {
        let began =
            |known: &KnownOwner| known.start == 0 || start_time(pid).is_none_or(|now| now == known.start);
        self.known.get(&pid).is_some_and(began)
    }

    /// Records a live process with the start time that the kernel reports.
    pub(super) fn note(&mut self, now: Nanos, pid: u32) {
        self.see(now, start_time(pid).map(|start| (pid, start)));
    }
}

// === impl StartedGrants ===

impl StartedGrants {
    /// Of a process; a command that cleared its environment is found by its run's record. `grants` is the directory of all grants.
    pub(super) fn of(pid: u32, grants: &Path) -> Self {
        Self(started_under(pid, grants))
    }

    /// Whether it was started under this share.
    pub(super) fn is_under(&self, share: &Path) -> bool {
        self.0.iter().any(|dir| if dir.is_absolute() { share.starts_with(dir) } else { share.ends_with(dir) })
    }
}
