//! What the admin wants each card to be published as: rules in order, the first that matches a card decides.
//!
//! ```text
//!  rule 1: model nvidia-a100-*       ─▶ split 7x1g.5gb
//!  rule 2: uuid  GPU-8f4e…           ─▶ whole
//!  default                           ─▶ auto
//! ```
//!
//! These are values; [`super::text`] reads them from an admin's file.

use std::collections::BTreeSet;
use std::fmt;

use crate::card::{Card, NotedFault};
use crate::id::TemplateName;
use crate::partition::PlacementName;
use crate::units::{Bytes, Cores};

/// Rules in order and what holds where none matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutPolicy {
    /// Rules; the first that matches a card decides.
    pub rules: Vec<LayoutRule>,
    /// For cards that no rule matches.
    pub default: Layout,
    /// Faults that end the Pods on what is broken.
    pub evict: BTreeSet<NotedFault>,
}

/// One rule: which cards, and what they become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutRule {
    /// Cards it is for.
    pub selector: CardSelector,
    /// What they become.
    pub layout: Layout,
}

/// Which cards a rule is for: every part that is given must match; none given matches every card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardSelector {
    /// Vendor, with `*` and `?`.
    pub vendor: Option<Glob>,
    /// Model of the catalogue, with `*` and `?`.
    pub model: Option<Glob>,
    /// UUID, with `*` and `?`.
    pub uuid: Option<Glob>,
    /// Enumeration indexes; empty: any.
    pub indexes: Vec<u32>,
}

/// A text in which `*` stands for any run of characters and `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(pub String);

/// What a card is published as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Whatever serves best on this server; [`super::LayoutReason`] says what that was.
    Auto(ShareTerms),
    /// The card, for one holder at a time.
    Whole,
    /// The card, in shares.
    Shared(ShareTerms),
    /// One set of partitions that do not overlap.
    Split {
        /// Which ones; `None`: those that exist on the card already.
        recipe: Option<SplitRecipe>,
        /// How each is shared.
        terms: ShareTerms,
    },
    /// Software parts of fixed size, each for one holder at a time.
    Slots(Vec<Slot>),
    /// The card and every placement; the first claim decides.
    Dynamic(ShareTerms),
}

/// A layout without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayoutKind {
    /// Whatever serves best.
    Auto,
    /// The card, for one holder.
    Whole,
    /// The card, in shares.
    Shared,
    /// A fixed set of partitions.
    Split,
    /// Software parts of fixed size.
    Slots,
    /// The card and every placement.
    Dynamic,
}

/// The range of a share's request, and the amount without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareTerms {
    /// Memory of a share that names none; `None`: all of the device.
    pub memory_default: Option<Bytes>,
    /// Smallest share; smaller requests are raised to it.
    pub memory_min: Bytes,
    /// Largest share; `None`: all of the device.
    pub memory_max: Option<Bytes>,
    /// Compute of a share that names none.
    pub cores_default: Cores,
}

/// Which partitions a card is split into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRecipe {
    /// Pieces; those with a place of their own are laid first.
    pub pieces: Vec<SplitPiece>,
}

/// Some partitions of one template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitPiece {
    /// Template.
    pub template: TemplateName,
    /// Where.
    pub place: SplitPlace,
}

/// Where the partitions of a piece lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitPlace {
    /// So many of them, wherever they fit with the rest.
    Anywhere {
        /// How many, at least one.
        copies: u32,
    },
    /// One, at this placement.
    At(PlacementName),
}

/// A software part of fixed size, and how many of it a card has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Name: a DNS label, unique in the policy.
    pub name: String,
    /// Memory of one copy, a multiple of 1Mi.
    pub memory: Bytes,
    /// Compute of one copy.
    pub cores: Cores,
    /// Copies on one card, at least one.
    pub copies: u32,
}

// === impl LayoutPolicy ===

impl LayoutPolicy {
    /// The layout for a card and the number of the rule that gave it, from 0; `None`: the default.
    #[must_use]
    pub fn layout_of(&self, card: &Card) -> (&Layout, Option<usize>) {
        match self.rules.iter().position(|rule| rule.selector.matches(card)) {
            Some(number) => (&self.rules[number].layout, Some(number)),
            None => (&self.default, None),
        }
    }
}

// === impl CardSelector ===

