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

mod numbering;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use super::groups::CompatibilityIndex;
use super::problem::PoolFault;
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
    /// A distinct counter.
    CounterNo,
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
    pub(super) entries: Vec<DeviceEntry>,
    pub(super) profiles: Vec<Profile>,
    pub(super) slots: Vec<CounterSlot>,
    counters: Vec<CounterFacts>,
    draws: Vec<RelativeDraw>,
    /// Length of the list of used amounts, which entries index.
    pub(super) amounts: usize,
    /// Entries whose device has a taint.
    pub(super) tainted: Vec<EntryNo>,
    /// Later descriptions of the few devices that have several.
    again: NumberMap<DeviceNo, Vec<EntryNo>>,
    by_name: HashMap<String, HashMap<String, PoolNo>>,
    pub(super) compatibility: CompatibilityIndex,
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
    /// In the order of their names.
    devices: Vec<DeviceNo>,
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
    /// Its first description.
    pub(super) first: EntryNo,
}

/// One description of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceEntry {
    pub(super) device: DeviceNo,
    pub(super) slice: SliceNo,
    pub(super) position: u32,
    pub(super) version: VersionNo,
    pub(super) profile: ProfileNo,
    /// Where its used amounts start, one for each capacity of the profile.
    first_amount: u32,
    draws: Range<u32>,
    /// It names counter sets, if only with empty lists: then every counter of the pool is looked at.
    pub(super) counted: CounterUse,
    pub(super) sharing: Sharing,
}

/// Whether a device draws on counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterUse {
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

/// One counter of one pool version.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterSlot {
    pub(super) version: VersionNo,
    counter: CounterNo,
}

/// A distinct counter: equal cards of different nodes have equal ones.
#[derive(Debug)]
pub(super) struct CounterFacts {
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

/// A draw that equal devices of different nodes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RelativeDraw {
    /// From the first slot of the pool version.
    offset: u32,
    nanos: i128,
}

// === impl DeviceEntry ===

impl DeviceEntry {
    /// Where its used amounts start.
    pub(super) const fn amounts(&self) -> usize {
        self.first_amount as usize
    }
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
    /// The pool of this name.
    pub(super) fn pool(&self, driver: &str, pool: &str) -> Option<PoolNo> {
        self.by_name.get(driver)?.get(pool).copied()
    }

    /// The device of this name, in any generation.
    pub(super) fn device(&self, driver: &str, pool: &str, device: &str) -> Option<DeviceNo> {
        let known = &self.pools[self.pool(driver, pool)?.at()].devices;
        let name = |number: &DeviceNo| self.name(self.devices[number.at()].first);
        known.binary_search_by(|number| name(number).cmp(device)).ok().map(|found| known[found])
    }

    /// The descriptions of a device, as given.
    pub(super) fn entries_of(&self, device: DeviceNo) -> impl Iterator<Item = EntryNo> {
        let later = self.again.get(&device).into_iter().flatten().copied();
        std::iter::once(self.devices[device.at()].first).chain(later)
    }

    fn name(&self, entry: EntryNo) -> &str {
        &self.described(entry).name
    }

    /// What is published of a counter.
    pub(super) fn counter(&self, slot: CounterSlot) -> &CounterFacts {
        &self.counters[slot.counter.at()]
    }

    /// The full name of a device.
    pub(super) fn id(&self, device: DeviceNo) -> DeviceId {
        let facts = &self.devices[device.at()];
        let pool = &self.pools[facts.pool.at()];
        DeviceId {
            driver: pool.driver.clone(),
            pool: pool.name.clone(),
            device: self.name(facts.first).to_owned(),
        }
    }

    /// What an entry's driver wrote.
    pub(super) fn described(&self, entry: EntryNo) -> &Device {
        let entry = &self.entries[entry.at()];
        &self.slices[entry.slice.at()].devices[entry.position as usize]
    }

    /// All entries of an entry's pool and generation, itself among them.
    pub(super) fn beside(&self, entry: &DeviceEntry) -> impl Iterator<Item = &DeviceEntry> {
        let pool = &self.pools[self.versions[entry.version.at()].pool.at()];
        let facts = pool.slices.iter().map(|slice| &self.slice_facts[slice.at()]);
        let ranges = facts.filter(|facts| facts.version == entry.version).map(|facts| &facts.entries);
        ranges.flat_map(|range| &self.entries[range.start as usize..range.end as usize])
    }

    /// The draws of an entry.
    pub(super) fn draws(&self, entry: &DeviceEntry) -> impl ExactSizeIterator<Item = Draw> {
        let first = self.versions[entry.version.at()].slots.start;
        let relative = &self.draws[entry.draws.start as usize..entry.draws.end as usize];
        relative.iter().map(move |draw| Draw { slot: SlotNo(first + draw.offset), nanos: draw.nanos })
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
