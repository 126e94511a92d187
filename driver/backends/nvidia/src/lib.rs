//! Real NVIDIA cards, as their driver's management library reports them.
//!
//! ```text
//!   libnvidia-ml.so.1 ──ffi──▶ facts ──probe + catalogue──▶ cards ─┐
//!                       │      MIG mode ──partition──▶ what of it  ├──▶ NvidiaNode: DeviceBackend
//!                       ├────▶ faults ──health──▶ what to do ──────┘
//!                       └────▶ events ──watch───▶ Xids, of which the table of `xid` says what they mean
//! ```
//!
//! A backend like every vendor's, with the same five files. No mode of a card is ever switched; on a card that is in MIG mode
//! instances are made and destroyed as the journal says. Shares are held by the shim in the tenants' processes.
//!
//! - Each call queries the library anew, and `session` initialises the library anew after a reload of the driver. A card
//!   without an answer is named with the reason, and reported as `known` has it; the others are reported as they are.
//! - A card in MIG mode offers partitions and nothing else, to users with the right to create instances.
//!   Instances made outside Aliquot are left alone. A card with an unreadable mode accepts no claims.
//! - A card outside the catalogue gets a model made from what the library reports.

mod access;
pub mod driver_root;
mod ffi;
mod health;
mod known;
mod partition;
mod probe;
mod session;
mod watch;
pub mod xid;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use aliquot_core::card::{Card, Health, Inventory, Listing};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::health::{Codes as _, Meaning};
use aliquot_core::id::{CardUuid, Vendor};
use aliquot_core::partition::Part;
use aliquot_core::ports::{
    BackendError, CardEvents, CardUsage, DeviceAccess, DeviceBackend, ExpectedPartition, LivePartition,
    PartitionAt, PartitionHandle, Samples,
};
use aliquot_core::units::Bytes;

pub use driver_root::{DriverFiles, DriverRootError, HostRoots};
pub use ffi::Fault;
pub use ffi::context::{Context, NoContext, Probe};
pub use health::{DRIVER_MIN, OpenError};
pub use probe::ON_HOST;
pub use watch::Watch;

use access::NodeFiles;
use ffi::{CreateFailure, Facts, Library, MigMode};
use known::KnownCards;
use partition::OneCard;
use probe::{Discovery, Unread};
use session::{ContainerFiles, DriverSource, Session};

/// The card or instance that programs use, and the one that container runtimes give to a container.
const PROGRAMS: &str = "CUDA_VISIBLE_DEVICES";
const RUNTIMES: &str = "NVIDIA_VISIBLE_DEVICES";
/// How programs number cards, and the order in which NVML numbers them. CUDA's own default puts the fastest card first.
const ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// How often and how far apart an instance is asked to go that is in use: 2 s in all.
const BUSY_TRIES: u32 = 20;
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// The NVIDIA cards of this machine.
#[derive(Debug)]
pub struct NvidiaNode {
    /// Itself, for watches that outlive the call that made them.
    own: Weak<Self>,
    session: Session,
    node_files: NodeFiles,
    catalogue: Catalogue,
    /// What is wrong with cards that the latest discovery did not read.
    trouble: Mutex<Vec<String>>,
    /// The cards as they were last read in full.
    known: Mutex<KnownCards>,
    /// Whether the latest discovery read every card in full.
    is_whole: AtomicBool,
    /// Goes up with every partition that is made or destroyed here, and every loss that a card reports.
    changes: AtomicU64,
    /// The partition that is, or was last, an instance of a card with this number: one may be gone when its event arrives.
    instances: Mutex<BTreeMap<(CardUuid, u32), Part>>,
    /// Why no card gives partitions, a card each.
    no_partitions: Vec<String>,
}

// === impl NvidiaNode ===

impl NvidiaNode {
    /// Loads the driver's library and looks for cards.
    ///
    /// # Errors
    /// There is no driver, it is too old or damaged, or it has no card for us.
    pub fn open(catalogue: &Catalogue) -> Result<Arc<Self>, OpenError> {
        Self::of(Session::open(DriverSource::Loader)?, NodeFiles::of(None), catalogue)
    }

    /// As [`NvidiaNode::open`], for containers: they get the driver's files from this place. Without a driver there, the loader's
    /// library serves and containers get device files alone, which [`DeviceBackend::trouble`] tells.
    ///
    /// # Errors
    /// As [`NvidiaNode::open`]; and a driver root that was named has no driver.
    pub fn open_for_containers(catalogue: &Catalogue, place: &HostRoots) -> Result<Arc<Self>, OpenError> {
        let session = Session::open(DriverSource::Host(place.clone()))?;
        Self::of(session, NodeFiles::of(Some(place.clone())), catalogue)
    }

