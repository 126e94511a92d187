//! The counter `memory`, beside those that bind: what of a card's memory is in use, as one number for readers that add
//! up, such as quotas. It must never refuse what the other counters allow.
//!
//! ```text
//!   total = the largest partition
//!   while a set of partitions fits by the counters that bind and takes more memory than total:
//!       total = what that set takes
//! ```
//!
//! Mostly the first total is the last one, since the largest partition is all of a card. Where the search ends at its
//! bound, the total is what all partitions together take, which is always enough.

use super::{BindingCounters, CounterTable, DrawOutcome, OverdrawSearch};
use crate::id::CounterName;
use crate::partition::{CounterVector, Part, PartitionTable, Template};
use crate::units::Bytes;

/// Sets that may follow each other, each with more memory than the one before; the embedded models need two at most.
const SETS_MAX: usize = 16;

/// Most memory that the partitions of a set take together, over all sets that fit by the counters that bind; or more.
/// `None` where a partition takes of no counter: it fits beside everything, the whole card included.
#[must_use]
pub fn most_memory(table: &PartitionTable, binding: &BindingCounters) -> Option<Bytes> {
    if table.partitions().any(|(template, place)| template.consumes.is_empty() && place.consumes.is_empty()) {
        return None;
    }
    let all = table.partitions().fold(0, |sum: u64, (template, _)| sum.saturating_add(whole(template)));
    let memory = CounterName::new("memory").ok()?;
    let mut total = table.templates.iter().map(whole).max().unwrap_or(0);
    for _ in 0..SETS_MAX {
        let counted = with_memory(table, binding, &memory, total);
        let problem = CounterTable::new(&counted);
        let Some(target) = problem.names.iter().position(|name| *name == memory) else { break };
        let in_force: Vec<bool> = (0..problem.names.len()).map(|counter| counter != target).collect();
        let mut search = OverdrawSearch::new(&problem, &in_force, target);
        match search.overdraws() {
            DrawOutcome::Nothing => return Some(Bytes(total)),
            DrawOutcome::Overdraft => {
                let of = |sum: u64, part: &Part| sum.saturating_add(takes(table, part).unwrap_or(total));
                total = search.parts().iter().fold(0, of);
            }
            DrawOutcome::Bound => break,
        }
    }
    Some(Bytes(all))
}

/// What a partition is published with: whole mebibytes.
fn whole(template: &Template) -> u64 {
    template.memory.whole_mib().0
}

/// `None`: all of it.
fn takes(table: &PartitionTable, part: &Part) -> Option<u64> {
    match part {
        Part::Partition { template, .. } => table.template(template).map(whole),
        Part::Card | Part::Slot { .. } => None,
    }
}

/// The counters that bind, and memory as it is published.
fn with_memory(
    table: &PartitionTable,
    binding: &BindingCounters,
    memory: &CounterName,
    total: u64,
) -> PartitionTable {
    let counted = |vector: &CounterVector, amount: u64| {
        let others = binding.published(vector).restricted(|name| name != memory);
        CounterVector::new(
            others.iter().map(|(name, of)| (name.clone(), of)).chain([(memory.clone(), amount)]),
        )
    };
    let mut counted_table =
        PartitionTable { totals: counted(&table.totals, total), templates: table.templates.clone() };
    for template in &mut counted_table.templates {
        template.consumes = counted(&template.consumes, whole(template));
        for placement in &mut template.placements {
            placement.consumes = counted(&placement.consumes, 0);
        }
    }
    counted_table
}
