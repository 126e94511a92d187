//! Desired slices and the server's copies → the fewest writes, in order. Pure.
//!
//! Consumers read only the slices of a pool's highest generation, and only if as many exist as each of them says. So a
//! generation stays while no reader can see a mix of old and new content as a complete pool:
//!
//! | copies of the highest generation | generation |
//! |---|---|
//! | content right; others missing, or left at an older generation | stays: the pool is incomplete until the last write |
//! | one has other content, none is missing | stays: one write changes the pool as a whole |
//! | several have other content, or one and another is missing | next: every slice is written |
//! | one states another number of slices | next: every slice is written |
//!
//! Deletes come first, then updates, then creates in the order of names.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::dra::ResourceSlice;
use aliquot_core::offer::{CounterStance, Offers};

use super::copies::{ServerCopies, ServerSlice};

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Write {
    /// Delete the server's copy of this name.
    Delete(String),
    /// Replace the server's copy of this name.
    Update(ResourceSlice),
    /// Create.
    Create(ResourceSlice),
}

/// What the server made of a write that it did not keep as sent: written again only for another content.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AcceptedWrite {
    /// The slice as sent.
    pub(super) sent: ResourceSlice,
    /// Version of the object that came of it.
    pub(super) resource_version: String,
}

/// What a plan is made of.
pub(super) struct Situation<'a> {
    /// Slices as wanted; generation and slice count are set here.
    pub(super) desired: &'a [ResourceSlice],
    /// The server's copies.
    pub(super) copies: &'a ServerCopies,
    /// Writes that the server changed, by slice name.
    pub(super) accepted: &'a BTreeMap<String, AcceptedWrite>,
    /// UID of the Node that owns the slices; `None` if it is not known.
    pub(super) owner: Option<&'a str>,
    /// The slice with the label for counters, and its value.
    pub(super) label: Option<&'a (String, CounterStance)>,
    /// Pools that are left as they are.
    pub(super) frozen: &'a BTreeSet<String>,
}

/// How a desired slice stands to the server's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceDiff {
    /// Nothing to do.
    Same,
    /// Content is right; the owner reference or the label is not.
    OtherMetadata,
    /// Visible at the highest generation, with other content.
    OtherContent,
    /// Visible at the highest generation, with another slice count.
    OtherCount,
    /// Left at an older generation.
    Older,
    /// No copy.
    Missing,
}

/// The fewest writes, in order; empty if nothing differs.
pub(super) fn plan(situation: &Situation<'_>) -> Vec<Write> {
    let mut pools: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in situation.desired.iter().filter(|slice| !situation.frozen.contains(&slice.pool.name)) {
        pools.entry(&slice.pool.name).or_default().push(slice);
    }
    let mut writes = Writes::default();
    for copy in situation.copies.iter().filter(|copy| !situation.frozen.contains(copy.pool())) {
        let wanted =
            pools.get(copy.pool()).is_some_and(|slices| slices.iter().any(|s| s.name == copy.name()));
        if !wanted {
            writes.deletes.push(Write::Delete(copy.name().to_owned()));
        }
    }
    for (name, mut slices) in pools {
        slices.sort_by(|a, b| a.name.cmp(&b.name));
        pool(situation, name, &slices, &mut writes);
    }
    writes.in_order()
}

#[derive(Default)]
struct Writes {
    deletes: Vec<Write>,
    updates: Vec<Write>,
    creates: Vec<Write>,
}

// === impl Writes ===

impl Writes {
    fn in_order(self) -> Vec<Write> {
        self.deletes.into_iter().chain(self.updates).chain(self.creates).collect()
    }
}

fn pool(situation: &Situation<'_>, name: &str, slices: &[&ResourceSlice], writes: &mut Writes) {
    let count = i64::try_from(slices.len()).unwrap_or(i64::MAX);
    let copies = situation.copies.iter().filter(|copy| copy.pool() == name);
    let highest = copies.map(ServerSlice::generation).max();
    let at = highest.unwrap_or(Offers::FIRST_GENERATION);
    let standings: Vec<SliceDiff> =
        slices.iter().map(|slice| standing(situation, &numbered(slice, at, count), at)).collect();
    let number = |wanted: SliceDiff| standings.iter().filter(|standing| **standing == wanted).count();
    let invisible = number(SliceDiff::Missing) + number(SliceDiff::Older);
    let mixes =
        number(SliceDiff::OtherContent) > 1 || (number(SliceDiff::OtherContent) == 1 && invisible > 0);
    if number(SliceDiff::OtherCount) == 0 && !mixes {
        for (slice, standing) in slices.iter().zip(standings) {
            match standing {
                SliceDiff::Same => {}
                SliceDiff::Missing => writes.creates.push(Write::Create(numbered(slice, at, count))),
                _ => writes.updates.push(Write::Update(numbered(slice, at, count))),
            }
        }
        return;
    }
    let Some(next) = at.checked_add(1) else {
        // No higher generation exists: the pool begins again once every copy is gone.
        let present = slices.iter().filter(|slice| situation.copies.get(&slice.name).is_some());
        writes.deletes.extend(present.map(|slice| Write::Delete(slice.name.clone())));
        let first = Offers::FIRST_GENERATION;
        writes.creates.extend(slices.iter().map(|slice| Write::Create(numbered(slice, first, count))));
        return;
    };
    for (slice, standing) in slices.iter().zip(standings) {
        match standing {
            SliceDiff::Missing => writes.creates.push(Write::Create(numbered(slice, next, count))),
            _ => writes.updates.push(Write::Update(numbered(slice, next, count))),
        }
    }
}

fn standing(situation: &Situation<'_>, slice: &ResourceSlice, highest: i64) -> SliceDiff {
    let Some(copy) = situation.copies.get(&slice.name).filter(|copy| copy.pool() == slice.pool.name) else {
        return SliceDiff::Missing;
    };
    if copy.generation() != highest {
        return SliceDiff::Older;
    }
    let accepted = situation.accepted.get(&slice.name);
    let as_accepted = accepted.is_some_and(|accepted| {
        accepted.sent == *slice && accepted.resource_version == copy.resource_version()
    });
    if as_accepted || copy.content() == Some(slice) {
        let owned = situation.owner.is_none_or(|owner| copy.owner() == Some(owner));
        let labelled = copy.stance() == stance_on(situation.label, &slice.name);
        return if owned && labelled { SliceDiff::Same } else { SliceDiff::OtherMetadata };
    }
    if copy.slice_count() == slice.pool.slice_count { SliceDiff::OtherContent } else { SliceDiff::OtherCount }
}

/// The stance that a slice has as a label.
pub(super) fn stance_on(label: Option<&(String, CounterStance)>, slice: &str) -> Option<CounterStance> {
    label.filter(|(name, _)| name == slice).map(|(_, stance)| *stance)
}

fn numbered(slice: &ResourceSlice, generation: i64, slice_count: i64) -> ResourceSlice {
    let mut slice = slice.clone();
    slice.pool.generation = generation;
    slice.pool.slice_count = slice_count;
    slice
}

#[cfg(test)]
mod tests;
