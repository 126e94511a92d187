//! The simulated cards of a node as a directory that the simulated driver libraries open.
//!
//! ```text
//!   <state>/cards/               one simulated card for each NVIDIA card of the node, with its UUID and size
//!   <state>/cards-<MIG uuid>/    one for a partition of a run; its events are those of the partition
//! ```
//!
//! `node.toml` in there is written once; later edits by the user (lengths of kernels, bytes of a context) stay.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::card::{Card, Inventory};
use aliquot_core::grant::Grant;
use aliquot_core::health::Cause;
use aliquot_core::id::{CardUuid, CounterName, Vendor};
use aliquot_core::partition::{Part, Template};
use aliquot_core::ports::{CardUsage, DeviceBackend};
use aliquot_core::units::Bytes;
use aliquot_enforce::units::Nanos;
use aliquot_sim_device::{
    Card as SimulatedCard, CardFacts, DIR_ENV, Health, MigMode, NO_BUS, Node as SimulatedNode, PciPlace,
    ReportPosition, WINDOW_NANOS,
};

use super::cards::{
    CardAccess, CardProcesses, Cards, Events, Meter, ProcessTime, Reporter, UsageSource, Window,
};
use super::machine::BackendEvents;
use crate::clock;
use crate::config::{BUS_ORDER, CARD_ORDER, VISIBLE_CARDS};
use crate::disk::{Disk, Mode};
use crate::hardware::simulated_cards::{PARTITION, cards_dir, footprint, partition_dir};
use crate::hardware::{npus, vendors};
use crate::state_dir::file::make_dirs;

/// The simulated cards of a node.
#[derive(Clone, Debug)]
pub struct SimulatedCards {
    /// State directory of the node.
    pub state: PathBuf,
    /// Below it the simulated driver libraries are installed.
    pub libraries: PathBuf,
}

/// The driver's side of one simulated card.
#[derive(Debug)]
struct SimulatedMeter {
    card: SimulatedCard,
    /// Number of the window that was reported last.
    window: u64,
}

/// The driver's account of the processes on one simulated card.
#[derive(Debug)]
struct SimulatedProcesses(SimulatedCard);

/// The driver's account of one simulated NPU.
struct SimulatedNpu {
    npus: Arc<dyn DeviceBackend>,
    visible: CardUuid,
}

/// A simulated card that is followed.
#[derive(Debug)]
struct FollowedCard {
    card: SimulatedCard,
    /// The part that its events are about.
    part: Part,
    seen: ReportPosition,
}

/// Makes the directory of simulated cards in which a part is, and names it.
///
/// # Errors
/// The disk refuses, or the directory has other cards.
pub fn directory_for(
    state: &Path,
    card: &CardUuid,
    part: &Part,
    visible: &CardUuid,
    cards: &Inventory,
) -> io::Result<PathBuf> {
    let (dir, facts) = match part {
        Part::Partition { template, .. } => {
            let card = cards.card(card);
            let template = card.and_then(|card| card.table()?.template(template));
            let facts = card.zip(template).map(|(card, template)| of_partition(card, template, visible));
            (partition_dir(state, visible.as_str()), facts.into_iter().collect())
        }
        Part::Card | Part::Slot { .. } => (cards_dir(state), of_node(cards)),
    };
    if !facts.iter().any(|facts| facts.uuid == visible.as_str() && facts.uuid_bytes().is_some()) {
        return Err(not_shown(visible));
    }
    ensure(&dir, &facts)?;
    Ok(dir)
}

// === impl Cards ===

impl Cards for SimulatedCards {
    fn vendors(&self) -> Vec<Vendor> {
        vendors::all()
    }

    fn reach(&self, grant: &Grant, visible: &CardUuid, cards: &Inventory) -> io::Result<CardAccess> {
        if cards.card(&grant.card).is_none_or(|card| card.vendor != vendors::cuda()) {
            return Ok(CardAccess {
                libraries: None,
                environment: Vec::new(),
                footprint: None,
                meter: None,
                processes: None,
            });
        }
        let libraries = aliquot_libraries::install_simulated(&self.libraries)?.canonicalize()?;
        let dir = directory_for(&self.state, &grant.card, &grant.part, visible, cards)?;
        let device = aliquot_sim_device::open(&dir).map_err(io::Error::other)?;
        let mut cards = device.cards().iter();
        let card = cards.find(|card| card.facts().uuid == visible.as_str()).cloned();
        // As on hardware: programs choose an instance by its UUID, a card by its number.
        let shown: OsString = match (&grant.part, &card) {
            (Part::Card | Part::Slot { .. }, Some(card)) => card.index().to_string().into(),
            _ => visible.as_str().into(),
        };
        let processes = card.clone().map(|card| Arc::new(SimulatedProcesses(card)) as Arc<dyn CardProcesses>);
        let meter = card.map(|card| Box::new(SimulatedMeter { card, window: 0 }) as Box<dyn Meter>);
        let environment = vec![
            (VISIBLE_CARDS, shown),
            (CARD_ORDER, BUS_ORDER.into()),
            (DIR_ENV, dir.canonicalize()?.into()),
        ];
        let footprint = Some(footprint(device.node()));
        Ok(CardAccess { libraries: Some(libraries), environment, footprint, meter, processes })
    }