    fn of(session: Session, node_files: NodeFiles, catalogue: &Catalogue) -> Result<Arc<Self>, OpenError> {
        let driver = session.driver();
        let major = driver.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < DRIVER_MIN) {
            return Err(OpenError::TooOld { found: driver });
        }
        let mut node = Self {
            own: Weak::new(),
            session,
            node_files,
            catalogue: catalogue.clone(),
            trouble: Mutex::default(),
            known: Mutex::default(),
            is_whole: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            instances: Mutex::default(),
            no_partitions: Vec::new(),
        };
        let found = node.look().map_err(|fault| OpenError::of("number of cards", fault))?;
        let trouble = found.trouble();
        if found.cards.is_empty() {
            return Err(OpenError::NoCards { trouble });
        }
        node.known().report(&found);
        let Discovery { models, facts, .. } = found;
        let why = |facts: &ffi::Facts| {
            let because = match &facts.mig {
                Ok(mode) => mode.no_partitions(facts.index),
                Err(_) => Some("it does not tell its MIG mode".to_owned()),
            };
            because.map(|because| format!("card {} ({}): {because}", facts.index, facts.name))
        };
        let reasons: Vec<Option<String>> = facts.iter().map(why).collect();
        // One that gives them is enough.
        let none_gives = reasons.iter().all(Option::is_some);
        node.no_partitions = reasons.into_iter().flatten().filter(|_| none_gives).collect();
        node.catalogue = node.catalogue.with_models(models);
        node.trouble = Mutex::new(trouble);
        Ok(Arc::new_cyclic(|own| Self { own: Weak::clone(own), ..node }))
    }

    fn look(&self) -> Result<Discovery, Fault> {
        self.session.refresh()?;
        let (mut found, driver) = (Discovery::default(), self.session.driver());
        for index in 0..self.session.call(Library::count)? {
            match self.session.call(|library| library.facts(index)) {
                // It is missing of every card alike.
                Err(fault @ Fault::NoFunction(_)) => return Err(fault),
                Err(fault) if fault.is_uninitialised() => return Err(fault),
                facts => found.add(index, facts, &driver, &self.catalogue),
            }
        }
        self.remember(&found);
        Ok(found)
    }

    /// One card, and what was read of it. The others are not asked: one that hangs delays nothing here.
    fn card(&self, uuid: &CardUuid) -> Result<(Card, Facts), BackendError> {
        self.refresh_for(uuid)?;
        match self.read(uuid) {
            Ok(read) => read.ok_or_else(|| BackendError::UnknownCard(uuid.clone())),
            Err(fault) => Err(health::unread(format!("find card {uuid}"), fault)),
        }
    }

    /// Initialises the library anew if that is due, before a card is asked.
    fn refresh_for(&self, card: &CardUuid) -> Result<(), BackendError> {
        self.session.refresh().map_err(|fault| health::error(format!("find card {card}"), fault))
    }

    /// One card, as it is now; `None`: the driver does not list it, or it is none of ours.
    fn read(&self, uuid: &CardUuid) -> Result<Option<(Card, Facts)>, Fault> {
        let facts = match self.session.call(|library| library.facts_of(uuid.as_str())) {
            Err(fault) if fault.is_nothing() => return Ok(None),
            facts => facts?,
        };
        let mut found = Discovery::default();
        found.add(facts.index, Ok(facts), &self.session.driver(), &self.catalogue);
        self.remember(&found);
        let mut both = found.cards.into_iter().zip(found.facts);
        Ok(both.find(|(card, _)| card.uuid == *uuid))
    }

    fn known(&self) -> MutexGuard<'_, KnownCards> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vendor of these cards.
    #[must_use]
    pub fn vendor() -> Vendor {
        probe::vendor()
    }

    /// Version of the driver.
    #[must_use]
    pub fn driver(&self) -> String {
        self.session.driver()
    }

    /// The catalogue as it is here: models of these cards have partitions where a card is in MIG mode, and cards that it does not
    /// list have a model.
    #[must_use]
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The files of the driver that containers mount; `None`: they bring their own. After an update of the driver they are those of
    /// the new one, once a discovery has found it.
    #[must_use]
    pub fn files(&self) -> Option<Arc<DriverFiles>> {
        match self.session.files() {
            ContainerFiles::Found(files) => Some(files),
            ContainerFiles::Own | ContainerFiles::Missing(_) => None,
        }
    }

    /// The number by which programs choose a whole card; many read nothing but numbers. `None`: a card cannot be read, or is in MIG
    /// mode. Programs then may count the cards otherwise than NVML does, and a UUID is safe.
    fn number_for_programs(&self, card: &CardUuid) -> Option<u32> {
        let found = self.look().ok().filter(|found| found.unread.is_empty())?;
        let is_whole = |facts: &Facts| matches!(facts.mig, Ok(MigMode::None | MigMode::Off));
        let mine = found.facts.iter().find(|facts| facts.uuid == card.as_str())?;
        found.facts.iter().all(is_whole).then_some(mine.index)
    }

    /// Percent of the driver's last sampling period in which the card worked.
    fn busy(&self, card: &CardUuid) -> Result<Option<u32>, BackendError> {
        match self.session.call(|library| library.busy(card.as_str())) {
            Err(fault) if fault.is_unsupported() => Ok(None),
            Err(fault) => Err(health::error(format!("usage of card {card}"), fault)),
            Ok(percent) => Ok(Some(percent)),
        }
    }
}

