//! Permission to launch: what was charged for it, and where it is counted.

use super::*;

/// A launch that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(super) charged: Nanos,
    /// Deposit beyond the charge, until its bill.
    pub(super) deposit: Nanos,
    pub(super) counted: Option<LaunchCount>,
    /// The lane where a marker is due behind it.
    pub(super) mark: Option<usize>,
    /// Since when and where it counts as work without a marker.
    pub(super) unmarked: Option<(Nanos, UnmarkedWork)>,
}

impl Ticket {
    pub(super) const fn uncounted(price: Price) -> Self {
        Self { charged: price.cost, deposit: price.deposit, counted: None, mark: None, unmarked: None }
    }

    /// Whether [`Pace::launched`] has a marker to put.
    #[must_use]
    pub const fn is_marked(&self) -> bool {
        self.mark.is_some()
    }

    /// No marker will be behind it, as its context has none; `now` is the time of the ask.
    #[must_use]
    pub const fn without_markers(mut self, now: Nanos) -> Self {
        self.unmarked = Some((now, UnmarkedWork::Elsewhere));
        self
    }
}

/// Where a launch is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaunchCount {
    pub(super) stream: u64,
    /// Place of the lane.
    pub(super) at: usize,
    /// Tells its batch from others there.
    pub(super) opened: u32,
}
