//! A simulated node: cards from a text file, partitions that outlive the process, faults on demand.
//!
//! ```text
//!   node file (TOML) ──node_file──▶ groups ──probe + catalogue──▶ cards ─┐
//!   personalities/*.toml ┘                                               ├──▶ SimNode: DeviceBackend
//!   state directory: hardware.toml ──ffi──▶ partitions that exist ───────┤
//!   a driver's library for some of the cards ──served──▶ what it tells ──┘
//! ```
//!
//! It is a backend like every vendor's, with the same five files, and a product feature: plans, tests and
//! demonstrations run on it without an accelerator, on the code path that real hardware takes.
//!
//! - It refuses what hardware refuses: a template that the card does not know, a second partition at one place,
//!   counters that do not allow it.
//! - Every partition has its own UUID, so a partition that is destroyed and created again is distinct.
//! - A file that it cannot read is kept and refused.
//! - Device files of a simulated card have the vendor's path in the container and `/dev/null` behind it on the host.

mod ffi;
mod health;
mod node_file;
mod partition;
mod personality;
mod probe;
mod served;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use aliquot_core::card::{Card, Health, Inventory};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::{CardUuid, NodeName};
use aliquot_core::partition::Part;
use aliquot_core::ports::{
    BackendError, CardEvents, CardUsage, DeviceAccess, DeviceBackend, DeviceNode, ExpectedPartition,
    LivePartition, PartitionAt,
};

pub use health::{Call, Effect, Fault};
pub use node_file::{NodeFile, NodeFileError};
pub use personality::Personality;
pub use served::ServedCards;

use ffi::{Hardware, State, StateChange};
use partition::{SimCard, place_of};

/// What every device file of a simulated card is on the host: it exists everywhere and does nothing.
const HOST_NODE: &str = "/dev/null";
/// Its number on Linux.
const HOST_NODE_NUMBER: (u32, u32) = (1, 3);

/// A simulated node.
#[derive(Debug)]
pub struct SimNode {
    name: NodeName,
    about: String,
    labels: BTreeMap<String, String>,
    cards: Vec<SimCard>,
    faults: Vec<Fault>,
    hardware: Hardware,
    /// Cards behind a driver's library.
    served: ServedCards,
}

