//! The node as the agent uses it: blocking calls, a view of everything that is published or measured.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_abi::limits::MemoryLimit;
use aliquot_core::card::Inventory;
use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{Access, DeviceResult, ResourceClaim};
use aliquot_core::grant::Grant;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::ledger::CardReport;
use aliquot_core::offer::{DRIVER, Offers, ServerVersion};
use aliquot_core::orphans::ClaimUse;
use aliquot_core::plan;
use aliquot_core::ports::{BackendError, LivePartition, PartitionAt};

use crate::checkpoint::{ClaimKind, ClaimRecord};
use crate::error_text::chain;
use crate::grant_file;
use crate::node::{NodeService, NodeSnapshot};
use crate::ports::AgentError;
use crate::prepare::{PrepareError, PreparedClaim, ReleaseOutcome};
use crate::printable;
use crate::region;
use crate::run::processes::mounted_claims;
use crate::run::record::{SweepOutcome, holders_of_claim, sweep};

/// A claim of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    /// UID.
    pub uid: ClaimUid,
    /// `namespace/name`.
    pub name: String,
    /// Which processes use it.
    pub kind: ClaimKind,
    /// What it holds.
    pub grants: Vec<Grant>,
}

/// Everything about the node at one moment.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// The cards.
    pub inventory: Inventory,
    /// What is published of them.
    pub offers: Offers,
    /// Used and free, by card.
    pub cards: Vec<CardReport>,
    /// Claims that are prepared or in the making.
    pub claims: Vec<HeldClaim>,
    /// Partitions that were made for claims.
    pub partitions: Vec<LivePartition>,
}

