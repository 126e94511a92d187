//! Measures the memory of a context on a card. The host does it before tenants start, and uses no data that a tenant writes.
//!
//! ```text
//!  aliquot ──hold-context UUID──▶ the same program again, with a context on that card and nothing else
//!     │  before  │  with it  │  after: the driver's figures of the card
//!     ├─ the driver reports the process and its memory ────▶ exactly that
//!     └─ else: the differences before and after, at most three times, until two of them agree
//! ```
//!
//! The process starts without preloaded libraries, and ends with its input or its parent. It prints one line, which is read with
//! a bound on length and time. Its output is not trusted: this process queries the driver.
//!
//! Simulated cards have the size in their directory, or else the simulation's default. It is read each time.
//!
//! A run that is alone on its memory measures, before its command starts and without the node's lock; an agent measures cards
//! without claims (`driver/src/node/contexts.rs`): no tenant can then falsify a difference.

mod holder;
mod pages;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_abi::limits::Pages;
use aliquot_core::id::CardUuid;
use aliquot_core::ports::{BackendError, CardUsage, DeviceBackend};
use aliquot_core::units::Bytes;
use aliquot_sim_device::Node as SimulatedNode;

pub use holder::HolderCommand;
pub(crate) use holder::READY;
pub(crate) use pages::PROBES;

use crate::clock;
use crate::hardware::ContextSource;
use crate::hardware::simulated_cards::{cards_dir, footprint, partition_dir};
use crate::hardware::vendors::ContextDrivers;
use crate::region::Footprint;
use holder::Holder;

/// Longest time until a process has its context, and again for its allocations: a driver that has to wake up its card takes some
/// seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Most processes, if others allocate or free memory on the card.
const TRIES_MAX: usize = 3;

/// This very program, also after another version has taken its place on disk.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What finds the size of contexts on cards of this source; `None` if it is not known there.
#[must_use]
pub fn gauge(source: ContextSource) -> Option<Arc<dyn ContextGauge>> {
    match source {
        ContextSource::Unknown => None,
        ContextSource::Simulated { state } => Some(Arc::new(SimulatedGauge { state })),
        ContextSource::Measured { cards, driver, slow } => {
            Some(Arc::new(MachineGauge { cards, driver, slow }))
        }
    }
}

/// Measures the memory of a context on a card.
pub trait ContextGauge: fmt::Debug + Send + Sync {
    /// Version of the present driver, for which a measurement is stored: another one may have other contexts. `None`: the size is
    /// known without a measurement and never stored.
    fn driver(&self) -> Option<String>;

    /// Creates a context on a card or partition for a moment, and returns its memory.
    ///
    /// # Errors
    /// The reason why the size is unknown.
    fn measure(&self, visible: &CardUuid) -> Result<Footprint, ContextSizeError>;
}

/// Why the size of a context is unknown.
#[derive(Debug, thiserror::Error)]
pub enum ContextSizeError {
    /// The process does not start.
    #[error("no process can be started for it")]
    Start(#[source] io::Error),
    /// It has no context.
    #[error("{0}")]
    NoContext(String),
    /// It ended without output.
    #[error("the process ended before it had a context")]
    Ended,
    /// It prints nothing in time.
    #[error("no context was there within {} s", LIMIT.as_secs())]
    Late,
    /// The card does not answer.
    #[error(transparent)]
    Card(#[from] BackendError),
    /// Others allocate or free memory.
    #[error("what it took from the card was not what it gave back: others move memory there")]
    Unlike,
}

/// The simulated cards of a state directory: the size is in the file that their libraries read.
#[derive(Debug)]
pub struct SimulatedGauge {
    /// State directory of the node.
    pub state: PathBuf,
}

/// The cards of this machine: a child process creates a context, and the driver reports its memory.
pub struct MachineGauge {
    /// The cards.
    pub cards: Arc<dyn DeviceBackend>,
    /// The driver, for which measurements are stored.
    pub driver: Arc<dyn ContextDrivers>,
    /// Called for a card on which a process needs more than a second to create its context.
    pub slow: fn(&CardUuid),
}

/// Memory in use on a card before a context, with it, and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Readings {
    before: Bytes,
    with: Bytes,
    after: Bytes,
}

// === impl SimulatedGauge ===

impl ContextGauge for SimulatedGauge {
    fn driver(&self) -> Option<String> {
        None
    }

    fn measure(&self, visible: &CardUuid) -> Result<Footprint, ContextSizeError> {
        let own = partition_dir(&self.state, visible.as_str());
        let dir = if own.exists() { own } else { cards_dir(&self.state) };
        match SimulatedNode::read(&dir) {
            Ok(node) => Ok(footprint(&node)),
            Err(error) => Err(ContextSizeError::NoContext(error.to_string())),
        }
    }
}

// === impl MachineGauge ===

impl fmt::Debug for MachineGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineGauge").field("driver", &self.driver.now()).finish_non_exhaustive()
    }
}

impl ContextGauge for MachineGauge {
    fn driver(&self) -> Option<String> {
        Some(self.driver.now().version)
    }