/// Why there is no simulated node.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The text is no node.
    #[error(transparent)]
    NodeFile(#[from] NodeFileError),
    /// The state cannot be used.
    #[error(transparent)]
    State(#[from] BackendError),
}

// === impl SimNode ===

impl SimNode {
    /// A node with its hardware in memory, for as long as the value exists.
    ///
    /// # Errors
    /// The file describes no possible node.
    pub fn in_memory(file: &NodeFile, catalogue: &Catalogue) -> Result<Self, NodeFileError> {
        let (cards, state) = probe::probe(file, catalogue)?;
        Self::new(file, cards, Hardware::Memory(Mutex::new(state)))
    }

    /// A node with its hardware in a directory, for every process that opens it.
    ///
    /// # Errors
    /// The file describes no possible node, or the directory cannot be used; what is in it stays.
    pub fn open(file: &NodeFile, catalogue: &Catalogue, dir: &Path) -> Result<Self, OpenError> {
        let (cards, state) = probe::probe(file, catalogue)?;
        let hardware = Hardware::open(dir, &state)?;
        Ok(Self::new(file, cards, hardware)?)
    }

    fn new(file: &NodeFile, cards: Vec<SimCard>, hardware: Hardware) -> Result<Self, NodeFileError> {
        Ok(Self {
            name: file.node_name()?,
            about: file.about.clone(),
            labels: file.labels.clone(),
            cards,
            faults: file.faults.iter().map(Fault::from_text).collect(),
            hardware,
            served: ServedCards::default(),
        })
    }

    /// The cards as the node file describes them, on an idle, healthy day.
    pub fn described(&self) -> impl Iterator<Item = &Card> {
        self.cards.iter().map(|sim| &sim.card)
    }

    /// Has cards served by a driver's library from now on. Partitions that the node file states for them are made there.
    ///
    /// # Errors
    /// The library refuses one of them, or the state cannot be kept.
    pub fn serve(&mut self, served: ServedCards) -> Result<(), BackendError> {
        let stated = |state: &State| -> Vec<PartitionAt> {
            let all = partition::list(state).into_iter().map(|live| live.at);
            all.filter(|at| served.has(&at.card)).collect()
        };
        let stated = self.hardware.with(|state| StateChange::No(Ok(stated(state))))?;
        for at in &stated {
            match served.of(&at.card).map(|library| library.create_partition(at)) {
                None | Some(Ok(_) | Err(BackendError::AlreadyThere { .. })) => {}
                Some(Err(error)) => return Err(error),
            }
        }
        if !stated.is_empty() {
            self.hardware.with(|state| {
                state.partitions.retain(|entry| place_of(entry).is_none_or(|at| !stated.contains(&at)));
                StateChange::Yes(Ok(()))
            })?;
        }
        self.served = served;
        Ok(())
    }

    /// Name of the node.
    #[must_use]
    pub const fn name(&self) -> &NodeName {
        &self.name
    }

    /// One line about it, for people; may be empty.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Labels of the node.
    #[must_use]
    pub const fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// Adds a fault to those of the node file.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Makes a card fail or work from now on, for every process that shares the hardware.
    ///
    /// # Errors
    /// The card is unknown, or the state cannot be kept.
    pub fn set_health(&self, card: &CardUuid, health: &Health) -> Result<(), BackendError> {
        self.card(card)?;
        self.hardware.with(|state| {
            match health {
                Health::Healthy => state.unhealthy.remove(card.as_str()),
                Health::Unhealthy(why) => state.unhealthy.insert(card.to_string(), why.clone()),
            };
            StateChange::Yes(Ok(()))
        })
    }

    fn card(&self, uuid: &CardUuid) -> Result<&SimCard, BackendError> {
        let card = self.cards.iter().find(|c| c.card.uuid == *uuid);
        card.ok_or_else(|| BackendError::UnknownCard(uuid.clone()))
    }

    /// One call of the hardware, which may go wrong as the faults say.
    fn call<T>(
        &self,
        call: Call,
        what: &str,
        act: impl FnOnce(&mut State) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let mut slow = None;
        let answer = self.hardware.with(|state| {
            let effect = self.fault_of(call, state);
            let counted = |answer| match (call, self.faults.is_empty()) {
                (Call::Discover | Call::List, true) => StateChange::No(answer),
                _ => StateChange::Yes(answer),
            };
            match effect {
                None => counted(act(state)),
                Some(Effect::Slow(time)) => {
                    slow = Some(time);
                    counted(act(state))
                }
                Some(effect @ Effect::LostAnswer { .. }) => {
                    let done = act(state);
                    counted(done.and_then(|answer| effect.error(what).map_or(Ok(answer), Err)))
                }
                Some(effect) => match effect.error(what) {
                    Some(error) => counted(Err(error)),
                    None => counted(act(state)),
                },
            }
        });
        if let Some(time) = slow {
            std::thread::sleep(time);
        }
        answer
    }

    /// Counts the call and finds the fault that hits it.
    fn fault_of(&self, call: Call, state: &mut State) -> Option<Effect> {
        if self.faults.is_empty() {
            return None;
        }
        let count = state.calls.entry(call.as_str().to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        let number = *count;
        self.faults.iter().find(|f| f.hits(call, number)).map(|f| f.effect.clone())
    }
}

impl DeviceBackend for SimNode {
    fn discover(&self) -> Result<Inventory, BackendError> {
        self.call(Call::Discover, "discover cards", |state| {
            let mut cards: Vec<Card> = self.cards.iter().map(|sim| as_found(&sim.card, state)).collect();
            self.served.look(&mut cards)?;
            Ok(Inventory { cards })
        })
    }

    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        self.call(Call::List, "list partitions", |state| {
            let mut all = partition::list(state);
            all.extend(self.served.partitions()?);
            all.sort();
            Ok(all)
        })
    }

    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
        let card = self.card(&at.card)?;
        self.call(Call::Create, &format!("create {at}"), |state| match self.served.of(&at.card) {
            Some(library) => library.create_partition(at),
            None => partition::make(card, at, state),
        })
    }

    fn destroy_partition(&self, at: &PartitionAt, handle: &ExpectedPartition) -> Result<(), BackendError> {
        self.card(&at.card)?;
        self.call(Call::Destroy, &format!("destroy {at}"), |state| match self.served.of(&at.card) {
            Some(library) => library.destroy_partition(at, handle),
            None => partition::unmake(at, handle, state),
        })
    }

    /// A digest of the state, with the number of the library that serves some of the cards. `None` in memory, and with faults:
    /// each of their calls counts.
    fn generation(&self) -> Option<u64> {
        let served = self.served.generation()?;
        let own = self.hardware.digest().filter(|_| self.faults.is_empty())?;
        Some(own.wrapping_add(served))
    }

    fn usage(&self, visible: &CardUuid) -> Result<CardUsage, BackendError> {
        let unsupported = || BackendError::Unsupported { what: format!("usage of {visible}") };
        self.served.of(visible).ok_or_else(unsupported)?.usage(visible)
    }

    fn events(&self, card: &CardUuid) -> Result<Box<dyn CardEvents>, BackendError> {
        let unsupported = || BackendError::Unsupported { what: format!("events of card {card}") };
        self.served.of(card).ok_or_else(unsupported)?.events(card)
    }

    fn variables(&self, card: &CardUuid, part: &Part) -> Result<Vec<(String, String)>, BackendError> {
        self.served.of(card).map_or_else(|| Ok(Vec::new()), |library| library.variables(card, part))
    }

    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        let sim = self.card(card)?;
        if let Some(library) = self.served.of(card) {
            let mut access = library.access(card, part)?;
            access.mounts.extend(self.served.mounts.iter().cloned());
            return Ok(access);
        }
        let index = sim.card.index.to_string();
        let nodes = |patterns: &[String], id: &str| {
            let container = |p: &String| p.replace("{index}", &index).replace("{id}", id);
            let (major, minor) = HOST_NODE_NUMBER;
            patterns
                .iter()
                .map(|p| DeviceNode { host: HOST_NODE.to_owned(), container: container(p), major, minor })
                .collect()
        };
        let Some(at) = PartitionAt::of(card, part) else {
            return Ok(DeviceAccess::by_nodes(card.clone(), nodes(&sim.device_nodes, "0")));
        };
        let live = self.hardware.with(|state| {
            let live = partition::entry_at(state, &at).and_then(partition::live);
            StateChange::No(live.ok_or_else(|| BackendError::Absent { at: at.clone() }))
        })?;
        let patterns = if sim.partition_nodes.is_empty() { &sim.device_nodes } else { &sim.partition_nodes };
        let nodes = nodes(patterns, &live.handle.id.to_string());
        Ok(DeviceAccess::by_nodes(live.handle.uuid, nodes))
    }
}

/// The card as it is right now.
fn as_found(card: &Card, state: &State) -> Card {
    let mut card = card.clone();
    if let Some(why) = state.unhealthy.get(card.uuid.as_str()) {
        card.health = Health::Unhealthy(why.clone());
    }
    card.found =
        partition::on_card(state, &card.uuid).filter_map(partition::live).map(|l| l.at.part()).collect();
    card
}