/// The node. Calls block; they run off the reactor.
pub trait NodeStore: Send + Sync + 'static {
    /// Makes a claim ready; repeating it repairs what is absent.
    ///
    /// # Errors
    /// [`PrepareError`]; the node is as before, or the journal says what is left to undo.
    fn prepare(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError>;

    /// Gives a claim devices to read; it holds nothing.
    ///
    /// # Errors
    /// [`PrepareError`]; nothing was changed.
    fn monitor(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError>;

    /// Gives a claim back, and what it monitors; an unknown one is given back already.
    ///
    /// # Errors
    /// [`PrepareError`]; the journal says what is left to undo.
    fn release(&self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError>;

    /// What ends the holding of a claim, in words; `None`: it holds nothing.
    fn ending(&self, uid: &ClaimUid) -> Option<String>;

    /// The process ids, as far as they are known, of live processes that use a claim's grants; `None`: there is none.
    fn holders(&self, uid: &ClaimUid) -> Option<BTreeSet<u32>>;

    /// Whether processes use these claims of containers, in their order: those in a container of the claim, those with a process
    /// slot, and those on a part that the claim has alone.
    fn uses(&self, claims: &[HeldClaim]) -> Vec<ClaimUse>;

    /// Gives back the parts of local runs that have ended beside the agent: which, or why not.
    fn end_runs(&self) -> Vec<String>;

    /// Partitions that the journal has on a card and that are not there as they were made.
    ///
    /// # Errors
    /// [`BackendError`] if the hardware cannot be asked.
    fn missing_partitions(&self, card: &CardUuid) -> Result<Vec<PartitionAt>, BackendError>;

    /// The node now, with offers for a server that keeps these fields.
    ///
    /// # Errors
    /// [`BackendError`] if the hardware cannot be asked.
    fn view(&self, server: ServerVersion) -> Result<NodeView, BackendError>;
}

// === impl NodeService ===

impl NodeStore for NodeService {
    fn prepare(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        Self::prepare(self, claim)
    }

    fn monitor(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        let results = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
        let admin: Vec<&DeviceResult> =
            results.filter(|r| r.access == Access::Admin && r.device.driver == DRIVER).collect();
        Self::monitor(self, claim, &admin)
    }

    fn release(&self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        // Neither keeps the other from being given back.
        let monitored = self.end_monitoring(uid);
        let released = Self::release(self, uid);
        monitored.and(released)
    }

    fn ending(&self, uid: &ClaimUid) -> Option<String> {
        let claims = self.claims();
        let ClaimRecord { plan, kind, .. } = claims.iter().find(|record| record.plan.claim == *uid)?;
        Some(match kind {
            ClaimKind::Container => format!("{} ends with its Pods", plan.name),
            ClaimKind::Run => {
                let state = self.state_dir().display();
                format!("`aliquot stop {uid} --state {state}` on the node ends {}", plan.name)
            }
        })
    }

    fn holders(&self, uid: &ClaimUid) -> Option<BTreeSet<u32>> {
        holders_of_claim(self.grants_dir().join(uid.as_str()))
    }

    fn uses(&self, claims: &[HeldClaim]) -> Vec<ClaimUse> {
        match mounted_claims() {
            Ok(mounted) => claims.iter().map(|claim| claim_use(self, claim, &mounted)).collect(),
            Err(error) => {
                tracing::warn!("containers of claims cannot be told from /proc: {error}");
                vec![ClaimUse::Unanswered; claims.len()]
            }
        }
    }

    fn end_runs(&self) -> Vec<String> {
        match sweep(&mut &*self, self.state_dir()) {
            Ok(swept) => swept.iter().filter_map(told).collect(),
            Err(error) => vec![format!("records of local runs cannot be read: {error}")],
        }
    }

    fn missing_partitions(&self, card: &CardUuid) -> Result<Vec<PartitionAt>, BackendError> {
        Self::missing_partitions(self, card)
    }

    fn view(&self, server: ServerVersion) -> Result<NodeView, BackendError> {
        let NodeSnapshot { inventory, offers, cards, claims, partitions } = self.snapshot(server)?;
        let (offers, claims) = (Offers::clone(&offers), claims.into_iter().map(held).collect());
        Ok(NodeView { inventory, offers, cards, claims, partitions })
    }
}

fn held(record: ClaimRecord) -> HeldClaim {
    let plan = record.plan;
    HeldClaim { uid: plan.claim, name: plan.name, kind: record.kind, grants: plan.grants }
}

/// Whether processes use a claim, of which containers with `mounted` claims run.
fn claim_use(node: &NodeService, claim: &HeldClaim, mounted: &BTreeSet<String>) -> ClaimUse {
    if mounted.contains(claim.uid.as_str()) || node.holders(&claim.uid).is_some() {
        return ClaimUse::Used;
    }
    // On a part with a memory limit the hardware has the processes of other claims as well; ours have a slot, or a container.
    let is_shared = |grant: &&Grant| {
        let place = grant_file::place(node.grants_dir(), &grant.claim, &grant.share);
        region::read(&place.limits()).is_ok_and(|limits| limits.memory != MemoryLimit::Unlimited)
    };
    for grant in claim.grants.iter().filter(|grant| !is_shared(grant)) {
        match node.has_processes(grant) {
            Ok(Some(true)) => return ClaimUse::Used,
            Ok(_) => {}
            // A partition that is gone has no processes.
            Err(BackendError::Absent { .. }) => {}
            Err(error) => {
                tracing::debug!(claim = %claim.name, "its processes cannot be told: {}", chain(&error));
                return ClaimUse::Unanswered;
            }
        }
    }
    ClaimUse::Unused
}

impl<S: NodeStore + ?Sized> NodeStore for Arc<S> {
    fn prepare(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        self.as_ref().prepare(claim)
    }

    fn monitor(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        self.as_ref().monitor(claim)
    }

    fn release(&self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        self.as_ref().release(uid)
    }

    fn ending(&self, uid: &ClaimUid) -> Option<String> {
        self.as_ref().ending(uid)
    }

    fn holders(&self, uid: &ClaimUid) -> Option<BTreeSet<u32>> {
        self.as_ref().holders(uid)
    }

    fn uses(&self, claims: &[HeldClaim]) -> Vec<ClaimUse> {
        self.as_ref().uses(claims)
    }

    fn end_runs(&self) -> Vec<String> {
        self.as_ref().end_runs()
    }

    fn missing_partitions(&self, card: &CardUuid) -> Result<Vec<PartitionAt>, BackendError> {
        self.as_ref().missing_partitions(card)
    }

    fn view(&self, server: ServerVersion) -> Result<NodeView, BackendError> {
        self.as_ref().view(server)
    }
}

/// What the log says of a local run's record; `None`: the run goes on.
pub(super) fn told(swept: &SweepOutcome) -> Option<String> {
    match swept {
        SweepOutcome::Released(uid) => Some(format!("local run {uid} has ended; its part is given back")),
        SweepOutcome::Running(_) => None,
        SweepOutcome::Stuck(uid, error) => Some(format!(
            "local run {uid} has ended, and its part cannot be given back now: {}",
            chain(&**error)
        )),
        SweepOutcome::Odd(path, error) => Some(format!(
            "{} is no record of a local run, or cannot be used: {error}; remove it",
            path.display()
        )),
    }
}

// === errors ===

/// Whether a refusal ends when another claim is given back.
pub(super) fn may_clear(error: &PrepareError) -> bool {
    match error {
        PrepareError::Refused(refusal) => matches!(**refusal, plan::PlanRefusal::Held { .. }),
        PrepareError::Hardware { source, .. } => matches!(
            **source,
            BackendError::AlreadyThere { .. } | BackendError::NoRoom { .. } | BackendError::Busy { .. }
        ),
        PrepareError::Keeps { source, .. } => may_clear(source),
        _ => false,
    }
}

/// Longest text of an error that the kubelet, an Event and the log repeat: names in it may come from anywhere.
const TEXT_MAX: usize = 1000;

/// Most holders of an overlap whose end a message names.
const ENDS_MAX: usize = 3;

/// The error for other parts: its causes in one printable line, and what the caller does.
pub(super) fn agent_error(error: &PrepareError) -> AgentError {
    let advice = match error.refusal() {
        Some(plan::PlanRefusal::Unhealthy { .. }) => "; delete the Pod, so that the scheduler does that",
        Some(plan::PlanRefusal::UnknownDevice { .. }) => {
            "; delete the Pod, and the claim if it was not made for the Pod, and create them again"
        }
        _ => "",
    };
    let message = printable::line_of(&format!("{}{advice}", chain(error)), TEXT_MAX);
    AgentError { message, disposition: error.disposition() }
}

/// The error for an overlap that did not end while the call waited. Held by claims alone it ends with these: a Pod that was deleted
/// by force is still to be unprepared. The kubelet's next call may succeed, and the message names what ends each holder.
pub(super) fn overlap_error(error: &PrepareError, node: &dyn NodeStore) -> AgentError {
    let holders = error.holding_claims();
    if holders.is_empty() {
        return agent_error(error);
    }
    let mut ends: Vec<String> = holders.iter().filter_map(|uid| node.ending(uid)).collect();
    ends.sort();
    ends.dedup();
    ends.truncate(ENDS_MAX);
    let ends = if ends.is_empty() { "they have ended meanwhile".to_owned() } else { ends.join("; ") };
    let message = printable::line_of(&format!("{}; {ends}; the kubelet tries again", chain(error)), TEXT_MAX);
    AgentError { message, disposition: Disposition::Retry }
}
