//! The order in which first fit tries placements, chosen so that large holes stay large.
//!
//! The scheduler takes the first device that fits, so the order of publication is the packing policy. Within a
//! template the next placement is always the one that costs least: each placement of a larger template that it would
//! kill counts with its size, unless an earlier choice has killed it already.
//!
//! ```text
//!  H100, memory slices      0   1   2   3   4   5   6   7
//!  3g.40gb                  [──── at 0 ────][──── at 4 ────]
//!  4g.40gb                  [──── at 0 ────]
//!  1g.10gb, tried in order  7th 6th 5th 4th 3rd 2nd 1st        the half that only 3g can use goes first
//! ```
//!
//! Templates are ordered from small to large, those of one size as in their table: a claim for "a quarter" then tries
//! the fuller quarter first.
//!
//! Invariants: the order is a permutation of all placements; it depends on the table alone.

use std::cmp::Reverse;

use crate::partition::{CounterVector, PartitionTable};

/// A template at a placement, by their numbers in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Number of the template.
    pub template: usize,
    /// Number of the placement within the template.
    pub placement: usize,
}

/// Every placement that fits on an empty card, in the order in which first fit should try them.
#[must_use]
pub fn publication_order(table: &PartitionTable) -> Vec<Place> {
    let board = Board::of(table);
    let mut templates: Vec<usize> = (0..table.templates.len()).collect();
    templates.sort_by_key(|t| board.sizes[*t]);
    templates.into_iter().flat_map(|template| board.order_of(template)).collect()
}

/// Size of a place's template: its part of the card in 1/5,040ths, so that every usual fraction is whole.
pub(super) fn size(table: &PartitionTable, place: Place) -> u64 {
    table.templates.get(place.template).map_or(0, |template| {
        let fraction = template.fraction;
        u64::from(fraction.numerator()) * 5_040 / u64::from(fraction.denominator())
    })
}

/// What a place takes; `None` if there is no such place or the sum overflows.
pub(super) fn takes(table: &PartitionTable, place: Place) -> Option<CounterVector> {
    let template = table.templates.get(place.template)?;
    template.consumes.plus(&template.placements.get(place.placement)?.consumes)
}

/// All places of a table and which of them exclude each other.
struct Board {
    places: Vec<Place>,
    /// By number of the template.
    sizes: Vec<u64>,
    /// `conflicts[a][b]`: places a and b do not fit together on an empty card.
    conflicts: Vec<Vec<bool>>,
}

impl Board {
    fn of(table: &PartitionTable) -> Self {
        let mut places = Vec::new();
        let mut vectors = Vec::new();
        for (template, entry) in table.templates.iter().enumerate() {
            for placement in 0..entry.placements.len() {
                let place = Place { template, placement };
                if let Some(takes) = takes(table, place).filter(|t| t.first_excess(&table.totals).is_none()) {
                    places.push(place);
                    vectors.push(takes);
                }
            }
        }
        let apart = |a: &CounterVector, b: &CounterVector| {
            a.plus(b).is_none_or(|both| both.first_excess(&table.totals).is_some())
        };
        let conflicts = vectors.iter().map(|a| vectors.iter().map(|b| apart(a, b)).collect()).collect();
        let sizes =
            (0..table.templates.len()).map(|t| size(table, Place { template: t, placement: 0 })).collect();
        Self { places, sizes, conflicts }
    }

    /// The placements of one template, cheapest first, each judged after those before it are taken.
    fn order_of(&self, template: usize) -> Vec<Place> {
        let mut left: Vec<usize> =
            (0..self.places.len()).filter(|i| self.places[*i].template == template).collect();
        let mut alive: Vec<usize> = (0..self.places.len()).filter(|i| self.weighs(*i, template)).collect();
        let mut order = Vec::new();
        while let Some(next) = left.iter().copied().min_by_key(|i| (self.cost(*i, &alive), Reverse(*i))) {
            order.push(self.places[next]);
            left.retain(|i| *i != next);
            alive.retain(|i| !self.conflicts[next][*i]);
        }
        order
    }

    /// Whether losing this place matters to the template: it is larger, yet leaves room for others.
    fn weighs(&self, place: usize, template: usize) -> bool {
        self.sizes[self.places[place].template] > self.sizes[template]
    }

    fn cost(&self, place: usize, alive: &[usize]) -> u64 {
        alive
            .iter()
            .filter(|other| self.conflicts[place][**other])
            .map(|other| self.sizes[self.places[*other].template])
            .sum()
    }
}

#[cfg(test)]
mod tests;
