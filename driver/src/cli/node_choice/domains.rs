//! Pods by domain: the nodes with one value of a label.

use std::collections::HashMap;

use aliquot_core::dra::Node;

use crate::manifest::Pod;

use super::occupancy::Occupancy;

/// How many Pods each domain has.
pub(super) struct DomainCounts<'c> {
    by_value: HashMap<&'c str, u32>,
    occupancy: &'c Occupancy,
}

/// Domains that Pods keep others off: the first of these Pods, and their number.
pub(super) type ClosedDomains<'c> = HashMap<&'c str, (&'c Pod, usize)>;

/// The domain of a node: its value of a label.
pub(super) fn domain<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.labels.get(key).map(String::as_str)
}

// === impl DomainCounts ===

impl<'c> DomainCounts<'c> {
    /// No domain; reads are counted with those of the occupancy.
    pub(super) fn new(occupancy: &'c Occupancy) -> Self {
        Self { by_value: HashMap::new(), occupancy }
    }

    /// A domain has so many Pods more.
    pub(super) fn add(&mut self, domain: &'c str, count: u32) {
        self.occupancy.read(1);
        let known = self.by_value.entry(domain).or_default();
        *known = known.saturating_add(count);
    }

    /// The Pods of a domain.
    pub(super) fn of(&self, domain: &str) -> u32 {
        self.occupancy.read(1);
        self.by_value.get(domain).copied().unwrap_or(0)
    }

    /// The number of domains.
    pub(super) fn len(&self) -> usize {
        self.by_value.len()
    }

    /// The Pods of the domain with the fewest; reads every domain.
    pub(super) fn emptiest(&self) -> u32 {
        self.occupancy.read(self.by_value.len());
        self.by_value.values().copied().min().unwrap_or(0)
    }
}
