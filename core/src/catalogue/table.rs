//! The meaning of a partition table: counters, templates and placements that can really be held.

use std::collections::{BTreeMap, BTreeSet};

use super::error::CatalogueError;
use super::model::{COUNTERS_MAX, DriverSpelling};
use super::source_file::{SourceFile, support};
use super::text::{self, RawAmount};
use crate::id::{CounterName, TemplateName, is_dns_label};
use crate::partition::{CounterVector, Isolation, PartitionTable, Placement, PlacementName, Template};
use crate::units::{Bytes, Cores, Fraction};

/// Most partitions (templates × placements) of one table: four ResourceSlices of 64 devices.
const PARTITIONS_MAX: usize = 256;
/// Counter of the limit on partitions of one card.
const PARTITIONS: &str = "partitions";
/// The counter in bytes.
const MEMORY: &str = "memory";
/// `fraction-of` for tables that count slots.
const SLOTS: &str = "slots";

/// A table under construction.
struct TableBuilder<'a> {
    place: SourceFile<'a>,
    path: &'a str,
    raw: &'a text::Table,
    memory: Bytes,
    slots: Vec<CounterName>,
    totals: CounterVector,
}

/// Checks a table; also gives the spellings of older drivers.
pub(super) fn table(
    place: SourceFile<'_>,
    path: &str,
    memory: Bytes,
    raw: &text::Table,
) -> Result<(PartitionTable, Vec<DriverSpelling>), CatalogueError> {
    let field = format!("{path}.template");
    place.at_most(&field, raw.templates.len())?;
    if raw.templates.is_empty() {
        let fix = "add a [[template]], or remove the table";
        return Err(place.wrong(&field, "an empty list", "at least one template", fix));
    }
    let slots = slots(place, path, raw)?;
    let totals = totals(place, path, raw, &slots)?;
    let table = TableBuilder { place, path, raw, memory, slots, totals };
    let templates =
        (0..raw.templates.len()).map(|i| table.template(i)).collect::<Result<Vec<Template>, _>>()?;
    let partitions: usize = templates.iter().map(|t| t.placements.len()).sum();
    if partitions > PARTITIONS_MAX {
        let expected = format!("at most {PARTITIONS_MAX} templates × placements");
        return Err(place.wrong(&field, partitions.to_string(), expected, "remove placements or templates"));
    }
    let spellings = table.spellings(&templates)?;
    Ok((PartitionTable { totals: table.totals, templates }, spellings))
}

/// Names of the slot counters.
fn slots(place: SourceFile<'_>, path: &str, raw: &text::Table) -> Result<Vec<CounterName>, CatalogueError> {
    let Some(slots) = &raw.slots else { return Ok(Vec::new()) };
    let count = place.small(&format!("{path}.slots.count"), &slots.count, 32)?;
    if count == 0 {
        let fix = "leave slots out where the card has none";
        return Err(place.wrong(&format!("{path}.slots.count"), "0", "1 to 32", fix));
    }
    let field = format!("{path}.slots.prefix");
    (0..count).map(|i| place.name(&field, &format!("{}{i}", slots.prefix))).collect()
}

