//! Claims on NVIDIA's DRA driver as claims on ours: classes, settings of sharing, selectors, constraints.

use std::collections::BTreeMap;

use aliquot_core::id::Vendor;
use aliquot_core::offer::classes::{card_class, share_class, template_class};
use aliquot_core::offer::legacy::legacy_any_mig;
use aliquot_core::offer::{CAPACITY_CORES, CAPACITY_MEMORY, DRIVER};
use aliquot_core::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::expression::{NVIDIA, NoEquivalent, rewritten};
use super::{Conversion, Place, System, name_of, scalar};

const MIG_CLASS: &str = "mig.nvidia.com";
/// What the names of the driver's other classes end with.
const OTHER_CLASSES: [&str; 2] = ["vfio.gpu.nvidia.com", "compute-domain"];

/// Sharing that a configuration sets for some requests; none named are all.
struct Sharing {
    requests: Vec<String>,
    /// Where it is.
    field: String,
    memory: Option<String>,
    cores: Option<u64>,
}

/// The configurations of a claim by request; of several for one, the last counts.
struct Sharings<'s> {
    by_request: BTreeMap<&'s str, usize>,
    of_all: Option<usize>,
    all: &'s [Sharing],
}

impl Conversion<'_> {
    /// An object of the device API.
    pub(super) fn device_object(&mut self, object: &mut Map<String, Value>, kind: &str, place: &Place<'_>) {
        if self.settings.from.is_some_and(|only| only != System::NvidiaDra) {
            return;
        }
        let name = name_of(object);
        let Some(spec) = object.get_mut("spec") else { return };
        let (devices, path) = match kind {
            "ResourceClaim" => (spec.get_mut("devices"), "spec.devices"),
            "ResourceClaimTemplate" => {
                (spec.get_mut("spec").and_then(|spec| spec.get_mut("devices")), "spec.spec.devices")
            }
            "DeviceClass" => return self.device_class(&name, spec, place),
            _ => return,
        };
        if let Some(Value::Object(devices)) = devices {
            self.devices(devices, &place.below(path));
        }
    }

    /// A class of the admin's own; those of the driver belong to its installation.
    fn device_class(&mut self, name: &str, spec: &mut Value, place: &Place<'_>) {
        if [NVIDIA, MIG_CLASS, OTHER_CLASSES[0]].contains(&name) {
            return;
        }
        let Value::Object(spec) = spec else { return };
        let at = place.below("spec");
        if let Some(Value::Array(selectors)) = spec.get_mut("selectors") {
            self.selectors(selectors, &at);
        }
        for Sharing { field, memory, cores, .. } in self.sharing(spec, &at) {
            let memory = memory.map(|memory| format!("memory {memory}"));
            let cores = cores.map(|cores| format!("cores {cores}"));
            let value: Vec<String> = memory.into_iter().chain(cores).collect();
            let reason = "a class has no capacity, and its claims do not become shares";
            let remedy = "ask for it in each claim, on the class share.aliquot.dev";
            self.lose(field, &value.join(", "), reason, remedy);
        }
    }

    fn devices(&mut self, devices: &mut Map<String, Value>, place: &Place<'_>) {
        let asked: Vec<String> = devices
            .get("requests")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .flat_map(classes_of)
            .collect();
        if !asked.iter().any(|class| is_nvidias(class)) && !devices_text(devices).contains(NVIDIA) {
            return;
        }
        let sharing = self.sharing(devices, place);
        let sharing = Sharings::of(&sharing);
        if let Some(Value::Array(requests)) = devices.get_mut("requests") {
            for (index, request) in requests.iter_mut().enumerate() {
                let at = place.item("requests", index);
                let name = request.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
                for (key, exact) in exact_forms(request) {
                    let own = sharing.of_request(&name, exact);
                    let at = if key.is_empty() { at } else { at.below(&key) };
                    self.request(exact, own, &at);
                }
            }
        }
        self.constraints(devices, place);
    }

    fn request(&mut self, exact: &mut Map<String, Value>, sharing: Option<&Sharing>, at: &Place<'_>) {
        let class = exact.get("deviceClassName").and_then(Value::as_str).unwrap_or_default().to_owned();
        if OTHER_CLASSES.iter().any(|other| class.starts_with(*other)) {
            let field = at.field("deviceClassName");
            self.lose(field, &class, "Aliquot has no such devices", "keep NVIDIA's driver for this request");
            return;
        }
        if !is_nvidias(&class) && !devices_text(exact).contains(NVIDIA) {
            return;
        }
        let mut profile = None;
        if let Some(Value::Array(selectors)) = exact.get_mut("selectors") {
            profile = self.selectors(selectors, at);
            if selectors.is_empty() {
                exact.remove("selectors");
            }
        }
        let ours = match (class.as_str(), &profile, sharing) {
            (NVIDIA, _, Some(_)) => share_class(),
            (NVIDIA, ..) => Vendor::new("nvidia").map(|vendor| card_class(&vendor)).unwrap_or_default(),
            (MIG_CLASS, Some(profile), _) => template_class("nvidia", profile),
            (MIG_CLASS, None, _) => {
                let any = legacy_any_mig();
                let name = any.name.clone();
                self.class(any);
                name
            }
            _ => class.clone(),
        };
        exact.insert("deviceClassName".to_owned(), json!(ours));
        let mut amounts = self.own_capacity(exact, at);
        for (name, value) in sharing.map(Sharing::amounts).unwrap_or_default() {
            if name == CAPACITY_CORES && class == MIG_CLASS {
                let reason = "cores of an instance are percent of the whole card";
                let remedy = "set capacity cores to that part of the instance's percentage";
                self.lose(at.field("defaultActiveThreadPercentage"), &value, reason, remedy);
                continue;
            }
            match amounts.get(name).map(scalar).filter(|own| *own != value) {
                Some(own) => {
                    let field = at.field(&format!("capacity.requests[{name}]: {own}, and {name}"));
                    let reason = "the request's own capacity counts";
                    self.lose(field, &value, reason, "keep one of them");
                }
                None => drop(amounts.insert(name.to_owned(), json!(value))),
            }
        }
        if !amounts.is_empty() {
            let capacity = exact.entry("capacity").or_insert_with(|| json!({}));
            if let Value::Object(capacity) = capacity {
                capacity.insert("requests".to_owned(), Value::Object(amounts));
            }
        }
    }

    /// Takes the capacity that a request has itself, in the names that our devices publish.
    fn own_capacity(&mut self, exact: &mut Map<String, Value>, at: &Place<'_>) -> Map<String, Value> {
        let mut amounts = Map::new();
        let Some(Value::Object(capacity)) = exact.get_mut("capacity") else { return amounts };
        if let Some(Value::Object(requests)) = capacity.remove("requests") {
            for (name, value) in requests {
                let bare = name.strip_prefix(NVIDIA).and_then(|rest| rest.strip_prefix('/')).unwrap_or(&name);
                if [CAPACITY_MEMORY, CAPACITY_CORES].contains(&bare) {
                    amounts.insert(bare.to_owned(), value);
                } else {
                    let field = at.field(&format!("capacity.requests[{name}]"));
                    let reason = "no device has such a capacity";
                    self.lose(field, &scalar(&value), reason, "ask for memory or cores");
                }
            }
        }
        if capacity.is_empty() {
            exact.remove("capacity");
        }
        amounts
    }

    /// Rewrites selectors; the profile that they demand for certain.
    fn selectors(&mut self, selectors: &mut Vec<Value>, at: &Place<'_>) -> Option<String> {
        let mut profile = None;
        let mut index = 0;
        selectors.retain_mut(|selector| {
            let number = index;
            index += 1;
            let Some(expression) = selector.pointer_mut("/cel/expression") else { return true };
            let text = scalar(expression);
            if !text.contains(NVIDIA) {
                return true;
            }
            let reason = match rewritten(&text) {
                Ok(found) => {
                    profile = found.profile.or(profile.take());
                    *expression = Value::String(found.text);
                    return true;
                }
                Err(NoEquivalent::Attribute(name)) => format!("no device has an attribute like `{name}`"),
                Err(NoEquivalent::Use(name)) => {
                    format!("`{name}` has other values here, and is not compared with a string")
                }
                Err(NoEquivalent::Unread(why)) => format!("it cannot be read: {why}"),
            };
            let field = at.item("selectors", number).field("cel.expression");
            self.lose(field, &text, reason, "the request has no such selector now; write one on aliquot.dev");
            false
        });
        profile
    }

    /// Takes NVIDIA's configurations out of the list.
    fn sharing(&mut self, devices: &mut Map<String, Value>, place: &Place<'_>) -> Vec<Sharing> {
        let mut found = Vec::new();
        let Some(Value::Array(configs)) = devices.get_mut("config") else { return found };
        let mut index = 0;
        configs.retain(|config| {
            let at = place.item("config", index);
            let at = at.below("opaque.parameters");
            index += 1;
            let Some(opaque) = config.get("opaque") else { return true };
            if opaque.get("driver").and_then(Value::as_str) != Some(NVIDIA) {
                return true;
            }
            let names = config.get("requests").and_then(Value::as_array).into_iter().flatten();
            let requests = names.filter_map(Value::as_str).map(str::to_owned).collect();
            found.extend(self.parameters(opaque.get("parameters"), requests, &at));
            false
        });
        if configs.is_empty() {
            devices.remove("config");
        }
        found
    }

    fn parameters(
        &mut self,
        parameters: Option<&Value>,
        requests: Vec<String>,
        at: &Place<'_>,
    ) -> Option<Sharing> {
        let parameters = parameters?;
        let kind = parameters.get("kind").and_then(Value::as_str).unwrap_or_default();
        let sharing = parameters.get("sharing");
        let strategy = sharing.and_then(|sharing| sharing.get("strategy")).and_then(Value::as_str);
        if !matches!(kind, "GpuConfig" | "MigDeviceConfig") {
            self.lose(at.field("kind"), kind, "Aliquot has no such setting", "keep NVIDIA's driver for it");
            return None;
        }
        match strategy {
            None => None,
            Some("TimeSlicing") => {
                let reason = "containers of one claim take turns, and the length of a turn is not set";
                self.lose(
                    at.field("sharing.strategy"),
                    "TimeSlicing",
                    reason,
                    "ask for shares to limit each",
                );
                None
            }
            Some("MPS") => self.mps(sharing.and_then(|sharing| sharing.get("mpsConfig")), requests, at),
            Some(other) => {
                self.lose(
                    at.field("sharing.strategy"),
                    other,
                    "it is no strategy that is known",
                    "correct it",
                );
                None
            }
        }
    }

    fn mps(&mut self, config: Option<&Value>, requests: Vec<String>, at: &Place<'_>) -> Option<Sharing> {
        let reason = "MPS runs kernels side by side, shares take turns";
        self.lose(at.field("sharing.strategy"), "MPS", reason, "compare the throughput of the programs");
        let field = at.field("sharing.mpsConfig");
        let mut sharing = Sharing { requests, field, memory: None, cores: None };
        for (key, value) in config.and_then(Value::as_object).into_iter().flatten() {
            let field = at.field(&format!("sharing.mpsConfig.{key}"));
            let text = scalar(value);
            match key.as_str() {
                "defaultActiveThreadPercentage" => match value.as_u64().filter(|percent| *percent <= 100) {
                    Some(percent) => sharing.cores = Some(percent),
                    None => {
                        self.lose(field, &text, "it is no percentage from 0 to 100", "set capacity cores");
                    }
                },
                "defaultPinnedDeviceMemoryLimit" => match text.parse::<Quantity>() {
                    Ok(limit) if limit > Quantity::ZERO => sharing.memory = Some(text),
                    _ => self.lose(field, &text, "it is no quantity above 0", "set capacity memory"),
                },
                _ => {
                    self.lose(
                        field,
                        &text,
                        "every device of a request gets the same",
                        "use several requests",
                    );
                }
            }
        }
        (sharing.memory.is_some() || sharing.cores.is_some()).then_some(sharing)
    }

    fn constraints(&mut self, devices: &mut Map<String, Value>, place: &Place<'_>) {
        const KEPT: [&str; 5] = ["architecture", "driverVersion", "parentUUID", "productName", "profile"];
        let Some(Value::Array(constraints)) = devices.get_mut("constraints") else { return };
        let mut index = 0;
        constraints.retain_mut(|constraint| {
            let at = place.item("constraints", index);
            index += 1;
            for key in ["matchAttribute", "distinctAttribute"] {
                let Some(attribute) = constraint.get_mut(key) else { continue };
                let text = scalar(attribute);
                let Some(name) = text.strip_prefix(NVIDIA).and_then(|rest| rest.strip_prefix('/')) else {
                    continue;
                };
                if KEPT.contains(&name) {
                    *attribute = json!(format!("{DRIVER}/{name}"));
                    continue;
                }
                let reason = "no device has such an attribute";
                self.lose(at.field(key), &text, reason, "the claim has no such constraint now; add one");
                return false;
            }
            true
        });
        if constraints.is_empty() {
            devices.remove("constraints");
        }
    }
}

