//! The ledger: one account per card, on which everything that can be held draws.
//!
//! ```text
//!   whole card ── all counters ─────────────┐
//!   partition ─── template + placement ─────┼──▶ counters of the card, each ≤ its total
//!   first share of a device ── as the device┘
//!   share ── memory, cores ──▶ capacity of its device (card or partition), each ≤ what the device has
//!   slot ─── memory, cores ──▶ a share of the card with a name of its own
//! ```
//!
//! A device that is shared is charged once for its counters, by the first share, and credited with the last. A share
//! of the card takes all counters, so it excludes partitions and partitions exclude it, whichever came first.
//! Partitions found on a card count although no claim holds them; a claim may take such a partition over, and it is
//! found again when the claim lets go. Admin access is written down and holds nothing.
//!
//! Invariants, recounted by [`Ledger::invariants`]: what is used equals the sum over the holdings; no counter and no
//! capacity is above its total (but for what was found so); an exclusive holding is alone on its device; chips under
//! a same-mode rule are all whole or all split.

mod account;
mod holding;
mod refusal;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use crate::card::{Card, Inventory};
use crate::catalogue::{CardModel, CardRule, Catalogue, RuleAttribute, RuleScope};
use crate::id::{CardUuid, ClaimUid};

use account::{Account, CardUse};
pub use holding::{Holding, Take};
pub use refusal::{BrokenInvariant, CounterShortage, HoldRefusal, Holder, LedgerProblem};
pub use report::{CardReport, CounterReport, PartReport, TemplateRoom};

/// What claims hold on the cards of one node.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    accounts: Vec<Account>,
    by_card: BTreeMap<CardUuid, usize>,
    claims: BTreeMap<ClaimUid, Vec<LedgerEntry>>,
}

/// What came of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldOutcome {
    /// It is held now.
    New,
    /// It was held already, in exactly this way.
    Already,
}

/// A holding and where it is booked.
#[derive(Clone, Debug)]
struct LedgerEntry {
    holding: Holding,
    account: usize,
    row: usize,
}

// === impl Ledger ===

impl Ledger {
    /// Accounts for all cards, with what was found on them. What does not add up is reported, and the card it was
    /// found on hands out less or nothing.
    #[must_use]
    pub fn new(inventory: &Inventory, catalogue: &Catalogue) -> (Self, Vec<LedgerProblem>) {
        let mut ledger = Self::default();
        let mut problems = Vec::new();
        for card in &inventory.cards {
            if ledger.by_card.contains_key(&card.uuid) {
                problems.push(LedgerProblem::TwiceInInventory { card: card.uuid.clone() });
                continue;
            }
            ledger.by_card.insert(card.uuid.clone(), ledger.accounts.len());
            ledger.accounts.push(Account::open(card, &mut problems));
        }
        ledger.apply_rules(inventory, catalogue);
        (ledger, problems)
    }

    /// Whether the holding would be accepted now.
    ///
    /// # Errors
    /// Why not, with the amount requested, the amount left, and the holders of the rest.
    pub fn check(&self, holding: &Holding) -> Result<(), HoldRefusal> {
        self.judge(holding).map(|_| ())
    }

    /// Records a holding. Doing it twice changes nothing.
    ///
    /// # Errors
    /// As [`Ledger::check`]; nothing is recorded then.
    pub fn hold(&mut self, holding: Holding) -> Result<HoldOutcome, HoldRefusal> {
        let HoldingCheck::Book { account, row } = self.judge(&holding)? else {
            return Ok(HoldOutcome::Already);
        };
        let claim = holding.claim.clone();
        let part = self.accounts[account].part(row, &holding.part);
        let entry = LedgerEntry { holding: Holding { part, ..holding }, account, row };
        self.accounts[account].book(row, &entry.holding);
        self.claims.entry(claim).or_default().push(entry);
        Ok(HoldOutcome::New)
    }

