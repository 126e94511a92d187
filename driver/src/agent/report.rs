//! What claims and the node tell the cluster: conditions in claim status, Events. One task, behind a bounded queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{DeviceId, Sharing};
use aliquot_core::grant::Grant;
use aliquot_core::id::{ClaimUid, ShareName};
use aliquot_core::offer::DRIVER;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::metrics::{Metrics, Operation};
use super::observe::{EnforcementState, ShareUse};
use super::service::{ClaimOutcome, OutcomeSink};
use super::store::{HeldClaim, NodeView};
use crate::clock;
use crate::ports::{
    AgentError, AgentEvent, ClaimReference, Condition, DeviceStatus, EventObject, EventSeverity, EventSink,
    StatusWriter, Truth,
};

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

struct ReportTask {
    status: Arc<dyn StatusWriter>,
    events: Arc<dyn EventSink>,
    views: watch::Receiver<Option<Arc<NodeView>>>,
    uses: watch::Receiver<Arc<Vec<ShareUse>>>,
    metrics: Arc<Metrics>,
    /// What was written of enforcement, by claim and share, and since when it is so.
    written: BTreeMap<(ClaimUid, ShareName), (EnforcementState, SystemTime)>,
}

// === impl Reporter ===

impl Reporter {
    /// Starts the task.
    #[must_use]
    pub fn start(
        status: Arc<dyn StatusWriter>,
        events: Arc<dyn EventSink>,
        views: watch::Receiver<Option<Arc<NodeView>>>,
        uses: watch::Receiver<Arc<Vec<ShareUse>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (queue, outcomes) = mpsc::channel(QUEUE);
        let written = BTreeMap::new();
        let task = ReportTask { status, events, views, uses, metrics: Arc::clone(&metrics), written };
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

// === impl ReportTask ===

impl ReportTask {
    async fn run(mut self, mut outcomes: mpsc::Receiver<ClaimOutcome>) {
        loop {
            let outcome = tokio::select! {
                outcome = outcomes.recv() => outcome,
                Ok(()) = self.uses.changed() => {
                    self.enforcement_changed().await;
                    continue;
                }
            };
            match outcome {
                None => return,
                Some(ClaimOutcome::Prepared(claim)) => self.prepared(&claim).await,
                Some(ClaimOutcome::Failed(claim, error)) => self.event(&claim, prepare_reason(&error), error),
                Some(ClaimOutcome::Stuck(claim, error)) => self.event(&claim, "ReleaseFailed", error),
                Some(ClaimOutcome::Released(claim)) => self.written.retain(|(uid, _), _| *uid != claim.uid),
            }
        }
    }

    /// Writes the status of claims whose enforcement is another one than was written.
    async fn enforcement_changed(&mut self) {
        let uses = Arc::clone(&self.uses.borrow_and_update());
        let Some(view) = self.views.borrow().clone() else { return };
        let differs = |one: &ShareUse| {
            let key = (one.claim.clone(), one.share.clone());
            self.written.get(&key).is_none_or(|(written, _)| *written != one.enforcement)
        };
        let changed: BTreeSet<ClaimUid> =
            uses.iter().filter(|one| differs(one)).map(|one| one.claim.clone()).collect();
        for held in view.claims.iter().filter(|held| changed.contains(&held.uid)) {
            let Some((namespace, name)) = held.name.split_once('/') else { continue };
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            self.write(&ClaimReference { namespace, name, uid: held.uid.clone() }, held).await;
        }
        self.written.retain(|(uid, _), _| view.claims.iter().any(|held| held.uid == *uid));
    }

    /// The status of every device of a claim; notes what it says of enforcement.
    fn statuses(&mut self, held: &HeldClaim) -> Vec<DeviceStatus> {
        let uses = Arc::clone(&self.uses.borrow());
        let now = clock::wall();
        let mut statuses = Vec::with_capacity(held.grants.len());
        for grant in &held.grants {
            let of_grant = |one: &&ShareUse| one.claim == grant.claim && one.share == grant.share;
            let enforcement =
                uses.iter().find(of_grant).map_or(EnforcementState::Unused, |one| one.enforcement.clone());
            let entry = self.written.entry((grant.claim.clone(), grant.share.clone()));
            let written = entry.or_insert_with(|| (enforcement.clone(), now));
            if written.0 != enforcement {
                *written = (enforcement, now);
            }
            statuses.push(device_status(grant, written));
        }
        statuses
    }

    fn event(&self, claim: &ClaimReference, reason: &'static str, error: AgentError) {
        let about = EventObject::Claim(claim.clone());
        self.events.publish(AgentEvent {
            about,
            severity: EventSeverity::Warning,
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
        if let Some(held) = held {
            self.write(claim, held).await;
        }
    }

    async fn write(&mut self, claim: &ClaimReference, held: &HeldClaim) {
        let devices = self.statuses(held);
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

/// The status of one device.
fn device_status(grant: &Grant, (enforcement, since): &(EnforcementState, SystemTime)) -> DeviceStatus {
    let share = (grant.sharing == Sharing::Shareable).then(|| grant.share.to_string());
    let part = grant.part.to_string();
    let ready = Condition {
        kind: "Ready",
        status: Truth::True,
        reason: "Prepared".to_owned(),
        message: format!("part `{part}` of card {}", grant.card),
        changed: clock::wall(),
    };
    let (status, reason, message) = enforcement.condition();
    let enforced =
        Condition { kind: "Enforced", status, reason: reason.to_owned(), message, changed: *since };
    DeviceStatus {
        device: DeviceId { driver: DRIVER.to_owned(), ..grant.device.clone() },
        share,
        conditions: vec![ready, enforced],
        data: json!({
            "card": grant.card.as_str(),
            "part": part,
            "memoryBytes": grant.memory.0,
            "coresPercent": grant.cores.percent(),
        }),
    }
}
