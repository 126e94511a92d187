//! What is worked out once for each table, since the cards of a node are mostly alike.

use super::order::{self, TemplatePlacement};
use crate::card::{Card, Inventory};
use crate::counters::{BindingCounters, binding_counters};
use crate::partition::PartitionTable;

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
}

impl<'a> Tables<'a> {
    pub(super) fn of(inventory: &'a Inventory) -> Self {
        let mut known: Vec<(&PartitionTable, TableFacts)> = Vec::new();
        for table in inventory.cards.iter().filter_map(Card::table) {
            if !known.iter().any(|(other, _)| *other == table) {
                let counters = binding_counters(table);
                let order = order::order_by(table, counters.totals());
                known.push((table, TableFacts { order, counters }));
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
