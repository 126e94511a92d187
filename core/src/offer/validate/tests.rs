use super::*;
use crate::dra::{
    CapacityPolicy, CapacityRestriction, CounterConsumption, DeviceCapacity, NodeSelectorTerm, Pool, Sharing,
    Taint, TaintEffect,
};
use crate::quantity::{Format, Quantity};

fn slice(name: &str, slice_count: i64) -> ResourceSlice {
    ResourceSlice {
        name: name.to_owned(),
        driver: "aliquot.dev".to_owned(),
        pool: Pool { name: "node-1/aliquot".to_owned(), generation: 3, slice_count },
        node: NodeSelection::Name("node-1".to_owned()),
        devices: Vec::new().into(),
        shared_counters: Vec::new().into(),
    }
}

fn one(count: u32) -> BTreeMap<String, Quantity> {
    (0..count).map(|number| (format!("c{number}"), Quantity::from_units(1, Format::DecimalSi))).collect()
}

fn set(name: &str) -> CounterSet {
    CounterSet { name: name.to_owned(), counters: one(2) }
}

fn takes(set: &str) -> CounterConsumption {
    CounterConsumption { counter_set: set.to_owned(), counters: one(1), compatibility_groups: Vec::new() }
}

fn taint(key: &str) -> Taint {
    Taint { key: key.to_owned(), value: String::new(), effect: TaintEffect::NoSchedule }
}

/// A pool in order: one slice of counters, one of devices.
fn good() -> Vec<ResourceSlice> {
    let mut counters = slice("a-0", 2);
    counters.shared_counters = vec![set("card-0")].into();
    let mut devices = slice("a-1", 2);
    let mut device = Device::named("d0");
    device.consumes = vec![takes("card-0")].into();
    device.taints = vec![taint("aliquot.dev/unhealthy")];
    device
        .attributes
        .insert("driverVersion".to_owned(), AttributeValue::Version("580.95.5-rc.1+b".to_owned()));
    device
        .attributes
        .insert("resource.kubernetes.io/pcieRoot".to_owned(), AttributeValue::String("p".to_owned()));
    devices.devices = vec![device, Device::named("d1")].into();
    vec![counters, devices]
}

/// Spoils a good pool and looks for one violation with all the words in its text.
#[track_caller]
fn broken(spoil: impl FnOnce(&mut Vec<ResourceSlice>), words: &[&str]) {
    let mut slices = good();
    spoil(&mut slices);
    let found: Vec<String> = violations(&slices).iter().map(ToString::to_string).collect();
    assert!(
        found.iter().any(|text| words.iter().all(|word| text.contains(word))),
        "{words:?} not in {found:#?}"
    );
}

fn first(slices: &mut [ResourceSlice]) -> &mut Device {
    &mut slices[1].devices[0]
}

fn named(count: usize) -> Vec<Device> {
    (0..count).map(|number| Device::named(format!("n{number}"))).collect()
}

#[test]
fn a_good_pool_has_no_violations() {
    assert_eq!(violations(&good()), []);
    assert_eq!(violations(&[slice("empty", 1)]), []);
    let mut plain = slice("plain", 1);
    plain.devices = named(128).into();
    assert_eq!(violations(&[plain]), []);
}

#[test]
fn slices_have_legal_names_and_places() {
    broken(|s| s[1].name = "A_1".to_owned(), &["metadata.name", "`A_1`", "DNS subdomain"]);
    broken(|s| s[1].name = "a-0".to_owned(), &["metadata.name", "a-0 twice"]);
    broken(|s| s[1].driver = "a".repeat(64), &["spec.driver", "at most 63"]);
    broken(|s| s[1].pool.name = "node//x".to_owned(), &["spec.pool.name", "`node//x`"]);
    broken(|s| s[1].pool.name = "a".repeat(254), &["spec.pool.name", "253"]);
    broken(|s| s[1].pool.generation = -1, &["spec.pool.generation", "`-1`"]);
    broken(|s| s[1].pool.slice_count = 0, &["resourceSliceCount", "`0`", "at least one"]);
    broken(|s| s[1].node = NodeSelection::Name(String::new()), &["spec.nodeName"]);
    let terms =
        |count| NodeSelection::Selector(NodeSelector { terms: vec![NodeSelectorTerm::default(); count] });
    broken(|s| s[1].node = terms(0), &["spec.nodeSelector.nodeSelectorTerms", "exactly one"]);
    broken(|s| s[1].node = terms(2), &["spec.nodeSelector.nodeSelectorTerms", "found 2"]);
    broken(|s| s[1].node = NodeSelection::PerDevice, &["spec.devices[0]", "leaves it to each device"]);
    broken(|s| first(s).node = Some(NodeSelection::All), &["spec.devices[0]", "a node of its own"]);
    let nested = |s: &mut Vec<ResourceSlice>| {
        s[1].node = NodeSelection::PerDevice;
        first(s).node = Some(NodeSelection::PerDevice);
    };
    broken(nested, &["spec.devices[0]", "perDeviceNodeSelection in a device"]);
    let several = |s: &mut Vec<ResourceSlice>| {
        s[1].node = NodeSelection::PerDevice;
        first(s).node = Some(terms(2));
    };
    broken(several, &["spec.devices[0].nodeSelector", "found 2"]);
}

