use super::*;
use crate::card::Topology;
use crate::catalogue::{CardIdentity, Catalogue};

use crate::id::{ModelId, PciAddress};

/// A card of the catalogue in a slot of the node.
pub(super) fn card(model: &str, index: u32) -> Card {
    let catalogue = Catalogue::embedded();
    let model = catalogue.model(&ModelId::new(model).unwrap()).unwrap_or_else(|| panic!("no model {model}"));
    model.card(CardIdentity {
        uuid: CardUuid::new(format!("GPU-8f4e0a2b-77aa-4c1d-9e00-{index:012x}")).unwrap(),
        index,
        product_name: None,
        memory: None,
        driver_version: "580.95.05".to_owned(),
        pci: Some(PciAddress::new(format!("0000:{:02x}:00.0", 0x10 + index)).unwrap()),
        pcie_root: Some(format!("pci0000:{:02x}", index / 2)),
        numa_node: Some(index / 4),
        topology: Topology { nvlink_domain: Some("0".to_owned()), ..Topology::default() },
        mode: None,
        health: Health::Healthy,
        found: Vec::new(),
    })
}

pub(super) fn cards(model: &str, count: u32) -> Inventory {
    Inventory { cards: (0..count).map(|index| card(model, index)).collect() }
}

pub(super) fn node() -> NodeName {
    NodeName::new("node-1").unwrap()
}

pub(super) const V135: ServerVersion = ServerVersion::with_default_gates(35, 4);
pub(super) const V136: ServerVersion = ServerVersion::with_default_gates(36, 3);
pub(super) const V137: ServerVersion = ServerVersion::with_default_gates(37, 0);

fn offered(inventory: &Inventory, policy: &str, server: ServerVersion) -> Offers {
    let policy = text::parse(policy).unwrap();
    offers(&node(), inventory, &policy, server, &UsageHint::default())
}

fn devices(offers: &Offers) -> Vec<&crate::dra::Device> {
    offers.slices.iter().flat_map(|slice| &slice.devices).collect()
}

#[test]
fn auto_is_what_serves_best_on_each_server() {
    let h100 = cards("nvidia-h100-80gb-sxm", 1);
    let t4 = cards("nvidia-t4-16gb", 1);
    let npu = cards("huawei-310p-24gb", 1);
    for (inventory, server, layout, count) in [
        (&h100, V137, LayoutKind::Dynamic, 26),
        (&h100, V136, LayoutKind::Shared, 1),
        (&h100, V135, LayoutKind::Whole, 1),
        (&t4, V137, LayoutKind::Shared, 1),
        (&t4, V135, LayoutKind::Whole, 1),
        (&npu, V136, LayoutKind::Whole, 1),
        (&npu, V137, LayoutKind::Dynamic, 33),
    ] {
        let offers = offered(inventory, "", server);
        let outcome = &offers.cards[0];
        assert_eq!((outcome.layout, outcome.devices), (Some(layout), count), "{server} {outcome:?}");
        assert_eq!(devices(&offers).len(), count);
        assert!(offers.problems.is_empty() && outcome.problems.is_empty(), "{offers:?}");
    }
}
