//! What the kubelet's calls do: one task a claim, at most one at a time for the same claim.
//!
//! ```text
//!  NodePrepareResources ─▶ for each claim: task
//!     task: claim's turn ─▶ the node is ours, its offers known ─▶ GET claim, UID and allocation checked ─▶ node.prepare ─▶ answer, report
//!                                                              ▲ refused for an overlap: waits for a release, tries again
//!  call ends after 40 s, or 20 s after the agent's stop, with `Retry`; the task goes on, and the kubelet's next call finds its result
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{Access, DeviceId, ResourceClaim};
use aliquot_core::id::ClaimUid;
use aliquot_core::offer::amounts::{DoubtfulAmount, doubtful_amounts};
use futures::FutureExt as _;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{sleep, timeout, timeout_at};
use tracing::Instrument as _;

use super::answer::{devices, own_results};
use super::call_log::{CallLog, within_call};
use super::locks::ClaimLocks;
use super::maintenance::MaintenanceStage;
use super::metrics::{Metrics, Operation};
use super::pace::AgentPace;
use super::store::{NodeStore, NodeView, agent_error, may_clear, overlap_error};
use crate::clock;
use crate::kube::backoff::Backoff;
use crate::kubelet::dra::{ByClaim, ClaimHandler, WireClaim, WireDevice};
use crate::ports::{AgentError, BoxFuture, ClaimReader, ClaimReference, DesiredSlices};
use crate::prepare::PrepareError;
use crate::printable;

/// Longest wait for the offers of an agent that has just started.
const OFFERS: Duration = Duration::from_secs(10);
/// Time before another request to an API server that could not answer the last one, and the longest such time.
const READ_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Time between two looks whether processes of a claim still live, and most of them that a message names.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const PIDS_MAX: usize = 8;
/// Longest wait for an earlier agent to release the node; its answer precedes the end of the call.
const TAKEOVER: Duration = Duration::from_secs(35);
/// How long calls in progress at a stop are waited for: one of a card that hangs never returns.
const LAST_CALLS: Duration = Duration::from_secs(20);
/// Most claims of one call. A Pod has far fewer; more would only fill memory.
const CLAIMS_MAX: usize = 256;
/// Longest error of a UID, which repeats part of it.
const UID_ERROR_MAX: usize = 400;
/// Longest namespace or name, in bytes, as the API has it.
const NAME_BYTES_MAX: usize = 253;
/// Most calls of the node at once; further ones wait for their turn, and none is refused. It is above the Pods of a node (110 by
/// default): a card that hangs holds the calls of its own claims, and those for other cards go on.
const CALLS_MAX: usize = 256;

/// The handler of the kubelet's calls.
pub struct ClaimService(Arc<ServiceState>);

/// What happened to a claim.
#[derive(Clone, Debug)]
pub enum ClaimOutcome {
    /// Its containers can start.
    Prepared(ClaimReference, ClaimDevices),
    /// They cannot.
    Failed(ClaimReference, AgentError),
    /// It holds nothing any more.
    Released(ClaimReference),
    /// It still holds something.
    Stuck(ClaimReference, AgentError),
}

// === impl ClaimOutcome ===

impl ClaimOutcome {
    /// The claim.
    #[must_use]
    pub fn claim(&self) -> &ClaimReference {
        let (Self::Prepared(claim, _)
        | Self::Failed(claim, _)
        | Self::Released(claim)
        | Self::Stuck(claim, _)) = self;
        claim
    }
}

/// This driver's devices of a prepared claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimDevices {
    /// How many it holds.
    pub held: usize,
    /// Those that it reads with administrative access.
    pub monitored: Vec<DeviceId>,
    /// Its amounts that cannot be meant.
    pub doubtful: Vec<DoubtfulAmount>,
}

/// Receives what happened; never blocks.
pub trait OutcomeSink: Send + Sync + 'static {
    /// One operation ended after this time.
    fn ended(&self, outcome: ClaimOutcome, took: Duration);
}

/// What the service is made of.
pub struct ServiceParts {
    /// The node; `None` while an earlier agent owns it.
    pub node: watch::Receiver<Option<Arc<dyn NodeStore>>>,
    /// What the node offers; `None` until the server's version is known.
    pub offered: watch::Receiver<Option<DesiredSlices>>,
    /// How far the maintenance of the node is.
    pub maintenance: watch::Receiver<MaintenanceStage>,
    /// The node at the last look.
    pub views: watch::Receiver<Option<Arc<NodeView>>>,
    /// Becomes true when the agent ends: calls in progress end soon.
    pub draining: watch::Receiver<bool>,
    /// Claims of the API server.
    pub reader: Arc<dyn ClaimReader>,
    /// Counts calls in progress.
    pub metrics: Arc<Metrics>,
    /// Goes up with every change of the ledger.
    pub changed: watch::Sender<u64>,
    /// How long calls and their waits take at most.
    pub pace: AgentPace,
    /// Learns of every operation.
    pub outcomes: Arc<dyn OutcomeSink>,
}

