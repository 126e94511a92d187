//! Requests, answers and known names in words.

use std::cmp::Reverse;
use std::fmt;

use super::ask::{Ask, AskedPart, FractionChoice, ModelOffers};
use crate::id::TemplateName;
use crate::quantity::{Quantity, QuantityError};
use crate::units::Cores;

/// Names that a message lists at most.
const NAMES_LISTED: usize = 12;
/// Most models that one message lists.
const MODELS_LISTED_MAX: usize = 6;

/// Names at hand, the alike ones alone where there are many.
pub(super) struct KnownNames<'a>(pub(super) &'a str, pub(super) &'a [String]);

// === impl KnownNames ===

impl fmt::Display for KnownNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text, names) = self;
        let amounts = std::iter::once(*text).chain(text.split_whitespace());
        let unclear =
            amounts.filter_map(|word| word.parse::<Quantity>().err()).find(|error| !error.meant.is_empty());
        if let Some(QuantityError { text, meant, .. }) = unclear {
            write!(f, "for an amount of memory write {} instead of `{text}`; ", meant.join(" or "))?;
        }
        if names.len() <= NAMES_LISTED {
            return write!(f, "expected one of {}", names.join(", "));
        }
        let plain = |name: &str| name.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "");
        let wanted = plain(text);
        let nearness = |name: &str| {
            let name = plain(name);
            (Reverse(in_common(&name, &wanted)), name.len().abs_diff(wanted.len()))
        };
        let mut near: Vec<&String> = names.iter().collect();
        near.sort_by_cached_key(|name| nearness(name));
        let listed: Vec<&str> = near.iter().take(NAMES_LISTED).map(|name| name.as_str()).collect();
        write!(
            f,
            "expected a part and a model such as `1/4 Ascend310P`, `25% H100`, `8Gi` or `1g.10gb`; of {} names the \
             nearest are {}",
            names.len(),
            listed.join(", ")
        )
    }
}

/// Suffixes of memory. `3080ti` is a name.
pub(super) fn is_of_memory(suffix: &str) -> bool {
    let binary =
        |s: &str| matches!(s.trim_end_matches(['b', 'B']).to_ascii_lowercase().as_str(), "ki" | "mi" | "gi");
    matches!(suffix, "Ti" | "TiB" | "k" | "M" | "G" | "T") || binary(suffix)
}

/// Length of the longest text that is in both.
fn in_common(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let run =
        |i: usize, j: usize| one.iter().skip(i).zip(other.iter().skip(j)).take_while(|(a, b)| a == b).count();
    let at = |i: usize| (0..other.len()).map(move |j| run(i, j)).max().unwrap_or(0);
    (0..one.len()).map(at).max().unwrap_or(0)
}

// === impl Ask ===

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            AskedPart::Fraction(fraction) => write!(f, "{fraction}")?,
            AskedPart::Memory(memory) | AskedPart::Nominal(memory) => write!(f, "{memory}")?,
            AskedPart::Share { memory, cores: Cores::NONE } => write!(f, "a share of {memory}")?,
            AskedPart::Share { memory, cores } => {
                write!(f, "a share of {memory} and {cores} of the compute")?;
            }
            AskedPart::ShareOf { memory, cores } => {
                write!(f, "a share of {memory} of the memory and {cores} of the compute")?;
            }
            AskedPart::Named(text) => write!(f, "{text}")?,
        }
        self.model.as_ref().map_or(Ok(()), |model| write!(f, " of {model}"))
    }
}

// === impl FractionChoice ===

impl fmt::Display for FractionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("the whole card"),
            Self::Templates(names) => {
                let names: Vec<&str> = names.iter().map(TemplateName::as_str).collect();
                f.write_str(&names.join(" or "))
            }
            Self::Share { memory, cores } if *cores == Cores::NONE => {
                write!(f, "a share of {memory} with best-effort compute")
            }
            Self::Share { memory, cores } => write!(f, "a share of {memory} and {cores} of the compute"),
        }
    }
}

// === impl ModelOffers ===

impl fmt::Display for ModelOffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.model)?;
        for (fraction, names) in &self.parts {
            let names: Vec<&str> = names.iter().map(TemplateName::as_str).collect();
            write!(f, "{fraction} ({}), ", names.join(", "))?;
        }
        match self.shares_of {
            None => f.write_str("the whole card"),
            Some(memory) => write!(f, "shares from 1% and 1Mi up to all {memory}"),
        }
    }
}

/// What several models have; a long list is cut.
pub(super) struct OfferList<'a>(pub(super) &'a [ModelOffers]);

impl fmt::Display for OfferList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, offers) in self.0.iter().take(MODELS_LISTED_MAX).enumerate() {
            let between = if i == 0 { "" } else { "; " };
            write!(f, "{between}{offers}")?;
        }
        match self.0.len().saturating_sub(MODELS_LISTED_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more models"),
        }
    }
}
