//! Every built-in simulated node in every layout, as it would be published.

use std::collections::BTreeSet;

use aliquot_backend_sim::{Personality, SimNode};
use aliquot_core::card::Inventory;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::dra::{DeviceClass, Node, ResourceSlice};
use aliquot_core::offer::policy::{
    CardSelector, Glob, LayoutRule, Slot, SplitPiece, SplitPlace, SplitRecipe,
};
use aliquot_core::offer::{Layout, LayoutPolicy, ServerVersion, ShareTerms, UsageHint, classes, offers};
use aliquot_core::ports::DeviceBackend;
use aliquot_core::units::{Bytes, Cores};
use serde_json::{Map, Value, json};

use crate::generate::Random;

/// A node and what it offers.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Personality, layout and Kubernetes version, for messages.
    pub name: String,
    /// The node.
    pub node: Node,
    /// What it publishes.
    pub slices: Vec<ResourceSlice>,
    /// Classes of what it publishes.
    pub classes: Vec<DeviceClass>,
}

/// All scenes, for 1.36 and 1.37.
///
/// # Errors
///
/// A built-in node cannot be loaded or discovered; the message says which.
pub fn scenes() -> Result<Vec<Scene>, String> {
    let catalogue = Catalogue::embedded();
    let mut scenes = Vec::new();
    for personality in Personality::all() {
        let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", personality.name);
        let file = personality.load().map_err(|error| fail(&error))?;
        let node = SimNode::in_memory(&file, &catalogue).map_err(|error| fail(&error))?;
        let inventory = node.discover().map_err(|error| fail(&error))?;
        for (layout, policy) in policies(&inventory, &catalogue) {
            for minor in [36, 37] {
                let server = ServerVersion::with_default_gates(minor, 3);
                let offered = offers(node.name(), &inventory, &policy, server, &UsageHint::default());
                scenes.push(Scene {
                    name: format!("{} {layout} 1.{minor}", personality.name),
                    node: Node { name: node.name().to_string(), labels: node.labels().clone() },
                    classes: classes(&offered.slices),
                    slices: offered.slices,
                });
            }
        }
    }
    Ok(scenes)
}

// === impl Scene ===

impl Scene {
    /// Random claims for what this node offers, as the JSON of the API: parts, shares of any size, one or the other,
    /// and several that belong together.
    #[must_use]
    pub fn claims(&self, random: &mut Random, count: usize) -> Vec<Value> {
        if self.classes.is_empty() {
            return Vec::new();
        }
        (0..count).map(|number| self.claim(random, number)).collect()
    }

    fn claim(&self, random: &mut Random, number: usize) -> Value {
        let mut devices = json!({});
        if random.percent(25) {
            let alternatives: Vec<Value> = (0..random.between(2, 3))
                .map(|index| {
                    let mut ask = self.ask(random);
                    ask["name"] = json!(format!("s{index}"));
                    ask
                })
                .collect();
            devices["requests"] = json!([{"name": "r", "firstAvailable": alternatives}]);
        } else {
            let requests: Vec<Value> = (0..*random.pick(&[1, 1, 1, 2]))
                .map(|index| json!({"name": format!("r{index}"), "exactly": self.ask(random)}))
                .collect();
            devices["requests"] = json!(requests);
        }
        if random.percent(20) {
            let attribute =
                *random.pick(&["aliquot.dev/parentUUID", "aliquot.dev/model", "aliquot.dev/hccsGroup"]);
            devices["constraints"] = json!([{"matchAttribute": attribute}]);
        }
        let metadata =
            json!({"name": format!("claim-{number}"), "namespace": "default", "uid": random.uuid()});
        json!({"metadata": metadata, "spec": {"devices": devices}})
    }

    fn ask(&self, random: &mut Random) -> Value {
        let mut ask = json!({"deviceClassName": random.pick(&self.classes).name});
        if random.percent(15) {
            ask["count"] = json!(2);
        }
        let mut capacity = Map::new();
        if random.percent(60) {
            let memory = *random.pick(&["512Mi", "1Gi", "1500Mi", "5Gi", "8G", "10Gi", "16Gi", "1"]);
            capacity.insert("memory".to_owned(), json!(memory));
        }
        if random.percent(30) {
            capacity.insert("cores".to_owned(), json!(*random.pick(&["1", "10", "25", "50", "100"])));
        }
        if !capacity.is_empty() {
            ask["capacity"] = json!({"requests": capacity});
        }
        ask
    }
}

/// Each layout for all cards, by name.
fn policies(inventory: &Inventory, catalogue: &Catalogue) -> Vec<(&'static str, LayoutPolicy)> {
    let terms = ShareTerms::default();
    let slots = |name: &str, mib: u64, percent: u8, copies: u32| Slot {
        name: name.to_owned(),
        memory: Bytes::from_mib(mib).unwrap_or(Bytes::MIB),
        cores: Cores::new(percent).unwrap_or(Cores::NONE),
        copies,
    };
    let everywhere = |layout: Layout| LayoutPolicy { default: layout, ..LayoutPolicy::default() };
    vec![
        ("auto", everywhere(Layout::Auto(terms.clone()))),
        ("whole", everywhere(Layout::Whole)),
        ("shared", everywhere(Layout::Shared(terms.clone()))),
        (
            "slots",
            everywhere(Layout::Slots(vec![slots("small", 2_048, 10, 3), slots("large", 4_096, 20, 2)])),
        ),
        ("split", split(inventory, catalogue, &terms)),
        ("dynamic", everywhere(Layout::Dynamic(terms))),
    ]
}

/// Two of the first template of each model that has templates; the whole card for the rest.
fn split(inventory: &Inventory, catalogue: &Catalogue, terms: &ShareTerms) -> LayoutPolicy {
    let models: BTreeSet<_> = inventory.cards.iter().map(|card| card.model.clone()).collect();
    let rules = models
        .into_iter()
        .filter_map(|model| {
            let template = catalogue.model(&model)?.table()?.templates.first()?.name.clone();
            let piece = SplitPiece { template, place: SplitPlace::Anywhere { copies: 2 } };
            let recipe = Some(SplitRecipe { pieces: vec![piece] });
            let selector = CardSelector { model: Some(Glob(model.to_string())), ..CardSelector::default() };
            Some(LayoutRule { selector, layout: Layout::Split { recipe, terms: terms.clone() } })
        })
        .collect();
    LayoutPolicy { rules, default: Layout::Whole, ..LayoutPolicy::default() }
}
