//! What claims and the node tell the cluster: conditions in claim status, Events. One task, behind a bounded queue.
//!
//! ```text
//!  prepared ──▶ awaiting ── the view shows it ──▶ due ── a writer is free ──▶ writing ──▶ written
//!                  │ released, or VIEW is over      ▲                            │
//!                  ▼                                └── next look ── unwritten ◀─┘ failed, to be repeated
//!               nothing
//! ```
//!
//! What was written is believed for a while. An API server whose state is older than before, as after a restore from a backup,
//! gets every status again.
//!
//! The task itself never waits for a claim: each one has a wait of its own, so a claim that was released before the view showed it,
//! or a status that the API server does not answer, delays no other claim's status and no Event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::card::Card;
use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{DeviceId, Sharing};
use aliquot_core::grant::Grant;
use aliquot_core::id::{ClaimUid, ShareName};
use aliquot_core::offer::{CardOutcome, DRIVER, LayoutKind};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::metrics::{Metrics, Operation};
use super::observe::{EnforcementState, ShareUse};
use super::pace::AgentPace;
use super::service::{ClaimDevices, ClaimOutcome, OutcomeSink};
use super::store::{HeldClaim, NodeView};
use crate::checkpoint::ClaimKind;
use crate::clock;
use crate::ports::{
    AgentError, AgentEvent, BoxFuture, ClaimReference, Condition, DeviceStatus, EventObject, EventSeverity,
    EventSink, Publication, StatusWriter, Truth,
};

/// Most operations that wait to be reported; further ones are counted and not reported.
const QUEUE: usize = 1024;
/// Longest wait for one write of a status.
const WRITE: Duration = Duration::from_secs(10);
/// Tries of one write. A conflict with other writers of the same claim ends within a few.
const TRIES: u32 = 4;
/// Most statuses that are written at the same time.
const WRITERS: usize = 16;
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
    publication: watch::Receiver<Publication>,
    /// How often the server's state was older than before.
    restores: u64,
    metrics: Arc<Metrics>,
    pace: AgentPace,
    /// What the server has of enforcement, by claim and share.
    written: BTreeMap<(ClaimUid, ShareName), EnforcementState>,
    /// Claims whose status the server has, and since when.
    believed: BTreeMap<ClaimUid, (ClaimReference, Instant)>,
    /// Shares with an Event about a process that bypasses the shim, until they have none any more.
    bypassed: BTreeSet<(ClaimUid, ShareName)>,
    /// Devices that claims read and do not hold.
    monitored: BTreeMap<ClaimUid, Vec<DeviceId>>,
    /// Prepared claims that the node's view does not show yet, and how long they are waited for.
    awaiting: BTreeMap<ClaimUid, (ClaimReference, Instant)>,
    /// Claims with a status that is written as soon as a writer is free.
    due: BTreeMap<ClaimUid, ClaimReference>,
    /// Claims with a write in progress.
    writing: BTreeSet<ClaimUid>,
    /// Writes in progress.
    writes: FuturesUnordered<BoxFuture<'static, EndedWrite>>,
    /// Claims with a status that is to be written again at the next look.
    unwritten: BTreeMap<ClaimUid, ClaimReference>,
    /// Claims with a status that the server refused for reasons outside of the claim, and when it is written again.
    refused: BTreeMap<ClaimUid, Instant>,
}

/// A write that has ended.
struct EndedWrite {
    claim: ClaimReference,
    /// What it says of enforcement, by share.
    enforced: Vec<(ShareName, EnforcementState)>,
    result: Result<(), AgentError>,
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
        publication: watch::Receiver<Publication>,
        metrics: &Arc<Metrics>,
        pace: AgentPace,
    ) -> Self {
        let (queue, outcomes) = mpsc::channel(QUEUE);
        let (metrics, restores) = (Arc::clone(metrics), publication.borrow().restores);
        let task = ReportTask {
            status,
            events,
            views,
            uses,
            restores,
            publication,
            metrics: Arc::clone(&metrics),
            pace,
            written: BTreeMap::new(),
            believed: BTreeMap::new(),
            bypassed: BTreeSet::new(),
            monitored: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            due: BTreeMap::new(),
            writing: BTreeSet::new(),
            writes: FuturesUnordered::new(),
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
        self.metrics.claim_ended(&outcome.claim().uid, operation, error);
        if self.queue.upgrade().is_none_or(|queue| queue.try_send(outcome).is_err()) {
            self.metrics.report_dropped();
        }
    }
}

