//! A few words to write a small world in, and to read an answer.

use crate::allocate::{InputProblem, NodeIndex, PlacementRefusal, World};
use crate::dra::*;
use crate::quantity::Quantity;

pub(super) const DRIVER: &str = "gpu.example.com";

pub(super) fn q(text: &str) -> Quantity {
    text.parse().unwrap()
}

/// A device; words after a blank: `share`, `attr=value`, `cap:memory=8Gi`, `use:set.counter=2`, `group:name`,
/// `taint:key=value`, `on:node`, `binds`, `waits`.
pub(super) fn dev(text: &str) -> Device {
    let mut words = text.split_whitespace();
    let mut device = Device::named(words.next().unwrap());
    for word in words {
        match word.split_once(':') {
            Some(("cap", rest)) => {
                let (name, value) = rest.split_once('=').unwrap();
                let capacity = DeviceCapacity { value: q(value), policy: None };
                device.capacity.insert(name.into(), capacity);
            }
            Some(("use", rest)) => use_counter(&mut device, rest),
            Some(("group", name)) => device.consumes[0].compatibility_groups.push(name.into()),
            Some(("taint", rest)) => {
                let (key, value) = rest.split_once('=').unwrap();
                let (key, value) = (key.into(), value.into());
                device.taints.push(Taint { key, value, effect: TaintEffect::NoSchedule });
            }
            Some(("on", node)) => device.node = Some(NodeSelection::Name(node.into())),
            _ if word == "share" => device.sharing = Sharing::Shareable,
            _ if word == "binds" => device.binds_to_node = true,
            _ if word == "waits" => device.binding_conditions.push("Ready".into()),
            _ => {
                let (name, value) = word.split_once('=').unwrap();
                let value = match value.parse::<i64>() {
                    Ok(int) => AttributeValue::Int(int),
                    Err(_) => AttributeValue::String(value.into()),
                };
                device.attributes.insert(name.into(), value);
            }
        }
    }
    device
}

fn use_counter(device: &mut Device, rest: &str) {
    let (path, amount) = rest.split_once('=').unwrap();
    let (set, counter) = path.split_once('.').unwrap();
    let known = device.consumes.iter().position(|c| c.counter_set == set);
    let position = known.unwrap_or_else(|| {
        let counters = std::collections::BTreeMap::new();
        device.consumes.push(CounterConsumption {
            counter_set: set.into(),
            counters,
            compatibility_groups: Vec::new(),
        });
        device.consumes.len() - 1
    });
    device.consumes[position].counters.insert(counter.into(), q(amount));
}

/// A policy on a capacity of a device.
pub(super) fn policy(
    mut device: Device,
    name: &str,
    default: Option<&str>,
    restriction: CapacityRestriction,
) -> Device {
    let policy = CapacityPolicy { default: default.map(q), restriction };
    device.capacity.get_mut(name).unwrap().policy = Some(policy);
    device
}

pub(super) fn range(min: &str, max: Option<&str>, step: Option<&str>) -> CapacityRestriction {
    CapacityRestriction::Range { min: q(min), max: max.map(q), step: step.map(q) }
}

/// What is published; starts with node `n1`, class `any` and nothing else.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) slices: Vec<ResourceSlice>,
    pub(super) classes: Vec<DeviceClass>,
    pub(super) nodes: Vec<Node>,
}

pub(super) fn setup() -> Setup {
    Setup { slices: Vec::new(), classes: Vec::new(), nodes: Vec::new() }.node("n1").class("any", &[])
}

/// One complete pool `p` on node `n1` with these devices.
pub(super) fn one(devices: &[&str]) -> Setup {
    setup().pool("p", devices)
}

impl Setup {
    pub(super) fn node(mut self, name: &str) -> Self {
        let labels = [("name".to_owned(), name.to_owned())].into();
        self.nodes.push(Node { name: name.into(), labels });
        self
    }

    pub(super) fn class(mut self, name: &str, selectors: &[&str]) -> Self {
        self.classes.push(DeviceClass {
            name: name.into(),
            selectors: selectors.iter().map(ToString::to_string).collect(),
            config: Vec::new(),
            extended_resource_name: None,
            extended_resource_capacity: std::collections::BTreeMap::new(),
            annotations: std::collections::BTreeMap::new(),
        });
        self
    }

