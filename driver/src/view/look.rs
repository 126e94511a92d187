//! One look: plain data of one moment, and its collector.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use aliquot_core::card::{Inventory, Partitioning};
use aliquot_core::catalogue::{Catalogue, Sighting};
use aliquot_core::id::CardUuid;
use aliquot_core::partition::PartitionTable;

use super::machine::MachineView;
use super::simulated::Drivers;
use super::snapshot::{DriverView, JournalView, Snapshot, StateView};
use super::state;
use crate::clock::now;
use crate::hardware::MachineCards;
use crate::run::commands::Commands;
use crate::run::processes::grants_of_run;

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
