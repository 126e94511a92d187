//! What one node can see: the pools with a slice for it, each usable, incomplete or invalid, in the order of search.
//!
//! ```text
//!   slices for the node (to 1.36: + every counter slice of the pool)
//!        │ highest generation among them
//!        ├─ as many as announced ───────────────▶ check names, counters ─▶ usable │ invalid
//!        └─ fewer: look at all slices of the pool
//!               ├─ a newer generation exists ───▶ left out
//!               ├─ still fewer than announced ──▶ incomplete
//!               └─ all there, for other nodes ──▶ check names, counters ─▶ usable │ invalid
//! ```
//!
//! Order: pools by (driver, name), those with binding conditions after all others; slices by name; devices as listed.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::index::{EntryNo, Index, PoolNo, SliceNo};
use super::options::Release;
use super::problem::PoolFault;
use crate::dra::{Node, NodeSelection};

/// Whether a pool has to be complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Completeness {
    #[default]
    Required,
    /// What is missing is taken to be published and empty: answers what completing a pool would change.
    Assumed,
}

/// Which slices concern which nodes, before any node is looked at.
#[derive(Debug, Default)]
pub(super) struct Directory {
    completeness: Completeness,
    by_node: HashMap<String, Vec<SliceNo>>,
    /// Slices that may concern several nodes; to 1.36, those without counters.
    roaming: Vec<SliceNo>,
    counters_by_pool: HashMap<PoolNo, Vec<SliceNo>>,
    /// Pools that a node without any of their devices sees as faulty, by their counter slices alone.
    foreign_faults: Vec<(PoolNo, PoolFault)>,
}

/// The pools that one node sees.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Every description of a device in usable pools, in the order of search.
    pub(super) entries: Vec<EntryNo>,
    /// Pools that cannot be used, by (driver, name).
    pub(super) faults: Vec<(PoolNo, PoolFault)>,
}

struct PoolState {
    pool: PoolNo,
    state: Result<Vec<SliceNo>, PoolFault>,
}

// === impl Directory ===

impl Directory {
    pub(super) fn new(index: &Index, completeness: Completeness, release: Release) -> Self {
        let mut directory = Self { completeness, ..Self::default() };
        for number in (0..index.slices.len()).map(SliceNo::after) {
            let slice = &index.slices[number.at()];
            if !slice.shared_counters.is_empty() && release == Release::V1_36 {
                let Some(pool) = index.pool(&slice.driver, &slice.pool.name) else { continue };
                directory.counters_by_pool.entry(pool).or_default().push(number);
            } else if let NodeSelection::Name(node) = &slice.node {
                directory.by_node.entry(node.clone()).or_default().push(number);
            } else {
                directory.roaming.push(number);
            }
        }
        let mut pools: Vec<_> = directory.counters_by_pool.keys().copied().collect();
        pools.sort_unstable();
        for pool in pools {
            let counters = directory.counters_by_pool.get(&pool).cloned().unwrap_or_default();
            if let Some(PoolState { state: Err(fault), .. }) = look_at(index, pool, counters, completeness) {
                directory.foreign_faults.push((pool, fault));
            }
        }
        directory
    }

    /// What `node` sees.
    pub(super) fn view(&self, index: &Index, node: &Node) -> View {
        let mut named: BTreeMap<PoolNo, Vec<SliceNo>> = BTreeMap::new();
        let pool_of = |slice: SliceNo| index.versions[index.slice_facts[slice.at()].version.at()].pool;
        for slice in self.by_node.get(&node.name).into_iter().flatten() {
            named.entry(pool_of(*slice)).or_default().push(*slice);
        }
        let mut shared: BTreeMap<PoolNo, Vec<SliceNo>> = BTreeMap::new();
        for slice in self.roaming.iter().filter(|slice| concerns(index, **slice, node)) {
            shared.entry(pool_of(*slice)).or_default().push(*slice);
        }
        let local: HashSet<PoolNo> = named.keys().chain(shared.keys()).copied().collect();
        let mut seen = Vec::new();
        for pool in &local {
            let mut late = shared.remove(pool).unwrap_or_default();
            late.extend(self.counters_by_pool.get(pool).into_iter().flatten());
            late.sort_unstable();
            let mut slices = named.remove(pool).unwrap_or_default();
            slices.extend(late);
            seen.extend(look_at(index, *pool, slices, self.completeness));
        }
        let key = |pool: PoolNo| (&index.pools[pool.at()].driver, &index.pools[pool.at()].name);
        let mut view = View::default();
        seen.sort_by(|a, b| {
            has_conditions(index, a)
                .cmp(&has_conditions(index, b))
                .then_with(|| key(a.pool).cmp(&key(b.pool)))
        });
        for PoolState { pool, state } in seen {
            match state {
                Ok(slices) => view.entries.extend(
                    slices.iter().flat_map(|s| index.slice_facts[s.at()].entries.clone().map(EntryNo)),
                ),
                Err(fault) => view.faults.push((pool, fault)),
            }
        }
        view.faults.extend(self.foreign_faults.iter().filter(|(pool, _)| !local.contains(pool)).cloned());
        view.faults.sort_by(|a, b| key(a.0).cmp(&key(b.0)));
        view
    }
}

