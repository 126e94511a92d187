//! One card's account: counters as plain numbers by position, one row for each thing that can be held.
//!
//! Row 0 is the card itself, the rest are its partitions in table order. Slots are booked on row 0.

use std::collections::{BTreeMap, BTreeSet};

use super::holding::{Holding, Take};
use super::refusal::{BrokenInvariant, CounterShortage, HoldRefusal, Holder, LedgerProblem};
use crate::card::{Card, Supply};
use crate::id::{CardUuid, ClaimUid, CounterName, TemplateName};
use crate::partition::{CounterVector, Part, PartitionTable, ShareSupport};
use crate::units::{Bytes, Cores};

/// Row of the card itself.
pub(super) const CARD: usize = 0;

/// See the module text.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) card: CardUuid,
    pub(super) supply: Supply,
    pub(super) counters: Vec<CounterName>,
    pub(super) totals: Vec<u64>,
    pub(super) used: Vec<u64>,
    pub(super) rows: Vec<Row>,
    pub(super) templates: Vec<TemplateName>,
    rows_by_part: BTreeMap<Part, usize>,
    aliases: BTreeMap<TemplateName, TemplateName>,
    slots: BTreeSet<Part>,
    /// Rows of partitions that are not idle.
    split: usize,
    /// Claims with entries on this card, and how many.
    pub(super) claims: BTreeMap<ClaimUid, usize>,
    /// A part on the card that no table describes.
    pub(super) unaccountable: Option<Part>,
    /// Accounts that must agree with this one in layout.
    pub(super) same_mode: Vec<usize>,
    /// The unlike card because of which this one must not be split.
    pub(super) no_split: Option<CardUuid>,
}

/// What can be held, and what is held of it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) part: Part,
    pub(super) takes: Vec<u64>,
    pub(super) memory: Bytes,
    pub(super) cores: Cores,
    pub(super) shareable: ShareSupport,
    pub(super) usage: Usage,
}

/// How far a row is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) found: bool,
    pub(super) exclusive: u32,
    pub(super) shares: u32,
    pub(super) memory: u64,
    pub(super) cores: u64,
}

/// What a card is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CardUse {
    Idle,
    Whole,
    Split,
}

// === impl Account ===

impl Account {
    /// Opens the account of a card and records what was found on it.
    pub(super) fn open(card: &Card, problems: &mut Vec<LedgerProblem>) -> Self {
        let empty = PartitionTable { totals: CounterVector::default(), templates: Vec::new() };
        let table = card.table().unwrap_or(&empty);
        let counters: Vec<CounterName> = table.totals.iter().map(|(name, _)| name.clone()).collect();
        let amounts = |vector: &CounterVector| counters.iter().map(|c| vector.get(c)).collect::<Vec<u64>>();
        let totals = amounts(&table.totals);
        let mut rows = vec![Row {
            part: Part::Card,
            takes: totals.clone(),
            memory: card.memory,
            cores: Cores::ALL,
            shareable: card.shareable,
            usage: Usage::default(),
        }];
        for (template, placement) in table.partitions() {
            // A sum that overflows could never be held; it stays out of the rows.
            let Some(takes) = template.consumes.plus(&placement.consumes) else { continue };
            rows.push(Row {
                part: Part::Partition { template: template.name.clone(), placement: placement.name.clone() },
                takes: amounts(&takes),
                memory: template.memory,
                cores: template.cores,
                shareable: template.shareable,
                usage: Usage::default(),
            });
        }
        let aliases =
            table.templates.iter().flat_map(|t| t.aliases.iter().map(|a| (a.clone(), t.name.clone())));
        let mut account = Self {
            card: card.uuid.clone(),
            supply: card.supply,
            used: vec![0; counters.len()],
            rows_by_part: rows.iter().enumerate().map(|(i, r)| (r.part.clone(), i)).collect(),
            templates: table.templates.iter().map(|t| t.name.clone()).collect(),
            aliases: aliases.collect(),
            counters,
            totals,
            rows,
            slots: BTreeSet::new(),
            split: 0,
            claims: BTreeMap::new(),
            unaccountable: None,
            same_mode: Vec::new(),
            no_split: None,
        };
        for found in &card.found {
            account.book_found(found, problems);
        }
        account
    }

