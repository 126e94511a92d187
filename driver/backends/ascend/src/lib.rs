//! Ascend NPUs, as their driver's management library reports them.
//!
//! ```text
//!   libdcmi.so ──ffi──▶ facts ──probe + catalogue──▶ cards ─┐
//!                 │     vNPUs ──partition──▶ parts ─────────┼──▶ AscendNode: DeviceBackend
//!                 ├───▶ faults ──health──▶ disposition ─────┤
//!                 └───▶ fault events ──watch                │
//!   /etc/vnpu.cfg ──recovery──▶ chips in recovery ──────────┤
//!   npu-smi ──npu_smi──▶ names of templates ────────────────┘
//! ```
//!
//! - No setting of the node is changed: vNPU mode and recovery mode are its administrator's.
//! - A vNPU belongs to the claim whose journal names it. Whether a process has it open (`is_container_used`) decides nothing: a
//!   tenant that has not started yet owns its vNPU.
//! - Changes of one chip run one after the other: the first vNPU of a 910B switches SR-IOV on, the last one off.
//! - Every call has a time limit, since the vendor's library blocks during resets and upgrades.

mod access;
mod ffi;
mod health;
mod known;
pub mod npu_smi;
mod partition;
mod probe;
mod recovery;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aliquot_core::card::{Card, Inventory};
use aliquot_core::catalogue::{CardModel, Catalogue};
use aliquot_core::disposition::Disposition;
use aliquot_core::health::{Codes as _, Meaning};
use aliquot_core::id::{CardUuid, TemplateName, Vendor};
use aliquot_core::partition::Part;
use aliquot_core::ports::{
    BackendError, CardEvents, CardUsage, DeviceAccess, DeviceBackend, ExpectedPartition, LivePartition,
    PartitionAt,
};
use aliquot_core::units::Bytes;

pub use ffi::event::FaultEvent;
pub use ffi::{Fault, Site};
pub use health::{FaultCodes, OpenError};
pub use probe::ON_HOST;
pub use watch::Watch;

use access::NpuAccess;
use ffi::{ChipAt, Facts, Library};
use health::Debounce;
use known::{KnownChips, Look, SilentChip};
use probe::{DiscoveredChip, Machine};

/// How often, and how far apart, a call is repeated that may succeed soon.
const TRIES: u32 = 20;
const WAIT: Duration = Duration::from_millis(100);
/// Chips or vNPUs that the vendor's container runtime gives to a container, how, and chips that a program uses.
const RUNTIMES: &str = "ASCEND_VISIBLE_DEVICES";
const RUNTIME_OPTIONS: &str = "ASCEND_RUNTIME_OPTIONS";
const PROGRAMS: &str = "ASCEND_RT_VISIBLE_DEVICES";
/// Where the kernel shows the driver; made anew with each load of it.
const MODULES: [&str; 2] = ["sys/module/drv_davinci_intf", "sys/module/drv_devdrv_host"];

/// The Ascend NPUs of a machine.
#[derive(Debug)]
pub struct AscendNode {
    site: Site,
    library: Library,
    driver: String,
    /// What chips may be cut into anywhere.
    known: Catalogue,
    /// The same with what is offered here.
    catalogue: Catalogue,
    /// What is wrong with chips that the latest discovery did not read.
    trouble: Mutex<Vec<String>>,
    /// The chips as they were last read.
    chips: Mutex<KnownChips>,
    no_partitions: Vec<String>,
    debounce: Debounce,
    /// Templates that the driver does not know, by model.
    unknown: Mutex<BTreeSet<(String, TemplateName)>>,
    /// Chips of which the library delivers events.
    subscribed: Mutex<BTreeSet<ChipAt>>,
    /// Chips of the latest discovery, if it read every one in full and none has a fault.
    whole: Mutex<Option<BTreeSet<ChipAt>>>,
    /// Goes up with every vNPU that is made or destroyed here.
    changed: AtomicU64,
    /// One lock a chip: its changes run one after the other.
    changes: Mutex<BTreeMap<ChipAt, Arc<Mutex<()>>>>,
}

