//! Cards of a simulated node that a driver's library serves: their partitions, health and events are the library's.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use aliquot_core::card::{Card, Health};
use aliquot_core::id::CardUuid;
use aliquot_core::ports::{AccessMount, BackendError, DeviceBackend, LivePartition};

/// Cards, and the library that serves them.
#[derive(Clone, Default)]
pub struct ServedCards {
    /// Their UUIDs, under which the library knows them as well.
    pub cards: BTreeSet<CardUuid>,
    /// The library; `None`: it serves no card.
    pub library: Option<Arc<dyn DeviceBackend>>,
    /// What a container needs beside what the library says.
    pub mounts: Vec<AccessMount>,
}

// === impl ServedCards ===

impl ServedCards {
    /// Whether a card is served.
    pub(crate) fn has(&self, card: &CardUuid) -> bool {
        self.cards.contains(card)
    }

    /// The library of a card.
    pub(crate) fn of(&self, card: &CardUuid) -> Option<&dyn DeviceBackend> {
        self.library.as_deref().filter(|_| self.has(card))
    }

    /// Partitions of all cards that are served.
    pub(crate) fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        let Some(library) = &self.library else { return Ok(Vec::new()) };
        Ok(library.partitions()?.into_iter().filter(|live| self.has(&live.at.card)).collect())
    }

    /// The library's generation; 0 if it serves no card.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.library.as_ref().map_or(Some(0), DeviceBackend::generation)
    }

    /// Puts what the library tells into the cards: what they can be cut into, what exists on them, whether they work.
    pub(crate) fn look(&self, cards: &mut [Card]) -> Result<(), BackendError> {
        let Some(library) = &self.library else { return Ok(()) };
        let found = library.discover()?;
        for card in cards.iter_mut().filter(|card| self.has(&card.uuid)) {
            let health = match found.card(&card.uuid) {
                Some(found) => {
                    (card.partitioning, card.found) = (found.partitioning.clone(), found.found.clone());
                    found.health.clone()
                }
                None => Health::Unhealthy("the driver's library does not list it".to_owned()),
            };
            if card.health == Health::Healthy {
                card.health = health;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ServedCards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("cards", &self.cards).finish_non_exhaustive()
    }
}
