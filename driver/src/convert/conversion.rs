//! A conversion in progress: what it carries, and what it loses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aliquot_core::dra::DeviceClass;
use serde_json::{Map, Value};

use super::cards::Cards;
use super::names::Names;
use super::vocabulary::System;
use crate::printable::{line, line_of};

/// Most bytes of a value that a line shows.
const VALUE_BYTES_MAX: usize = 120;

/// Most bytes of a reason: it may name what the input has.
const REASON_BYTES_MAX: usize = 400;

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
pub(super) struct Conversion<'c> {
    pub(super) cards: &'c Cards<'c>,
    pub(super) settings: &'c Settings,
    pub(super) file: String,
    pub(super) done: Converted,
    pub(super) classes: BTreeMap<String, DeviceClass>,
    /// Resources that classes of the input stand for.
    pub(super) served: BTreeSet<String>,
    /// Names of claim templates by namespace.
    pub(super) names: BTreeMap<String, Names>,
    /// The resource of a replica of a card, where the input has the plugin's configuration.
    pub(super) replica: Option<&'static str>,
    /// Whether the policy has slots already.
    pub(super) has_replicas: bool,
}

/// The object that a Pod belongs to.
pub(super) struct Owner<'o> {
    pub(super) name: &'o str,
    pub(super) namespace: Option<&'o str>,
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
pub(super) fn name_of(object: &Map<String, Value>) -> String {
    let text = |key| object.get("metadata").and_then(|m| m.get(key)).and_then(Value::as_str);
    text("name").or_else(|| text("generateName")).unwrap_or_default().trim_end_matches('-').to_owned()
}

/// A text as the name of an object: lower-case letters, digits and dashes.
pub(super) fn object_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = text.chars().map(plain).take(200).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "cards".to_owned() } else { name.to_owned() }
}

// === impl Conversion ===

impl Conversion<'_> {
    pub(super) fn fail<T>(&self, what: &str) -> Result<T, ConvertError> {
        Err(ConvertError { file: self.file.clone(), what: what.to_owned() })
    }

    pub(super) fn lose(
        &mut self,
        field: String,
        value: &str,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.done.losses.push(Loss {
            file: self.file.clone(),
            field,
            value: value.to_owned(),
            reason: reason.into(),
            remedy: remedy.into(),
        });
    }

    pub(super) fn note(&mut self, field: &str, value: &str, becomes: &str) {
        let (file, value) = (line(&self.file), line_of(value, VALUE_BYTES_MAX));
        self.done.notes.push(format!("{file}: {field}: {value}: carried as {becomes}"));
    }

    /// Has a class printed, unless one of the input stands for its resource.
    pub(super) fn class(&mut self, class: DeviceClass) {
        if class.extended_resource_name.as_ref().is_some_and(|name| self.served.contains(name)) {
            return;
        }
        self.classes.insert(class.name.clone(), class);
    }

    /// A name for a claim template that no other in the namespace has.
    pub(super) fn free_name(&mut self, owner: &Owner<'_>, container: &str) -> String {
        let stem = match (owner.name, container) {
            ("", container) => container.to_owned(),
            (name, container) if container.is_empty() || container == name => name.to_owned(),
            (name, container) => format!("{name}-{container}"),
        };
        let stem = object_name(&stem);
        self.names.entry(owner.namespace.unwrap_or_default().to_owned()).or_default().free(&stem)
    }
}
