//! What evaluations cost, and what one may still cost.

use super::value::{Fault, Outcome};

/// What evaluations cost, in upstream's unit: one for a selection or a call, a tenth for each character or element that
/// a call walks over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub u64);

/// What an evaluation may still cost.
///
/// The unit is that of [`Cost`].
#[derive(Debug)]
pub(super) struct Meter {
    left: u64,
}

// === impl Cost ===

impl Cost {
    /// Upstream's limit for the evaluation of one selector, and for its estimate when it is stored.
    pub const MAX: Self = Self(1_000_000);
    /// The estimate of what has no bound is at least this.
    pub const UNBOUNDED: Self = Self(u64::MAX / 100);
}

// === impl Meter ===

impl Meter {
    /// A meter that nothing has been taken from.
    pub(super) const fn full() -> Self {
        Self::of(Cost::MAX.0)
    }

    /// A meter from which so much can be taken.
    pub(super) const fn of(left: u64) -> Self {
        Self { left }
    }

    /// What it has left.
    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    /// Takes `cost`, or stops the evaluation.
    pub(super) fn charge(&mut self, cost: u64) -> Outcome<()> {
        self.left = self.left.checked_sub(cost).ok_or(Fault::Budget)?;
        Ok(())
    }

    /// Takes what walking over `size` characters or elements costs.
    pub(super) fn charge_size(&mut self, size: usize) -> Outcome<()> {
        self.charge(u64::try_from(size).unwrap_or(u64::MAX) / 10 + 1)
    }

    /// Takes what comparing each of `size` elements with each of `others` costs.
    pub(super) fn charge_product(&mut self, size: usize, others: usize) -> Outcome<()> {
        self.charge(u64::try_from(size.saturating_mul(others)).unwrap_or(u64::MAX))
    }
}