// === impl ReportTask ===

impl ReportTask {
    async fn run(mut self, mut outcomes: mpsc::Receiver<ClaimOutcome>) {
        loop {
            self.start_writes();
            tokio::select! {
                outcome = outcomes.recv() => match outcome {
                    Some(outcome) => self.note(outcome),
                    None => break,
                },
                Some(ended) = self.writes.next() => self.note_write(ended),
                Ok(()) = self.views.changed() => self.note_shown(),
                Ok(()) = self.uses.changed() => self.note_changes(),
                Ok(()) = self.publication.changed() => self.note_restore(),
            }
        }
        // The node's view changes no more: what it does not show is reported by the next agent.
        self.note_shown();
        self.start_writes();
        while let Some(ended) = self.writes.next().await {
            self.note_write(ended);
            self.start_writes();
        }
    }

    fn note(&mut self, outcome: ClaimOutcome) {
        match outcome {
            ClaimOutcome::Prepared(claim, devices) => self.note_prepared(claim, devices),
            ClaimOutcome::Failed(claim, error) => self.warn(&claim, prepare_reason(&error), error.message),
            ClaimOutcome::Stuck(claim, error) => self.warn(&claim, "ReleaseFailed", error.message),
            ClaimOutcome::Released(claim) => {
                self.awaiting.remove(&claim.uid);
                self.due.remove(&claim.uid);
                self.writing.remove(&claim.uid);
                self.monitored.remove(&claim.uid);
                self.unwritten.remove(&claim.uid);
                self.refused.remove(&claim.uid);
                self.believed.remove(&claim.uid);
                self.written.retain(|(uid, _), _| *uid != claim.uid);
            }
        }
    }

    /// The server has lost what it was told last: every status is due.
    fn note_restore(&mut self) {
        let restores = self.publication.borrow_and_update().restores;
        if std::mem::replace(&mut self.restores, restores) != restores {
            self.written.clear();
            self.due
                .extend(std::mem::take(&mut self.believed).into_iter().map(|(uid, (claim, _))| (uid, claim)));
        }
    }