    fn book_found(&mut self, found: &Part, problems: &mut Vec<LedgerProblem>) {
        let (card, found) = (self.card.clone(), found.clone());
        let row = match (&found, self.row(&found)) {
            (Part::Slot { .. }, _) | (_, Err(_)) => {
                self.unaccountable = Some(found.clone());
                problems.push(LedgerProblem::UnknownFound { card, found });
                return;
            }
            (_, Ok(row)) => row,
        };
        if self.rows[row].usage.found {
            return;
        }
        if let Some(counter) = self.first_excess(row) {
            let used = self.used[counter].saturating_add(self.rows[row].takes[counter]);
            let (counter, total) = (self.counters[counter].clone(), self.totals[counter]);
            problems.push(LedgerProblem::FoundTooMuch { card, found, counter, used, total });
        }
        self.charge(row);
        self.rows[row].usage.found = true;
    }

    /// The row of a part; slots are on the card's.
    pub(super) fn row(&self, part: &Part) -> Result<usize, HoldRefusal> {
        let known = match part {
            Part::Slot { .. } => return Ok(CARD),
            Part::Card => self.rows_by_part.get(part),
            Part::Partition { template, placement } => self.rows_by_part.get(part).or_else(|| {
                let (template, placement) = (self.aliases.get(template)?.clone(), placement.clone());
                self.rows_by_part.get(&Part::Partition { template, placement })
            }),
        };
        known.copied().ok_or_else(|| HoldRefusal::UnknownPart {
            card: self.card.clone(),
            part: part.clone(),
            known: match self.templates.is_empty() {
                true => "no templates".to_owned(),
                false => self.templates.iter().map(TemplateName::as_str).collect::<Vec<_>>().join(", "),
            },
        })
    }

    /// The part under its own name: aliases are resolved, slots keep theirs.
    pub(super) fn part(&self, row: usize, asked: &Part) -> Part {
        match asked {
            Part::Slot { .. } => asked.clone(),
            Part::Card | Part::Partition { .. } => self.rows[row].part.clone(),
        }
    }

    /// What the card is used as.
    pub(super) fn layout(&self) -> CardUse {
        if self.split > 0 {
            CardUse::Split
        } else if self.rows[CARD].usage.is_idle() {
            CardUse::Idle
        } else {
            CardUse::Whole
        }
    }

    /// Whether a holding fits; `holders` is called only for the message.
    pub(super) fn accepts(
        &self,
        row: usize,
        holding: &Holding,
        holders: impl Fn() -> Vec<(usize, Holder)>,
    ) -> Result<(), HoldRefusal> {
        let (card, part) = (self.card.clone(), holding.part.clone());
        if let Some(found) = &self.unaccountable {
            return Err(HoldRefusal::Unaccountable { card, found: found.clone() });
        }
        if let (Some(other), CardUse::Split) = (&self.no_split, CardUse::of(&part)) {
            return Err(HoldRefusal::MixedServer { card, part, other: other.clone() });
        }
        let (usage, shareable) = (&self.rows[row].usage, self.rows[row].shareable);
        if self.supply == Supply::NewParts && holding.take != Take::Nothing {
            if row == CARD {
                return Err(HoldRefusal::PartsOnly { card, part });
            }
            if usage.found {
                let holders = vec![Holder::Found { part: self.rows[row].part.clone() }];
                return Err(HoldRefusal::Occupied { card, part, holders });
            }
        }
        let is_slot = matches!(part, Part::Slot { .. });
        match holding.take {
            Take::Nothing => return Ok(()),
            Take::Exclusive if is_slot => return Err(HoldRefusal::SlotWithoutSize { card, part }),
            Take::Share { .. } if !is_slot && shareable == ShareSupport::No => {
                return Err(HoldRefusal::NotShareable { card, part });
            }
            Take::Exclusive | Take::Share { .. } => {}
        }
        let alone = holding.take == Take::Exclusive;
        if usage.exclusive > 0 || (alone && usage.shares > 0) || self.slots.contains(&part) {
            let in_the_way = |held: &Part| !is_slot || usage.exclusive > 0 || *held == part;
            let holders = holders().into_iter().filter(|(r, h)| *r == row && in_the_way(h.part()));
            let holders = holders.map(|(_, h)| h).collect();
            return Err(HoldRefusal::Occupied { card, part, holders });
        }
        if usage.is_idle()
            && let Some(counter) = self.first_excess(row)
        {
            return Err(HoldRefusal::Counter(Box::new(CounterShortage {
                card,
                part,
                counter: self.counters[counter].clone(),
                asked: self.rows[row].takes[counter],
                left: self.totals[counter].saturating_sub(self.used[counter]),
                total: self.totals[counter],
                holders: self.drawing_on(counter, holders()),
            })));
        }
        self.has_capacity(row, holding, holders)
    }

