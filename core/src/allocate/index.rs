//! The published slices with every name turned into a dense number, made once and never changed.
//!
//! ```text
//!   pool (driver, name) ──┬─ version (generation) ── counter slots
//!                         ├─ device  (identity: what claims name and hold)
//!                         └─ slice ── entry (one description of a device; has a profile and draws)
//! ```
//!
//! A device is an identity; an entry is one description of it. They are one to one unless a driver is between two
//! generations or publishes one name for several nodes, and then everything held by the identity weighs on each entry.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use super::problem::{PoolFault, Problem};
use crate::dra::{Device, DeviceCapacity, DeviceId, NodeSelection, ResourceSlice, Sharing};
use crate::quantity::Quantity;

macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) struct $name(pub(super) u32);

        impl $name {
            /// The number of the item that is pushed next to a list of this length.
            pub(super) fn after(length: usize) -> Self {
                // Four thousand million items do not fit in memory, so this never saturates.
                Self(u32::try_from(length).unwrap_or(u32::MAX))
            }

            /// As an index.
            pub(super) const fn at(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

pub(super) use numbered;

numbered! {
    /// A (driver, pool name) pair.
    PoolNo,
    /// One generation of a pool.
    VersionNo,
    /// A device identity.
    DeviceNo,
    /// One description of a device.
    EntryNo,
    /// One counter of one counter set of one pool version.
    SlotNo,
    /// A distinct capacity map.
    ProfileNo,
    /// A slice.
    SliceNo,
}

/// A map by numbers of this world, which no outside input chooses.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Mixes numbers by a multiplication each: a few of the default hasher's nanoseconds are most of a look-up here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

/// Everything published, by number.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) slices: Vec<ResourceSlice>,
    pub(super) slice_facts: Vec<SliceFacts>,
    pub(super) pools: Vec<PoolFacts>,
    pub(super) versions: Vec<Version>,
    pub(super) devices: Vec<DeviceFacts>,
    pub(super) entries: Vec<Entry>,
    pub(super) profiles: Vec<Profile>,
    pub(super) slots: Vec<Slot>,
    pub(super) draws: Vec<Draw>,
    /// Length of the list of used amounts, which entries index.
    pub(super) amounts: usize,
    by_name: HashMap<String, HashMap<String, PoolNo>>,
    profile_numbers: HashMap<Vec<(String, DeviceCapacity)>, ProfileNo>,
}

/// What is known of a slice beside its text.
#[derive(Debug)]
pub(super) struct SliceFacts {
    pub(super) version: VersionNo,
    pub(super) entries: Range<u32>,
    /// First reference to a counter that the pool version does not have.
    pub(super) dangling: Option<PoolFault>,
}

/// One pool.
#[derive(Debug)]
pub(super) struct PoolFacts {
    pub(super) driver: String,
    pub(super) name: String,
    /// All its slices of all generations, as given.
    pub(super) slices: Vec<SliceNo>,
    devices: HashMap<String, DeviceNo>,
}

/// One generation of a pool.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) pool: PoolNo,
    pub(super) slots: Range<u32>,
    pub(super) duplicate_set: Option<PoolFault>,
}

/// One device identity.
#[derive(Debug)]
pub(super) struct DeviceFacts {
    pub(super) pool: PoolNo,
    pub(super) name: String,
    pub(super) entries: Vec<EntryNo>,
}

/// One description of a device.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) device: DeviceNo,
    pub(super) slice: SliceNo,
    pub(super) position: u32,
    pub(super) version: VersionNo,
    pub(super) profile: ProfileNo,
    /// Where its used amounts start, one for each capacity of the profile.
    pub(super) amounts: usize,
    pub(super) draws: Range<u32>,
    /// It names counter sets, if only with empty lists: then every counter of the pool is looked at.
    pub(super) counted: Counted,
    pub(super) sharing: Sharing,
}

/// Whether a device draws on counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Yes,
    No,
}

/// A distinct capacity map, in key order.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) capacities: Vec<(String, DeviceCapacity)>,
    /// Whole amounts in nano-units.
    pub(super) whole: Vec<i128>,
}

/// One counter.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) version: VersionNo,
    pub(super) set: String,
    pub(super) counter: String,
    pub(super) total: Quantity,
}

/// What an entry takes from one counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub(super) slot: SlotNo,
    pub(super) nanos: i128,
}

