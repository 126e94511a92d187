//! What of a card is used and free, for people and for tables.

use super::account::{Account, CARD, CardUse};
use super::refusal::Holder;
use crate::card::Supply;
use crate::id::{CardUuid, CounterName, TemplateName};
use crate::partition::{Part, PlacementName};
use crate::units::{Bytes, Cores};

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardReport {
    /// The card.
    pub card: CardUuid,
    /// Its counters, by name.
    pub counters: Vec<CounterReport>,
    /// What is in use, the card itself first.
    pub in_use: Vec<PartReport>,
    /// Room for each template, in table order.
    pub room: Vec<TemplateRoom>,
    /// Memory and cores that further shares of the card could have; `None` while none can be had.
    pub share_room: Option<(Bytes, Cores)>,
    /// The largest part that could be held alone now: the card, or the template with most memory, then cores.
    pub largest: Option<Part>,
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterReport {
    /// Its name.
    pub name: CounterName,
    /// What the card has.
    pub total: u64,
    /// What is used.
    pub used: u64,
}

/// One part in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartReport {
    /// Which.
    pub part: Part,
    /// Its holders, including parts that were found and no claim took over.
    pub holders: Vec<Holder>,
    /// What it has.
    pub memory: Bytes,
    /// What of it is held; all, if it is held alone.
    pub memory_used: Bytes,
    /// What it has, in percent of the whole card.
    pub cores: Cores,
    /// What of it is held, in percent of the whole card; all, if it is held alone.
    pub cores_used: Cores,
}

/// Room for one template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateRoom {
    /// Which.
    pub template: TemplateName,
    /// Where one more could lie.
    pub placements: Vec<PlacementName>,
    /// How many more fit together, filled in the order of placements.
    pub together: u32,
}

// === impl Account ===

impl Account {
    /// The report; `neighbours` is what the chips that must agree in layout are used as.
    pub(super) fn report(&self, holders: &[(usize, Holder)], neighbours: CardUse) -> CardReport {
        let counters = self.counters.iter().zip(self.totals.iter().zip(&self.used));
        let counters = counters.map(|(name, (total, used))| CounterReport {
            name: name.clone(),
            total: *total,
            used: *used,
        });
        let open = self.unaccountable.is_none();
        let room = if open && neighbours != CardUse::Whole && self.no_split.is_none() {
            self.room()
        } else {
            self.no_room()
        };
        let share_room = (open && neighbours != CardUse::Split).then(|| self.share_room()).flatten();
        let card_is_free = open
            && neighbours != CardUse::Split
            && self.supply == Supply::All
            && self.rows[CARD].usage.is_idle()
            && self.first_excess(CARD).is_none();
        CardReport {
            card: self.card.clone(),
            counters: counters.collect(),
            in_use: self.in_use(holders),
            largest: if card_is_free { Some(Part::Card) } else { self.largest(&room) },
            room,
            share_room,
        }
    }

    fn in_use(&self, holders: &[(usize, Holder)]) -> Vec<PartReport> {
        let used = self.rows.iter().enumerate().filter(|(_, row)| !row.usage.is_idle());
        used.map(|(i, row)| {
            let mut of_row: Vec<Holder> =
                holders.iter().filter(|(r, _)| *r == i).map(|(_, h)| h.clone()).collect();
            if of_row.is_empty() {
                of_row.push(Holder::Found { part: row.part.clone() });
            }
            let alone = row.usage.exclusive > 0;
            // Of all the memory, one holder that names no compute has all of it: nothing fits beside it.
            let names_none =
                row.usage.shares == 1 && row.usage.memory >= row.memory.0 && row.usage.cores == 0;
            let cores_used = u8::try_from(row.usage.cores).ok().and_then(Cores::new).unwrap_or(row.cores);
            PartReport {
                part: row.part.clone(),
                holders: of_row,
                memory: row.memory,
                memory_used: if alone { row.memory } else { Bytes(row.usage.memory) },
                cores: row.cores,
                cores_used: if alone || names_none { row.cores } else { cores_used },
            }
        })
        .collect()
    }

    fn no_room(&self) -> Vec<TemplateRoom> {
        let none =
            |t: &TemplateName| TemplateRoom { template: t.clone(), placements: Vec::new(), together: 0 };
        self.templates.iter().map(none).collect()
    }

    fn room(&self) -> Vec<TemplateRoom> {
        let mut room = self.no_room();
        for of_template in &mut room {
            let mut used = self.used.clone();
            for (row, placement) in self.idle_placements(&of_template.template) {
                if self.first_excess(row).is_none() {
                    of_template.placements.push(placement.clone());
                }
                let takes = &self.rows[row].takes;
                let fits = takes.iter().zip(&used).zip(&self.totals).all(|((t, u), total)| t + u <= *total);
                if fits {
                    of_template.together += 1;
                    used.iter_mut().zip(takes).for_each(|(u, t)| *u += t);
                }
            }
        }
        room
    }

    fn idle_placements(&self, wanted: &TemplateName) -> impl Iterator<Item = (usize, &PlacementName)> {
        self.rows.iter().enumerate().filter_map(move |(i, row)| match &row.part {
            Part::Partition { template, placement } if template == wanted && row.usage.is_idle() => {
                Some((i, placement))
            }
            Part::Partition { .. } | Part::Card | Part::Slot { .. } => None,
        })
    }

    fn share_room(&self) -> Option<(Bytes, Cores)> {
        let card = &self.rows[CARD];
        let opened = !card.usage.is_idle() || self.first_excess(CARD).is_none();
        let shareable = card.shareable == crate::partition::ShareSupport::Enforceable;
        let supplied = self.supply == Supply::All;
        let memory = card.memory.0.saturating_sub(card.usage.memory);
        (opened && supplied && shareable && card.usage.exclusive == 0 && memory > 0).then(|| {
            let cores = u64::from(card.cores.percent()).saturating_sub(card.usage.cores);
            let cores = u8::try_from(cores).ok().and_then(Cores::new).unwrap_or(Cores::NONE);
            (Bytes(memory), cores)
        })
    }

    fn largest(&self, room: &[TemplateRoom]) -> Option<Part> {
        let open = room.iter().filter_map(|r| {
            let (template, placement) = (r.template.clone(), r.placements.first()?.clone());
            let part = Part::Partition { template, placement };
            let row = self.row(&part).ok()?;
            Some((self.rows[row].memory, self.rows[row].cores, part))
        });
        open.max_by_key(|(memory, cores, _)| (*memory, *cores)).map(|(_, _, part)| part)
    }
}
