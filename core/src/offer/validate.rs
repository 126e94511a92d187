//! Every limit and rule that Kubernetes has for `ResourceSlice`s, as of 1.36: what the API server checks in one slice,
//! and what only the scheduler notices in a pool.
//!
//! A slice that breaks a rule of the first sort is refused with everything in it; one that breaks a rule of the second
//! sort silently takes its whole pool out of scheduling. Our own slices are checked in tests; slices of others (dumps,
//! hand-written files) are checked so that `plan` can say why nothing is found in them.
//!
//! ```text
//!  slice ─▶ names, pool, node ─▶ devices: attributes, capacity, counters, taints, conditions
//!        └▶ counter sets
//!  pool  ─▶ complete? ─▶ names unique? ─▶ counters there?
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::dra::{AttributeValue, CounterSet, Device, NodeSelection, NodeSelector, ResourceSlice};

mod counters;
mod device;
pub(super) mod names;
mod report;

use counters::check_counter_sets;
use report::SliceReport;
pub use report::{Fault, SliceViolation};

/// Devices of a slice.
const DEVICES_MAX: usize = 128;
/// Devices of a slice of which any has taints, counters or lists.
const DEVICES_ADVANCED_MAX: usize = 64;
/// Everything that is wrong with these slices; empty: Kubernetes takes and uses them.
#[must_use]
pub fn violations(slices: &[ResourceSlice]) -> Vec<SliceViolation> {
    let mut report = SliceReport::default();
    let mut names = BTreeSet::new();
    for slice in slices {
        report.slice.clone_from(&slice.name);
        if !names.insert(&slice.name) {
            report.add("metadata.name", Fault::Duplicate(slice.name.clone()));
        }
        check_slice(slice, &mut report);
    }
    check_pools(slices, &mut report);
    report.found
}

// === one slice ===

fn check_slice(slice: &ResourceSlice, report: &mut SliceReport) {
    report.form("metadata.name", &slice.name, names::is_subdomain, names::SUBDOMAIN);
    report.form("spec.driver", &slice.driver, names::is_driver, names::DRIVER);
    report.form("spec.pool.name", &slice.pool.name, names::is_pool, names::POOL);
    if slice.pool.generation < 0 {
        let found = slice.pool.generation.to_string();
        report.add("spec.pool.generation", Fault::Form { found, expected: "zero or more" });
    }
    if slice.pool.slice_count < 1 {
        let found = slice.pool.slice_count.to_string();
        report.add("spec.pool.resourceSliceCount", Fault::Form { found, expected: "at least one" });
    }
    check_node(&slice.node, "spec", report);
    if !slice.devices.is_empty() && !slice.shared_counters.is_empty() {
        report.add("spec", Fault::Forbidden("devices and sharedCounters in one slice"));
    }
    check_counter_sets(&slice.shared_counters, report);
    let advanced = |device: &Device| {
        let lists = |value: &AttributeValue| value.members().is_some();
        !device.taints.is_empty() || !device.consumes.is_empty() || device.attributes.values().any(lists)
    };
    let max = if slice.devices.iter().any(advanced) { DEVICES_ADVANCED_MAX } else { DEVICES_MAX };
    report.at_most("spec.devices", slice.devices.len(), max);
    let path = |index: usize| format!("spec.devices[{index}].name");
    report.unique(path, slice.devices.iter().map(|device| device.name.as_str()));
    for (index, device) in slice.devices.iter().enumerate() {
        let path = format!("spec.devices[{index}]");
        match (&slice.node, &device.node) {
            (NodeSelection::PerDevice, None) => {
                report.add(
                    &path,
                    Fault::Missing("nodeName, nodeSelector or allNodes: the slice leaves it to each device"),
                );
            }
            (NodeSelection::PerDevice, Some(NodeSelection::PerDevice)) => {
                report.add(&path, Fault::Forbidden("perDeviceNodeSelection in a device"));
            }
            (NodeSelection::PerDevice, Some(node)) => check_node(node, &path, report),
            (_, Some(_)) => {
                report.add(
                    &path,
                    Fault::Forbidden("a node of its own: the slice does not leave it to its devices"),
                );
            }
            (_, None) => {}
        }
        device::check(device, &path, report);
    }
}

