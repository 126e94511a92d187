//! What an admin should know about the offers of a node: one sentence each, with what to do.

use super::policy::LayoutKind;
use crate::id::CardUuid;
use crate::units::{Bytes, Cores};

/// Something that keeps the offers from being what the policy or the card says. Never fatal: what can be offered is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OfferProblem {
    /// A rule is of no use here.
    #[error(
        "rule {rule} ({selector}) matches no card of this node; expected at least one; correct or remove it"
    )]
    RuleMatchesNothing {
        /// Number in the file, from 1.
        rule: usize,
        /// As written.
        selector: String,
    },
    /// A rule never decides.
    #[error(
        "rule {rule} ({selector}) never decides: rule {by} comes first for every card that it matches; move it up"
    )]
    RuleShadowed {
        /// Number in the file, from 1.
        rule: usize,
        /// As written.
        selector: String,
        /// The first rule that takes its cards.
        by: usize,
    },
    /// Two cards say they are the same.
    #[error("two cards have the UUID {uuid}; the one with index {index} is not offered; check the driver")]
    DuplicateUuid {
        /// The UUID.
        uuid: CardUuid,
        /// Index of the card that is left out.
        index: u32,
    },
    /// The layout cannot be had; another is used.
    #[error("layout {asked} is not possible: {because}; {given} is used")]
    FellBack {
        /// What the policy says.
        asked: LayoutKind,
        /// Why not.
        because: &'static str,
        /// What is published.
        given: LayoutKind,
    },
    /// The card is held in another layout than it is to have.
    #[error(
        "layout {wanted} waits until the card is idle: claims hold it as {given}; until then it takes no new ones"
    )]
    LayoutWaits {
        /// What it will be published as.
        wanted: LayoutKind,
        /// What it is published as.
        given: LayoutKind,
    },
    /// A recipe cannot be laid out; the card is not offered.
    #[error("split: {piece}: {because}; the card is not offered until the policy is corrected")]
    ImpossibleSplit {
        /// The piece of the recipe.
        piece: String,
        /// What is wrong, and what would do.
        because: String,
    },
    /// A split was requested without its parts.
    #[error(
        "layout split names no partitions and the card carries none; the card is not offered; \
         add `partitions = [\"7x1g.10gb\"]` or another recipe to the rule"
    )]
    SplitWithoutRecipe,
    /// Slots need more than there is; the card is not offered.
    #[error(
        "slots take {memory} of memory and {cores}% of compute, but the card has {card_memory} and 100%; \
         the card is not offered; make them smaller or fewer"
    )]
    SlotsExceedCard {
        /// Sum of the slots.
        memory: Bytes,
        /// Sum of the slots, in percent.
        cores: u64,
        /// What there is.
        card_memory: Bytes,
    },
    /// Nothing holds the limits of slots; the card is not offered.
    #[error("slots: nothing can hold a limit on this card; the card is not offered; use layout whole")]
    SlotsNotEnforceable,
    /// No program reaches the card itself; it is not offered.
    #[error(
        "the card is in a mode in which it gives partitions alone; it is not offered; use layout dynamic, or split with \
         `partitions`"
    )]
    PartsOnly,
    /// The card does not work, and the server would drop the taint that says so.
    #[error("the card does not work and this server keeps no taints: it is not offered; {why}")]
    UnhealthyWithheld {
        /// As reported.
        why: String,
    },
    /// The card does not work; its devices are tainted.
    #[error("the card does not work: no new claims; {why}")]
    Unhealthy {
        /// As reported.
        why: String,
    },
    /// A part of the card does not work; what overlaps it is tainted, or left out where the server keeps no taints.
    #[error("{part} of the card does not work: no new claims for it, nor for what overlaps it; {why}")]
    PartUnhealthy {
        /// Which.
        part: String,
        /// As reported.
        why: String,
    },
    /// Parts exist that are not ours.
    #[error(
        "the card carries parts that this agent did not make ({count}); what overlaps them takes no claims"
    )]
    Occupied {
        /// How many.
        count: usize,
    },
    /// What is found on the card is not in its table.
    #[error("the card carries {part}, which its table does not know; nothing else on it takes claims")]
    UnknownPart {
        /// As found.
        part: String,
    },
    /// A scheduler that may allocate what overlaps.
    #[error(
        "Kubernetes {server} forgets counters between Pods and may allocate overlapping partitions, which this node \
         then refuses; use 1.36.2 or newer"
    )]
    ForgetfulScheduler {
        /// Version.
        server: String,
    },
    /// A text is too long to be published.
    #[error("attribute {attribute} has {length} bytes, but at most 64 are published; it was cut: {found}")]
    TextCut {
        /// Which attribute.
        attribute: String,
        /// Bytes found.
        length: usize,
        /// The text as found.
        found: String,
    },
    /// The driver version is not one.
    #[error("driver version `{found}` is not a version, expected such as 580.95.05; it is published as text")]
    NotAVersion {
        /// As found.
        found: String,
    },
    /// More attributes than a device may have.
    #[error("a device may have 32 attributes and capacities; left out: {names}")]
    AttributesLeftOut {
        /// Their names.
        names: String,
    },
    /// A name that attributes cannot have.
    #[error(
        "`{found}` cannot be the name of an attribute (a letter, then letters and digits, at most 32); left out"
    )]
    AttributeName {
        /// As found.
        found: String,
    },
    /// A device would be published twice under one name, or with too many counters.
    #[error("{part} is not offered: {because}")]
    PartLeftOut {
        /// The part.
        part: String,
        /// Why.
        because: &'static str,
    },
    /// Shares as the policy wants them are larger than the device.
    #[error("default of {default} is more than the {there} that {part} has; all of it is the default there")]
    DefaultTooLarge {
        /// The part.
        part: String,
        /// The policy's default.
        default: Bytes,
        /// What there is.
        there: Bytes,
    },
    /// Compute by default is more than the device has.
    #[error(
        "default of {default} compute is more than the {there} that {part} has; all of it is the default there"
    )]
    DefaultCoresTooLarge {
        /// The part.
        part: String,
        /// The policy's default.
        default: Cores,
        /// What there is.
        there: Cores,
    },
}

// === impl OfferProblem ===

impl OfferProblem {
    /// Whether the policy requests what the card cannot be: nothing but another policy will help.
    #[must_use]
    pub const fn is_impossible_policy(&self) -> bool {
        matches!(
            self,
            Self::ImpossibleSplit { .. }
                | Self::SplitWithoutRecipe
                | Self::SlotsExceedCard { .. }
                | Self::SlotsNotEnforceable
        )
    }
}
