//! Making and destroying partitions, with the limits that hardware has: the card's counters, one partition a place.

use std::collections::BTreeSet;

use aliquot_core::id::CardUuid;
use aliquot_core::partition::CounterVector;
use aliquot_core::ports::{BackendError, ExpectedPartition, LivePartition, PartitionAt, PartitionHandle};

use crate::ffi::{Entry, State};
use crate::probe::{SimCard, place_of, uuid_of};

/// Makes a partition on the card.
pub(crate) fn make(
    sim: &SimCard,
    at: &PartitionAt,
    state: &mut State,
) -> Result<LivePartition, BackendError> {
    let card = &sim.card;
    let unknown = || BackendError::UnknownPlace { at: at.clone() };
    let table = card.table().ok_or_else(unknown)?;
    let asked = table.consumption(&at.template, &at.placement).ok_or_else(unknown)?;
    if entry_at(state, at).is_some() {
        return Err(BackendError::AlreadyThere { at: at.clone() });
    }
    let mut held = CounterVector::default();
    for entry in on_card(state, &card.uuid) {
        let place = place_of(entry).ok_or_else(unknown)?;
        let takes = table.consumption(&place.template, &place.placement).ok_or_else(unknown)?;
        held = held.plus(&takes).ok_or_else(unknown)?;
    }
    let left = table.totals.minus(&held).unwrap_or_default();
    if let Some((counter, asked, left)) = asked.first_excess(&left) {
        return Err(BackendError::NoRoom { at: at.clone(), counter: counter.clone(), asked, left });
    }
    let handle = next_handle(sim, at, state)?;
    state.partitions.push(Entry {
        card: at.card.to_string(),
        template: at.template.to_string(),
        placement: at.placement.to_string(),
        id: handle.id,
        uuid: handle.uuid.to_string(),
    });
    state.partitions.sort();
    Ok(LivePartition { at: at.clone(), handle })
}

/// Destroys the partition at this place.
pub(crate) fn unmake(
    at: &PartitionAt,
    expected: &ExpectedPartition,
    state: &mut State,
) -> Result<(), BackendError> {
    let Some(live) = entry_at(state, at).and_then(live) else {
        return Err(BackendError::Absent { at: at.clone() });
    };
    match expected {
        ExpectedPartition::Handle(handle) if *handle != live.handle => Err(BackendError::Replaced {
            at: at.clone(),
            expected: Box::new(handle.clone()),
            found: Box::new(live.handle),
        }),
        ExpectedPartition::Handle(_) | ExpectedPartition::Any => {
            state.partitions.retain(|entry| place_of(entry).as_ref() != Some(at));
            Ok(())
        }
    }
}

/// Every partition of the state.
pub(crate) fn list(state: &State) -> Vec<LivePartition> {
    let mut all: Vec<LivePartition> = state.partitions.iter().filter_map(live).collect();
    all.sort();
    all
}

/// Partitions of one card.
pub(crate) fn on_card<'a>(state: &'a State, card: &CardUuid) -> impl Iterator<Item = &'a Entry> {
    state.partitions.iter().filter(move |e| e.card == card.as_str())
}

/// The partition at this place.
pub(crate) fn entry_at<'a>(state: &'a State, at: &PartitionAt) -> Option<&'a Entry> {
    on_card(state, &at.card).find(|e| e.template == at.template.as_str() && e.placement == at.placement.0)
}

/// The partition that an entry stands for.
pub(crate) fn live(entry: &Entry) -> Option<LivePartition> {
    let uuid = CardUuid::new(entry.uuid.as_str()).ok()?;
    Some(LivePartition { at: place_of(entry)?, handle: PartitionHandle { id: entry.id, uuid } })
}

/// The identity of the next partition: the lowest free number of the card, and a UUID that no other ever had.
fn next_handle(sim: &SimCard, at: &PartitionAt, state: &mut State) -> Result<PartitionHandle, BackendError> {
    let card = &sim.card;
    let used: BTreeSet<u32> = on_card(state, &card.uuid).map(|e| e.id).collect();
    let id = (sim.partition_id_first..).find(|id| !used.contains(id)).unwrap_or(u32::MAX);
    let made = state.made.entry(card.uuid.to_string()).or_insert(0);
    *made = made.saturating_add(1);
    let words = format!("{}/{}/{}/{made}", card.uuid, at.template, at.placement);
    // A GPU's partitions are called as its vendor calls them, so that programs know them for what they are.
    let prefix = if sim.card.uuid.as_str().starts_with("GPU-") { "MIG" } else { "PART" };
    let uuid = CardUuid::new(format!("{prefix}-{}", uuid_of(&words)));
    let uuid = uuid.map_err(|e| BackendError::Unreachable { what: at.to_string(), source: Box::new(e) })?;
    Ok(PartitionHandle { id, uuid })
}

#[cfg(test)]
mod tests;