// === impl Sharing ===

impl Sharing {
    fn amounts(&self) -> Vec<(&'static str, String)> {
        let memory = self.memory.clone().map(|memory| (CAPACITY_MEMORY, memory));
        let cores = self.cores.map(|cores| (CAPACITY_CORES, cores.to_string()));
        memory.into_iter().chain(cores).collect()
    }
}

// === impl Sharings ===

impl<'s> Sharings<'s> {
    fn of(all: &'s [Sharing]) -> Self {
        let mut by_request = BTreeMap::new();
        for (index, sharing) in all.iter().enumerate() {
            by_request.extend(sharing.requests.iter().map(|name| (name.as_str(), index)));
        }
        let of_all = all.iter().rposition(|sharing| sharing.requests.is_empty());
        Self { by_request, of_all, all }
    }

    /// That of a request, or of one of its alternatives, which a configuration names as `request/alternative`.
    fn of_request(&self, request: &str, form: &Map<String, Value>) -> Option<&'s Sharing> {
        let alternative = form.get("name").and_then(Value::as_str).map(|name| format!("{request}/{name}"));
        let alternative = alternative.and_then(|name| self.by_request.get(name.as_str()).copied());
        let own = self.by_request.get(request).copied();
        [alternative, own, self.of_all].into_iter().flatten().max().and_then(|index| self.all.get(index))
    }
}

