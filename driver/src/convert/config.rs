//! Configurations of NVIDIA's device plugin and of mig-parted: which documents are one, and which of several is meant.

use serde_json::{Map, Value};

use super::conversion::{Conversion, ConvertError};
use super::place::{Place, scalar};
use super::vocabulary::System;
use crate::manifest::values;
use crate::printable::line_of;

/// Names of configurations that an error lists.
const NAMES_LISTED: usize = 12;
/// Most bytes of such a name.
const NAME_BYTES_LISTED: usize = 63;

/// What of a document was configuration.
pub(super) enum Taken {
    /// Nothing: it is an object.
    Nothing,
    /// Some of its data, which is no longer in it.
    Part,
    /// All of it.
    All,
}

/// A configuration, and its key where it is in a `ConfigMap`.
struct Found {
    key: String,
    system: System,
    config: Value,
}

/// The cards that a configuration names.
pub(super) enum NamedCards {
    All,
    /// By index; never empty.
    Indices(Vec<u32>),
}

/// Reads `all` or a list of indices; `None`: it is neither.
pub(super) fn named_cards(devices: &Value) -> Option<NamedCards> {
    match devices {
        Value::String(all) if all == "all" => Some(NamedCards::All),
        Value::Array(indices) if !indices.is_empty() => {
            let index = |value: &Value| value.as_u64().and_then(|index| u32::try_from(index).ok());
            indices.iter().map(index).collect::<Option<Vec<u32>>>().map(NamedCards::Indices)
        }
        _ => None,
    }
}

/// Whose configuration a document is: a form that only these programs have, so that that of another stays.
fn system_of(document: &Value) -> Option<System> {
    let is_object = |pointer| document.pointer(pointer).is_some_and(Value::is_object);
    if document.get("kind").is_some() {
        None
    } else if is_object("/mig-configs") {
        Some(System::MigParted)
    } else {
        let of_plugin = document.get("version").and_then(Value::as_str) == Some("v1")
            && (is_object("/sharing/timeSlicing")
                || is_object("/sharing/mps")
                || document.pointer("/flags/migStrategy").is_some_and(Value::is_string));
        of_plugin.then_some(System::Nvidia)
    }
}

/// The configurations of a document.
fn found_in(document: &Value) -> Vec<Found> {
    if let Some(system) = system_of(document) {
        return vec![Found { key: String::new(), system, config: document.clone() }];
    }
    if document.get("kind").and_then(Value::as_str) != Some("ConfigMap") {
        return Vec::new();
    }
    let data = document.get("data").and_then(Value::as_object);
    let read = |(key, text): (&String, &Value)| {
        let mut documents = values(text.as_str()?).ok()?;
        let config = documents.pop().filter(|_| documents.is_empty())?;
        Some(Found { key: key.clone(), system: system_of(&config)?, config })
    };
    data.into_iter().flatten().filter_map(read).collect()
}

impl Conversion<'_> {
    /// The resource that a replica of a card has, if a document has the plugin's configuration.
    pub(super) fn resource_of_replicas(&self, document: &Value) -> Option<&'static str> {
        let mut found = found_in(document);
        found.retain(|found| self.is_read(found.system));
        if let Some(name) = self.settings.select.as_ref().filter(|_| found.len() > 1) {
            found.retain(|found| found.key == *name);
        }
        let sharing = found.iter().find_map(|found| found.config.get("sharing"))?;
        let renamed = |of: &Value| of.get("renameByDefault").and_then(Value::as_bool) == Some(true);
        let some = sharing.as_object()?.values().any(renamed);
        Some(if some { "nvidia.com/gpu.shared" } else { "nvidia.com/gpu" })
    }

    fn is_read(&self, system: System) -> bool {
        self.settings.from.is_none_or(|only| only == system)
    }

    /// Takes what of a document is configuration out of it.
    pub(super) fn configuration(&mut self, document: &mut Value) -> Result<Taken, ConvertError> {
        let mut found = found_in(document);
        let is_map = document.get("kind").is_some();
        if let (Some(first), false) = (found.first(), is_map)
            && !self.is_read(first.system)
        {
            return self.fail(&format!(
                "found a configuration of {}, expected words of the system of --from; leave --from out, or the file",
                first.system
            ));
        }
        found.retain(|found| self.is_read(found.system));
        if found.is_empty() {
            return Ok(Taken::Nothing);
        }
        let name = document.pointer("/metadata/name").and_then(Value::as_str);
        let object = name.map_or_else(|| "configuration".to_owned(), |name| format!("ConfigMap {name}"));
        let place = Place::object(&object);
        let keys: Vec<String> = found.iter().map(|found| found.key.clone()).collect();
        if found.len() > 1 {
            let wanted = self.selected(&keys)?;
            self.name_others(place.field("data"), &keys, &wanted);
            found.retain(|found| found.key == wanted);
        }
        for Found { system, config, .. } in found {
            let Value::Object(config) = config else { continue };
            match system {
                System::MigParted => self.mig_parted(&config, &place)?,
                _ => self.plugin(&config, &place),
            }
        }
        Ok(if is_map { without_data(document, &keys) } else { Taken::All })
    }

    /// The one of several names that is meant.
    pub(super) fn selected(&self, names: &[String]) -> Result<String, ConvertError> {
        match (&self.settings.select, names) {
            (Some(name), names) if names.contains(name) => Ok(name.clone()),
            (None, [only]) => Ok(only.clone()),
            (select, names) => {
                let found = match select {
                    Some(name) => format!("no configuration {}", line_of(name, NAME_BYTES_LISTED)),
                    None => format!("{} configurations", names.len()),
                };
                let listed = names.iter().take(NAMES_LISTED).map(|name| line_of(name, NAME_BYTES_LISTED));
                self.fail(&format!(
                    "found {found}, expected one; name it with --select, such as {}",
                    listed.collect::<Vec<String>>().join(", ")
                ))
            }
        }
    }

    /// Names configurations that were not selected.
    pub(super) fn name_others(&mut self, field: String, names: &[String], selected: &str) {
        if names.len() > 1 {
            let value = format!("{} configurations, of which {selected}", names.len());
            let reason = "one policy holds for every node of an installation";
            self.lose(field, &value, reason, "convert each with --select, and install once a node pool");
        }
    }

    /// Names the keys of a map that are none of these.
    pub(super) fn name_unknown(&mut self, of: &Map<String, Value>, known: &[&str], place: &Place<'_>) {
        for (key, value) in of.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            let reason = "it is no setting that is known";
            self.lose(place.field(key), &scalar(value), reason, "see docs/user/policy-files.md");
        }
    }

    pub(super) fn rule(&mut self, text: &str) {
        let policy = self.done.policy.get_or_insert_with(|| "default = \"auto\"\n".to_owned());
        policy.push('\n');
        policy.push_str(text);
    }
}

/// A `ConfigMap` without these keys.
fn without_data(document: &mut Value, keys: &[String]) -> Taken {
    if let Some(Value::Object(data)) = document.get_mut("data") {
        data.retain(|key, _| !keys.contains(key));
    }
    let has = |key| document.get(key).and_then(Value::as_object).is_some_and(|data| !data.is_empty());
    if has("data") || has("binaryData") { Taken::Part } else { Taken::All }
}
