//! Health of a card: its driver's reports, judged, until they expire.
//!
//! ```text
//!  driver event ─▶ Note: card, part, cause, when ─▶ Notes ─┐
//!                        vendor's table of codes ──────────┴─▶ hold_against ─▶ Card::{health, unwell}
//!                                                                                 │
//!                                  devices tainted, or left out; no new claims ◀──┘
//! ```
//!
//! Notes hold what was observed. Each evaluation judges them anew, so a changed table applies to earlier
//! observations too. A note expires
//!
//! - when the machine restarts, or another load of the driver serves its cards: notes belong to one [`Era`],
//! - when a lost card answers again: the reset cleared what was noted until then. The next watcher of the
//!   card drops those notes, so that later reports count. The node agent asks for more: the loss counts until the
//!   card is proved to work,
//! - when a person clears it, as after a reset, which no driver reports.
//!
//! A note about an instance applies to its place on the card: a new instance over the same memory is as
//! unhealthy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::card::{Card, Health, Inventory, NotedFault, Unwell};
use crate::id::CardUuid;
use crate::partition::Part;

/// Most notes that are kept of one card. Where all of them are held against it, there may have been more: it is held against as a
/// whole.
pub const NOTES_OF_A_CARD_MAX: usize = 64;
/// Most cards with notes.
pub const CARDS_MAX: usize = 256;
/// What helps a card.
const WHAT_TO_DO: &str = "stop what uses the card and reset it (nvidia-smi --gpu-reset) or restart the machine; after a reset \
                          `aliquot health --clear` lets it be given again";

/// Seconds since the beginning of 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixSeconds(pub u64);

/// For how long notes count: one start of the machine, one load of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Era {
    /// Which start of the machine, in one word.
    pub boot: String,
    /// Which load of the driver, in one word; `None`: unknown.
    pub driver: Option<String>,
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The driver reported an error with this number of the vendor's.
    Code(u64),
    /// The card answers no more.
    Lost,
    /// The driver reports no errors of this card. It makes nothing unhealthy; the absence was reported once.
    Silent,
}

/// Of what something was seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Card.
    pub card: CardUuid,
    /// The card itself, or the partition that the driver named.
    pub part: Part,
}

/// Everything that was seen, with when it was first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes(BTreeMap<CardUuid, BTreeMap<(Part, Cause), UnixSeconds>>);

/// What a vendor's number means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// As people call it, such as `Xid 79`.
    pub name: String,
    /// What happened.
    pub what: &'static str,
    /// To what it does harm.
    pub harm: Harm,
}

/// To what an error does harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// To the program that met it, which ends: the card works.
    Program,
    /// To the part that the driver names, or to the card where it names none.
    Part,
    /// To the card, whatever part the driver names.
    Card,
}

/// A vendor's table.
pub trait Codes {
    /// What a number means.
    fn meaning(&self, code: u64) -> Meaning;
}

/// Whether something became another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteOutcome {
    /// It is news.
    New,
    /// It was there, or there is no room for it beside others of its card.
    Known,
}

// === impl Era ===

impl Era {
    /// Whether what was seen in this one counts in another. Where one of them does not know its driver, its start alone decides.
    #[must_use]
    pub fn counts_in(&self, now: &Self) -> bool {
        let same = |(one, other): (&String, &String)| one == other;
        self.boot == now.boot && self.driver.as_ref().zip(now.driver.as_ref()).is_none_or(same)
    }
}

// === impl Notes ===

impl Notes {
    /// Nothing was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes what was seen; when it was seen first is kept.
    pub fn note(&mut self, of: Subject, cause: Cause, at: UnixSeconds) -> NoteOutcome {
        if !self.0.contains_key(&of.card) && self.0.len() >= CARDS_MAX {
            return NoteOutcome::Known;
        }
        let card = self.0.entry(of.card).or_default();
        let key = (of.part, cause);
        if card.contains_key(&key) || card.len() >= NOTES_OF_A_CARD_MAX {
            return NoteOutcome::Known;
        }
        card.insert(key, at);
        NoteOutcome::New
    }