// === impl NumberHasher ===

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        // The odd number nearest to 2^64 divided by the golden ratio, as in Fibonacci hashing.
        self.0 = (self.0.rotate_left(29) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u32(SlotNo::after(number).0);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

// === impl Index ===

impl Index {
    /// Numbers everything in the slices; what is wrong in them comes back as problems.
    pub(super) fn new(slices: Vec<ResourceSlice>) -> (Self, Vec<Problem>) {
        let mut index = Self::default();
        let mut problems = Vec::new();
        let mut names = HashSet::new();
        for slice in slices {
            if !names.insert(slice.name.clone()) {
                problems.push(Problem::DuplicateSlice { slice: slice.name });
                continue;
            }
            if !slice.shared_counters.is_empty() && !slice.devices.is_empty() {
                problems.push(Problem::MixedSlice { slice: slice.name.clone() });
            }
            index.slices.push(slice);
        }
        let versions = index.number_pools();
        index.number_counters(&versions, &mut problems);
        for number in 0..index.slices.len() {
            index.number_devices(SliceNo::after(number), &versions, &mut problems);
        }
        index.profile_numbers = HashMap::new();
        (index, problems)
    }

    fn number_pools(&mut self) -> HashMap<(PoolNo, i64), VersionNo> {
        let mut versions = HashMap::new();
        for (number, slice) in self.slices.iter().enumerate() {
            let of_driver = match self.by_name.get_mut(&slice.driver) {
                Some(found) => found,
                None => self.by_name.entry(slice.driver.clone()).or_default(),
            };
            let pool = *of_driver.entry(slice.pool.name.clone()).or_insert_with(|| {
                let number = PoolNo::after(self.pools.len());
                self.pools.push(PoolFacts {
                    driver: slice.driver.clone(),
                    name: slice.pool.name.clone(),
                    slices: Vec::new(),
                    devices: HashMap::new(),
                });
                number
            });
            self.pools[pool.at()].slices.push(SliceNo::after(number));
            versions.entry((pool, slice.pool.generation)).or_insert_with(|| {
                let number = VersionNo::after(self.versions.len());
                self.versions.push(Version { pool, slots: 0..0, duplicate_set: None });
                number
            });
        }
        versions
    }

    fn number_counters(&mut self, versions: &HashMap<(PoolNo, i64), VersionNo>, problems: &mut Vec<Problem>) {
        let mut sets: BTreeMap<VersionNo, Vec<SliceNo>> = BTreeMap::new();
        for (number, slice) in self.slices.iter().enumerate() {
            if !slice.shared_counters.is_empty()
                && let Some(version) = self.version_of(slice, versions)
            {
                sets.entry(version).or_default().push(SliceNo::after(number));
            }
        }
        for (version, mut carriers) in sets {
            carriers.sort_by(|a, b| self.slices[a.at()].name.cmp(&self.slices[b.at()].name));
            let start = SlotNo::after(self.slots.len()).0;
            let mut seen = HashSet::new();
            for set in carriers.iter().flat_map(|slice| &self.slices[slice.at()].shared_counters) {
                if !seen.insert(set.name.as_str()) {
                    let fault = PoolFault::DuplicateCounterSet { set: set.name.clone() };
                    let pool = &self.pools[self.versions[version.at()].pool.at()];
                    problems.push(Problem::pool(&pool.driver, &pool.name, fault.clone()));
                    self.versions[version.at()].duplicate_set.get_or_insert(fault);
                    continue;
                }
                for (counter, total) in &set.counters {
                    self.slots.push(Slot {
                        version,
                        set: set.name.clone(),
                        counter: counter.clone(),
                        total: *total,
                    });
                }
            }
            self.versions[version.at()].slots = start..SlotNo::after(self.slots.len()).0;
        }
    }

    fn version_of(
        &self,
        slice: &ResourceSlice,
        versions: &HashMap<(PoolNo, i64), VersionNo>,
    ) -> Option<VersionNo> {
        let pool = self.pool(&slice.driver, &slice.pool.name)?;
        versions.get(&(pool, slice.pool.generation)).copied()
    }

    fn number_devices(
        &mut self,
        number: SliceNo,
        versions: &HashMap<(PoolNo, i64), VersionNo>,
        problems: &mut Vec<Problem>,
    ) {
        let slice = &self.slices[number.at()];
        let (Some(version), Some(pool)) =
            (self.version_of(slice, versions), self.pool(&slice.driver, &slice.pool.name))
        else {
            return;
        };
        let slots = slots_by_name(self.versions[version.at()].slots.clone(), &self.slots);
        let start = EntryNo::after(self.entries.len()).0;
        let mut dangling: Option<PoolFault> = None;
        for (position, device) in slice.devices.iter().enumerate() {
            let draw_start = self.draws.len();
            if let Err(fault) = read_draws(device, &slots, &mut self.draws) {
                problems.push(Problem::pool(&slice.driver, &slice.pool.name, fault.clone()));
                dangling.get_or_insert(fault);
            }
            let profile = number_profile(device, &mut self.profile_numbers, &mut self.profiles);
            let entry = EntryNo::after(self.entries.len());
            let known = &mut self.pools[pool.at()].devices;
            let identity = match known.get(&device.name) {
                Some(identity) => *identity,
                None => {
                    let identity = DeviceNo::after(self.devices.len());
                    known.insert(device.name.clone(), identity);
                    self.devices.push(DeviceFacts { pool, name: device.name.clone(), entries: Vec::new() });
                    identity
                }
            };
            self.devices[identity.at()].entries.push(entry);
            self.entries.push(Entry {
                device: identity,
                slice: number,
                position: u32::try_from(position).unwrap_or(u32::MAX),
                version,
                profile,
                amounts: self.amounts,
                draws: SlotNo::after(draw_start).0..SlotNo::after(self.draws.len()).0,
                counted: if device.consumes.is_empty() { Counted::No } else { Counted::Yes },
                sharing: device.sharing,
            });
            self.amounts += self.profiles[profile.at()].whole.len();
        }
        let entries = start..EntryNo::after(self.entries.len()).0;
        self.slice_facts.push(SliceFacts { version, entries, dangling });
    }

    /// The pool of this name.
    pub(super) fn pool(&self, driver: &str, pool: &str) -> Option<PoolNo> {
        self.by_name.get(driver)?.get(pool).copied()
    }

    /// The device of this name, in any generation.
    pub(super) fn device(&self, driver: &str, pool: &str, device: &str) -> Option<DeviceNo> {
        self.pools[self.pool(driver, pool)?.at()].devices.get(device).copied()
    }

    /// The full name of a device.
    pub(super) fn id(&self, device: DeviceNo) -> DeviceId {
        let facts = &self.devices[device.at()];
        let pool = &self.pools[facts.pool.at()];
        DeviceId { driver: pool.driver.clone(), pool: pool.name.clone(), device: facts.name.clone() }
    }

    /// What an entry's driver wrote.
    pub(super) fn described(&self, entry: EntryNo) -> &Device {
        let entry = &self.entries[entry.at()];
        &self.slices[entry.slice.at()].devices[entry.position as usize]
    }

    /// The draws of an entry.
    pub(super) fn draws(&self, entry: &Entry) -> &[Draw] {
        &self.draws[entry.draws.start as usize..entry.draws.end as usize]
    }

    /// Where a slice's devices are usable, by the slice's own word.
    pub(super) fn selection(&self, slice: SliceNo) -> &NodeSelection {
        &self.slices[slice.at()].node
    }

    /// Whether any published amount is negative: then "more held" no longer means "less fits".
    pub(super) fn has_negative_amounts(&self) -> bool {
        let policies =
            || self.profiles.iter().flat_map(|p| &p.capacities).filter_map(|(_, c)| c.policy.as_ref());
        self.draws.iter().any(|draw| draw.nanos < 0)
            || self.profiles.iter().any(|profile| profile.whole.iter().any(|whole| *whole < 0))
            || policies().any(policy_can_be_negative)
    }
}

fn slots_by_name(range: Range<u32>, slots: &[Slot]) -> HashMap<(&str, &str), SlotNo> {
    let of_version = &slots[range.start as usize..range.end as usize];
    let numbered = of_version.iter().zip(range.map(SlotNo));
    numbered.map(|(slot, number)| ((slot.set.as_str(), slot.counter.as_str()), number)).collect()
}

fn policy_can_be_negative(policy: &crate::dra::CapacityPolicy) -> bool {
    use crate::dra::CapacityRestriction::{None, Range, Values};
    let negative = |quantity: &Quantity| quantity.nanos() < 0;
    policy.default.as_ref().is_some_and(negative)
        || match &policy.restriction {
            None => false,
            Range { min, .. } => negative(min),
            Values(values) => values.iter().any(negative),
        }
}

/// Appends what a device takes; amounts of one counter named twice add up.
fn read_draws(
    device: &Device,
    slots: &HashMap<(&str, &str), SlotNo>,
    draws: &mut Vec<Draw>,
) -> Result<(), PoolFault> {
    let mut fault = Ok(());
    for consumption in &device.consumes {
        let set = consumption.counter_set.as_str();
        for (counter, amount) in &consumption.counters {
            match slots.get(&(set, counter.as_str())) {
                Some(slot) => draws.push(Draw { slot: *slot, nanos: amount.nanos() }),
                None if fault.is_ok() => {
                    fault = Err(PoolFault::unknown_counter(&device.name, set, counter, slots.keys()));
                }
                None => {}
            }
        }
        if consumption.counters.is_empty() && fault.is_ok() && !slots.keys().any(|(known, _)| *known == set) {
            fault = Err(PoolFault::UnknownCounterSet { device: device.name.clone(), set: set.to_owned() });
        }
    }
    fault
}

fn number_profile(
    device: &Device,
    numbers: &mut HashMap<Vec<(String, DeviceCapacity)>, ProfileNo>,
    profiles: &mut Vec<Profile>,
) -> ProfileNo {
    let capacities: Vec<_> = device.capacity.iter().map(|(name, c)| (name.clone(), c.clone())).collect();
    if let Some(known) = numbers.get(&capacities) {
        return *known;
    }
    let number = ProfileNo::after(profiles.len());
    let whole = capacities.iter().map(|(_, capacity)| capacity.value.nanos()).collect();
    numbers.insert(capacities.clone(), number);
    profiles.push(Profile { capacities, whole });
    number
}
