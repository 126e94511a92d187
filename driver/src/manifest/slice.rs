//! `ResourceSlice`: what a driver publishes, of any vendor.

mod value;

use std::collections::BTreeMap;

use aliquot_core::dra::{
    CounterConsumption, CounterSet, Device, NodeSelection, Pool, ResourceSlice, Sharing,
};
use aliquot_core::id::is_dns_label;
use aliquot_core::quantity::Quantity;
use aliquot_core::rounding::policy_problems;

use super::claim::unique;
use super::field::{Context, Origin, Path};
use super::meta::{Meta, Version};
use super::taint::device_taint;
use super::tree::{MapEntry, YamlNode};
use super::{name, node};
use value::{ATTRIBUTES_MAX, DUMP_MAX, attribute, capacity};

const DEVICES_MAX: usize = 128;
/// With taints, counters or attributes that are lists a slice may carry fewer devices.
const ADVANCED_DEVICES_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;
const CONSUMES_MAX: usize = 2;
/// Compatibility groups of one consumption.
const GROUPS_MAX: usize = 2;
/// Values of all attributes of a device, the members of lists counted one by one.
const ATTRIBUTE_VALUES_MAX: usize = 48;
const TAINTS_MAX: usize = 16;
const CONDITIONS_MAX: usize = 4;
const SLICE_FIELDS: &[&str] = &[
    "driver",
    "pool",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "perDeviceNodeSelection",
    "devices",
    "sharedCounters",
];
const DEVICE_FIELDS: &[&str] = &[
    "name",
    "attributes",
    "capacity",
    "consumesCounters",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "taints",
    "bindsToNode",
    "bindingConditions",
    "bindingFailureConditions",
    "allowMultipleAllocations",
];

/// Reads the `spec` of a slice.
pub(super) fn slice(
    cx: &mut Context,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    meta: Meta,
    version: Version,
) -> Option<ResourceSlice> {
    let (mut driver, mut pool, mut selection) = (None, None, Vec::new());
    let (mut devices, mut shared_counters) = (Vec::new(), Vec::new());
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        let value = &entry.value;
        match entry.key.as_ref() {
            "driver" => driver = name::driver(cx, value, &at),
            "pool" => pool = pool_of(cx, value, &at),
            "nodeName" | "nodeSelector" | "allNodes" | "perDeviceNodeSelection" => {
                selection.extend(node_selection(cx, entry, path));
            }
            "devices" => devices = cx.each(value, &at, DUMP_MAX, |cx, n, p| device(cx, n, p, version)),
            "sharedCounters" => shared_counters = cx.each(value, &at, COUNTER_SETS_MAX, counter_set),
            "partitionTypeAttribute" | "skipNodeOperations" => {
                cx.without_effect(&at, "the field is of a later API version (1.37)");
            }
            _ => cx.unknown(&at, SLICE_FIELDS),
        }
    }
    for (field, what) in [("driver", "the name of the driver"), ("pool", "name, generation and slice count")]
    {
        if node.get(field).is_none() {
            cx.required(path, field, what);
        }
    }
    slice_rules(cx, path, &devices, &shared_counters);
    if let [NodeSelection::Selector(selector)] = selection.as_slice()
        && selector.terms.len() > 1
    {
        cx.rule(&path.missing("nodeSelector"), "has several terms; expected exactly one");
    }
    let node = one_selection(cx, path, selection)?;
    let devices = devices.into();
    Some(ResourceSlice {
        name: meta.name,
        driver: driver?,
        pool: pool?,
        node,
        devices,
        shared_counters: shared_counters.into(),
    })
}

fn slice_rules(cx: &mut Context, path: &Path<'_>, devices: &[Device], counters: &[CounterSet]) {
    let at = path.missing("devices");
    let has_list = |device: &Device| device.attributes.values().any(|value| value.members().is_some());
    let advanced = devices.iter().any(|d| !d.taints.is_empty() || !d.consumes.is_empty() || has_list(d));
    let most = if advanced { ADVANCED_DEVICES_MAX } else { DEVICES_MAX };
    if devices.len() > most {
        cx.rule(&at, format!("{} devices; at most {most} are allowed in such a slice", devices.len()));
    }
    if !devices.is_empty() && !counters.is_empty() {
        cx.rule(&at, "stand beside sharedCounters; since 1.35 a slice carries one or the other");
    }
    let mut names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        cx.error(&at, format!("the device name \"{}\" appears twice; names must be unique", pair[0]));
    }
    unique(cx, &path.missing("sharedCounters"), "counter set", counters.iter().map(|c| c.name.as_str()));
}

