//! Simulated cards: one set per directory, shared by every process that opens the directory.
//!
//! ```text
//!   process 1: libcuda.so.1 ─┐                     ┌─ card-0   memory accounting, device time, seats of processes
//!   process 2: libcuda.so.1 ─┼─ mapped directory ──┼─ card-1, instance-1-…   cards, and MIG instances of them
//!   a tool:    nvml, tests  ─┘                     ├─ alive    one lock byte a seat; the kernel drops it when its process dies
//!                                                  ├─ content-…    what device memory holds, one sparse file a seat (in contents/, where that is)
//!                                                  ├─ node.toml    which cards (absent: two of the default model)
//!                                                  ├─ faults.toml  what goes wrong, and when (absent: nothing)
//!                                                  └─ misused      which calls used streams, events and contexts that were gone
//! ```
//!
//! The model covers the cards' side only: how many bytes each process holds, the peak of their sum, and which
//! process ran on the card when. It knows no limits, so that limits can be measured against it.
//!
//! Device time is virtual: a kernel has a length and uses no processor. A process that accesses a card first
//! advances its schedule to the current time ([`schedule`]). Invariants, after every call:
//!
//! - Bytes in use are the sum over seats, plus IPC-shared memory of exited or finished exporters ([`LetGo`]),
//!   and at most the card's memory.
//! - The high-water mark is the largest sum so far.
//! - One process at a time runs on a card; done never exceeds submitted.

mod address;
mod card;
mod fault;
mod header;
mod install;
mod ipc_memory;
mod mapping;
mod mig;
mod node;
pub mod npu;
pub mod processor;
mod profile;
pub mod schedule;
mod xid;

pub use address::{NO_BUS, PciPlace};
pub use card::{
    Busy, CONTENTS, Card, Full, Health, Mark, MemoryKind, Moment, Process, Seat, SeatError, WINDOW_NANOS,
};
pub use fault::{Action, CardSelector, FaultPlan, PlanError, Struck};
pub use header::{CardFault, Record};
pub use install::{InstallError, install};
pub use ipc_memory::LetGo;
pub use mapping::{OpenError, effective_user, monotonic_nanos};
pub use mig::{
    GpuInstance, INSTANCES, Instance, MIG_DEVICES, MigDevice, MigError, Placement, compute_slices,
};
pub use node::{
    AsyncFrees, CardFacts, ComputeMode, GraphMemory, ListedProcess, MigAccess, MigMode, Node, NodeError,
    ProcessList, ProcessSamples, StackLimits, StreamHandles,
};
pub use profile::{PROFILES, Profile};
pub use xid::{ReportPosition, Xid};

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The environment variable that names the directory.
pub const DIR_ENV: &str = "ALIQUOT_SIM_DIR";

/// Set in containers: cards without their device file are absent, as with a real driver.
pub const DEVICES_ENV: &str = "ALIQUOT_SIM_DEVICES";

/// Names a file to which calls without behaviour are written, one a line.
pub const LOG_ENV: &str = "ALIQUOT_SIM_LOG";

/// The file of the directory that records uses of stale handles, with their callers.
const MISUSED: &str = "misused";

/// A set of simulated cards, opened.
#[derive(Debug)]
pub struct Device {
    dir: PathBuf,
    node: Arc<Node>,
    cards: Vec<Card>,
}

/// Opens the cards of `dir`, creating directory and cards where they are missing. Any number of processes may.
///
/// # Errors
///
/// [`OpenError`] where a file cannot be made, read or mapped, or was made by another version.
pub fn open(dir: &Path) -> Result<Device, OpenError> {
    std::fs::create_dir_all(dir).map_err(|source| OpenError::io(dir, source))?;
    let node = Arc::new(Node::read(dir)?);
    let alive = mapping::alive_file(dir)?;
    let by_file = std::env::var_os(DEVICES_ENV).is_some();
    let is_there = |index: &usize| {
        let device = node.cards.get(*index).map_or("", |facts| &facts.device);
        !by_file || device.is_empty() || Path::new(device).exists()
    };
    let cards = (0..node.cards.len())
        .filter(is_there)
        .map(|index| Card::open(dir, Arc::clone(&node), index, alive))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Device { dir: dir.to_owned(), node, cards })
}

/// Opens the cards of `dir` for reading: no file is created. `None`: the cards were never used.
///
/// # Errors
///
/// [`OpenError`] where a file cannot be read or mapped, or was made by another version.
pub fn look(dir: &Path) -> Result<Option<Device>, OpenError> {
    let cards = Node::read(dir)?.cards.len();
    let made = (0..cards).map(|index| mapping::is_made(&Card::file(dir, index)));
    let made = made.collect::<Result<Vec<bool>, OpenError>>()?;
    if made.contains(&false) || !dir.join("alive").exists() {
        return Ok(None);
    }
    open(dir).map(Some)
}

/// The directory the environment names: `ALIQUOT_SIM_DIR`, else one in shared memory for this user.
#[must_use]
pub fn dir_from_env() -> PathBuf {
    std::env::var_os(DIR_ENV)
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| PathBuf::from(format!("/dev/shm/aliquot-sim-{}", mapping::user())), PathBuf::from)
}

/// Writes down that a program called what has no behaviour, where [`LOG_ENV`] says so. The log is an aid: where it cannot be
/// written, nothing else changes.
#[cold]
pub fn log_unsupported(export: &str) {
    if let Some(path) = std::env::var_os(LOG_ENV)
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        drop(writeln!(file, "{export}"));
    }
}

/// Uses of stale handles on the cards of `dir` since the last call, a line each.
#[must_use]
pub fn take_misuses(dir: &Path) -> Vec<String> {
    let path = dir.join(MISUSED);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    // There was no file, or the next call reads it once more.
    drop(std::fs::remove_file(&path));
    text.lines().map(str::to_owned).collect()
}

impl Device {
    /// All cards, in index order.
    #[must_use]
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// One card by index.
    #[must_use]
    pub fn card(&self, index: usize) -> Option<&Card> {
        self.cards.get(index)
    }

    /// What is common to the cards.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes down that a call used what was gone. An aid: where it cannot be written, nothing else changes.
    #[cold]
    pub fn note_misuse(&self, export: &str, what: &str) {
        let mut options = std::fs::OpenOptions::new();
        if let Ok(mut file) = options.append(true).create(true).open(self.dir.join(MISUSED)) {
            drop(writeln!(file, "{export}: {what} after its end"));
        }
    }

    /// The fault plan as it stands in the directory.
    ///
    /// # Errors
    ///
    /// [`PlanError`] where the file cannot be read or says something unknown.
    pub fn plan(&self) -> Result<FaultPlan, PlanError> {
        FaultPlan::read(&self.dir)
    }
}
