//! What the pure parts cost: reading the catalogue, finding the counters that bind, booking on the ledger, recounting it.

use std::hint::black_box;

use aliquot_core::card::{Card, Health, Inventory, Topology};
use aliquot_core::catalogue::{CardIdentity, Catalogue};
use aliquot_core::counters::binding_counters;
use aliquot_core::ledger::{Holding, Ledger, Take};
use aliquot_core::partition::{Part, PlacementName};
use criterion::{Criterion, criterion_group, criterion_main};

fn node(catalogue: &Catalogue) -> Option<Vec<Card>> {
    let model = catalogue.model(&"nvidia-h100-80gb-sxm".parse().ok()?)?;
    (0..8)
        .map(|index| {
            Some(model.card(CardIdentity {
                uuid: format!("GPU-{index}").parse().ok()?,
                index,
                product_name: None,
                memory: None,
                driver_version: "580.1".to_owned(),
                pci: None,
                pcie_root: None,
                numa_node: None,
                topology: Topology::default(),
                mode: None,
                health: Health::Healthy,
                found: Vec::new(),
            }))
        })
        .collect()
}

/// Sevens of 1g on all cards but for the last placement of the last one, and a holding for that.
fn almost_full(catalogue: &Catalogue) -> Option<(Ledger, Holding)> {
    let cards = node(catalogue)?;
    let (mut ledger, _) = Ledger::new(&Inventory { cards: cards.clone() }, catalogue);
    let mut last = None;
    for card in &cards {
        for start in 0..7 {
            let holding = Holding {
                claim: format!("claim-{}-{start}", card.index).parse().ok()?,
                request: "gpu".to_owned(),
                share: None,
                card: card.uuid.clone(),
                part: Part::Partition {
                    template: "1g.10gb".parse().ok()?,
                    placement: PlacementName(start.to_string()),
                },
                take: Take::Exclusive,
            };
            ledger.hold(holding.clone()).ok()?;
            last = Some(holding);
        }
    }
    let last = last?;
    ledger.release(&last.claim);
    Some((ledger, last))
}

fn bench(c: &mut Criterion) {
    let catalogue = Catalogue::embedded();
    c.bench_function("catalogue: read all embedded models", |b| b.iter(Catalogue::embedded));
    for id in ["nvidia-h100-80gb-sxm", "nvidia-a100-40gb", "huawei-310p-24gb"] {
        let model = id.parse().ok().and_then(|id| catalogue.model(&id));
        if let Some(table) = model.and_then(|m| m.table()) {
            c.bench_function(&format!("binding counters: {id}"), |b| {
                b.iter(|| binding_counters(black_box(table)));
            });
        }
    }
    if let Some((mut ledger, last)) = almost_full(&catalogue) {
        c.bench_function("ledger: hold and release a 1g.10gb on 8 H100 with 55 held", |b| {
            b.iter(|| (ledger.hold(last.clone()).is_ok(), ledger.release(&last.claim).len()));
        });
        c.bench_function("ledger: recount 8 H100 with 55 held", |b| b.iter(|| ledger.invariants().is_ok()));
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
