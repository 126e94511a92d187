//! What a caller does about an error: the gRPC answer, the exit code, the Event reason and the metric label derive from it.

use std::fmt;

/// What a caller does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disposition {
    /// Transient: the same call may succeed later, unchanged.
    Retry,
    /// The request is wrong or overlaps another one: a person changes it, or the holder gives it up.
    Refuse,
    /// Hardware, disk or configuration of the node is broken: a person repairs it.
    Broken,
}

// === impl Disposition ===

impl Disposition {
    /// The word of metric labels and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Refuse => "refuse",
            Self::Broken => "broken",
        }
    }
}

impl fmt::Display for Disposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
