//! What a borrower gives up when its loan is taken back.
//!
//! Credit that was saved before a loan stays saved while it lasts, as does work that is launched ahead of the card: as much comes
//! in as goes. When the loan is taken back, hardly more is used from there on than is earned, so that the borrower would take
//! turns as an equal for as long as the two last:
//!
//! ```text
//!   card:      B B B B B B B│O B O B O B O B O B O B …      B may have 40 % again, and has 50: five milliseconds
//!                   comes: O┘                               ahead last for fifty
//!   given up:  B B B B B B B│O B O B O · O · O · O B …      B waits until what it was ahead by is earned
//! ```
//!
//! So as the loan is taken back, as much of its credit is, and comes again with the next loan. It is never more than what loans
//! gave: a guarantee is not touched. Where loans rise and fall with what others use, it goes to and fro.

use crate::bucket::CREDIT_MAX;
use crate::units::{Nanos, Ppm};

/// Most: credit that was saved, and as much on the card.
const MOST: Nanos = CREDIT_MAX.plus(CREDIT_MAX);

/// Of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan {
    /// What loans gave since the tenant is active, at most [`MOST`].
    gave: Nanos,
    /// Of that, what is taken from its credit at present.
    taken: Nanos,
    /// Time and grant of the last step.
    last: Option<(Nanos, Ppm)>,
}

impl Loan {
    pub(crate) const fn none() -> Self {
        Self { gave: Nanos::ZERO, taken: Nanos::ZERO, last: None }
    }

    /// Takes what is granted from now on; what comes to the tenant's credit for it, in nanoseconds.
    pub(crate) fn follow(&mut self, now: Nanos, guaranteed: Ppm, granted: Ppm) -> i64 {
        if let Some((at, before)) = self.last.replace((now, granted)) {
            let gave = before.minus(guaranteed).times(now.minus(at).min(MOST));
            self.gave = self.gave.plus(gave).min(MOST);
        }
        // With all of the card nothing is taken, with what is guaranteed everything.
        let parts = |from: Ppm| Nanos(Ppm::ALL.minus(from).parts().into());
        let taken = Ppm::of(parts(granted), parts(guaranteed)).times(self.gave);
        let before = core::mem::replace(&mut self.taken, taken);
        before.signed() - taken.signed()
    }
}
