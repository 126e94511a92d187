//! Which counters have to be published: as few as are exact.
//!
//! A card's table may count more than ever runs out: on an H100 the memory slices are gone before the
//! multiprocessors are. Each counter that is published costs the scheduler time for every device, so a counter that
//! never binds is left out. The decision is exact:
//!
//! ```text
//!   S = all counters
//!   for each counter c, the least telling first:
//!       is there a set of partitions, the whole card among them, that fits in S without c and takes too much of c?
//!       no  ─▶ S := S without c            the same sets fit as before
//!       yes ─▶ c stays, that set is its witness
//! ```
//!
//! Dropping a counter only ever makes more sets fit, so a witness stays one to the end: no counter of the result can
//! be left out. The search is bounded; where the bound bites, the counter stays, which is always right.
//!
//! [`most_memory`] is the most memory that such sets take: what a counter of memory needs to bind nothing.

mod memory;

use std::collections::BTreeMap;

use crate::id::CounterName;
use crate::partition::{CounterVector, Part, PartitionTable};

pub use memory::most_memory;

/// Steps of one search; the embedded models need a few thousand. It stops a table built to be slow.
const STEPS_MAX: u64 = 2_000_000;

/// The counters to publish for one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingCounters {
    kept: BTreeMap<CounterName, Witness>,
    totals: CounterVector,
}

/// Why a counter is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// These parts fit together by the other counters, and take more of this one than the card has.
    Parts(Vec<Part>),
    /// The search ended at its bound; the counter may or may not be needed.
    Undecided,
}

/// Finds the counters that bind; see the module text.
#[must_use]
pub fn binding_counters(table: &PartitionTable) -> BindingCounters {
    let problem = CounterTable::new(table);
    let mut in_force = vec![true; problem.names.len()];
    let mut kept = BTreeMap::new();
    for counter in problem.least_telling_first() {
        in_force[counter] = false;
        let mut search = OverdrawSearch::new(&problem, &in_force, counter);
        let witness = match search.overdraws() {
            DrawOutcome::Nothing => continue,
            DrawOutcome::Overdraft => Witness::Parts(search.parts()),
            DrawOutcome::Bound => Witness::Undecided,
        };
        in_force[counter] = true;
        kept.insert(problem.names[counter].clone(), witness);
    }
    let totals = table.totals.restricted(|name| kept.contains_key(name));
    BindingCounters { kept, totals }
}

/// A table as numbers: parts that take the same are one group.
struct CounterTable {
    names: Vec<CounterName>,
    totals: Vec<u64>,
    /// Whether placements take of the counter.
    is_place: Vec<bool>,
    groups: Vec<PartGroup>,
}

/// Parts that take exactly the same; each can be held once.
struct PartGroup {
    takes: Vec<u64>,
    parts: Vec<Part>,
}

/// Depth-first search for a set that fits by the counters in force and overdraws one.
struct OverdrawSearch<'a> {
    problem: &'a CounterTable,
    counters: Vec<usize>,
    target: usize,
    /// Groups by what they take of the target, most first.
    order: Vec<usize>,
    /// Most that the groups from here on could take of the target, were there room for all.
    ahead: Vec<u64>,
    /// Rooms that bound it too.
    rooms: Vec<Room>,
    room: Vec<u64>,
    chosen: Vec<(usize, usize)>,
    steps: u64,
}

/// A sum of counters in force that every draw on the target also draws on. Its rest bounds how much of the
/// target can still be drawn.
struct Room {
    /// Positions in the search's counters.
    counters: Vec<usize>,
    /// For the groups from here on, the best that one unit of room is good for, as target over room; `None`: some group
    /// takes of the target and none of this room.
    best: Vec<Option<(u64, u64)>>,
}

enum DrawOutcome {
    Nothing,
    Overdraft,
    Bound,
}

// === impl BindingCounters ===

impl BindingCounters {
    /// Totals of the counters that are published.
    #[must_use]
    pub const fn totals(&self) -> &CounterVector {
        &self.totals
    }

    /// What a part that takes `all` is published to take.
    #[must_use]
    pub fn published(&self, all: &CounterVector) -> CounterVector {
        all.restricted(|name| self.kept.contains_key(name))
    }

    /// Each published counter and why it is.
    pub fn witnesses(&self) -> impl ExactSizeIterator<Item = (&CounterName, &Witness)> {
        self.kept.iter()
    }
}

// === impl CounterTable ===

impl CounterTable {
    fn new(table: &PartitionTable) -> Self {
        let names: Vec<CounterName> = table.totals.iter().map(|(name, _)| name.clone()).collect();
        let amounts = |vector: &CounterVector| names.iter().map(|n| vector.get(n)).collect::<Vec<u64>>();
        let mut groups = vec![PartGroup { takes: amounts(&table.totals), parts: vec![Part::Card] }];
        for (template, placement) in table.partitions() {
            let Some(takes) = template.consumes.plus(&placement.consumes) else { continue };
            let takes = amounts(&takes);
            let (template, placement) = (template.name.clone(), placement.name.clone());
            let part = Part::Partition { template, placement };
            match groups.iter_mut().find(|g| g.takes == takes) {
                Some(group) => group.parts.push(part),
                None => groups.push(PartGroup { takes, parts: vec![part] }),
            }
        }
        let takes_place = |name: &CounterName| table.partitions().any(|(_, p)| p.consumes.get(name) > 0);
        let is_place = names.iter().map(takes_place).collect();
        Self { totals: amounts(&table.totals), names, is_place, groups }
    }