/// Totals: as written, else the most that any one template takes; one of each slot.
fn totals(
    place: SourceFile<'_>,
    path: &str,
    raw: &text::Table,
    slots: &[CounterName],
) -> Result<CounterVector, CatalogueError> {
    let mut totals: BTreeMap<CounterName, u64> = slots.iter().map(|s| (s.clone(), 1)).collect();
    for (i, template) in raw.templates.iter().enumerate() {
        let field = format!("{path}.template[{i}].consumes");
        for (name, amount) in vector(place, &field, &template.consumes)?.iter() {
            if slots.contains(name) {
                let fix = "say it in placements";
                return Err(place.wrong(&field, name.as_str(), "counters that are not slots", fix));
            }
            let total = totals.entry(name.clone()).or_insert(0);
            *total = amount.max(*total);
        }
    }
    let field = format!("{path}.totals");
    for (name, amount) in vector(place, &field, &raw.totals)?.iter() {
        if slots.contains(name) || name.as_str() == PARTITIONS {
            let fix = "remove it: slots and max-partitions have totals of their own";
            return Err(place.wrong(&field, name.as_str(), "counters that are not slots", fix));
        }
        totals.insert(name.clone(), amount);
    }
    if let Some(most) = &raw.max_partitions {
        let most = place.small(&format!("{path}.max-partitions"), most, 1024)?;
        totals.insert(place.name(&field, PARTITIONS)?, u64::from(most));
    }
    if totals.len() > COUNTERS_MAX {
        let expected = format!("at most {COUNTERS_MAX} counters, slots included");
        return Err(place.wrong(
            &field,
            totals.len().to_string(),
            expected,
            "leave out counters that never run out",
        ));
    }
    Ok(CounterVector::new(totals))
}

fn vector(
    place: SourceFile<'_>,
    field: &str,
    raw: &BTreeMap<String, RawAmount>,
) -> Result<CounterVector, CatalogueError> {
    let mut entries = Vec::new();
    for (name, amount) in raw {
        let counter: CounterName = place.name(field, name)?;
        entries.push((counter, place.whole(&format!("{field}.{name}"), amount)?));
    }
    Ok(CounterVector::new(entries))
}

// === impl TableBuilder ===

