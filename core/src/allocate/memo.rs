//! What was learnt and stays true: on which nodes a set of claims does not fit.
//!
//! Holding more can never make refused claims fit (exceptions below), so a refusal holds until something that the node
//! sees is released. Releases are written to a log; each remembered set of claims reads the log from where it stopped.
//!
//! Nothing is remembered where "more held, less fits" does not hold: claims with mode `All` (a device that is used up
//! leaves "all"), amounts below zero, and counters that claims have overdrawn (a share of such a device is free of
//! counters from then on); the last is written to the log like a release.

use std::collections::HashMap;

use super::demand::ShapeNo;
use super::index::{Index, NumberMap, PoolNo};
use super::numbers::NodeIndex;
use crate::dra::NodeSelection;

/// Log entries kept before all memories start anew: bounds the log under endless churn.
const LOG_MAX: usize = 1 << 16;

/// Which node's searches a pool's devices concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Neighbourhood {
    One(NodeIndex),
    All,
    /// It is for nodes that do not exist.
    None,
}

/// By pool, and how often something was released, by node.
#[derive(Debug, Default)]
pub(super) struct Neighbourhoods {
    by_pool: Vec<Neighbourhood>,
    releases: Vec<u64>,
    releases_everywhere: u64,
}

/// Remembered refusals.
#[derive(Debug, Default)]
pub(super) struct Memo {
    groups: NumberMap<Vec<ShapeNo>, MemoEntry>,
    log: Vec<Neighbourhood>,
    era: u64,
    fresh: u64,
    /// Amounts below zero are published: nothing may be remembered.
    irregular: bool,
}

/// What is known of one list of shapes.
#[derive(Debug, Default)]
pub(super) struct MemoEntry {
    era: u64,
    read: usize,
    refused: Vec<u64>,
    /// Every node before this one has refused.
    first: usize,
}

// === impl Neighbourhood ===

impl Neighbourhood {
    /// The node, if it is one.
    pub(super) fn node(self) -> Option<NodeIndex> {
        match self {
            Self::One(node) => Some(node),
            Self::All | Self::None => None,
        }
    }
}

// === impl Neighbourhoods ===

impl Neighbourhoods {
    pub(super) fn new(index: &Index, nodes: &HashMap<String, NodeIndex>, count: usize) -> Self {
        let of_pool = |pool: &super::index::PoolFacts| {
            let mut found = Neighbourhood::None;
            for slice in &pool.slices {
                let slice = &index.slices[slice.at()];
                if slice.devices.is_empty() {
                    continue;
                }
                let NodeSelection::Name(name) = &slice.node else { return Neighbourhood::All };
                let Some(node) = nodes.get(name) else { continue };
                match found {
                    Neighbourhood::One(other) if other != *node => return Neighbourhood::All,
                    _ => found = Neighbourhood::One(*node),
                }
            }
            found
        };
        Self {
            by_pool: index.pools.iter().map(of_pool).collect(),
            releases: vec![0; count],
            releases_everywhere: 0,
        }
    }

    /// The nodes whose searches the pool's devices concern.
    pub(super) fn of(&self, pool: PoolNo) -> Neighbourhood {
        self.by_pool[pool.at()]
    }

    fn release(&mut self, pool: PoolNo) -> Neighbourhood {
        let found = self.of(pool);
        match found {
            Neighbourhood::One(node) => self.releases[node.0 as usize] += 1,
            Neighbourhood::All => self.releases_everywhere += 1,
            Neighbourhood::None => {}
        }
        found
    }
}

// === impl Memo ===

impl Memo {
    pub(super) fn new(index: &Index) -> Self {
        Self { irregular: index.has_negative_amounts(), ..Self::default() }
    }

    /// Something of this pool was released, or overdrawn.
    pub(super) fn released(&mut self, pool: PoolNo, neighbourhoods: &mut Neighbourhoods) {
        let concerned = neighbourhoods.release(pool);
        if concerned == Neighbourhood::None || self.groups.is_empty() {
            return;
        }
        if self.log.len() >= LOG_MAX {
            self.log.clear();
            self.era += 1;
        }
        self.log.push(concerned);
    }

    /// A number that changes whenever something that the node sees is released.
    pub(super) fn epoch(&mut self, node: NodeIndex, neighbourhoods: &Neighbourhoods) -> u64 {
        if self.irregular {
            return self.next_epoch();
        }
        // Both terms only grow, so any change shows in the sum. Odd: never equal to a number of `next_epoch`.
        2 * (neighbourhoods.releases[node.0 as usize] + neighbourhoods.releases_everywhere) + 1
    }

    /// A number that was never used before.
    pub(super) fn next_epoch(&mut self) -> u64 {
        self.fresh += 2;
        self.fresh
    }

    /// What is known of these shapes, brought up to date; `None`: nothing may be remembered.
    pub(super) fn group(&mut self, shapes: &[ShapeNo], nodes: usize) -> Option<&mut MemoEntry> {
        if self.irregular {
            return None;
        }
        if !self.groups.contains_key(shapes) {
            let group = MemoEntry { era: self.era, read: self.log.len(), ..MemoEntry::default() };
            self.groups.insert(shapes.to_vec(), group);
        }
        let group = self.groups.get_mut(shapes)?;
        group.refused.resize(nodes.div_ceil(64), 0);
        if group.era != self.era {
            group.era = self.era;
            group.forget();
        } else {
            for concerned in &self.log[group.read..] {
                match concerned {
                    Neighbourhood::One(node) => group.reopen(*node),
                    Neighbourhood::All => group.forget(),
                    Neighbourhood::None => {}
                }
            }
        }
        group.read = self.log.len();
        Some(group)
    }
}

// === impl MemoEntry ===

impl MemoEntry {
    /// Every node before this one has refused.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    pub(super) fn has_refused(&self, node: NodeIndex) -> bool {
        let node = node.0 as usize;
        self.refused[node / 64] >> (node % 64) & 1 == 1
    }

    pub(super) fn refuse(&mut self, node: NodeIndex) {
        let number = node.0 as usize;
        self.refused[number / 64] |= 1 << (number % 64);
        while self.refused.get(self.first / 64).is_some_and(|word| word >> (self.first % 64) & 1 == 1) {
            self.first += 1;
        }
    }

    fn reopen(&mut self, node: NodeIndex) {
        let number = node.0 as usize;
        self.refused[number / 64] &= !(1 << (number % 64));
        self.first = self.first.min(number);
    }

    fn forget(&mut self) {
        self.refused.fill(0);
        self.first = 0;
    }
}