    fn follow(&self, grant: &Grant, visible: &CardUuid) -> Result<Box<dyn Events>, String> {
        if let Some(events) = self.of_npu(&grant.card) {
            return Ok(events);
        }
        match &grant.part {
            Part::Partition { .. } => {
                follow_in(&partition_dir(&self.state, visible.as_str()), visible, grant.part.clone())
            }
            Part::Card | Part::Slot { .. } => follow_in(&cards_dir(&self.state), visible, Part::Card),
        }
    }

    fn follow_card(&self, card: &CardUuid, cards: &Inventory) -> Result<Box<dyn Events>, String> {
        if let Some(events) = self.of_npu(card) {
            return Ok(events);
        }
        if cards.card(card).is_none_or(|card| card.vendor != vendors::cuda()) {
            return Err("it is described, and has no simulated driver".to_owned());
        }
        let dir = directory_for(&self.state, card, &Part::Card, card, cards).map_err(|e| e.to_string())?;
        follow_in(&dir, card, Part::Card)
    }

    fn reporter(&self, grant: &Grant) -> Reporter {
        match grant.part {
            // An NPU reports for its vNPUs.
            Part::Partition { .. } if self.of_npu(&grant.card).is_none() => Reporter::Part,
            Part::Partition { .. } | Part::Card | Part::Slot { .. } => Reporter::Card,
        }
    }

    fn driver_load(&self) -> Option<String> {
        None
    }

    fn no_partitions(&self) -> Vec<String> {
        Vec::new()
    }

    fn usage_source(
        &self,
        card: &CardUuid,
        part: &Part,
        visible: &CardUuid,
        cards: &Inventory,
    ) -> Option<Box<dyn UsageSource>> {
        if cards.card(card)?.vendor != vendors::cuda() {
            let npus = npus::open(&self.state)?;
            return Some(Box::new(SimulatedNpu { npus, visible: visible.clone() }));
        }
        let dir = match part {
            Part::Partition { .. } => partition_dir(&self.state, visible.as_str()),
            Part::Card | Part::Slot { .. } => cards_dir(&self.state),
        };
        // Nothing is made here: no program has used a card whose files are not there.
        let device = aliquot_sim_device::look(&dir).ok()??;
        let mut cards = device.cards().iter();
        let card = cards.find(|card| card.facts().uuid == visible.as_str()).cloned()?;
        Some(Box::new(SimulatedProcesses(card)))
    }

    fn others(&self, _: &CardUuid, _: &Path) -> Vec<(u32, Bytes)> {
        // The cards are made for runs of this state.
        Vec::new()
    }