fn one_selection(cx: &mut Context, path: &Path<'_>, found: Vec<NodeSelection>) -> Option<NodeSelection> {
    let count = found.len();
    match (count, found.into_iter().next()) {
        (1, Some(selection)) => Some(selection),
        _ => {
            let expected = "expected one of nodeName, nodeSelector, allNodes, perDeviceNodeSelection";
            cx.error(path, format!("says {count} times where its devices are; {expected}"));
            None
        }
    }
}

fn node_selection(cx: &mut Context, entry: &MapEntry<'_>, path: &Path<'_>) -> Option<NodeSelection> {
    let at = path.key(entry);
    match entry.key.as_ref() {
        "nodeName" => {
            let name = cx.string(&entry.value, &at)?;
            name::node(cx, &name, &at);
            Some(NodeSelection::Name(name))
        }
        "nodeSelector" => Some(NodeSelection::Selector(node::selector(cx, &entry.value, &at))),
        "allNodes" => only_true(cx, entry, &at).then_some(NodeSelection::All),
        _ => only_true(cx, entry, &at).then_some(NodeSelection::PerDevice),
    }
}

/// A switch that may be left out, but not off.
fn only_true(cx: &mut Context, entry: &MapEntry<'_>, path: &Path<'_>) -> bool {
    let value = cx.boolean(&entry.value, path);
    if value == Some(false) {
        cx.rule(path, "found false, expected true or no such field");
    }
    value == Some(true)
}

fn pool_of(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<Pool> {
    let (mut name, mut generation, mut slice_count) = (None, 0, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "name" => name = name::pool(cx, &entry.value, &at),
            "generation" => generation = cx.integer(&entry.value, &at).unwrap_or(0),
            "resourceSliceCount" => slice_count = cx.integer(&entry.value, &at),
            _ => cx.unknown(&at, &["name", "generation", "resourceSliceCount"]),
        }
    }
    if generation < 0 {
        cx.error(&path.missing("generation"), format!("found {generation}, expected 0 or more"));
    }
    match slice_count {
        Some(count) if count < 1 => {
            cx.error(&path.missing("resourceSliceCount"), format!("found {count}, expected 1 or more"));
        }
        None if node.get("resourceSliceCount").is_none() => {
            cx.required(path, "resourceSliceCount", "how many slices the pool has");
        }
        _ => {}
    }
    if node.get("name").is_none() {
        cx.required(path, "name", "the name of the pool");
    }
    Some(Pool { name: name?, generation, slice_count: slice_count? })
}

fn counter_set(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<CounterSet> {
    let (mut name, mut counters) = (None, BTreeMap::new());
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "name" => name = name::label(cx, &entry.value, &at),
            "counters" => counters = counter_values(cx, &entry.value, &at),
            _ => cx.unknown(&at, &["name", "counters"]),
        }
    }
    if node.get("name").is_none() {
        cx.required(path, "name", "the name of the counter set");
    }
    at_least_one_counter(cx, path, &counters);
    Some(CounterSet { name: name?, counters })
}

fn consumption(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<CounterConsumption> {
    let (mut counter_set, mut counters, mut compatibility_groups) = (None, BTreeMap::new(), Vec::new());
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "counterSet" => counter_set = name::label(cx, &entry.value, &at),
            "counters" => counters = counter_values(cx, &entry.value, &at),
            "compatibilityGroups" => {
                compatibility_groups = cx.each(&entry.value, &at, GROUPS_MAX, name::label);
                unique(cx, &at, "group", compatibility_groups.iter().map(String::as_str));
                if cx.origin == Origin::Manifest {
                    let gate = "are kept by servers with the gate DRADeviceCompatibilityGroups alone";
                    cx.warn(&at, format!("{gate} (alpha in 1.37, off by default)"));
                }
            }
            _ => cx.unknown(&at, &["counterSet", "counters", "compatibilityGroups"]),
        }
    }
    if node.get("counterSet").is_none() {
        cx.required(path, "counterSet", "the name of a counter set of the pool");
    }
    at_least_one_counter(cx, path, &counters);
    Some(CounterConsumption { counter_set: counter_set?, counters, compatibility_groups })
}

fn at_least_one_counter(cx: &mut Context, path: &Path<'_>, counters: &BTreeMap<String, Quantity>) {
    if counters.is_empty() {
        cx.rule(&path.missing("counters"), "names no counter; expected at least one");
    }
}

fn counter_values(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> BTreeMap<String, Quantity> {
    let mut counters = BTreeMap::new();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        if !is_dns_label(&entry.key) {
            cx.rule(
                &at,
                "expected 1 to 63 of a-z, 0-9 and - as the name of a counter, without - at either end",
            );
        }
        for inner in cx.entries(&entry.value, &at) {
            let at = at.key(inner);
            match inner.key.as_ref() {
                "value" => {
                    if let Some(value) = cx.quantity(&inner.value, &at) {
                        counters.insert(entry.key.to_string(), value);
                    }
                }
                _ => cx.unknown(&at, &["value"]),
            }
        }
        if entry.value.get("value").is_none() {
            cx.required(&at, "value", "a quantity");
        }
    }
    if counters.len() > COUNTERS_MAX {
        cx.rule(path, format!("{} counters; at most {COUNTERS_MAX} are allowed", counters.len()));
    }
    counters
}

