//! Other limits for a claim that is prepared, in place: its processes go on, and see them.
//!
//! ```text
//!  journal: old ─▶ limits: the lower of old and new ─▶ is more held? ─▶ journal: new ─▶ limits: new
//!                                                        └ yes: limits: old
//! ```
//!
//! After a kill the next start sets the files to the state of the journal, before any other grant. Released memory is free once the
//! journal records it; by then no process of the claim can reserve it any more.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use aliquot_abi::limits::{ComputePolicy, MemoryLimit};
use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::id::ClaimUid;
use aliquot_core::ledger::Ledger;
use aliquot_core::partition::Part;
use aliquot_core::plan::{Plan, PlanRefusal};
use aliquot_core::units::Bytes;
use aliquot_enforce::units::Ppm;

use super::operate::{NewPartitions, NodeOperation};
use super::state::{State, StateAccess};
use crate::checkpoint::{Change, ClaimKind, ClaimRecord, JournalEntry, Phase};
use crate::grant_file;
use crate::prepare::{PrepareError, PreparedClaim, run_steps};
use crate::region::{self, UsageFile, limits_of};

impl<O: StateAccess> NodeOperation<'_, O> {
    /// Puts the limits of a plan in the place of those that its claim was prepared with. The turns of claim and cards are had.
    pub(super) fn amend(&mut self, wanted: Plan, cards: &Inventory) -> Result<PreparedClaim, PrepareError> {
        let uid = wanted.claim.clone();
        let ClaimRecord { plan: before, kind, .. } = self.owner.with(|state| state.record(&uid).cloned())?;
        let after = Plan { grants: wanted.grants, ..before.clone() };
        let pairs = || before.grants.iter().zip(&after.grants);
        let claim = before.name.clone();
        if before.grants.len() != after.grants.len() || !pairs().all(|(old, new)| same_part(old, new)) {
            let (held, asked) = (told(&before.grants), told(&after.grants));
            return Err(PrepareError::OtherAllocation { claim, held, asked });
        }
        if pairs().any(|(old, new)| is_newly_held(old, new, cards)) {
            let (held, asked) = (told(&before.grants), told(&after.grants));
            return Err(PrepareError::NothingHeld { claim, held, asked });
        }
        let lower = Plan { grants: pairs().map(|(old, new)| lower(old, new)).collect(), ..before.clone() };
        let site = self.site;
        let lowered = self.put_lower(&before, &lower, kind, cards).and_then(|()| {
            self.owner.with(|state| {
                // Other claims may have been decided since this one was.
                let grants = &after.grants;
                let known = state.known_cards().unwrap_or_else(|| cards.clone());
                let (asked, room) = (BTreeSet::new(), |ledger: &Ledger| room(ledger, grants, &claim));
                let room = state.without(site, &known, &asked, &uid, room);
                room.map_err(|why| state.kept(&uid, why))?;
                let record = ClaimRecord { plan: after.clone(), kind, phase: Phase::Prepared };
                state.commit(Change::of([JournalEntry::Claim(record)]))
            })
        });
        match lowered {
            Ok(()) => Ok(self.make_whole(&uid, &NewPartitions::new(), &mut None)?.prepared),
            Err(error) => {
                self.put_back(&uid);
                Err(error)
            }
        }
    }

    fn put_lower(
        &mut self,
        before: &Plan,
        lower: &Plan,
        kind: ClaimKind,
        cards: &Inventory,
    ) -> Result<(), PrepareError> {
        if lower.grants == before.grants {
            return Ok(());
        }
        let ours = self.owner.with(|state| state.ours_of(before));
        run_steps(&self.site.hands(), lower, kind, &ours, &NewPartitions::new(), &mut None)?;
        for (old, new) in before.grants.iter().zip(&lower.grants).filter(|(old, new)| new.memory < old.memory)
        {
            let place = grant_file::place(self.site.grants_dir(), &new.claim, &new.share);
            let usage = place.usage();
            let (claim, request) = (before.name.clone(), new.request.clone());
            let watched = match UsageFile::open(&usage) {
                Ok(watched) => watched,
                // Without limits there is no usage.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(_) => return Err(PrepareError::Unsettled { claim, request }),
            };
            let part = cards.card(&old.card).and_then(|card| limits_of(old, card, &card.uuid));
            let part = part.map_or(Ppm::ALL, |limits| Ppm::new(limits.own_ppm));
            let Ok(Some(used)) = watched.settled(part) else {
                return Err(PrepareError::Unsettled { claim, request });
            };
            let used = Bytes(used.0.saturating_add(region::residue(&place.limits()).0));
            if used > new.memory {
                let (held, asked) = (old.memory, new.memory);
                return Err(PrepareError::InUse { claim, request, held, used, asked });
            }
        }
        Ok(())
    }

    /// Makes a claim's files what the journal says; where that fails as well, the next start does it.
    fn put_back(&mut self, uid: &ClaimUid) {
        match self.make_whole(uid, &NewPartitions::new(), &mut None) {
            Ok(_) | Err(_) => {}
        }
    }
}

// === impl State ===

impl State {
    /// What a claim that is prepared keeps is said with why it does not get what it asks for.
    pub(super) fn kept(&self, uid: &ClaimUid, why: PrepareError) -> PrepareError {
        match self.claim(uid) {
            Some(record) => PrepareError::Keeps { held: told(&record.plan.grants), source: Box::new(why) },
            None => why,
        }
    }
}

/// Whether these grants fit into a ledger without them.
fn room(ledger: &Ledger, grants: &[Grant], claim: &str) -> Result<(), PrepareError> {
    let held = ledger.clone().hold_all(grants.iter().map(Grant::holding).collect());
    held.map_err(|source| {
        Box::new(PlanRefusal::Held { claim: claim.to_owned(), source: Box::new(source) }).into()
    })
}

/// Whether two grants differ in what can change under living processes alone.
pub(super) fn same_part(old: &Grant, new: &Grant) -> bool {
    let Grant { memory, cores, settings, .. } = old.clone();
    *old == Grant { memory, cores, settings, ..new.clone() }
}

/// The old grant, with no more than the new one.
fn lower(old: &Grant, new: &Grant) -> Grant {
    Grant { memory: old.memory.min(new.memory), cores: old.cores.min(new.cores), ..old.clone() }
}

/// Whether a limit is new: processes that started without it do not read it.
pub(super) fn is_newly_held(old: &Grant, new: &Grant, cards: &Inventory) -> bool {
    let Some(card) = cards.card(&old.card) else { return false };
    let limits = |grant| limits_of(grant, card, &card.uuid);
    let (Some(old), Some(new)) = (limits(old), limits(new)) else { return false };
    let of_memory = old.memory == MemoryLimit::Unlimited && new.memory != MemoryLimit::Unlimited;
    of_memory || old.policy == ComputePolicy::Unlimited && new.policy != ComputePolicy::Unlimited
}

/// Grants in words.
pub(super) fn told(grants: &[Grant]) -> String {
    let one = |grant: &Grant| {
        let part = match &grant.part {
            Part::Card => String::new(),
            part => format!("{part} of "),
        };
        format!("{} and {} of {part}card {}", grant.memory, grant.cores, grant.card)
    };
    grants.iter().map(one).collect::<Vec<_>>().join(", ")
}
