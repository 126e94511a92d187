//! A part before its template is written.

use std::collections::BTreeMap;

use aliquot_core::dra::{Access, AllocationMode, DeviceClass, DeviceRequest, ExactRequest, RequestKind};
use aliquot_core::fraction::{FractionChoice, FractionMatch};
use aliquot_core::id::ModelId;
use aliquot_core::offer::DRIVER;
use aliquot_core::quantity::Quantity;

use crate::manifest::{ClaimSpec, ClaimTemplate};

/// The request, as objects.
#[derive(Debug)]
pub(in crate::cli) struct RequestedPart {
    /// What it is, for people.
    pub(in crate::cli) about: String,
    /// The class; one that generated classes contain.
    pub(in crate::cli) class: DeviceClass,
    /// A template that asks for it.
    pub(in crate::cli) template: ClaimTemplate,
}

/// A part before its template is written.
#[derive(Debug)]
pub(super) struct PartDraft {
    pub(super) about: String,
    pub(super) class: DeviceClass,
    /// Models that the template selects; none where the class says enough.
    pub(super) models: Vec<ModelId>,
    pub(super) capacity: BTreeMap<String, Quantity>,
}

// === impl PartDraft ===

impl PartDraft {
    /// Whether one template serves both: they differ in their models alone. Partitions keep a template for each model.
    pub(super) fn takes(&self, other: &Self, found: &FractionMatch) -> bool {
        let models = self.models == other.models || !matches!(found.choice, FractionChoice::Templates(_));
        models && self.class.name == other.class.name && self.capacity == other.capacity
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.models.extend(
            other.models.into_iter().filter(|model| !self.models.contains(model)).collect::<Vec<_>>(),
        );
        if self.about != other.about {
            self.about = format!("{}; {}", self.about, other.about);
        }
    }

    /// What a claim for one of it asks for.
    pub(super) fn spec(&self, count: u32) -> ClaimSpec {
        let model = format!("device.attributes[\"{DRIVER}\"].model");
        let selector = match self.models.as_slice() {
            [] => None,
            [only] => Some(format!("{model} == \"{only}\"")),
            several => {
                let several: Vec<String> = several.iter().map(|id| format!("\"{id}\"")).collect();
                Some(format!("{model} in [{}]", several.join(", ")))
            }
        };
        let exact = ExactRequest {
            device_class: self.class.name.clone(),
            selectors: selector.into_iter().collect(),
            mode: AllocationMode::ExactCount(count),
            access: Access::Normal,
            tolerations: Vec::new(),
            capacity: self.capacity.clone(),
        };
        let request = DeviceRequest { name: "part".to_owned(), kind: RequestKind::Exactly(exact) };
        ClaimSpec { requests: vec![request], ..ClaimSpec::default() }
    }

    pub(super) fn finish(self, count: u32) -> RequestedPart {
        let name = self.class.name.strip_suffix(&format!(".{DRIVER}")).unwrap_or(&self.class.name);
        let template =
            ClaimTemplate { namespace: "default".to_owned(), name: name.to_owned(), spec: self.spec(count) };
        RequestedPart { about: self.about, class: self.class, template }
    }
}
