//! What nodes publish of a model under policy and version, and what they would publish instead.

use std::collections::BTreeSet;

use aliquot_core::dra::{AttributeValue, DeviceClass, Node, ResourceSlice};
use aliquot_core::id::{ModelId, TemplateName};
use aliquot_core::offer::{LayoutKind, LayoutPolicy, ServerVersion, classes};

use super::super::failure::Failure;
use super::super::layouts::fits;
use super::super::nodes::{Fleet, FleetNode};
use super::draft::PartDraft;
use crate::manifest::made_up_uid;

/// What one node publishes of a model.
pub(super) struct Published {
    slices: Vec<ResourceSlice>,
    classes: Vec<DeviceClass>,
    node: Node,
    server: ServerVersion,
    /// Layouts of the cards of the model.
    pub(super) layouts: BTreeSet<LayoutKind>,
}

// === impl Published ===

impl Published {
    /// What publishes cards of the model: each node that has some, or without nodes one with a single card.
    pub(super) fn of(model: &ModelId, fleet: &Fleet) -> Result<Vec<Self>, Failure> {
        if fleet.nodes.is_empty() {
            let one = Self::under(model, fleet.policy.clone(), fleet.server, fleet)?;
            return Ok(one.into_iter().collect());
        }
        let has = |node: &&FleetNode| node.inventory.cards.iter().any(|card| card.model == *model);
        let mut seen: Vec<&FleetNode> = Vec::new();
        for node in fleet.nodes.iter().filter(has) {
            // Copies of a node publish the same.
            if !seen.iter().any(|known| std::rc::Rc::ptr_eq(&known.offers, &node.offers)) {
                seen.push(node);
            }
        }
        Ok(seen.into_iter().map(|node| Self::on(node, model, fleet.server)).collect())
    }

    /// What a node with one card of the model publishes under a policy.
    pub(super) fn under(
        model: &ModelId,
        policy: LayoutPolicy,
        server: ServerVersion,
        fleet: &Fleet,
    ) -> Result<Option<Self>, Failure> {
        let Some(model) = fleet.catalogue.model(model) else { return Ok(None) };
        let one = fleet.card_of(model, policy, server)?;
        Ok(one.nodes.first().map(|node| Self::on(node, &model.id, server)))
    }

    fn on(node: &FleetNode, model: &ModelId, server: ServerVersion) -> Self {
        let of_model =
            |index: u32| node.inventory.cards.iter().any(|c| c.index == index && c.model == *model);
        let cards = node.offers.cards.iter().filter(|card| of_model(card.index));
        let name = AttributeValue::String(model.to_string());
        let mut slices = node.slices.clone();
        for slice in &mut slices {
            slice.devices.retain(|device| device.attributes.get("model") == Some(&name));
        }
        Self {
            classes: classes(&slices),
            slices,
            node: node.as_node(),
            server,
            layouts: cards.filter_map(|card| card.layout).collect(),
        }
    }

    /// The first class that will do, of those for what is published.
    pub(super) fn class(&self, will_do: impl Fn(&&DeviceClass) -> bool) -> Option<&DeviceClass> {
        self.classes.iter().find(will_do)
    }

    /// Whether there is a partition of the template.
    pub(super) fn has(&self, template: &TemplateName) -> bool {
        let profile = AttributeValue::String(template.to_string());
        let mut devices = self.slices.iter().flat_map(|slice| &slice.devices);
        devices.any(|device| device.attributes.get("profile") == Some(&profile))
    }

    /// Whether a claim for one of the part fits.
    pub(super) fn places(&self, draft: &PartDraft) -> bool {
        let name = "part".to_owned();
        let claim =
            draft.spec(1).claim("default".to_owned(), name.clone(), made_up_uid("default", &name), None);
        fits(self.slices.clone(), vec![draft.class.clone()], self.node.clone(), self.server, &[claim])
    }
}
