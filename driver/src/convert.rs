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
mod cards;
mod chips;
mod claims;
mod config;
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
use std::fmt;

use aliquot_core::dra::DeviceClass;
use serde_json::{Map, Value};

use crate::manifest::{DocumentError, Object, values};
use crate::printable::{line, line_of};

pub use cards::{Cards, KnownCard};
pub use rows::{ROWS, Row};
pub use vocabulary::System;
pub use words::is_about_cards;

use config::Taken;
use names::Names;
use place::Place;

/// Most bytes of a value that a line shows.
const VALUE_BYTES_MAX: usize = 120;
/// Most bytes of a reason: it may name what the input has.
const REASON_BYTES_MAX: usize = 400;

/// One text to convert.
#[derive(Clone, Copy, Debug)]
pub struct Source<'t> {
    /// How losses name it.
    pub name: &'t str,
    /// The text.
    pub text: &'t str,
}

/// What the words alone do not say.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The only system whose words are read; `None`: all of them.
    pub from: Option<System>,
    /// Which of several named configurations.
    pub select: Option<String>,
    /// The MIG profile that `nvidia.com/gpu` stands for, under the plugin's strategy `single`.
    pub profile: Option<String>,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    /// Objects: classes, then the input with the claim templates of each object before it.
    pub documents: Vec<Value>,
    /// A layout policy, where the input has the configuration of a device plugin or of mig-parted.
    pub policy: Option<String>,
    /// What could not be carried, in the order of the input.
    pub losses: Vec<Loss>,
    /// What was carried in another form, in words.
    pub notes: Vec<String>,
}

/// A field that could not be carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// File.
    pub file: String,
    /// Object and path.
    pub field: String,
    /// What is there.
    pub value: String,
    /// Why it is not carried.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

/// Why an input cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct ConvertError {
    /// File.
    pub file: String,
    /// What is wrong, what was expected, what to do.
    pub what: String,
}

/// A conversion in progress.
struct Conversion<'c> {
    cards: &'c Cards<'c>,
    settings: &'c Settings,
    file: String,
    done: Converted,
    classes: BTreeMap<String, DeviceClass>,
    /// Resources that classes of the input stand for.
    served: BTreeSet<String>,
    /// Names of claim templates by namespace.
    names: BTreeMap<String, Names>,
    /// The resource of a replica of a card, where the input has the plugin's configuration.
    replica: Option<&'static str>,
    /// Whether the policy has slots already.
    has_replicas: bool,
}

/// The object that a Pod belongs to.
struct Owner<'o> {
    name: &'o str,
    namespace: Option<&'o str>,
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

    fn fail<T>(&self, what: &str) -> Result<T, ConvertError> {
        Err(ConvertError { file: self.file.clone(), what: what.to_owned() })
    }

    fn lose(&mut self, field: String, value: &str, reason: impl Into<String>, remedy: impl Into<String>) {
        self.done.losses.push(Loss {
            file: self.file.clone(),
            field,
            value: value.to_owned(),
            reason: reason.into(),
            remedy: remedy.into(),
        });
    }

    fn note(&mut self, field: &str, value: &str, becomes: &str) {
        let (file, value) = (line(&self.file), line_of(value, VALUE_BYTES_MAX));
        self.done.notes.push(format!("{file}: {field}: {value}: carried as {becomes}"));
    }

    /// Has a class printed, unless one of the input stands for its resource.
    fn class(&mut self, class: DeviceClass) {
        if class.extended_resource_name.as_ref().is_some_and(|name| self.served.contains(name)) {
            return;
        }
        self.classes.insert(class.name.clone(), class);
    }

    /// A name for a claim template that no other in the namespace has.
    fn free_name(&mut self, owner: &Owner<'_>, container: &str) -> String {
        let stem = match (owner.name, container) {
            ("", container) => container.to_owned(),
            (name, container) if container.is_empty() || container == name => name.to_owned(),
            (name, container) => format!("{name}-{container}"),
        };
        let stem = object_name(&stem);
        self.names.entry(owner.namespace.unwrap_or_default().to_owned()).or_default().free(&stem)
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

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, field, value, reason, remedy } = self;
        let [file, field] = [file, field].map(|text| line(text));
        let [reason, remedy] = [reason, remedy].map(|text| line_of(text, REASON_BYTES_MAX));
        let value = line_of(value, VALUE_BYTES_MAX);
        write!(f, "{file}: {field}: {value}: not carried: {reason}; {remedy}")
    }
}

/// The name of an object, or the stem of one that is generated.
fn name_of(object: &Map<String, Value>) -> String {
    let text = |key| object.get("metadata").and_then(|m| m.get(key)).and_then(Value::as_str);
    text("name").or_else(|| text("generateName")).unwrap_or_default().trim_end_matches('-').to_owned()
}

/// A text as the name of an object: lower-case letters, digits and dashes.
fn object_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = text.chars().map(plain).take(200).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "cards".to_owned() } else { name.to_owned() }
}

/// A scalar as it would be written, anything else as JSON.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
