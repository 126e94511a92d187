//! What a server does to `ResourceSlice`s: drops fields of gates that are off, checks limits, fills in taint times.

use serde_json::{Map, Value};

use super::store::Refusal;

/// Which fields survive a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// `DRAPartitionableDevices`.
    pub counters: Gate,
    /// `DRAConsumableCapacity`.
    pub shares: Gate,
    /// `DRADeviceTaints`.
    pub taints: Gate,
}

/// A feature gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// On.
    #[default]
    On,
    /// Off: its fields are dropped without a word.
    Off,
}

// === impl Gates ===

impl Default for Gates {
    fn default() -> Self {
        Self { counters: Gate::On, shares: Gate::On, taints: Gate::On }
    }
}

impl Gates {
    /// All off, as on a server before 1.36.
    #[must_use]
    pub const fn off() -> Self {
        Self { counters: Gate::Off, shares: Gate::Off, taints: Gate::Off }
    }

    fn drop_fields(self, spec: &mut Map<String, Value>) {
        if self.counters == Gate::Off {
            spec.remove("sharedCounters");
        }
        for device in devices_mut(spec) {
            if self.counters == Gate::Off {
                device.remove("consumesCounters");
            }
            if self.taints == Gate::Off {
                device.remove("taints");
            }
            if self.shares == Gate::Off {
                device.remove("allowMultipleAllocations");
                let capacities = device.get_mut("capacity").and_then(Value::as_object_mut);
                for capacity in
                    capacities.into_iter().flat_map(|c| c.values_mut()).filter_map(Value::as_object_mut)
                {
                    capacity.remove("requestPolicy");
                }
            }
        }
    }
}

fn devices_mut(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    let devices = spec.get_mut("devices").and_then(Value::as_array_mut);
    devices.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Makes of a slice as sent what the server stores. `tick` grows with every change: the time of taints without one.
pub(super) fn admit(gates: Gates, tick: u64, old: Option<&Value>, object: &mut Value) -> Result<(), Refusal> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let invalid = |what: String| {
        let message = format!("ResourceSlice.resource.k8s.io \"{name}\" is invalid: {what}");
        Refusal::new(422, "Invalid", message)
    };
    let Some(spec) = object["spec"].as_object_mut() else {
        return Err(invalid("spec: Required value".to_owned()));
    };
    gates.drop_fields(spec);
    if let Some(what) = fault(&name, spec) {
        return Err(invalid(what));
    }
    if let Some(old) = old {
        for path in ["/driver", "/pool/name", "/nodeName"] {
            let now = Value::Object(spec.clone());
            if old["spec"].pointer(path) != now.pointer(path) {
                return Err(invalid(format!("spec{}: field is immutable", path.replace('/', "."))));
            }
        }
    }
    for device in devices_mut(spec) {
        for taint in device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten() {
            if taint["timeAdded"].is_null() {
                taint["timeAdded"] =
                    format!("2026-01-01T{:02}:{:02}:{:02}Z", tick / 3600 % 24, tick / 60 % 60, tick % 60)
                        .into();
            }
        }
    }
    Ok(())
}

/// The first rule that a slice breaks.
fn fault(name: &str, spec: &Map<String, Value>) -> Option<String> {
    let legal = |text: &str| {
        !text.is_empty()
            && text.len() <= 253
            && text.split('.').all(|label| {
                !label.is_empty()
                    && label.len() <= 63
                    && !label.starts_with('-')
                    && !label.ends_with('-')
                    && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            })
    };
    if !legal(name) {
        return Some(format!("metadata.name: Invalid value: {name:?}"));
    }
    let pool = spec.get("pool").and_then(|pool| pool["name"].as_str()).unwrap_or_default();
    if pool.len() > 253 || !pool.split('/').all(legal) {
        return Some(format!("spec.pool.name: Invalid value: {pool:?}"));
    }
    let places = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
    if places.iter().filter(|field| spec.contains_key(**field)).count() != 1 {
        return Some("spec: exactly one of nodeName, nodeSelector, allNodes is required".to_owned());
    }
    if spec.contains_key("devices") && spec.contains_key("sharedCounters") {
        return Some("spec: only one of devices, sharedCounters".to_owned());
    }
    let sets = spec.get("sharedCounters").and_then(Value::as_array);
    if sets.is_some_and(|sets| sets.len() > 8) {
        return Some("spec.sharedCounters: Too many: must have at most 8 items".to_owned());
    }
    let devices = spec.get("devices").and_then(Value::as_array);
    let devices: Vec<&Map<String, Value>> =
        devices.into_iter().flatten().filter_map(Value::as_object).collect();
    let advanced = devices.iter().any(|d| d.contains_key("taints") || d.contains_key("consumesCounters"));
    let most = if advanced { 64 } else { 128 };
    if devices.len() > most {
        return Some(format!("spec.devices: Too many: {}: must have at most {most} items", devices.len()));
    }
    devices.iter().find_map(|device| device_fault(device))
}

fn device_fault(device: &Map<String, Value>) -> Option<String> {
    let size = |field: &str| device.get(field).and_then(Value::as_object).map_or(0, Map::len);
    let many = size("attributes") + size("capacity");
    if many > 32 {
        return Some(format!(
            "spec.devices: Too many: {many}: attributes and capacity together have at most 32"
        ));
    }
    for (key, value) in device.get("attributes").and_then(Value::as_object).into_iter().flatten() {
        let text = value["string"].as_str().or(value["version"].as_str());
        if text.is_some_and(|text| text.len() > 64) {
            return Some(format!("spec.devices.attributes[{key}]: Too long: may not be more than 64 bytes"));
        }
    }
    let shareable = device.get("allowMultipleAllocations") == Some(&Value::Bool(true));
    let capacities = device.get("capacity").and_then(Value::as_object);
    if !shareable && capacities.into_iter().flat_map(Map::values).any(|c| !c["requestPolicy"].is_null()) {
        return Some(
            "spec.devices.capacity.requestPolicy: Forbidden: needs allowMultipleAllocations".to_owned(),
        );
    }
    let consumes = device.get("consumesCounters").and_then(Value::as_array).map_or(0, Vec::len);
    (consumes > 2).then(|| "spec.devices.consumesCounters: Too many: must have at most 2 items".to_owned())
}
