//! Requests of a container as a claim template in the API's form.

use std::collections::BTreeMap;

use aliquot_core::dra::{
    Access, AllocationMode, ConstraintRule, DeviceConstraint, DeviceRequest, ExactRequest, OpaqueConfig,
    RequestConfig, RequestKind, SubRequest,
};
use aliquot_core::offer::{CAPACITY_CORES, CAPACITY_MEMORY, DRIVER};
use aliquot_core::quantity::{Format, Quantity};
use aliquot_core::units::Bytes;
use serde_json::{Value, json};

use super::Owner;
use crate::manifest::{ClaimSpec, ClaimTemplate, Object};

/// Most alternatives of one request that Kubernetes takes.
pub(super) const ALTERNATIVES_MAX: usize = 8;

/// One request.
pub(super) struct Asked {
    /// Its name, and that of the claim in the Pod.
    pub(super) name: String,
    /// Number of devices.
    pub(super) count: u32,
    /// What serves, the first choice first; never empty.
    pub(super) alternatives: Vec<Alternative>,
    /// Settings of a share, by field.
    pub(super) settings: BTreeMap<&'static str, &'static str>,
    /// Whether each device is on a card of its own.
    pub(super) spread: CardSpread,
    /// Attribute that all devices have with one value.
    pub(super) same: Option<String>,
}

/// On which cards the devices of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CardSpread {
    /// Each on a card of its own.
    Distinct,
    /// Wherever they fit.
    Any,
}

/// One way to serve a request.
pub(super) struct Alternative {
    /// Name, where there are several.
    pub(super) name: String,
    pub(super) class: String,
    pub(super) selectors: Vec<String>,
    pub(super) capacity: BTreeMap<String, Quantity>,
}

/// The capacity of a share; no memory is all of the card.
pub(super) fn capacity(memory: Option<Bytes>, cores: u8) -> BTreeMap<String, Quantity> {
    let percent = Quantity::from_units(i64::from(cores), Format::DecimalSi);
    let mut capacity = BTreeMap::from([(CAPACITY_CORES.to_owned(), percent)]);
    if let Some(memory) = memory {
        capacity.insert(CAPACITY_MEMORY.to_owned(), memory.quantity());
    }
    capacity
}

// === impl Asked ===

impl Asked {
    /// The template that makes this claim.
    pub(super) fn template(&self, owner: &Owner<'_>, name: &str) -> Value {
        let exact = |one: &Alternative| ExactRequest {
            device_class: one.class.clone(),
            selectors: one.selectors.clone(),
            mode: AllocationMode::ExactCount(self.count),
            access: Access::Normal,
            tolerations: Vec::new(),
            capacity: one.capacity.clone(),
        };
        let kind = match self.alternatives.as_slice() {
            [only] => RequestKind::Exactly(exact(only)),
            several => {
                let sub = |one: &Alternative| SubRequest { name: one.name.clone(), request: exact(one) };
                RequestKind::FirstAvailable(several.iter().map(sub).collect())
            }
        };
        let mut rules = Vec::new();
        if self.count > 1 && self.spread == CardSpread::Distinct {
            rules.push(ConstraintRule::Distinct(format!("{DRIVER}/parentUUID")));
        }
        rules.extend(self.same.iter().filter(|_| self.count > 1).cloned().map(ConstraintRule::Match));
        let constraint = |rule| DeviceConstraint { requests: vec![self.name.clone()], rule };
        let spec = ClaimSpec {
            requests: vec![DeviceRequest { name: self.name.clone(), kind }],
            constraints: rules.into_iter().map(constraint).collect(),
            config: self.config().into_iter().collect(),
        };
        let namespace = owner.namespace.unwrap_or_default().to_owned();
        let template = ClaimTemplate { namespace, name: name.to_owned(), spec };
        let mut json = Object::Template(&template).json();
        if owner.namespace.is_none()
            && let Some(metadata) = json.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.remove("namespace");
        }
        json
    }

    fn config(&self) -> Option<RequestConfig> {
        if self.settings.is_empty() {
            return None;
        }
        let mut parameters = json!({ "apiVersion": "aliquot.dev/v1", "kind": "ShareConfig" });
        for (field, value) in &self.settings {
            parameters[*field] = json!(value);
        }
        let opaque = OpaqueConfig { driver: DRIVER.to_owned(), parameters: parameters.to_string() };
        Some(RequestConfig { requests: vec![self.name.clone()], opaque })
    }
}
