//! What claims and the node tell the cluster: conditions in claim status, Events. One task, behind a bounded queue.

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::disposition::Disposition;
use aliquot_core::grant::Grant;
use aliquot_core::offer::DRIVER;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::metrics::{Metrics, Operation};
use super::ports::{
    AgentError, AgentEvent, ClaimReference, Condition, DeviceStatus, EventObject, EventSink, Severity,
    StatusWriter, Truth,
};
use super::service::{ClaimOutcome, OutcomeSink};
use super::store::NodeView;
use crate::clock;

/// Most operations that wait to be reported; further ones are counted and not reported.
const QUEUE: usize = 1024;
/// Longest wait for one write of a status.
const WRITE: Duration = Duration::from_secs(10);
/// Tries of one write. A conflict with other writers of the same claim ends within a few.
const TRIES: u32 = 4;
/// Longest wait for the node's view to show a claim.
const VIEW: Duration = Duration::from_secs(10);

/// The task, and the way into its queue.
pub struct Reporter {
    queue: mpsc::Sender<ClaimOutcome>,
    metrics: Arc<Metrics>,
    task: JoinHandle<()>,
}

/// The way in; never blocks.
#[derive(Clone)]
pub struct ReportSink {
    queue: mpsc::WeakSender<ClaimOutcome>,
    metrics: Arc<Metrics>,
}

struct Task {
    status: Arc<dyn StatusWriter>,
    events: Arc<dyn EventSink>,
    views: watch::Receiver<Option<Arc<NodeView>>>,
    metrics: Arc<Metrics>,
}

// === impl Reporter ===

impl Reporter {
    /// Starts the task.
    #[must_use]
    pub fn start(
        status: Arc<dyn StatusWriter>,
        events: Arc<dyn EventSink>,
        views: watch::Receiver<Option<Arc<NodeView>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (queue, outcomes) = mpsc::channel(QUEUE);
        let task = Task { status, events, views, metrics: Arc::clone(&metrics) };
        Self { queue, metrics, task: tokio::spawn(task.run(outcomes)) }
    }

    /// A way in.
    #[must_use]
    pub fn sink(&self) -> ReportSink {
        ReportSink { queue: self.queue.downgrade(), metrics: Arc::clone(&self.metrics) }
    }

    /// Reports what waits, and ends.
    pub async fn finish(self) {
        drop(self.queue);
        if let Err(error) = self.task.await {
            tracing::error!("the reporter ended abnormally: {error}");
        }
    }
}

impl OutcomeSink for ReportSink {
    fn ended(&self, outcome: ClaimOutcome, took: Duration) {
        let (operation, error) = match &outcome {
            ClaimOutcome::Prepared(_) => (Operation::Prepare, None),
            ClaimOutcome::Failed(_, error) => (Operation::Prepare, Some(error.disposition)),
            ClaimOutcome::Released(_) => (Operation::Unprepare, None),
            ClaimOutcome::Stuck(_, error) => (Operation::Unprepare, Some(error.disposition)),
        };
        self.metrics.operation(operation, error, took);
        if self.queue.upgrade().is_none_or(|queue| queue.try_send(outcome).is_err()) {
            self.metrics.report_dropped();
        }
    }
}

// === impl Task ===

impl Task {
    async fn run(mut self, mut outcomes: mpsc::Receiver<ClaimOutcome>) {
        while let Some(outcome) = outcomes.recv().await {
            match outcome {
                ClaimOutcome::Prepared(claim) => self.prepared(&claim).await,
                ClaimOutcome::Failed(claim, error) => self.event(&claim, prepare_reason(&error), error),
                ClaimOutcome::Stuck(claim, error) => self.event(&claim, "ReleaseFailed", error),
                ClaimOutcome::Released(_) => {}
            }
        }
    }

    fn event(&self, claim: &ClaimReference, reason: &'static str, error: AgentError) {
        let about = EventObject::Claim(claim.clone());
        self.events.publish(AgentEvent {
            about,
            severity: Severity::Warning,
            reason,
            message: error.message,
        });
    }

    async fn prepared(&mut self, claim: &ClaimReference) {
        let shows = |view: &Option<Arc<NodeView>>| {
            view.as_ref().is_some_and(|view| view.claims.iter().any(|held| held.uid == claim.uid))
        };
        let Ok(Ok(view)) =
            timeout(VIEW, self.views.wait_for(shows)).await.map(|view| view.map(|v| v.clone()))
        else {
            // It was released meanwhile, or the node cannot be read, which the state task reports.
            return;
        };
        let held = view.iter().flat_map(|view| &view.claims).find(|held| held.uid == claim.uid);
        let devices: Vec<DeviceStatus> =
            held.iter().flat_map(|held| &held.grants).map(device_status).collect();
        for attempt in 1..=TRIES {
            let error = match timeout(WRITE, self.status.write(claim, &devices)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) if error.disposition != Disposition::Retry || attempt == TRIES => {
                    error.message
                }
                Ok(Err(_)) => continue,
                Err(_) => format!("no answer within {} s", WRITE.as_secs()),
            };
            self.metrics.status_failed();
            tracing::warn!(claim = %claim, "the claim's status is not written: {error}");
            return;
        }
    }
}

/// The reason of an Event about a failed prepare.
fn prepare_reason(error: &AgentError) -> &'static str {
    match error.disposition {
        Disposition::Retry => "PrepareDelayed",
        Disposition::Refuse => "PrepareRefused",
        Disposition::Broken => "PrepareBroken",
    }
}

/// The status of one device right after it was prepared.
fn device_status(grant: &Grant) -> DeviceStatus {
    let changed = clock::wall();
    let condition = |kind, status, reason: &str, message: String| Condition {
        kind,
        status,
        reason: reason.to_owned(),
        message,
        changed,
    };
    let share = (grant.sharing == aliquot_core::dra::Sharing::Shareable).then(|| grant.share.to_string());
    let part = grant.part.to_string();
    DeviceStatus {
        device: aliquot_core::dra::DeviceId { driver: DRIVER.to_owned(), ..grant.device.clone() },
        share,
        conditions: vec![
            condition("Ready", Truth::True, "Prepared", format!("{part} of card {}", grant.card)),
            condition(
                "Enforced",
                Truth::Unknown,
                "NotUsedYet",
                "no process of the claim has used the device".to_owned(),
            ),
        ],
        data: json!({
            "card": grant.card.as_str(),
            "part": part,
            "memoryBytes": grant.memory.0,
            "coresPercent": grant.cores.percent(),
        }),
    }
}
