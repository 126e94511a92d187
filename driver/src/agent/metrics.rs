//! Every metric of the agent: one table, and the code that fills it.
//!
//! | name (prefix `aliquot_`) | kind | labels | meaning |
//! |---|---|---|---|
//! | `dra_requests_total` | counter | `operation`, `result` | claims prepared and unprepared, by result: `ok`, `retry`, `refuse`, `broken` |
//! | `dra_request_duration_seconds` | histogram | `operation` | time of one claim, waits included |
//! | `dra_prepared_claims` | gauge | | claims in the journal |
//! | `dra_prepared_devices` | gauge | | devices and shares of these claims |
//! | `publish_writes_total` | counter | | writes of ResourceSlices, deletes included |
//! | `publish_in_sync` | gauge | | 1: the server's slices equal the desired ones |
//! | `reports_dropped_total` | counter | | operations without status and Event, for a full queue |
//! | `status_failures_total` | counter | | claim statuses that could not be written |
//! | `gpu_memory_limit_bytes` | gauge | card | memory of the card |
//! | `gpu_memory_allocated_bytes` | gauge | card | memory of the card that claims hold |
//! | `gpu_core_allocated_ratio` | gauge | card | compute of the card that claims hold, 0 to 1 |
//! | `gpu_shared_count` | gauge | card | devices and shares of the card that claims hold |
//! | `gpu_healthy` | gauge | card | 1: the card takes new claims |
//! | `vgpu_memory_limit_bytes` | gauge | share | memory granted |
//! | `vgpu_memory_used_bytes` | gauge | share | memory that its processes have reserved |
//! | `vgpu_memory_denied` | gauge | share | reservations refused since the claim was prepared |
//! | `vgpu_device_seconds` | gauge | share | device time used since the claim was prepared |
//! | `vgpu_enforced` | gauge | share | 1: the limits were seen to hold |
//! | `vgpu_core_limit_ratio` | gauge | share | compute granted, of the whole card, 0 to 1 |
//!
//! Labels of a card: `UUID`, `modelName`, `gpu` (its index), as the DCGM exporter has them. Labels of a share: `UUID`,
//! `namespace`, `dra_claim_name`, `dra_claim_request`, `dra_device_name`, `dra_pool_name`. Names after the prefix are those of
//! HAMi's and NVIDIA's exporters. Cards and shares are bounded by the hardware; no label holds an unbounded set.

use std::fmt;
use std::time::Duration;

use aliquot_core::card::{Card, Health};
use aliquot_core::disposition::Disposition;
use aliquot_core::grant::Grant;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::observe::ShareUse;
use super::ports::{Publication, Truth};
use super::store::{HeldClaim, NodeView};

/// What the kubelet asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Prepare.
    Prepare,
    /// Unprepare.
    Unprepare,
}

/// Counters and histograms that live as long as the agent; gauges are made for each scrape from the node's view.
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<OperationLabel, Histogram>,
    dropped: Counter,
    status_failures: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: Operation,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: Operation,
}

