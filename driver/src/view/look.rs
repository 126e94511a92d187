//! One look: plain data of one moment, and its collector.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_abi::limits::Limits;
use aliquot_core::card::{Inventory, Partitioning};
use aliquot_core::catalogue::{Catalogue, Sighting};
use aliquot_core::grant::Grant;
use aliquot_core::health::Notes;
use aliquot_core::id::CardUuid;
use aliquot_core::partition::PartitionTable;
use aliquot_core::units::Bytes;

use super::machine::MachineView;
use super::simulated::Drivers;
use super::state;
use crate::checkpoint::Phase;
use crate::clock::now;
use crate::hardware::MachineCards;
use crate::hardware::vendors::VendorCodes;
use crate::region::UsageCopy;
use crate::run::commands::Commands;
use crate::run::processes::grants_of_run;

/// All data of one look.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// State directories, in the order in which they were named.
    pub states: Vec<StateView>,
    /// Default homes of state with a directory that another user does not let this one read.
    pub closed: Vec<PathBuf>,
    /// Cards of the node description.
    pub inventory: Inventory,
    /// Cards, and parts of cards, as their driver reports them.
    pub drivers: Vec<DriverView>,
    /// Cards that cannot be queried, and the reason.
    pub unusable: Vec<(String, String)>,
    /// What cards may be cut into, by UUID; of cards that the node description lacks.
    pub tables: BTreeMap<String, Arc<PartitionTable>>,
}

/// One state directory.
#[derive(Clone, Debug)]
pub struct StateView {
    /// Its path.
    pub dir: PathBuf,
    /// Its granted shares and partitions, or the reason why the journal cannot be read.
    pub promised: Result<JournalView, String>,
    /// Its health records, or the reason why they cannot be read.
    pub against: Result<CardRecords, String>,
}

/// Health records of cards.
#[derive(Clone, Debug, Default)]
pub struct CardRecords {
    /// The recorded events.
    pub notes: Notes,
    /// The meaning of error codes.
    pub xids: VendorCodes,
}

/// Shares and partitions of a journal.
#[derive(Clone, Debug, Default)]
pub struct JournalView {
    /// Shares of all claims, in the order of the journal.
    pub shares: Vec<ShareView>,
    /// Partitions that were created or are about to be.
    pub partitions: Vec<PartitionView>,
}

/// A partition of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// Card, template and placement.
    pub at: aliquot_core::ports::PartitionAt,
    /// The UUID that its tenant reads; `None`: it is not created yet.
    pub uuid: Option<String>,
}

/// One share.
#[derive(Clone, Debug)]
pub struct ShareView {
    /// `namespace/name` of the claim.
    pub claim: String,
    /// Phase of the claim.
    pub phase: Phase,
    /// The grant.
    pub grant: Grant,
    /// The UUID of the part that the tenant reads; `None`: the part is not created yet.
    pub visible: Option<String>,
    /// Directory of the share.
    pub dir: PathBuf,
    /// Its region, by which limits are enforced.
    pub region: Region,
}

/// The region of a share.
#[derive(Clone, Debug)]
pub enum Region {
    /// None, and the share's directory lacks as well: no limits are enforced.
    Missing,
    /// None: the node made the share's directory, and wrote no limits because the hardware is the limit.
    Absent,
    /// Two files.
    There(Box<Files>),
}

/// The two files of a region.
#[derive(Clone, Debug)]
pub struct Files {
    /// The present limits, or the reason why they cannot be read.
    pub limits: Result<Limits, String>,
    /// Use by its processes, or the reason why it cannot be read.
    pub usage: Result<UsageCopy, String>,
    /// Program names of its processes, by their pid in this namespace; untrusted text.
    pub commands: BTreeMap<u32, String>,
    /// Time of reading since the first look.
    pub at: Duration,
}

/// A card or partition as its driver reports it.
#[derive(Clone, Debug)]
pub struct DriverView {
    /// State directory of its simulation; `None`: it is the same for all state directories.
    pub state: Option<PathBuf>,
    /// UUID.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Memory.
    pub memory: Bytes,
    /// Whether it is a whole card, by the directory where it was found.
    pub whole: bool,
    /// Bytes in use by live processes.
    pub in_use: Bytes,
    /// The greatest use so far; `None`: the driver does not report it.
    pub high_water: Option<Bytes>,
    /// Device time used by all processes, in nanoseconds; `None`: the driver does not report it.
    pub busy_nanos: Option<u64>,
    /// Whether it fell off the bus.
    pub health: CardAnswer,
    /// Its processes.
    pub processes: Vec<DriverProcess>,
    /// Time of the query since the first look.
    pub at: Duration,
}

/// Whether a card answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardAnswer {
    /// It does.
    Well,
    /// It fell off the bus.
    Lost,
}

/// A process as the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverProcess {
    /// Process id.
    pub pid: u32,
    /// Its memory; `None`: the driver does not report it.
    pub held: Option<Bytes>,
    /// Its device time, in nanoseconds; `None`: the driver does not report it.
    pub device_nanos: Option<u64>,
    /// Name of its program, as the kernel reports it; untrusted text.
    pub command: Option<String>,
    /// Directories of grants that it was started with; relative ones are `claim/share`.
    pub grants: Vec<PathBuf>,
}

