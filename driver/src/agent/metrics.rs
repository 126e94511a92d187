//! Every metric of the agent: one table, and the code that fills it. `docs/user/metrics.md` explains each family to users.
//!
//! Every series has the label `node`. Labels of a card: `UUID`, `modelName`, `gpu` (its index), as the DCGM exporter has them.
//! Labels of a share: `UUID`, `namespace`, `pod`, `container`, `dra_claim_name`, `dra_claim_request`, `dra_device_name`,
//! `dra_pool_name`, `dra_mig_profile`. Names after the prefix are those of HAMi's and NVIDIA's exporters. Cards, partitions,
//! shares and claims are bounded by the hardware and the journal; no label holds an unbounded set.
//!
//! What a driver or a region does not report is absent, never 0.

mod cards;
mod readings;
mod shares;
mod waiting;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::card::Card;
use aliquot_core::disposition::Disposition;
use aliquot_core::id::{ClaimUid, NodeName};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use self::readings::count;
use self::waiting::WaitingClaims;
use super::layouts::PolicyOutcome;
use super::store::HeldClaim;
use crate::clock;
use crate::kube::pod_names::PodNames;
use crate::ports::Publication;

pub use readings::NodeReadings;

/// Every family, as the text declares it; samples of counters end in `_total`.
pub const NAMES: [&str; 42] = [
    "aliquot_build",
    "aliquot_dra_requests",
    "aliquot_dra_request_duration_seconds",
    "aliquot_dra_requests_inflight",
    "aliquot_dra_node_prepare_errors",
    "aliquot_dra_node_unprepare_errors",
    "aliquot_dra_prepared_claims",
    "aliquot_dra_prepared_devices",
    "aliquot_dra_orphans_released",
    "aliquot_dra_waiting_claims",
    "aliquot_publish_writes",
    "aliquot_publish_in_sync",
    "aliquot_policy_refused",
    "aliquot_maintenance",
    "aliquot_other_drivers",
    "aliquot_reports_dropped",
    "aliquot_status_failures",
    "aliquot_gpu_memory_limit_bytes",
    "aliquot_gpu_memory_allocated_bytes",
    "aliquot_gpu_core_limit_ratio",
    "aliquot_gpu_core_allocated_ratio",
    "aliquot_gpu_shared_count",
    "aliquot_gpu_healthy",
    "aliquot_gpu_memory_used_bytes",
    "aliquot_gpu_memory_outside_grants_bytes",
    "aliquot_gpu_utilization_ratio",
    "aliquot_gpu_last_error_code",
    "aliquot_gpu_last_error_timestamp_seconds",
    "aliquot_gpu_layout",
    "aliquot_gpu_template_room",
    "aliquot_gpu_share_room_bytes",
    "aliquot_gpu_share_room_ratio",
    "aliquot_gpu_partition",
    "aliquot_gpu_partition_memory_limit_bytes",
    "aliquot_gpu_partition_memory_used_bytes",
    "aliquot_vgpu_memory_limit_bytes",
    "aliquot_vgpu_memory_used_bytes",
    "aliquot_vgpu_memory_denied",
    "aliquot_vgpu_core_limit_ratio",
    "aliquot_vgpu_device_seconds",
    "aliquot_vgpu_throttled",
    "aliquot_vgpu_enforced",
];

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
    inflight: Family<OperationLabel, Gauge>,
    prepare_errors: Family<ErrorLabel, Counter>,
    unprepare_errors: Family<ErrorLabel, Counter>,
    dropped: Counter,
    status_failures: Counter,
    policy_refused: Gauge,
    maintenance: Gauge,
    other_drivers: Gauge,
    orphans: Counter,
    pods: Arc<PodNames>,
    node: Option<NodeName>,
    waiting: WaitingClaims,
}

/// A call in progress; it counts until it is dropped.
pub(super) struct InFlight(Gauge);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: Operation,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: Operation,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabel {
    error_type: &'static str,
}

impl EncodeLabelValue for Operation {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.word(), encoder)
    }
}

// === impl Operation ===

