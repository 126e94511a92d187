//! Chips that answered before. One that answers no more is still reported: its devices stay published, with a taint, for the claims
//! that hold them.
//!
//! | the library now | the chip is reported |
//! |---|---|
//! | reads it | as read |
//! | lists its place, and has no answer for it | as last read, unhealthy with the reason |
//! | does not list its place, or another chip is there | as last read, and as not listed |
//!
//! A library that answers nothing reports no chip. One that never answered this process is unknown.

use std::collections::BTreeMap;

use aliquot_core::card::{Card, Health, Listing};
use aliquot_core::id::CardUuid;

use crate::ffi::ChipAt;
use crate::probe::DiscoveredChip;

/// Most chips that are remembered; a machine has 16.
const CHIPS_MAX: usize = 256;

/// A place of the library's list at which no chip was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SilentChip {
    pub(crate) at: ChipAt,
    pub(crate) why: String,
}

/// All chips as they are now, and what is wrong at places without one.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) found: Vec<DiscoveredChip>,
    pub(crate) silent: Vec<SilentChip>,
}

/// The chips as they were last read, each with its place.
#[derive(Debug, Default)]
pub(crate) struct KnownChips(BTreeMap<CardUuid, (ChipAt, Card)>);

// === impl SilentChip ===

impl SilentChip {
    /// One line for people.
    fn line(&self) -> String {
        format!("card {} chip {}: {}", self.at.card, self.at.device, self.why)
    }
}

// === impl Look ===

impl Look {
    /// What is wrong, one line each.
    pub(crate) fn trouble(&self) -> Vec<String> {
        self.silent.iter().map(SilentChip::line).collect()
    }
}

// === impl KnownChips ===

impl KnownChips {
    /// Every chip to report, in the order of their indexes. What was read is remembered.
    pub(crate) fn report(&mut self, Look { found, silent }: &Look) -> Vec<Card> {
        let mut cards: Vec<Card> = found.iter().map(|chip| chip.card.clone()).collect();
        for chip in found {
            self.remember(chip.facts.at, &chip.card);
        }
        let is_missing = |known: &&(ChipAt, Card)| !found.iter().any(|chip| chip.card.uuid == known.1.uuid);
        cards.extend(self.0.values().filter(is_missing).map(|(at, card)| missing(*at, card, silent)));
        cards.sort_by_key(|card| card.index);
        cards
    }

    fn remember(&mut self, at: ChipAt, card: &Card) {
        if self.0.contains_key(&card.uuid) || self.0.len() < CHIPS_MAX {
            self.0.insert(card.uuid.clone(), (at, card.clone()));
        }
    }
}

/// A chip that was not read. None of its vNPUs is known to exist, so that claims on it can be released.
fn missing(at: ChipAt, card: &Card, silent: &[SilentChip]) -> Card {
    let card = Card { found: Vec::new(), ..card.clone() };
    match silent.iter().find(|silent| silent.at == at) {
        Some(silent) => Card { health: Health::Unhealthy(silent.why.clone()), ..card },
        None => Card {
            health: Health::Unhealthy(
                "its driver does not list it any more: see what the kernel's log says of it".to_owned(),
            ),
            listing: Listing::Unlisted,
            ..card
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_core::catalogue::{CardIdentity, CardModel};
    use aliquot_core::units::Bytes;

    fn card() -> Card {
        let memory = Bytes(24 << 30);
        let model = CardModel::unlisted(crate::probe::vendor(), "310P3", "DaVinci", memory).unwrap();
        model.card(CardIdentity {
            uuid: CardUuid::new("NPU-1").unwrap(),
            index: 0,
            product_name: None,
            memory: Some(memory),
            driver_version: "24.1".to_owned(),
            pcie_root: None,
            numa_node: None,
            pci: None,
            topology: Default::default(),
            mode: None,
            health: Health::Healthy,
            found: Vec::new(),
        })
    }

    #[test]
    fn missing_chip_is_silent_or_not_listed() {
        let at = |card| ChipAt { card, device: 0 };
        let silent = [SilentChip { at: at(3), why: "no answer".to_owned() }];
        for (place, expected) in [(at(3), Listing::Listed), (at(4), Listing::Unlisted)] {
            let missing = missing(place, &card(), &silent);
            assert_eq!(missing.listing, expected);
            assert!(matches!(missing.health, Health::Unhealthy(_)));
            assert_eq!(Card { health: Health::Healthy, listing: Listing::Listed, ..missing }, card());
        }
    }

    #[test]
    fn endless_new_chips_are_not_all_remembered() {
        let mut known = KnownChips::default();
        for number in 0..2 * CHIPS_MAX {
            let uuid = CardUuid::new(format!("NPU-{number}")).unwrap();
            let at = ChipAt { card: i32::try_from(number).unwrap(), device: 0 };
            known.remember(at, &Card { uuid, ..card() });
        }
        assert_eq!(known.report(&Look { found: Vec::new(), silent: Vec::new() }).len(), CHIPS_MAX);
    }
}