    /// Makes room for another note of a card, where there is none, by dropping notes that make nothing
    /// unhealthy. What programs caused thus never displaces what a card caused.
    pub fn make_room(&mut self, card: &CardUuid, codes: &dyn Codes) {
        if let Some(notes) = self.0.get_mut(card).filter(|notes| notes.len() >= NOTES_OF_A_CARD_MAX) {
            notes.retain(|(part, cause), at| {
                *cause == Cause::Silent || judge(part, *cause, *at, codes).is_some()
            });
        }
        if !self.0.contains_key(card) && self.0.len() >= CARDS_MAX {
            let held = |notes: &BTreeMap<(Part, Cause), UnixSeconds>| {
                notes.iter().any(|((part, cause), at)| judge(part, *cause, *at, codes).is_some())
            };
            self.0.retain(|_, notes| held(notes));
        }
    }

    /// Forgets all of a card.
    pub fn clear(&mut self, card: &CardUuid) {
        self.0.remove(card);
    }

    /// A lost card answers again: the reset cleared what was noted until the loss. The loss itself stays noted, until
    /// [`Notes::is_proven`]. Later notes stay, too.
    pub fn answers_again(&mut self, card: &CardUuid) {
        let Some(notes) = self.0.get_mut(card) else { return };
        let losses = notes.iter().filter(|((_, cause), _)| *cause == Cause::Lost);
        let Some(lost) = losses.map(|(_, at)| *at).max() else { return };
        notes.retain(|(_, cause), at| *cause == Cause::Lost || *at > lost);
    }

    /// A card that was lost is proved to work: its loss is forgotten, and what it reported since stays.
    pub fn is_proven(&mut self, card: &CardUuid) {
        let Some(notes) = self.0.get_mut(card) else { return };
        notes.retain(|(_, cause), _| *cause != Cause::Lost);
        if notes.is_empty() {
            self.0.remove(card);
        }
    }

    /// Cards of which there are notes.
    pub fn cards(&self) -> impl Iterator<Item = &CardUuid> {
        self.0.keys()
    }

    /// What was seen, by card, part and cause.
    pub fn all(&self) -> impl Iterator<Item = (&CardUuid, &Part, Cause, UnixSeconds)> {
        self.0
            .iter()
            .flat_map(|(card, notes)| notes.iter().map(move |((part, cause), at)| (card, part, *cause, *at)))
    }

    /// What is held against a card by these notes, and against which part of it. Of one that answers after it was lost nothing is:
    /// it was reset.
    #[must_use]
    pub fn held_against(&self, card: &CardUuid, found: Rediscovery, codes: &dyn Codes) -> Vec<Unwell> {
        let Some(notes) = self.0.get(card) else { return Vec::new() };
        if found == Rediscovery::Answering && self.was_lost(card) {
            return Vec::new();
        }
        let judged = notes.iter().filter_map(|((part, cause), at)| judge(part, *cause, *at, codes));
        let mut held: Vec<Unwell> = judged.collect();
        let silent = notes.keys().filter(|(_, cause)| *cause == Cause::Silent).count();
        if held.len() + silent >= NOTES_OF_A_CARD_MAX {
            let why = format!("more errors than are noted; {WHAT_TO_DO}");
            held.push(Unwell { part: Part::Card, why, fault: NotedFault::Unknown });
        }
        held
    }

    /// Whether a card was lost.
    #[must_use]
    pub fn was_lost(&self, card: &CardUuid) -> bool {
        self.0.get(card).is_some_and(|notes| notes.keys().any(|(_, cause)| *cause == Cause::Lost))
    }
}

