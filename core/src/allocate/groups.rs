//! Compatibility groups: which devices may draw on a counter set together.
//!
//! All devices that draw on one counter set must have a group in common; devices without groups go with each other
//! alone. So a set is in order while one group, or the absence of groups, is that of everything that draws on it. The
//! counts are sums like those of counters: the order of taking and giving back does not matter.

use std::collections::{BTreeMap, HashMap};

use super::facts::{DeviceEntry, SliceFacts};
use super::numbers::{NumberMap, SliceNo, VersionNo, numbered};
use crate::dra::{CounterConsumption, ResourceSlice};

numbered! {
    /// A counter set of a pool version in which some device has groups.
    GroupedSetNo,
    /// A group of such a set, or the absence of groups.
    GroupNo,
}

/// How a device draws on a counter set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupDraw {
    pub(super) set: GroupedSetNo,
    groups: Vec<GroupNo>,
    /// Which of the device's consumptions it is.
    pub(super) consumption: usize,
}

/// The draws of all devices in pool versions in which some device has groups; elsewhere there is nothing to count.
#[derive(Debug, Default)]
pub(super) struct CompatibilityIndex {
    draws: NumberMap<(SliceNo, u32), Vec<GroupDraw>>,
    sets: usize,
    groups: usize,
}

/// How many devices draw on each set, and how many of them by each group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupCounts {
    by_set: Vec<u32>,
    by_group: Vec<u32>,
}

// === impl CompatibilityIndex ===

impl CompatibilityIndex {
    pub(super) fn new(slices: &[ResourceSlice], facts: &[SliceFacts]) -> Self {
        let has_groups = |slice: &ResourceSlice| {
            let mut consumptions = slice.devices.iter().flat_map(|device| device.consumes.iter());
            consumptions.any(|consumption| !consumption.compatibility_groups.is_empty())
        };
        let mut index = Self::default();
        let mut versions: BTreeMap<VersionNo, HashMap<&str, GroupedSetNo>> = BTreeMap::new();
        for (slice, facts) in slices.iter().zip(facts) {
            if has_groups(slice) {
                versions.entry(facts.version).or_default();
            }
        }
        let mut groups: HashMap<(GroupedSetNo, Option<&str>), GroupNo> = HashMap::new();
        for (number, (slice, facts)) in slices.iter().zip(facts).enumerate() {
            let Some(sets) = versions.get_mut(&facts.version) else { continue };
            for (position, device) in (0..).zip(&slice.devices) {
                let mut draws = Vec::with_capacity(device.consumes.len());
                for (consumption, CounterConsumption { counter_set, compatibility_groups, .. }) in
                    device.consumes.iter().enumerate()
                {
                    let set = *sets.entry(counter_set).or_insert_with(|| {
                        index.sets += 1;
                        GroupedSetNo::after(index.sets - 1)
                    });
                    let named = compatibility_groups.iter().map(|group| Some(group.as_str()));
                    let absent = compatibility_groups.is_empty().then_some(None);
                    let mut of_set: Vec<GroupNo> = named
                        .chain(absent)
                        .map(|group| {
                            let next = GroupNo::after(groups.len());
                            *groups.entry((set, group)).or_insert(next)
                        })
                        .collect();
                    of_set.sort_unstable();
                    of_set.dedup();
                    draws.push(GroupDraw { set, groups: of_set, consumption });
                }
                index.draws.insert((SliceNo::after(number), position), draws);
            }
        }
        index.groups = groups.len();
        index
    }

    /// The draws of an entry, where groups matter in its pool.
    pub(super) fn draws(&self, entry: &DeviceEntry) -> &[GroupDraw] {
        if self.sets == 0 {
            return &[];
        }
        self.draws.get(&(entry.slice, entry.position)).map_or(&[], Vec::as_slice)
    }
}

// === impl GroupDraw ===

impl GroupDraw {
    pub(super) fn groups(&self) -> &[GroupNo] {
        &self.groups
    }
}

// === impl GroupCounts ===

impl GroupCounts {
    pub(super) fn new(index: &CompatibilityIndex) -> Self {
        Self { by_set: vec![0; index.sets], by_group: vec![0; index.groups] }
    }

    /// The first of the draws that has no group in common with all that draws on its set.
    pub(super) fn clash<'d>(&self, draws: &'d [GroupDraw]) -> Option<&'d GroupDraw> {
        draws.iter().find(|draw| {
            let drawing = self.by_set[draw.set.at()];
            !draw.groups.iter().any(|group| self.by_group[group.at()] == drawing)
        })
    }

    pub(super) fn add(&mut self, draws: &[GroupDraw]) {
        for draw in draws {
            self.by_set[draw.set.at()] += 1;
            draw.groups.iter().for_each(|group| self.by_group[group.at()] += 1);
        }
    }

    pub(super) fn remove(&mut self, draws: &[GroupDraw]) {
        for draw in draws {
            self.by_set[draw.set.at()] -= 1;
            draw.groups.iter().for_each(|group| self.by_group[group.at()] -= 1);
        }
    }

    /// Each count, those of sets first.
    pub(super) fn all(&self) -> Vec<u32> {
        self.by_set.iter().chain(&self.by_group).copied().collect()
    }
}