impl CardSelector {
    /// Whether every part that is given matches the card.
    #[must_use]
    pub fn matches(&self, card: &Card) -> bool {
        let fits = |glob: &Option<Glob>, text: &str| glob.as_ref().is_none_or(|g| g.matches(text));
        fits(&self.vendor, card.vendor.as_str())
            && fits(&self.model, card.model.as_str())
            && fits(&self.uuid, card.uuid.as_str())
            && (self.indexes.is_empty() || self.indexes.contains(&card.index))
    }
}

impl fmt::Display for CardSelector {
    /// As in the policy file: `model nvidia-*, index 0 or 1`; `any card` when empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("vendor", &self.vendor), ("model", &self.model), ("uuid", &self.uuid)];
        let mut said: Vec<String> =
            parts.iter().filter_map(|(key, glob)| glob.as_ref().map(|g| format!("{key} {}", g.0))).collect();
        if !self.indexes.is_empty() {
            let indexes: Vec<String> = self.indexes.iter().map(u32::to_string).collect();
            said.push(format!("index {}", indexes.join(" or ")));
        }
        if said.is_empty() { f.write_str("any card") } else { f.write_str(&said.join(", ")) }
    }
}

// === impl Glob ===

impl Glob {
    /// Whether the whole text matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text): (Vec<char>, Vec<char>) = (self.0.chars().collect(), text.chars().collect());
        let (mut p, mut t) = (0, 0);
        // Where to go on when what follows the last `*` does not match: one more character goes to that `*`.
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            match pattern.get(p) {
                Some('*') => {
                    retry = Some((p, t));
                    p += 1;
                }
                Some(c) if *c == '?' || *c == text[t] => {
                    p += 1;
                    t += 1;
                }
                _ => match retry {
                    Some((star, taken)) => {
                        retry = Some((star, taken + 1));
                        p = star + 1;
                        t = taken + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|c| *c == '*')
    }
}

// === impl Layout ===

impl Default for Layout {
    fn default() -> Self {
        Self::Auto(ShareTerms::default())
    }
}

impl Layout {
    /// Which layout, without its parameters.
    #[must_use]
    pub const fn kind(&self) -> LayoutKind {
        match self {
            Self::Auto(_) => LayoutKind::Auto,
            Self::Whole => LayoutKind::Whole,
            Self::Shared(_) => LayoutKind::Shared,
            Self::Split { .. } => LayoutKind::Split,
            Self::Slots(_) => LayoutKind::Slots,
            Self::Dynamic(_) => LayoutKind::Dynamic,
        }
    }

    /// How what it publishes is shared; for layouts that share nothing, the terms that change nothing.
    #[must_use]
    pub fn terms(&self) -> ShareTerms {
        match self {
            Self::Auto(terms) | Self::Shared(terms) | Self::Split { terms, .. } | Self::Dynamic(terms) => {
                terms.clone()
            }
            Self::Whole | Self::Slots(_) => ShareTerms::default(),
        }
    }
}

// === impl LayoutKind ===

impl LayoutKind {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 6] =
        [Self::Auto, Self::Whole, Self::Shared, Self::Split, Self::Slots, Self::Dynamic];

    /// The spelling in the policy file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Whole => "whole",
            Self::Shared => "shared",
            Self::Split => "split",
            Self::Slots => "slots",
            Self::Dynamic => "dynamic",
        }
    }
}

impl fmt::Display for LayoutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

// === impl ShareTerms ===

impl Default for ShareTerms {
    /// All memory by default, at least 1Mi, best-effort compute.
    fn default() -> Self {
        Self { memory_default: None, memory_min: Bytes::MIB, memory_max: None, cores_default: Cores::NONE }
    }
}

// === impl SplitPiece ===

impl fmt::Display for SplitPiece {
    /// As in the policy file: `7x1g.10gb`, `3g.40gb@4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            SplitPlace::Anywhere { copies } => write!(f, "{copies}x{}", self.template),
            SplitPlace::At(placement) => write!(f, "{}@{placement}", self.template),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_texts() {
        for (pattern, text, matches) in [
            ("nvidia-h100-*", "nvidia-h100-80gb-sxm", true),
            ("*-sxm", "nvidia-h100-80gb-sxm", true),
            ("*h100*sxm", "nvidia-h100-80gb-sxm", true),
            ("nvidia-?100-*", "nvidia-a100-40gb", true),
            ("nvidia", "nvidia-h100", false),
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(Glob(pattern.to_owned()).matches(text), matches, "{pattern} on {text}");
        }
    }
}