/// Names and values, in the order of the table; names are not Rust's.
type Labels = Vec<(&'static str, String)>;

impl EncodeLabelValue for Operation {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let word = match self {
            Self::Prepare => "prepare",
            Self::Unprepare => "unprepare",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        // 0.5 ms to 33 s: a share takes a few ms, a partition up to seconds, an overlap its wait.
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.0005, 2.0, 17));
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(buckets),
            dropped: Counter::default(),
            status_failures: Counter::default(),
        }
    }

    /// Counts one claim's operation; `failed` is absent on success.
    pub(super) fn operation(&self, operation: Operation, failed: Option<Disposition>, took: Duration) {
        let result = failed.map_or("ok", Disposition::word);
        self.requests.get_or_create(&RequestLabels { operation, result }).inc();
        self.durations.get_or_create(&OperationLabel { operation }).observe(took.as_secs_f64());
    }

    /// Counts an operation that is not reported.
    pub(super) fn report_dropped(&self) {
        self.dropped.inc();
    }

    /// Counts a status that is not written.
    pub(super) fn status_failed(&self) {
        self.status_failures.inc();
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// None: text takes what is written.
    pub fn text(
        &self,
        view: Option<&NodeView>,
        uses: &[ShareUse],
        publication: &Publication,
    ) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("aliquot");
        registry.register("dra_requests", "Claims prepared and unprepared, by result", self.requests.clone());
        registry.register(
            "dra_request_duration_seconds",
            "Time of one claim, waits included",
            self.durations.clone(),
        );
        registry.register("reports_dropped", "Operations without status and Event", self.dropped.clone());
        registry.register(
            "status_failures",
            "Claim statuses that could not be written",
            self.status_failures.clone(),
        );
        let writes: Counter = Counter::default();
        writes.inc_by(publication.writes);
        registry.register("publish_writes", "Writes of ResourceSlices, deletes included", writes);
        let in_sync: Gauge = Gauge::default();
        in_sync.set(i64::from(publication.in_sync));
        registry.register("publish_in_sync", "1: the server's slices equal the desired ones", in_sync);
        if let Some(view) = view {
            of_claims(&mut registry, view);
            of_cards(&mut registry, view);
            of_uses(&mut registry, view, uses);
        }
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn of_claims(registry: &mut Registry, view: &NodeView) {
    let (claims, devices): (Gauge, Gauge) = Default::default();
    claims.set(count(view.claims.len()));
    devices.set(count(view.claims.iter().map(|claim| claim.grants.len()).sum()));
    registry.register("dra_prepared_claims", "Claims in the journal", claims);
    registry.register("dra_prepared_devices", "Devices and shares of these claims", devices);
    let memory: Family<Labels, Gauge> = Family::default();
    let cores: Family<Labels, Gauge<f64, std::sync::atomic::AtomicU64>> = Family::default();
    for (claim, grant) in
        view.claims.iter().flat_map(|claim| claim.grants.iter().map(move |grant| (claim, grant)))
    {
        let labels = share_labels(claim, grant);
        memory.get_or_create(&labels).set(whole(grant.memory.0));
        cores.get_or_create(&labels).set(f64::from(grant.cores.percent()) / 100.0);
    }
    registry.register("vgpu_memory_limit_bytes", "Memory granted", memory);
    registry.register("vgpu_core_limit_ratio", "Compute granted, of the whole card", cores);
}

fn of_uses(registry: &mut Registry, view: &NodeView, uses: &[ShareUse]) {
    type ByShare = Family<Labels, Gauge>;
    let (used, denied, enforced): (ByShare, ByShare, ByShare) = Default::default();
    let seconds: Family<Labels, Gauge<f64, std::sync::atomic::AtomicU64>> = Family::default();
    for (claim, grant) in
        view.claims.iter().flat_map(|claim| claim.grants.iter().map(move |grant| (claim, grant)))
    {
        let of_grant = |one: &&ShareUse| one.claim == grant.claim && one.share == grant.share;
        let Some(one) = uses.iter().find(of_grant) else { continue };
        let labels = share_labels(claim, grant);
        used.get_or_create(&labels).set(whole(one.used.0));
        denied.get_or_create(&labels).set(whole(one.denied));
        seconds.get_or_create(&labels).set(Duration::from_nanos(one.device_nanos).as_secs_f64());
        enforced.get_or_create(&labels).set(i64::from(one.enforcement.condition().0 == Truth::True));
    }
    registry.register("vgpu_memory_used_bytes", "Memory that the share's processes have reserved", used);
    registry.register("vgpu_memory_denied", "Reservations refused since the claim was prepared", denied);
    registry.register("vgpu_device_seconds", "Device time used since the claim was prepared", seconds);
    registry.register("vgpu_enforced", "1: the limits were seen to hold", enforced);
}

fn share_labels(claim: &HeldClaim, grant: &Grant) -> Labels {
    let (namespace, name) = claim.name.split_once('/').unwrap_or(("", &claim.name));
    vec![
        ("UUID", grant.card.to_string()),
        ("namespace", namespace.to_owned()),
        ("dra_claim_name", name.to_owned()),
        ("dra_claim_request", grant.request.clone()),
        ("dra_device_name", grant.device.device.clone()),
        ("dra_pool_name", grant.device.pool.clone()),
    ]
}

fn of_cards(registry: &mut Registry, view: &NodeView) {
    type ByCard = Family<Labels, Gauge>;
    let (limit, allocated, shared, healthy): (ByCard, ByCard, ByCard, ByCard) = Default::default();
    let cores: Family<Labels, Gauge<f64, std::sync::atomic::AtomicU64>> = Family::default();
    for card in &view.inventory.cards {
        let labels = card_labels(card);
        let grants =
            || view.claims.iter().flat_map(|claim| &claim.grants).filter(|grant| grant.card == card.uuid);
        let memory = grants().fold(0_u64, |sum, grant| sum.saturating_add(grant.memory.0));
        let percent: u32 = grants().map(|grant| u32::from(grant.cores.percent())).sum();
        limit.get_or_create(&labels).set(whole(card.memory.0));
        allocated.get_or_create(&labels).set(whole(memory));
        cores.get_or_create(&labels).set(f64::from(percent) / 100.0);
        shared.get_or_create(&labels).set(count(grants().count()));
        healthy.get_or_create(&labels).set(i64::from(card.health == Health::Healthy));
    }
    registry.register("gpu_memory_limit_bytes", "Memory of the card", limit);
    registry.register("gpu_memory_allocated_bytes", "Memory of the card that claims hold", allocated);
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
