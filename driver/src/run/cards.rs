//! What a run needs of the cards that it is on, beside what every backend does: how its command reaches its part, and who
//! says how much of a card's time each process had.
//!
//! ```text
//!   Cards::reach ─▶ Reach ─┬ libraries, environment ─▶ the command
//!                          └ Meter ─▶ the card's governor
//!   Cards::follow ─▶ Events ─▶ what is held against the card
//! ```

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::health::Cause;
use aliquot_core::id::{CardUuid, Vendor};
use aliquot_core::partition::Part;
use aliquot_core::units::Bytes;
use aliquot_enforce::units::Nanos;

/// The cards of a node, as commands on them find them.
pub trait Cards {
    /// Whose driver libraries a command can be given.
    fn vendor(&self) -> Vendor;

    /// How a command reaches the part of its grant.
    ///
    /// # Errors
    /// What it needs cannot be made or asked.
    fn reach(&self, grant: &Grant, visible: &CardUuid, cards: &Inventory) -> io::Result<Reach>;

    /// Follows the card of a grant, from now on.
    ///
    /// # Errors
    /// Why the card tells nothing of itself.
    fn follow(&self, grant: &Grant, visible: &CardUuid) -> Result<Box<dyn Events>, String>;

    /// Why none of them gives partitions, a card each; empty: they do.
    fn no_partitions(&self) -> &[String];

    /// Processes that hold memory of a card without a grant below this directory, as far as the driver says.
    fn others(&self, visible: &CardUuid, grants: &Path) -> Vec<(u32, Bytes)>;

    /// Takes away what was made for parts that are not among the visible ones.
    ///
    /// # Errors
    /// The disk refuses.
    fn remove_others(&self, visible: &dyn Fn(&str) -> bool) -> io::Result<()>;
}

/// How a command reaches its part.
#[derive(Debug)]
pub struct Reach {
    /// Where its loader finds driver libraries before everything else; `None`: where it finds them anyway.
    pub libraries: Option<PathBuf>,
    /// What else its environment says.
    pub environment: Vec<(&'static str, OsString)>,
    /// What a context takes of the card, where that is known.
    pub context: Option<Bytes>,
    /// Who measures; `None`: nobody says.
    pub meter: Option<Box<dyn Meter>>,
}

/// A driver that tells what happens to one card.
pub trait Events: Send + fmt::Debug {
    /// What happened next, and to which part; `None`: nothing for so long, or nothing that matters. Whoever asks sleeps.
    ///
    /// # Errors
    /// Why the driver does not wait.
    fn next(&mut self, longest: Duration) -> Result<Option<(Cause, Part)>, String>;
}

/// A driver that tells, again and again, what processes had of one card.
pub trait Meter: Send + fmt::Debug {
    /// What the driver tells of its window that ended last; `None`: none ended since the question before, or the driver does not
    /// say.
    fn window(&mut self, now: Nanos) -> Option<Window>;
}

/// What a driver tells of a stretch of time, in whole hundredths of it, rounded up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// How long it was.
    pub length: Nanos,
    /// In which anything ran on the card; `None`: it does not say.
    pub busy_percent: Option<u32>,
    /// Which processes had.
    pub processes: Vec<Spent>,
}

/// What one process had of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Its number.
    pub pid: u32,
    /// Whole hundredths.
    pub percent: u32,
}
