//! One look: plain data, as it was found at one moment, and who collects it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aliquot_abi::limits::Limits;
use aliquot_backend_nvidia::xid::Xids;
use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::health::Notes;
use aliquot_core::id::CardUuid;
use aliquot_core::units::Bytes;

use super::machine::Machine;
use super::simulated::Drivers;
use super::state;
use crate::checkpoint::Phase;
use crate::clock::now;
use crate::region::Seen;

/// Everything that was found.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// State directories, in the order in which they were named.
    pub states: Vec<State>,
    /// Homes of state, named by nobody, of which another user keeps something closed.
    pub closed: Vec<PathBuf>,
    /// Cards that are known by what describes the node.
    pub inventory: Inventory,
    /// Cards, and parts of cards, as their driver shows them.
    pub drivers: Vec<Driver>,
    /// Cards that cannot be asked, and why.
    pub unusable: Vec<(String, String)>,
}

/// One state directory.
#[derive(Clone, Debug)]
pub struct State {
    /// Where.
    pub dir: PathBuf,
    /// What is promised there, or why that cannot be read.
    pub promised: Result<Promised, String>,
    /// What is held against cards there, or why that cannot be read.
    pub against: Result<Against, String>,
}

/// What is held against cards.
#[derive(Clone, Debug, Default)]
pub struct Against {
    /// What was seen.
    pub notes: Notes,
    /// What it means.
    pub xids: Xids,
}

/// What a journal promises.
#[derive(Clone, Debug, Default)]
pub struct Promised {
    /// Shares of all claims, in the order of the journal.
    pub shares: Vec<Share>,
    /// Partitions that were made or are about to be.
    pub partitions: Vec<Partition>,
}

/// A partition of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Where.
    pub at: aliquot_core::ports::PartitionAt,
    /// The UUID under which its tenant sees it; `None`: it is not made yet.
    pub uuid: Option<String>,
}

/// One share.
#[derive(Clone, Debug)]
pub struct Share {
    /// `namespace/name` of the claim.
    pub claim: String,
    /// How far the claim is.
    pub phase: Phase,
    /// What was granted.
    pub grant: Grant,
    /// The UUID under which the tenant sees its part; `None`: the part is not made yet.
    pub visible: Option<String>,
    /// Directory of the share.
    pub dir: PathBuf,
    /// What holds the share to its limits.
    pub region: Region,
}

/// The region of a share.
#[derive(Clone, Debug)]
pub enum Region {
    /// None: nothing holds limits here.
    Absent,
    /// Two files.
    There(Box<Files>),
}

/// The two files of a region.
#[derive(Clone, Debug)]
pub struct Files {
    /// The limits in force, or why they cannot be read.
    pub limits: Result<Limits, String>,
    /// What its processes use, or why that cannot be read.
    pub usage: Result<Seen, String>,
    /// Names of the programs of its processes, by their number as seen from here; they may say anything.
    pub commands: BTreeMap<u32, String>,
    /// When it was read, since the first look.
    pub at: Duration,
}

/// A card or partition as its driver shows it.
#[derive(Clone, Debug)]
pub struct Driver {
    /// State directory in which its simulation lies; `None`: it is the same for all.
    pub state: Option<PathBuf>,
    /// UUID.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Memory.
    pub memory: Bytes,
    /// Whether it is a whole card, as far as the place where it was found tells.
    pub whole: bool,
    /// Bytes in use by the living.
    pub in_use: Bytes,
    /// The most that ever was in use; `None`: the driver does not say.
    pub high_water: Option<Bytes>,
    /// Device time used by anybody, in nanoseconds; `None`: the driver does not say.
    pub busy_nanos: Option<u64>,
    /// Whether it fell off the bus.
    pub health: Health,
    /// Its processes.
    pub processes: Vec<DriverProcess>,
    /// When it was asked, since the first look.
    pub at: Duration,
}

/// Whether a card answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Well,
    /// It fell off the bus.
    Lost,
}

