//! What MIG mode means for a card, and the partitions of a card in MIG mode. This backend never switches the
//! mode: a switch resets the card under its running programs, so it is the administrator's decision.
//!
//! | mode | shares of the card | partitions |
//! |---|---|---|
//! | the card has none | yes | none |
//! | off | yes | none: they need the mode |
//! | on | none: programs reach instances alone | made on request, with shares in them; for permitted users |
//!
//! Templates, sizes and places are what the driver says; the catalogue has the names where the driver has none. A partition is a
//! GPU instance with one compute instance that has all of it.

use aliquot_core::card::Card;
use aliquot_core::id::{CardUuid, CounterName, TemplateName};
use aliquot_core::partition::{
    CounterVector, Isolation, Part, PartitionTable, Placement, PlacementName, ShareSupport, Template,
};
use aliquot_core::ports::{LivePartition, PartitionAt, PartitionHandle};
use aliquot_core::units::{Bytes, Cores, Fraction};

use crate::ffi::{Facts, Instance, MigMode, Profile};
use crate::health::instances_unread;

/// Counters of engines, in the order of [`Profile::engines`].
const ENGINES: [&str; 5] = ["copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines"];
/// Most memory slices that a card is believed to have.
const SLOTS_MAX: u32 = 32;

// === impl MigMode ===

impl MigMode {
    /// Why there are no partitions, in words behind a card's name; `None`: there are.
    pub(crate) fn no_partitions(&self, index: u32) -> Option<String> {
        match self {
            Self::None => Some("has no MIG".to_owned()),
            Self::Off => Some(format!(
                "its MIG mode is off, and Aliquot does not switch it: once no process uses the card, its administrator may \
                 (nvidia-smi -i {index} -mig 1)"
            )),
            Self::On(Ok(_)) => None,
            Self::On(Err(fault)) => Some(instances_unread(fault)),
        }
    }
}

/// What a card can be cut into, as its driver says.
pub(crate) fn table(profiles: &[Profile], known: Option<&PartitionTable>) -> Result<PartitionTable, String> {
    let slots = profiles.iter().flat_map(|p| &p.placements).map(|(start, size)| start.saturating_add(*size));
    let slots = slots.max().unwrap_or(0);
    let most = profiles.iter().map(|profile| profile.multiprocessors).max().unwrap_or(0);
    if slots == 0 || slots > SLOTS_MAX {
        return Err(format!("MIG profiles: found {slots} memory slices, expected 1 to {SLOTS_MAX}"));
    }
    let whole = CardTotals { slots, multiprocessors: most };
    let mut templates: Vec<Template> = Vec::new();
    for profile in profiles {
        let made = template(profile, known, whole)?;
        if made.placements.is_empty() || templates.iter().any(|other| other.name == made.name) {
            continue;
        }
        templates.push(made);
    }
    let slot_totals = (0..slots).map(|slot| Ok((slot_counter(slot)?, 1)));
    let mut totals = CounterVector::new(slot_totals.collect::<Result<Vec<_>, String>>()?);
    for template in &templates {
        let more = template.consumes.iter().filter(|(name, amount)| *amount > totals.get(name));
        let more = CounterVector::new(more.map(|(name, amount)| (name.clone(), amount - totals.get(name))));
        totals = totals.plus(&more).ok_or("MIG profiles: amounts that no card has")?;
    }
    for profile in profiles.iter().filter(|profile| is_rare(profile)) {
        let entry = CounterVector::new([(rare_counter(profile)?, u64::from(profile.instances) - 1)]);
        totals = totals.plus(&entry).ok_or("MIG profiles: amounts that no card has")?;
    }
    Ok(PartitionTable { totals, templates })
}

/// What all of a card has.
#[derive(Clone, Copy)]
struct CardTotals {
    slots: u32,
    multiprocessors: u32,
}

fn template(
    profile: &Profile,
    known: Option<&PartitionTable>,
    whole: CardTotals,
) -> Result<Template, String> {
    let same = |template: &&Template| template.vendor_profile == Some(profile.id);
    let known = known.and_then(|table| table.templates.iter().find(same));
    let name = match (&profile.name, known) {
        (Some(name), _) => {
            TemplateName::new(name.as_str()).map_err(|error| format!("MIG profile: {error}"))?
        }
        (None, Some(known)) => known.name.clone(),
        (None, None) => {
            return Err(format!(
                "MIG profile {}: found no name, expected one: install a newer driver",
                profile.id
            ));
        }
    };
    let size = profile.placements.iter().map(|(_, size)| *size).max().unwrap_or(whole.slots);
    let fraction = Fraction::new(size, whole.slots).unwrap_or(Fraction::WHOLE);
    let percent = u64::from(profile.multiprocessors) * 100 / u64::from(whole.multiprocessors.max(1));
    let cores = u8::try_from(percent).ok().and_then(Cores::new).unwrap_or(Cores::ALL);
    let mut amounts = vec![(counter("multiprocessors")?, u64::from(profile.multiprocessors))];
    for (name, amount) in ENGINES.iter().zip(profile.engines) {
        amounts.push((counter(name)?, u64::from(amount)));
    }
    if is_rare(profile) {
        amounts.push((rare_counter(profile)?, 1));
    }
    let aliases = known.map(|known| known.aliases.clone()).unwrap_or_default();
    Ok(Template {
        name,
        fraction,
        isolation: Isolation::Hardware,
        memory: Bytes(profile.memory_mib.saturating_mul(Bytes::MIB.0)),
        cores,
        extra_capacity: [("multiprocessors".to_owned(), u64::from(profile.multiprocessors))].into(),
        consumes: CounterVector::new(amounts),
        placements: profile.placements.iter().map(|place| placement(*place)).collect::<Result<_, _>>()?,
        vendor_profile: Some(profile.id),
        aliases,
        shareable: ShareSupport::Enforceable,
    })
}

