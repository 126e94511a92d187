//! Edits of several grants, merged, each under the name of the request it is for.
//!
//! A runtime applies edits in an unspecified order, and silently keeps the last one. So two owners with
//! different edits for the same slot are an error here, before anything is written, and the error names both.
//! Equal edits merge.
//!
//! Invariants: a slot holds one edit; every held edit has at least one owner; a refused addition changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use thiserror::Error;

use crate::edits::{Edit, Slot};
use crate::spec;

/// The request that edits are for, in words for a message: `request "gpu", share 0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(String);

impl Owner {
    /// An owner known by `name`. The name is only shown, never parsed.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Two owners want different things in one place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{slot}: {holder} set {held}, {asker} asks for {asked}; one container cannot have both")]
pub struct Conflict {
    /// The place.
    pub slot: Slot,
    /// The first owner.
    pub holder: Owner,
    /// What the first one has there.
    pub held: Box<Edit>,
    /// The second owner.
    pub asker: Owner,
    /// The edit of the second one.
    pub asked: Box<Edit>,
}

/// The edit in one slot, and its owners.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holding {
    edit: Edit,
    owners: BTreeSet<Owner>,
}

/// The edits of several owners, without a contradiction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergedEdits {
    slots: BTreeMap<Slot, Holding>,
}

impl MergedEdits {
    /// No edits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `edits` for `owner`; adding the same again changes nothing.
    ///
    /// # Errors
    /// [`Conflict`] when a slot holds something else, also when `edits` contradict themselves. Then nothing is added.
    pub fn add(&mut self, owner: &Owner, edits: &[Edit]) -> Result<(), Conflict> {
        let mut asked_here = BTreeMap::new();
        for edit in edits {
            let slot = edit.slot();
            let held = match self.slots.get(&slot) {
                Some(holding) => Some((holding.owners.first().unwrap_or(owner), &holding.edit)),
                None => asked_here.get(&slot).map(|first| (owner, *first)),
            };
            if let Some((holder, held)) = held.filter(|(_, held)| *held != edit) {
                return Err(Conflict {
                    holder: holder.clone(),
                    held: Box::new(held.clone()),
                    asker: owner.clone(),
                    asked: Box::new(edit.clone()),
                    slot,
                });
            }
            asked_here.insert(slot, edit);
        }
        for (slot, edit) in asked_here {
            let fresh = || Holding { edit: edit.clone(), owners: BTreeSet::new() };
            self.slots.entry(slot).or_insert_with(fresh).owners.insert(owner.clone());
        }
        Ok(())
    }

    /// Owners of the edit in `slot`; empty if the slot is free.
    pub fn owners(&self, slot: &Slot) -> impl Iterator<Item = &Owner> {
        self.slots.get(slot).into_iter().flat_map(|holding| &holding.owners)
    }

    /// The edits, in the order of their slots.
    pub fn edits(&self) -> impl Iterator<Item = &Edit> {
        self.slots.values().map(|holding| &holding.edit)
    }

    /// Whether there are no edits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The edits as they stand in a file.
    pub(crate) fn to_spec(&self) -> spec::ContainerEdits {
        let mut edits = spec::ContainerEdits::default();
        for edit in self.edits() {
            match edit {
                Edit::Env(name, value) => edits.env.push(format!("{name}={value}")),
                Edit::Node(node) => edits.device_nodes.push(node.to_spec()),
                Edit::Mount(mount) => edits.mounts.push(mount.to_spec()),
            }
        }
        edits
    }

    /// Panics where an invariant of the module does not hold.
    #[cfg(test)]
    fn invariants(&self) {
        for (slot, holding) in &self.slots {
            assert_eq!(*slot, holding.edit.slot());
            assert!(!holding.owners.is_empty(), "{slot} has no owner");
        }
    }
}

#[cfg(test)]
mod tests;
