//! Classes, claims to place, and claims that hold something already.

use serde_json::{Map, Value, json};

use super::inventory::{DeviceFacts, Inventory};
use super::random::{KnownDefects, Random, set};

/// The classes of every case; the last has no object, now and then.
const CLASSES: [&str; 4] = ["any", "driver", "model-a", "large"];

/// The device classes.
pub(super) fn classes(random: &mut Random, inventory: &Inventory) -> Vec<Value> {
    let driver = *random.pick(&inventory.drivers);
    let expressions = [
        None,
        Some(format!("device.driver == '{driver}'")),
        Some(format!(
            "device.driver == '{driver}' && device.attributes['{driver}'].?model.orValue('') == 'A'"
        )),
        Some(
            "device.capacity[device.driver].?memory.orValue(quantity('0')).compareTo(quantity('8Gi')) >= 0"
                .to_owned(),
        ),
    ];
    let absent = random.percent(3);
    CLASSES
        .iter()
        .zip(expressions)
        .filter(|(name, _)| !absent || **name != "large")
        .map(|(name, expression)| {
            let mut spec = json!({});
            if let Some(expression) = expression {
                set(&mut spec, "selectors", json!([{"cel": {"expression": expression}}]));
            }
            if random.percent(30) {
                let config = json!({"opaque": {"driver": driver, "parameters": {"class": name}}});
                set(&mut spec, "config", Value::Array(vec![config; random.between(1, 2)]));
            }
            json!({"metadata": {"name": name}, "spec": spec})
        })
        .collect()
}

/// One to three claims to place together.
pub(super) fn claims(random: &mut Random, inventory: &Inventory, defects: KnownDefects) -> Vec<Value> {
    let count = *random.pick(&[1, 1, 1, 1, 2, 2, 3]);
    (0..count).map(|index| Claim { random, inventory, defects }.draw(index)).collect()
}

/// One claim while it is drawn.
struct Claim<'a> {
    random: &'a mut Random,
    inventory: &'a Inventory,
    defects: KnownDefects,
}