struct ServiceState {
    parts: ServiceParts,
    log: CallLog,
    locks: Arc<ClaimLocks>,
    /// Wakes those that wait for an overlap to end.
    released: Notify,
    calls: Semaphore,
}

// === impl ClaimService ===

impl ClaimService {
    /// A service over a node.
    #[must_use]
    pub fn new(parts: ServiceParts) -> Self {
        let (locks, log, released) = (Arc::default(), CallLog::default(), Notify::new());
        Self(Arc::new(ServiceState { parts, log, locks, released, calls: Semaphore::new(CALLS_MAX) }))
    }

    /// Runs one task for each claim; equal UIDs share one.
    async fn each<T, F>(
        &self,
        operation: Operation,
        claims: Vec<WireClaim>,
        run: impl Fn(Arc<ServiceState>, ClaimReference) -> F,
    ) -> ByClaim<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, AgentError>> + Send + 'static,
    {
        let call = self.0.log.begins(operation, claims.len());
        let deadline = self.0.call_ends().shared();
        let mut results = BTreeMap::new();
        let mut running = Vec::new();
        let mut seen = BTreeSet::new();
        for (place, claim) in claims.into_iter().enumerate() {
            if !seen.insert(claim.uid.clone()) {
                continue;
            }
            match reference(&claim, place) {
                Ok(reference) => {
                    let task = run(Arc::clone(&self.0), reference).instrument(call.clone());
                    running.push((claim.uid, tokio::spawn(task)));
                }
                Err(error) => drop(results.insert(claim.uid, Err(error))),
            }
        }
        for (uid, task) in running {
            let result = tokio::select! {
                biased;
                ended = task => ended.unwrap_or_else(|error| {
                    Err(broken(format!("claim {uid}: the operation ended abnormally: {error}")))
                }),
                why = deadline.clone() => Err(retry(format!("claim {uid}: {why}; call again"))),
            };
            results.insert(uid, result);
        }
        results
    }
}

impl ClaimHandler for ClaimService {
    fn prepare(&self, claims: Vec<WireClaim>) -> BoxFuture<'_, ByClaim<Vec<WireDevice>>> {
        Box::pin(self.each(
            Operation::Prepare,
            claims,
            |shared, claim| async move { shared.prepare(claim).await },
        ))
    }

    fn unprepare(&self, claims: Vec<WireClaim>) -> BoxFuture<'_, ByClaim<()>> {
        Box::pin(
            self.each(
                Operation::Unprepare,
                claims,
                |shared, claim| async move { shared.unprepare(claim).await },
            ),
        )
    }
}

/// A claim's reference, if its names can be ones.
fn reference(claim: &WireClaim, place: usize) -> Result<ClaimReference, AgentError> {
    if place >= CLAIMS_MAX {
        return Err(refuse(format!(
            "claim {}: the call has more than {CLAIMS_MAX} claims",
            shown(&claim.uid)
        )));
    }
    let uid = ClaimUid::new(claim.uid.as_str())
        .map_err(|error| refuse(printable::line_of(&error.to_string(), UID_ERROR_MAX)))?;
    for (field, text) in [("namespace", &claim.namespace), ("name", &claim.name)] {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(plain) {
            return Err(refuse(format!(
                "claim {uid}: {field}: found `{}`, expected 1 to {NAME_BYTES_MAX} of a-z, 0-9, `-` and `.`",
                shown(text)
            )));
        }
    }
    Ok(ClaimReference { namespace: claim.namespace.clone(), name: claim.name.clone(), uid })
}

/// Untrusted text for a message.
fn shown(text: &str) -> String {
    printable::line_of(text, 80)
}

fn refuse(message: String) -> AgentError {
    AgentError { message, disposition: Disposition::Refuse }
}

fn retry(message: String) -> AgentError {
    AgentError { message, disposition: Disposition::Retry }
}

fn broken(message: String) -> AgentError {
    AgentError { message, disposition: Disposition::Broken }
}

// === impl ServiceState ===