/// What one note says against a card; `None`: nothing.
fn judge(part: &Part, cause: Cause, at: UnixSeconds, codes: &dyn Codes) -> Option<Unwell> {
    let (part, what, fault) = match cause {
        Cause::Silent => return None,
        Cause::Lost => (Part::Card, "lost: it answers no more".to_owned(), NotedFault::Lost),
        Cause::Code(code) => {
            let Meaning { name, what, harm } = codes.meaning(code);
            let part = match harm {
                Harm::Program => return None,
                Harm::Part => part.clone(),
                Harm::Card => Part::Card,
            };
            let fault = if part == Part::Card { NotedFault::Card } else { NotedFault::Part };
            (part, format!("{name}: {what}"), fault)
        }
    };
    Some(Unwell { part, why: format!("{what}, seen on {at}; {WHAT_TO_DO}"), fault })
}

/// Whether a card that is found again after it was lost was made well by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rediscovery {
    /// The card itself was queried, and answers.
    Answering,
    /// A description lists it; whether it answers is unknown.
    Described,
}

/// Holds what was seen against the cards of an inventory.
pub fn hold_against(inventory: &mut Inventory, notes: &Notes, found: Rediscovery, codes: &dyn Codes) {
    for card in &mut inventory.cards {
        let held = notes.held_against(&card.uuid, found, codes);
        if held.iter().any(|unwell| unwell.fault == NotedFault::Lost) {
            // The notes have cause and time of the loss; its backend knows only that the card does not answer.
            card.health = Health::Healthy;
        }
        for unwell in held {
            hold_one(card, unwell);
        }
    }
}

/// Holds the same against all cards.
pub fn hold_against_all(inventory: &mut Inventory, why: &str) {
    for card in &mut inventory.cards {
        hold_one(card, Unwell { part: Part::Card, why: why.to_owned(), fault: NotedFault::Unknown });
    }
}

fn hold_one(card: &mut Card, unwell: Unwell) {
    let known = match &unwell.part {
        Part::Partition { template, placement } => {
            card.table().is_some_and(|table| table.consumption(template, placement).is_some())
        }
        Part::Card | Part::Slot { .. } => false,
    };
    if known {
        card.unwell.push(unwell);
        return;
    }
    // A fault at an unknown place may be anywhere on the card.
    card.noted.insert(if unwell.part == Part::Card { unwell.fault } else { NotedFault::Unknown });
    if card.health == Health::Healthy {
        card.health = Health::Unhealthy(unwell.why);
    }
}

// === impl Card ===

impl Card {
    /// Why a part of the card accepts no new claims; `None`: it does, as far as is known.
    #[must_use]
    pub fn why_unwell(&self, part: &Part) -> Option<&str> {
        if let Health::Unhealthy(why) = &self.health {
            return Some(why);
        }
        self.unwell.iter().find(|unwell| self.overlap(&unwell.part, part)).map(|unwell| unwell.why.as_str())
    }

    /// What was noted of a part of the card, or of all of it.
    #[must_use]
    pub fn noted_of(&self, part: &Part) -> BTreeSet<NotedFault> {
        let overlapping = self.unwell.iter().filter(|unwell| self.overlap(&unwell.part, part));
        self.noted.iter().copied().chain(overlapping.map(|unwell| unwell.fault)).collect()
    }

    /// Whether two parts cannot be there at once. Of what its table does not know everything is in the way.
    fn overlap(&self, one: &Part, other: &Part) -> bool {
        let (Part::Partition { template, placement }, Part::Partition { template: of, placement: at }) =
            (one, other)
        else {
            return true;
        };
        let Some(table) = self.table() else { return true };
        let both = table.consumption(template, placement).zip(table.consumption(of, at));
        let sum = both.and_then(|(one, other)| one.plus(&other));
        sum.is_none_or(|sum| sum.first_excess(&table.totals).is_some())
    }
}

// === impl UnixSeconds ===

impl fmt::Display for UnixSeconds {
    /// As a date and a time of day, UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut days, of_day) = (self.0 / 86_400, self.0 % 86_400);
        // The calendar has the same days again every 400 years, from March 1st of a year that these divide.
        days += 719_468;
        let era = days / 146_097;
        let of_era = days % 146_097;
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

#[cfg(test)]
mod tests;
