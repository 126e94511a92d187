//! The same cards on another node: slices under its name, without working everything out again.
//!
//! A node's name stands in the names of its slices and pools, in where its devices are, and in the groups of its
//! topology. Everything else comes from the cards.

use std::collections::BTreeMap;

use super::Offers;
use super::attributes::{TOPOLOGY, on_node};
use super::names::{PoolKey, pool_name, slice_name};
use crate::card::Inventory;
use crate::dra::{AttributeValue, Device, DeviceAttributes, NodeSelection, ResourceSlice};
use crate::id::NodeName;

impl Offers {
    /// What a node of this name would publish that has the cards of `inventory`, from which these offers were made for
    /// the node `from`. The same as making its offers anew.
    #[must_use]
    pub fn slices_on(&self, inventory: &Inventory, from: &NodeName, to: &NodeName) -> Vec<ResourceSlice> {
        let groups = groups(inventory, from, to);
        let mut index_in: BTreeMap<PoolKey, usize> = BTreeMap::new();
        let mut slices = self.slices.clone();
        for slice in &mut slices {
            let key = PoolKey::of_name(&slice.pool.name);
            slice.pool.name = pool_name(to, &key);
            let index = index_in.entry(key.clone()).or_default();
            slice.name = slice_name(to, &key, *index);
            slice.node = NodeSelection::Name(to.as_str().to_owned());
            *index += 1;
            // A device that names no group is shared with the original.
            let named = |device: &Device| TOPOLOGY.iter().any(|name| device.attributes.contains_key(name));
            if !groups.is_empty() && slice.devices.iter().any(named) {
                let devices = slice.devices.iter_mut().filter(|device| named(device));
                devices.for_each(|device| rename(&mut device.attributes, &groups));
            }
        }
        slices
    }
}

/// Every group of the cards' topology, as the one node and as the other publishes it.
fn groups(inventory: &Inventory, from: &NodeName, to: &NodeName) -> BTreeMap<String, String> {
    let topologies = inventory.cards.iter().map(|card| &card.topology);
    let groups = topologies.flat_map(|t| [&t.card_id, &t.hccs_group, &t.nvlink_domain]).flatten();
    groups.map(|group| (on_node(from, group), on_node(to, group))).collect()
}

fn rename(attributes: &mut DeviceAttributes, groups: &BTreeMap<String, String>) {
    for name in TOPOLOGY {
        if let Some(AttributeValue::String(value)) = attributes.get(name)
            && let Some(new) = groups.get(value.as_str())
        {
            attributes.replace(name, AttributeValue::String(new.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::id::NodeName;
    use crate::offer::tests::{V136, V137, cards};
    use crate::offer::{LayoutPolicy, UsageHint, offers};

    #[test]
    fn copies_are_what_the_other_node_would_offer_itself() {
        let long = "n".repeat(63);
        let names = ["a", "node-1.example", "node-1", &format!("{long}.{long}.{long}.{}", &long[..60])];
        for inventory in
            [cards("nvidia-h100-80gb-sxm", 3), cards("nvidia-t4-16gb", 2), cards("huawei-310p-24gb", 9)]
        {
            for server in [V136, V137] {
                let of = |name: &str| {
                    let name = NodeName::new(name).unwrap();
                    let made =
                        offers(&name, &inventory, &LayoutPolicy::default(), server, &UsageHint::default());
                    (name, made)
                };
                for from in names {
                    let (from, original) = of(from);
                    for to in names {
                        let (to, anew) = of(to);
                        assert_eq!(original.slices_on(&inventory, &from, &to), anew.slices, "{from} as {to}");
                    }
                }
            }
        }
    }
}
