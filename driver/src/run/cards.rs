//! How a local run reaches its part of a card, and, for runs and the agent, where each process's card time and events come from.
//!
//! ```text
//!   Cards::reach ─▶ Reach ─┬ libraries, environment ─▶ the command
//!                          └ Meter ─▶ the card's governor
//!   Cards::{follow, follow_card} ─▶ Events ─▶ health records of the card
//! ```

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::health::Cause;
use aliquot_core::id::{CardUuid, Vendor};
use aliquot_core::partition::Part;
use aliquot_core::ports::CardUsage;
use aliquot_core::units::Bytes;
use aliquot_enforce::units::Nanos;

use crate::region::Footprint;

/// The cards of a node, for commands that run on them.
pub trait Cards {
    /// Vendors with cards on which commands can be run, the preferred one first.
    fn vendors(&self) -> Vec<Vendor>;

    /// How a command reaches the part of its grant.
    ///
    /// # Errors
    /// Its files cannot be created, or the driver cannot be queried.
    fn reach(&self, grant: &Grant, visible: &CardUuid, cards: &Inventory) -> io::Result<CardAccess>;

    /// Follows the card of a grant, from now on.
    ///
    /// # Errors
    /// The reason why the card reports no events.
    fn follow(&self, grant: &Grant, visible: &CardUuid) -> Result<Box<dyn Events>, String>;

    /// Follows a card as a whole, from now on, whether or not a claim uses it.
    ///
    /// # Errors
    /// The card does not answer, or reports no events.
    fn follow_card(&self, card: &CardUuid, cards: &Inventory) -> Result<Box<dyn Events>, String>;

    /// Whether the part of a grant reports events of its own, which its card does not report.
    fn reporter(&self, grant: &Grant) -> Reporter;

    /// Load of the driver that serves the cards now; `None`: the cards are described.
    fn driver_load(&self) -> Option<String>;

    /// For each card, why it supports no partitions; empty: at least one does.
    fn no_partitions(&self) -> Vec<String>;

    /// The source of the figures of a card or partition; `None`: the driver has none of it now.
    fn usage_source(
        &self,
        card: &CardUuid,
        part: &Part,
        visible: &CardUuid,
        cards: &Inventory,
    ) -> Option<Box<dyn UsageSource>>;

    /// Processes with memory of a card but without a grant below this directory, as the driver reports them.
    fn others(&self, visible: &CardUuid, grants: &Path) -> Vec<(u32, Bytes)>;

    /// Removes files made for parts that are not visible.
    ///
    /// # Errors
    /// A file cannot be removed.
    fn remove_others(&self, visible: &dyn Fn(&str) -> bool) -> io::Result<()>;
}

/// How a command reaches its part.
#[derive(Debug)]
pub struct CardAccess {
    /// First library directory of its loader; `None`: the system's own libraries.
    pub libraries: Option<PathBuf>,
    /// Further environment variables, beside those of the backend.
    pub environment: Vec<(&'static str, OsString)>,
    /// Memory that a context uses, if known.
    pub footprint: Option<Footprint>,
    /// The source of card time; `None`: the driver reports none.
    pub meter: Option<Box<dyn Meter>>,
    /// The source of the processes on the part; `None`: the driver reports none.
    pub processes: Option<Arc<dyn CardProcesses>>,
}

/// What reports the events of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reporter {
    /// Its card, which names the part.
    Card,
    /// The part itself.
    Part,
}

/// A driver that reports events of one card.
pub trait Events: Send + fmt::Debug {
    /// The next event and its part; `None`: none within `longest`, or an irrelevant one. The calling thread sleeps.
    ///
    /// # Errors
    /// The reason why the driver does not wait.
    fn next(&mut self, longest: Duration) -> Result<Option<(Cause, Part)>, String>;
}

/// A driver that reports the processes on one card or partition.
pub trait CardProcesses: Send + Sync + fmt::Debug {
    /// Processes with memory of it, and their memory if it is reported. `None`: the driver does not answer now.
    fn processes(&self) -> Option<Vec<(u32, Option<Bytes>)>>;
}

/// A driver that reports memory, processes and utilisation of one card or partition.
pub trait UsageSource: Send + Sync {
    /// The figures now; `None`: the driver does not answer now, or reports none.
    fn usage(&self) -> Option<CardUsage>;
}

/// A driver that reports, window by window, each process's time on one card.
pub trait Meter: Send + fmt::Debug {
    /// The driver's last complete window; `None`: none ended since the previous call, or the driver reports none.
    fn window(&mut self, now: Nanos) -> Option<Window>;
}

/// A window of the driver's measurement, in whole percents, rounded up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Length.
    pub length: Nanos,
    /// Part in which the card was busy; `None`: not reported.
    pub busy_percent: Option<u32>,
    /// Part of each process.
    pub processes: Vec<ProcessTime>,
}

/// Card time of one process in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessTime {
    /// Process id.
    pub pid: u32,
    /// Whole percents.
    pub percent: u32,
}