impl Claim<'_> {
    fn draw(mut self, index: usize) -> Value {
        let distinct = self.random.percent(12);
        let count = *self.random.pick(&[1, 1, 1, 1, 2, 2, 3]);
        let mut requests = Vec::new();
        let mut names = Vec::new();
        for index in 0..count {
            let name = format!("r{index}");
            requests.push(self.request(&name, &mut names, distinct && self.defects == KnownDefects::Avoid));
        }
        let mut devices = json!({"requests": requests});
        if distinct || self.random.percent(20) {
            let constraints = self.constraints(&names, distinct);
            set(&mut devices, "constraints", constraints);
        }
        if self.random.percent(25) {
            let config = (0..self.random.between(1, 2)).map(|index| self.config(&names, index)).collect();
            set(&mut devices, "config", config);
        }
        json!({
            "metadata": {"name": format!("claim-{index}"), "namespace": "default", "uid": self.random.uuid()},
            "spec": {"devices": devices},
        })
    }

    /// One request; `names` gets every name by which it may be referred to. With `single`, it is for one device.
    fn request(&mut self, name: &str, names: &mut Vec<String>, single: bool) -> Value {
        names.push(name.to_owned());
        if self.random.percent(70) {
            let mut exactly = self.ask(single);
            let harmless = !self.inventory.has_counters || self.defects == KnownDefects::Touch;
            if harmless && self.random.percent(6) {
                set(&mut exactly, "adminAccess", json!(true));
            }
            return json!({"name": name, "exactly": exactly});
        }
        let count = self.random.between(1, 3);
        let mut alternatives = Vec::new();
        for index in 0..count {
            let mut alternative = self.ask(single);
            set(&mut alternative, "name", json!(format!("s{index}")));
            names.push(format!("{name}/s{index}"));
            alternatives.push(alternative);
        }
        json!({"name": name, "firstAvailable": alternatives})
    }

    /// What a request and an alternative have in common.
    fn ask(&mut self, single: bool) -> Value {
        let class = *self.random.pick(&["any", "any", "any", "driver", "driver", "model-a", "large"]);
        let mut ask = json!({"deviceClassName": class});
        if self.random.percent(35) {
            let count = *self.random.pick(&[1, 1, 1, 2]);
            let selectors: Vec<Value> =
                (0..count).map(|_| json!({"cel": {"expression": self.selector()}})).collect();
            set(&mut ask, "selectors", Value::Array(selectors));
        }
        match self.random.below(20) {
            _ if single => {}
            0 => set(&mut ask, "allocationMode", json!("All")),
            1..4 => set(&mut ask, "count", json!(2)),
            4 => set(&mut ask, "count", json!(3)),
            5 => set(&mut ask, "allocationMode", json!("ExactCount")),
            _ => {}
        }
        if self.random.percent(25) {
            let tolerations = self.tolerations();
            set(&mut ask, "tolerations", tolerations);
        }
        if self.random.percent(35) {
            let requests = self.capacity();
            set(&mut ask, "capacity", json!({"requests": requests}));
        }
        ask
    }

    fn selector(&mut self) -> String {
        let driver = *self.random.pick(&self.inventory.drivers);
        if self.random.percent(2) {
            // Fails on every device of another driver, which ends the attempt on all nodes.
            return format!("device.attributes['{driver}'].model.startsWith('A')");
        }
        let tests = [
            "d.model == 'A'",
            "d.model in ['A', 'B']",
            "d.size >= 2",
            "d.size * 2 - 1 < 4",
            "'healthy' in d && d.healthy",
            "has(d.healthy) ? d.healthy : d.size > 1",
            "d.?group.orValue(0) == 1",
            "d.?version.hasValue() && d.version.isGreaterThan(semver('1.5.0'))",
            "!device.allowMultipleAllocations",
            "device.attributes['example.com'].?rack.hasValue()",
            "device.capacity[device.driver].?cores.orValue(quantity('1')).isGreaterThan(quantity('50'))",
            "d.exists(key, key.startsWith('ver'))",
            "d.missing == 1 || d.size > 0",
        ];
        let test = self.random.pick(&tests);
        format!("device.driver == '{driver}' && cel.bind(d, device.attributes['{driver}'], {test})")
    }

    fn tolerations(&mut self) -> Value {
        let tolerations = [
            json!({"operator": "Exists"}),
            json!({"key": "example.com/broken", "operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": "example.com/broken"}),
            json!({"key": "example.com/busy", "operator": "Equal", "value": "yes"}),
            json!({"key": "example.com/busy", "operator": "Equal", "value": "no"}),
            json!({"key": "example.com/busy", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}),
        ];
        let count = self.random.between(1, 2);
        (0..count).map(|_| self.random.pick(&tolerations).clone()).collect()
    }

    fn capacity(&mut self) -> Value {
        let memory = ["0", "1", "1Gi", "1500Mi", "2Gi", "3Gi", "4G", "1e9", "8Gi", "10500Mi", "20Gi"];
        let cores = ["0", "1", "5", "7", "25", "50", "60", "100", "101", "2500m", "0.5"];
        let slots = ["0", "1", "2", "3", "5"];
        let mut requests = Map::new();
        let mut add = |random: &mut Random, chance: usize, key: &str, amounts: &[&str]| {
            if random.percent(chance) {
                requests.insert(key.to_owned(), json!(*random.pick(amounts)));
            }
        };
        add(self.random, 80, "memory", &memory);
        add(self.random, 25, "cores", &cores);
        add(self.random, 6, "example.com/slots", &slots);
        if self.defects == KnownDefects::Touch {
            add(self.random, 10, "memory", &["2.5Gi", "0.1Gi"]);
            let driver = *self.random.pick(&self.inventory.drivers);
            add(self.random, 10, &format!("{driver}/memory"), &memory);
        }
        Value::Object(requests)
    }

    fn constraints(&mut self, names: &[String], distinct: bool) -> Value {
        let mut constraints = Vec::new();
        if distinct {
            constraints.push(self.constraint(names, "distinctAttribute"));
        }
        if !distinct || self.random.percent(30) {
            constraints.push(self.constraint(names, "matchAttribute"));
        }
        Value::Array(constraints)
    }

    fn constraint(&mut self, names: &[String], rule: &str) -> Value {
        let driver = *self.random.pick(&self.inventory.drivers);
        let attributes = [
            format!("{driver}/model"),
            format!("{driver}/group"),
            format!("{driver}/size"),
            "example.com/rack".to_owned(),
            "resource.kubernetes.io/pcieRoot".to_owned(),
        ];
        let mut constraint = json!({});
        set(&mut constraint, rule, json!(self.random.pick(&attributes)));
        let requests = self.random.subset(names, 60);
        if !requests.is_empty() {
            set(&mut constraint, "requests", json!(requests));
        }
        constraint
    }

    fn config(&mut self, names: &[String], index: usize) -> Value {
        let driver = *self.random.pick(&self.inventory.drivers);
        let mut config = json!({"opaque": {"driver": driver, "parameters": {"claim": index}}});
        let requests = self.random.subset(names, 40);
        if !requests.is_empty() {
            set(&mut config, "requests", json!(requests));
        }
        config
    }
}

/// Claims that hold a part of what there is.
pub(super) fn allocated(random: &mut Random, inventory: &Inventory) -> Vec<Value> {
    let busy = *random.pick(&[0, 10, 20, 50]);
    let mut results = Vec::new();
    for device in &inventory.devices {
        if !random.percent(busy) {
            continue;
        }
        let holders = if device.share.is_some() { random.between(1, 2) } else { 1 };
        for _ in 0..holders {
            results.push(held(random, device));
        }
    }
    let mut claims = Vec::new();
    while !results.is_empty() {
        let rest = results.split_off(results.len().min(random.between(1, 3)));
        let held = std::mem::replace(&mut results, rest);
        claims.push(json!({
            "metadata": {"name": format!("held-{}", claims.len()), "namespace": "default", "uid": random.uuid()},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any", "count": held.len()}}]}},
            "status": {"allocation": {"devices": {"results": held}}},
        }));
    }
    claims
}

/// One result that holds a device, or a share of it; seldom one with admin access, which holds nothing.
fn held(random: &mut Random, device: &DeviceFacts) -> Value {
    let mut result =
        json!({"request": "r", "driver": device.driver, "pool": device.pool, "device": device.name});
    if let Some(capacities) = &device.share {
        let consumed: Map<String, Value> = capacities
            .iter()
            .map(|(key, amounts)| ((*key).to_owned(), json!(*random.pick(amounts))))
            .collect();
        set(&mut result, "shareID", json!(random.uuid()));
        set(&mut result, "consumedCapacity", Value::Object(consumed));
    } else if random.percent(4) {
        set(&mut result, "adminAccess", json!(true));
    }
    result
}