/// Collects looks.
#[derive(Debug)]
pub struct Looker {
    states: Vec<PathBuf>,
    homes: Vec<PathBuf>,
    cards: Vec<PathBuf>,
    inventory: Inventory,
    drivers: Drivers,
    machine: Option<MachineView>,
    /// Read at the first look that needs it.
    catalogue: OnceCell<Catalogue>,
    begun: Instant,
}

// === impl Snapshot ===

impl Snapshot {
    /// Shares and partitions by state directory.
    pub(super) fn promised(&self) -> impl Iterator<Item = (&Path, &JournalView)> {
        self.states.iter().filter_map(|state| Some((state.dir.as_path(), state.promised.as_ref().ok()?)))
    }
}

// === impl JournalView ===

impl JournalView {
    fn is_on(&self, card: &CardUuid) -> bool {
        self.shares.iter().any(|share| share.grant.card == *card)
            || self.partitions.iter().any(|partition| partition.at.card == *card)
    }
}

// === impl Looker ===

impl Looker {
    /// A collector of these state directories and those below these homes, of the simulated cards in them and in `cards`, and of
    /// the cards of a described node.
    #[must_use]
    pub fn new(states: Vec<PathBuf>, homes: Vec<PathBuf>, cards: Vec<PathBuf>, inventory: Inventory) -> Self {
        // Canonical paths, as processes have them in their environment.
        let plain = |dir: PathBuf| dir.canonicalize().unwrap_or(dir);
        let [states, homes] = [states, homes].map(|dirs| dirs.into_iter().map(plain).collect());
        let (drivers, machine, catalogue) = (Drivers::default(), None, OnceCell::new());
        Self { states, homes, cards, inventory, drivers, machine, catalogue, begun: now() }
    }

    /// Adds this machine's own cards: all of them, or, if all named state directories are those of simulated nodes, the ones with
    /// shares or partitions there.
    #[must_use]
    pub fn with_machine(self) -> Self {
        Self { machine: Some(MachineView::open()), ..self }
    }

    /// The same with the machine's cards that are open already.
    #[must_use]
    pub fn with_cards_of(self, machine: &MachineCards) -> Self {
        Self { machine: Some(MachineView::of(machine)), ..self }
    }

    /// One look.
    pub fn look(&mut self) -> Snapshot {
        let begun = self.begun;
        let clock = || now().saturating_duration_since(begun);
        let (mut named, mut closed) = (self.states.clone(), Vec::new());
        for home in &self.homes {
            let (others, open): (Vec<_>, Vec<_>) =
                state::below(home).into_iter().partition(|dir| state::is_closed(dir));
            closed.extend((!others.is_empty()).then(|| home.clone()));
            named.extend(open);
        }
        let driver = self.machine.as_ref().and_then(MachineView::driver_load);
        let states: Vec<StateView> =
            named.iter().map(|dir| state::read(dir, driver.clone(), &clock)).collect();
        let lies_in = |state: &PathBuf| {
            state::simulated_cards(state)
                .into_iter()
                .map(|dir| (dir, Some(state.clone())))
                .collect::<Vec<_>>()
        };
        let mut dirs: Vec<(PathBuf, Option<PathBuf>)> = named.iter().flat_map(lies_in).collect();
        dirs.extend(self.cards.iter().map(|dir| (dir.clone(), None)));
        let (drivers, unusable) = self.drivers.look(&dirs, &clock);
        let inventory = self.inventory.clone();
        let tables = self.tables(&states, &drivers);
        let mut look = Snapshot { states, closed, inventory, drivers, unusable, tables };
        if let Some(machine) = &mut self.machine {
            let is_open = self.states.is_empty() || !self.states.iter().all(|dir| state::is_simulated(dir));
            let known =
                |card: &CardUuid| is_open || look.promised().any(|(_, promised)| promised.is_on(card));
            let found = machine.look(&known, &clock);
            look.drivers.extend(found.drivers);
            look.unusable.extend(found.trouble);
            look.inventory.cards.extend(found.cards);
        }
        let commands = Commands::of(look.promised().map(|(dir, _)| dir));
        let processes = look.drivers.iter_mut().flat_map(|driver| &mut driver.processes);
        for process in processes.filter(|process| process.grants.is_empty()) {
            process.grants.extend(grants_of_run(process.pid, &commands));
        }
        look
    }

    /// The tables of simulated cards, if a partition is on any card.
    fn tables(&self, states: &[StateView], drivers: &[DriverView]) -> BTreeMap<String, Arc<PartitionTable>> {
        let mut promised = states.iter().filter_map(|state| state.promised.as_ref().ok());
        let has_none = |promised: &JournalView| {
            promised.partitions.is_empty()
                && promised.shares.iter().all(|share| share.grant.partition().is_none())
        };
        if promised.all(has_none) {
            return BTreeMap::new();
        }
        let catalogue = self.catalogue.get_or_init(Catalogue::embedded);
        let one = |driver: &DriverView| {
            let (name, memory) = (Some(driver.name.clone()), Some(driver.memory));
            let seen = Sighting { product_name: name, memory, ..Sighting::default() };
            let Partitioning::Templates(table) = &catalogue.matching(&seen).first()?.partitioning else {
                return None;
            };
            Some((driver.uuid.clone(), Arc::clone(table)))
        };
        drivers.iter().filter(|driver| driver.whole).filter_map(one).collect()
    }
}
