//! The counters of a dynamic card, as few as are exact (see [`crate::counters`]), and `memory`.
//!
//! Readers that add up, such as quotas, count by one name on every card: `memory` takes the exact bytes of each part and
//! never binds, since its total is at least what partitions that fit together take.

use std::collections::BTreeMap;

use super::names;
use super::tables::TableFacts;
use crate::card::Card;
use crate::counters::BindingCounters;
use crate::dra::{CounterConsumption, CounterSet};
use crate::id::CounterName;
use crate::partition::CounterVector;
use crate::quantity::{Format, Quantity};
use crate::units::Bytes;

/// Most counters that a set may have.
const COUNTERS_MAX: usize = 32;
/// The counter of bytes.
const MEMORY: &str = "memory";

/// The published counters of one card.
pub(super) struct CardCounters<'a> {
    set: String,
    binding: &'a BindingCounters,
    memory: MemoryCounter,
}

/// Whether memory is counted beside the counters that bind.
enum MemoryCounter {
    /// It is.
    Beside {
        /// What the card takes.
        card: Bytes,
        /// What there is.
        total: Bytes,
    },
    /// It is one of those that bind, they are as many as a set may have, or a part takes of none.
    Absent,
}

// === impl CardCounters ===

impl<'a> CardCounters<'a> {
    pub(super) fn of(card: &Card, facts: &'a TableFacts) -> Self {
        let binding = &facts.counters;
        let totals = binding.totals();
        let is_free =
            totals.iter().len() < COUNTERS_MAX && totals.iter().all(|(name, _)| name.as_str() != MEMORY);
        let memory = facts.most_memory.filter(|_| is_free).map_or(MemoryCounter::Absent, |most| {
            let card = card.memory.whole_mib();
            MemoryCounter::Beside { card, total: card.max(most) }
        });
        Self { set: names::counter_set_name(card), binding, memory }
    }

    /// The set as published.
    pub(super) fn set(&self) -> CounterSet {
        let total = match self.memory {
            MemoryCounter::Beside { total, .. } => total,
            MemoryCounter::Absent => Bytes(0),
        };
        CounterSet { name: self.set.clone(), counters: self.rendered(self.binding.totals(), total) }
    }

    /// What the whole card takes: everything.
    pub(super) fn of_card(&self) -> Vec<CounterConsumption> {
        let card = match self.memory {
            MemoryCounter::Beside { card, .. } => card,
            MemoryCounter::Absent => Bytes(0),
        };
        self.consumption(self.binding.totals(), card)
    }

    /// What a part takes; nothing is left out but zeros and counters that are not published.
    pub(super) fn of_part(&self, takes: &CounterVector, memory: Bytes) -> Vec<CounterConsumption> {
        self.consumption(&self.binding.published(takes), memory.whole_mib())
    }

    fn consumption(&self, takes: &CounterVector, memory: Bytes) -> Vec<CounterConsumption> {
        let counters = self.rendered(takes, memory);
        if counters.is_empty() {
            return Vec::new();
        }
        vec![CounterConsumption { counter_set: self.set.clone(), counters, compatibility_groups: Vec::new() }]
    }

    fn rendered(&self, takes: &CounterVector, memory: Bytes) -> BTreeMap<String, Quantity> {
        let mut counters = rendered(takes);
        if matches!(self.memory, MemoryCounter::Beside { .. }) && memory > Bytes(0) {
            counters.insert(MEMORY.to_owned(), memory.quantity());
        }
        counters
    }
}

/// Whether a counter set can hold what has to be published, and there is anything to hold.
pub(super) fn fits(counters: &BindingCounters) -> bool {
    (1..=COUNTERS_MAX).contains(&counters.totals().iter().len())
}

fn rendered(vector: &CounterVector) -> BTreeMap<String, Quantity> {
    vector.iter().map(|(name, amount)| (name.as_str().to_owned(), quantity(name, amount))).collect()
}

/// Memory in binary units, everything else as plain numbers; what passes 2^63 − 1 is capped, on every side alike.
fn quantity(name: &CounterName, amount: u64) -> Quantity {
    let format = if name.as_str() == MEMORY { Format::BinarySi } else { Format::DecimalSi };
    Quantity::from_units(i64::try_from(amount).unwrap_or(i64::MAX), format)
}
