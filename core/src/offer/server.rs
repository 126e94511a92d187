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
    /// How many nodes of the cluster have counters.
    pub counter_nodes: CounterNodes,
}

/// The nodes of a cluster that publish counters, or would where layout `auto` uses them. Before 1.37 each of them costs
/// the scheduler time for every Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterNodes {
    /// So few that `auto` uses counters.
    Few(u32),
    /// So many that it does not.
    Many(u32),
    /// They cannot be counted: `auto` uses no counters.
    Unknown,
}

/// What layout `auto` made of counters when it decided last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CounterStance {
    /// It uses them, or the policy demands them.
    Published,
    /// It does without, because of the number of nodes.
    Withheld,
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
        let counter_nodes = CounterNodes::Few(1);
        Self { minor, patch, counters: support, shares: support, taints: support, counter_nodes }
    }

    /// The same in a cluster with these nodes.
    #[must_use]
    pub const fn among(self, counter_nodes: CounterNodes) -> Self {
        Self { counter_nodes, ..self }
    }

    /// Whether counters cost little in the scheduler, however many nodes publish them (from 1.37).
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

// === impl CounterNodes ===

impl CounterNodes {
    /// Most nodes with counters at which `auto` uses them.
    pub const FEW_MAX: u32 = 20;
    /// Most nodes at which it uses them again after it did without: a node that comes and goes changes no layout.
    pub const FEW_AGAIN_MAX: u32 = 16;

    /// The verdict on this number, after the last decision.
    #[must_use]
    pub const fn judge(count: u32, before: Option<CounterStance>) -> Self {
        let most = match before {
            Some(CounterStance::Withheld) => Self::FEW_AGAIN_MAX,
            Some(CounterStance::Published) | None => Self::FEW_MAX,
        };
        if count <= most { Self::Few(count) } else { Self::Many(count) }
    }

    /// Whether `auto` uses counters before 1.37.
    #[must_use]
    pub const fn are_few(self) -> bool {
        matches!(self, Self::Few(_))
    }
}

// === impl CounterStance ===

impl CounterStance {
    /// As the value of a label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Withheld => "withheld",
        }
    }

    /// From the value of a label.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        [Self::Published, Self::Withheld].into_iter().find(|known| known.as_str() == text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_nodes_changes_the_verdict_with_hysteresis() {
        let judge = |count, before| CounterNodes::judge(count, before).are_few();
        for (count, fresh, published, withheld) in [
            (1, true, true, true),
            (16, true, true, true),
            (17, true, true, false),
            (20, true, true, false),
            (21, false, false, false),
        ] {
            assert_eq!(judge(count, None), fresh, "{count}");
            assert_eq!(judge(count, Some(CounterStance::Published)), published, "{count}");
            assert_eq!(judge(count, Some(CounterStance::Withheld)), withheld, "{count}");
        }
    }
}
