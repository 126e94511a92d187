//! Whose a process is that the driver names: the grant's that has a slot for it or had one a moment ago, else the grant's that it
//! was started under.
//!
//! The driver tells of a process after its time, and by then it may have ended: the slots are noted at each step, so that nothing
//! but the number need be left of it. Slots are their tenant's word; whoever writes another's number there is billed for him. A
//! process without a slot runs past the shim; whose it is say its mounts, its environment, and those of who started it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aliquot_enforce::units::Nanos;

use crate::region::start_time;
use crate::view::processes::grants_of;

/// How long a process is remembered that was there: the driver tells of the last second, some drivers somewhat later.
const REMEMBERED: Nanos = Nanos::from_millis(5_000);
/// Most processes that are remembered of one grant: as many as have slots, four times over.
const PROCESSES_MAX: usize = 4_096;

/// Processes of one grant, or of none.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: BTreeMap<u32, Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// When it began; 0: nobody says.
    start: u64,
    seen_at: Nanos,
}

/// Where a process was started.
#[derive(Debug)]
pub(super) struct Started(Vec<PathBuf>);

// === impl Owners ===

impl Owners {
    /// Notes processes that are there now.
    pub(super) fn see(&mut self, now: Nanos, processes: impl IntoIterator<Item = (u32, u64)>) {
        for (pid, start) in processes {
            if self.known.len() >= PROCESSES_MAX && !self.known.contains_key(&pid) {
                self.known.retain(|_, known| known.seen_at == now);
            }
            if self.known.len() < PROCESSES_MAX || self.known.contains_key(&pid) {
                self.known.insert(pid, Known { start, seen_at: now });
            }
        }
    }

    /// Forgets who was not there for long.
    pub(super) fn forget(&mut self, now: Nanos) {
        self.known.retain(|_, known| now.minus(known.seen_at) <= REMEMBERED);
    }

    /// Whether this process is among them, or was: a later one of its number is not.
    pub(super) fn have(&self, pid: u32) -> bool {
        let began = |known: &Known| known.start == 0 || start_time(pid).is_none_or(|now| now == known.start);
        self.known.get(&pid).is_some_and(began)
    }

    /// Notes a process that is there now by what the kernel says of it.
    pub(super) fn note(&mut self, now: Nanos, pid: u32) {
        self.see(now, start_time(pid).map(|start| (pid, start)));
    }
}

// === impl Started ===

impl Started {
    /// Where a process was.
    pub(super) fn of(pid: u32) -> Self {
        Self(grants_of(pid))
    }

    /// Whether it was under this share.
    pub(super) fn is_under(&self, share: &Path) -> bool {
        self.0.iter().any(|dir| if dir.is_absolute() { share.starts_with(dir) } else { share.ends_with(dir) })
    }
}
