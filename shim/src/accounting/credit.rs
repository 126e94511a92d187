//! Giving back what is charged: to the grant that an entry names, and with the pages that no other allocation covers.

use super::account::{self, Account, Bytes, Family, Ledger};
use super::alloc_map::{AllocEntry, Key};
use crate::grants::{self, GRANTS_MAX};

/// The ledger of the grant of this number.
pub(crate) fn ledger(grant: u32) -> Option<Ledger> {
    match account::of_grant(grants::grant(usize::try_from(grant).ok()?)?) {
        Account::Counted(ledger) => Some(ledger),
        _ => None,
    }
}

/// Gives bytes back to the grant of this number.
pub(crate) fn credit(grant: u32, bytes: Bytes) {
    if let Some(ledger) = ledger(grant) {
        ledger.release(bytes);
    }
}

/// The driver has freed what is held under a key: all that the card has back with it, and what stays, as it cannot be noted.
pub(crate) fn leave(ledger: Ledger, key: Key, held: AllocEntry) -> (Bytes, Option<AllocEntry>) {
    if !held.edges().is_any() {
        return (held.bytes(), None);
    }
    let owner = held.owner(ledger.page(Family::Pointers));
    let (left, stuck) = owner.leave(key.0, held.bytes(), held.edges());
    let stays = stuck.is_any().then(|| held.without_bytes().with_edges(stuck));
    (Bytes(held.bytes().0.saturating_add(left.0)), stays)
}

/// Bytes of each grant.
#[derive(Default)]
pub(crate) struct Sums([u64; GRANTS_MAX]);

impl Sums {
    /// Only reckons. What is shared has its own slot, of which it is credited elsewhere.
    pub(crate) fn add(&mut self, held: AllocEntry) {
        if !held.is_apart() {
            self.add_bytes(held.grant(), held.bytes());
        }
    }

    /// What was freed of an allocation: the pages that no other covers as well.
    pub(crate) fn add_freed(&mut self, key: Key, held: AllocEntry) {
        let Some(ledger) = held.ledger().filter(|_| !held.is_apart()) else { return };
        // A page that cannot be left stays charged until its context ends.
        let (bytes, _stays) = leave(ledger, key, held);
        self.add_bytes(held.grant(), bytes);
    }

    /// Bytes of a grant.
    pub(crate) fn add_bytes(&mut self, grant: u32, bytes: Bytes) {
        if let Some(sum) = usize::try_from(grant).ok().and_then(|grant| self.0.get_mut(grant)) {
            *sum = sum.saturating_add(bytes.0);
        }
    }

    /// What was added for a grant.
    #[cfg(test)]
    pub(crate) fn of(&self, grant: u32) -> Bytes {
        Bytes(usize::try_from(grant).ok().and_then(|grant| self.0.get(grant)).copied().unwrap_or(0))
    }

    pub(crate) fn credit(self) {
        for (grant, sum) in (0_u32..).zip(&self.0).filter(|(_, sum)| **sum > 0) {
            credit(grant, Bytes(*sum));
        }
    }
}

impl AllocEntry {
    /// The ledger of the grant that has it.
    pub(crate) fn ledger(self) -> Option<Ledger> {
        ledger(self.grant())
    }
}