    fn remove_others(&self, visible: &dyn Fn(&str) -> bool) -> io::Result<()> {
        for entry in fs::read_dir(&self.state)? {
            let entry = entry?;
            let gone = |name: &str| name.strip_prefix(PARTITION).is_some_and(|uuid| !visible(uuid));
            if entry.file_name().to_str().is_some_and(gone) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

// === impl SimulatedCards ===

impl SimulatedCards {
    /// Events of an NPU, from now on; `None`: the card is none, or does not answer.
    fn of_npu(&self, card: &CardUuid) -> Option<Box<dyn Events>> {
        let events = npus::open(&self.state)?.events(card).ok()?;
        Some(Box::new(BackendEvents(events)))
    }
}

/// Follows a card of a directory; its events are about `part`.
fn follow_in(dir: &Path, visible: &CardUuid, part: Part) -> Result<Box<dyn Events>, String> {
    let device = aliquot_sim_device::open(dir).map_err(|error| error.to_string())?;
    let card = device.cards().iter().find(|card| card.facts().uuid == visible.as_str()).cloned();
    let card = card.ok_or("it is not simulated")?;
    if card.health() == Health::Lost {
        return Err("it does not answer".to_owned());
    }
    Ok(Box::new(FollowedCard { seen: card.xids_until_now(), card, part }))
}

// === impl FollowedCard ===

impl Events for FollowedCard {
    fn next(&mut self, longest: Duration) -> Result<Option<(Cause, Part)>, String> {
        let asked = clock::now();
        loop {
            // Before the look: what comes after it ends the sleep.
            let stirred = self.card.stirred();
            if let Some((seen, xid)) = self.card.xid_after(self.seen) {
                self.seen = seen;
                return Ok(Some((Cause::Code(xid.number), self.part.clone())));
            }
            if self.card.health() == Health::Lost {
                return Ok(Some((Cause::Lost, self.part.clone())));
            }
            let left = longest.saturating_sub(clock::now().duration_since(asked));
            if left.is_zero() {
                return Ok(None);
            }
            self.card.sleep_while(stirred, left);
        }
    }
}

// === impl SimulatedMeter ===

impl CardProcesses for SimulatedProcesses {
    fn processes(&self) -> Option<Vec<(u32, Option<Bytes>)>> {
        let held = |process: aliquot_sim_device::Process| (process.pid, Some(Bytes(process.held_bytes)));
        Some(self.0.processes().into_iter().map(held).collect())
    }
}

impl UsageSource for SimulatedProcesses {
    fn usage(&self) -> Option<CardUsage> {
        if self.0.health() == Health::Lost {
            return None;
        }
        let moment = self.0.moment();
        let held = |process: aliquot_sim_device::Process| (process.pid, Some(Bytes(process.held_bytes)));
        Some(CardUsage {
            memory: Bytes(self.0.facts().memory_bytes),
            in_use: Bytes(moment.in_use),
            busy_percent: Some(self.0.utilization()),
            processes: moment.processes.into_iter().map(held).collect(),
        })
    }
}

impl UsageSource for SimulatedNpu {
    fn usage(&self) -> Option<CardUsage> {
        self.npus.usage(&self.visible).ok()
    }
}

impl Meter for SimulatedMeter {
    fn window(&mut self, now: Nanos) -> Option<Window> {
        let number = now.0 / WINDOW_NANOS;
        if number == self.window {
            return None;
        }
        self.window = number;
        let processes =
            self.card.utilizations().into_iter().map(|(pid, percent)| ProcessTime { pid, percent });
        Some(Window {
            length: Nanos(WINDOW_NANOS),
            busy_percent: Some(self.card.utilization()),
            processes: processes.collect(),
        })
    }
}

/// A program would find no card at all.
fn not_shown(uuid: &CardUuid) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "the simulated driver cannot show card {uuid}: its UUID is not \"GPU-\" and 32 hexadecimal digits in groups of 8, 4, 4, \
             4 and 12; mend or remove `uuid` or `uuid-prefix` of its group in the node file"
        ),
    )
}

/// The cards of a node that the simulated libraries can show, in its order.
fn of_node(cards: &Inventory) -> Vec<CardFacts> {
    let vendor = vendors::cuda();
    let ours = cards.cards.iter().filter(|card| card.vendor == vendor);
    ours.map(of_card).filter(|facts| facts.uuid_bytes().is_some()).collect()
}

fn of_card(card: &Card) -> CardFacts {
    let (major, minor) = capability(&card.architecture);
    let own = CardFacts::numbered(card.index);
    let place = card.pci.as_ref().and_then(|pci| PciPlace::parse(pci.as_str()));
    let templates = || card.table().into_iter().flat_map(|table| &table.templates);
    CardFacts {
        name: card.product_name.clone(),
        uuid: card.uuid.to_string(),
        memory_bytes: card.memory.0,
        sms: templates().filter_map(multiprocessors).max().unwrap_or(own.sms),
        major,
        minor,
        bus: place.map_or(NO_BUS, PciPlace::bus_of_all),
        slot: place.map_or(0, |place| place.slot),
        mig: if card.table().is_some() { MigMode::Off } else { MigMode::None },
        device: device_file(card.index),
        ..own
    }
}

fn of_partition(card: &Card, template: &Template, visible: &CardUuid) -> CardFacts {
    let of_card = of_card(card);
    CardFacts {
        name: format!("{} MIG {}", of_card.name, template.name),
        uuid: visible.to_string(),
        memory_bytes: template.memory.0,
        sms: multiprocessors(template).unwrap_or(of_card.sms),
        mig: MigMode::None,
        device: String::new(),
        ..of_card
    }
}

