//! Metrics of cards and of what lies on them.

use aliquot_core::card::{Card, Health};
use aliquot_core::ledger::{CardReport, Holder, TemplateRoom};
use aliquot_core::partition::Part;
use aliquot_core::ports::LivePartition;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::readings::{Labels, NodeReadings, Ratio, count, whole};
use crate::agent::card_figures::CardFigures;
use crate::agent::store::{HeldClaim, NodeView};

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

/// What drivers report.
pub(super) fn of_drivers(registry: &mut Registry, cards: &[Card], figures: &CardFigures) {
    type ByCard = Family<Labels, Gauge>;
    let (used, outside, code, since): (ByCard, ByCard, ByCard, ByCard) = Default::default();
    let busy: Family<Labels, Ratio> = Family::default();
    for card in cards {
        let labels = card_labels(card);
        if let Some(of_card) = figures.used.get(&card.uuid) {
            used.get_or_create(&labels).set(whole(of_card.in_use.0));
            if let Some(bytes) = of_card.outside {
                outside.get_or_create(&labels).set(whole(bytes.0));
            }
            if let Some(percent) = of_card.busy_percent {
                busy.get_or_create(&labels).set(f64::from(percent) / 100.0);
            }
        }
        if let Some(error) = figures.errors.get(&card.uuid) {
            code.get_or_create(&labels).set(whole(error.code));
            since.get_or_create(&labels).set(whole(error.at.0));
        }
    }
    registry.register("gpu_memory_used_bytes", "Memory in use, as the driver reports it", used);
    let about = "Memory of processes that have no grant of the card";
    registry.register("gpu_memory_outside_grants_bytes", about, outside);
    registry.register("gpu_utilization_ratio", "Part of the driver's last period with work", busy);
    let about = "Newest error that the driver reported: an Xid, or the number of another vendor";
    registry.register("gpu_last_error_code", about, code);
    let about = "When that error was first reported, in Unix time";
    registry.register("gpu_last_error_timestamp_seconds", about, since);
}

/// How cards are laid out, what lies on them and what still fits.
pub(super) fn of_layouts(registry: &mut Registry, read: &NodeReadings<'_>) {
    let families = LayoutFamilies::default();
    if let Some(view) = read.view {
        for card in &view.inventory.cards {
            let labels = card_labels(card);
            let outcome = view.offers.cards.iter().find(|outcome| outcome.card == card.uuid);
            if let Some(layout) = outcome.and_then(|outcome| outcome.layout) {
                families.layout.get_or_create(&with(&labels, &[("layout", layout.to_string())])).set(1);
            }
            if let Some(report) = view.cards.iter().find(|report| report.card == card.uuid) {
                families.room(&labels, report);
                families.partitions(&labels, report, (view, read.figures));
            }
        }
    }
    families.register(registry);
}

/// Families of what lies on cards.
#[derive(Default)]
struct LayoutFamilies {
    layout: Family<Labels, Gauge>,
    room: Family<Labels, Gauge>,
    share_memory: Family<Labels, Gauge>,
    share_cores: Family<Labels, Ratio>,
    partition: Family<Labels, Gauge>,
    limit: Family<Labels, Gauge>,
    used: Family<Labels, Gauge>,
}

// === impl LayoutFamilies ===

impl LayoutFamilies {
    fn room(&self, labels: &Labels, report: &CardReport) {
        for TemplateRoom { template, together, .. } in &report.room {
            let labels = with(labels, &[("template", template.to_string())]);
            self.room.get_or_create(&labels).set(i64::from(*together));
        }
        if let Some((memory, cores)) = report.share_room {
            self.share_memory.get_or_create(labels).set(whole(memory.0));
            self.share_cores.get_or_create(labels).set(f64::from(cores.percent()) / 100.0);
        }
    }

    fn partitions(&self, labels: &Labels, report: &CardReport, (view, figures): (&NodeView, &CardFigures)) {
        for part in &report.in_use {
            let Part::Partition { template, placement } = &part.part else { continue };
            let is_it = |live: &&LivePartition| live.at.card == report.card && live.at.part() == part.part;
            let live = view.partitions.iter().find(is_it);
            let is_ours = part.holders.iter().any(|holder| matches!(holder, Holder::Claim { .. }));
            let labels = with(
                labels,
                &[
                    ("GPU_I_ID", live.map(|live| live.handle.id.to_string()).unwrap_or_default()),
                    ("GPU_I_PROFILE", template.to_string()),
                    ("placement", placement.to_string()),
                    ("holder", if is_ours { "claim" } else { "other" }.to_owned()),
                ],
            );
            self.partition.get_or_create(&labels).set(1);
            self.limit.get_or_create(&labels).set(whole(part.memory.0));
            if let Some(used) = live.and_then(|live| figures.used.get(&live.handle.uuid)) {
                self.used.get_or_create(&labels).set(whole(used.in_use.0));
            }
        }
    }

    fn register(self, registry: &mut Registry) {
        registry.register("gpu_layout", "1: the layout in which the card is published", self.layout);
        let about = "Partitions of the template that still fit together";
        registry.register("gpu_template_room", about, self.room);
        let about = "Memory that further shares of the card can have";
        registry.register("gpu_share_room_bytes", about, self.share_memory);
        let about = "Compute that further shares of the card can have";
        registry.register("gpu_share_room_ratio", about, self.share_cores);
        registry.register("gpu_partition", "1: the partition is on the card", self.partition);
        registry.register("gpu_partition_memory_limit_bytes", "Memory of the partition", self.limit);
        let about = "Memory in use in the partition, as the driver reports it";
        registry.register("gpu_partition_memory_used_bytes", about, self.used);
    }
}

/// Labels of a card, and more.
fn with(labels: &Labels, more: &[(&'static str, String)]) -> Labels {
    labels.iter().chain(more).cloned().collect()
}

fn card_labels(card: &Card) -> Labels {
    vec![
        ("UUID", card.uuid.to_string()),
        ("modelName", card.product_name.clone()),
        ("gpu", card.index.to_string()),
    ]
}
