//! The cards of a node as its claims find them: with what was seen of them, and without the partitions that are its own.

use aliquot_core::card::{Health, Inventory};
use aliquot_core::grant::Grant;
use aliquot_core::health::Era;
use aliquot_core::id::ClaimUid;
use aliquot_core::ports::{BackendError, PartitionAt};

use super::Node;
use crate::health;

impl Node {
    /// The cards as they are now; `found` has the partitions that are not ours.
    ///
    /// # Errors
    /// The hardware cannot be asked.
    pub fn inventory(&self) -> Result<Inventory, BackendError> {
        Ok(self.without_ours(self.look()?))
    }

    /// The cards as they are now, with what was seen of them.
    pub(super) fn look(&self) -> Result<Inventory, BackendError> {
        let mut cards = self.parts.backend.discover()?;
        self.health.hold_against(&mut cards, self.parts.backend.driver_load());
        Ok(cards)
    }

    /// For how long what is seen of the cards now counts.
    #[must_use]
    pub fn era(&self) -> Era {
        health::era(self.parts.backend.driver_load())
    }

    /// The cards as who holds a claim finds them: that one does not work, whoever says so, keeps others away, and takes nothing from
    /// who is on it, which is said. A partition that is gone would be made anew: there its claim is as new as any.
    pub(super) fn as_held(&mut self, mut cards: Inventory, uid: &ClaimUid) -> Inventory {
        let Some(record) = self.claim(uid) else { return cards };
        let (name, grants) = (record.plan.name.clone(), record.plan.grants.clone());
        for card in &mut cards.cards {
            let on_it = || grants.iter().filter(|grant| grant.card == card.uuid);
            let Some(why) = on_it().find_map(|grant| card.why_unwell(&grant.part)).map(str::to_owned) else {
                continue;
            };
            // Where they cannot be listed none is known to be there.
            let live = self.parts.backend.partitions().unwrap_or_default();
            let mut held = on_it().filter_map(Grant::partition);
            if !held.all(|at| live.iter().any(|live| live.at == at)) {
                continue;
            }
            self.notes.push(format!(
                "claim {name}: card {} is not healthy: {why}; the claim keeps what it has there",
                card.uuid
            ));
            (card.health, card.unwell) = (Health::Healthy, Vec::new());
        }
        cards
    }

    /// The cards, with only strangers' partitions in `found`.
    pub(super) fn without_ours(&self, mut inventory: Inventory) -> Inventory {
        for card in &mut inventory.cards {
            let uuid = card.uuid.clone();
            card.found.retain(|part| {
                PartitionAt::of(&uuid, part).is_none_or(|at| !self.journal.partitions.contains_key(&at))
            });
        }
        inventory
    }
}
