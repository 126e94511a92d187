//! A place for each of several templates on one empty card: bounded, deterministic search.

use super::{CounterVector, PartitionTable, PlacementName, Template};
use crate::id::TemplateName;

/// Steps of one search; what vendors document needs a few hundred. It stops a request built to be slow.
const STEPS_MAX: u64 = 1_000_000;

/// What came of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// They fit, at these placements, in the order of the request.
    Placed(Vec<PlacementName>),
    /// They do not fit together, or one of them is no template of the table.
    Impossible,
    /// The search ended at its bound.
    Undecided,
}

struct ArrangementSearch<'a> {
    wanted: Vec<&'a Template>,
    chosen: Vec<usize>,
    steps: u64,
}

impl PartitionTable {
    /// Finds a placement for each of the templates beside each other, the first in the order of the table.
    #[must_use]
    pub fn arrange(&self, wanted: &[TemplateName]) -> Arrangement {
        let Some(mut wanted_templates) =
            wanted.iter().enumerate().map(|(i, n)| Some((i, self.template(n)?))).collect::<Option<Vec<_>>>()
        else {
            return Arrangement::Impossible;
        };
        // Like templates stand together, so that their order among themselves is tried once.
        wanted_templates.sort_by(|(_, a), (_, b)| b.memory.cmp(&a.memory).then_with(|| a.name.cmp(&b.name)));
        let templates = wanted_templates.iter().map(|(_, t)| *t).collect();
        let mut search = ArrangementSearch { wanted: templates, chosen: Vec::new(), steps: 0 };
        match search.descend(&self.totals) {
            None => Arrangement::Undecided,
            Some(false) => Arrangement::Impossible,
            Some(true) => {
                let mut placed: Vec<(usize, PlacementName)> = wanted_templates
                    .iter()
                    .zip(&search.chosen)
                    .map(|((i, template), at)| (*i, template.placements[*at].name.clone()))
                    .collect();
                placed.sort_by_key(|(i, _)| *i);
                Arrangement::Placed(placed.into_iter().map(|(_, name)| name).collect())
            }
        }
    }
}

impl ArrangementSearch<'_> {
    /// Whether the rest fits into the room; `None` at the bound.
    fn descend(&mut self, room: &CounterVector) -> Option<bool> {
        let depth = self.chosen.len();
        let Some(template) = self.wanted.get(depth).copied() else { return Some(true) };
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return None;
        }
        let Some(room) = room.minus(&template.consumes) else { return Some(false) };
        let like_before = depth.checked_sub(1).filter(|before| self.wanted[*before].name == template.name);
        let first = like_before.map_or(0, |before| self.chosen[before] + 1);
        for (at, placement) in template.placements.iter().enumerate().skip(first) {
            let Some(room) = room.minus(&placement.consumes) else { continue };
            self.chosen.push(at);
            if self.descend(&room)? {
                return Some(true);
            }
            self.chosen.pop();
        }
        Some(false)
    }
}
