//! What a card may become: templates, their placements, and the counters that both draw on.
//!
//! ```text
//!   PartitionTable ── totals ──────────────┐            one card
//!     Template "1g.10gb" ── consumes ──┐   │
//!        Placement 0 ── consumes ──────┴──▶ CounterVector ≤ totals, summed over everything held
//!        Placement 1 …
//! ```
//!
//! A partition is one template at one placement. What it takes is the template's vector plus the placement's. The
//! whole card takes all totals. Nothing here knows a vendor: MIG memory slices and Ascend vGroups are both counters
//! that placements take.

mod arrange;

use std::collections::BTreeMap;
use std::fmt;

use crate::id::{CounterName, TemplateName};
use crate::units::{Bytes, Cores, Fraction};

pub use arrange::Arrangement;

/// Amounts by counter; an absent counter is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterVector(BTreeMap<CounterName, u64>);

/// How well tenants on parts of one card are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// By the hardware: MIG instances, vNPUs with their own vGroup.
    Hardware,
    /// By the vendor's time slicing.
    Timeslice,
    /// By the shim in the tenant's process.
    Cooperative,
}

/// How sure a fact is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Certainty {
    /// Read from a real card, or several independent sources agree on every cell.
    Measured,
    /// One real source for the list; details presumed from the family.
    Presumed,
    /// Names and arithmetic alone.
    Derived,
}

/// Everything a card model may be cut into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// What the card has; also what the whole card takes.
    pub totals: CounterVector,
    /// Templates in the order of their file.
    pub templates: Vec<Template>,
}

/// A named fixed slice of a card model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Vendor's spelling.
    pub name: TemplateName,
    /// Which part of the card it counts as.
    pub fraction: Fraction,
    /// How tenants are kept apart.
    pub isolation: Isolation,
    /// Memory that a tenant gets to use.
    pub memory: Bytes,
    /// Compute in percent of the whole card, rounded down.
    pub cores: Cores,
    /// Further capacities worth publishing, whole numbers, such as AI cores or multiprocessors.
    pub extra_capacity: BTreeMap<String, u64>,
    /// What every placement takes.
    pub consumes: CounterVector,
    /// Where it may lie; at least one.
    pub placements: Vec<Placement>,
    /// The vendor's number for it (MIG GPU-instance profile id), where there is one.
    pub vendor_profile: Option<u32>,
    /// Other spellings that older vendor software uses.
    pub aliases: Vec<TemplateName>,
    /// Whether the shim can hold shares inside it.
    pub shareable: ShareSupport,
}

impl Template {
    /// How many percent of a card's compute lie between what it has and what its fraction would be.
    #[must_use]
    pub fn compute_distance(&self) -> u64 {
        let fraction = 100 * u64::from(self.fraction.numerator()) / u64::from(self.fraction.denominator());
        u64::from(self.cores.percent()).abs_diff(fraction)
    }
}

/// One place where a template may lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Name, unique in the template, a DNS label: `0`, `vg2`, `vg2a`.
    pub name: PlacementName,
    /// What it takes beyond the template's own vector.
    pub consumes: CounterVector,
}

/// Name of a placement: a DNS label, unique in its template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacementName(pub String);

/// Whether shares of it can be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShareSupport {
    /// The shim or the driver can hold memory and compute limits.
    Enforceable,
    /// Nothing can hold a limit there.
    No,
}

/// A part of one card that can be held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The card itself.
    Card,
    /// A template at a placement.
    Partition {
        /// Which template.
        template: TemplateName,
        /// Where.
        placement: PlacementName,
    },
    /// An admin-defined slot, by name and copy.
    Slot {
        /// Name of the slot in the policy file.
        name: String,
        /// Copy, from 0.
        copy: u32,
    },
}

// === impl CounterVector ===

impl CounterVector {
    /// A vector from its entries; zeros are dropped.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = (CounterName, u64)>) -> Self {
        Self(entries.into_iter().filter(|(_, amount)| *amount > 0).collect())
    }

    /// Amount of one counter.
    #[must_use]
    pub fn get(&self, counter: &CounterName) -> u64 {
        self.0.get(counter).copied().unwrap_or(0)
    }

    /// Entries by name, none zero.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&CounterName, u64)> {
        self.0.iter().map(|(name, amount)| (name, *amount))
    }

    /// Whether every amount is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sum; `None` on overflow.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        for (name, amount) in &other.0 {
            let entry = sum.0.entry(name.clone()).or_insert(0);
            *entry = entry.checked_add(*amount)?;
        }
        Some(sum)
    }

    /// The difference; `None` where it would be negative.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Option<Self> {
        let mut rest = self.clone();
        for (name, amount) in &other.0 {
            match rest.get(name).checked_sub(*amount)? {
                0 => rest.0.remove(name),
                left => rest.0.insert(name.clone(), left),
            };
        }
        Some(rest)
    }

    /// The first counter (by name) that does not fit into `room`, with the request and what is left.
    #[must_use]
    pub fn first_excess(&self, room: &Self) -> Option<(&CounterName, u64, u64)> {
        self.0.iter().find_map(|(name, asked)| {
            let there = room.get(name);
            (*asked > there).then_some((name, *asked, there))
        })
    }

    /// The vector without the counters that `keep` refuses.
    #[must_use]
    pub fn restricted(&self, keep: impl Fn(&CounterName) -> bool) -> Self {
        Self(self.0.iter().filter(|(name, _)| keep(name)).map(|(n, a)| (n.clone(), *a)).collect())
    }
}

// === impl Isolation ===

impl Isolation {
    /// The published spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Timeslice => "timeslice",
            Self::Cooperative => "cooperative",
        }
    }
}

// === impl PartitionTable ===

impl PartitionTable {
    /// The template of this name or alias.
    #[must_use]
    pub fn template(&self, name: &TemplateName) -> Option<&Template> {
        self.templates.iter().find(|t| t.name == *name || t.aliases.contains(name))
    }

    /// What a partition takes; `None` if the template or placement does not exist, or the sum overflows.
    #[must_use]
    pub fn consumption(&self, template: &TemplateName, placement: &PlacementName) -> Option<CounterVector> {
        let template = self.template(template)?;
        let placement = template.placements.iter().find(|p| p.name == *placement)?;
        template.consumes.plus(&placement.consumes)
    }

    /// Every template at every placement, in table order.
    pub fn partitions(&self) -> impl Iterator<Item = (&Template, &Placement)> {
        self.templates.iter().flat_map(|t| t.placements.iter().map(move |p| (t, p)))
    }
}

// === impl PlacementName ===

impl fmt::Display for PlacementName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

// === impl Part ===

impl fmt::Display for Part {
    /// For people: `card`, `1g.10gb at 3`, `slot small #2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Card => f.pad("card"),
            Self::Partition { template, placement } => f.pad(&format!("{template} at {placement}")),
            Self::Slot { name, copy } => f.pad(&format!("slot {name} #{copy}")),
        }
    }
}

#[cfg(test)]
mod tests;
