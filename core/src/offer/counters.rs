//! The counters of a dynamic card, as few as are exact: see [`crate::counters`].

use std::collections::BTreeMap;

use super::names;
use crate::card::Card;
use crate::counters::BindingCounters;
use crate::dra::{CounterConsumption, CounterSet};
use crate::id::CounterName;
use crate::partition::CounterVector;
use crate::quantity::{Format, Quantity};

/// Most counters that a set may have.
const COUNTERS_MAX: usize = 32;

/// The published counters of one card.
pub(super) struct CardCounters<'a> {
    set: String,
    published: &'a BindingCounters,
}

// === impl CardCounters ===

impl<'a> CardCounters<'a> {
    pub(super) fn of(card: &Card, published: &'a BindingCounters) -> Self {
        Self { set: names::counter_set_name(card), published }
    }

    /// The set as published.
    pub(super) fn set(&self) -> CounterSet {
        CounterSet { name: self.set.clone(), counters: rendered(self.published.totals()) }
    }

    /// What the whole card takes: everything.
    pub(super) fn of_card(&self) -> Vec<CounterConsumption> {
        self.consumption(self.published.totals())
    }

    /// What a part takes; nothing is left out but zeros and counters that are not published.
    pub(super) fn consumption(&self, takes: &CounterVector) -> Vec<CounterConsumption> {
        let counters = rendered(&self.published.published(takes));
        if counters.is_empty() {
            return Vec::new();
        }
        vec![CounterConsumption { counter_set: self.set.clone(), counters, compatibility_groups: Vec::new() }]
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
    let format = if name.as_str() == "memory" { Format::BinarySi } else { Format::DecimalSi };
    Quantity::from_units(i64::try_from(amount).unwrap_or(i64::MAX), format)
}
