//! A node as an agent uses it, with the test before each change of a claim and each look.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_core::dra::ResourceClaim;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::offer::ServerVersion;
use aliquot_core::orphans::ClaimUse;
use aliquot_core::ports::{BackendError, PartitionAt};
use aliquot_driver::agent::store::{HeldClaim, NodeStore, NodeView};
use aliquot_driver::prepare::{PrepareError, PreparedClaim, ReleaseOutcome};

/// A call that is about to reach the node.
#[derive(Clone, Copy, Debug)]
pub enum StoreCall<'c> {
    /// The claim is prepared.
    Prepare(&'c ResourceClaim),
    /// The claim is released.
    Release(&'c ClaimUid),
    /// The node is read.
    View,
}

/// A node with calls that a test watches, and may hold back.
pub struct WatchedStore {
    node: Arc<dyn NodeStore>,
    before: Box<dyn Fn(StoreCall<'_>) + Send + Sync>,
}

// === impl WatchedStore ===

impl WatchedStore {
    /// A node; `before` runs ahead of each call, on the call's own thread.
    #[must_use]
    pub fn before_each(
        node: Arc<dyn NodeStore>,
        before: impl Fn(StoreCall<'_>) + Send + Sync + 'static,
    ) -> Arc<dyn NodeStore> {
        Arc::new(Self { node, before: Box::new(before) })
    }
}

impl NodeStore for WatchedStore {
    fn prepare(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        (self.before)(StoreCall::Prepare(claim));
        self.node.prepare(claim)
    }

    fn monitor(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        self.node.monitor(claim)
    }

    fn release(&self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        (self.before)(StoreCall::Release(uid));
        self.node.release(uid)
    }

    fn ending(&self, uid: &ClaimUid) -> Option<String> {
        self.node.ending(uid)
    }

    fn holders(&self, uid: &ClaimUid) -> Option<BTreeSet<u32>> {
        self.node.holders(uid)
    }

    fn uses(&self, claims: &[HeldClaim]) -> Vec<ClaimUse> {
        self.node.uses(claims)
    }

    fn end_runs(&self) -> Vec<String> {
        self.node.end_runs()
    }

    fn missing_partitions(&self, card: &CardUuid) -> Result<Vec<PartitionAt>, BackendError> {
        self.node.missing_partitions(card)
    }

    fn view(&self, server: ServerVersion) -> Result<NodeView, BackendError> {
        (self.before)(StoreCall::View);
        self.node.view(server)
    }
}
