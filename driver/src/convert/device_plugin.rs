//! The configuration of NVIDIA's device plugin: replicas of cards as slots of a layout policy.

use serde_json::{Map, Value};

use super::amounts::WHOLE;
use super::config::{NamedCards, named_cards};
use super::{Conversion, Place, scalar};

/// Most slots of one kind on a card.
const SLOTS_MAX: u64 = 64;
/// Strategies of sharing, and what slots are instead.
const STRATEGIES: [(&str, &str); 2] = [
    ("timeSlicing", "time slicing has no memory limit, and a slot has"),
    ("mps", "MPS runs kernels side by side, and slots take turns; a slot has a fixed size"),
];

impl Conversion<'_> {
    pub(super) fn plugin(&mut self, config: &Map<String, Value>, place: &Place<'_>) {
        self.name_unknown(config, &["version", "flags", "resources", "sharing"], place);
        let map = |key| config.get(key).and_then(Value::as_object).into_iter().flatten();
        for (key, value) in map("flags") {
            self.flag(key, &scalar(value), place);
        }
        for (key, value) in map("resources") {
            if value.as_array().is_none_or(|resources| !resources.is_empty()) {
                let reason = "cards of some products have no resource name of their own";
                let remedy = "write a class with that extendedResourceName and a selector";
                self.lose(place.field(&format!("resources.{key}")), &scalar(value), reason, remedy);
            }
        }
        let place = place.below("sharing");
        for (key, value) in map("sharing") {
            let strategy = STRATEGIES.iter().find(|(known, _)| known == key);
            match (strategy, value) {
                (Some((_, reason)), Value::Object(sharing)) => {
                    self.sharing_strategy(sharing, reason, &place.below(key));
                }
                _ => {
                    let reason = "it is no strategy that is known";
                    self.lose(place.field(key), &scalar(value), reason, "correct it");
                }
            }
        }
    }

    fn flag(&mut self, key: &str, value: &str, place: &Place<'_>) {
        match (key, value) {
            ("migStrategy", "none" | "mixed") => {}
            ("migStrategy", _) => {
                let remedy = "convert Pods with --profile and the profile of the nodes";
                let reason = "under strategy `single` nvidia.com/gpu is an instance of one profile";
                self.lose(place.field("flags.migStrategy"), value, reason, remedy);
            }
            _ => {
                let reason = "it is a setting of the plugin itself";
                self.lose(place.field(&format!("flags.{key}")), value, reason, "see the chart's values");
            }
        }
    }

    fn sharing_strategy(&mut self, sharing: &Map<String, Value>, reason: &str, place: &Place<'_>) {
        let known = ["renameByDefault", "failRequestsGreaterThanOne", "resources"];
        self.name_unknown(sharing, &known, place);
        if let Some(value) = sharing.get("failRequestsGreaterThanOne").filter(|v| **v != Value::Bool(false)) {
            let reason = "a Pod gets as many slots as it asks for";
            let remedy = "limit the number by a policy of admission";
            self.lose(place.field("failRequestsGreaterThanOne"), &scalar(value), reason, remedy);
        }
        let resources = sharing.get("resources").and_then(Value::as_array);
        for (index, resource) in resources.into_iter().flatten().enumerate() {
            self.replicas(resource, reason, &place.item("resources", index));
        }
    }

    /// Replicas of a card as slots of equal size.
    fn replicas(&mut self, resource: &Value, reason: &str, at: &Place<'_>) {
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
        let Some(cards) = self.cards_of_replicas(resource, at) else { return };
        if std::mem::replace(&mut self.has_replicas, true) {
            let reason = "replicas of nvidia.com/gpu are there a second time";
            self.lose(at.field("replicas"), &found, reason, "leave one; the first counts");
            return;
        }
        if let Value::Object(resource) = resource {
            self.name_unknown(resource, &["name", "rename", "devices", "replicas"], at);
        }
        if let Some(rename) = resource.get("rename").filter(|name| **name != "nvidia.com/gpu.shared") {
            let reason = "the class of slots has the name nvidia.com/gpu or nvidia.com/gpu.shared";
            let remedy = "set its extendedResourceName";
            self.lose(at.field("rename"), &scalar(rename), reason, remedy);
        }
        self.slots(replicas, &cards, reason, at);
    }

    /// The line of a rule for the cards that are replicated; `None`: they cannot be told, and that was said.
    fn cards_of_replicas(&mut self, resource: &Value, at: &Place<'_>) -> Option<String> {
        let devices = resource.get("devices").filter(|devices| !devices.is_null());
        match devices.map(named_cards) {
            None | Some(Some(NamedCards::All)) => Some(String::new()),
            Some(Some(NamedCards::Indices(indices))) => {
                let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
                Some(format!("index = [{}]\n", indices.join(", ")))
            }
            Some(None) => {
                let value = devices.map(scalar).unwrap_or_default();
                let reason = "it is neither `all` nor a list of indices";
                let remedy = "write a rule for these cards; the resource is left out";
                self.lose(at.field("devices"), &value, reason, remedy);
                None
            }
        }
    }

    fn slots(&mut self, replicas: u64, cards: &str, reason: &str, at: &Place<'_>) {
        let found = replicas.to_string();
        let part = u32::try_from(u64::from(WHOLE) / replicas).unwrap_or(WHOLE);
        let sizes = self.cards.sizes(part, |_| true);
        if sizes.is_empty() {
            let reason = format!("{reason}: its size depends on the card model");
            let remedy = "add --cluster, or --node with a node that has the cards";
            self.lose(at.field("replicas"), &found, reason, remedy);
            return;
        }
        self.lose(at.field("replicas"), &found, reason, "check the sizes in the policy");
        for (number, size) in sizes.iter().enumerate() {
            let name = if number == 0 { "shared".to_owned() } else { format!("shared-{}", number + 1) };
            for model in &size.models {
                let rule = format!(
                    "[[rule]]\nmodel = \"{}\"\n{cards}layout = \"slots\"\nslots = [\"{name}\"]\n",
                    model.id
                );
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