/// A process as the driver shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverProcess {
    /// Its number.
    pub pid: u32,
    /// Bytes it holds; `None`: the driver does not say.
    pub held: Option<Bytes>,
    /// Device time it had, in nanoseconds; `None`: the driver does not say.
    pub device_nanos: Option<u64>,
    /// Name of its program, as the kernel has it; it may say anything.
    pub command: Option<String>,
    /// Directories of grants that it was started with; relative ones are `claim/share`.
    pub grants: Vec<PathBuf>,
}

/// Who looks, again and again.
#[derive(Debug)]
pub struct Looker {
    states: Vec<PathBuf>,
    homes: Vec<PathBuf>,
    cards: Vec<PathBuf>,
    inventory: Inventory,
    drivers: Drivers,
    machine: Option<Machine>,
    begun: Instant,
}

// === impl Look ===

impl Look {
    /// What is promised, by state directory.
    pub(super) fn promised(&self) -> impl Iterator<Item = (&Path, &Promised)> {
        self.states.iter().filter_map(|state| Some((state.dir.as_path(), state.promised.as_ref().ok()?)))
    }
}

// === impl Promised ===

impl Promised {
    fn is_on(&self, card: &CardUuid) -> bool {
        self.shares.iter().any(|share| share.grant.card == *card)
            || self.partitions.iter().any(|partition| partition.at.card == *card)
    }
}

// === impl Looker ===

impl Looker {
    /// Looks at these state directories and those that lie below these homes then, at these directories of simulated
    /// cards beside those that lie in them, and at the cards of a described node.
    #[must_use]
    pub fn new(states: Vec<PathBuf>, homes: Vec<PathBuf>, cards: Vec<PathBuf>, inventory: Inventory) -> Self {
        // One name a directory, as processes have it in their environment.
        let plain = |dir: PathBuf| dir.canonicalize().unwrap_or(dir);
        let [states, homes] = [states, homes].map(|dirs| dirs.into_iter().map(plain).collect());
        Self { states, homes, cards, inventory, drivers: Drivers::default(), machine: None, begun: now() }
    }

    /// Looks at this machine's own cards as well: all of them, or where state directories were named those on which something
    /// is promised there.
    #[must_use]
    pub fn with_machine(self) -> Self {
        Self { machine: Some(Machine::open()), ..self }
    }

    /// One look.
    pub fn look(&mut self) -> Look {
        let begun = self.begun;
        let clock = || now().saturating_duration_since(begun);
        let (mut named, mut closed) = (self.states.clone(), Vec::new());
        for home in &self.homes {
            let (others, open): (Vec<_>, Vec<_>) =
                state::below(home).into_iter().partition(|dir| state::is_closed(dir));
            closed.extend((!others.is_empty()).then(|| home.clone()));
            named.extend(open);
        }
        let driver = self.machine.as_ref().and_then(Machine::driver_load);
        let states: Vec<State> = named.iter().map(|dir| state::read(dir, driver.clone(), &clock)).collect();
        let lies_in = |state: &PathBuf| {
            state::simulated_cards(state)
                .into_iter()
                .map(|dir| (dir, Some(state.clone())))
                .collect::<Vec<_>>()
        };
        let mut dirs: Vec<(PathBuf, Option<PathBuf>)> = named.iter().flat_map(lies_in).collect();
        dirs.extend(self.cards.iter().map(|dir| (dir.clone(), None)));
        let (drivers, unusable) = self.drivers.look(&dirs, &clock);
        let mut look = Look { states, closed, inventory: self.inventory.clone(), drivers, unusable };
        if let Some(machine) = &mut self.machine {
            let known = |card: &CardUuid| {
                self.states.is_empty() || look.promised().any(|(_, promised)| promised.is_on(card))
            };
            let found = machine.look(&known, &clock);
            look.drivers.extend(found.drivers);
            look.unusable.extend(found.trouble);
            look.inventory.cards.extend(found.cards);
        }
        look
    }
}
