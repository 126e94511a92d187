//! Configurations of NVIDIA's device plugin and of mig-parted as a layout policy.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::amounts::WHOLE;
use super::{Conversion, ConvertError, Place, scalar};
use crate::manifest::values;

/// Names of configurations that an error lists.
const NAMES_LISTED: usize = 12;
/// Most slots of one kind on a card.
const SLOTS_MAX: u64 = 64;

/// The resource that a replica of a card has, if a document has the plugin's configuration.
pub(super) fn resource_of_replicas(document: &Value) -> Option<&'static str> {
    let sharing = found_in(document)
        .into_iter()
        .find_map(|(_, mut config)| config.get_mut("sharing").map(Value::take))?;
    let renamed = |of: &Value| of.get("renameByDefault").and_then(Value::as_bool) == Some(true);
    let some = sharing.as_object()?.values().any(renamed);
    Some(if some { "nvidia.com/gpu.shared" } else { "nvidia.com/gpu" })
}

/// The configurations of a document, with their keys where it is a `ConfigMap`.
fn found_in(document: &Value) -> Vec<(String, Value)> {
    if is_configuration(document) {
        return vec![(String::new(), document.clone())];
    }
    if document.get("kind").and_then(Value::as_str) != Some("ConfigMap") {
        return Vec::new();
    }
    let data = document.get("data").and_then(Value::as_object);
    let read = |(key, text): (&String, &Value)| {
        let config = values(text.as_str()?).ok()?.into_iter().next()?;
        is_configuration(&config).then(|| (key.clone(), config))
    };
    data.into_iter().flatten().filter_map(read).collect()
}

fn is_configuration(document: &Value) -> bool {
    let has = |key| document.get(key).is_some_and(Value::is_object);
    document.get("kind").is_none()
        && (has("mig-configs") || (document.get("version").is_some() && (has("sharing") || has("flags"))))
}

