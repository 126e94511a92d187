//! One agent at a time owns a node's state. During a rolling update two agents run; this is how the second comes to it.
//!
//! ```text
//!  earlier agent   serves ───────────────▶ SIGTERM: registration removed, calls drained, state released
//!  later agent     opens the state (waits) ─▶ registers ─▶ ready; calls wait ──▶ owns the state, answers
//! ```
//!
//! The lock of the state directory is the hand-over. A kubelet calls the endpoint that registered last, so the later agent
//! registers before the earlier one ends, and no call meets a node without a plugin.

use std::sync::Arc;

use parking_lot::Mutex;

use super::failure::AgentFailure;
use super::governors::CardsInUse;
use super::store::NodeStore;
use crate::ports::BoxFuture;

/// A node, open for changes.
pub struct OpenNode {
    /// The node.
    pub store: Arc<dyn NodeStore>,
    /// What governs cards in use.
    pub governors: Arc<Mutex<dyn CardsInUse>>,
}

/// How the agent comes to its node.
pub enum NodeSource {
    /// It is open: the kubelet learns of the agent after the recovery.
    Open(OpenNode),
    /// Another process owns the state, or the recovery takes long: the agent registers, and calls wait.
    Awaited(BoxFuture<'static, Result<OpenNode, AgentFailure>>),
}