fn device(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>, version: Version) -> Option<Device> {
    let mut device = Device::named("");
    let mut selection = Vec::new();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match (entry.key.as_ref(), version) {
            ("name", _) => device.name = name::label(cx, &entry.value, &at)?,
            ("basic", Version::V1Beta1) => {
                for entry in cx.entries(&entry.value, &at) {
                    device_field(cx, entry, &at, &mut device, &mut selection);
                }
            }
            _ => device_field(cx, entry, path, &mut device, &mut selection),
        }
    }
    if device.name.is_empty() {
        cx.required(path, "name", "the name of the device");
        return None;
    }
    if selection.len() > 1 {
        cx.error(path, "says more than once where it is; expected one of nodeName, nodeSelector, allNodes");
    }
    device.node = selection.pop();
    device_rules(cx, path, &device);
    Some(device)
}

fn device_field(
    cx: &mut Context,
    entry: &MapEntry<'_>,
    path: &Path<'_>,
    device: &mut Device,
    selection: &mut Vec<NodeSelection>,
) {
    let at = path.key(entry);
    let value = &entry.value;
    match entry.key.as_ref() {
        "attributes" => {
            for entry in cx.entries(value, &at) {
                let at = at.key(entry);
                name::qualified(cx, &entry.key, &at);
                if let Some(value) = attribute(cx, &entry.value, &at) {
                    device.attributes.insert(entry.key.to_string(), value);
                }
            }
        }
        "capacity" => {
            for entry in cx.entries(value, &at) {
                let at = at.key(entry);
                name::qualified(cx, &entry.key, &at);
                if let Some(value) = capacity(cx, &entry.value, &at) {
                    device.capacity.insert(entry.key.to_string(), value);
                }
            }
        }
        "consumesCounters" => device.consumes = cx.each(value, &at, CONSUMES_MAX, consumption).into(),
        "nodeName" | "nodeSelector" | "allNodes" => selection.extend(node_selection(cx, entry, path)),
        "taints" => device.taints = cx.each(value, &at, TAINTS_MAX, device_taint),
        "bindsToNode" => device.binds_to_node = cx.boolean(value, &at).unwrap_or(false),
        "bindingConditions" => device.binding_conditions = cx.strings(value, &at, CONDITIONS_MAX),
        "bindingFailureConditions" => {
            device.binding_failure_conditions = cx.strings(value, &at, CONDITIONS_MAX);
        }
        "allowMultipleAllocations" => {
            if cx.boolean(value, &at) == Some(true) {
                device.sharing = Sharing::Shareable;
            }
        }
        "nodeAllocatableResources" | "nodeAllocatableResourceMappings" => {
            cx.without_effect(&at, "node resources of devices are of a later API version (alpha)");
        }
        _ => cx.unknown(&at, DEVICE_FIELDS),
    }
}

fn device_rules(cx: &mut Context, path: &Path<'_>, device: &Device) {
    let entries = device.attributes.len() + device.capacity.len();
    if entries > ATTRIBUTES_MAX {
        let message = format!("{entries} attributes and capacities; at most {ATTRIBUTES_MAX} are allowed");
        cx.rule(path, message);
    }
    let values: usize = device.attributes.values().map(|value| value.members().unwrap_or(1)).sum();
    if values > ATTRIBUTE_VALUES_MAX {
        let most = ATTRIBUTE_VALUES_MAX;
        cx.rule(
            path,
            format!("{values} values of attributes, members of lists among them; at most {most} are allowed"),
        );
    }
    for (name, capacity) in &device.capacity {
        for problem in policy_problems(capacity, device.sharing) {
            let field = format!("capacity.{name}.{}", problem.field);
            cx.rule(&path.missing(&field), problem.fault.to_string());
        }
    }
    unique(cx, path, "counter set", device.consumes.iter().map(|c| c.counter_set.as_str()));
    let conditions = [&device.binding_conditions, &device.binding_failure_conditions];
    if conditions[0].is_empty() != conditions[1].is_empty() {
        cx.rule(path, "expected bindingConditions and bindingFailureConditions, or neither");
    }
    unique(cx, path, "binding condition", conditions.into_iter().flatten().map(String::as_str));
    for condition in conditions.into_iter().flatten() {
        name::label_name(cx, condition, &path.missing("bindingConditions"));
    }
}