    pub(super) fn pool(self, pool: &str, devices: &[&str]) -> Self {
        self.slice(&format!("{pool}-0"), pool, devices, |_| {})
    }

    pub(super) fn devices(self, pool: &str, devices: Vec<Device>) -> Self {
        self.slice(&format!("{pool}-0"), pool, &[], |slice| slice.devices = devices.into())
    }

    pub(super) fn slice(
        mut self,
        name: &str,
        pool: &str,
        devices: &[&str],
        change: impl FnOnce(&mut ResourceSlice),
    ) -> Self {
        let mut slice = ResourceSlice {
            name: name.into(),
            driver: DRIVER.into(),
            pool: Pool { name: pool.into(), generation: 1, slice_count: 1 },
            node: NodeSelection::Name("n1".into()),
            devices: devices.iter().map(|text| dev(text)).collect(),
            shared_counters: Vec::new().into(),
        };
        change(&mut slice);
        self.slices.push(slice);
        self
    }

    /// A pool of two slices: counter sets (`set.counter=total`) and devices.
    pub(super) fn counted(self, pool: &str, counters: &[&str], devices: &[&str]) -> Self {
        let mut sets: Vec<CounterSet> = Vec::new();
        for text in counters {
            let (path, total) = text.split_once('=').unwrap();
            let (set, counter) = path.split_once('.').unwrap();
            if sets.iter().all(|known| known.name != set) {
                sets.push(CounterSet { name: set.into(), counters: std::collections::BTreeMap::new() });
            }
            let found = sets.iter_mut().find(|known| known.name == set).unwrap();
            found.counters.insert(counter.into(), q(total));
        }
        self.slice(&format!("{pool}-c"), pool, &[], |slice| {
            slice.shared_counters = sets.into();
            slice.pool.slice_count = 2;
        })
        .slice(&format!("{pool}-d"), pool, devices, |slice| slice.pool.slice_count = 2)
    }

    pub(super) fn build(self) -> (World, Vec<InputProblem>) {
        World::new(self.slices, self.classes, self.nodes)
    }

    pub(super) fn world(self) -> World {
        self.build().0
    }

    /// Allocates on `n1` and compares: `a b | c` is two claims, devices in result order; else the refusal's kind.
    #[track_caller]
    pub(super) fn check(self, claims: &[ResourceClaim], expected: &str) {
        self.check_after(&[], claims, expected);
    }

    /// As `check`, after each of the `held` claims was allocated and held.
    #[track_caller]
    pub(super) fn check_after(self, held: &[ResourceClaim], claims: &[ResourceClaim], expected: &str) {
        let mut world = self.world();
        for claim in held {
            hold(&mut world, claim);
        }
        assert_eq!(read(&world.allocate(NodeIndex(0), claims)), expected);
        assert_eq!(world.invariants(), Ok(()));
        let again = read(&world.allocate(NodeIndex(0), claims));
        assert_eq!(again, expected, "the second time");
    }
}

/// Allocates a claim on `n1` and holds it.
#[track_caller]
pub(super) fn hold(world: &mut World, claim: &ResourceClaim) -> AllocationResult {
    let mut results = world.allocate(NodeIndex(0), std::slice::from_ref(claim)).unwrap();
    let result = results.pop().unwrap();
    world.hold_as(claim, &result).unwrap();
    assert_eq!(world.invariants(), Ok(()));
    assert_eq!(world.excesses(), []);
    result
}

/// The answer in short.
pub(super) fn read(answer: &Result<Vec<AllocationResult>, PlacementRefusal>) -> String {
    match answer {
        Ok(all) => {
            let claim = |result: &AllocationResult| {
                let names: Vec<_> = result.devices.iter().map(|d| d.device.device.as_str()).collect();
                names.join(" ")
            };
            all.iter().map(claim).collect::<Vec<_>>().join(" | ")
        }
        Err(refusal) => kind(refusal).to_owned(),
    }
}

