//! The order in which first fit tries placements, chosen so that large holes stay large.
//!
//! The scheduler takes the first device that fits, so the order of publication is the packing policy. Within a
//! template the next placement is always the one that costs least:
//!
//! 1. each placement of a larger template that it would kill counts with its size, unless an earlier choice has killed
//!    it already; each counter that nothing could use any more counts as a part of the card, eight times over;
//! 2. among equals, each placement of another template of its own size that it would kill;
//! 3. among equals, the first in the table.
//!
//! ```text
//!  H100, memory slices    0     1     2     3     4     5     6     7
//!  7g.80gb              [───────────────────── at 0 ─────────────────────]
//!  4g.40gb              [──────── at 0 ────────]
//!  3g.40gb              [──────── at 0 ────────][──────── at 4 ──────────]
//!  1g.10gb, tried as     4th   5th   6th   7th   1st   2nd   3rd    ·
//! ```
//!
//! The half that only 3g can use goes first. In it slice 6 goes last although fewer placements hang on it:
//! without it, slice 7 would be of no use.
//!
//! Templates are ordered from small to large. Of one size, the template with its compute nearest to that size
//! comes first, and among equals the first in the table. A claim for "a quarter" of an H100 tries 2g.20gb
//! before 1g.20gb. Where placements are aligned blocks (A30, RTX PRO 6000, 310P) this is the plain order.
//!
//! Invariants: the order is a permutation of all placements that fit on an empty card; it depends on the table alone.

use crate::counters::binding_counters;
use crate::partition::{CounterVector, PartitionTable, Template};

/// A card in the unit of sizes: 5,040ths, so that every usual fraction is whole.
const CARD: u64 = 5_040;
/// How much more a stranded part of a card counts than a killed placement of that size. On the embedded models every
/// factor from 4 to 16 gives the same orders.
const STRANDED_FACTOR: u64 = 8;

/// A template at a placement, by their numbers in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplatePlacement {
    /// Number of the template.
    pub template: usize,
    /// Number of the placement within the template.
    pub placement: usize,
}

/// Every placement that fits on an empty card, in the order in which first fit should try them.
#[must_use]
pub fn publication_order(table: &PartitionTable) -> Vec<TemplatePlacement> {
    order_by(table, binding_counters(table).totals())
}

/// The same, given the totals of the counters that bind.
pub(super) fn order_by(table: &PartitionTable, binding: &CounterVector) -> Vec<TemplatePlacement> {
    let board = Board::of(table, binding);
    let mut templates: Vec<usize> = (0..table.templates.len()).collect();
    let distance = |template: usize| table.templates.get(template).map(Template::compute_distance);
    templates.sort_by_key(|template| (board.sizes[*template], distance(*template)));
    templates.into_iter().flat_map(|template| board.order_of(template)).collect()
}

/// Size of a place's template, in 5,040ths of the card.
pub(super) fn size(table: &PartitionTable, place: TemplatePlacement) -> u64 {
    table.templates.get(place.template).map_or(0, |template| {
        let fraction = template.fraction;
        u64::from(fraction.numerator()) * CARD / u64::from(fraction.denominator())
    })
}

/// What a place takes; `None` if there is no such place or the sum overflows.
pub(super) fn takes(table: &PartitionTable, place: TemplatePlacement) -> Option<CounterVector> {
    let template = table.templates.get(place.template)?;
    template.consumes.plus(&template.placements.get(place.placement)?.consumes)
}

/// All places of a table and which of them exclude each other.
struct Board {
    places: Vec<TemplatePlacement>,
    /// By number of the template.
    sizes: Vec<u64>,
    /// `conflicts[a][b]`: places a and b do not fit together on an empty card.
    conflicts: Vec<Vec<bool>>,
    /// `uses[a]`: which counters of the table place a takes; also those that never bind, since their rest is
    /// lost all the same.
    uses: Vec<Vec<bool>>,
    counters: usize,
}

impl Board {
    fn of(table: &PartitionTable, binding: &CounterVector) -> Self {
        let totals: Vec<(u64, bool)> =
            table.totals.iter().map(|(name, total)| (total, binding.get(name) > 0)).collect();
        let mut places = Vec::new();
        let mut amounts: Vec<Vec<u64>> = Vec::new();
        for (template, entry) in table.templates.iter().enumerate() {
            for placement in 0..entry.placements.len() {
                let place = TemplatePlacement { template, placement };
                if let Some(takes) = takes(table, place).filter(|t| t.first_excess(&table.totals).is_none()) {
                    places.push(place);
                    amounts.push(table.totals.iter().map(|(name, _)| takes.get(name)).collect());
                }
            }
        }
        // Each amount is at most its total, so the sum is compared without being made.
        let apart = |a: &[u64], b: &[u64]| {
            let mut counters = a.iter().zip(b).zip(&totals);
            counters.any(|((a, b), (total, binds))| *binds && *a > total - b)
        };
        let conflicts = amounts.iter().map(|a| amounts.iter().map(|b| apart(a, b)).collect()).collect();
        let uses = amounts.iter().map(|a| a.iter().map(|amount| *amount > 0).collect()).collect();
        let first = |template| size(table, TemplatePlacement { template, placement: 0 });
        let sizes = (0..table.templates.len()).map(first).collect();
        Self { places, sizes, conflicts, uses, counters: table.totals.iter().len() }
    }

    /// The placements of one template, cheapest first, each judged after those before it are taken.
    fn order_of(&self, template: usize) -> Vec<TemplatePlacement> {
        let mut left: Vec<usize> =
            (0..self.places.len()).filter(|i| self.places[*i].template == template).collect();
        let mut alive: Vec<usize> = (0..self.places.len()).collect();
        let mut order = Vec::new();
        while let Some(next) = left.iter().copied().min_by_key(|place| self.cost(*place, &alive)) {
            order.push(self.places[next]);
            left.retain(|place| *place != next);
            alive.retain(|place| *place != next && !self.conflicts[next][*place]);
        }
        order
    }

    /// What taking a place costs while these are alive: larger placements and stranded counters, then its equals.
    fn cost(&self, place: usize, alive: &[usize]) -> (u64, u64) {
        let template = self.places[place].template;
        let own = self.sizes[template];
        let (mut larger, mut equal) = (0, 0);
        for other in alive.iter().filter(|other| self.conflicts[place][**other]) {
            let (size, same) = (self.size_of(*other), self.places[*other].template == template);
            if size > own {
                larger += size;
            } else if size == own && !same {
                equal += size;
            }
        }
        (larger + self.stranded(place, alive), equal)
    }

    /// The weighted part of the card with counters that have a use now and none after this place is taken.
    fn stranded(&self, place: usize, alive: &[usize]) -> u64 {
        let used_by = |counter: usize, other: usize| self.uses[other][counter];
        let lost = |counter: &usize| {
            let mut now = alive.iter().filter(|other| used_by(*counter, **other)).peekable();
            now.peek().is_some()
                && !used_by(*counter, place)
                && now.all(|other| self.conflicts[place][*other] || *other == place)
        };
        let each = CARD * STRANDED_FACTOR / u64::try_from(self.counters.max(1)).unwrap_or(u64::MAX);
        (0..self.counters).filter(lost).map(|_| each).sum()
    }

    fn size_of(&self, place: usize) -> u64 {
        self.sizes[self.places[place].template]
    }
}

#[cfg(test)]
mod tests;