    /// Records all of them, or none.
    ///
    /// # Errors
    /// As [`Ledger::check`], for the first that does not fit beside those before it.
    pub fn hold_all(&mut self, holdings: Vec<Holding>) -> Result<(), HoldRefusal> {
        let mut booked: Vec<Holding> = Vec::new();
        for holding in holdings {
            match self.hold(holding.clone()) {
                Ok(HoldOutcome::New) => booked.push(holding),
                Ok(HoldOutcome::Already) => {}
                Err(refusal) => {
                    for holding in booked.iter().rev() {
                        self.strike(holding);
                    }
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    /// Gives back everything the claim holds; nothing, if it holds nothing.
    pub fn release(&mut self, claim: &ClaimUid) -> Vec<Holding> {
        let entries = self.claims.remove(claim).unwrap_or_default();
        for entry in &entries {
            self.accounts[entry.account].unbook(entry.row, &entry.holding);
        }
        entries.into_iter().map(|e| e.holding).collect()
    }

    /// Everything held, by claim.
    pub fn holdings(&self) -> impl Iterator<Item = &Holding> {
        self.claims.values().flatten().map(|e| &e.holding)
    }

    /// What the claim holds.
    #[must_use]
    pub fn holdings_of(&self, claim: &ClaimUid) -> Vec<&Holding> {
        self.claims.get(claim).into_iter().flatten().map(|e| &e.holding).collect()
    }

    /// Recounts every account from the holdings.
    ///
    /// # Errors
    /// The first thing that does not add up; this program has a fault then.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        let mut books: Vec<Vec<(usize, &Holding)>> = vec![Vec::new(); self.accounts.len()];
        for (claim, entries) in &self.claims {
            for entry in entries {
                if entry.holding.claim != *claim {
                    return Err(BrokenInvariant(format!(
                        "a holding of {} is filed under {claim}",
                        entry.holding.claim
                    )));
                }
                books[entry.account].push((entry.row, &entry.holding));
            }
        }
        for (account, book) in self.accounts.iter().zip(&books) {
            account.recount(book)?;
        }
        for account in &self.accounts {
            self.same_mode(account, account.layout())
                .map_err(|other| BrokenInvariant(format!("{} and {other} differ in mode", account.card)))?;
        }
        Ok(())
    }

    /// What of the card is used and free.
    #[must_use]
    pub fn report(&self, card: &CardUuid) -> Option<CardReport> {
        let account = *self.by_card.get(card)?;
        let mut layouts = self.accounts[account].same_mode.iter().map(|other| self.accounts[*other].layout());
        let neighbours = layouts.find(|layout| *layout != CardUse::Idle).unwrap_or(CardUse::Idle);
        Some(self.accounts[account].report(&self.holders(account), neighbours))
    }

    /// Decides about a holding; records nothing.
    fn judge(&self, holding: &Holding) -> Result<HoldingCheck, HoldRefusal> {
        let Some(&index) = self.by_card.get(&holding.card) else {
            return Err(HoldRefusal::UnknownCard { card: holding.card.clone() });
        };
        let account = &self.accounts[index];
        let row = account.row(&holding.part)?;
        if let Some(entry) = self.booked(index, row, holding) {
            return match entry.holding.take == holding.take {
                true => Ok(HoldingCheck::Already),
                false => Err(HoldRefusal::HeldDifferently { holder: Holder::of(&entry.holding) }),
            };
        }
        if holding.take != Take::Nothing {
            account.accepts(row, holding, || self.holders(index))?;
            if let Err(other) = self.same_mode(account, CardUse::of(&holding.part)) {
                let (card, part) = (holding.card.clone(), holding.part.clone());
                return Err(HoldRefusal::SameMode { card, part, other: other.clone() });
            }
        }
        Ok(HoldingCheck::Book { account: index, row })
    }

    /// The entry of the same claim, request, share and part.
    fn booked(&self, account: usize, row: usize, holding: &Holding) -> Option<&LedgerEntry> {
        self.claims.get(&holding.claim)?.iter().find(|e| {
            (e.account, e.row) == (account, row)
                && e.holding.request == holding.request
                && e.holding.share == holding.share
                && (row != 0 || e.holding.part == holding.part)
        })
    }

    /// Undoes one hold of [`Ledger::hold_all`].
    fn strike(&mut self, holding: &Holding) {
        let Some(entries) = self.claims.get_mut(&holding.claim) else { return };
        if let Some(entry) = entries.pop() {
            self.accounts[entry.account].unbook(entry.row, &entry.holding);
        }
        if entries.is_empty() {
            self.claims.remove(&holding.claim);
        }
    }

    /// The holders on one card, by row.
    fn holders(&self, account: usize) -> Vec<(usize, Holder)> {
        let of_claim = |claim| self.claims.get(claim).into_iter().flatten();
        let entries = self.accounts[account].claims.keys().flat_map(of_claim);
        entries
            .filter(|e| e.account == account && e.holding.take != Take::Nothing)
            .map(|e| (e.row, Holder::of(&e.holding)))
            .collect()
    }

    /// Whether the chips that must agree in mode with this one allow the layout; else the first that does not.
    fn same_mode(&self, account: &Account, wanted: CardUse) -> Result<(), &CardUuid> {
        let others = account.same_mode.iter().map(|other| &self.accounts[*other]);
        let clashes = |other: &Account| match (wanted, other.layout()) {
            (CardUse::Idle, _) | (_, CardUse::Idle) => false,
            (wanted, there) => wanted != there,
        };
        others.filter(|o| clashes(o)).map(|o| &o.card).next().map_or(Ok(()), Err)
    }

    /// Finds for each card which others it must agree with, and whether it may be split at all.
    fn apply_rules(&mut self, inventory: &Inventory, catalogue: &Catalogue) {
        let cards: Vec<(usize, &Card, Option<&CardModel>)> = inventory
            .cards
            .iter()
            .filter_map(|c| Some((*self.by_card.get(&c.uuid)?, c, catalogue.model(&c.model))))
            .collect();
        for (index, card, model) in &cards {
            let Some(model) = model else { continue };
            for rule in &model.rules {
                let reached = |scope: RuleScope, other: &Card| match scope {
                    RuleScope::Node => true,
                    RuleScope::Card => {
                        card.topology.card_id.is_some() && card.topology.card_id == other.topology.card_id
                    }
                };
                let kin = |scope: RuleScope| {
                    cards.iter().filter(move |(i, other, m)| {
                        i != index && m.is_some_and(|m| m.family == model.family) && reached(scope, other)
                    })
                };
                match rule {
                    CardRule::NodeSetting { .. } => {}
                    CardRule::SameMode(scope) => {
                        let others: BTreeSet<usize> = kin(*scope).map(|(i, _, _)| *i).collect();
                        self.accounts[*index].same_mode.extend(others);
                    }
                    CardRule::Homogeneous { scope, attribute } => {
                        let differs = |m: &CardModel| match attribute {
                            RuleAttribute::Memory => m.memory != model.memory,
                            RuleAttribute::Model => m.id != model.id,
                        };
                        let odd = kin(*scope).find(|(_, _, m)| m.is_some_and(differs));
                        if let Some((_, other, _)) = odd {
                            self.accounts[*index].no_split = Some(other.uuid.clone());
                        }
                    }
                }
            }
        }
    }
}

/// What is to be done with a holding that was accepted.
enum HoldingCheck {
    Already,
    Book { account: usize, row: usize },
}

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
