//! vNPUs and the placements of the catalogue: which id and group a placement has, and which placement a vNPU takes.
//!
//! | chip | placement | vNPU |
//! |---|---|---|
//! | with groups (310P) | `vg2` | group 2, id slot 4 |
//! | with groups (310P) | `vg2a`, `vg2b` | group 2, id slot 4 or 5: the half is the parity of the slot |
//! | without (910B, 910C) | copy `k` of a template | id slot = copies of the templates before it + `k` |
//!
//! A vNPU id is 100 + 16 × physical id + slot. Chips whose templates have more copies than ids (910A) are static: their
//! administrator cuts them, and vNPUs are counted in the order of their ids.

use std::collections::BTreeSet;

use aliquot_core::catalogue::CardModel;
use aliquot_core::id::TemplateName;
use aliquot_core::partition::{CounterVector, Part, PartitionTable, Placement, PlacementName, Template};
use aliquot_core::ports::PartitionAt;

use crate::ffi::{Facts, Vnpu};

/// vNPU ids of one chip.
const IDS: u32 = 16;
/// The first of the first chip.
const ID_FIRST: u32 = 100;
/// Prefix of the counters of groups.
const GROUP: &str = "vg";

/// What a vNPU is to be made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VnpuRequest {
    pub(crate) id: u32,
    pub(crate) group: Option<u32>,
    /// Names of the template, the likeliest first.
    pub(crate) spellings: Vec<String>,
}

/// First vNPU id of a chip.
fn first_id(phy: u32) -> u32 {
    phy.saturating_mul(IDS).saturating_add(ID_FIRST)
}

/// The group that a placement lies in, and how much of it that takes.
fn group_of(placement: &Placement) -> Option<(u32, u64)> {
    let mut groups = placement.consumes.iter().filter_map(|(name, amount)| {
        let number = name.as_str().strip_prefix(GROUP)?;
        Some((number.parse().ok()?, amount))
    });
    groups.next()
}

fn is_grouped(table: &PartitionTable) -> bool {
    table.templates.iter().any(|template| template.placements.iter().any(|place| group_of(place).is_some()))
}

/// Copies of the templates before this one.
fn copies_before(table: &PartitionTable, name: &TemplateName) -> u32 {
    let before = table.templates.iter().take_while(|template| template.name != *name);
    u32::try_from(before.map(|template| template.placements.len()).sum::<usize>()).unwrap_or(u32::MAX)
}

/// Why vNPUs of this model are its administrator's to make; `None`: they are made on request.
pub(crate) fn static_reason(table: &PartitionTable) -> Option<String> {
    let copies: usize = table.templates.iter().map(|template| template.placements.len()).sum();
    let most = usize::try_from(IDS).unwrap_or(0);
    (!is_grouped(table) && copies > most).then(|| {
        format!("its templates have {copies} placements, more than the {most} ids of a chip tell apart")
    })
}

/// The table as it is on a chip that only its administrator cuts: what exists, and nothing else.
pub(crate) fn only_found(table: &PartitionTable, found: &[Part]) -> Option<PartitionTable> {
    let is_found = |template: &TemplateName, placement: &PlacementName| {
        let part = Part::Partition { template: template.clone(), placement: placement.clone() };
        found.contains(&part)
    };
    let left = table.templates.iter().filter_map(|template| {
        let mut template = template.clone();
        let name = template.name.clone();
        template.placements.retain(|place| is_found(&name, &place.name));
        (!template.placements.is_empty()).then_some(template)
    });
    let templates: Vec<Template> = left.collect();
    (!templates.is_empty()).then(|| PartitionTable { totals: table.totals.clone(), templates })
}

