//! Card time below a tenant's guarantee that went to other tenants' long kernels, and its repayment.
//!
//! A kernel of one second and its neighbours' kernels get equal turns, whatever the guarantees: a tenant of 60 % gets half of the
//! card. Afterwards the long kernel's tenant waits until its debt is earned. The card idles meanwhile, because no grant rises.
//! This module gives that idle time to the tenants that fell short:
//!
//! ```text
//!   card:  │ B C B C B C B C B C │ C · C · C C │      C is granted 60 %
//!   owed:    rises                 falls: C gets its 60 %, and idle time up to its debt
//! ```
//!
//! The vendor's windows report the time of each tenant and the idle time. Time is not owed if the tenant had no work on the
//! card, or if no other tenant used it. Time beyond the guarantee is deducted, whatever its source.
//!
//! A window reports idle time only after its end, when kernels of about that length have returned. So the budget is recent idle
//! time. The governor pays it out whenever the tenant waits for credit; during others' turns the tenant waits for its turn instead.

use crate::ablation::Heuristic;
use crate::bucket::SAVED_MAX;
use crate::units::Nanos;

/// Most that is owed: as much as may be saved up for a launch that takes long.
const OWED_MAX: Nanos = SAVED_MAX;
/// Divisor of the debt forgotten in each window: half of it decays in seven seconds.
const FORGET: i64 = 64;
/// Divisor of the idle time forgotten in each window: it counts for somewhat more than a second.
const RESTED: i64 = 8;
/// Windows beside other tenants before idle time counts: the first launches wait for bills, which measure their kernels.
const BEGINS: u32 = 12;
/// Divisor of a window that is idle under any load: the vendor's percentages hide it, and new tenants' turns cause it.
const REST: u64 = 50;

/// What one tenant is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwedTime {
    /// In nanoseconds; negative: it had more than its guarantee.
    sum: i64,
    /// Recent idle time that could have been paid out.
    rested: i64,
    /// To be paid out before the next window ends.
    due: i64,
    /// Paid out since the last window ended.
    given: i64,
    /// Windows beside others, up to [`BEGINS`].
    windows: u32,
}

/// One of the vendor's windows, for one tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VendorWindow {
    /// Length of the window.
    pub(crate) length: Nanos,
    /// The tenant's guarantee in it.
    pub(crate) promised: Nanos,
    /// Card time of the tenant.
    pub(crate) own: Nanos,
    /// Time in which the tenant's work on the card waited for others' turns.
    pub(crate) waited: Nanos,
    /// Time in which the card was idle.
    pub(crate) idle: Nanos,
}

impl OwedTime {
    pub(crate) const fn nothing() -> Self {
        Self { sum: 0, rested: 0, due: 0, given: 0, windows: 0 }
    }

    /// Accounts for one window.
    pub(crate) fn window(&mut self, had: &VendorWindow) {
        // Idle time without the part that is idle under any load.
        let others = had.length.minus(had.idle).minus(had.own);
        let rests = had.idle.minus(Nanos(had.length.0 / REST));
        // The tenant did not want the idle time, or something else kept it from launching.
        let less = had.promised.minus(had.own).min(had.waited).min(others).minus(rests).signed();
        let more = had.own.minus(had.promised).signed();
        let forgotten = self.sum.max(0) / FORGET;
        let sum = self.sum.saturating_sub(forgotten).saturating_add(less).saturating_sub(more);
        self.sum = sum.clamp(-had.promised.signed(), OWED_MAX.signed());
        self.windows = (self.windows + 1).min(BEGINS);
        let rests = if self.windows < BEGINS { Nanos::ZERO } else { rests };
        // Paid-out time that the tenant used becomes idle again once it uses less.
        let rests = rests.signed().saturating_add(more.clamp(0, self.given.max(0)));
        self.rested = (self.rested - self.rested / RESTED).saturating_add(rests).min(OWED_MAX.signed());
        (self.due, self.given) = (self.sum.clamp(0, self.rested), 0);
    }

    /// Amount to pay out after `passed`: no more than the card can run in it.
    pub(crate) fn give(&mut self, passed: Nanos) -> i64 {
        if !Heuristic::Owed.is_on() {
            return 0;
        }
        let give = self.due.min(passed.signed());
        self.due -= give;
        self.given = self.given.saturating_add(give);
        give
    }
}
