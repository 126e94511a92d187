//! Credit that a tenant gives up when borrowed compute time is withdrawn.
//!
//! While a tenant borrows, its saved credit and its launched-ahead work stay constant: it earns as much as it uses. After the
//! withdrawal it earns its guarantee only, but credit and launched work would give it equal turns until both are used up:
//!
//! ```text
//!   card:      B B B B B B B│O B O B O B O B O B O B …      B is granted 40 % again and gets 50 %: 5 ms ahead
//!                 starts: O ┘                               last for 50 ms
//!   given up:  B B B B B B B│O B O B O · O · O · O B …      B waits until it has earned its lead
//! ```
//!
//! So a withdrawal also deducts credit, and the next borrowing restores it. The deduction never exceeds what borrowing
//! gave: the guarantee is not touched. If borrowing rises and falls with others' use, the deduction follows.

use crate::ablation::Heuristic;
use crate::bucket::CREDIT_MAX;
use crate::units::{Nanos, Ppm};

/// Greatest deduction: full saved credit, and the same amount launched ahead.
const MOST: Nanos = CREDIT_MAX.plus(CREDIT_MAX);

/// Borrowed compute time of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BorrowedTime {
    /// Time borrowed since the tenant became active, at most [`MOST`].
    gave: Nanos,
    /// Part of it that is currently deducted from its credit.
    taken: Nanos,
    /// Time and grant of the last step.
    last: Option<(Nanos, Ppm)>,
}

impl BorrowedTime {
    pub(crate) const fn none() -> Self {
        Self { gave: Nanos::ZERO, taken: Nanos::ZERO, last: None }
    }

    /// Records the share granted from now on; returns the change of the tenant's credit, in nanoseconds.
    pub(crate) fn follow(&mut self, now: Nanos, guaranteed: Ppm, granted: Ppm) -> i64 {
        if let Some((at, before)) = self.last.replace((now, granted)) {
            let gave = before.minus(guaranteed).times(now.minus(at).min(MOST));
            self.gave = self.gave.plus(gave).min(MOST);
        }
        // A grant of the whole card deducts nothing; a grant of the guarantee deducts everything.
        let parts = |from: Ppm| Nanos(Ppm::ALL.minus(from).parts().into());
        let gave = if Heuristic::LoanLead.is_on() { self.gave } else { Nanos::ZERO };
        let taken = Ppm::of(parts(granted), parts(guaranteed)).times(gave);
        let before = core::mem::replace(&mut self.taken, taken);
        before.signed() - taken.signed()
    }
}
