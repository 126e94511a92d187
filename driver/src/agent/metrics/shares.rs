//! Metrics of claims, and of the shares and partitions that they hold.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use aliquot_core::grant::Grant;
use aliquot_core::partition::Part;
use aliquot_core::units::Bytes;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::readings::{Labels, NodeReadings, Ratio, count, whole};
use crate::agent::card_figures::CardFigures;
use crate::agent::observe::{EnforcementState, ShareUse};
use crate::agent::store::{HeldClaim, NodeView};
use crate::kube::pod_names::PodNames;
use crate::ports::Truth;

pub(super) fn of_claims(registry: &mut Registry, held: &[HeldClaim]) {
    let (claims, devices): (Gauge, Gauge) = Default::default();
    claims.set(count(held.len()));
    devices.set(count(held.iter().map(|claim| claim.grants.len()).sum()));
    registry.register("dra_prepared_claims", "Claims in the journal", claims);
    registry.register("dra_prepared_devices", "Devices and shares of these claims", devices);
}

/// Families of shares, filled grant by grant.
#[derive(Default)]
struct ShareFamilies {
    limit: Family<Labels, Gauge>,
    cores: Family<Labels, Ratio>,
    used: Family<Labels, Gauge>,
    throttled: Family<Labels, Gauge>,
    enforced: Family<Labels, Gauge>,
    denied: Family<Labels, Counter>,
    seconds: Family<Labels, Counter<f64, AtomicU64>>,
}

pub(super) fn of_shares(registry: &mut Registry, read: &NodeReadings<'_>, pods: &PodNames) {
    let families = ShareFamilies::default();
    if let Some(view) = read.view {
        for claim in &view.claims {
            for grant in &claim.grants {
                let labels = share_labels(claim, grant, read.figures.container(grant), pods);
                // A label that comes and goes would begin a counter anew at its old value, and hide the growth before.
                let of_counters = share_labels(claim, grant, "", pods);
                families.granted(&labels, grant, view);
                let of_grant = |one: &&ShareUse| one.claim == grant.claim && one.share == grant.share;
                if let Some(one) = read.uses.iter().find(of_grant) {
                    families.used([&labels, &of_counters], one, || used_of(grant, view, read.figures));
                }
            }
        }
    }
    families.register(registry);
}

// === impl ShareFamilies ===

impl ShareFamilies {
    fn granted(&self, labels: &Labels, grant: &Grant, view: &NodeView) {
        self.limit.get_or_create(labels).set(whole(grant.memory.0));
        let card = view.inventory.card(&grant.card);
        let has = card.map_or(grant.cores, |card| grant.compute(card));
        self.cores.get_or_create(labels).set(f64::from(has.percent()) / 100.0);
    }

    /// Of a share without limits of ours, and of one whose region cannot be read, the shim counts nothing.
    fn used(
        &self,
        [labels, of_counters]: [&Labels; 2],
        one: &ShareUse,
        by_driver: impl FnOnce() -> Option<Bytes>,
    ) {
        let is_held = one.enforcement.condition().0 == Truth::True;
        self.enforced.get_or_create(labels).set(i64::from(is_held));
        match &one.enforcement {
            EnforcementState::Hardware => {
                if let Some(used) = by_driver() {
                    self.used.get_or_create(labels).set(whole(used.0));
                }
            }
            EnforcementState::Broken(_) => {}
            EnforcementState::Observed | EnforcementState::Bypassed(_) | EnforcementState::Unused => {
                self.used.get_or_create(labels).set(whole(one.used.0));
                self.denied.get_or_create(of_counters).inc_by(one.denied);
                let seconds = Duration::from_nanos(one.device_nanos).as_secs_f64();
                self.seconds.get_or_create(of_counters).inc_by(seconds);
                self.throttled.get_or_create(labels).set(i64::from(one.throttled));
            }
        }
    }

    fn register(self, registry: &mut Registry) {
        registry.register("vgpu_memory_limit_bytes", "Memory granted", self.limit);
        registry.register("vgpu_core_limit_ratio", "Compute granted, of the whole card", self.cores);
        let about = "Memory that the share's processes have reserved; of a whole device, the driver's figure";
        registry.register("vgpu_memory_used_bytes", about, self.used);
        let about = "Reservations refused since the claim was prepared";
        registry.register("vgpu_memory_denied", about, self.denied);
        registry.register(
            "vgpu_device_seconds",
            "Device time used since the claim was prepared",
            self.seconds,
        );
        let about = "1: launches waited for their share at the last look";
        registry.register("vgpu_throttled", about, self.throttled);
        registry.register("vgpu_enforced", "1: the limits were seen to hold", self.enforced);
    }
}

/// Memory in use on a card or partition that a claim has alone, as the driver reports it.
fn used_of(grant: &Grant, view: &NodeView, figures: &CardFigures) -> Option<Bytes> {
    let visible = match grant.partition() {
        None => &grant.card,
        Some(at) => &view.partitions.iter().find(|live| live.at == at)?.handle.uuid,
    };
    figures.used.get(visible).map(|used| used.in_use)
}

fn share_labels(claim: &HeldClaim, grant: &Grant, container: &str, pods: &PodNames) -> Labels {
    let (namespace, name) = claim.name.split_once('/').unwrap_or(("", &claim.name));
    let profile = match &grant.part {
        Part::Partition { template, .. } => template.to_string(),
        Part::Card | Part::Slot { .. } => String::new(),
    };
    vec![
        ("UUID", grant.card.to_string()),
        ("namespace", namespace.to_owned()),
        ("pod", pods.of(&claim.uid)),
        ("container", container.to_owned()),
        ("dra_claim_name", name.to_owned()),
        ("dra_claim_request", grant.request.clone()),
        ("dra_device_name", grant.device.device.clone()),
        ("dra_pool_name", grant.device.pool.clone()),
        ("dra_mig_profile", profile),
    ]
}