    /// Whether a share fits into the memory and cores of its device.
    fn has_capacity(
        &self,
        row: usize,
        holding: &Holding,
        holders: impl Fn() -> Vec<(usize, Holder)>,
    ) -> Result<(), HoldRefusal> {
        let Take::Share { memory, cores } = holding.take else { return Ok(()) };
        let device = &self.rows[row];
        let of_device = || holders().into_iter().filter(|(r, _)| *r == row).map(|(_, h)| h).collect();
        let (card, part) = (self.card.clone(), device.part.clone());
        let memory_left = device.memory.0.saturating_sub(device.usage.memory);
        if memory.0 > memory_left {
            let (left, total) = (Bytes(memory_left), device.memory);
            return Err(HoldRefusal::Memory { card, part, asked: memory, left, total, holders: of_device() });
        }
        let cores_left = u64::from(device.cores.percent()).saturating_sub(device.usage.cores);
        if u64::from(cores.percent()) > cores_left {
            let left = u8::try_from(cores_left).ok().and_then(Cores::new).unwrap_or(Cores::ALL);
            let total = device.cores;
            return Err(HoldRefusal::Cores { card, part, asked: cores, left, total, holders: of_device() });
        }
        Ok(())
    }

    /// Position of the first counter that the row's part would run over.
    pub(super) fn first_excess(&self, row: usize) -> Option<usize> {
        let left = self.totals.iter().zip(&self.used).map(|(total, used)| total.saturating_sub(*used));
        self.rows[row].takes.iter().zip(left).position(|(asked, left)| *asked > left)
    }

    /// Holders, found parts included, that take some of the counter.
    fn drawing_on(&self, counter: usize, holders: Vec<(usize, Holder)>) -> Vec<Holder> {
        let claimed: BTreeSet<usize> = holders.iter().map(|(row, _)| *row).collect();
        let draws = |row: &Row| row.takes[counter] > 0;
        let found =
            self.rows.iter().enumerate().filter(|(i, r)| r.usage.found && !claimed.contains(i) && draws(r));
        let found = found.map(|(_, r)| Holder::Found { part: r.part.clone() });
        let of_claims = holders.into_iter().filter(|(row, _)| draws(&self.rows[*row])).map(|(_, h)| h);
        of_claims.chain(found).collect()
    }

    fn charge(&mut self, row: usize) {
        for (used, takes) in self.used.iter_mut().zip(&self.rows[row].takes) {
            *used = used.saturating_add(*takes);
        }
        self.split += usize::from(row != CARD);
    }

    fn credit(&mut self, row: usize) {
        for (used, takes) in self.used.iter_mut().zip(&self.rows[row].takes) {
            *used = used.saturating_sub(*takes);
        }
        self.split = self.split.saturating_sub(usize::from(row != CARD));
    }

    /// Records a holding that was accepted.
    pub(super) fn book(&mut self, row: usize, holding: &Holding) {
        *self.claims.entry(holding.claim.clone()).or_insert(0) += 1;
        if holding.take != Take::Nothing && self.rows[row].usage.is_idle() {
            self.charge(row);
        }
        self.rows[row].usage.add(holding.take);
        if matches!(holding.part, Part::Slot { .. }) && holding.take != Take::Nothing {
            self.slots.insert(holding.part.clone());
        }
    }

