//! Cards that answered before. One that answers no more is still reported: its devices stay published, with a taint, for the claims
//! that hold them.
//!
//! | the driver now | the card is reported |
//! |---|---|
//! | reads it in full | as read |
//! | reads it without its MIG mode or instances | as last read in full, with the reason |
//! | has no answer at a place of its list | as last read in full, with the reason; as lost, if the driver says so |
//! | answers for every card of its list, which has others only | as last read in full, and as not listed |
//!
//! A driver that is not loaded answers nothing, and no card is reported. A card that never answered this process is unknown.

use std::collections::BTreeMap;

use aliquot_core::card::{Card, Health, Listing, NotedFault};
use aliquot_core::id::CardUuid;

use crate::probe::{Discovery, Loss, Unread};

/// Most cards that are remembered; a machine has 16.
const CARDS_MAX: usize = 256;

/// The cards as they were last read in full.
#[derive(Debug, Default)]
pub(crate) struct KnownCards(BTreeMap<CardUuid, Card>);

// === impl KnownCards ===

impl KnownCards {
    /// Every card to report, in the order of their indexes. What was read in full is remembered.
    pub(crate) fn report(&mut self, found: &Discovery) -> Vec<Card> {
        let mut cards: Vec<Card> = found.cards.iter().map(|card| self.merge(card)).collect();
        let is_missing = |known: &&Card| !found.cards.iter().any(|card| card.uuid == known.uuid);
        cards.extend(self.0.values().filter(is_missing).map(|known| missing(known, &found.unread)));
        cards.sort_by_key(|card| card.index);
        cards
    }

    /// One card that was read now.
    pub(crate) fn merge(&mut self, read: &Card) -> Card {
        match (&read.health, self.0.get(&read.uuid)) {
            (Health::Unhealthy(_), Some(known)) => {
                Card { index: read.index, health: read.health.clone(), ..without_parts(known) }
            }
            (Health::Unhealthy(_), None) => read.clone(),
            (Health::Healthy, known) => {
                if known.is_some() || self.0.len() < CARDS_MAX {
                    self.0.insert(read.uuid.clone(), read.clone());
                }
                read.clone()
            }
        }
    }

    /// A card that was asked for by its UUID and cannot be read; `None`: it is unknown.
    pub(crate) fn unread(&self, card: &CardUuid, unread: &Unread) -> Option<Card> {
        self.0.get(card).map(|known| silent(known, unread))
    }
}

/// A card that is not among those that were read, by what was found at places without an answer.
fn missing(known: &Card, unread: &[Unread]) -> Card {
    // Indexes move when a card goes, so any place without an answer may be this card's.
    let place = unread.iter().find(|unread| unread.index == known.index).or_else(|| unread.first());
    match place {
        Some(unread) => silent(known, unread),
        None => Card {
            health: Health::Unhealthy(
                "its driver does not list it any more: see what the kernel's log says of it".to_owned(),
            ),
            listing: Listing::Unlisted,
            ..without_parts(known)
        },
    }
}

fn silent(known: &Card, unread: &Unread) -> Card {
    let mut card = without_parts(known);
    card.health = Health::Unhealthy(unread.why.clone());
    if unread.loss == Loss::Reported {
        card.noted.insert(NotedFault::Lost);
    }
    card
}

/// A card of which no partition is known to exist: a reset destroys them, and claims on it can be released.
fn without_parts(known: &Card) -> Card {
    Card { found: Vec::new(), ..known.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::MigMode;
    use crate::ffi::{Facts, Fault};
    use aliquot_core::catalogue::Catalogue;

    fn facts(index: u32, number: u32) -> Facts {
        Facts {
            index,
            uuid: format!("GPU-{number}"),
            name: "NVIDIA L4".to_owned(),
            minor: None,
            pci: String::new(),
            pci_id: 0x27b8_10de,
            memory: Ok(23_034 << 20),
            capability: (8, 9),
            mig: Ok(MigMode::Off),
        }
    }

    fn fault(code: u32) -> Fault {
        Fault::Code { code, text: "no".to_owned() }
    }

    fn discovery(answers: Vec<Result<Facts, Fault>>) -> Discovery {
        let mut found = Discovery::default();
        for (index, answer) in (0_u32..).zip(answers) {
            found.add(index, answer, "580.65.06", &Catalogue::embedded());
        }
        found
    }

    /// What two cards are reported as, after both were read.
    fn reported(answers: Vec<Result<Facts, Fault>>) -> Vec<Card> {
        let mut known = KnownCards::default();
        assert_eq!(known.report(&discovery(vec![Ok(facts(0, 0)), Ok(facts(1, 1))])).len(), 2);
        known.report(&discovery(answers))
    }

    fn said(card: &Card) -> (&str, bool, bool, Listing) {
        let is_lost = card.noted.contains(&NotedFault::Lost);
        (card.uuid.as_str(), card.health == Health::Healthy, is_lost, card.listing)
    }

    #[test]
    fn card_without_an_answer_is_reported_as_last_read() {
        use Listing::{Listed, Unlisted};
        for (answers, expected) in [
            (
                vec![Ok(facts(0, 0)), Err(fault(15))],
                [("GPU-0", true, false, Listed), ("GPU-1", false, true, Listed)],
            ),
            (
                vec![Err(fault(999)), Ok(facts(1, 1))],
                [("GPU-0", false, false, Listed), ("GPU-1", true, false, Listed)],
            ),
            // The first card is gone, and the second moved to its place.
            (vec![Ok(facts(0, 1))], [("GPU-0", false, false, Unlisted), ("GPU-1", true, false, Listed)]),
            (vec![], [("GPU-0", false, false, Unlisted), ("GPU-1", false, false, Unlisted)]),
        ] {
            let cards = reported(answers);
            let mut found: Vec<_> = cards.iter().map(said).collect();
            found.sort_by_key(|(uuid, ..)| *uuid);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn card_without_its_mig_mode_keeps_what_it_was() {
        let on = |mig| Facts { mig, ..facts(0, 0) };
        let cards = reported(vec![Ok(on(Err(fault(999)))), Ok(facts(1, 1))]);
        assert!(matches!(&cards[0].health, Health::Unhealthy(why) if why.contains("MIG mode")), "{cards:?}");
        let read = discovery(vec![Ok(facts(0, 0))]).cards.remove(0);
        assert_eq!(Card { health: Health::Healthy, ..cards[0].clone() }, read);
    }

    #[test]
    fn unknown_card_without_an_answer_is_not_reported() {
        assert_eq!(KnownCards::default().report(&discovery(vec![Err(fault(15))])), []);
    }
}