#[test]
fn slices_have_their_limits() {
    broken(|s| s[1].devices = named(129).into(), &["spec.devices", "found 129", "at most 128"]);
    broken(|s| s[1].devices.extend(named(63)), &["spec.devices", "found 65", "at most 64"]);
    let tainted = |s: &mut Vec<ResourceSlice>| {
        s[1].devices = named(65).into();
        s[1].devices[64].taints = vec![taint("k")];
    };
    broken(tainted, &["spec.devices", "found 65", "at most 64"]);
    let listed = |s: &mut Vec<ResourceSlice>| {
        s[1].devices = named(65).into();
        s[1].devices[3].attributes.insert("l".to_owned(), AttributeValue::Ints(vec![1]));
    };
    broken(listed, &["spec.devices", "found 65", "at most 64"]);
    broken(|s| s[0].devices = named(1).into(), &["devices and sharedCounters"]);
    let sets =
        |s: &mut Vec<ResourceSlice>| s[0].shared_counters = (0..9).map(|n| set(&format!("s{n}"))).collect();
    broken(sets, &["spec.sharedCounters", "found 9", "at most 8"]);
    broken(|s| s[0].shared_counters[0].counters = one(33), &["counters", "found 33", "at most 32"]);
    broken(
        |s| s[0].shared_counters[0].counters = one(0),
        &["sharedCounters[0].counters", "at least one counter"],
    );
    broken(|s| s[0].shared_counters.push(set("card-0")), &["sharedCounters[1].name", "card-0 twice"]);
    broken(|s| s[0].shared_counters[0].name = "Card_0".to_owned(), &["sharedCounters[0].name", "`Card_0`"]);
    let counter = |s: &mut Vec<ResourceSlice>| {
        s[0].shared_counters[0].counters.insert("copy_engines".to_owned(), Quantity::ZERO);
    };
    broken(counter, &["counters[copy_engines]", "DNS label"]);
}

#[test]
fn devices_have_their_limits() {
    broken(|s| first(s).name = "D.0".to_owned(), &["devices[0].name", "`D.0`"]);
    broken(|s| s[1].devices[1].name = "d0".to_owned(), &["devices[1].name", "d0 twice"]);
    let number = |s: &mut Vec<ResourceSlice>, count: usize| {
        let attributes = (0..count).map(|n| (format!("a{n}"), AttributeValue::Int(1)));
        first(s).attributes = attributes.collect();
    };
    broken(|s| number(s, 33), &["spec.devices[0]:", "found 33", "at most 32"]);
    let values = |s: &mut Vec<ResourceSlice>| {
        first(s).attributes.insert("l".to_owned(), AttributeValue::Ints(vec![0; 49]));
    };
    broken(values, &["devices[0].attributes", "at most 48"]);
    let put = |s: &mut Vec<ResourceSlice>, name: &str, value: AttributeValue| {
        first(s).attributes.insert(name.to_owned(), value);
    };
    let text = |length: usize| AttributeValue::String("x".repeat(length));
    broken(|s| put(s, "a", text(65)), &["attributes[a]", "64 bytes"]);
    broken(|s| put(s, "a-b", text(1)), &["attributes[a-b]", "C identifier"]);
    broken(|s| put(s, "a/b/c", text(1)), &["attributes[a/b/c]"]);
    broken(|s| put(s, "1a", text(1)), &["attributes[1a]"]);
    broken(|s| put(s, &"a".repeat(33), text(1)), &["at most 32 characters"]);
    for version in ["580.95.05", "1.2", "1.2.3-", "1.2.3-01", "v1.2.3", "1.2.3+", ""] {
        let words = ["attributes[v]", "semantic version"];
        broken(|s| put(s, "v", AttributeValue::Version(version.to_owned())), &words);
    }
    broken(|s| put(s, "l", AttributeValue::Strings(vec!["x".repeat(65)])), &["attributes[l]", "64 bytes"]);
    broken(|s| put(s, "l", AttributeValue::Versions(vec!["1".to_owned()])), &["attributes[l]"]);
    broken(|s| put(s, "l", AttributeValue::Bools(Vec::new())), &["attributes[l]", "at least one member"]);
}

