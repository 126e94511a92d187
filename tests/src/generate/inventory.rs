//! Nodes, pools and slices of a random cluster.
//!
//! A pool is exclusive, shared or counted; it reaches one node, all nodes, those with a label, or each device its own.
//! A few pools are ill in the ways in which real ones are: incomplete, half replaced by a newer generation,
//! with a device name twice, or with an unpublished counter.

use serde_json::{Map, Value, json};

use super::random::{KnownDefects, Random, set};

/// The drivers, in the order in which cases take them.
pub(super) const DRIVERS: [&str; 3] = ["gpu.example.com", "npu.example.com", "nic.example.org"];
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const COUNTER_SETS: [&str; 2] = ["set-0", "set-1"];

/// What demand has to know of a device to ask for it, or to hold it.
#[derive(Clone, Debug)]
pub(super) struct DeviceFacts {
    pub(super) driver: &'static str,
    pub(super) pool: String,
    pub(super) name: String,
    /// For a shareable device, each capacity with amounts that a share may have consumed.
    pub(super) share: Option<Vec<(&'static str, &'static [&'static str])>>,
}

/// The supply side of a case.
#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) nodes: Vec<Value>,
    pub(super) slices: Vec<Value>,
    pub(super) drivers: Vec<&'static str>,
    pub(super) devices: Vec<DeviceFacts>,
    pub(super) has_counters: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exclusive,
    Shared,
    Counted,
}

/// One pool while it is drawn.
struct Pool {
    driver: &'static str,
    name: String,
    kind: Kind,
    generation: usize,
    /// The node selection field of its slices, and its value.
    reach: (&'static str, Value),
    /// Attributes are missing here and there.
    ragged: bool,
    defects: KnownDefects,
}

/// A capacity entry that the API accepts, with amounts that shares may hold.
type CapacityForm = (&'static str, &'static str, &'static [&'static str]);

/// Every form of policy; the texts are the JSON of a DeviceCapacity.
const SHARED_FORMS: [CapacityForm; 11] = [
    ("memory", r#"{"value":"16Gi"}"#, &["4Gi", "16Gi"]),
    ("memory", r#"{"value":"16Gi","requestPolicy":{"default":"4Gi"}}"#, &["4Gi", "8Gi"]),
    (
        "memory",
        r#"{"value":"16Gi","requestPolicy":{"default":"4Gi","validRange":{"min":"1Gi"}}}"#,
        &["1Gi", "1500Mi"],
    ),
    (
        "memory",
        r#"{"value":"16Gi","requestPolicy":{"default":"4Gi","validRange":{"min":"2Gi","max":"8Gi"}}}"#,
        &["2Gi", "8Gi"],
    ),
    (
        "memory",
        r#"{"value":"16Gi","requestPolicy":{"default":"16Gi","validRange":{"min":"1Gi","step":"1Gi"}}}"#,
        &["1Gi", "3Gi", "11Gi"],
    ),
    (
        "memory",
        r#"{"value":"16Gi","requestPolicy":{"default":"2Gi","validRange":{"min":"2Gi","max":"10Gi","step":"2Gi"}}}"#,
        &["2Gi", "10Gi"],
    ),
    (
        "memory",
        r#"{"value":"16Gi","requestPolicy":{"default":"4Gi","validValues":["2Gi","4Gi","8Gi"]}}"#,
        &["2Gi", "8Gi"],
    ),
    (
        "cores",
        r#"{"value":"100","requestPolicy":{"default":"0","validRange":{"min":"0","step":"1"}}}"#,
        &["0", "25", "100"],
    ),
    (
        "cores",
        r#"{"value":"100","requestPolicy":{"default":"10","validRange":{"min":"5","max":"90","step":"5"}}}"#,
        &["5", "90"],
    ),
    (
        "cores",
        r#"{"value":"100","requestPolicy":{"default":"50","validValues":["10","25","50"]}}"#,
        &["10", "50"],
    ),
    ("example.com/slots", r#"{"value":"4","requestPolicy":{"default":"1"}}"#, &["1", "2"]),
];

impl Inventory {
    /// Draws nodes and one to three pools.
    pub(super) fn draw(random: &mut Random, defects: KnownDefects) -> Self {
        let nodes = NODES[..random.between(1, 3)].iter().map(|name| node(random, name)).collect();
        let drivers = DRIVERS[..random.between(1, 3)].to_vec();
        let mut inventory =
            Self { nodes, slices: Vec::new(), drivers, devices: Vec::new(), has_counters: false };
        let ragged = random.percent(8);
        for _ in 0..random.between(1, 3) {
            let driver = *random.pick(&inventory.drivers);
            let kind = *random.pick(&[Kind::Exclusive, Kind::Shared, Kind::Counted, Kind::Counted]);
            inventory.has_counters |= kind == Kind::Counted;
            let name = format!("pool-{}", random.below(2));
            // One driver with one pool name is one pool, which would then contradict itself.
            if inventory.devices.iter().any(|device| device.driver == driver && device.pool == name) {
                continue;
            }
            let reach = reach(random, kind);
            let pool = Pool { driver, name, kind, generation: random.between(1, 3), reach, ragged, defects };
            inventory.add(random, &pool);
        }
        let devices = &inventory.devices;
        inventory.drivers.retain(|driver| devices.iter().any(|device| device.driver == *driver));
        // Slices reach the allocator in any order; names decide.
        for last in (1..inventory.slices.len()).rev() {
            let other = random.below(last + 1);
            inventory.slices.swap(last, other);
        }
        inventory
    }

    fn add(&mut self, random: &mut Random, pool: &Pool) {
        let mut lists: Vec<Vec<Value>> = Vec::new();
        let mut total = 0;
        for _ in 0..random.between(1, 2) {
            let most = if random.percent(10) { 12 } else { 5 };
            let count = random.between(1, most);
            lists.push((total..total + count).map(|index| self.device(random, pool, index)).collect());
            total += count;
        }
        if lists.len() > 1
            && random.percent(4)
            && let (Some(first), [_, second, ..]) = (lists[0].first().cloned(), lists.as_mut_slice())
        {
            second.push(first);
        }
        let counters = pool.kind == Kind::Counted;
        let published = lists.len() + usize::from(counters);
        let count = if random.percent(4) { published + 1 } else { published };
        if counters {
            let mut slice = pool.slice(random, pool.generation, count);
            set(&mut slice["spec"], "sharedCounters", counter_sets());
            self.slices.push(slice);
        }
        for devices in lists {
            let mut slice = pool.slice(random, pool.generation, count);
            set(&mut slice["spec"], "devices", Value::Array(devices));
            self.slices.push(slice);
        }
        self.add_other_generations(random, pool, count);
    }

    /// Leftovers of the generation before, and now and then the first slice of the next one, perhaps elsewhere.
    fn add_other_generations(&mut self, random: &mut Random, pool: &Pool, count: usize) {
        if random.percent(12) {
            let mut slice = pool.slice(random, pool.generation - 1, count);
            set(&mut slice["spec"], "devices", json!([pool.bare_device("stale")]));
            self.slices.push(slice);
        }
        if random.percent(3) {
            let mut slice = pool.slice(random, pool.generation + 1, 2);
            if let ("nodeName", spec) = (pool.reach.0, &mut slice["spec"]) {
                set(spec, "nodeName", json!(*random.pick(&["n1", "n9"])));
            }
            set(&mut slice["spec"], "devices", json!([pool.bare_device("newer")]));
            self.slices.push(slice);
        }
    }

    fn device(&mut self, random: &mut Random, pool: &Pool, index: usize) -> Value {
        let name = format!("d{index}");
        let mut device = json!({"name": name, "attributes": attributes(random, pool)});
        let shareable = match pool.kind {
            Kind::Exclusive => false,
            Kind::Shared => random.percent(85),
            Kind::Counted => random.percent(30),
        };
        let share = if shareable {
            set(&mut device, "allowMultipleAllocations", json!(true));
            Some(shared_capacity(random, &mut device))
        } else {
            if random.percent(60) {
                let memory = *random.pick(&["4Gi", "8Gi", "16Gi", "10G"]);
                set(&mut device, "capacity", json!({"memory": {"value": memory}, "cores": {"value": "100"}}));
            }
            None
        };
        if pool.kind == Kind::Counted && random.percent(90) {
            set(&mut device, "consumesCounters", consumed_counters(random, shareable));
        }
        if pool.reach.0 == "perDeviceNodeSelection" {
            let (field, value) = loop {
                let reach = reach(random, Kind::Exclusive);
                if reach.0 != "perDeviceNodeSelection" {
                    break reach;
                }
            };
            set(&mut device, field, value);
        }
        add_conditions(random, &mut device);
        self.devices.push(DeviceFacts { driver: pool.driver, pool: pool.name.clone(), name, share });
        device
    }
}

impl Pool {
    fn slice(&self, random: &mut Random, generation: usize, count: usize) -> Value {
        let name = format!("{:03x}-{}", random.below(0x1000), random.below(1_000_000));
        let pool = json!({"name": self.name, "generation": generation, "resourceSliceCount": count});
        let mut spec = json!({"driver": self.driver, "pool": pool});
        set(&mut spec, self.reach.0, self.reach.1.clone());
        json!({"metadata": {"name": name}, "spec": spec})
    }

    /// A device with the attributes that selectors take for granted, and nothing else.
    fn bare_device(&self, name: &str) -> Value {
        let mut device = json!({"name": name, "attributes": {"model": {"string": "A"}, "size": {"int": 1}}});
        if self.reach.0 == "perDeviceNodeSelection" {
            set(&mut device, "allNodes", json!(true));
        }
        device
    }
}

fn node(random: &mut Random, name: &str) -> Value {
    let mut labels = json!({"zone": *random.pick(&["a", "b"])});
    if random.percent(50) {
        set(&mut labels, "disk", json!("ssd"));
    }
    if random.percent(50) {
        set(&mut labels, "mem", json!(random.below(8).to_string()));
    }
    json!({"metadata": {"name": name, "labels": labels}})
}

/// A node selection field and its value. A pool of a node is the usual case.
fn reach(random: &mut Random, kind: Kind) -> (&'static str, Value) {
    match random.below(10) {
        0..5 => ("nodeName", json!(*random.pick(&["n1", "n1", "n1", "n2", "n3"]))),
        5 | 6 => ("allNodes", json!(true)),
        7 | 8 => ("nodeSelector", json!({"nodeSelectorTerms": [selector_term(random)]})),
        _ if kind == Kind::Counted => ("allNodes", json!(true)),
        _ => ("perDeviceNodeSelection", json!(true)),
    }
}

fn selector_term(random: &mut Random) -> Value {
    let expressions = [
        json!({"key": "zone", "operator": "In", "values": ["a"]}),
        json!({"key": "zone", "operator": "NotIn", "values": ["b", "c"]}),
        json!({"key": "disk", "operator": "Exists"}),
        json!({"key": "disk", "operator": "DoesNotExist"}),
        json!({"key": "mem", "operator": "Gt", "values": ["3"]}),
        json!({"key": "mem", "operator": "Lt", "values": ["5"]}),
    ];
    match random.below(5) {
        0 => {
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [random.pick(&NODES)]}]})
        }
        1 => json!({"matchExpressions": [random.pick(&expressions), random.pick(&expressions)]}),
        _ => json!({"matchExpressions": [random.pick(&expressions)]}),
    }
}

