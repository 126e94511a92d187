//! What of a node changes: promises, the ledger made of them, offers. One owner has it locked for a moment at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use aliquot_core::card::{Inventory, Listing};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::grant::Grant;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::ledger::Ledger;
use aliquot_core::offer::{HeldDevice, Offers, ServerVersion, UsageHint, offers};
use aliquot_core::plan::Plan;
use aliquot_core::ports::PartitionAt;

use super::site::Site;
use crate::checkpoint::{Change, ClaimRecord, Journal, JournalEntry, JournalStore, PartitionProgress};
use crate::prepare::PrepareError;

/// The changing parts of an open node.
pub(crate) struct State {
    store: JournalStore,
    /// What is published.
    pub(super) offers: OnceLock<Arc<Offers>>,
    /// For a server of which version.
    pub(super) server: ServerVersion,
    ledger: Option<Accounts>,
    /// Goes up when partitions stop being ours: what was discovered before may show them as foreign ones.
    pub(super) ended: u64,
    /// Changes of the journal since it was opened.
    pub(super) changes: u64,
}

/// The ledger, for as long as the cards stay as they were.
struct Accounts {
    cards: Inventory,
    ledger: Ledger,
}

/// How operations reach the state: alone, or locked for a moment.
pub(super) trait StateAccess {
    /// Does something with the state, without waiting for a device.
    fn with<R>(&mut self, act: impl FnOnce(&mut State) -> R) -> R;
}

/// The only owner.
pub(super) struct ExclusiveState<'s>(pub(super) &'s mut State);

impl StateAccess for ExclusiveState<'_> {
    fn with<R>(&mut self, act: impl FnOnce(&mut State) -> R) -> R {
        act(self.0)
    }
}

// === impl State ===

impl State {
    pub(super) fn new(store: JournalStore, offers: OnceLock<Arc<Offers>>, server: ServerVersion) -> Self {
        Self { store, offers, server, ledger: None, ended: 0, changes: 0 }
    }

    pub(super) const fn journal(&self) -> &Journal {
        self.store.journal()
    }

    pub(super) const fn store(&self) -> &JournalStore {
        &self.store
    }

    pub(super) fn claim(&self, uid: &ClaimUid) -> Option<&ClaimRecord> {
        self.journal().claims.get(uid)
    }

    /// A claim that must be there.
    pub(super) fn record(&self, uid: &ClaimUid) -> Result<&ClaimRecord, PrepareError> {
        self.claim(uid).ok_or_else(|| PrepareError::Unknown { claim: uid.clone() })
    }