fn check_node(node: &NodeSelection, path: &str, report: &mut SliceReport) {
    match node {
        NodeSelection::Name(name) => {
            report.form(format!("{path}.nodeName"), name, names::is_subdomain, names::SUBDOMAIN);
        }
        NodeSelection::Selector(selector) => {
            check_selector(selector, &format!("{path}.nodeSelector"), report);
        }
        NodeSelection::All | NodeSelection::PerDevice => {}
    }
}

fn check_selector(selector: &NodeSelector, path: &str, report: &mut SliceReport) {
    if selector.terms.is_empty() {
        report.add(format!("{path}.nodeSelectorTerms"), Fault::Missing("exactly one term"));
    }
    // A device's selector with several terms passes the API server and then fails in the scheduler.
    report.at_most(format!("{path}.nodeSelectorTerms"), selector.terms.len(), 1);
}

// === pools ===

fn check_pools(slices: &[ResourceSlice], report: &mut SliceReport) {
    let mut pools: BTreeMap<(&str, &str), Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in slices {
        pools.entry((&slice.driver, &slice.pool.name)).or_default().push(slice);
    }
    for slices in pools.values_mut() {
        let newest = slices.iter().map(|slice| slice.pool.generation).max();
        slices.retain(|slice| Some(slice.pool.generation) == newest);
        check_pool(slices, report);
    }
}

/// The slices of one pool that count: those of its highest generation.
fn check_pool(slices: &[&ResourceSlice], report: &mut SliceReport) {
    let mut devices = BTreeSet::new();
    let mut sets: BTreeMap<&str, &CounterSet> = BTreeMap::new();
    for slice in slices {
        report.slice.clone_from(&slice.name);
        if i64::try_from(slices.len()) != Ok(slice.pool.slice_count) {
            let found =
                format!("{}, with {} slices of this generation", slice.pool.slice_count, slices.len());
            let expected = "the number of slices of the newest generation of the pool";
            report.add("spec.pool.resourceSliceCount", Fault::Form { found, expected });
        }
        // Twice in one slice is said already.
        let own: BTreeSet<&str> = slice.devices.iter().map(|device| device.name.as_str()).collect();
        for name in own {
            if !devices.insert(name) {
                report.add(
                    "spec.devices",
                    Fault::Duplicate(format!("{name}, also in another slice of the pool")),
                );
            }
        }
        for set in &slice.shared_counters {
            let again = sets.insert(&set.name, set);
            if again.is_some_and(|first| !std::ptr::eq(first, set)) && !own_twice(slice, &set.name) {
                let fault = Fault::Duplicate(format!("{}, also in another slice of the pool", set.name));
                report.add("spec.sharedCounters", fault);
            }
        }
    }
    for slice in slices {
        report.slice.clone_from(&slice.name);
        for (index, device) in slice.devices.iter().enumerate() {
            check_references(device, index, &sets, report);
        }
    }
}

fn own_twice(slice: &ResourceSlice, set: &str) -> bool {
    slice.shared_counters.iter().filter(|other| other.name == set).count() > 1
}

fn check_references(
    device: &Device,
    index: usize,
    sets: &BTreeMap<&str, &CounterSet>,
    report: &mut SliceReport,
) {
    for (number, consumption) in device.consumes.iter().enumerate() {
        let path = format!("spec.devices[{index}].consumesCounters[{number}]");
        let Some(set) = sets.get(consumption.counter_set.as_str()) else {
            report.add(format!("{path}.counterSet"), Fault::Unresolved(consumption.counter_set.clone()));
            continue;
        };
        for name in consumption.counters.keys().filter(|name| !set.counters.contains_key(*name)) {
            report.add(
                format!("{path}.counters[{name}]"),
                Fault::Unresolved(format!("{name} of {}", set.name)),
            );
        }
    }
}

#[cfg(test)]
mod tests;