// === impl AscendNode ===

impl AscendNode {
    /// Loads the driver's library and looks for NPUs.
    ///
    /// # Errors
    /// [`OpenError`]: there is no driver, its library is not safe to load or too old, or it has no NPU for us.
    pub fn open(catalogue: &Catalogue, site: &Site) -> Result<Arc<Self>, OpenError> {
        let library = Library::load(site).map_err(|fault| OpenError::of("initialise", fault))?;
        let driver = library.driver().map_err(|fault| OpenError::of("version of the driver", fault))?;
        let mut node = Self {
            site: site.clone(),
            library,
            driver,
            known: catalogue.clone(),
            catalogue: catalogue.clone(),
            trouble: Mutex::default(),
            chips: Mutex::default(),
            no_partitions: Vec::new(),
            debounce: Debounce::default(),
            unknown: Mutex::default(),
            subscribed: Mutex::default(),
            whole: Mutex::default(),
            changed: AtomicU64::new(0),
            changes: Mutex::default(),
        };
        let look = node.look().map_err(|fault| OpenError::of("list of cards", fault))?;
        if look.found.is_empty() {
            return Err(OpenError::NoCards { trouble: look.trouble() });
        }
        let trouble = look.trouble();
        node.report(&look);
        node.probe_templates(&look.found);
        let reason = |found: &DiscoveredChip| {
            let why = found.no_partitions.as_ref()?;
            Some(format!("chip {} ({}): {why}", found.facts.logic, found.facts.chip))
        };
        let reasons: Vec<Option<String>> = look.found.iter().map(reason).collect();
        // One that gives them is enough.
        let none_gives = reasons.iter().all(Option::is_some);
        node.no_partitions = reasons.into_iter().flatten().filter(|_| none_gives).collect();
        let models = look.found.into_iter().map(|found| found.offered);
        node.catalogue = node.catalogue.with_models(models);
        node.trouble = Mutex::new(trouble);
        Ok(Arc::new(node))
    }

    /// Notes templates that the vendor's tool does not list. Where there is no tool, a refused creation tells.
    fn probe_templates(&self, found: &[DiscoveredChip]) {
        let mut seen = BTreeSet::new();
        for one in found {
            let Some(table) = one.model.table().filter(|_| seen.insert(one.model.id.to_string())) else {
                continue;
            };
            let Some(names) = npu_smi::names(&self.site.root, one.facts.at.card) else { continue };
            for template in &table.templates {
                let spellings = partition::spellings(&one.model, template, &self.driver);
                if !spellings.iter().any(|name| names.contains(name)) {
                    self.forget(&one.model.id.to_string(), &template.name);
                }
            }
        }
    }