    pub(super) fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.journal().claims.values().flat_map(|record| &record.plan.grants)
    }

    /// Grants of other claims.
    pub(super) fn others<'s>(&'s self, uid: &'s ClaimUid) -> impl Iterator<Item = &'s Grant> {
        self.grants().filter(move |grant| grant.claim != *uid)
    }

    /// Partitions of ours that a plan uses, whichever claim had them made.
    pub(super) fn ours_of(&self, plan: &Plan) -> BTreeMap<PartitionAt, PartitionProgress> {
        let used = plan.grants.iter().filter_map(Grant::partition);
        used.filter_map(|at| Some((at.clone(), self.journal().partitions.get(&at)?.clone()))).collect()
    }

    /// Makes a change of the journal, and of the ledger with it.
    pub(super) fn commit(&mut self, change: Change) -> Result<(), PrepareError> {
        let change = change.news_to(self.journal());
        let entries = change.clone();
        self.store.commit(change)?;
        self.changes += 1;
        for entry in entries.entries() {
            match entry {
                JournalEntry::Claim(record) => self.book(&record.plan),
                JournalEntry::Released(uid) => {
                    if let Some(accounts) = &mut self.ledger {
                        accounts.ledger.release(uid);
                    }
                }
                // What is found on the cards counts unless it is ours.
                JournalEntry::Destroyed(_) => self.ended += 1,
                JournalEntry::Phase(..) | JournalEntry::Partition(..) => {}
            }
        }
        Ok(())
    }

    /// Books a plan in place of what its claim held.
    fn book(&mut self, plan: &Plan) {
        let Some(accounts) = &mut self.ledger else { return };
        accounts.ledger.release(&plan.claim);
        let held = accounts.ledger.hold_all(plan.grants.iter().map(Grant::holding).collect());
        if held.is_err() {
            // It was decided on other cards; the next decision starts from the journal.
            self.ledger = None;
        }
    }

    /// Asks the ledger of these cards something, with the holdings of one claim left out. Only the cards that were `asked` count as
    /// found; the others stay as the last decision about them left them.
    pub(super) fn without<R>(
        &mut self,
        site: &Site,
        found: &Inventory,
        asked: &BTreeSet<CardUuid>,
        uid: &ClaimUid,
        ask: impl FnOnce(&Ledger) -> R,
    ) -> R {
        let mut cards = self.without_ours(found.clone());
        let kept = self.ledger.as_ref().map(|accounts| &accounts.cards);
        for card in cards.cards.iter_mut().filter(|card| !asked.contains(&card.uuid)) {
            if let Some(kept) = kept.and_then(|kept| kept.card(&card.uuid)) {
                *card = kept.clone();
            }
        }
        let accounts = match self.ledger.take() {
            Some(accounts) if accounts.cards == cards => accounts,
            _ => {
                let (ledger, _) = ledger_of(&cards, &site.parts.catalogue, self.journal());
                Accounts { cards, ledger }
            }
        };
        let accounts = self.ledger.insert(accounts);
        let held = accounts.ledger.release(uid);
        let answer = ask(&accounts.ledger);
        if accounts.ledger.hold_all(held).is_err() {
            self.ledger = None;
        }
        answer
    }

    /// The ledger, as decisions have left it.
    pub(super) fn kept_ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref().map(|accounts| &accounts.ledger)
    }

    /// The cards that the ledger was made of.
    pub(super) fn known_cards(&self) -> Option<Inventory> {
        self.ledger.as_ref().map(|accounts| accounts.cards.clone())
    }

    /// The cards, with only foreign partitions in `found`. One that its driver does not list any more is among them as long as a
    /// claim holds part of it.
    pub(super) fn without_ours(&self, mut inventory: Inventory) -> Inventory {
        inventory.cards.retain(|card| {
            card.listing == Listing::Listed || self.grants().any(|grant| grant.card == card.uuid)
        });
        for card in &mut inventory.cards {
            let uuid = card.uuid.clone();
            card.found.retain(|part| {
                PartitionAt::of(&uuid, part).is_none_or(|at| !self.journal().partitions.contains_key(&at))
            });
        }
        inventory
    }

    /// What offers depend on besides the cards.
    pub(super) fn usage(&self) -> UsageHint {
        let mut usage = UsageHint::default();
        for grant in self.grants() {
            let held = usage.held.entry(grant.card.clone()).or_default();
            *held = held.checked_add(grant.memory).unwrap_or(*held);
            usage.devices.entry(grant.card.clone()).or_default().push(HeldDevice::of(grant));
        }
        usage
    }
}

/// The ledger of these cards and this journal, and the claims that do not fit into it.
pub(super) fn ledger_of(
    cards: &Inventory,
    catalogue: &Catalogue,
    journal: &Journal,
) -> (Ledger, Vec<String>) {
    let (mut ledger, problems) = Ledger::new(cards, catalogue);
    let mut problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    for record in journal.claims.values() {
        let held = ledger.hold_all(record.plan.grants.iter().map(Grant::holding).collect());
        problems.extend(held.err().map(|e| format!("claim {}: {e}", record.plan.name)));
    }
    (ledger, problems)
}

/// The offers of these cards; none of them is ours in `found`.
pub(super) fn offers_of(
    site: &Site,
    cards: &Inventory,
    server: ServerVersion,
    usage: &UsageHint,
) -> Arc<Offers> {
    Arc::new(offers(&site.parts.name, cards, &site.parts.policy, server, usage))
}