    /// Statuses that were written long ago are due.
    fn note_age(&mut self) {
        let (now, longest) = (clock::now(), self.pace.believed);
        let (old, young): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.believed)
            .into_iter()
            .partition(|(_, (_, since))| now.duration_since(*since) > longest);
        self.believed = young;
        self.due.extend(old.into_iter().map(|(uid, (claim, _))| (uid, claim)));
    }

    /// The status of a claim is due once the node's view shows what it holds.
    fn note_prepared(&mut self, claim: ClaimReference, devices: ClaimDevices) {
        for doubtful in &devices.doubtful {
            self.warn(&claim, "AmountDoubtful", format!("claim {claim}: {doubtful}"));
        }
        if !devices.monitored.is_empty() {
            self.monitored.insert(claim.uid.clone(), devices.monitored);
        }
        if devices.held == 0 {
            self.due.insert(claim.uid.clone(), claim);
            return;
        }
        self.awaiting.insert(claim.uid.clone(), (claim, clock::now() + VIEW));
        self.note_shown();
    }

    /// Claims that the view shows are due. A view without a claim for so long is one that cannot be read, which the state task
    /// reports; the next view with the claim has its status written.
    fn note_shown(&mut self) {
        let view = self.views.borrow_and_update().clone();
        let now = clock::now();
        self.awaiting.retain(|_, (_, until)| *until > now);
        for held in view.iter().flat_map(|view| &view.claims) {
            if self.awaiting.is_empty() {
                break;
            }
            if let Some((claim, _)) = self.awaiting.remove(&held.uid) {
                self.due.insert(claim.uid.clone(), claim);
            }
        }
    }

    /// Statuses of claims with another enforcement than was written are due, and what could not be written before.
    fn note_changes(&mut self) {
        let uses = Arc::clone(&self.uses.borrow_and_update());
        self.note_age();
        let Some(view) = self.views.borrow().clone() else { return };
        self.tell_bypasses(&uses, &view.claims);
        let differs = |one: &ShareUse| {
            let key = (one.claim.clone(), one.share.clone());
            self.written.get(&key).is_none_or(|written| *written != one.enforcement)
        };
        let changed: BTreeSet<&ClaimUid> =
            uses.iter().filter(|one| differs(one)).map(|one| &one.claim).collect();
        let now = clock::now();
        let waits = |uid: &ClaimUid| self.refused.get(uid).is_some_and(|until| *until > now);
        let unwritten = std::mem::take(&mut self.unwritten);
        let (waiting, due): (BTreeMap<_, _>, BTreeMap<_, _>) =
            unwritten.into_iter().partition(|(uid, _)| waits(uid));
        let is_due = |held: &&HeldClaim| changed.contains(&held.uid) && !waits(&held.uid);
        let changed =
            view.claims.iter().filter(is_due).filter_map(|held| Some((held.uid.clone(), reference(held)?)));
        let changed: Vec<_> = changed.collect();
        self.unwritten = waiting;
        self.due.extend(due);
        self.due.extend(changed);
        let held: BTreeSet<&ClaimUid> = view.claims.iter().map(|held| &held.uid).collect();
        self.written.retain(|(uid, _), _| held.contains(uid));
    }

    /// Begins to write statuses that are due, one at a time for a claim.
    fn start_writes(&mut self) {
        if self.due.is_empty() || self.writes.len() >= WRITERS {
            return;
        }
        let view = self.views.borrow().clone();
        let ready: Vec<ClaimUid> = self
            .due
            .keys()
            .filter(|uid| !self.writing.contains(*uid))
            .take(WRITERS - self.writes.len())
            .cloned()
            .collect();
        for uid in ready {
            let Some(claim) = self.due.remove(&uid) else { continue };
            let held = view.iter().flat_map(|view| &view.claims).find(|held| held.uid == uid);
            let (devices, enforced) = self.statuses(&uid, held);
            // Without devices there is nothing to write.
            if devices.is_empty() {
                continue;
            }
            let status = Arc::clone(&self.status);
            self.writing.insert(uid);
            self.writes.push(Box::pin(async move {
                let result = try_to_write(status.as_ref(), &claim, &devices).await;
                EndedWrite { claim, enforced, result }
            }));
        }
    }

    fn note_write(&mut self, ended: EndedWrite) {
        let EndedWrite { claim, enforced, result } = ended;
        if !self.writing.remove(&claim.uid) {
            // Released meanwhile.
            return;
        }
        let outcome = match result {
            Ok(()) => WriteOutcome::Ended,
            Err(error) => self.failed(&claim, &error),
        };
        match outcome {
            WriteOutcome::Ended => {
                self.refused.remove(&claim.uid);
                self.believed.insert(claim.uid.clone(), (claim.clone(), clock::now()));
                let keys = enforced.into_iter().map(|(share, state)| ((claim.uid.clone(), share), state));
                self.written.extend(keys);
            }
            WriteOutcome::Later => drop(self.unwritten.insert(claim.uid.clone(), claim)),
        }
    }

    /// An Event for each share of which a process bypasses the shim since the last look.
    fn tell_bypasses(&mut self, uses: &[ShareUse], claims: &[HeldClaim]) {
        let is_bypassed = |one: &&ShareUse| matches!(one.enforcement, EnforcementState::Bypassed(_));
        let before = std::mem::take(&mut self.bypassed);
        for one in uses.iter().filter(is_bypassed) {
            let Some(claim) = claims.iter().find(|held| held.uid == one.claim).and_then(reference) else {
                continue;
            };
            let share = (one.claim.clone(), one.share.clone());
            if !before.contains(&share) {
                let (_, reason, message) = one.enforcement.condition();
                self.warn(&claim, reason, message);
            }
            self.bypassed.insert(share);
        }
    }

    /// The status of every device that a claim holds or reads, and what it says of enforcement.
    fn statuses(
        &self,
        claim: &ClaimUid,
        held: Option<&HeldClaim>,
    ) -> (Vec<DeviceStatus>, Vec<(ShareName, EnforcementState)>) {
        let uses = self.uses.borrow();
        let enforcement = |grant: &Grant| {
            let of_grant = |one: &&ShareUse| one.claim == grant.claim && one.share == grant.share;
            let state =
                uses.iter().find(of_grant).map_or(EnforcementState::Unused, |one| one.enforcement.clone());
            (grant.share.clone(), state)
        };
        let grants = held.map_or(&[][..], |held| &held.grants);
        let enforced: Vec<_> = grants.iter().map(enforcement).collect();
        let view = self.views.borrow().clone();
        let outcome = |grant: &Grant| view.as_ref().and_then(|view| view.offers.outcome(&grant.card));
        let card = |grant: &Grant| view.as_ref().and_then(|view| view.inventory.card(&grant.card));
        let of_grants = grants
            .iter()
            .zip(&enforced)
            .map(|(grant, (_, state))| held_status(grant, state, card(grant), outcome(grant)));
        let monitored = self.monitored.get(claim).into_iter().flatten().map(monitored_status);
        (of_grants.chain(monitored).collect(), enforced)
    }

    fn warn(&self, claim: &ClaimReference, reason: &'static str, message: String) {
        let about = EventObject::Claim(claim.clone());
        self.events.publish(AgentEvent { about, severity: EventSeverity::Warning, reason, message });
    }

    /// Whether a write that failed is repeated. Credentials and permissions are refused for a while by a server that starts, and
    /// until a person grants them.
    fn failed(&mut self, claim: &ClaimReference, error: &AgentError) -> WriteOutcome {
        self.metrics.status_failed();
        let before = self.refused.remove(&claim.uid);
        if error.disposition == Disposition::Broken {
            self.refused.insert(claim.uid.clone(), clock::now() + self.pace.refused);
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

/// Writes a status, again after conflicts and moments without a server.
async fn try_to_write(
    status: &dyn StatusWriter,
    claim: &ClaimReference,
    devices: &[DeviceStatus],
) -> Result<(), AgentError> {
    let mut attempt = 1;
    loop {
        match timeout(WRITE, status.write(claim, devices)).await {
            Ok(Err(error)) if error.disposition == Disposition::Retry && attempt < TRIES => attempt += 1,
            Ok(result) => return result,
            Err(_) => {
                let message = format!("no answer within {} s", WRITE.as_secs());
                return Err(AgentError { message, disposition: Disposition::Retry });
            }
        }
    }
}

/// The claim as the API server knows it; `None`: a local run.
pub(super) fn reference(held: &HeldClaim) -> Option<ClaimReference> {
    if held.kind == ClaimKind::Run {
        return None;
    }
    let (namespace, name) = held.name.split_once('/')?;
    Some(ClaimReference { namespace: namespace.to_owned(), name: name.to_owned(), uid: held.uid.clone() })
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
fn held_status(
    grant: &Grant,
    enforcement: &EnforcementState,
    card: Option<&Card>,
    outcome: Option<&CardOutcome>,
) -> DeviceStatus {
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
            "coresPercent": card.map_or(grant.cores, |card| grant.compute(card)).percent(),
            "layout": outcome.and_then(|outcome| outcome.layout).map(LayoutKind::as_str),
            "layoutReason": outcome.map(|outcome| outcome.reason.to_string()),
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