    fn forget(&self, model: &str, template: &TemplateName) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        unknown.insert((model.to_owned(), template.clone()));
    }

    fn look(&self) -> Result<Look, Fault> {
        let settings = self.library.settings()?;
        let machine = Machine {
            root: &self.site.root,
            catalogue: &self.known,
            driver: &self.driver,
            settings,
            lines: recovery::read(&self.site.path(recovery::CONFIG)),
            unknown: self.unknown.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            debounce: &self.debounce,
        };
        let (mut facts, mut silent) = (Vec::new(), Vec::new());
        for at in self.library.chips()? {
            match self.library.facts(at) {
                // It is missing of every chip alike.
                Err(fault @ Fault::NoFunction(_)) => return Err(fault),
                Err(fault) => silent.push(SilentChip { at, why: health::unanswered(&fault) }),
                Ok(one) => facts.push(one),
            }
        }
        facts.sort_by_key(|one: &Facts| one.logic);
        let models: Vec<_> = facts.iter().map(|one| probe::model_of(one, machine.catalogue)).collect();
        let topologies = probe::topologies(&self.library, &facts, &models);
        let mut found: Vec<DiscoveredChip> = Vec::new();
        for ((one, model), topology) in facts.into_iter().zip(models).zip(topologies) {
            let at = one.at;
            match machine.card(one, model, topology) {
                Ok(one) if found.iter().any(|other| other.card.uuid == one.card.uuid) => {
                    let uuid = one.card.uuid;
                    let why = format!("identity: found {uuid}, expected one that no other chip has");
                    silent.push(SilentChip { at, why });
                }
                Ok(one) => found.push(one),
                Err(why) => silent.push(SilentChip { at, why }),
            }
        }
        Ok(Look { found, silent })
    }

    /// Number of the driver's load; 0 if the kernel does not show it.
    fn load(&self) -> u64 {
        let numbers = MODULES.iter().filter_map(|module| fs::metadata(self.site.path(module)).ok());
        numbers.map(|module| module.ino()).next().unwrap_or(0)
    }

    /// One chip as it is now.
    fn chip(&self, card: &CardUuid) -> Result<DiscoveredChip, BackendError> {
        let look = self.look().map_err(|fault| health::error(format!("find card {card}"), fault))?;
        let mut found = look.found.into_iter();
        found.find(|one| one.card.uuid == *card).ok_or_else(|| BackendError::UnknownCard(card.clone()))
    }

    /// The lock for changes of a chip.
    fn change(&self, at: ChipAt) -> Arc<Mutex<()>> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(changes.entry(at).or_default())
    }

    /// The vendor of these cards.
    #[must_use]
    pub fn vendor() -> Vendor {
        probe::vendor()
    }

    /// Whether new partitions of this model are made on request; of others the administrator cuts the chips.
    #[must_use]
    pub fn cuts(model: &CardModel) -> bool {
        model.table().is_some_and(|table| partition::static_reason(table).is_none())
    }

    /// Version of the driver.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// The catalogue as it is here.
    #[must_use]
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Every card to report of a look.
    fn report(&self, look: &Look) -> Vec<Card> {
        self.chips.lock().unwrap_or_else(PoisonError::into_inner).report(look)
    }

    /// The cards as they are now, and what is wrong with chips that do not answer.
    ///
    /// # Errors
    /// [`BackendError::Vendor`] or [`BackendError::Unreachable`] if the library does not answer; retry is safe.
    pub fn cards(&self) -> Result<(Inventory, Vec<String>), BackendError> {
        let whole = || self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        *whole() = None;
        let look = self.look().map_err(|fault| health::error("discover Ascend NPUs".to_owned(), fault))?;
        let is_whole = look.silent.is_empty() && self.debounce.is_quiet();
        let chips = || look.found.iter().map(|found| found.facts.at).collect();
        *whole() = is_whole.then(chips);
        Ok((Inventory { cards: self.report(&look) }, look.trouble()))
    }

    /// Creates a vNPU under the first of its names that the driver knows.
    fn make(
        &self,
        chip: &DiscoveredChip,
        at: &PartitionAt,
        wanted: &partition::VnpuRequest,
    ) -> Result<(), Fault> {
        let mut refused = Fault::NotLoaded("no name".to_owned());
        for name in &wanted.spellings {
            let create = || self.library.create(chip.facts.at, name, wanted.id, wanted.group);
            match again(create) {
                Err(fault) if fault.is_unknown() => refused = fault,
                answered => return answered,
            }
        }
        // Published no more from the next look on.
        self.forget(&chip.model.id.to_string(), &at.template);
        Err(refused)
    }

    /// What a failed creation means, now that the chip is looked at again.
    fn not_made(&self, at: &PartitionAt, fault: Fault) -> BackendError {
        let what = format!("create {at}");
        let Ok(chip) = self.chip(&at.card) else { return health::error(what, fault) };
        if chip.partition_at(at).is_some() && !fault.is_open() {
            return BackendError::AlreadyThere { at: at.clone() };
        }
        match chip.shortage(at) {
            Some(shortage) if fault.is_occupied() => shortage,
            None if fault.is_occupied() => {
                let what = format!("{what}: a process may have /dev/davinci{} open", chip.facts.phy);
                BackendError::Busy { what }
            }
            _ => health::error(what, fault),
        }
    }
}

