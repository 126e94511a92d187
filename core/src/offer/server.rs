//! What the API server and scheduler make of what is published.

/// A Kubernetes 1.x control plane: its version, and which fields survive being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerVersion {
    /// Minor version: 36 for 1.36.2.
    pub minor: u32,
    /// Patch version: 2 for 1.36.2.
    pub patch: u32,
    /// Shared counters and what devices take from them.
    pub counters: Support,
    /// `allowMultipleAllocations` and request policies.
    pub shares: Support,
    /// Taints of devices.
    pub taints: Support,
}

/// Whether a field is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It is there when read back.
    Kept,
    /// It is dropped on write.
    Lost,
}

// === impl ServerVersion ===

impl ServerVersion {
    /// What 1.`minor`.`patch` does with default gates: counters, shares and taints from 1.36 on. Where the fields read
    /// back say otherwise, they are right; set [`Support`] accordingly.
    #[must_use]
    pub const fn with_default_gates(minor: u32, patch: u32) -> Self {
        let support = if minor >= 36 { Support::Kept } else { Support::Lost };
        Self { minor, patch, counters: support, shares: support, taints: support }
    }

    /// Whether counters cost little in the scheduler, so that `auto` may use them (from 1.37).
    #[must_use]
    pub const fn counters_are_cheap(self) -> bool {
        self.minor >= 37
    }

    /// Whether the scheduler forgets counters of shares between two Pods (1.36.0 and 1.36.1): overlapping partitions
    /// may be allocated, and the node refuses them.
    #[must_use]
    pub const fn forgets_counters(self) -> bool {
        self.minor < 36 || (self.minor == 36 && self.patch < 2)
    }

    /// Whether `resource.kubernetes.io/numaNode` is a standard attribute (from 1.37).
    #[must_use]
    pub const fn knows_numa_attribute(self) -> bool {
        self.minor >= 37
    }
}

impl Support {
    /// Whether it is kept.
    #[must_use]
    pub const fn is_kept(self) -> bool {
        matches!(self, Self::Kept)
    }
}

impl std::fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}