impl TableBuilder<'_> {
    fn template(&self, index: usize) -> Result<Template, CatalogueError> {
        let (place, raw) = (self.place, &self.raw.templates[index]);
        let at = |part: &str| format!("{}.template[{index}] `{}` {part}", self.path, raw.name);
        let name: TemplateName = place.name(&format!("{}.template[{index}].name", self.path), &raw.name)?;
        let memory = place.bytes(&at("memory"), &raw.memory)?;
        if memory > self.memory {
            let expected = format!("at most the {} of the card", self.memory);
            return Err(place.wrong(&at("memory"), memory.to_string(), expected, "correct one of the two"));
        }
        let consumes = self.consumes(&at("consumes"), raw)?;
        let placements = self.placements(&at("placements"), raw, &consumes)?;
        let fraction = self.fraction(&at("fraction"), raw, &consumes, &placements)?;
        let cores = self.cores(&at("cores"), raw, &consumes)?;
        Ok(Template {
            name,
            fraction,
            isolation: match raw.isolation.unwrap_or(self.raw.isolation) {
                text::Isolation::Hardware => Isolation::Hardware,
                text::Isolation::Timeslice => Isolation::Timeslice,
                text::Isolation::Cooperative => Isolation::Cooperative,
            },
            memory,
            cores,
            extra_capacity: self.capacity(&at("capacity"), raw, &consumes)?,
            consumes,
            placements,
            vendor_profile: match &raw.vendor_profile {
                None => None,
                Some(number) => Some(place.small(&at("vendor-profile"), number, u32::MAX)?),
            },
            aliases: raw
                .aliases
                .iter()
                .map(|a| place.name(&at("aliases"), &a.name))
                .collect::<Result<_, _>>()?,
            shareable: support(raw.shares.unwrap_or(self.raw.shares)),
        })
    }

    fn consumes(&self, field: &str, raw: &text::Template) -> Result<CounterVector, CatalogueError> {
        let mut entries = vector(self.place, field, &raw.consumes)?;
        if self.raw.max_partitions.is_some() {
            let one = CounterVector::new([(self.place.name(field, PARTITIONS)?, 1)]);
            entries = entries.plus(&one).ok_or_else(|| self.overflow(field))?;
        }
        Ok(entries)
    }

    fn overflow(&self, field: &str) -> CatalogueError {
        self.place.wrong(field, "a sum above 2^64", "amounts that fit the totals", "correct the numbers")
    }

    fn placements(
        &self,
        field: &str,
        raw: &text::Template,
        consumes: &CounterVector,
    ) -> Result<Vec<Placement>, CatalogueError> {
        let written = &raw.placements;
        let placements = match (&written.starts, &written.size, &written.copies, &written.at) {
            (Some(starts), Some(size), None, None) => self.slot_placements(field, starts, size)?,
            (None, None, None, Some(at)) => self.named_placements(field, at)?,
            (None, None, Some(copies), None) => self.copies(field, copies)?,
            _ => {
                let expected = "either starts and size, or copies, or at";
                return Err(self.place.wrong(field, "another mix of keys", expected, "keep one form"));
            }
        };
        if placements.is_empty() {
            let fix = "say where the template may lie, or remove it";
            return Err(self.place.wrong(field, "an empty list", "at least one placement", fix));
        }
        for (i, placement) in placements.iter().enumerate() {
            self.fits(field, consumes, placement)?;
            if placements[..i].iter().any(|p| p.name == placement.name) {
                let found = format!("`{}` twice", placement.name);
                return Err(self.place.wrong(field, found, "each placement once", "remove or rename one"));
            }
        }
        self.all_places_differ(field, &placements)?;
        Ok(placements)
    }

    /// One partition on an empty card must fit, and take each counter in one place of the file.
    fn fits(
        &self,
        field: &str,
        consumes: &CounterVector,
        placement: &Placement,
    ) -> Result<(), CatalogueError> {
        if let Some((both, _)) = placement.consumes.iter().find(|(name, _)| consumes.get(name) > 0) {
            let found = format!("`{both}`, which consumes takes too");
            let fix = "take it in one of the two";
            return Err(self.place.wrong(field, found, "counters of its own", fix));
        }
        let whole = consumes.plus(&placement.consumes).ok_or_else(|| self.overflow(field))?;
        if whole.is_empty() {
            let fix = "take at least one counter, else nothing would keep tenants apart";
            return Err(self.place.wrong(field, "a partition that takes nothing", "counters", fix));
        }
        match whole.first_excess(&self.totals) {
            None => Ok(()),
            Some((name, asked, there)) => {
                let found = format!("{asked} {name} at `{}`", placement.name);
                let expected = format!("at most the {there} that the card has");
                Err(self.place.wrong(field, found, expected, "correct the template or the totals"))
            }
        }
    }

    /// Placements that take the same counters must fit beside each other, else they are one place under two names.
    fn all_places_differ(&self, field: &str, placements: &[Placement]) -> Result<(), CatalogueError> {
        for placement in placements.iter().filter(|p| !p.consumes.is_empty()) {
            let same: Vec<&Placement> =
                placements.iter().filter(|p| p.consumes == placement.consumes).collect();
            let sum = same
                .iter()
                .try_fold(CounterVector::default(), |sum, p| sum.plus(&p.consumes))
                .ok_or_else(|| self.overflow(field))?;
            if sum.first_excess(&self.totals).is_some() {
                let names: Vec<&str> = same.iter().map(|p| p.name.0.as_str()).collect();
                let fix = "remove the copies that cannot be held together";
                return Err(self.place.wrong(field, names.join(" and "), "places that differ", fix));
            }
        }
        Ok(())
    }

    fn slot_placements(
        &self,
        field: &str,
        starts: &[RawAmount],
        size: &RawAmount,
    ) -> Result<Vec<Placement>, CatalogueError> {
        let count = self.slots.len();
        self.place.at_most(field, starts.len())?;
        let number = |amount| -> Result<usize, CatalogueError> {
            let small = self.place.small(field, amount, 1024)?;
            Ok(usize::try_from(small).unwrap_or(usize::MAX))
        };
        let size = number(size)?;
        let mut placements = Vec::new();
        for start in starts {
            let start = number(start)?;
            let Some(taken) = self.slots.get(start..start + size).filter(|taken| !taken.is_empty()) else {
                let found = format!("start {start} with size {size}");
                let expected = format!("a range of at least one of the {count} slots");
                return Err(self.place.wrong(field, found, expected, "correct start, size or slots.count"));
            };
            let consumes = CounterVector::new(taken.iter().map(|slot| (slot.clone(), 1)));
            placements.push(Placement { name: PlacementName(start.to_string()), consumes });
        }
        Ok(placements)
    }

    fn named_placements(&self, field: &str, at: &[text::At]) -> Result<Vec<Placement>, CatalogueError> {
        self.place.at_most(field, at.len())?;
        let mut placements = Vec::new();
        for one in at {
            if !is_dns_label(&one.name) {
                let found = format!("`{}`", one.name.chars().take(80).collect::<String>());
                let expected = "a DNS label of at most 63 characters (a-z, 0-9, `-`)";
                return Err(self.place.wrong(field, found, expected, "rename the placement"));
            }
            let consumes = vector(self.place, field, &one.takes)?;
            placements.push(Placement { name: PlacementName(one.name.clone()), consumes });
        }
        Ok(placements)
    }

    fn copies(&self, field: &str, copies: &RawAmount) -> Result<Vec<Placement>, CatalogueError> {
        let copies = self.place.small(field, copies, 64)?;
        let nothing = CounterVector::default();
        Ok((0..copies)
            .map(|i| Placement { name: PlacementName(i.to_string()), consumes: nothing.clone() })
            .collect())
    }

    /// The fraction as written, if it is the part of the card that every placement takes.
    fn fraction(
        &self,
        field: &str,
        raw: &text::Template,
        consumes: &CounterVector,
        placements: &[Placement],
    ) -> Result<Fraction, CatalogueError> {
        let parsed = match raw.fraction.as_str() {
            "1" => Some(Fraction::WHOLE),
            text => text.split_once('/').and_then(|(n, d)| Fraction::new(n.parse().ok()?, d.parse().ok()?)),
        };
        let Some(written) = parsed else {
            let found = format!("`{}`", raw.fraction.chars().take(80).collect::<String>());
            let fix = "write numerator/denominator, or 1";
            return Err(self.place.wrong(field, found, "a part of a card such as 1/4", fix));
        };
        for placement in placements {
            let (taken, total) = self.part_taken(consumes, placement)?;
            let agrees = u128::from(taken) * u128::from(written.denominator())
                == u128::from(total) * u128::from(written.numerator());
            if !agrees {
                let of = &self.raw.fraction_of;
                let expected = format!("{taken}/{total}, what it takes of {of} at `{}`", placement.name);
                let fix = "correct the fraction or the amounts";
                return Err(self.place.wrong(field, written.to_string(), expected, fix));
            }
        }
        Ok(written)
    }

    fn part_taken(
        &self,
        consumes: &CounterVector,
        placement: &Placement,
    ) -> Result<(u64, u64), CatalogueError> {
        if self.raw.fraction_of == SLOTS && !self.slots.is_empty() {
            let taken = self.slots.iter().filter(|slot| placement.consumes.get(slot) > 0).count();
            let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            return Ok((number(taken), number(self.slots.len())));
        }
        let field = format!("{}.fraction-of", self.path);
        let counter: CounterName = self.place.name(&field, &self.raw.fraction_of)?;
        match self.totals.get(&counter) {
            0 => {
                let fix = "name a counter of the totals, or `slots` where the table has slots";
                Err(self.place.wrong(&field, format!("`{counter}`"), "a counter of this table", fix))
            }
            total => Ok((consumes.get(&counter), total)),
        }
    }

    /// Percent of the card's compute, rounded down: as written, or from the counter that `compute-of` names.
    fn cores(
        &self,
        field: &str,
        raw: &text::Template,
        consumes: &CounterVector,
    ) -> Result<Cores, CatalogueError> {
        let percent = match (&raw.cores, &self.raw.compute_of) {
            (Some(percent), None) => u64::from(self.place.small(field, percent, 100)?),
            (None, Some(counter)) => {
                let counter: CounterName = self.place.name(&format!("{}.compute-of", self.path), counter)?;
                let total = u128::from(self.totals.get(&counter).max(1));
                u64::try_from(u128::from(consumes.get(&counter)) * 100 / total).unwrap_or(u64::MAX)
            }
            (Some(_), Some(_)) => {
                let fix = "remove cores, or compute-of and give cores for each template";
                return Err(self.place.wrong(field, "written", "nothing beside compute-of", fix));
            }
            (None, None) => {
                let fix = "write the percent of the card's compute, or compute-of for the table";
                return Err(self.place.wrong(field, "missing", "0 to 100", fix));
            }
        };
        match u8::try_from(percent).ok().and_then(Cores::new) {
            Some(cores) if cores > Cores::NONE => Ok(cores),
            _ => Err(self.place.wrong(field, percent.to_string(), "1 to 100 percent", "correct the amounts")),
        }
    }

    /// Capacities to show: what it takes of countable things, and what the file adds or corrects.
    fn capacity(
        &self,
        field: &str,
        raw: &text::Template,
        consumes: &CounterVector,
    ) -> Result<BTreeMap<String, u64>, CatalogueError> {
        let shown = consumes.restricted(|name| name.as_str() != MEMORY && name.as_str() != PARTITIONS);
        let mut capacity: BTreeMap<String, u64> =
            shown.iter().map(|(name, amount)| (camel_case(name.as_str()), amount)).collect();
        for (name, amount) in &raw.capacity {
            let counter: CounterName = self.place.name(field, name)?;
            capacity.insert(camel_case(counter.as_str()), self.place.whole(field, amount)?);
        }
        for reserved in ["memory", "cores"] {
            if capacity.contains_key(reserved) {
                let expected = "names other than memory and cores";
                return Err(self.place.wrong(field, format!("`{reserved}`"), expected, "rename it"));
            }
        }
        Ok(capacity)
    }

    /// Names must be unique, and an alias may not lead to another name: no chains, no cycles.
    fn spellings(&self, templates: &[Template]) -> Result<Vec<DriverSpelling>, CatalogueError> {
        let field = |i: usize, key: &str| format!("{}.template[{i}].{key}", self.path);
        let mut names: BTreeSet<&TemplateName> = BTreeSet::new();
        for (i, template) in templates.iter().enumerate() {
            if !names.insert(&template.name) {
                let found = format!("`{}`", template.name);
                return Err(self.place.wrong(&field(i, "name"), found, "a name no other has", "rename it"));
            }
        }
        let mut aliases: BTreeSet<&TemplateName> = BTreeSet::new();
        let mut spellings = Vec::new();
        for (i, (template, raw)) in templates.iter().zip(&self.raw.templates).enumerate() {
            for (alias, written) in template.aliases.iter().zip(&raw.aliases) {
                if names.contains(alias) || !aliases.insert(alias) {
                    let found = format!("`{alias}`, which is a name or alias already");
                    let expected = "a spelling that leads to one template alone";
                    return Err(self.place.wrong(&field(i, "aliases"), found, expected, "remove it"));
                }
                if let Some(drivers_before) = &written.drivers_before {
                    spellings.push(DriverSpelling {
                        template: template.name.clone(),
                        spelling: alias.clone(),
                        drivers_before: self.place.words(&field(i, "aliases"), drivers_before)?,
                    });
                }
            }
        }
        Ok(spellings)
    }
}

/// `copy-engines` as `copyEngines`: capacity names must be C identifiers.
fn camel_case(counter: &str) -> String {
    let mut words = counter.split('-').filter(|w| !w.is_empty());
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, rest) = word.split_at(1);
        name.push_str(&first.to_ascii_uppercase());
        name.push_str(rest);
    }
    name
}
