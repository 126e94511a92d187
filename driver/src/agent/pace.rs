//! How long the agent waits.

use std::time::Duration;

/// How long an agent waits.
#[derive(Clone, Copy, Debug)]
pub struct AgentPace {
    /// Time between two looks at the node without a change.
    pub look: Duration,
    /// A look that takes longer makes the health of every card unknown: below the time for which the kubelet believes a report.
    pub answer: Duration,
    /// A call ends after so long, and its claims are tried again: the kubelet's own limit is 45 s.
    pub call: Duration,
    /// Longest wait of a prepare for an answer of the API server that does not ask for another try.
    pub read: Duration,
    /// Longest wait of a prepare for an overlap to end. The kubelet's next try would come after 60 to 90 s.
    pub overlap: Duration,
    /// Time between two writes of a claim's status while the API server refuses the agent's credentials or permissions, as one that
    /// starts does for a while.
    pub refused: Duration,
    /// Age from which on a written status is read again, and written where it is not there any more: one request a claim.
    pub believed: Duration,
    /// Time for which neither the kubelet nor the API server knows a claim, and no process uses it, before it is released.
    pub grace: Duration,
}

// === impl AgentPace ===

impl AgentPace {
    /// In service.
    pub const SERVICE: Self = Self {
        look: Duration::from_secs(5),
        answer: Duration::from_secs(20),
        call: Duration::from_secs(40),
        read: Duration::from_secs(10),
        overlap: Duration::from_secs(20),
        refused: Duration::from_secs(60),
        believed: Duration::from_secs(900),
        grace: aliquot_core::orphans::GRACE,
    };
}