fn is_nvidias(class: &str) -> bool {
    class == NVIDIA || class == MIG_CLASS || OTHER_CLASSES.iter().any(|other| class.starts_with(*other))
}

fn devices_text(of: &Map<String, Value>) -> String {
    Value::Object(of.clone()).to_string()
}

/// The forms of one request with their paths: `exactly`, each of `firstAvailable`, or, before v1, the request itself.
fn exact_forms(request: &mut Value) -> Vec<(String, &mut Map<String, Value>)> {
    let Value::Object(request) = request else { return Vec::new() };
    if request.contains_key("deviceClassName") {
        return vec![(String::new(), request)];
    }
    let mut forms = Vec::new();
    for (key, form) in request {
        match (key.as_str(), form) {
            ("exactly", Value::Object(exact)) => forms.push(("exactly".to_owned(), exact)),
            ("firstAvailable", Value::Array(subs)) => {
                for (index, sub) in subs.iter_mut().enumerate() {
                    if let Value::Object(sub) = sub {
                        forms.push((format!("firstAvailable[{index}]"), sub));
                    }
                }
            }
            _ => {}
        }
    }
    forms
}

fn classes_of(request: &Value) -> Vec<String> {
    let class = |form: &Value| form.get("deviceClassName").and_then(Value::as_str).map(str::to_owned);
    let subs = request.get("firstAvailable").and_then(Value::as_array);
    let forms = subs.into_iter().flatten().chain(request.get("exactly")).chain(Some(request));
    forms.filter_map(class).collect()
}
