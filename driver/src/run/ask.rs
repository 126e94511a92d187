//! The request of a local run, as a claim of the device API.

use std::collections::BTreeMap;

use aliquot_core::dra::{
    Access, AllocationMode, DeviceClass, DeviceRequest, ExactRequest, RequestConfig, RequestKind,
    ResourceClaim, SubRequest,
};
use aliquot_core::grant::ShareSettings;
use aliquot_core::id::{CardUuid, ClaimUid, ModelId, TemplateName, Vendor};
use aliquot_core::offer::{CAPACITY_CORES, CAPACITY_MEMORY, DRIVER};
use aliquot_core::quantity::{Format, Quantity};
use aliquot_core::units::{Bytes, Cores};

use crate::prepare::recorded;

/// Namespace of claims without a cluster.
pub const NAMESPACE: &str = "local";
/// Class of such claims: every device of ours.
const CLASS: &str = "local.aliquot.dev";
/// Most alternatives of one request, as the device API has it.
const ALTERNATIVES_MAX: usize = 8;

/// The request of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Vendor of the card: the command gets that vendor's libraries.
    pub vendor: Vendor,
    /// Acceptable cards.
    pub on: On,
    /// Acceptable devices, best first; at least one.
    pub alternatives: Vec<Alternative>,
    /// How its limits are enforced.
    pub settings: ShareSettings,
}

/// Acceptable cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    /// Every one.
    Any,
    /// This one.
    Card(CardUuid),
    /// The cards that the calling user may use.
    AnyOf(Vec<CardUuid>),
}

/// One acceptable device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Of a card of this model; `None`: of any.
    pub model: Option<ModelId>,
    /// A partition of this template; `None`: of the card itself.
    pub template: Option<TemplateName>,
    /// Memory; `None`: all of it.
    pub memory: Option<Bytes>,
    /// Compute; `None`: the device's default.
    pub cores: Option<Cores>,
}

/// The device class of local runs' claims.
#[must_use]
pub fn class() -> DeviceClass {
    DeviceClass {
        name: CLASS.to_owned(),
        selectors: vec![format!("device.driver == \"{DRIVER}\"")],
        config: Vec::new(),
        extended_resource_name: None,
        extended_resource_capacity: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

// === impl Ask ===

impl Ask {
    /// The request as a claim.
    #[must_use]
    pub fn claim(&self, name: &str, uid: &ClaimUid) -> ResourceClaim {
        let mut requests = self.alternatives.iter().take(ALTERNATIVES_MAX).map(|a| self.request(a));
        let kind = match (requests.next(), requests.next()) {
            (Some(only), None) => RequestKind::Exactly(only),
            (first, second) => {
                let all = first.into_iter().chain(second).chain(requests).enumerate();
                let named = all.map(|(i, request)| SubRequest { name: format!("choice-{i}"), request });
                RequestKind::FirstAvailable(named.collect())
            }
        };
        let config = recorded(self.settings).map(|opaque| RequestConfig { requests: Vec::new(), opaque });
        ResourceClaim {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            uid: uid.to_string(),
            requests: vec![DeviceRequest { name: "run".to_owned(), kind }],
            constraints: Vec::new(),
            config: config.into_iter().collect(),
            allocation: None,
        }
    }

    fn request(&self, alternative: &Alternative) -> ExactRequest {
        let is = |attribute: &str, value: &str| {
            format!("device.attributes[\"{DRIVER}\"].{attribute} == \"{value}\"")
        };
        let mut selectors = vec![is("vendor", self.vendor.as_str())];
        match &alternative.template {
            None => selectors.push(is("type", "card")),
            Some(template) => {
                selectors.push(is("type", "partition"));
                selectors.push(is("profile", template.as_str()));
            }
        }
        match &self.on {
            On::Any => {}
            On::Card(card) => selectors.push(is("parentUUID", card.as_str())),
            On::AnyOf(cards) => {
                let cards: Vec<String> = cards.iter().map(|card| format!("\"{card}\"")).collect();
                let listed = cards.join(", ");
                selectors.push(format!("device.attributes[\"{DRIVER}\"].parentUUID in [{listed}]"));
            }
        }
        selectors.extend(alternative.model.as_ref().map(|model| is("model", model.as_str())));
        let memory = alternative.memory.map(|m| (CAPACITY_MEMORY.to_owned(), m.quantity()));
        let percent = |c: Cores| Quantity::from_units(i64::from(c.percent()), Format::DecimalSi);
        let cores = alternative.cores.map(|c| (CAPACITY_CORES.to_owned(), percent(c)));
        ExactRequest {
            device_class: CLASS.to_owned(),
            selectors,
            mode: AllocationMode::ExactCount(1),
            access: Access::Normal,
            tolerations: Vec::new(),
            capacity: memory.into_iter().chain(cores).collect(),
        }
    }
}
