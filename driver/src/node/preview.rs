//! The changes that preparing a claim again would make, without making them.

use aliquot_core::dra::ResourceClaim;
use aliquot_core::grant::Grant;
use aliquot_core::ledger::Ledger;
use aliquot_core::plan::plan;

use super::amend::{is_newly_held, same_part, told};
use super::single::Node;
use crate::grant_file;
use crate::prepare::{PrepareError, decode};
use crate::region::UsageCopy;

impl Node {
    /// The grants that [`Node::prepare`] would change of a prepared claim, each before and after; empty if none.
    ///
    /// # Errors
    /// Those of [`Node::prepare`], as far as they are known beforehand.
    pub fn preview(&self, claim: &ResourceClaim) -> Result<Vec<(Grant, Grant)>, PrepareError> {
        let request = decode::decode(claim)?;
        let Some(record) = self.claim(&request.uid) else { return Ok(Vec::new()) };
        let (name, before) = (request.name.clone(), record.plan.grants.clone());
        let hardware = |source| PrepareError::Hardware { claim: name.clone(), source: Box::new(source) };
        let mut cards = self.inventory().map_err(hardware)?;
        for card in cards.cards.iter_mut().filter(|card| before.iter().any(|grant| grant.card == card.uuid)) {
            // A claim keeps its part of an unhealthy card.
            (card.health, card.unwell) = (aliquot_core::card::Health::Healthy, Vec::new());
        }
        let (mut ledger, _) = Ledger::new(&cards, self.catalogue());
        for other in self.claims().filter(|other| other.plan.claim != request.uid) {
            match ledger.hold_all(other.plan.grants.iter().map(Grant::holding).collect()) {
                // The node reports its own contradictions when it is opened.
                Ok(_) | Err(_) => {}
            }
        }
        let parts = &self.offers().map_err(hardware)?.parts;
        let after = plan(&request, parts, &cards, &ledger)
            .map_err(|refusal| self.state.kept(&request.uid, Box::new(refusal).into()))?
            .grants;
        let pairs = || before.iter().zip(&after);
        let (held, asked) = (told(&before), told(&after));
        if before.len() != after.len() || !pairs().all(|(old, new)| same_part(old, new)) {
            return Err(PrepareError::OtherAllocation { claim: name, held, asked });
        }
        if pairs().any(|(old, new)| is_newly_held(old, new, &cards)) {
            return Err(PrepareError::NothingHeld { claim: name, held, asked });
        }
        for (old, new) in pairs().filter(|(old, new)| new.memory < old.memory) {
            let usage = grant_file::place(self.grants_dir(), &new.claim, &new.share).usage();
            // Without accounting nothing is used; unreadable accounting is refused by `prepare` itself.
            let Some(used) = UsageCopy::of(&usage).ok().map(|seen| seen.total) else { continue };
            if used > new.memory {
                let (held, asked, request) = (old.memory, new.memory, new.request.clone());
                return Err(PrepareError::InUse { claim: name, request, held, used, asked });
            }
        }
        Ok(before.into_iter().zip(after).filter(|(old, new)| old != new).collect())
    }
}
