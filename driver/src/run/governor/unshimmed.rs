//! Processes of a grant that use the card without the shim: the driver reports device time of them, and they hold no slot. Their
//! time is charged to the grant, so its other processes get what is left of its share.

use std::collections::BTreeMap;

use crate::region::start_time;
use crate::run::processes;

/// Most that are remembered of one grant.
const PROCESSES_MAX: usize = 64;

/// A process that uses a card without the shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnshimmedProcess {
    /// Its pid.
    pub pid: u32,
    /// Name of its program, which the program can change.
    pub command: String,
}

/// Live processes of one grant that use the card without the shim, by pid, with their start time.
#[derive(Debug, Default)]
pub(super) struct UnshimmedProcesses {
    found: BTreeMap<u32, u64>,
}

// === impl UnshimmedProcesses ===

impl UnshimmedProcesses {
    pub(super) fn note(&mut self, pid: u32) {
        if let Some(start) = start_time(pid).filter(|_| self.found.len() < PROCESSES_MAX) {
            self.found.insert(pid, start);
        }
    }

    /// Forgets a process that has a slot now.
    pub(super) fn has_slot(&mut self, pid: u32) {
        self.found.remove(&pid);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The first live one.
    pub(super) fn first(&mut self) -> Option<UnshimmedProcess> {
        self.found.retain(|pid, start| start_time(*pid) == Some(*start));
        let pid = *self.found.keys().next()?;
        Some(UnshimmedProcess { pid, command: processes::command(pid).unwrap_or_default() })
    }
}