    fn measure(&self, visible: &CardUuid) -> Result<Footprint, ContextSizeError> {
        let command = HolderCommand { program: OWN_PROGRAM.into(), library: self.driver.now().library };
        let mut tries = Vec::new();
        let mut before = self.cards.usage(visible)?;
        while tries.len() < TRIES_MAX {
            let mut holder = Holder::start(&command, visible, LIMIT, self.slow)?;
            let with = self.cards.usage(visible)?;
            if let Some(own) = own(&before, &with, holder.pid()) {
                // Without them 2 MiB is assumed, the page of every card since Pascal.
                let pages = self.pages(visible, own, &mut holder).unwrap_or(Pages::ASSUMED);
                holder.end();
                return Ok(Footprint { context: own, pages });
            }
            holder.end();
            let after = self.cards.usage(visible)?;
            tries.push(Readings { before: before.in_use, with: with.in_use, after: after.in_use });
            if let Some(bytes) = agreed(&tries) {
                return Ok(Footprint { context: bytes, pages: Pages::ASSUMED });
            }
            before = after;
        }
        Err(ContextSizeError::Unlike)
    }
}

impl MachineGauge {
    /// The pages of the driver, by what the holder's memory grows by; `own` is its memory before. A refused allocation grows
    /// nothing.
    fn pages(&self, visible: &CardUuid, own: Bytes, holder: &mut Holder) -> Option<Pages> {
        let (mut readings, until) = (vec![own], clock::now() + LIMIT);
        for _ in PROBES {
            match holder.grow(until) {
                Ok(()) | Err(ContextSizeError::NoContext(_)) => {}
                Err(_) => return None,
            }
            let usage = self.cards.usage(visible).ok()?;
            let held = usage.processes.iter().find(|(pid, _)| *pid == holder.pid())?.1?;
            readings.push(held);
        }
        pages::pages(&readings)
    }
}

/// The memory of a process by the driver's report. `None`: the driver reports no process with that id, or did so before the process
/// existed, as its process ids then belong to another namespace.
fn own(before: &CardUsage, with: &CardUsage, pid: u32) -> Option<Bytes> {
    let of = |usage: &CardUsage| usage.processes.iter().find(|(found, _)| *found == pid).copied();
    match (of(before), of(with)) {
        (None, Some((_, Some(bytes)))) => Some(bytes).filter(|bytes| is_size(*bytes, with.memory)),
        _ => None,
    }
}

/// A difference that two readings share.
fn agreed(tries: &[Readings]) -> Option<Bytes> {
    let differences = |readings: &Readings| {
        [readings.before, readings.after].map(|without| Bytes(readings.with.0.saturating_sub(without.0)))
    };
    let all: Vec<Bytes> = tries.iter().flat_map(differences).filter(|bytes| *bytes > Bytes(0)).collect();
    all.iter().enumerate().find(|(index, bytes)| all[index + 1..].contains(bytes)).map(|(_, bytes)| *bytes)
}

fn is_size(bytes: Bytes, memory: Bytes) -> bool {
    bytes > Bytes(0) && bytes <= memory
}

#[cfg(test)]
mod tests {
    use aliquot_core::ports::Composite;
    use parking_lot::Mutex;

    use super::*;
    use crate::hardware::vendors::ContextDriver;

    const MIB: u64 = 1 << 20;

    fn usage(processes: &[(u32, Option<u64>)]) -> CardUsage {
        CardUsage {
            memory: Bytes(1000 * MIB),
            in_use: Bytes(0),
            busy_percent: None,
            processes: processes.iter().map(|(pid, bytes)| (*pid, bytes.map(Bytes))).collect(),
        }
    }

    /// A driver that becomes another one.
    struct Updated(Mutex<&'static str>);

    impl ContextDrivers for Updated {
        fn now(&self) -> ContextDriver {
            ContextDriver { version: (*self.0.lock()).to_owned(), library: None }
        }
    }

    #[test]
    fn measurement_after_an_update_is_of_the_present_driver() {
        let driver = Arc::new(Updated(Mutex::new("580.65.06")));
        let drivers: Arc<dyn ContextDrivers> = Arc::<Updated>::clone(&driver);
        let cards = Arc::new(Composite::new(Vec::new()));
        let gauge = gauge(ContextSource::Measured { cards, driver: drivers, slow: |_| {} }).unwrap();
        assert_eq!(gauge.driver().as_deref(), Some("580.65.06"));
        *driver.0.lock() = "590.48.01";
        assert_eq!(gauge.driver().as_deref(), Some("590.48.01"));
    }

    #[test]
    fn driver_is_believed_only_for_the_process_of_the_context() {
        let with = usage(&[(7, Some(500 * MIB)), (9, Some(480 * MIB))]);
        assert_eq!(own(&usage(&[(7, Some(500 * MIB))]), &with, 9), Some(Bytes(480 * MIB)));
        assert_eq!(own(&usage(&[]), &with, 8), None, "not named");
        assert_eq!(own(&usage(&[(9, None)]), &with, 9), None, "another process's id");
        for bytes in [None, Some(0), Some(1001 * MIB)] {
            assert_eq!(own(&usage(&[]), &usage(&[(9, bytes)]), 9), None, "{bytes:?}");
        }
    }

    #[test]
    fn differences_count_when_two_of_them_agree() {
        let readings = |before: u64, with: u64, after: u64| Readings {
            before: Bytes(before),
            with: Bytes(with),
            after: Bytes(after),
        };
        assert_eq!(agreed(&[readings(10, 490, 10)]), Some(Bytes(480)));
        assert_eq!(agreed(&[readings(10, 490, 20)]), None, "others took 10");
        assert_eq!(agreed(&[readings(10, 495, 15), readings(15, 495, 16)]), Some(Bytes(480)), "first use");
        assert_eq!(agreed(&[readings(10, 10, 10), readings(10, 9, 10)]), None, "nothing was taken");
        assert_eq!(agreed(&[]), None);
    }
}