/// The vendor's device file of a card, as node files name it.
fn device_file(index: u32) -> String {
    format!("/dev/nvidia{index}")
}

/// What a partition has of the counter that stands for streaming multiprocessors, where the catalogue counts them.
fn multiprocessors(template: &Template) -> Option<u32> {
    let counter = CounterName::new("multiprocessors").ok()?;
    u32::try_from(template.consumes.get(&counter)).ok().filter(|count| *count > 0)
}

/// Compute capability of an architecture; NVIDIA's numbers.
fn capability(architecture: &str) -> (u32, u32) {
    match architecture {
        "Turing" => (7, 5),
        "Ampere" => (8, 0),
        "Ada" | "Ada Lovelace" => (8, 9),
        "Blackwell" => (10, 0),
        _ => (9, 0),
    }
}

/// Writes which cards there are, where that is not written yet.
fn ensure(dir: &Path, facts: &[CardFacts]) -> io::Result<()> {
    let path = dir.join("node.toml");
    if path.exists() {
        let there = SimulatedNode::read(dir).map_err(io::Error::other)?;
        let same = |(a, b): (&CardFacts, &CardFacts)| a.uuid == b.uuid && a.memory_bytes == b.memory_bytes;
        if there.cards.len() == facts.len() && there.cards.iter().zip(facts).all(same) {
            return Ok(());
        }
        let message = format!(
            "{} describes other cards than the node has: remove {}, in which there is nothing else, or name another state",
            path.display(),
            dir.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    make_dirs(dir)?;
    Disk::default().replace(&path, text(facts).as_bytes(), Mode::Shown)
}

/// The file, as `aliquot_sim_device` reads it.
fn text(facts: &[CardFacts]) -> String {
    let mut text =
        String::from("# Cards of this node; the other keys are in driver/backends/sim/README.md.\n");
    for card in facts {
        let CardFacts { name, uuid, memory_bytes, sms, major, minor, bus, slot, serial, mig, device, .. } =
            card;
        let mig = match mig {
            MigMode::None => "none",
            MigMode::Off => "off",
            MigMode::On => "on",
        };
        let name: String = name.chars().filter(|c| !c.is_control() && *c != '"' && *c != '\\').collect();
        let memory = Bytes(*memory_bytes).0;
        // Without an address in the node's file, the libraries choose one that no other card has.
        let bus = if *bus == NO_BUS { String::new() } else { format!("bus = {bus}\nslot = {slot}\n") };
        // Writing to a String cannot fail.
        let written = write!(
            text,
            "\n[[card]]\nname = \"{name}\"\nuuid = \"{uuid}\"\nmemory_bytes = {memory}\nsms = {sms}\n\
             major = {major}\nminor = {minor}\n{bus}serial = \"{serial}\"\nmig = \"{mig}\"\n\
             device = \"{device}\"\n"
        );
        debug_assert!(written.is_ok(), "text takes what is written");
    }
    text
}

#[cfg(test)]
mod tests {
    use aliquot_backend_sim::{Personality, SimNode};
    use aliquot_core::catalogue::Catalogue;

    use super::*;

    #[test]
    fn the_cards_of_every_built_in_node_can_be_simulated() {
        for personality in Personality::all() {
            let node = SimNode::in_memory(&personality.load().unwrap(), &Catalogue::embedded()).unwrap();
            let cards = node.discover().unwrap();
            let ours = cards.cards.iter().filter(|card| card.vendor == vendors::cuda());
            let facts = of_node(&cards);
            assert_eq!(facts.len(), ours.count(), "{}", node.name());
            if facts.is_empty() {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            ensure(dir.path(), &facts).unwrap();
            let read = SimulatedNode::read(dir.path()).unwrap();
            assert_eq!(read.cards, facts, "{}", node.name());
            let ours = node.described().filter(|card| card.vendor == vendors::cuda());
            for (facts, card) in facts.iter().zip(ours) {
                let address = facts.pci().text(4).to_lowercase();
                assert_eq!(address, card.pci.as_ref().unwrap().as_str(), "{}", node.name());
            }
            ensure(dir.path(), &facts).unwrap();
            let other = [CardFacts::numbered(7)];
            let refused = ensure(dir.path(), &other).unwrap_err().to_string();
            assert!(refused.contains("describes other cards"), "{refused}");
        }
    }
}