    /// Counters in the order in which it is tried to do without them: sums that people do not count first, places
    /// (what placements take) last and from the far end.
    fn least_telling_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        order.sort_by_key(|i| {
            let name = &self.names[*i];
            let rank = match name.as_str() {
                "partitions" | "memory" => 0,
                _ if self.is_place[*i] => 2,
                _ => 1,
            };
            (rank, std::cmp::Reverse((name.as_str().len() * usize::from(rank == 2), name.clone())))
        });
        order
    }
}

// === impl OverdrawSearch ===

impl<'a> OverdrawSearch<'a> {
    fn new(problem: &'a CounterTable, in_force: &[bool], target: usize) -> Self {
        let counters: Vec<usize> = (0..in_force.len()).filter(|i| in_force[*i]).collect();
        let mut order: Vec<usize> = (0..problem.groups.len()).collect();
        order.retain(|g| problem.groups[*g].takes[target] > 0);
        order.sort_by_key(|g| std::cmp::Reverse(problem.groups[*g].takes[target]));
        let mut ahead = vec![0_u64; order.len() + 1];
        for (i, group) in order.iter().enumerate().rev() {
            let group = &problem.groups[*group];
            let copies = u64::try_from(group.parts.len()).unwrap_or(u64::MAX);
            ahead[i] = ahead[i + 1].saturating_add(group.takes[target].saturating_mul(copies));
        }
        let alone = (0..counters.len()).map(|i| vec![i]);
        let places = (0..counters.len()).filter(|i| problem.is_place[counters[*i]]).collect();
        let rooms =
            alone.chain([places]).map(|of| Room::new(problem, &counters, of, &order, target)).collect();
        let room = counters.iter().map(|c| problem.totals[*c]).collect();
        Self { problem, counters, target, order, ahead, rooms, room, chosen: Vec::new(), steps: 0 }
    }

    fn overdraws(&mut self) -> DrawOutcome {
        self.descend(0, 0)
    }

    /// Tries every number of parts of the group at `depth`, most first; `taken` is what the chosen take of the target.
    /// Groups that take nothing of the target cannot help and are not in the order.
    fn descend(&mut self, depth: usize, taken: u64) -> DrawOutcome {
        let total = self.problem.totals[self.target];
        if taken > total {
            return DrawOutcome::Overdraft;
        }
        let left = total - taken;
        if self.ahead[depth] <= left
            || self.rooms.iter().any(|room| room.is_too_small(depth, &self.room, left))
        {
            return DrawOutcome::Nothing;
        }
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return DrawOutcome::Bound;
        }
        let group_index = self.order[depth];
        let problem = self.problem;
        let group = &problem.groups[group_index];
        let most = self.most_that_fit(group);
        for copies in (0..=most).rev() {
            let amount = u64::try_from(copies).unwrap_or(u64::MAX);
            for (room, counter) in self.room.iter_mut().zip(&self.counters) {
                *room -= group.takes[*counter] * amount;
            }
            self.chosen.push((group_index, copies));
            match self
                .descend(depth + 1, taken.saturating_add(group.takes[self.target].saturating_mul(amount)))
            {
                DrawOutcome::Nothing => {}
                found => return found,
            }
            self.chosen.pop();
            for (room, counter) in self.room.iter_mut().zip(&self.counters) {
                *room += group.takes[*counter] * amount;
            }
        }
        DrawOutcome::Nothing
    }

    fn most_that_fit(&self, group: &PartGroup) -> usize {
        let by_counter = self.counters.iter().zip(&self.room).filter(|(c, _)| group.takes[**c] > 0);
        let least = by_counter.map(|(c, room)| room / group.takes[*c]).min();
        let room = least.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        room.min(group.parts.len())
    }

    /// The set that was found.
    fn parts(&self) -> Vec<Part> {
        let of = |(group, copies): &(usize, usize)| {
            self.problem.groups[*group].parts.iter().take(*copies).cloned()
        };
        self.chosen.iter().flat_map(of).collect()
    }
}

// === impl Room ===

impl Room {
    fn new(
        problem: &CounterTable,
        in_force: &[usize],
        counters: Vec<usize>,
        order: &[usize],
        target: usize,
    ) -> Self {
        let mut best = vec![Some((0, 1)); order.len() + 1];
        for (i, group) in order.iter().enumerate().rev() {
            let takes = &problem.groups[*group].takes;
            let room = counters.iter().fold(0_u64, |sum, c| sum.saturating_add(takes[in_force[*c]]));
            let better = |(take, of): (u64, u64)| {
                let (a, b) =
                    (u128::from(takes[target]) * u128::from(of), u128::from(take) * u128::from(room));
                if a > b { (takes[target], room) } else { (take, of) }
            };
            best[i] = if room == 0 { None } else { best[i + 1].map(better) };
        }
        Self { counters, best }
    }

    /// Whether the groups from `depth` on cannot take more than `left` of the target in the room that is left.
    fn is_too_small(&self, depth: usize, room: &[u64], left: u64) -> bool {
        let Some((take, of)) = self.best[depth] else { return false };
        let room: u128 = self.counters.iter().map(|c| u128::from(room[*c])).sum();
        room.saturating_mul(u128::from(take)) / u128::from(of.max(1)) <= u128::from(left)
    }
}

#[cfg(test)]
mod tests;
