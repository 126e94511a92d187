//! Making and destroying partitions, with the limits that hardware has: the card's counters, one partition a place.

use std::collections::BTreeSet;

use aliquot_core::card::Card;
use aliquot_core::id::{CardUuid, TemplateName};
use aliquot_core::partition::{CounterVector, PlacementName};
use aliquot_core::ports::{BackendError, ExpectedPartition, LivePartition, PartitionAt, PartitionHandle};

use crate::ffi::{Entry, State};

/// One simulated card: what discovery reports of it, and its device files.
#[derive(Clone, Debug)]
pub(crate) struct SimCard {
    /// As discovered on an idle, healthy day.
    pub(crate) card: Card,
    /// Device files of the card, with `{index}`.
    pub(crate) device_nodes: Vec<String>,
    /// Device files of a partition, with `{index}` and `{id}`; empty: those of the card.
    pub(crate) partition_nodes: Vec<String>,
    /// Number of its first partition.
    pub(crate) partition_id_first: u32,
}

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

/// A UUID that is the same for the same words, here and on every machine.
pub(crate) fn uuid_of(words: &str) -> String {
    // Two runs of 64-bit FNV-1a with different beginnings; a name, not a secret.
    let run = |basis: u64| {
        let hash = words.bytes().fold(basis, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        // The finalizer of splitmix64 spreads the last bytes over the whole word.
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    };
    let digits = format!("{:016x}{:016x}", run(0xcbf2_9ce4_8422_2325), run(0x6c62_272e_07bb_0142));
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// The place of an entry of the state; `None` if the entry names nothing that exists.
pub(crate) fn place_of(entry: &Entry) -> Option<PartitionAt> {
    Some(PartitionAt {
        card: CardUuid::new(entry.card.as_str()).ok()?,
        template: TemplateName::new(entry.template.as_str()).ok()?,
        placement: PlacementName(entry.placement.clone()),
    })
}

#[cfg(test)]
mod tests;
