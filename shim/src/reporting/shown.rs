//! What a container is told of a card's memory: one rule for every call of every library, so that they agree whenever asked.
//!
//! | the card | total | free |
//! |---|---|---|
//! | has a grant with a memory limit | the limit | what accounting leaves of it |
//! | may not be used: no grant names it | the card's | 0: nothing can be had |
//! | anything else | the card's | the card's |
//!
//! Neither is ever more than the card's own. What is used is the rest, as on a bare card. Nothing here takes a lock, a slot or a
//! system call once the grants are found.

use aliquot_abi::limits::{ComputePolicy, Limits};

use crate::accounting::account::{Account, Bytes};

/// A card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: Bytes,
    pub(crate) free: Bytes,
}

impl Memory {
    /// Everything that is not free.
    pub(crate) fn used(self) -> Bytes {
        Bytes(self.total.0.saturating_sub(self.free.0))
    }

    /// What is told of a card of which the driver told this; `None`: just that.
    pub(crate) fn as_granted(self, account: Account) -> Option<Self> {
        let (total, free) = match account {
            Account::Uncounted => return None,
            Account::Counted(ledger) => (ledger.limit(), ledger.free()),
            Account::Closed => (self.total, Bytes(0)),
        };
        let total = total.min(self.total);
        Some(Self { total, free: free.min(self.free).min(total) })
    }
}

/// Percent of a card's time as percent of the granted time: a process that uses all of its share is fully used. More than the
/// share, as one may have for a moment, is shown as all of it. Best effort has no share, and shows the card's.
pub(crate) fn of_share(limits: &Limits, percent: u32) -> u32 {
    match (limits.policy, limits.granted_ppm) {
        (ComputePolicy::Unlimited | ComputePolicy::BestEffort, _) | (_, 0) => percent,
        (ComputePolicy::Cap | ComputePolicy::Burst, granted) => {
            let part = u64::from(percent) * 1_000_000 / u64::from(granted);
            u32::try_from(part.min(100)).unwrap_or(100)
        }
    }
}
