//! What a node offers, and what each of its devices stands for.

use std::collections::BTreeMap;

use super::choose::LayoutReason;
use super::policy::LayoutKind;
use super::problem::OfferProblem;
use super::server::CounterStance;
use crate::dra::{DeviceId, ResourceSlice, Sharing};
use crate::id::CardUuid;
use crate::partition::{CounterVector, Part};
use crate::units::{Bytes, Cores};

/// Name of the driver, and the domain of its attributes.
pub const DRIVER: &str = "aliquot.dev";

/// Everything a node offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Slices as published, in their order; all of generation [`Offers::FIRST_GENERATION`], which the publisher raises.
    pub slices: Vec<ResourceSlice>,
    /// What each device stands for.
    pub parts: BTreeMap<DeviceId, OfferedPart>,
    /// What came of each card, by index.
    pub cards: Vec<CardOutcome>,
    /// What is wrong with the policy as a whole, and with the inventory.
    pub problems: Vec<OfferProblem>,
    /// What the devices of idle cards stand for in the other layout that `auto` has for them, and under the names that 0.1
    /// gave to pools: the scheduler may have allocated one just before.
    pub other_parts: BTreeMap<DeviceId, OfferedPart>,
    /// Whether the node counts among those with counters; `None`: it has no card for them.
    pub counter_stance: Option<CounterStance>,
}

/// What one device stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedPart {
    /// The card.
    pub card: CardUuid,
    /// Which part of it.
    pub part: Part,
    /// The layout of the card; never [`LayoutKind::Auto`].
    pub layout: LayoutKind,
    /// Whether several claims may hold shares of it.
    pub sharing: Sharing,
    /// Memory that all its holders have together.
    pub memory: Bytes,
    /// Compute that all its holders have together.
    pub cores: Cores,
    /// What it takes of the card, all counters; empty where the card has none.
    pub takes: CounterVector,
}

/// What came of one card, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardOutcome {
    /// The card.
    pub card: CardUuid,
    /// Its index.
    pub index: u32,
    /// What the policy says.
    pub asked: LayoutKind,
    /// Number of the rule that says so, from 1; `None`: the default.
    pub rule: Option<usize>,
    /// What it is published as; `None`: not at all.
    pub layout: Option<LayoutKind>,
    /// Why.
    pub reason: LayoutReason,
    /// Pool of its devices; the first where each profile has its own.
    pub pool: Option<String>,
    /// Number of its devices.
    pub devices: usize,
    /// What the admin should know.
    pub problems: Vec<OfferProblem>,
}

// === impl Offers ===

impl Offers {
    /// Generation of every pool as made here.
    pub const FIRST_GENERATION: i64 = 1;

    /// What came of one card.
    #[must_use]
    pub fn outcome(&self, card: &CardUuid) -> Option<&CardOutcome> {
        self.cards.iter().find(|outcome| outcome.card == *card)
    }
}
