//! Devices that nothing in a search can tell apart: where one of them has failed, the next would fail the same way.
//!
//! Two devices are *twins* if they draw the same amounts from the same counters in the same groups, have the same
//! capacities and sharing, the same value of every attribute that a constraint of these claims names, and stand in the same
//! lists of candidates.
//!
//! While both are unheld and untaken, exchanging them turns every solution into another one. Suppose the
//! first was taken and everything behind it failed. A solution with the second in its place would, exchanged,
//! have been found with the first: whatever else it takes lies behind the second, and so behind the first as
//! well.
//!
//! The argument needs that the order of taking does not decide whether a set of devices fits. Where it might (mode `All`,
//! negative amounts, lists as attribute values, administrative access) or where a search can end in an error (a selector
//! that cannot be evaluated), no device is passed over.

use std::collections::{BTreeMap, HashMap};

use super::candidates::{CandidateKind, CandidateSet, Lane, SetNo, Soundness};
use super::claim_plan::{Alternative, ClaimPlan};
use super::constraints::{AttributeValues, Value};
use super::demand::Trend;
use super::index::{CounterUse, EntryNo, Index};
use crate::dra::{Access, Sharing};

/// Whether devices are passed over in a search.
#[derive(Debug)]
pub(super) enum TwinPolicy {
    /// Not yet: so short a search is not worth working out twins for. From so many steps left on.
    From {
        /// Steps left.
        steps_left: u64,
    },
    /// Twins of those that have failed are.
    Twins(Twins),
    /// None ever is.
    Never,
}

/// The devices of a search by what distinguishes them.
#[derive(Debug)]
pub(super) struct Twins {
    kinds: HashMap<EntryNo, u32>,
}

// === impl Twins ===

impl Twins {
    /// Sorts the candidates of a search; none if the order of taking could distinguish twins.
    pub(super) fn of(
        index: &Index,
        attributes: &AttributeValues,
        sets: &[CandidateSet],
        lanes: &[Lane],
        claims: &[ClaimPlan],
    ) -> Option<Self> {
        let monotone = claims.iter().all(|claim| claim.shape.trend == Trend::Monotone);
        let admin = alternatives(claims).any(|alternative| alternative.access == Access::Admin);
        if !monotone || admin || index.has_negative_amounts() {
            return None;
        }
        let mut lists: Vec<SetNo> = alternatives(claims).map(|a| lanes[a.lane.at()].set).collect();
        lists.sort_unstable();
        lists.dedup();
        if lists.iter().any(|list| sets[list.at()].soundness == Soundness::Broken) {
            return None;
        }
        let mut standing: BTreeMap<EntryNo, Vec<i128>> = BTreeMap::new();
        for (number, list) in (0..).zip(&lists) {
            for candidate in sets[list.at()].list.iter().filter(|c| c.kind == CandidateKind::Open) {
                standing.entry(candidate.entry).or_default().push(number);
            }
        }
        let mut known: HashMap<Vec<i128>, u32> = HashMap::new();
        let mut kinds = HashMap::new();
        for (entry, lists) in standing {
            let mut marks = marks(entry, index, attributes, claims)?;
            if index.entries_of(index.entries[entry.at()].device).nth(1).is_some() {
                // Its other descriptions are drawn on with it.
                continue;
            }
            marks.extend(lists);
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            kinds.insert(entry, *known.entry(marks).or_insert(next));
        }
        Some(Self { kinds })
    }

    /// The kind of a device; twins have the same.
    pub(super) fn kind(&self, entry: EntryNo) -> Option<u32> {
        self.kinds.get(&entry).copied()
    }
}

fn alternatives(claims: &[ClaimPlan]) -> impl Iterator<Item = &Alternative> {
    claims.iter().flat_map(|claim| &claim.requests).flat_map(|request| &request.alternatives)
}

/// All that a search reads off a device, one list of numbers for each different one; none if a value is a list. How many
/// draws and values there are comes first, so that no two lists read the same.
fn marks(
    entry: EntryNo,
    index: &Index,
    attributes: &AttributeValues,
    claims: &[ClaimPlan],
) -> Option<Vec<i128>> {
    let facts = &index.entries[entry.at()];
    let draws = index.draws(facts);
    let mut marks = vec![
        i128::from(facts.version.0),
        i128::from(facts.profile.0),
        i128::from(facts.sharing == Sharing::Shareable),
        i128::from(facts.counted == CounterUse::Yes),
        i128::try_from(draws.len()).ok()?,
    ];
    marks.extend(draws.flat_map(|draw| [i128::from(draw.slot.0), draw.nanos]));
    for draw in index.compatibility.draws(facts) {
        marks.push(i128::try_from(draw.groups().len()).ok()?);
        marks.extend(draw.groups().iter().map(|group| i128::from(group.0)));
    }
    for constraint in claims.iter().flat_map(|claim| &claim.constraints) {
        marks.push(match attributes.value(constraint.attribute, entry) {
            Value::Absent => -1,
            Value::One(value) => i128::from(value),
            Value::List(_) => return None,
        });
    }
    Some(marks)
}