impl ServiceState {
    /// Resolves once a call of now is to end without its result, with the reason.
    fn call_ends(&self) -> impl Future<Output = String> + Send + 'static {
        let (limit, mut draining) = (self.parts.pace.call, self.parts.draining.clone());
        async move {
            let stop = async {
                drop(draining.wait_for(|draining| *draining).await);
                sleep(LAST_CALLS).await;
            };
            tokio::select! {
                () = sleep(limit) => format!("still in progress after {} s", limit.as_secs()),
                () = stop => "still in progress as this agent ends".to_owned(),
            }
        }
    }

    async fn prepare(self: Arc<Self>, reference: ClaimReference) -> Result<Vec<WireDevice>, AgentError> {
        let (began, _counted) = (clock::now(), self.parts.metrics.begins(Operation::Prepare));
        let _turn = self.locks.turn(&reference.uid).await;
        let (outcome, result) = match self.prepare_in_turn(&reference).await {
            Ok((answer, devices)) => {
                tracing::info!(claim = %reference, devices = answer.len(), "prepared");
                (ClaimOutcome::Prepared(reference, devices), Ok(answer))
            }
            Err(error) => {
                tracing::warn!(claim = %reference, disposition = %error.disposition, "not prepared: {error}");
                (ClaimOutcome::Failed(reference, error.clone()), Err(error))
            }
        };
        self.parts.outcomes.ended(outcome, began.elapsed());
        result
    }

    async fn prepare_in_turn(
        self: &Arc<Self>,
        reference: &ClaimReference,
    ) -> Result<(Vec<WireDevice>, ClaimDevices), AgentError> {
        self.not_in_maintenance(reference)?;
        self.node().await?;
        self.offers_known().await;
        let claim = self.read(reference).await?;
        // It may have begun while the server was asked.
        self.not_in_maintenance(reference)?;
        if claim.uid != reference.uid.as_str() {
            return Err(refuse(format!(
                "claim {reference}: found UID {}, expected {}; the claim was deleted and created again",
                shown(&claim.uid),
                reference.uid
            )));
        }
        let ours = own_results(reference, &claim)?;
        let read = ours.iter().filter(|result| result.access == Access::Admin);
        let monitored: Vec<DeviceId> = read.map(|result| result.device.clone()).collect();
        let doubtful = doubtful_amounts(&claim);
        let devices_of = ClaimDevices { held: ours.len() - monitored.len(), monitored, doubtful };
        let mut held = claim.clone();
        if let Some(allocation) = &mut held.allocation {
            allocation.devices.retain(|result| result.access == Access::Normal);
        }
        let mut answer = Vec::new();
        if !devices_of.monitored.is_empty() {
            let attempt = claim.clone();
            let seen = self.on_node(move |node| node.monitor(&attempt)).await?;
            let seen = seen.map_err(|error| agent_error(&error))?;
            answer.extend(devices(reference, &seen, &claim, Access::Admin)?);
        }
        if devices_of.held > 0 {
            answer.extend(self.hold(reference, held).await?);
        }
        Ok((answer, devices_of))
    }

    /// Refuses a new claim for now, if the drivers are to be let go or are.
    fn not_in_maintenance(&self, reference: &ClaimReference) -> Result<(), AgentError> {
        let view = self.parts.views.borrow().clone();
        match self.parts.maintenance.borrow().refuses(&reference.uid, view.as_deref()) {
            None => Ok(()),
            Some(why) => Err(retry(format!("claim {reference}: {why}"))),
        }
    }

    /// The claim as the API server has it. A server that is overloaded or away for a moment is asked again: the kubelet's next
    /// try would come a minute later.
    async fn read(&self, reference: &ClaimReference) -> Result<ResourceClaim, AgentError> {
        let longest = self.parts.pace.read;
        let deadline = clock::now() + longest;
        let mut pauses = Backoff::new(READ_AGAIN.0, READ_AGAIN.1);
        loop {
            let answer = timeout_at(deadline.into(), self.parts.reader.read(reference)).await;
            let error = match answer {
                Ok(Err(error)) if error.disposition == Disposition::Retry => error,
                Ok(result) => return result,
                Err(_) => {
                    let message = format!(
                        "claim {reference}: the API server did not answer within {} s",
                        longest.as_secs()
                    );
                    return Err(retry(message));
                }
            };
            let pause = pauses.delay();
            if clock::now() + pause >= deadline {
                return Err(error);
            }
            tracing::debug!(claim = %reference, "asks the API server again: {error}");
            let mut draining = self.parts.draining.clone();
            tokio::select! {
                () = sleep(pause) => {}
                // The next agent asks.
                _ = draining.wait_for(|draining| *draining) => return Err(error),
            }
        }
    }

    /// Prepares the devices that a claim holds; waits for an overlap to end.
    async fn hold(
        self: &Arc<Self>,
        reference: &ClaimReference,
        claim: ResourceClaim,
    ) -> Result<Vec<WireDevice>, AgentError> {
        let claim = Arc::new(claim);
        let deadline = clock::now() + self.parts.pace.overlap;
        loop {
            let released = self.released.notified();
            let attempt = Arc::clone(&claim);
            match self.on_node(move |node| node.prepare(&attempt)).await? {
                Ok(prepared) => {
                    self.parts.changed.send_modify(|count| *count += 1);
                    return devices(reference, &prepared, &claim, Access::Normal);
                }
                Err(error) if may_clear(&error) && clock::now() < deadline => {
                    tracing::debug!(claim = %reference, "waits for an overlap to end: {error}");
                    let mut draining = self.parts.draining.clone();
                    tokio::select! {
                        // Without a release the next try is the last one.
                        _ = timeout_at(deadline.into(), released) => {}
                        // The release reaches the next agent, which waits for this one.
                        _ = draining.wait_for(|draining| *draining) => {
                            return Err(AgentError { disposition: Disposition::Retry, ..agent_error(&error) });
                        }
                    }
                }
                Err(error) => {
                    let refused = move |node: &dyn NodeStore| Ok(overlap_error(&error, node));
                    return Err(self.on_node(refused).await?.unwrap_or_else(|error| agent_error(&error)));
                }
            }
        }
    }

    async fn unprepare(self: Arc<Self>, reference: ClaimReference) -> Result<(), AgentError> {
        let (began, _counted) = (clock::now(), self.parts.metrics.begins(Operation::Unprepare));
        let _turn = self.locks.turn(&reference.uid).await;
        let result = match self.without_holders(&reference).await {
            Ok(()) => {
                let uid = reference.uid.clone();
                let released = self.on_node(move |node| node.release(&uid)).await?;
                released.map(|_| ()).map_err(|error| agent_error(&error))
            }
            Err(error) => Err(error),
        };
        let outcome = match &result {
            Ok(()) => {
                tracing::info!(claim = %reference, "released");
                self.parts.changed.send_modify(|count| *count += 1);
                self.released.notify_waiters();
                ClaimOutcome::Released(reference)
            }
            Err(error) => {
                tracing::warn!(claim = %reference, disposition = %error.disposition, "not released: {error}");
                ClaimOutcome::Stuck(reference, error.clone())
            }
        };
        self.parts.outcomes.ended(outcome, began.elapsed());
        result
    }

    /// Waits until no live process uses the claim. The kubelet ends containers before it gives a claim back; up to 1.36.3 it
    /// also gives back one that another Pod still uses, if a Pod with it is deleted before it was prepared.
    async fn without_holders(&self, reference: &ClaimReference) -> Result<(), AgentError> {
        let deadline = clock::now() + self.parts.pace.overlap;
        loop {
            let uid = reference.uid.clone();
            let Some(pids) = self.on_node(move |node| Ok(node.holders(&uid))).await?.ok().flatten() else {
                return Ok(());
            };
            let pids = pids.iter().take(PIDS_MAX).map(u32::to_string).collect::<Vec<_>>().join(", ");
            let error = retry(format!(
                "claim {reference}: found live processes that use it ({pids}), expected none once its Pods have ended; it is \
                 given back when they end"
            ));
            let mut draining = self.parts.draining.clone();
            if clock::now() >= deadline
                || timeout(LOOK_AGAIN, draining.wait_for(|draining| *draining)).await.is_ok()
            {
                return Err(error);
            }
        }
    }

    /// The node, once it is this agent's.
    async fn node(&self) -> Result<Arc<dyn NodeStore>, AgentError> {
        let mut node = self.parts.node.clone();
        let owned = match timeout(TAKEOVER, node.wait_for(Option::is_some)).await {
            Ok(owned) => owned.ok().and_then(|node| node.clone()),
            Err(_) => {
                return Err(retry(format!(
                    "the node: another process has held its state for {} s; call again",
                    TAKEOVER.as_secs()
                )));
            }
        };
        owned.ok_or_else(|| retry("the node: this agent ends without it; call again".to_owned()))
    }

    /// Waits until the node was looked at with the fields that the server keeps: they decide which devices it offers. A node that
    /// cannot be read as a whole serves claims all the same, after a while.
    async fn offers_known(&self) {
        let mut offered = self.parts.offered.clone();
        drop(timeout(OFFERS, offered.wait_for(Option::is_some)).await);
    }

    /// Runs one call of the node off the reactor.
    async fn on_node<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn NodeStore) -> Result<T, PrepareError> + Send + 'static,
    ) -> Result<Result<T, PrepareError>, AgentError> {
        let node = self.node().await?;
        let _permit = self.calls.acquire().await.map_err(|error| broken(error.to_string()))?;
        let called = tokio::task::spawn_blocking(within_call(move || call(node.as_ref()))).await;
        called.map_err(|error| broken(format!("the node's call ended abnormally: {error}")))
    }
}