impl Operation {
    /// Its word in metrics and log lines.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Unprepare => "unprepare",
        }
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
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(buckets),
            inflight: Family::default(),
            prepare_errors: Family::default(),
            unprepare_errors: Family::default(),
            dropped: Counter::default(),
            status_failures: Counter::default(),
            policy_refused: Gauge::default(),
            maintenance: Gauge::default(),
            other_drivers: Gauge::default(),
            orphans: Counter::default(),
            pods: Arc::default(),
            node: None,
            waiting: WaitingClaims::default(),
        };
        metrics.begin_at_zero();
        metrics
    }

    /// A series that appears with its first event hides that event from `rate`.
    fn begin_at_zero(&self) {
        for operation in [Operation::Prepare, Operation::Unprepare] {
            drop(self.requests.get_or_create(&RequestLabels { operation, result: "ok" }));
            drop(self.durations.get_or_create(&OperationLabel { operation }));
            drop(self.inflight.get_or_create(&OperationLabel { operation }));
        }
        for failed in [Disposition::Retry, Disposition::Refuse, Disposition::Broken] {
            let error_type = failed.word();
            for errors in [&self.prepare_errors, &self.unprepare_errors] {
                drop(errors.get_or_create(&ErrorLabel { error_type }));
            }
        }
    }

    /// The same, with the names of Pods from here.
    #[must_use]
    pub fn with_pods(self, pods: Arc<PodNames>) -> Self {
        Self { pods, ..self }
    }

    /// The same, with the node as a label of each series.
    #[must_use]
    pub fn on_node(self, node: NodeName) -> Self {
        Self { node: Some(node), ..self }
    }

    /// The same, with what became of the layout policy.
    #[must_use]
    pub fn with_policy(self, policy: &PolicyOutcome) -> Self {
        self.policy_refused.set(i64::from(policy.refused.is_some()));
        self
    }

    /// Notes how many other drivers hand out the node's cards.
    pub(super) fn other_drivers(&self, count: usize) {
        self.other_drivers.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Notes whether the node is in maintenance.
    pub(super) fn in_maintenance(&self, is_so: bool) {
        self.maintenance.set(i64::from(is_so));
    }

    /// Whether a call of this kind is in progress.
    pub(super) fn is_in_progress(&self, operation: Operation) -> bool {
        self.inflight.get_or_create(&OperationLabel { operation }).get() > 0
    }

    /// Counts a call while the answer lives.
    pub(super) fn begins(&self, operation: Operation) -> InFlight {
        let gauge = self.inflight.get_or_create(&OperationLabel { operation }).clone();
        gauge.inc();
        InFlight(gauge)
    }

    /// Counts one claim's operation; `failed` is absent on success.
    pub(super) fn operation(&self, operation: Operation, failed: Option<Disposition>, took: Duration) {
        let result = failed.map_or("ok", Disposition::word);
        self.requests.get_or_create(&RequestLabels { operation, result }).inc();
        self.durations.get_or_create(&OperationLabel { operation }).observe(took.as_secs_f64());
        let errors = match operation {
            Operation::Prepare => &self.prepare_errors,
            Operation::Unprepare => &self.unprepare_errors,
        };
        if let Some(failed) = failed {
            errors.get_or_create(&ErrorLabel { error_type: failed.word() }).inc();
        }
    }

    /// Notes whether a claim of the kubelet's waits for another prepare.
    pub(super) fn claim_ended(&self, claim: &ClaimUid, operation: Operation, failed: Option<Disposition>) {
        match (operation, failed) {
            (Operation::Prepare, Some(_)) => self.waiting.begins(claim, clock::now()),
            (Operation::Prepare, None) | (Operation::Unprepare, _) => self.waiting.ends(claim),
        }
    }

    /// Counts an operation that is not reported.
    pub(super) fn report_dropped(&self) {
        self.dropped.inc();
    }

    /// Counts a status that is not written.
    pub(super) fn status_failed(&self) {
        self.status_failures.inc();
    }

    /// Counts a claim that was released because neither the kubelet nor the API server knew it.
    pub(super) fn orphan_released(&self) {
        self.orphans.inc();
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// None: text takes what is written.
    pub fn text(&self, read: &NodeReadings<'_>, publication: &Publication) -> Result<String, fmt::Error> {
        let node = self.node.iter().map(|node| (Cow::Borrowed("node"), Cow::Owned(node.to_string())));
        let mut registry = Registry::with_prefix_and_labels("aliquot", node);
        self.of_operations(&mut registry);
        self.of_agent(&mut registry, publication);
        let (claims, cards): (&[HeldClaim], &[Card]) =
            read.view.map_or((&[], &[]), |view| (&view.claims, &view.inventory.cards));
        self.pods.keep(&claims.iter().map(|claim| &claim.uid).collect::<BTreeSet<_>>());
        shares::of_claims(&mut registry, claims);
        shares::of_shares(&mut registry, read, &self.pods);
        cards::of_cards(&mut registry, cards, claims);
        cards::of_drivers(&mut registry, cards, read.figures);
        cards::of_layouts(&mut registry, read);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }

    fn of_agent(&self, registry: &mut Registry, publication: &Publication) {
        let writes: Counter = Counter::default();
        writes.inc_by(publication.writes);
        registry.register("publish_writes", "Writes of ResourceSlices, deletes included", writes);
        let in_sync: Gauge = Gauge::default();
        in_sync.set(i64::from(publication.in_sync));
        registry.register("publish_in_sync", "1: the server's slices equal the desired ones", in_sync);
        let (refused, about) =
            (self.policy_refused.clone(), "1: the layout policy is refused, an earlier one holds");
        registry.register("policy_refused", about, refused);
        let about = "1: the node is in maintenance, cards take no new claims";
        registry.register("maintenance", about, self.maintenance.clone());
        let about = "Other drivers that hand out this node's cards";
        registry.register("other_drivers", about, self.other_drivers.clone());
    }

    fn of_operations(&self, registry: &mut Registry) {
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "Version of the agent", Info::new(version));
        registry.register("dra_requests", "Claims prepared and unprepared, by result", self.requests.clone());
        registry.register(
            "dra_request_duration_seconds",
            "Time of one claim, waits included",
            self.durations.clone(),
        );
        registry.register("dra_requests_inflight", "Claims in progress", self.inflight.clone());
        registry.register("dra_node_prepare_errors", "Failed prepares", self.prepare_errors.clone());
        registry.register("dra_node_unprepare_errors", "Failed unprepares", self.unprepare_errors.clone());
        let orphans = self.orphans.clone();
        registry.register("dra_orphans_released", "Claims released that the cluster had lost", orphans);
        let waiting: Gauge = Gauge::default();
        waiting.set(count(self.waiting.count(clock::now())));
        let about = "Claims whose last prepare failed and that the kubelet asks for again";
        registry.register("dra_waiting_claims", about, waiting);
        registry.register("reports_dropped", "Operations without status and Event", self.dropped.clone());
        let failures = self.status_failures.clone();
        registry.register("status_failures", "Claim statuses that could not be written", failures);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
