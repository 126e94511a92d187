//! A requested part of a card, and what models have for it.

use crate::id::{ModelId, TemplateName};
use crate::units::{Bytes, Cores, Fraction};

/// A requested part of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Of which model, as written; `None`: of any.
    pub model: Option<String>,
    /// Of cards of which vendor; `None`: of any.
    pub vendor: Option<&'static str>,
    /// Which part.
    pub part: AskedPart,
    /// How many of it; 1 unless the text says otherwise.
    pub count: u32,
}

/// Which part of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedPart {
    /// A fraction; 1 is the whole card.
    Fraction(Fraction),
    /// That much memory.
    Memory(Bytes),
    /// A share of that much memory and compute.
    Share {
        /// Its memory.
        memory: Bytes,
        /// Its compute; 0 is best effort.
        cores: Cores,
    },
    /// A share of a part of a card's memory, as percentages of device plugins ask for.
    ShareOf {
        /// The part of its memory; 1 is all of it.
        memory: Fraction,
        /// Its compute; 0 is best effort.
        cores: Cores,
    },
    /// Memory of a device plugin's resource, which rounds up to the nominal size of a template.
    Nominal(Bytes),
    /// A template, a model, or both: only the models at hand can tell.
    Named(String),
}

/// What of a card answers an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FractionChoice {
    /// All of it.
    Whole,
    /// Any one of these templates, the nearest first.
    Templates(Vec<TemplateName>),
    /// A share of the card.
    Share {
        /// Its memory.
        memory: Bytes,
        /// Its compute; 0 is best effort.
        cores: Cores,
    },
}

/// What a model could give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOffers {
    /// The model.
    pub model: ModelId,
    /// Its parts by fraction, smallest first, with the templates.
    pub parts: Vec<(Fraction, Vec<TemplateName>)>,
    /// Memory that shares can be taken of, where the card can be shared.
    pub shares_of: Option<Bytes>,
}

// === impl Ask ===

impl Ask {
    /// One such part, of any card.
    #[must_use]
    pub const fn one(part: AskedPart) -> Self {
        Self { model: None, vendor: None, part, count: 1 }
    }
}
