//! What claims and the node tell the cluster: conditions in claim status, Events. One task, behind a bounded queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
use super::service::{ClaimDevices, ClaimOutcome, OutcomeSink};
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
/// After so long no more statuses are written in one round; the next look goes on.
const ROUND: Duration = Duration::from_secs(30);
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
    /// Time between two writes of a status while the server refuses the agent's credentials or permissions.
    refused_pause: Duration,
    /// What the server has of enforcement, by claim and share.
    written: BTreeMap<(ClaimUid, ShareName), EnforcementState>,
    /// Devices that claims read and do not hold.
    monitored: BTreeMap<ClaimUid, Vec<DeviceId>>,
    /// Claims with a status that is to be written again at the next look.
    unwritten: BTreeMap<ClaimUid, ClaimReference>,
    /// Claims with a status that the server refused for reasons outside of the claim, and when it is written again.
    refused: BTreeMap<ClaimUid, Instant>,
}

/// Whether a status is with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteOutcome {
    /// It is, or the server refuses this claim's status for good.
    Ended,
    /// It is written again at a later look.
    Later,
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
        metrics: &Arc<Metrics>,
        refused_pause: Duration,
    ) -> Self {
        let (queue, outcomes) = mpsc::channel(QUEUE);
        let metrics = Arc::clone(metrics);
        let task = ReportTask {
            status,
            events,
            views,
            uses,
            metrics: Arc::clone(&metrics),
            refused_pause,
            written: BTreeMap::new(),
            monitored: BTreeMap::new(),
            unwritten: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
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
            ClaimOutcome::Prepared(..) => (Operation::Prepare, None),
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
                    self.write_changes().await;
                    continue;
                }
            };
            match outcome {
                None => return,
                Some(ClaimOutcome::Prepared(claim, devices)) => self.prepared(claim, devices).await,
                Some(ClaimOutcome::Failed(claim, error)) => self.event(&claim, prepare_reason(&error), error),
                Some(ClaimOutcome::Stuck(claim, error)) => self.event(&claim, "ReleaseFailed", error),
                Some(ClaimOutcome::Released(claim)) => {
                    self.monitored.remove(&claim.uid);
                    self.unwritten.remove(&claim.uid);
                    self.refused.remove(&claim.uid);
                    self.written.retain(|(uid, _), _| *uid != claim.uid);
                }
            }
        }
    }

    /// Writes the status of claims with another enforcement than was written, and what could not be written before.
    async fn write_changes(&mut self) {
        let uses = Arc::clone(&self.uses.borrow_and_update());
        let Some(view) = self.views.borrow().clone() else { return };
        let differs = |one: &ShareUse| {
            let key = (one.claim.clone(), one.share.clone());
            self.written.get(&key).is_none_or(|written| *written != one.enforcement)
        };
        let changed: BTreeSet<ClaimUid> =
            uses.iter().filter(|one| differs(one)).map(|one| one.claim.clone()).collect();
        let now = clock::now();
        let waits = |uid: &ClaimUid| self.refused.get(uid).is_some_and(|until| *until > now);
        let unwritten = std::mem::take(&mut self.unwritten);
        let (waiting, mut due): (BTreeMap<_, _>, BTreeMap<_, _>) =
            unwritten.into_iter().partition(|(uid, _)| waits(uid));
        let changed: BTreeSet<ClaimUid> = changed.into_iter().filter(|uid| !waits(uid)).collect();
        for held in view.claims.iter().filter(|held| changed.contains(&held.uid)) {
            let Some((namespace, name)) = held.name.split_once('/') else { continue };
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            due.insert(held.uid.clone(), ClaimReference { namespace, name, uid: held.uid.clone() });
        }
        // A claim that others change all the time keeps none of the rest waiting; a server that does not answer ends the round.
        let until = now + ROUND;
        while clock::now() < until
            && let Some((uid, claim)) = due.pop_first()
        {
            let held = view.claims.iter().find(|held| held.uid == uid);
            if self.write(&claim, held).await == WriteOutcome::Later {
                self.unwritten.insert(uid, claim);
            }
        }
        self.unwritten.append(&mut due);
        self.unwritten.extend(waiting);
        self.written.retain(|(uid, _), _| view.claims.iter().any(|held| held.uid == *uid));
    }

    /// The status of every device that a claim holds or reads, and what it says of enforcement.
    fn statuses(
        &self,
        claim: &ClaimUid,
        held: Option<&HeldClaim>,
    ) -> (Vec<DeviceStatus>, Vec<EnforcementState>) {
        let uses = Arc::clone(&self.uses.borrow());
        let enforcement = |grant: &Grant| {
            let of_grant = |one: &&ShareUse| one.claim == grant.claim && one.share == grant.share;
            uses.iter().find(of_grant).map_or(EnforcementState::Unused, |one| one.enforcement.clone())
        };
        let grants = held.map_or(&[][..], |held| &held.grants);
        let enforced: Vec<_> = grants.iter().map(enforcement).collect();
        let of_grants = grants.iter().zip(&enforced).map(|(grant, enforced)| held_status(grant, enforced));
        let monitored = self.monitored.get(claim).into_iter().flatten().map(monitored_status);
        (of_grants.chain(monitored).collect(), enforced)
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

    async fn prepared(&mut self, claim: ClaimReference, devices: ClaimDevices) {
        if !devices.monitored.is_empty() {
            self.monitored.insert(claim.uid.clone(), devices.monitored);
        }
        let mut view = None;
        if devices.held > 0 {
            let shows = |view: &Option<Arc<NodeView>>| {
                view.as_ref().is_some_and(|view| view.claims.iter().any(|held| held.uid == claim.uid))
            };
            let Ok(Ok(found)) =
                timeout(VIEW, self.views.wait_for(shows)).await.map(|view| view.map(|v| v.clone()))
            else {
                // It was released meanwhile, or the node cannot be read, which the state task reports.
                return;
            };
            view = found;
        }
        let held = view.iter().flat_map(|view| &view.claims).find(|held| held.uid == claim.uid);
        if self.write(&claim, held).await == WriteOutcome::Later {
            self.unwritten.insert(claim.uid.clone(), claim);
        }
    }

    /// Writes the status of a claim; without devices there is nothing to write.
    async fn write(&mut self, claim: &ClaimReference, held: Option<&HeldClaim>) -> WriteOutcome {
        let (devices, enforced) = self.statuses(&claim.uid, held);
        if devices.is_empty() {
            return WriteOutcome::Ended;
        }
        let outcome = match self.try_to_write(claim, &devices).await {
            Ok(()) => WriteOutcome::Ended,
            Err(error) => self.failed(claim, &error),
        };
        if outcome == WriteOutcome::Ended {
            self.refused.remove(&claim.uid);
            let keys = held.iter().flat_map(|held| &held.grants);
            let keys = keys.map(|grant| (grant.claim.clone(), grant.share.clone()));
            self.written.extend(keys.zip(enforced));
        }
        outcome
    }

    async fn try_to_write(&self, claim: &ClaimReference, devices: &[DeviceStatus]) -> Result<(), AgentError> {
        let mut attempt = 1;
        loop {
            match timeout(WRITE, self.status.write(claim, devices)).await {
                Ok(Err(error)) if error.disposition == Disposition::Retry && attempt < TRIES => attempt += 1,
                Ok(result) => return result,
                Err(_) => {
                    let message = format!("no answer within {} s", WRITE.as_secs());
                    return Err(AgentError { message, disposition: Disposition::Retry });
                }
            }
        }
    }

    /// Whether a write that failed is repeated. Credentials and permissions are refused for a while by a server that starts, and
    /// until a person grants them.
    fn failed(&mut self, claim: &ClaimReference, error: &AgentError) -> WriteOutcome {
        self.metrics.status_failed();
        let before = self.refused.remove(&claim.uid);
        if error.disposition == Disposition::Broken {
            self.refused.insert(claim.uid.clone(), clock::now() + self.refused_pause);
        }
        // A refusal that lasts is said once a claim.
        match before.filter(|_| error.disposition == Disposition::Broken) {
            None => tracing::warn!(claim = %claim, "the claim's status is not written: {error}"),
            Some(_) => tracing::debug!(claim = %claim, "the claim's status is still not written: {error}"),
        }
        match error.disposition {
            Disposition::Refuse => WriteOutcome::Ended,
            Disposition::Retry | Disposition::Broken => WriteOutcome::Later,
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

/// The status of a device that a claim holds.
fn held_status(grant: &Grant, enforcement: &EnforcementState) -> DeviceStatus {
    let share = (grant.sharing == Sharing::Shareable).then(|| grant.share.to_string());
    let part = grant.part.to_string();
    let (status, reason, message) = enforcement.condition();
    let enforced =
        Condition { kind: "Enforced", status, reason: reason.to_owned(), message, changed: clock::wall() };
    DeviceStatus {
        device: DeviceId { driver: DRIVER.to_owned(), ..grant.device.clone() },
        share,
        conditions: vec![ready("Prepared", format!("part `{part}` of card {}", grant.card)), enforced],
        data: json!({
            "card": grant.card.as_str(),
            "part": part,
            "memoryBytes": grant.memory.0,
            "coresPercent": grant.cores.percent(),
        }),
    }
}

/// The status of a device that a claim with administrative access reads.
fn monitored_status(device: &DeviceId) -> DeviceStatus {
    let message = "read with administrative access; nothing is held".to_owned();
    DeviceStatus {
        device: device.clone(),
        share: None,
        conditions: vec![ready("Monitored", message)],
        data: serde_json::Value::Null,
    }
}

fn ready(reason: &str, message: String) -> Condition {
    Condition {
        kind: "Ready",
        status: Truth::True,
        reason: reason.to_owned(),
        message,
        changed: clock::wall(),
    }
}