    /// Takes a booked holding back.
    pub(super) fn unbook(&mut self, row: usize, holding: &Holding) {
        if let Some(entries) = self.claims.get_mut(&holding.claim) {
            *entries = entries.saturating_sub(1);
            if *entries == 0 {
                self.claims.remove(&holding.claim);
            }
        }
        if holding.take == Take::Nothing {
            return;
        }
        self.rows[row].usage.subtract(holding.take);
        self.slots.remove(&holding.part);
        if self.rows[row].usage.is_idle() {
            self.credit(row);
        }
    }

    /// Counts the account anew from its holdings and compares.
    pub(super) fn recount(&self, book: &[(usize, &Holding)]) -> Result<(), BrokenInvariant> {
        let broken = |what: String| Err(BrokenInvariant(format!("card {}: {what}", self.card)));
        let found_only = |row: &Row| Usage { found: row.usage.found, ..Usage::default() };
        let mut usages: Vec<Usage> = self.rows.iter().map(found_only).collect();
        let mut slots = BTreeSet::new();
        for (row, holding) in book {
            usages[*row].add(holding.take);
            let counts = holding.take != Take::Nothing;
            if counts && matches!(holding.part, Part::Slot { .. }) && !slots.insert(holding.part.clone()) {
                return broken(format!("{} is held twice", holding.part));
            }
        }
        let (mut used, mut found) = (vec![0_u64; self.totals.len()], vec![0_u64; self.totals.len()]);
        for (row, usage) in self.rows.iter().zip(&usages) {
            if row.usage != *usage {
                return broken(format!(
                    "{} is booked as {:?}, its holdings say {usage:?}",
                    row.part, row.usage
                ));
            }
            if usage.exclusive > 1 || (usage.exclusive == 1 && usage.shares > 0) {
                return broken(format!("{} is held alone by several", row.part));
            }
            if usage.memory > row.memory.0 || usage.cores > u64::from(row.cores.percent()) {
                return broken(format!("shares of {} exceed it: {usage:?}", row.part));
            }
            for ((used, found), takes) in used.iter_mut().zip(&mut found).zip(&row.takes) {
                *used += if usage.is_idle() { 0 } else { *takes };
                *found += if usage.found { *takes } else { 0 };
            }
        }
        if used != self.used || slots != self.slots {
            return broken(format!(
                "{:?} and {:?} are booked, the holdings say {used:?}",
                self.used, self.slots
            ));
        }
        match (0..used.len()).find(|i| used[*i] > self.totals[*i].max(found[*i])) {
            None => Ok(()),
            Some(i) => broken(format!("{} of {} {} are used", used[i], self.totals[i], self.counters[i])),
        }
    }
}

// === impl Usage ===

impl Usage {
    pub(super) const fn is_idle(&self) -> bool {
        !self.found && self.exclusive == 0 && self.shares == 0
    }

    fn add(&mut self, take: Take) {
        match take {
            Take::Nothing => {}
            Take::Exclusive => self.exclusive += 1,
            Take::Share { memory, cores } => {
                self.shares += 1;
                self.memory = self.memory.saturating_add(memory.0);
                self.cores += u64::from(cores.percent());
            }
        }
    }

    fn subtract(&mut self, take: Take) {
        match take {
            Take::Nothing => {}
            Take::Exclusive => self.exclusive = self.exclusive.saturating_sub(1),
            Take::Share { memory, cores } => {
                self.shares = self.shares.saturating_sub(1);
                self.memory = self.memory.saturating_sub(memory.0);
                self.cores = self.cores.saturating_sub(u64::from(cores.percent()));
            }
        }
    }
}

// === impl CardUse ===

impl CardUse {
    /// What a card becomes by holding the part.
    pub(super) const fn of(part: &Part) -> Self {
        match part {
            Part::Card | Part::Slot { .. } => Self::Whole,
            Part::Partition { .. } => Self::Split,
        }
    }
}