impl DeviceBackend for NvidiaNode {
    fn discover(&self) -> Result<Inventory, BackendError> {
        self.is_whole.store(false, Ordering::Release);
        let found = self.look().map_err(|fault| health::error("discover NVIDIA cards".to_owned(), fault))?;
        let mut cards = self.known().report(&found);
        self.judge(&mut cards, &found.facts);
        // One that is not listed is for long: it does not make each look a discovery.
        let is_read = |card: &Card| card.health == Health::Healthy || card.listing == Listing::Unlisted;
        self.is_whole.store(found.unread.is_empty() && cards.iter().all(is_read), Ordering::Release);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = found.trouble();
        Ok(Inventory { cards })
    }

    fn discover_card(&self, card: &CardUuid) -> Result<Card, BackendError> {
        self.refresh_for(card)?;
        match self.read(card) {
            Ok(Some((read, facts))) => {
                let mut card = self.known().merge(&read);
                self.judge([&mut card], &[facts]);
                Ok(card)
            }
            Ok(None) => Err(BackendError::UnknownCard(card.clone())),
            Err(fault) => {
                let unread = Unread::of(0, &fault);
                let known = self.known().unread(card, &unread).filter(|_| !fault.is_uninitialised());
                known.ok_or_else(|| health::unread(format!("find card {card}"), fault))
            }
        }
    }

    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        let found = self.look().map_err(|fault| health::error("list MIG instances".to_owned(), fault))?;
        let cards = found.cards.iter().zip(&found.facts);
        Ok(cards.flat_map(|(card, facts)| OneCard { card, facts }.partitions()).collect())
    }

    fn partitions_on(&self, card: &CardUuid) -> Result<Vec<LivePartition>, BackendError> {
        let (card, facts) = self.card(card)?;
        Ok(OneCard { card: &card, facts: &facts }.partitions())
    }

    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
        let _changed = ChangeMark(&self.changes);
        let unknown = || BackendError::UnknownPlace { at: at.clone() };
        let look = |node: &Self| node.card(&at.card);
        let (card, facts) = look(self)?;
        let cut = cut_of(&facts, at)?;
        let (profile, place) = card
            .table()
            .and_then(|table| partition::place_of(at, &cut.profiles, table))
            .ok_or_else(unknown)?;
        if (OneCard { card: &card, facts: &facts }).at(at).is_some() {
            return Err(BackendError::AlreadyThere { at: at.clone() });
        }
        let made = self.session.make(at.card.as_str(), profile, place);
        let (card, facts) = look(self)?;
        let now = OneCard { card: &card, facts: &facts };
        match made {
            Ok(()) => now.partition_at(at).ok_or_else(|| BackendError::Absent { at: at.clone() }),
            // The partition exists and belongs to this claim, whatever the code: the journal keeps it until
            // it is gone.
            Err(CreateFailure::Half(fault)) => Err(health::refused(format!("create {at}"), fault)),
            Err(CreateFailure::Nothing(fault)) if fault.is_no_room() => match (now.at(at), facts.cut()) {
                // Another program made it meanwhile.
                (Some(_), _) => Err(BackendError::AlreadyThere { at: at.clone() }),
                (None, Some(Ok(cut))) => match partition::taken(&cut.instances, place) {
                    Some(counter) => Err(BackendError::NoRoom { at: at.clone(), counter, asked: 1, left: 0 }),
                    None => Err(health::error(format!("create {at}"), fault)),
                },
                (None, _) => Err(health::error(format!("create {at}"), fault)),
            },
            Err(CreateFailure::Nothing(fault)) => Err(health::refused(format!("create {at}"), fault)),
        }
    }

    fn destroy_partition(&self, at: &PartitionAt, expected: &ExpectedPartition) -> Result<(), BackendError> {
        let _changed = ChangeMark(&self.changes);
        let (card, facts) = self.card(&at.card)?;
        let one = OneCard { card: &card, facts: &facts };
        let Some(instance) = one.at(at) else { return Err(BackendError::Absent { at: at.clone() }) };
        if let ExpectedPartition::Handle(handle) = expected {
            let uuid = instance.uuid.as_deref();
            // One without compute instances is ours, half destroyed.
            if instance.id != handle.id || uuid.is_some_and(|uuid| uuid != handle.uuid.as_str()) {
                let found = one.handle(instance).unwrap_or_else(|| handle.clone());
                let found = PartitionHandle { id: instance.id, ..found };
                let expected = Box::new(handle.clone());
                return Err(BackendError::Replaced { at: at.clone(), expected, found: Box::new(found) });
            }
        }
        let mut tries = 0;
        loop {
            match self.session.call(|library| library.unmake(at.card.as_str(), instance.id)) {
                Ok(()) => return Ok(()),
                Err(fault) if fault.is_nothing() => return Err(BackendError::Absent { at: at.clone() }),
                // What a process leaves is cleaned up by the driver after its end.
                Err(fault) if fault.is_in_use() && tries < BUSY_TRIES => {
                    tries += 1;
                    std::thread::sleep(BUSY_WAIT);
                }
                Err(fault) if fault.is_in_use() => {
                    return Err(BackendError::Busy { what: format!("destroy {at}") });
                }
                Err(fault) => return Err(health::refused(format!("destroy {at}"), fault)),
            }
        }
    }

    fn driver_load(&self) -> Option<String> {
        Some(self.session.load())
    }

    /// No call of the library. A card that is set to another mode, or cut by another program, shows no sign.
    fn generation(&self) -> Option<u64> {
        let is_whole = self.is_whole.load(Ordering::Acquire) && self.serves_containers();
        let session = self.session.serving().filter(|_| is_whole)?;
        Some((session << 32).wrapping_add(self.changes.load(Ordering::Acquire)))
    }

    fn usage(&self, card: &CardUuid) -> Result<CardUsage, BackendError> {
        let failed = |fault| health::error(format!("usage of card {card}"), fault);
        let held = self.session.call(|library| library.held(card.as_str())).map_err(failed)?;
        let processes = held.processes.into_iter().map(|(pid, bytes)| (pid, bytes.map(Bytes)));
        Ok(CardUsage {
            memory: Bytes(held.total),
            in_use: Bytes(held.in_use),
            busy_percent: self.busy(card)?,
            processes: processes.collect(),
        })
    }

    fn samples(&self, card: &CardUuid, since_micros: u64) -> Result<Option<Samples>, BackendError> {
        match self.session.call(|library| library.samples(card.as_str(), since_micros)) {
            Err(fault) if fault.is_unsupported() => Ok(None),
            samples => {
                samples.map(Some).map_err(|fault| health::error(format!("samples of card {card}"), fault))
            }
        }
    }

    fn events(&self, card: &CardUuid) -> Result<Box<dyn CardEvents>, BackendError> {
        Ok(Box::new(self.watch(card)?))
    }

    fn meaning(&self, _: &CardUuid, code: u64) -> Meaning {
        xid::Xids::default().meaning(code)
    }

    fn trouble(&self) -> Vec<String> {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let ContainerFiles::Missing(why) = self.session.files() {
            trouble.push(format!("containers get no driver libraries from here: {why}"));
        }
        trouble
    }

    fn no_partitions(&self) -> Vec<String> {
        self.no_partitions.clone()
    }

    fn variables(&self, card: &CardUuid, part: &Part) -> Result<Vec<(String, String)>, BackendError> {
        let of = |pairs: &[(&str, String)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
        };
        let Some(at) = PartitionAt::of(card, part) else {
            let (order, by_bus) = ORDER;
            return Ok(match self.number_for_programs(card) {
                Some(number) => of(&[(PROGRAMS, number.to_string()), (order, by_bus.to_owned())]),
                None => of(&[(PROGRAMS, card.to_string())]),
            });
        };
        let visible = self.access(card, &at.part())?.visible_uuid.to_string();
        Ok(of(&[(PROGRAMS, visible.clone()), (RUNTIMES, visible)]))
    }

    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        self.reach(card, part)
    }
}

/// Counts a change of partitions once it has ended, in whatever way.
struct ChangeMark<'n>(&'n AtomicU64);

// === impl ChangeMark ===

impl Drop for ChangeMark<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// What a card can be cut into and is.
fn cut_of<'a>(facts: &'a Facts, at: &PartitionAt) -> Result<&'a ffi::MigLayout, BackendError> {
    match facts.cut() {
        Some(Ok(cut)) => Ok(cut),
        Some(Err(fault)) => Err(health::refused(format!("create {at}"), fault.clone())),
        None => Err(BackendError::UnknownPlace { at: at.clone() }),
    }
}
