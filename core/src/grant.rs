//! A grant: what one container gets of one part: which part, how much of it, and how the limits are held.

use crate::card::Card;
use crate::dra::{DeviceId, ShareId, Sharing};
use crate::id::{CardUuid, ClaimUid, ShareName};
use crate::ledger::{Holding, Take};
use crate::partition::{Isolation, Part};
use crate::ports::PartitionAt;
use crate::units::{Bytes, Cores};

/// What one share of a claim got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which claim.
    pub claim: ClaimUid,
    /// Which of its shares.
    pub share: ShareName,
    /// Request it answers, `req` or `req/sub`.
    pub request: String,
    /// The device as published.
    pub device: DeviceId,
    /// The card.
    pub card: CardUuid,
    /// The part of the card.
    pub part: Part,
    /// Whether others may hold shares of the part beside it.
    pub sharing: Sharing,
    /// Memory that it may use, at most.
    pub memory: Bytes,
    /// Compute that it names, in percent of the whole card; [`Grant::compute`] is what it has.
    pub cores: Cores,
    /// How its limits are held.
    pub settings: ShareSettings,
}

/// How the limits of a share are held: the settings of kind `ShareConfig`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareSettings {
    /// What happens to compute that others leave idle.
    pub compute: ComputePolicy,
    /// Rank among best-effort shares.
    pub priority: Priority,
    /// What happens when limits cannot be held.
    pub fail_mode: FailMode,
}

/// What happens to compute that others leave idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputePolicy {
    /// Never more than requested.
    #[default]
    Cap,
    /// More while others are idle.
    Burst,
}

/// Rank among best-effort shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// After the others.
    Low,
    /// As the others.
    #[default]
    Normal,
    /// Before the others.
    High,
}

/// What happens when limits cannot be held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// Calls that would need the limit are refused.
    #[default]
    Closed,
    /// Calls go through, and the breach is reported.
    Open,
}

/// What a claim demands of its partitions: the settings of kind `PartitionConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionDemand {
    /// The weakest separation from neighbours that it bears.
    pub isolation_at_least: Isolation,
}

// === impl Grant ===

impl Grant {
    /// What it takes on the ledger.
    #[must_use]
    pub fn holding(&self) -> Holding {
        let share = Take::Share { memory: self.memory, cores: self.cores };
        let (take, share) = match (self.sharing, &self.part) {
            (Sharing::Shareable, _) => (share, Some(ShareId(self.share.to_string()))),
            (Sharing::Exclusive, Part::Slot { .. }) => (share, None),
            (Sharing::Exclusive, Part::Card | Part::Partition { .. }) => (Take::Exclusive, None),
        };
        Holding {
            claim: self.claim.clone(),
            request: self.request.clone(),
            share,
            card: self.card.clone(),
            part: self.part.clone(),
            take,
        }
    }

    /// Compute that it has, in percent of the whole card: all of its part where it names none and has no neighbour there, as
    /// [`crate::ledger::PartReport`] counts it.
    #[must_use]
    pub fn compute(&self, card: &Card) -> Cores {
        if self.cores != Cores::NONE || isolation(card, &self.part, self.memory) == Isolation::Cooperative {
            return self.cores;
        }
        let template = match &self.part {
            Part::Partition { template, .. } => card.table().and_then(|table| table.template(template)),
            Part::Card | Part::Slot { .. } => None,
        };
        template.map_or(Cores::ALL, |template| template.cores)
    }

    /// The partition that it is of, or in which its share lies.
    #[must_use]
    pub fn partition(&self) -> Option<PartitionAt> {
        PartitionAt::of(&self.card, &self.part)
    }
}

// === impl PartitionDemand ===

impl PartitionDemand {
    /// Whether a part that is kept apart like this will do.
    #[must_use]
    pub fn met_by(self, isolation: Isolation) -> bool {
        strength(isolation) >= strength(self.isolation_at_least)
    }
}

/// How a part of a card is kept apart from its neighbours. A whole card that is granted with less than all of its
/// memory has neighbours on it; nothing but the shim stands between them.
#[must_use]
pub fn isolation(card: &Card, part: &Part, memory: Bytes) -> Isolation {
    match part {
        Part::Card if memory >= card.memory => Isolation::Hardware,
        Part::Card | Part::Slot { .. } => Isolation::Cooperative,
        Part::Partition { template, .. } => {
            let template = card.table().and_then(|t| t.template(template));
            match template {
                Some(t) if memory >= t.memory => t.isolation,
                Some(_) | None => Isolation::Cooperative,
            }
        }
    }
}

const fn strength(isolation: Isolation) -> u8 {
    match isolation {
        Isolation::Cooperative => 0,
        Isolation::Timeslice => 1,
        Isolation::Hardware => 2,
    }
}

// === spellings, as in configuration and on disk ===

/// A closed set of words, each of which is a setting.
pub trait SettingWord: Copy + PartialEq + 'static {
    /// Every value with its word.
    const WORDS: &'static [(&'static str, Self)];

    /// The value of a word.
    #[must_use]
    fn of_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(w, _)| *w == word).map(|(_, value)| *value)
    }

    /// Its word.
    #[must_use]
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }

    /// All words, for messages: `a, b or c`.
    #[must_use]
    fn words() -> String {
        let words: Vec<&str> = Self::WORDS.iter().map(|(word, _)| *word).collect();
        match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        }
    }
}

impl SettingWord for ComputePolicy {
    const WORDS: &'static [(&'static str, Self)] = &[("cap", Self::Cap), ("burst", Self::Burst)];
}

impl SettingWord for Priority {
    const WORDS: &'static [(&'static str, Self)] =
        &[("low", Self::Low), ("normal", Self::Normal), ("high", Self::High)];
}

impl SettingWord for FailMode {
    const WORDS: &'static [(&'static str, Self)] = &[("closed", Self::Closed), ("open", Self::Open)];
}

impl SettingWord for Sharing {
    const WORDS: &'static [(&'static str, Self)] =
        &[("exclusive", Self::Exclusive), ("shareable", Self::Shareable)];
}

impl SettingWord for Isolation {
    const WORDS: &'static [(&'static str, Self)] =
        &[("hardware", Self::Hardware), ("timeslice", Self::Timeslice), ("cooperative", Self::Cooperative)];
}