fn placement((start, size): (u32, u32)) -> Result<Placement, String> {
    let taken = (start..start.saturating_add(size)).map(|slot| Ok((slot_counter(slot)?, 1)));
    let consumes = CounterVector::new(taken.collect::<Result<Vec<_>, String>>()?);
    Ok(Placement { name: PlacementName(start.to_string()), consumes })
}

/// Whether a card has fewer of them than places: such as one with media engines, of which there are few.
fn is_rare(profile: &Profile) -> bool {
    profile.instances > 0
        && usize::try_from(profile.instances).is_ok_and(|most| most < profile.placements.len())
}

fn rare_counter(profile: &Profile) -> Result<CounterName, String> {
    counter(&format!("profile-{}", profile.id))
}

fn slot_counter(slot: u32) -> Result<CounterName, String> {
    counter(&format!("mem{slot}"))
}

fn counter(name: &str) -> Result<CounterName, String> {
    CounterName::new(name).map_err(|error| error.to_string())
}

/// The part of the card that an instance is. An instance with a profile outside the table is an unknown part.
pub(crate) fn part_of(instance: &Instance, table: &PartitionTable) -> Option<Part> {
    let known = table.templates.iter().find(|template| template.vendor_profile == Some(instance.profile));
    let unknown = || TemplateName::new(format!("profile-{}", instance.profile)).ok();
    let template = known.map(|template| template.name.clone()).or_else(unknown)?;
    Some(Part::Partition { template, placement: PlacementName(instance.start.to_string()) })
}

/// The profile and the place on the card of a partition; `None`: the card has no such partition.
pub(crate) fn place_of<'a>(
    at: &PartitionAt,
    profiles: &'a [Profile],
    table: &PartitionTable,
) -> Option<(&'a Profile, (u32, u32))> {
    let id = table.template(&at.template)?.vendor_profile?;
    let profile = profiles.iter().find(|profile| profile.id == id)?;
    let place = profile.placements.iter().find(|(start, _)| start.to_string() == at.placement.0)?;
    Some((profile, *place))
}

/// The first counter of memory slices that instances have taken of a place.
pub(crate) fn taken(instances: &[Instance], (start, size): (u32, u32)) -> Option<CounterName> {
    let covers = |instance: &Instance, slot| {
        (instance.start..instance.start.saturating_add(instance.size)).contains(&slot)
    };
    let first = (start..start.saturating_add(size)).find(|slot| instances.iter().any(|i| covers(i, *slot)));
    slot_counter(first?).ok()
}

/// A card with what its driver says of it.
pub(crate) struct OneCard<'a> {
    pub(crate) card: &'a Card,
    pub(crate) facts: &'a Facts,
}

// === impl OneCard ===

impl<'a> OneCard<'a> {
    fn instances(&self) -> &'a [Instance] {
        match self.facts.cut() {
            Some(Ok(cut)) => &cut.instances,
            Some(Err(_)) | None => &[],
        }
    }

    /// The instance that lies where a partition is to lie and is of its template, with or without compute instances.
    pub(crate) fn at(&self, at: &PartitionAt) -> Option<&'a Instance> {
        let table = self.card.table()?;
        let part = at.part();
        self.instances().iter().find(|instance| part_of(instance, table).as_ref() == Some(&part))
    }

    /// The instance's identity; `None`: programs cannot reach it, it has no compute instance.
    pub(crate) fn handle(&self, instance: &Instance) -> Option<PartitionHandle> {
        let uuid = CardUuid::new(instance.uuid.as_deref()?).ok()?;
        Some(PartitionHandle { id: instance.id, uuid })
    }

    pub(crate) fn partition_at(&self, at: &PartitionAt) -> Option<LivePartition> {
        Some(LivePartition { at: at.clone(), handle: self.handle(self.at(at)?)? })
    }

    pub(crate) fn partitions(&self) -> Vec<LivePartition> {
        let live = |instance: &Instance| {
            let part = part_of(instance, self.card.table()?)?;
            let at = PartitionAt::of(&self.card.uuid, &part)?;
            Some(LivePartition { at, handle: self.handle(instance)? })
        };
        self.instances().iter().filter_map(live).collect()
    }
}

#[cfg(test)]
mod tests;
