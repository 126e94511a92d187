//! How much of a card a context takes, found out by the host itself before tenants come: nothing that a tenant wrote counts.
//!
//! ```text
//!  aliquot ──hold-context UUID──▶ the same program again, with a context on that card and nothing else
//!     │  before  │  with it  │  after: what the driver tells of the card
//!     ├─ it names the process and what that has ───────────▶ exactly so much
//!     └─ else: what was taken and what was given back, at most three times, until two of these agree
//! ```
//!
//! The process is started without what is preloaded into others, ends with its input, and with whoever started it, however
//! that ends. What it says is one line, read with a bound on its length and on the time. It is not believed: the driver is
//! asked here.
//!
//! Of simulated cards their directory says it, or the simulation's default where there is none yet: it is asked each time.
//!
//! One process at a time does so on a card, with its turn ([`Turn`]) and without the node's lock: runs on other cards, and those
//! that end, go on meanwhile. The turn is waited for with the node let go, and who has it may wait for the node.
//!
//! Nobody's promise is touched: where others have parts of the card, so much must be promised to nobody as no context takes, and
//! differences, which a tenant could falsify, do not count.

mod holder;
mod turn;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::id::CardUuid;
use aliquot_core::ports::{BackendError, CardUsage, DeviceBackend};
use aliquot_core::units::Bytes;
use aliquot_sim_device::Node as SimulatedNode;

pub(crate) use holder::READY;
pub use turn::Turn;

use crate::run::simulated::{cards_dir, partition_dir};
use holder::Holder;

/// Longest that a process may take to have its context: a driver that has to wake up its card takes some seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Processes at most, where others move memory on the card.
const TRIES_MAX: usize = 3;
/// What must be promised to nobody where others have parts of the card: no context of a card so far takes half of it.
const ROOM: Bytes = Bytes(2 << 30);

/// Who finds out how much of a card a context takes.
pub trait Gauge: fmt::Debug + Send + Sync {
    /// Version of the driver, for which what was measured is kept: with another one contexts may be of another size. `None`: it is
    /// told for the asking, each time.
    fn driver(&self) -> Option<&str>;

    /// Makes a context on a card or partition for a moment, and says what it took. `promised` is what others were promised
    /// there.
    ///
    /// # Errors
    /// Why it is not known.
    fn measure(&self, visible: &CardUuid, promised: Bytes) -> Result<Bytes, Unmeasured>;

    /// Tells people who watch that it takes long, whoever does it.
    fn tell(&self, visible: &CardUuid);
}

/// Why nobody knows what a context takes.
#[derive(Debug, thiserror::Error)]
pub enum Unmeasured {
    /// Others have parts of the card: what a context takes for a moment may be theirs, or what is seen of it their doing.
    #[error("others have parts of the card")]
    Others,
    /// The process does not start.
    #[error("no process can be started for it")]
    Start(#[source] io::Error),
    /// It has no context.
    #[error("{0}")]
    NoContext(String),
    /// It ended without a word.
    #[error("the process ended before it had a context")]
    Ended,
    /// It says nothing.
    #[error("no context was there within {} s", LIMIT.as_secs())]
    Late,
    /// The card does not answer.
    #[error(transparent)]
    Card(#[from] BackendError),
    /// Others move memory.
    #[error("what it took from the card was not what it gave back: others move memory there")]
    Unlike,
}

/// The simulated cards of a state directory: what their libraries read says it.
#[derive(Debug)]
pub struct SimulatedGauge {
    /// State directory of the node.
    pub state: PathBuf,
}

/// The cards of this machine: a process of ours makes a context, and the driver reports its memory.
pub struct MachineGauge {
    /// The cards.
    pub cards: Arc<dyn DeviceBackend>,
    /// Version of the driver, for which measurements are kept.
    pub driver: String,
    /// This program.
    pub program: PathBuf,
    /// Is told of a card on which a process takes longer than a second to have its context.
    pub slow: fn(&CardUuid),
}

/// Memory of a card that was in use before a context was there, with it, and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Readings {
    before: Bytes,
    with: Bytes,
    after: Bytes,
}

// === impl Unmeasured ===

impl Unmeasured {
    /// Whether that is how it should be: another time will do.
    #[must_use]
    pub const fn is_no_fault(&self) -> bool {
        matches!(self, Self::Others)
    }
}

// === impl SimulatedGauge ===

impl Gauge for SimulatedGauge {
    fn driver(&self) -> Option<&str> {
        None
    }