fn attributes(random: &mut Random, pool: &Pool) -> Value {
    let mut attributes = Map::new();
    let mut add = |random: &mut Random, chance: usize, name: &str, value: Value| {
        if random.percent(chance) {
            attributes.insert(name.to_owned(), value);
        }
    };
    let always = if pool.ragged { 70 } else { 100 };
    let (model, size) = (*random.pick(&["A", "A", "B", "C"]), random.between(1, 3));
    add(random, always, "model", json!({"string": model}));
    add(random, always, "size", json!({"int": size}));
    let healthy = random.percent(70);
    add(random, 50, "healthy", json!({"bool": healthy}));
    let version = *random.pick(&["1.2.3", "1.10.0", "2.0.0-rc.1", "2.0.0"]);
    add(random, 50, "version", json!({"version": version}));
    let (bare, qualified) = (random.below(2), random.below(2));
    let key = format!("{}/group", pool.driver);
    match random.below(10) {
        0..4 => add(random, 100, "group", json!({"int": bare})),
        4 | 5 => add(random, 100, &key, json!({"int": qualified})),
        // Constraints see the qualified value; to a selector upstream shows either.
        6 if pool.defects == KnownDefects::Touch => {
            add(random, 100, "group", json!({"int": bare}));
            add(random, 100, &key, json!({"int": qualified}));
        }
        _ => {}
    }
    let rack = *random.pick(&["r1", "r2"]);
    add(random, 60, "example.com/rack", json!({"string": rack}));
    let root = format!("pci0000:{:02x}", random.below(2));
    add(random, 60, "resource.kubernetes.io/pcieRoot", json!({"string": root}));
    if random.percent(3) {
        // The same name with another type matches nothing.
        attributes.insert("example.com/rack".to_owned(), json!({"int": 1}));
    }
    Value::Object(attributes)
}