/// Counts a change of vNPUs once it has ended, in whatever way.
struct ChangeMark<'n>(&'n AtomicU64);

// === impl ChangeMark ===

impl Drop for ChangeMark<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Repeats a call that may succeed soon.
fn again(call: impl Fn() -> Result<(), Fault>) -> Result<(), Fault> {
    let mut tries = 0;
    loop {
        match call() {
            Err(fault) if fault.is_passing() && tries < TRIES => {
                tries += 1;
                std::thread::sleep(WAIT);
            }
            answered => return answered,
        }
    }
}

impl DeviceBackend for AscendNode {
    fn discover(&self) -> Result<Inventory, BackendError> {
        let (cards, trouble) = self.cards()?;
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        Ok(cards)
    }

    fn discover_card(&self, card: &CardUuid) -> Result<Card, BackendError> {
        let found = self.cards()?.0.cards.into_iter().find(|found| found.uuid == *card);
        found.ok_or_else(|| BackendError::UnknownCard(card.clone()))
    }

    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        let look = self.look().map_err(|fault| health::error("list vNPUs".to_owned(), fault))?;
        Ok(look.found.iter().flat_map(DiscoveredChip::partitions).collect())
    }

    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
        let _changed = ChangeMark(&self.changed);
        let first = self.chip(&at.card)?;
        let change = self.change(first.facts.at);
        let _alone = change.lock().unwrap_or_else(PoisonError::into_inner);
        let chip = self.chip(&at.card)?;
        if chip.partition_at(at).is_some() {
            return Err(BackendError::AlreadyThere { at: at.clone() });
        }
        let what = format!("create {at}");
        if let Some(why) = &chip.no_partitions {
            return Err(BackendError::Busy { what: format!("{what}: {why}") });
        }
        let vnpus = chip.facts.vnpus.as_ref().map_err(|fault| health::error(what.clone(), fault.clone()))?;
        let known = chip.card.table().and_then(|table| table.consumption(&at.template, &at.placement));
        known.ok_or_else(|| BackendError::UnknownPlace { at: at.clone() })?;
        if let Some(shortage) = chip.shortage(at) {
            return Err(shortage);
        }
        let wanted = partition::wanted(&chip.model, &chip.facts, vnpus, at, &self.driver);
        let wanted = wanted.ok_or_else(|| BackendError::Busy {
            what: format!("{what}: its vNPU id is taken by a vNPU that was made elsewhere"),
        })?;
        let made = self.make(&chip, at, &wanted);
        match made {
            Ok(()) => {
                self.chip(&at.card)?.partition_at(at).ok_or_else(|| BackendError::Absent { at: at.clone() })
            }
            Err(fault) => Err(self.not_made(at, fault)),
        }
    }

    fn destroy_partition(&self, at: &PartitionAt, expected: &ExpectedPartition) -> Result<(), BackendError> {
        let _changed = ChangeMark(&self.changed);
        let first = self.chip(&at.card)?;
        let change = self.change(first.facts.at);
        let _alone = change.lock().unwrap_or_else(PoisonError::into_inner);
        let chip = self.chip(&at.card)?;
        let absent = || BackendError::Absent { at: at.clone() };
        let live = chip.partition_at(at).ok_or_else(absent)?;
        if let ExpectedPartition::Handle(handle) = expected
            && *handle != live.handle
        {
            let (expected, found) = (Box::new(handle.clone()), Box::new(live.handle));
            return Err(BackendError::Replaced { at: at.clone(), expected, found });
        }
        let mut tries = 0;
        loop {
            match again(|| self.library.destroy(chip.facts.at, live.handle.id)) {
                Ok(()) => return Ok(()),
                Err(fault) if fault.is_absent() => return Err(absent()),
                // A process that ends still holds its node for a moment.
                Err(fault) if fault.is_occupied() && tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(WAIT);
                }
                Err(fault) if fault.is_occupied() => {
                    return Err(BackendError::Busy { what: format!("destroy {at}") });
                }
                Err(fault) => return Err(health::error(format!("destroy {at}"), fault)),
            }
        }
    }

    fn driver_load(&self) -> Option<String> {
        Some(format!("{}/{}", self.driver, self.load()))
    }

    /// No call of the library. Faults are in the health of a look, so that every chip's events must be delivered. A setting
    /// that an administrator changes shows no sign.
    fn generation(&self) -> Option<u64> {
        let whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let subscribed = self.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
        if !whole.as_ref()?.is_subset(&subscribed) {
            return None;
        }
        let counted = self.changed.load(Ordering::Acquire).wrapping_add(ffi::event::delivered());
        Some((self.load() << 32).wrapping_add(counted))
    }

    fn trouble(&self) -> Vec<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn no_partitions(&self) -> Vec<String> {
        self.no_partitions.clone()
    }

    /// Memory in use on a chip, and how much it works. The vendor's library reports nothing by process, nor by vNPU.
    fn usage(&self, visible: &CardUuid) -> Result<CardUsage, BackendError> {
        let chip = self.chip(visible)?;
        let load = self.library.busy(chip.facts.at);
        let load = load.map_err(|fault| health::error(format!("usage of card {visible}"), fault))?;
        let bytes = |mib: u64| Bytes::from_mib(mib).unwrap_or(Bytes(u64::MAX));
        Ok(CardUsage {
            memory: chip.card.memory,
            in_use: bytes(load.used_mib),
            busy_percent: load.busy_percent,
            processes: Vec::new(),
        })
    }

    fn events(&self, card: &CardUuid) -> Result<Box<dyn CardEvents>, BackendError> {
        Ok(Box::new(self.watch(card)?))
    }

    fn meaning(&self, _: &CardUuid, code: u64) -> Meaning {
        FaultCodes.meaning(code)
    }

    /// The vendor's container runtime takes a vNPU by its number; a program that uses whole chips takes them by theirs.
    fn variables(&self, card: &CardUuid, part: &Part) -> Result<Vec<(String, String)>, BackendError> {
        let chip = self.chip(card)?;
        let of = |pairs: [(&str, String); 2]| pairs.map(|(name, value)| (name.to_owned(), value)).into();
        let Some(at) = PartitionAt::of(card, part) else {
            let (runtime, program) = (chip.facts.phy.to_string(), chip.facts.logic.to_string());
            return Ok(of([(RUNTIMES, runtime), (PROGRAMS, program)]));
        };
        let live = chip.partition_at(&at).ok_or(BackendError::Absent { at })?;
        Ok(of([(RUNTIMES, live.handle.id.to_string()), (RUNTIME_OPTIONS, "VIRTUAL".to_owned())]))
    }

    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        let chip = self.chip(card)?;
        let (reached, visible_uuid) = match PartitionAt::of(card, part) {
            None => (NpuAccess::Chip(chip.facts.phy), card.clone()),
            Some(at) => {
                let live = chip.partition_at(&at).ok_or(BackendError::Absent { at })?;
                (NpuAccess::Vnpu(live.handle.id), live.handle.uuid)
            }
        };
        // The driver makes the nodes of a vNPU after the vNPU, and all of them anew when it is loaded.
        let mut tries = if matches!(reached, NpuAccess::Vnpu(_)) { TRIES } else { 0 };
        let found = loop {
            match access::nodes(&self.site.root, reached) {
                Err(_) if tries > 0 => {
                    tries -= 1;
                    std::thread::sleep(WAIT);
                }
                found => break found,
            }
        };
        let nodes = found.map_err(|missing| BackendError::NotOnHost {
            what: format!("card {card}: device node {missing}"),
            found: "none".to_owned(),
            expected: "a character device".to_owned(),
            remedy: "load the driver, or mount the host's /dev; it is looked for again".to_owned(),
            disposition: Disposition::Retry,
        })?;
        // The image has its own LD_LIBRARY_PATH, which a constant would replace.
        let environment = Vec::new();
        Ok(DeviceAccess {
            visible_uuid,
            nodes,
            mounts: access::files(self.site.files(), &self.site.host),
            environment,
        })
    }
}
