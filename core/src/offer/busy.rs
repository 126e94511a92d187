//! A card that claims hold keeps the layout that they got it in: its layout changes while it is idle, and only then.
//!
//! ```text
//!  what claims hold ─┐
//!  policy's layout ──┴▶ has it all of that? ─ yes ─▶ the policy's layout
//!                                           └ no ──▶ the layout it has: what is held, tainted, and nothing else
//! ```
//!
//! Otherwise held devices would vanish from under their claims, and the scheduler would be offered parts of a card that
//! is still something else. With the taint no new claim comes; when the last one is gone, the policy's layout follows.
//! What the card is now is read from the devices that are held: nothing else of an earlier policy is remembered.

use super::card_devices::CardDevices;
use super::choose::ResolvedLayout;
use super::device::{PartDevice, TAINT_LAYOUT, no_schedule};
use super::names::{PoolKey, PoolNaming, is_pool_of, pool_name};
use super::order::TemplatePlacement;
use super::policy::{ShareTerms, Slot};
use super::tables::Tables;
use crate::card::Card;
use crate::dra::{DeviceId, Sharing};
use crate::grant::Grant;
use crate::id::NodeName;
use crate::partition::{Part, PartitionTable};
use crate::units::{Bytes, Cores};

/// A device that a claim holds or has a share of, as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDevice {
    /// Its name.
    pub device: DeviceId,
    /// What it stands for.
    pub part: Part,
    /// Whether it is shared.
    pub sharing: Sharing,
    /// Memory of the claim; all of the part, if it is not shared.
    pub memory: Bytes,
    /// Compute of the claim; all of the part, if it is not shared.
    pub cores: Cores,
}

/// Whether what is held is among what is made, as it was.
pub(super) fn has_all(made: &CardDevices, held: &[HeldDevice], node: &NodeName) -> bool {
    let groups: Vec<_> =
        made.groups.iter().map(|group| (pool_name(node, &group.pool), &group.devices)).collect();
    let is_there = |h: &HeldDevice| groups.iter().any(|(pool, group)| group.iter().any(|b| h.is(b, pool)));
    held.iter().all(is_there)
}

/// How the pools of a card are named: as before while it is held under such a name.
pub(super) fn naming_of(held: &[HeldDevice], node: &NodeName) -> PoolNaming {
    let is_old =
        |h: &HeldDevice| is_pool_of(node, &h.device.pool) && PoolKey::of_name(&h.device.pool).is_old();
    if held.iter().any(is_old) { PoolNaming::Old } else { PoolNaming::ByShape }
}

/// The layout that the card has, by what is held of it; none where that says nothing.
pub(super) fn layout_of(
    held: &[HeldDevice],
    card: &Card,
    tables: &Tables<'_>,
    node: &NodeName,
) -> Option<ResolvedLayout> {
    let first = held.first()?;
    let pool = &first.device.pool;
    if is_pool_of(node, pool) && PoolKey::of_name(pool).is_dynamic() {
        return Some(ResolvedLayout::Dynamic(ShareTerms::default()));
    }
    match (&first.part, first.sharing) {
        (Part::Card, Sharing::Exclusive) => Some(ResolvedLayout::Whole),
        (Part::Card, Sharing::Shareable) => Some(ResolvedLayout::Shared(ShareTerms::default())),
        (Part::Slot { .. }, _) => Some(ResolvedLayout::Slots(slots(held))),
        (Part::Partition { .. }, _) => {
            let (table, facts) = tables.facts(card)?;
            let is_held = |place: &TemplatePlacement| {
                part_at(table, *place).is_some_and(|p| held.iter().any(|h| h.part == p))
            };
            let places = facts.order.iter().copied().filter(is_held).collect();
            Some(ResolvedLayout::Split(places, ShareTerms::default()))
        }
    }
}

/// Leaves of what was made what is held, closed to new claims; none where nothing of it is left.
pub(super) fn closed(mut made: CardDevices, held: &[HeldDevice], node: &NodeName) -> Option<CardDevices> {
    for group in &mut made.groups {
        let pool = pool_name(node, &group.pool);
        group.devices.retain(|built| held.iter().any(|h| h.is(built, &pool)));
        group.devices.iter_mut().for_each(|built| built.device.taints.push(no_schedule(TAINT_LAYOUT)));
    }
    made.groups.retain(|group| !group.devices.is_empty());
    (!made.groups.is_empty()).then_some(made)
}

/// Slots with as many copies as the held ones show that there were.
fn slots(held: &[HeldDevice]) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for device in held {
        let Part::Slot { name, copy } = &device.part else { continue };
        let copies = copy.saturating_add(1);
        let (memory, cores) = (device.memory, device.cores);
        match slots.iter_mut().find(|s| (&s.name, s.memory, s.cores) == (name, memory, cores)) {
            Some(slot) => slot.copies = slot.copies.max(copies),
            None => slots.push(Slot { name: name.clone(), memory, cores, copies }),
        }
    }
    slots
}

fn part_at(table: &PartitionTable, place: TemplatePlacement) -> Option<Part> {
    let template = table.templates.get(place.template)?;
    let placement = template.placements.get(place.placement)?.name.clone();
    Some(Part::Partition { template: template.name.clone(), placement })
}

// === impl HeldDevice ===

impl HeldDevice {
    /// The device that a grant is of.
    #[must_use]
    pub fn of(grant: &Grant) -> Self {
        Self {
            device: grant.device.clone(),
            part: grant.part.clone(),
            sharing: grant.sharing,
            memory: grant.memory,
            cores: grant.cores,
        }
    }

    /// Whether it is this device of the pool. A share may be of any size; what is held alone must be what it was.
    fn is(&self, built: &PartDevice, pool: &str) -> bool {
        let offered = &built.offered;
        let size = self.sharing == Sharing::Shareable
            || (self.memory, self.cores) == (offered.memory, offered.cores);
        self.device.pool == pool
            && self.device.device == built.device.name
            && (&self.part, self.sharing) == (&offered.part, offered.sharing)
            && size
    }
}

#[cfg(test)]
mod tests;
