//! How a world decides: the release it follows, and the bounds of its searches.

/// Whether the world may remember what a search found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Refusals and used-up devices are remembered until something is released. The answers are the same.
    #[default]
    Kept,
    /// Every search starts from nothing.
    Off,
}

/// The scheduler release to follow where releases differ; `docs/developer/upstream-differences.md` lists
/// where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Kubernetes 1.36 and before.
    #[default]
    V1_36,
    /// Kubernetes 1.37 and later.
    V1_37,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most steps (a device looked at, or a request entered) of one search on one node.
    pub steps_max: u64,
    /// Steps after which indistinguishable devices are tried once. The answers are the same.
    pub steps_before_twins: u64,
    /// What is remembered between searches.
    pub memory: Memory,
}

impl Default for Limits {
    fn default() -> Self {
        // Upstream stops after 10 s a node. Ten million steps are about a second, and far beyond what any claim needs
        // that can be served.
        // Nearly every search is far shorter than the twins' thousands, and is not held up by looking for them.
        Self { steps_max: 10_000_000, steps_before_twins: 5_000, memory: Memory::Kept }
    }
}
