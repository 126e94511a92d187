//! Manifests of other systems that share cards → Aliquot's, and what of them has no equivalent.
//!
//! ```text
//!   text ─▶ documents ─▶ configuration of a plugin or of mig-parted ──config──▶ layout policy
//!                   ├──▶ claims of NVIDIA's DRA driver ───────────────dra─────▶ the same claims on our classes
//!                   └──▶ any object with containers ──words──▶ amounts, wishes ──pod──▶ templates, or a class under
//!                                                                                  the old name and the Pod unchanged
//!                                                     ╲
//!                                                      ▶ losses: file, field, value, reason, remedy
//! ```
//!
//! What `vocabulary` knows is carried or named; nothing else of the input is touched. An amount that cannot be read,
//! or that contradicts another, leaves its container as it is.
//!
//! Invariants: no text makes this panic; the same input gives the same output; an object without a word about cards
//! comes out as it went in, comments and the order of keys aside.

mod amounts;
mod asker;
mod cards;
mod chips;
mod claims;
mod config;
mod conversion;
mod device_plugin;
mod dra;
mod expression;
mod gpus;
mod mig_parted;
mod names;
mod place;
mod pod;
mod pod_words;
mod rows;
mod vocabulary;
mod wishes;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::manifest::{DocumentError, Object, values};

pub use cards::{Cards, KnownCard};
use conversion::{Conversion, Owner, name_of, object_name};
pub use conversion::{ConvertError, Converted, Loss, Settings};
pub use rows::{ROWS, Row};
pub use vocabulary::System;
pub use words::is_about_cards;

use config::Taken;
use place::{Place, scalar};

/// One text to convert.
#[derive(Clone, Copy, Debug)]
pub struct Source<'t> {
    /// How losses name it.
    pub name: &'t str,
    /// The text.
    pub text: &'t str,
}

/// Converts texts together: objects of one may name objects of another.
///
/// # Errors
/// A text is not YAML or JSON, or has something that is neither an object nor a known configuration, or several named
/// configurations and none is selected.
pub fn convert(
    sources: &[Source<'_>],
    cards: &Cards<'_>,
    settings: &Settings,
) -> Result<Converted, ConvertError> {
    let mut conversion = Conversion {
        cards,
        settings,
        file: String::new(),
        done: Converted::default(),
        classes: BTreeMap::new(),
        served: BTreeSet::new(),
        names: BTreeMap::new(),
        replica: None,
        has_replicas: false,
    };
    let mut documents: Vec<(&str, Value)> = Vec::new();
    for source in sources {
        let fail = |error: DocumentError| ConvertError {
            file: source.name.to_owned(),
            what: format!("{error}; correct the file, or leave it out"),
        };
        documents.extend(values(source.text).map_err(fail)?.into_iter().map(|value| (source.name, value)));
    }
    for (_, document) in &documents {
        conversion.prepare(document);
    }
    for (file, document) in documents {
        file.clone_into(&mut conversion.file);
        conversion.document(document)?;
    }
    Ok(conversion.finish())
}

// === impl Conversion ===

impl Conversion<'_> {
    /// Notes what the conversion of other documents depends on.
    fn prepare(&mut self, document: &Value) {
        for item in document.get("items").and_then(Value::as_array).into_iter().flatten() {
            self.prepare(item);
        }
        self.replica = self.replica.or(self.resource_of_replicas(document));
        let kind = document.get("kind").and_then(Value::as_str);
        if kind == Some("DeviceClass")
            && let Some(resource) = document.pointer("/spec/extendedResourceName").and_then(Value::as_str)
        {
            self.served.insert(resource.to_owned());
        }
        if kind == Some("ResourceClaimTemplate") {
            let text = |key| document.get("metadata").and_then(|m| m.get(key)).and_then(Value::as_str);
            let namespace = text("namespace").unwrap_or_default().to_owned();
            self.names.entry(namespace).or_default().take(text("name").unwrap_or_default());
        }
    }

    fn document(&mut self, mut document: Value) -> Result<(), ConvertError> {
        let text = |key| document.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api, kind) = (text("apiVersion"), text("kind"));
        if kind.ends_with("List") && document.get("items").is_some_and(Value::is_array) {
            let items = document.get_mut("items").map(Value::take);
            let Some(Value::Array(items)) = items else { return Ok(()) };
            return items.into_iter().try_for_each(|item| self.document(item));
        }
        match self.configuration(&mut document)? {
            Taken::Nothing => {}
            Taken::Part => {
                self.done.documents.push(document);
                return Ok(());
            }
            Taken::All => return Ok(()),
        }
        let Value::Object(object) = &mut document else {
            return self.fail("found a document that is no object, expected manifests or a configuration");
        };
        if api.is_empty() || kind.is_empty() {
            return self.fail(
                "found an object without apiVersion and kind, expected a manifest, or the configuration of NVIDIA's \
                 device plugin or of mig-parted; check the file",
            );
        }
        let name = name_of(object);
        let named = format!("{kind} {name}");
        let place = Place::object(&named);
        let namespace = object.get("metadata").and_then(|m| m.get("namespace")).and_then(Value::as_str);
        let namespace = namespace.map(str::to_owned);
        let owner = Owner { name: &name, namespace: namespace.as_deref() };
        if api.starts_with("resource.k8s.io/") {
            self.device_object(object, &kind, &place);
        } else if kind == "ResourceQuota" {
            self.quota(object, &place);
        } else {
            self.pods_in(object, &place, &owner);
        }
        self.done.documents.push(document);
        Ok(())
    }

    /// Quotas of old resources.
    fn quota(&mut self, object: &Map<String, Value>, place: &Place<'_>) {
        let hard = object.get("spec").and_then(|spec| spec.get("hard")).and_then(Value::as_object);
        for (key, value) in hard.into_iter().flatten() {
            let name = key.strip_prefix("limits.").or_else(|| key.strip_prefix("requests.")).unwrap_or(key);
            let meaning = words::meaning(name);
            let only = self.settings.from;
            if meaning
                .is_some_and(|(system, unit)| only.is_none_or(|only| words::is_word_of(only, system, unit)))
            {
                self.lose(
                    place.field(&format!("spec.hard[{key}]")),
                    &scalar(value),
                    "a quota counts devices of a class, not their memory or cores",
                    "set share.aliquot.dev.deviceclass.resource.k8s.io/devices, or that of another class",
                );
            }
        }
    }

    fn finish(mut self) -> Converted {
        let mut classes: BTreeMap<String, Value> = std::mem::take(&mut self.classes)
            .into_iter()
            .map(|(name, class)| (name, Object::Class(&class).json()))
            .collect();
        let mut others = Vec::new();
        for document in &self.done.documents {
            if document.get("kind").and_then(Value::as_str) != Some("DeviceClass") {
                continue;
            }
            let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            if classes.remove(name).is_some_and(|ours| ours != *document) {
                others.push(name.to_owned());
            }
        }
        for name in others {
            let reason = "the input has another class of this name, which counts";
            let remedy = "compare it with that of `aliquot classes --legacy`, or leave it out";
            self.lose(
                Place::object("DeviceClass").field(&name),
                "a class for Pods that stay",
                reason,
                remedy,
            );
        }
        let mut documents: Vec<Value> = classes.into_values().collect();
        documents.append(&mut self.done.documents);
        Converted { documents, ..self.done }
    }
}

// === impl Loss ===
