//! PCI addresses of cards: which one a card has, and how the libraries write and read it.

use crate::node::{CardFacts, NodeError};
use std::collections::BTreeSet;

/// Bus of the first card that says none.
const BUS_FIRST: u32 = 0x10;
/// Buses of one PCI domain.
const BUSES: u32 = 256;
/// A bus that no file can name: the card says none, and gets one that no other has when its file is read.
pub const NO_BUS: u32 = u32::MAX;
/// Buses that have an address: those of domains with four digits.
const BUS_MAX: u32 = 0xff_ffff;
/// Largest device number on a bus.
const SLOT_MAX: u32 = 31;

/// A card's place on the PCI bus. Its function is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciPlace {
    /// PCI domain.
    pub domain: u32,
    /// Bus in the domain.
    pub bus: u32,
    /// Device number on the bus.
    pub slot: u32,
}

// === impl PciPlace ===

impl PciPlace {
    /// Reads `[domain:]bus:device[.function]` in hexadecimal; without a domain, it is the first.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hexadecimal = |text: &str| u32::from_str_radix(text, 16).ok();
        let mut parts = text.rsplit(':');
        let device = parts.next()?;
        let (slot, function) = device.split_once('.').unwrap_or((device, "0"));
        let (slot, bus) = (hexadecimal(slot)?, hexadecimal(parts.next()?)?);
        let domain = parts.next().map_or(Some(0), hexadecimal)?;
        let whole = parts.next().is_none() && hexadecimal(function)? == 0 && bus < BUSES && slot <= SLOT_MAX;
        whole.then_some(Self { domain, bus, slot })
    }

    /// As the libraries write it, the domain with so many digits.
    #[must_use]
    pub fn text(self, digits: usize) -> String {
        let Self { domain, bus, slot } = self;
        format!("{domain:0digits$X}:{bus:02X}:{slot:02X}.0")
    }

    /// The number that `bus` of a node file is: buses of all domains, one behind the other.
    #[must_use]
    pub fn bus_of_all(self) -> u32 {
        self.domain.saturating_mul(BUSES).saturating_add(self.bus)
    }

    pub(crate) fn of(facts: &CardFacts) -> Self {
        Self { slot: facts.slot, ..Self::on(facts.bus) }
    }

    /// The first place on this bus of all domains.
    fn on(bus_of_all: u32) -> Self {
        Self { domain: bus_of_all / BUSES, bus: bus_of_all % BUSES, slot: 0 }
    }

    /// The first bus from `bus_of_all` on whose first place is free; takes it.
    pub fn free(taken: &mut BTreeSet<Self>, bus_of_all: u32) -> Self {
        let mut free = (bus_of_all..=BUS_MAX).map(Self::on).filter(|place| !taken.contains(place));
        let place = free.next().unwrap_or(Self::on(BUS_MAX));
        taken.insert(place);
        place
    }
}

/// The bus of card `index` where its file names none.
pub(crate) fn numbered(index: u32) -> u32 {
    BUS_FIRST.saturating_add(index)
}

/// Gives a bus of its own to every card that says none, and refuses two cards with one address.
pub(crate) fn complete(cards: &mut [CardFacts]) -> Result<(), NodeError> {
    for card in cards.iter().filter(|card| card.bus != NO_BUS) {
        let figures = [
            ("card.bus", card.bus, BUS_MAX, "at most 16777215"),
            ("card.slot", card.slot, SLOT_MAX, "at most 31"),
        ];
        for (field, found, most, expected) in figures {
            if found > most {
                return Err(NodeError::Figure { field, found: found.to_string(), expected });
            }
        }
    }
    let given = cards.iter().filter(|card| card.bus != NO_BUS);
    let mut taken: BTreeSet<PciPlace> = given.map(CardFacts::pci).collect();
    for (index, card) in (0..).zip(cards.iter_mut()).filter(|(_, card)| card.bus == NO_BUS) {
        card.bus = PciPlace::free(&mut taken, numbered(index)).bus_of_all();
    }
    let mut places = BTreeSet::new();
    match cards.iter().find(|card| !places.insert(card.pci())) {
        Some(card) => Err(NodeError::Figure {
            field: "card.bus",
            found: format!("{} ({}) for two cards", card.bus, card.pci().text(4)),
            expected: "another address, by `bus` or `slot`, for each card",
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let place = PciPlace { domain: 1, bus: 0xc1, slot: 5 };
        for text in [place.text(4), place.text(8), place.text(8).to_lowercase(), "1:c1:5".to_owned()] {
            assert_eq!(PciPlace::parse(&text), Some(place), "{text}");
        }
        assert_eq!(PciPlace::parse("c1:05.0"), Some(PciPlace { domain: 0, ..place }));
        for text in ["", ":", "10", "0:10:00.1", "0:0:10:00.0", "100:00.0", "10:20.0", "x:10:00.0"] {
            assert_eq!(PciPlace::parse(text), None, "{text}");
        }
    }

    #[test]
    fn many_cards_without_a_bus_have_an_address_each() {
        let blank = CardFacts { bus: NO_BUS, ..CardFacts::numbered(0) };
        let given = CardFacts { bus: numbered(1), ..CardFacts::numbered(0) };
        let mut cards = vec![blank; 600];
        cards.push(given);
        complete(&mut cards).unwrap();
        let texts: BTreeSet<String> = cards.iter().map(|card| card.pci().text(4)).collect();
        assert_eq!(texts.len(), cards.len());
        assert!(texts.iter().all(|text| text.len() == "0000:10:00.0".len()));
        assert_eq!(cards.first().unwrap().pci().text(4), "0000:10:00.0");
    }
}
