//! From cards to what is written to the API server: a node of 8 H100 in layout `dynamic`, 208 devices.
//!
//! `offers` is the deciding half: layouts, devices, counters, order, slices. `rendered` is that and the JSON of all
//! slices; the promise is less than 5 ms for both together, and less than 200 KB. `checked` is our own check of them.

#![expect(clippy::expect_used, reason = "a bench without its cards must stop")]

use std::hint::black_box;

use aliquot_core::card::{Health, Inventory, Topology};
use aliquot_core::catalogue::{CardIdentity, Catalogue};
use aliquot_core::id::{CardUuid, ModelId, NodeName, PciAddress};
use aliquot_core::offer::validate::violations;
use aliquot_core::offer::{LayoutPolicy, ServerVersion, UsageHint, offers};
use aliquot_driver::manifest::Object;
use criterion::{Criterion, criterion_group, criterion_main};

fn eight_h100() -> Inventory {
    let catalogue = Catalogue::embedded();
    let id = ModelId::new("nvidia-h100-80gb-sxm").expect("a model name");
    let model = catalogue.model(&id).expect("H100 is in the catalogue");
    let card = |index: u32| {
        model.card(CardIdentity {
            uuid: CardUuid::new(format!("GPU-8f4e0a2b-77aa-4c1d-9e00-{index:012x}")).expect("a UUID"),
            index,
            product_name: None,
            memory: None,
            driver_version: "580.95.05".to_owned(),
            pci: PciAddress::new(format!("0000:{:02x}:00.0", 0x10 + index)).ok(),
            pcie_root: Some(format!("pci0000:{:02x}", index / 2)),
            numa_node: Some(index / 4),
            topology: Topology { nvlink_domain: Some("nvswitch-0".to_owned()), ..Topology::default() },
            mode: None,
            health: Health::Healthy,
            found: Vec::new(),
        })
    };
    Inventory { cards: (0..8).map(card).collect() }
}

fn benches(c: &mut Criterion) {
    let inventory = eight_h100();
    let node = NodeName::new("gpu-node-17").expect("a node name");
    let (policy, usage) = (LayoutPolicy::default(), UsageHint::default());
    let server = ServerVersion::with_default_gates(37, 0);
    let make = || offers(&node, black_box(&inventory), &policy, server, &usage);
    let render = |slices: &[_]| -> usize {
        slices.iter().map(|slice| Object::Slice(slice).json().to_string().len()).sum()
    };
    let made = make();
    assert_eq!(made.parts.len(), 208, "a card and 25 placements, eight times");
    let mut group = c.benchmark_group("8xH100");
    group.bench_function("offers", |b| b.iter(&make));
    group.bench_function("rendered", |b| b.iter(|| render(&make().slices)));
    group.bench_function("checked", |b| b.iter(|| violations(black_box(&made.slices))));
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