pub(super) fn kind(refusal: &PlacementRefusal) -> &'static str {
    match refusal {
        PlacementRefusal::NoFit { .. } => "NoFit",
        PlacementRefusal::InvalidPool { .. } => "InvalidPool",
        PlacementRefusal::MissingClass { .. } => "MissingClass",
        PlacementRefusal::Selector(_) => "Selector",
        PlacementRefusal::TooManyDevices { .. } => "TooManyDevices",
        PlacementRefusal::OutOfRange { .. } => "OutOfRange",
        PlacementRefusal::AllOfUnusablePool { .. } => "AllOfUnusablePool",
        PlacementRefusal::AllAgainstConstraint { .. } => "AllAgainstConstraint",
        PlacementRefusal::SeveralTerms { .. } => "SeveralTerms",
        PlacementRefusal::SearchBound { .. } => "SearchBound",
        PlacementRefusal::NoNodes => "NoNodes",
        PlacementRefusal::UnknownNode => "UnknownNode",
    }
}

/// `any`, `any*2`, `any*all`; words after a blank: `admin`, `bears:key`, `memory=8Gi`, `attr==value`.
pub(super) fn ask(text: &str) -> ExactRequest {
    let mut words = text.split_whitespace();
    let (class, count) = words.next().map(|w| w.split_once('*').unwrap_or((w, "1"))).unwrap();
    let mut request = ExactRequest {
        device_class: class.into(),
        selectors: Vec::new(),
        mode: match count {
            "all" => AllocationMode::All,
            count => AllocationMode::ExactCount(count.parse().unwrap()),
        },
        access: Access::Normal,
        tolerations: Vec::new(),
        capacity: std::collections::BTreeMap::new(),
    };
    for word in words {
        if let Some(key) = word.strip_prefix("bears:") {
            let (operator, key) = (TolerationOperator::Exists, Some(key.to_owned()));
            request.tolerations.push(Toleration { key, operator, effect: None, seconds: None });
        } else if let Some((name, value)) = word.split_once("==") {
            let value = value.parse::<i64>().map_or_else(|_| format!("\"{value}\""), |int| int.to_string());
            request.selectors.push(format!("device.attributes[\"{DRIVER}\"].{name} == {value}"));
        } else if let Some((name, value)) = word.split_once('=') {
            request.capacity.insert(name.into(), q(value));
        } else {
            assert_eq!(word, "admin");
            request.access = Access::Admin;
        }
    }
    request
}

/// A claim with requests `r0`, `r1`, …; alternatives `s0`, `s1`, … are separated by `/`.
pub(super) fn claim(name: &str, requests: &[&str]) -> ResourceClaim {
    let request = |(number, text): (usize, &&str)| {
        let kind = if text.contains(" / ") {
            let subs = text.split(" / ").enumerate();
            let sub = |(n, t): (usize, &str)| SubRequest { name: format!("s{n}"), request: ask(t) };
            RequestKind::FirstAvailable(subs.map(sub).collect())
        } else {
            RequestKind::Exactly(ask(text))
        };
        DeviceRequest { name: format!("r{number}"), kind }
    };
    ResourceClaim {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        requests: requests.iter().enumerate().map(request).collect(),
        constraints: Vec::new(),
        config: Vec::new(),
        allocation: None,
    }
}

/// Adds `matchAttribute` over these requests.
pub(super) fn matching(mut claim: ResourceClaim, requests: &[&str], attribute: &str) -> ResourceClaim {
    let rule = ConstraintRule::Match(format!("{DRIVER}/{attribute}"));
    let requests = requests.iter().map(ToString::to_string).collect();
    claim.constraints.push(DeviceConstraint { requests, rule });
    claim
}

/// Adds `distinctAttribute` over these requests.
pub(super) fn distinct(mut claim: ResourceClaim, requests: &[&str], attribute: &str) -> ResourceClaim {
    let rule = ConstraintRule::Distinct(format!("{DRIVER}/{attribute}"));
    let requests = requests.iter().map(ToString::to_string).collect();
    claim.constraints.push(DeviceConstraint { requests, rule });
    claim
}