    fn measure(&self, visible: &CardUuid, _: Bytes) -> Result<Bytes, Unmeasured> {
        let own = partition_dir(&self.state, visible.as_str());
        let dir = if own.exists() { own } else { cards_dir(&self.state) };
        match SimulatedNode::read(&dir) {
            Ok(node) => Ok(Bytes(node.context_bytes)),
            Err(error) => Err(Unmeasured::NoContext(error.to_string())),
        }
    }

    fn tell(&self, _: &CardUuid) {}
}

// === impl MachineGauge ===

impl fmt::Debug for MachineGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineGauge").field("driver", &self.driver).finish_non_exhaustive()
    }
}

impl Gauge for MachineGauge {
    fn driver(&self) -> Option<&str> {
        Some(&self.driver)
    }

    fn measure(&self, visible: &CardUuid, promised: Bytes) -> Result<Bytes, Unmeasured> {
        let mut tries = Vec::new();
        let mut before = self.cards.usage(visible)?;
        if promised > Bytes(0) && before.memory.0.saturating_sub(promised.0) < ROOM.0 {
            return Err(Unmeasured::Others);
        }
        while tries.len() < TRIES_MAX {
            let holder = Holder::start(&self.program, visible, LIMIT, self.slow)?;
            let with = self.cards.usage(visible)?;
            let own = own(&before, &with, holder.pid());
            holder.end();
            if let Some(own) = own {
                return Ok(own);
            }
            if promised > Bytes(0) {
                // Who has a part there could have a difference be anything.
                return Err(Unmeasured::Others);
            }
            let after = self.cards.usage(visible)?;
            tries.push(Readings { before: before.in_use, with: with.in_use, after: after.in_use });
            if let Some(bytes) = agreed(&tries) {
                return Ok(bytes);
            }
            before = after;
        }
        Err(Unmeasured::Unlike)
    }

    fn tell(&self, visible: &CardUuid) {
        (self.slow)(visible);
    }
}

/// What the driver says that a process has; `None`: it names none of that number, or named one before it was there, as it
/// does where it counts processes otherwise.
fn own(before: &CardUsage, with: &CardUsage, pid: u32) -> Option<Bytes> {
    let of = |usage: &CardUsage| usage.processes.iter().find(|(found, _)| *found == pid).copied();
    match (of(before), of(with)) {
        (None, Some((_, Some(bytes)))) => Some(bytes).filter(|bytes| is_size(*bytes, with.memory)),
        _ => None,
    }
}

/// What two readings say alike.
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
    use super::*;

    const MIB: u64 = 1 << 20;

    fn usage(processes: &[(u32, Option<u64>)]) -> CardUsage {
        CardUsage {
            memory: Bytes(1000 * MIB),
            in_use: Bytes(0),
            busy_percent: None,
            processes: processes.iter().map(|(pid, bytes)| (*pid, bytes.map(Bytes))).collect(),
        }
    }

    #[test]
    fn driver_is_believed_only_for_the_process_of_the_context() {
        let with = usage(&[(7, Some(500 * MIB)), (9, Some(480 * MIB))]);
        assert_eq!(own(&usage(&[(7, Some(500 * MIB))]), &with, 9), Some(Bytes(480 * MIB)));
        assert_eq!(own(&usage(&[]), &with, 8), None, "not named");
        assert_eq!(own(&usage(&[(9, None)]), &with, 9), None, "somebody else's number");
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
