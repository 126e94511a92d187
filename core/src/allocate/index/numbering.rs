//! Making an index: equal descriptions of different nodes get one number.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::{
    CounterFacts, CounterNo, CounterSlot, CounterUse, DeviceEntry, DeviceFacts, DeviceNo, EntryNo, Index,
    PoolFacts, PoolNo, Profile, ProfileNo, RelativeDraw, SliceFacts, SliceNo, SlotNo, Version, VersionNo,
};
use crate::allocate::groups::CompatibilityIndex;
use crate::allocate::problem::{InputProblem, PoolFault};
use crate::dra::{Device, DeviceCapacity, ResourceSlice};
use crate::quantity::Format;

/// What is known while an index is made: equal things get one number.
#[derive(Default)]
struct Numbers<'s> {
    profiles: HashMap<Vec<(String, DeviceCapacity)>, ProfileNo>,
    /// By the place in memory of a capacity map: copies of a device share theirs.
    profiles_by_address: HashMap<usize, ProfileNo>,
    counters: HashMap<(&'s str, &'s str, i128, Format), CounterNo>,
    draws: HashMap<Vec<RelativeDraw>, Range<u32>>,
}

// === impl Index ===

impl Index {
    /// Numbers everything in the slices; what is wrong in them comes back as problems.
    pub(in crate::allocate) fn new(slices: Vec<ResourceSlice>) -> (Self, Vec<InputProblem>) {
        let mut index = Self::default();
        let mut problems = Vec::new();
        let mut names = HashSet::new();
        for slice in slices {
            if !names.insert(slice.name.clone()) {
                problems.push(InputProblem::DuplicateSlice { slice: slice.name });
                continue;
            }
            if !slice.shared_counters.is_empty() && !slice.devices.is_empty() {
                problems.push(InputProblem::MixedSlice { slice: slice.name.clone() });
            }
            index.slices.push(slice);
        }
        let versions = index.number_pools();
        let slices = std::mem::take(&mut index.slices);
        let mut numbers = Numbers::default();
        index.number_counters(&slices, &versions, &mut numbers, &mut problems);
        for (number, slice) in slices.iter().enumerate() {
            index.number_entries(SliceNo::after(number), slice, &versions, &mut numbers, &mut problems);
        }
        index.compatibility = CompatibilityIndex::new(&slices, &index.slice_facts);
        index.slices = slices;
        index.number_devices();
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
                    devices: Vec::new(),
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

    fn number_counters<'s>(
        &mut self,
        slices: &'s [ResourceSlice],
        versions: &HashMap<(PoolNo, i64), VersionNo>,
        numbers: &mut Numbers<'s>,
        problems: &mut Vec<InputProblem>,
    ) {
        let mut sets: BTreeMap<VersionNo, Vec<&'s ResourceSlice>> = BTreeMap::new();
        for slice in slices.iter().filter(|slice| !slice.shared_counters.is_empty()) {
            if let Some(version) = self.version_of(slice, versions) {
                sets.entry(version).or_default().push(slice);
            }
        }
        for (version, mut carriers) in sets {
            carriers.sort_by(|a, b| a.name.cmp(&b.name));
            let start = SlotNo::after(self.slots.len()).0;
            let mut seen = HashSet::new();
            for set in carriers.iter().flat_map(|slice| &slice.shared_counters) {
                if !seen.insert(set.name.as_str()) {
                    let fault = PoolFault::DuplicateCounterSet { set: set.name.clone() };
                    let pool = &self.pools[self.versions[version.at()].pool.at()];
                    problems.push(InputProblem::pool(&pool.driver, &pool.name, fault.clone()));
                    self.versions[version.at()].duplicate_set.get_or_insert(fault);
                    continue;
                }
                for (counter, total) in &set.counters {
                    let key = (set.name.as_str(), counter.as_str(), total.nanos(), total.format());
                    let counter = *numbers.counters.entry(key).or_insert_with(|| {
                        let facts =
                            CounterFacts { set: set.name.clone(), counter: counter.clone(), total: *total };
                        self.counters.push(facts);
                        CounterNo::after(self.counters.len() - 1)
                    });
                    self.slots.push(CounterSlot { version, counter });
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

    /// Numbers the devices of one slice; which of them are one identity is found out later.
    fn number_entries(
        &mut self,
        number: SliceNo,
        slice: &ResourceSlice,
        versions: &HashMap<(PoolNo, i64), VersionNo>,
        numbers: &mut Numbers<'_>,
        problems: &mut Vec<InputProblem>,
    ) {
        let Some(version) = self.version_of(slice, versions) else { return };
        let slots = self.slots_by_name(self.versions[version.at()].slots.clone());
        let start = EntryNo::after(self.entries.len()).0;
        let mut dangling: Option<PoolFault> = None;
        let mut rows = Vec::with_capacity(slice.devices.len());
        for device in &slice.devices {
            let (draws, fault) = read_draws(device, &slots);
            if let Some(fault) = fault {
                problems.push(InputProblem::pool(&slice.driver, &slice.pool.name, fault.clone()));
                dangling.get_or_insert(fault);
            }
            rows.push(draws);
        }
        self.entries.reserve(rows.len());
        for ((position, device), draws) in (0..).zip(&slice.devices).zip(rows) {
            let profile = numbers.profile(device, &mut self.profiles);
            let draws = numbers.draws(draws, &mut self.draws);
            if !device.taints.is_empty() {
                self.tainted.push(EntryNo::after(self.entries.len()));
            }
            self.entries.push(DeviceEntry {
                device: DeviceNo(0),
                slice: number,
                position,
                version,
                profile,
                first_amount: SlotNo::after(self.amounts).0,
                draws,
                counted: if device.consumes.is_empty() { CounterUse::No } else { CounterUse::Yes },
                sharing: device.sharing,
            });
            self.amounts += self.profiles[profile.at()].whole.len();
        }
        let entries = start..EntryNo::after(self.entries.len()).0;
        self.slice_facts.push(SliceFacts { version, entries, dangling });
    }

    /// Entries of one name in one pool describe one device. Devices are numbered by their first entries.
    fn number_devices(&mut self) {
        let mut leaders: Vec<EntryNo> = vec![EntryNo(0); self.entries.len()];
        let mut by_name: Vec<Vec<EntryNo>> = Vec::with_capacity(self.pools.len());
        for pool in &self.pools {
            let slices = pool.slices.iter().map(|slice| self.slice_facts[slice.at()].entries.clone());
            let mut entries: Vec<EntryNo> = slices.flatten().map(EntryNo).collect();
            entries.sort_by(|a, b| self.name(*a).cmp(self.name(*b)).then(a.cmp(b)));
            let mut leader: Option<EntryNo> = None;
            for entry in &entries {
                let first = leader.filter(|leader| self.name(*leader) == self.name(*entry)).unwrap_or(*entry);
                leaders[entry.at()] = first;
                leader = Some(first);
            }
            entries.retain(|entry| leaders[entry.at()] == *entry);
            entries.shrink_to_fit();
            by_name.push(entries);
        }
        for (entry, leader) in (0..).map(EntryNo).zip(leaders) {
            let device = if entry == leader {
                let pool = self.versions[self.entries[entry.at()].version.at()].pool;
                self.devices.push(DeviceFacts { pool, first: entry });
                DeviceNo::after(self.devices.len() - 1)
            } else {
                let device = self.entries[leader.at()].device;
                self.again.entry(device).or_default().push(entry);
                device
            };
            self.entries[entry.at()].device = device;
        }
        for (pool, entries) in self.pools.iter_mut().zip(by_name) {
            pool.devices = entries.iter().map(|entry| self.entries[entry.at()].device).collect();
        }
    }

    /// Offsets of the counters of a pool version, by set and counter.
    fn slots_by_name(&self, range: Range<u32>) -> HashMap<(&str, &str), u32> {
        let of_version = &self.slots[range.start as usize..range.end as usize];
        let named = of_version.iter().map(|slot| self.counter(*slot)).zip(0..);
        named.map(|(facts, offset)| ((facts.set.as_str(), facts.counter.as_str()), offset)).collect()
    }
}

/// What a device takes, by offsets of counters; amounts of one counter named twice add up.
fn read_draws(device: &Device, slots: &HashMap<(&str, &str), u32>) -> (Vec<RelativeDraw>, Option<PoolFault>) {
    let (mut draws, mut fault) = (Vec::new(), None);
    for consumption in &device.consumes {
        let set = consumption.counter_set.as_str();
        for (counter, amount) in &consumption.counters {
            match slots.get(&(set, counter.as_str())) {
                Some(offset) => draws.push(RelativeDraw { offset: *offset, nanos: amount.nanos() }),
                None if fault.is_none() => {
                    fault = Some(PoolFault::unknown_counter(&device.name, set, counter, slots.keys()));
                }
                None => {}
            }
        }
        if consumption.counters.is_empty() && fault.is_none() && !slots.keys().any(|(known, _)| *known == set)
        {
            fault = Some(PoolFault::UnknownCounterSet { device: device.name.clone(), set: set.to_owned() });
        }
    }
    (draws, fault)
}

// === impl Numbers ===

impl Numbers<'_> {
    fn profile(&mut self, device: &Device, profiles: &mut Vec<Profile>) -> ProfileNo {
        let address = device.capacity.address();
        if let Some(known) = self.profiles_by_address.get(&address) {
            return *known;
        }
        let capacities: Vec<_> = device.capacity.iter().map(|(name, c)| (name.clone(), c.clone())).collect();
        let number = *self.profiles.entry(capacities).or_insert_with_key(|capacities| {
            let whole = capacities.iter().map(|(_, capacity)| capacity.value.nanos()).collect();
            profiles.push(Profile { capacities: capacities.clone(), whole });
            ProfileNo::after(profiles.len() - 1)
        });
        self.profiles_by_address.insert(address, number);
        number
    }

    fn draws(&mut self, draws: Vec<RelativeDraw>, all: &mut Vec<RelativeDraw>) -> Range<u32> {
        let place = self.draws.entry(draws).or_insert_with_key(|draws| {
            let start = SlotNo::after(all.len()).0;
            all.extend_from_slice(draws);
            start..SlotNo::after(all.len()).0
        });
        place.clone()
    }
}
