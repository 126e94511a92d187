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

pub(super) use super::facts::{
    CounterFacts, CounterSlot, CounterUse, DeviceEntry, DeviceFacts, Draw, PoolFacts, Profile, RelativeDraw,
    SliceFacts, Version,
};
use super::groups::CompatibilityIndex;
pub(super) use super::numbers::{
    CounterNo, DeviceNo, EntryNo, NumberMap, PoolNo, ProfileNo, SliceNo, SlotNo, VersionNo, numbered,
};
use crate::dra::{Device, DeviceId, NodeSelection, ResourceSlice};
use crate::quantity::Quantity;

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