impl Conversion<'_> {
    /// Takes a document that is a configuration; whether it was one.
    pub(super) fn configuration(&mut self, document: &Value) -> Result<bool, ConvertError> {
        let mut found = found_in(document);
        if found.is_empty() {
            return Ok(false);
        }
        let name = document.get("metadata").and_then(|m| m.get("name")).and_then(Value::as_str);
        let object = name.map_or_else(|| "configuration".to_owned(), |name| format!("ConfigMap {name}"));
        let place = Place { object, path: String::new() };
        if found.len() > 1 {
            let names: Vec<String> = found.iter().map(|(key, _)| key.clone()).collect();
            let wanted = self.selected(&names)?;
            found.retain(|(key, _)| *key == wanted);
        }
        for (_, config) in found {
            if let Some(Value::Object(configs)) = config.get("mig-configs") {
                self.mig_parted(configs, &place)?;
            }
            self.plugin(&config, &place);
        }
        Ok(true)
    }

    /// The one of several names that is meant.
    fn selected(&self, names: &[String]) -> Result<String, ConvertError> {
        match (&self.settings.select, names) {
            (Some(name), names) if names.contains(name) => Ok(name.clone()),
            (None, [only]) => Ok(only.clone()),
            (select, names) => {
                let found = match select {
                    Some(name) => format!("no configuration {name}"),
                    None => format!("{} configurations", names.len()),
                };
                let listed: Vec<&str> = names.iter().take(NAMES_LISTED).map(String::as_str).collect();
                self.fail(&format!(
                    "found {found}, expected one; name it with --select, such as {}",
                    listed.join(", ")
                ))
            }
        }
    }

    fn rule(&mut self, text: &str) {
        let policy = self.done.policy.get_or_insert_with(|| "default = \"auto\"\n".to_owned());
        policy.push('\n');
        policy.push_str(text);
    }

    fn mig_parted(&mut self, configs: &Map<String, Value>, place: &Place) -> Result<(), ConvertError> {
        let names: Vec<String> = configs.keys().cloned().collect();
        let name = self.selected(&names)?;
        if names.len() > 1 {
            let field = place.field("mig-configs");
            let reason = "one policy holds for every node of an installation";
            let remedy = "convert each with --select, and install once a node pool";
            self.lose(field, &format!("{} configurations, of which {name}", names.len()), reason, remedy);
        }
        let place = place.below(&format!("mig-configs[{name}]"));
        let entries = configs.get(&name).and_then(Value::as_array);
        for (index, entry) in entries.into_iter().flatten().enumerate() {
            self.mig_rule(entry, &place.below(&index.to_string()));
        }
        Ok(())
    }

    /// One entry as a rule for each model of its filter.
    fn mig_rule(&mut self, entry: &Value, at: &Place) {
        let mut rule = String::from("[[rule]]\nvendor = \"nvidia\"\n");
        let mut cards = String::new();
        match entry.get("devices") {
            Some(Value::Array(indices)) => {
                let indices: Vec<String> =
                    indices.iter().filter_map(Value::as_u64).map(|index| index.to_string()).collect();
                if !indices.is_empty() {
                    let _written = writeln!(rule, "index = [{}]", indices.join(", "));
                    cards = format!(" -i {}", indices.join(","));
                }
            }
            Some(Value::String(all)) if all == "all" => {}
            other => {
                let value = other.map(scalar).unwrap_or_default();
                self.lose(
                    at.field("devices"),
                    &value,
                    "it is neither `all` nor a list of indices",
                    "correct it",
                );
                return;
            }
        }
        let enabled = entry.get("mig-enabled").and_then(Value::as_bool).unwrap_or(false);
        if enabled {
            let remedy = format!("type `nvidia-smi{cards} -mig 1` on each node");
            self.lose(at.field("mig-enabled"), "true", "the mode of a card is not switched", remedy);
        }
        let Some(layout) = self.layout(entry, enabled, at) else { return };
        let filters = match entry.get("device-filter") {
            Some(Value::Array(filters)) => filters.iter().map(scalar).collect(),
            Some(one) => vec![scalar(one)],
            None => Vec::new(),
        };
        if filters.is_empty() {
            self.rule(&format!("{rule}{layout}"));
        }
        for filter in filters {
            let models = self.cards.of_pci_id(&filter);
            if models.is_empty() {
                let reason = "no card model that is known has this PCI device id";
                self.lose(at.field("device-filter"), &filter, reason, "write a rule for its model");
            }
            for model in models {
                self.rule(&format!("{rule}model = \"{}\"\n{layout}", model.id));
            }
        }
    }

    fn layout(&mut self, entry: &Value, enabled: bool, at: &Place) -> Option<String> {
        if !enabled {
            return Some("layout = \"whole\"\n".to_owned());
        }
        let mut pieces = Vec::new();
        for (profile, count) in entry.get("mig-devices").and_then(Value::as_object).into_iter().flatten() {
            let plain = profile.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
            match count.as_u64() {
                Some(0) => {}
                Some(count) if plain && count <= SLOTS_MAX => pieces.push(format!("\"{count}x{profile}\"")),
                _ => {
                    let field = at.field(&format!("mig-devices[{profile}]"));
                    let reason = "it is no number of instances of a profile";
                    self.lose(field, &scalar(count), reason, "correct it; the entry is left out");
                    return None;
                }
            }
        }
        if pieces.is_empty() {
            return Some("layout = \"dynamic\"\n".to_owned());
        }
        Some(format!("layout = \"split\"\npartitions = [{}]\n", pieces.join(", ")))
    }

    fn plugin(&mut self, config: &Value, place: &Place) {
        for (key, value) in config.get("flags").and_then(Value::as_object).into_iter().flatten() {
            let text = scalar(value);
            match (key.as_str(), text.as_str()) {
                ("migStrategy", "none" | "mixed") => {}
                ("migStrategy", _) => {
                    let remedy = "convert Pods with --profile and the profile of the nodes";
                    let reason = "under strategy `single` nvidia.com/gpu is an instance of one profile";
                    self.lose(place.field("flags.migStrategy"), &text, reason, remedy);
                }
                _ => {
                    let reason = "it is a setting of the plugin itself";
                    self.lose(place.field(&format!("flags.{key}")), &text, reason, "see the chart's values");
                }
            }
        }
        for (strategy, reason) in [
            ("timeSlicing", "time slicing has no memory limit, and a slot has"),
            ("mps", "MPS runs kernels side by side, and slots take turns; a slot has a fixed size"),
        ] {
            let path = format!("/sharing/{strategy}/resources");
            let resources = config.pointer(&path).and_then(Value::as_array);
            for (index, resource) in resources.into_iter().flatten().enumerate() {
                let at = place.below(&format!("sharing.{strategy}.resources[{index}]"));
                self.replicas(resource, reason, &at);
            }
        }
    }

    /// Replicas of a card as slots of equal size.
    fn replicas(&mut self, resource: &Value, reason: &str, at: &Place) {
        let name = resource.get("name").and_then(Value::as_str).unwrap_or_default();
        let found = resource.get("replicas").map(scalar).unwrap_or_default();
        let number = resource.get("replicas").and_then(Value::as_u64);
        if name != "nvidia.com/gpu" {
            let reason = "only cards are divided into slots, not their instances";
            self.lose(at.field("name"), name, reason, "ask for shares inside the instance by claims");
            return;
        }
        let Some(replicas @ 1..=SLOTS_MAX) = number else {
            self.lose(at.field("replicas"), &found, "it is no number from 1 to 64", "correct it");
            return;
        };
        let part = u32::try_from(u64::from(WHOLE) / replicas).unwrap_or(WHOLE);
        let sizes = self.cards.sizes(part, |_| true);
        if sizes.is_empty() {
            let reason = format!("{reason}: its size depends on the card model");
            self.lose(
                at.field("replicas"),
                &found,
                reason,
                "add --cluster, or --node with a node that has the cards",
            );
            return;
        }
        self.lose(at.field("replicas"), &found, reason, "check the sizes in the policy");
        for (number, size) in sizes.iter().enumerate() {
            let name = if number == 0 { "shared".to_owned() } else { format!("shared-{}", number + 1) };
            for model in &size.models {
                let rule =
                    format!("[[rule]]\nmodel = \"{}\"\nlayout = \"slots\"\nslots = [\"{name}\"]\n", model.id);
                self.rule(&rule);
            }
            let slot = format!(
                "[[slot]]\nname = \"{name}\"\nmemory = \"{}\"\ncores = {}\ncopies = {replicas}\n",
                size.memory,
                100 / replicas
            );
            self.rule(&slot);
        }
    }
}
