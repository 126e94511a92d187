//! The node as the agent uses it: blocking calls, a view of everything that is published or measured.

use std::sync::Arc;

use aliquot_core::card::Inventory;
use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{Access, DeviceResult, ResourceClaim};
use aliquot_core::grant::Grant;
use aliquot_core::id::ClaimUid;
use aliquot_core::ledger::CardReport;
use aliquot_core::offer::{DRIVER, Offers, ServerVersion};
use aliquot_core::plan;
use aliquot_core::ports::BackendError;
use parking_lot::Mutex;

use super::ports::AgentError;
use crate::checkpoint::ClaimRecord;
use crate::error_text::chain;
use crate::node::Node;
use crate::prepare::{PrepareError, PreparedClaim, Released};

/// A claim of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    /// UID.
    pub uid: ClaimUid,
    /// `namespace/name`.
    pub name: String,
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
    fn release(&self, uid: &ClaimUid) -> Result<Released, PrepareError>;

    /// The node now, with offers for a server that keeps these fields.
    ///
    /// # Errors
    /// [`BackendError`] if the hardware cannot be asked.
    fn view(&self, server: ServerVersion) -> Result<NodeView, BackendError>;
}

// === impl Mutex<Node> ===

impl NodeStore for Mutex<Node> {
    fn prepare(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        let mut node = self.lock();
        let prepared = node.prepare(claim);
        for note in node.take_notes() {
            tracing::warn!("{note}");
        }
        prepared
    }

    fn monitor(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        let results = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
        let admin: Vec<&DeviceResult> =
            results.filter(|r| r.access == Access::Admin && r.device.driver == DRIVER).collect();
        self.lock().monitor(claim, &admin)
    }

    fn release(&self, uid: &ClaimUid) -> Result<Released, PrepareError> {
        let mut node = self.lock();
        node.end_monitoring(uid)?;
        node.release(uid)
    }

    fn view(&self, server: ServerVersion) -> Result<NodeView, BackendError> {
        let mut node = self.lock();
        let offers = node.renew_offers(server)?.clone();
        let (inventory, ledger) = (node.inventory()?, node.ledger()?);
        let reports = inventory.cards.iter().filter_map(|card| ledger.report(&card.uuid));
        Ok(NodeView {
            cards: reports.collect(),
            claims: node.claims().map(held).collect(),
            offers,
            inventory,
        })
    }
}

fn held(record: &ClaimRecord) -> HeldClaim {
    let plan = &record.plan;
    HeldClaim { uid: plan.claim.clone(), name: plan.name.clone(), grants: plan.grants.clone() }
}

impl<S: NodeStore + ?Sized> NodeStore for Arc<S> {
    fn prepare(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        self.as_ref().prepare(claim)
    }

    fn monitor(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        self.as_ref().monitor(claim)
    }

    fn release(&self, uid: &ClaimUid) -> Result<Released, PrepareError> {
        self.as_ref().release(uid)
    }

    fn view(&self, server: ServerVersion) -> Result<NodeView, BackendError> {
        self.as_ref().view(server)
    }
}

// === errors ===

/// Whether a refusal ends when another claim is given back.
pub(super) fn may_clear(error: &PrepareError) -> bool {
    match error {
        PrepareError::Refused(refusal) => matches!(**refusal, plan::Refusal::Held { .. }),
        PrepareError::Hardware { source, .. } => matches!(
            **source,
            BackendError::AlreadyThere { .. } | BackendError::NoRoom { .. } | BackendError::Busy { .. }
        ),
        PrepareError::Keeps { source, .. } => may_clear(source),
        _ => false,
    }
}

/// The error for other parts: its causes in one line, and what the caller does.
pub(super) fn agent_error(error: &PrepareError) -> AgentError {
    AgentError { message: chain(error), disposition: disposition(error) }
}

fn disposition(error: &PrepareError) -> Disposition {
    match error {
        error if may_clear(error) => Disposition::Refuse,
        PrepareError::Hardware { .. } | PrepareError::Vanished { .. } => Disposition::Retry,
        PrepareError::Journal(_) | PrepareError::Grant { .. } | PrepareError::Cdi { .. } => {
            Disposition::Broken
        }
        _ => Disposition::Refuse,
    }
}