#[test]
fn capacities_have_legal_policies() {
    let one = Quantity::from_units(1, Format::DecimalSi);
    let with = |sharing, policy: CapacityPolicy| {
        move |s: &mut Vec<ResourceSlice>| {
            first(s).sharing = sharing;
            let capacity = DeviceCapacity { value: one, policy: Some(policy) };
            first(s).capacity.insert("memory".to_owned(), capacity);
        }
    };
    let range = CapacityRestriction::Range { min: one, max: None, step: Some(one) };
    let policy = CapacityPolicy { default: Some(one), restriction: range };
    broken(
        with(Sharing::Exclusive, policy.clone()),
        &["capacity[memory].requestPolicy", "allowMultipleAllocations"],
    );
    broken(with(Sharing::Shareable, policy), &["validRange.step", "larger than capacity"]);
    let none = CapacityPolicy { default: Some(one), restriction: CapacityRestriction::Values(Vec::new()) };
    broken(with(Sharing::Shareable, none), &["validValues", "at least one value"]);
    let name = |s: &mut Vec<ResourceSlice>| {
        first(s).capacity.insert("copy-engines".to_owned(), DeviceCapacity { value: one, policy: None });
    };
    broken(name, &["capacity[copy-engines]"]);
}

#[test]
fn counters_taints_and_conditions_have_their_limits() {
    broken(
        |s| first(s).consumes = vec![takes("card-0"), takes("b"), takes("c")].into(),
        &["consumesCounters", "found 3"],
    );
    broken(|s| first(s).consumes.push(takes("card-0")), &["consumesCounters[1].counterSet", "twice"]);
    broken(|s| first(s).consumes[0].counters = one(33), &["consumesCounters[0].counters", "found 33"]);
    broken(|s| first(s).consumes[0].counters = one(0), &["consumesCounters[0].counters", "at least one"]);
    broken(|s| first(s).consumes[0].counter_set = "A".to_owned(), &["consumesCounters[0].counterSet", "`A`"]);
    let taints =
        |s: &mut Vec<ResourceSlice>| first(s).taints = (0..17).map(|n| taint(&format!("k{n}"))).collect();
    broken(taints, &["taints", "found 17", "at most 16"]);
    broken(|s| first(s).taints[0].key = "a b".to_owned(), &["taints[0].key", "`a b`"]);
    broken(|s| first(s).taints[0].value = "x".repeat(64), &["taints[0].value"]);
    broken(|s| first(s).taints[0].effect = TaintEffect::Other("Maybe".to_owned()), &["effect", "`Maybe`"]);
    let conditions = |wanted: &[&str], failed: &[&str]| {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let (wanted, failed) = (list(wanted), list(failed));
        move |s: &mut Vec<ResourceSlice>| {
            first(s).binding_conditions = wanted;
            first(s).binding_failure_conditions = failed;
        }
    };
    broken(conditions(&["a"], &[]), &["bindingFailureConditions", "found nothing"]);
    broken(conditions(&[], &["a"]), &["bindingConditions", "found nothing"]);
    broken(conditions(&["a"], &["a"]), &["bindingFailureConditions", "twice"]);
    broken(conditions(&["a", "a"], &["b"]), &["bindingConditions[1]", "twice"]);
    broken(conditions(&["a", "b", "c", "d", "e"], &["f"]), &["bindingConditions", "found 5"]);
    broken(conditions(&["-"], &["b"]), &["bindingConditions[0]", "label name"]);
}

#[test]
fn pools_are_complete_unique_and_resolved() {
    broken(|s| s.truncate(1), &["resourceSliceCount", "2, with 1 slices"]);
    let again = |s: &mut Vec<ResourceSlice>| {
        let mut third = slice("a-2", 3);
        third.devices = named(1).into();
        third.devices[0].name = "d1".to_owned();
        s.push(third);
    };
    broken(again, &["spec.devices", "d1, also in another slice"]);
    let sets = |s: &mut Vec<ResourceSlice>| {
        let mut third = slice("a-2", 3);
        third.shared_counters = vec![set("card-0")].into();
        s.push(third);
    };
    broken(sets, &["spec.sharedCounters", "card-0, also in another slice"]);
    broken(|s| first(s).consumes[0].counter_set = "card-9".to_owned(), &["counterSet", "found card-9"]);
    broken(|s| first(s).consumes[0].counters = one(3), &["counters[c2]", "c2 of card-0"]);
    // An older generation neither counts nor completes the pool.
    let mut slices = good();
    let mut old = slices[1].clone();
    old.name = "a-old".to_owned();
    old.pool.generation = 2;
    slices.push(old);
    assert_eq!(violations(&slices), []);
}
