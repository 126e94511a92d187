//! Metrics of claims, and of the shares and partitions that they hold.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use aliquot_core::card::Card;
use aliquot_core::grant::Grant;
use aliquot_core::partition::Part;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{HeldClaim, Labels, PodNames, Ratio, ShareUse, count, whole};
use crate::ports::Truth;

pub(super) fn of_claims(registry: &mut Registry, cards: &[Card], held: &[HeldClaim], pods: &PodNames) {
    let (claims, devices): (Gauge, Gauge) = Default::default();
    claims.set(count(held.len()));
    devices.set(count(held.iter().map(|claim| claim.grants.len()).sum()));
    registry.register("dra_prepared_claims", "Claims in the journal", claims);
    registry.register("dra_prepared_devices", "Devices and shares of these claims", devices);
    let memory: Family<Labels, Gauge> = Family::default();
    let cores: Family<Labels, Ratio> = Family::default();
    for (claim, grant) in grants_of(held) {
        let labels = share_labels(claim, grant, pods);
        memory.get_or_create(&labels).set(whole(grant.memory.0));
        let card = cards.iter().find(|card| card.uuid == grant.card);
        let has = card.map_or(grant.cores, |card| grant.compute(card));
        cores.get_or_create(&labels).set(f64::from(has.percent()) / 100.0);
    }
    registry.register("vgpu_memory_limit_bytes", "Memory granted", memory);
    registry.register("vgpu_core_limit_ratio", "Compute granted, of the whole card", cores);
}

/// Every grant with its claim.
fn grants_of(claims: &[HeldClaim]) -> impl Iterator<Item = (&HeldClaim, &Grant)> {
    claims.iter().flat_map(|claim| claim.grants.iter().map(move |grant| (claim, grant)))
}

pub(super) fn of_uses(registry: &mut Registry, held: &[HeldClaim], uses: &[ShareUse], pods: &PodNames) {
    type ByShare = Family<Labels, Gauge>;
    let (used, throttled, enforced): (ByShare, ByShare, ByShare) = Default::default();
    let denied: Family<Labels, Counter> = Family::default();
    let seconds: Family<Labels, Counter<f64, AtomicU64>> = Family::default();
    for (claim, grant) in grants_of(held) {
        let of_grant = |one: &&ShareUse| one.claim == grant.claim && one.share == grant.share;
        let Some(one) = uses.iter().find(of_grant) else { continue };
        let labels = share_labels(claim, grant, pods);
        used.get_or_create(&labels).set(whole(one.used.0));
        denied.get_or_create(&labels).inc_by(one.denied);
        seconds.get_or_create(&labels).inc_by(Duration::from_nanos(one.device_nanos).as_secs_f64());
        throttled.get_or_create(&labels).set(i64::from(one.throttled));
        enforced.get_or_create(&labels).set(i64::from(one.enforcement.condition().0 == Truth::True));
    }
    registry.register("vgpu_memory_used_bytes", "Memory that the share's processes have reserved", used);
    registry.register("vgpu_memory_denied", "Reservations refused since the claim was prepared", denied);
    registry.register("vgpu_device_seconds", "Device time used since the claim was prepared", seconds);
    registry.register("vgpu_throttled", "1: launches waited for their share at the last look", throttled);
    registry.register("vgpu_enforced", "1: the limits were seen to hold", enforced);
}

fn share_labels(claim: &HeldClaim, grant: &Grant, pods: &PodNames) -> Labels {
    let (namespace, name) = claim.name.split_once('/').unwrap_or(("", &claim.name));
    let profile = match &grant.part {
        Part::Partition { template, .. } => template.to_string(),
        Part::Card | Part::Slot { .. } => String::new(),
    };
    vec![
        ("UUID", grant.card.to_string()),
        ("namespace", namespace.to_owned()),
        ("pod", pods.of(&claim.uid)),
        ("dra_claim_name", name.to_owned()),
        ("dra_claim_request", grant.request.clone()),
        ("dra_device_name", grant.device.device.clone()),
        ("dra_pool_name", grant.device.pool.clone()),
        ("dra_mig_profile", profile),
    ]
}
