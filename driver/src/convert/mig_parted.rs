//! A configuration of mig-parted as rules of a layout policy.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::config::{NamedCards, named_cards};
use super::{Conversion, ConvertError, Place, scalar};

/// Most instances of one profile on a card.
const INSTANCES_MAX: u64 = 64;

impl Conversion<'_> {
    pub(super) fn mig_parted(
        &mut self,
        config: &Map<String, Value>,
        place: &Place<'_>,
    ) -> Result<(), ConvertError> {
        self.name_unknown(config, &["version", "mig-configs"], place);
        let Some(configs) = config.get("mig-configs").and_then(Value::as_object) else { return Ok(()) };
        let names: Vec<String> = configs.keys().cloned().collect();
        let name = self.selected(&names)?;
        self.name_others(place.field("mig-configs"), &names, &name);
        match configs.get(&name) {
            Some(Value::Array(entries)) => {
                let place = place.named("mig-configs", &name);
                for (index, entry) in entries.iter().enumerate() {
                    self.mig_rule(entry, &place.item("", index));
                }
            }
            other => {
                let value = other.map(scalar).unwrap_or_default();
                let field = place.field(&format!("mig-configs[{name}]"));
                self.lose(field, &value, "it is no list of entries", "correct it");
            }
        }
        Ok(())
    }

    /// One entry as a rule for each model of its filter. What cannot be read leaves the entry out: without it, the rule
    /// would hold for other cards, or cut them otherwise.
    fn mig_rule(&mut self, entry: &Value, at: &Place<'_>) {
        let mut rule = String::from("[[rule]]\nvendor = \"nvidia\"\n");
        let mut cards = String::new();
        match entry.get("devices").and_then(named_cards) {
            Some(NamedCards::All) => {}
            Some(NamedCards::Indices(indices)) => {
                let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
                let _written = writeln!(rule, "index = [{}]", indices.join(", "));
                cards = format!(" -i {}", indices.join(","));
            }
            None => {
                let reason = "it is neither `all` nor a list of indices";
                return self.left_out(at.field("devices"), entry.get("devices"), reason);
            }
        }
        let Some(Value::Bool(enabled)) = entry.get("mig-enabled") else {
            let reason = "it is neither true nor false";
            return self.left_out(at.field("mig-enabled"), entry.get("mig-enabled"), reason);
        };
        if *enabled {
            let remedy = format!("type `nvidia-smi{cards} -mig 1` on each node");
            self.lose(at.field("mig-enabled"), "true", "the mode of a card is not switched", remedy);
        }
        let layout = match enabled {
            true => self.partitions(entry.get("mig-devices"), at),
            false => Some("layout = \"whole\"\n".to_owned()),
        };
        let Some(layout) = layout else { return };
        if let Value::Object(entry) = entry {
            self.name_unknown(entry, &["device-filter", "devices", "mig-enabled", "mig-devices"], at);
        }
        let filters = match entry.get("device-filter") {
            Some(Value::Array(filters)) => filters.iter().map(scalar).collect(),
            Some(Value::String(any)) if any.is_empty() => Vec::new(),
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

    fn left_out(&mut self, field: String, found: Option<&Value>, reason: &str) {
        let value = found.map(scalar).unwrap_or_default();
        self.lose(field, &value, reason, "correct it; the entry is left out");
    }

    /// The layout of a card in MIG mode.
    fn partitions(&mut self, devices: Option<&Value>, at: &Place<'_>) -> Option<String> {
        let empty = Map::new();
        let devices = match devices {
            None | Some(Value::Null) => &empty,
            Some(Value::Object(devices)) => devices,
            other => {
                let reason = "it is no map of profiles to numbers";
                self.left_out(at.field("mig-devices"), other, reason);
                return None;
            }
        };
        let mut pieces = Vec::new();
        for (profile, count) in devices {
            let plain = profile.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
            match count.as_u64() {
                Some(0) => {}
                Some(count) if plain && count <= INSTANCES_MAX => {
                    pieces.push(format!("\"{count}x{profile}\""));
                }
                _ => {
                    let field = at.field(&format!("mig-devices[{profile}]"));
                    self.left_out(field, Some(count), "it is no number of instances of a profile");
                    return None;
                }
            }
        }
        if pieces.is_empty() {
            return Some("layout = \"dynamic\"\n".to_owned());
        }
        Some(format!("layout = \"split\"\npartitions = [{}]\n", pieces.join(", ")))
    }
}