/// Names that a driver may have for a template, the likeliest first.
pub(crate) fn spellings(model: &CardModel, template: &Template, driver: &str) -> Vec<String> {
    let likeliest = model.spelling(&template.name, driver);
    let others = model.driver_spellings.iter().filter(|other| other.template == template.name);
    let all = [likeliest, &template.name].into_iter().chain(others.map(|other| &other.spelling));
    let mut names: Vec<String> = Vec::new();
    for name in all.chain(&template.aliases).map(ToString::to_string) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The template that a driver's name stands for.
fn template_of<'a>(model: &'a CardModel, table: &'a PartitionTable, name: &str) -> Option<&'a Template> {
    let exact = table.templates.iter().find(|template| template.name.as_str() == name);
    let spelt = || {
        let other = model.driver_spellings.iter().find(|other| other.spelling.as_str() == name)?;
        table.template(&other.template)
    };
    let alias = |template: &&Template| template.aliases.iter().any(|alias| alias.as_str() == name);
    exact.or_else(spelt).or_else(|| table.templates.iter().find(alias))
}

/// Every vNPU of a chip with the part that it is. One of an unknown template is a part that no table has, so that the ledger
/// knows that the chip cannot be accounted for.
pub(crate) fn parts<'a>(model: &CardModel, facts: &Facts, vnpus: &'a [Vnpu]) -> Vec<(&'a Vnpu, Part)> {
    let mut taken: BTreeSet<(TemplateName, PlacementName)> = BTreeSet::new();
    let mut parts: Vec<(&Vnpu, Option<Part>)> = Vec::new();
    let mut sorted: Vec<&Vnpu> = vnpus.iter().collect();
    sorted.sort_by_key(|vnpu| vnpu.id);
    let Some(table) = model.table() else {
        return sorted.into_iter().filter_map(|vnpu| Some((vnpu, unknown(vnpu)?))).collect();
    };
    // First those whose id says where they are, then those that take what is left.
    for is_exact in [true, false] {
        for vnpu in &sorted {
            if parts.iter().any(|(other, _)| other.id == vnpu.id) {
                continue;
            }
            let Some(template) = template_of(model, table, &vnpu.template) else {
                parts.push((vnpu, unknown(vnpu)));
                continue;
            };
            let is_free = |place: &&Placement| !taken.contains(&(template.name.clone(), place.name.clone()));
            let mut free = candidates(template, vnpu).filter(is_free);
            let place = if is_exact {
                free.find(|place| slot(table, template, place) == Some(slot_of(facts.phy, vnpu.id, table)))
            } else {
                free.next()
            };
            if let Some(place) = place {
                taken.insert((template.name.clone(), place.name.clone()));
                let (template, placement) = (template.name.clone(), place.name.clone());
                parts.push((vnpu, Some(Part::Partition { template, placement })));
            } else if !is_exact {
                parts.push((vnpu, unknown(vnpu)));
            }
        }
    }
    parts.sort_by_key(|(vnpu, _)| vnpu.id);
    parts.into_iter().filter_map(|(vnpu, part)| Some((vnpu, part?))).collect()
}

/// Placements where a vNPU can lie.
fn candidates<'a>(template: &'a Template, vnpu: &Vnpu) -> impl Iterator<Item = &'a Placement> {
    let group = vnpu.group;
    template.placements.iter().filter(move |place| group_of(place).is_none_or(|(number, _)| number == group))
}

/// A part that no table has.
fn unknown(vnpu: &Vnpu) -> Option<Part> {
    let named = TemplateName::new(vnpu.template.as_str()).or_else(|_| TemplateName::new("unknown"));
    Some(Part::Partition { template: named.ok()?, placement: PlacementName(format!("id-{}", vnpu.id)) })
}

/// The slot that tells a placement: of a half of a group its parity alone.
fn slot(table: &PartitionTable, template: &Template, place: &Placement) -> Option<u32> {
    let index = template.placements.iter().position(|other| other.name == place.name)?;
    let index = u32::try_from(index).ok()?;
    match group_of(place) {
        Some((_, 1)) => Some(index % 2),
        Some(_) => Some(0),
        None => copies_before(table, &template.name).checked_add(index).filter(|slot| *slot < IDS),
    }
}

/// What the id of a vNPU says of its slot, in the terms of [`slot`].
fn slot_of(phy: u32, id: u32, table: &PartitionTable) -> u32 {
    let slot = id.wrapping_sub(first_id(phy));
    if is_grouped(table) { slot % 2 } else { slot }
}

/// Id, group and names for a partition that is to be made; `None`: the card has no such partition, or no id is left.
pub(crate) fn wanted(
    model: &CardModel,
    facts: &Facts,
    vnpus: &[Vnpu],
    at: &PartitionAt,
    driver: &str,
) -> Option<VnpuRequest> {
    let table = model.table()?;
    let template = table.template(&at.template)?;
    let place = template.placements.iter().find(|place| place.name == at.placement)?;
    let tells = slot(table, template, place)?;
    let group = group_of(place);
    let is_free = |slot: &u32| vnpus.iter().all(|vnpu| vnpu.id != first_id(facts.phy) + slot);
    let slot = match group {
        // The slots of its group first; those of other groups may be free as well.
        Some((number, amount)) => {
            let (own, ids) = (number.checked_mul(2)?, IDS / 2);
            let all = (0..ids).map(|step| (own + step) % ids);
            let fits = |slot: &u32| amount > 1 || slot % 2 == tells;
            all.filter(fits).find(is_free)?
        }
        None => Some(tells).filter(is_free)?,
    };
    let id = first_id(facts.phy).checked_add(slot)?;
    Some(VnpuRequest {
        id,
        group: group.map(|(number, _)| number),
        spellings: spellings(model, template, driver),
    })
}

/// What is left of a chip.
pub(crate) fn left(table: &PartitionTable, found: &[Part]) -> CounterVector {
    let mut left = table.totals.clone();
    for part in found {
        let Part::Partition { template, placement } = part else { continue };
        let takes = table.consumption(template, placement).unwrap_or_default();
        left = left.minus(&takes).unwrap_or_default();
    }
    left
}

#[cfg(test)]
mod tests;