/// Whether the device may be used on the node, where its slice leaves that to each device.
pub(super) fn device_concerns(index: &Index, entry: EntryNo, node: &Node) -> bool {
    let slice = index.entries[entry.at()].slice;
    match index.selection(slice) {
        NodeSelection::PerDevice => {
            index.described(entry).node.as_ref().is_some_and(|selection| selects(selection, node))
        }
        NodeSelection::Name(_) | NodeSelection::Selector(_) | NodeSelection::All => true,
    }
}

fn concerns(index: &Index, slice: SliceNo, node: &Node) -> bool {
    match index.selection(slice) {
        NodeSelection::PerDevice => index.slices[slice.at()]
            .devices
            .iter()
            .any(|device| device.node.as_ref().is_some_and(|selection| selects(selection, node))),
        selection => selects(selection, node),
    }
}

fn selects(selection: &NodeSelection, node: &Node) -> bool {
    match selection {
        NodeSelection::Name(name) => *name == node.name,
        NodeSelection::Selector(selector) => selector.matches(node),
        NodeSelection::All => true,
        NodeSelection::PerDevice => false,
    }
}

/// Judges a pool by the slices of it that concern a node; `None`: a newer generation elsewhere makes them obsolete.
fn look_at(
    index: &Index,
    pool: PoolNo,
    slices: Vec<SliceNo>,
    completeness: Completeness,
) -> Option<PoolState> {
    let generation_of = |slice: SliceNo| index.slices[slice.at()].pool.generation;
    let generation = slices.iter().copied().map(generation_of).max()?;
    let current: Vec<SliceNo> = slices.into_iter().filter(|s| generation_of(*s) == generation).collect();
    let announced = index.slices[current.first()?.at()].pool.slice_count;
    if i64::try_from(current.len()) == Ok(announced) {
        return Some(PoolState { pool, state: check(index, current, &[]) });
    }
    let all = &index.pools[pool.at()].slices;
    if all.iter().copied().any(|slice| generation_of(slice) > generation) {
        return None;
    }
    let complete: Vec<SliceNo> = all.iter().copied().filter(|s| generation_of(*s) == generation).collect();
    if i64::try_from(complete.len()) != Ok(announced) && completeness == Completeness::Required {
        let fault = PoolFault::Incomplete { generation, seen: complete.len(), announced };
        return Some(PoolState { pool, state: Err(fault) });
    }
    Some(PoolState { pool, state: check(index, current, &complete) })
}

/// The slices with devices in order, if names and counters are in order in these and in `elsewhere`.
fn check(index: &Index, mut slices: Vec<SliceNo>, elsewhere: &[SliceNo]) -> Result<Vec<SliceNo>, PoolFault> {
    slices.sort_by(|a, b| index.slices[a.at()].name.cmp(&index.slices[b.at()].name));
    let with_devices: Vec<SliceNo> =
        slices.iter().copied().filter(|slice| index.slices[slice.at()].shared_counters.is_empty()).collect();
    let mut names = HashSet::new();
    for device in with_devices.iter().flat_map(|slice| &index.slices[slice.at()].devices) {
        if !names.insert(device.name.as_str()) {
            return Err(PoolFault::DuplicateDevice { device: device.name.clone() });
        }
    }
    let version = slices.first().map(|slice| index.slice_facts[slice.at()].version);
    if let Some(fault) = version.and_then(|version| index.versions[version.at()].duplicate_set.clone()) {
        return Err(fault);
    }
    for slice in slices.iter().chain(elsewhere) {
        if let Some(fault) = &index.slice_facts[slice.at()].dangling {
            return Err(fault.clone());
        }
    }
    Ok(with_devices)
}

fn has_conditions(index: &Index, seen: &PoolState) -> bool {
    let Ok(slices) = &seen.state else { return false };
    let mut devices = slices.iter().flat_map(|slice| &index.slices[slice.at()].devices);
    devices.any(|device| !device.binding_conditions.is_empty())
}
