//! A container that asks for cards, and what it asks for after the conversion.

use super::words::Word;

/// What a priority is on a whole card.
pub(super) const ALONE: &str = "a whole card, where no other process has a turn";

/// What a container asks for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Became {
    /// Shares, in a claim.
    Shares,
    /// Whole cards, in a claim.
    Cards,
    /// MIG instances of one profile, in a claim.
    Instances,
    /// MIG instances of several profiles, each in a claim.
    SeveralProfiles,
    /// Whole cards, through a class under the old name.
    ClassOfCards,
    /// MIG instances, through classes under the old names.
    ClassesOfInstances,
    /// Slots, through a class under the old name.
    Slots,
    /// NPUs or parts of them.
    Chips,
    /// What it asked for before.
    Left,
}

/// A container that asks for cards.
pub(super) struct Asker {
    /// The list of the Pod's `spec`, and that list's path.
    pub(super) list: &'static str,
    pub(super) path: &'static str,
    /// Its place in the list.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) words: Vec<Word>,
}
