//! What is worked out once for each table, since the cards of a node are mostly alike.

use super::order::{self, TemplatePlacement};
use crate::card::{Card, Inventory};
use crate::counters::{BindingCounters, binding_counters, most_memory};
use crate::partition::PartitionTable;
use crate::units::Bytes;

/// The tables of a node and what follows from them.
pub(super) struct Tables<'a> {
    known: Vec<(&'a PartitionTable, TableFacts)>,
}

/// What follows from one table.
pub(super) struct TableFacts {
    /// Places in the order of publication.
    pub(super) order: Vec<TemplatePlacement>,
    /// Counters that have to be published.
    pub(super) counters: BindingCounters,
    /// Most memory that partitions which fit together take; `None`: there is no such amount.
    pub(super) most_memory: Option<Bytes>,
}

impl<'a> Tables<'a> {
    pub(super) fn of(inventory: &'a Inventory) -> Self {
        let mut known: Vec<(&PartitionTable, TableFacts)> = Vec::new();
        for table in inventory.cards.iter().filter_map(Card::table) {
            if !known.iter().any(|(other, _)| *other == table) {
                let counters = binding_counters(table);
                let order = order::order_by(table, counters.totals());
                let most_memory = most_memory(table, &counters);
                known.push((table, TableFacts { order, counters, most_memory }));
            }
        }
        Self { known }
    }

    /// The table of a card that counts now, with its facts.
    pub(super) fn facts(&self, card: &Card) -> Option<(&'a PartitionTable, &TableFacts)> {
        let table = card.table()?;
        self.known.iter().find(|(other, _)| *other == table).map(|(table, facts)| (*table, facts))
    }
}
