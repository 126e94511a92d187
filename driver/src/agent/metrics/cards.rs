//! Metrics of cards and of what lies on them.

use aliquot_core::card::{Card, Health};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{HeldClaim, Labels, Ratio, count, whole};

pub(super) fn of_cards(registry: &mut Registry, cards: &[Card], claims: &[HeldClaim]) {
    type ByCard = Family<Labels, Gauge>;
    let (limit, allocated, shared, healthy): (ByCard, ByCard, ByCard, ByCard) = Default::default();
    let (cores, whole_card): (Family<Labels, Ratio>, Family<Labels, Ratio>) = Default::default();
    for card in cards {
        let labels = card_labels(card);
        let grants = || claims.iter().flat_map(|claim| &claim.grants).filter(|grant| grant.card == card.uuid);
        let memory = grants().fold(0_u64, |sum, grant| sum.saturating_add(grant.memory.0));
        let percent: u32 = grants().map(|grant| u32::from(grant.compute(card).percent())).sum();
        limit.get_or_create(&labels).set(whole(card.memory.0));
        whole_card.get_or_create(&labels).set(1.0);
        allocated.get_or_create(&labels).set(whole(memory));
        cores.get_or_create(&labels).set(f64::from(percent) / 100.0);
        shared.get_or_create(&labels).set(count(grants().count()));
        healthy.get_or_create(&labels).set(i64::from(card.health == Health::Healthy));
    }
    registry.register("gpu_memory_limit_bytes", "Memory of the card", limit);
    registry.register("gpu_memory_allocated_bytes", "Memory of the card that claims hold", allocated);
    registry.register("gpu_core_limit_ratio", "Compute of the card: 1", whole_card);
    registry.register("gpu_core_allocated_ratio", "Compute of the card that claims hold", cores);
    registry.register("gpu_shared_count", "Devices and shares of the card that claims hold", shared);
    registry.register("gpu_healthy", "1: the card takes new claims", healthy);
}

fn card_labels(card: &Card) -> Labels {
    vec![
        ("UUID", card.uuid.to_string()),
        ("modelName", card.product_name.clone()),
        ("gpu", card.index.to_string()),
    ]
}