/// Gives a shareable device one form for each capacity it has; memory is always there.
fn shared_capacity(random: &mut Random, device: &mut Value) -> Vec<(&'static str, &'static [&'static str])> {
    let mut capacity = Map::new();
    let mut samples = Vec::new();
    for (key, chance) in [("memory", 100), ("cores", 60), ("example.com/slots", 20)] {
        if !random.percent(chance) {
            continue;
        }
        let forms: Vec<&CapacityForm> = SHARED_FORMS.iter().filter(|form| form.0 == key).collect();
        let form = *random.pick(&forms);
        // The forms are constants; a bad one would be missed by the judge's validation of the case.
        capacity.insert(key.to_owned(), serde_json::from_str(form.1).unwrap_or(Value::Null));
        samples.push((key, form.2));
    }
    set(device, "capacity", Value::Object(capacity));
    samples
}

fn counter_sets() -> Value {
    COUNTER_SETS
        .iter()
        .map(|name| json!({"name": name, "counters": {"memory": {"value": "8"}, "engines": {"value": "2"}}}))
        .collect()
}

/// A part of a set, the whole of it, or a part of two sets; seldom something that no set has.
fn consumed_counters(random: &mut Random, whole: bool) -> Value {
    let first = random.below(2);
    let part = |random: &mut Random, set: &str| {
        let (memory, engines) = if whole { (8, 2) } else { (random.between(1, 4), random.below(2)) };
        json!({"counterSet": set,
               "counters": {"memory": {"value": memory.to_string()}, "engines": {"value": engines.to_string()}}})
    };
    let mut parts = vec![part(random, COUNTER_SETS[first])];
    if random.percent(15) {
        parts.push(part(random, COUNTER_SETS[1 - first]));
    }
    if random.percent(1) {
        let strange = *random.pick(&["counterless", "set-9"]);
        parts[0] = if strange == "set-9" {
            json!({"counterSet": "set-9", "counters": {"memory": {"value": "1"}}})
        } else {
            json!({"counterSet": COUNTER_SETS[first], "counters": {"unheard-of": {"value": "1"}}})
        };
    }
    Value::Array(parts)
}

/// Taints and binding conditions, on a few devices.
fn add_conditions(random: &mut Random, device: &mut Value) {
    if random.percent(15) {
        let taints = [
            json!({"key": "example.com/broken", "effect": "NoSchedule"}),
            json!({"key": "example.com/busy", "value": "yes", "effect": "NoExecute"}),
            json!({"key": "example.com/note", "effect": "None"}),
        ];
        let some = random.subset(&taints, 50);
        if !some.is_empty() {
            set(device, "taints", Value::Array(some));
        }
    }
    if random.percent(8) {
        set(device, "bindingConditions", json!(["example.com/ready"]));
        set(device, "bindingFailureConditions", json!(["example.com/failed"]));
        if random.percent(50) {
            set(device, "bindsToNode", json!(true));
        }
    }
}
