//! A packing order of nodes: ranks, each written on its node as taints with effect `PreferNoSchedule`.
//!
//! The stock scheduler scores nodes by CPU and memory and does not see parts of cards. It prefers the node with the fewest taints
//! of this effect that a Pod does not tolerate. So a node of rank *k* gets *k* taints, `order.aliquot.dev/1` to
//! `order.aliquot.dev/k`, and Pods fill the nodes of a lower rank first. Any fixed order packs; one that follows free cards is
//! stale when it is read.

use std::collections::BTreeMap;

/// Start of the keys of all taints that make up ranks. No other taint is touched.
pub const KEY_PREFIX: &str = "order.aliquot.dev/";

/// The only effect that they have.
pub const EFFECT: &str = "PreferNoSchedule";

/// Number of ranks.
pub const RANKS: usize = 8;

/// Place of a node in the order, 1 to 8: Pods go to lower ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(u8);

/// One taint of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTaint<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its effect.
    pub effect: &'a str,
}

/// What the taints of a node say of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankFound {
    /// It has no taint of an order.
    None,
    /// It has exactly those of a rank.
    Whole(Rank),
    /// It has taints of an order that are those of no rank, as one was removed or has another effect; a rank with as many taints.
    Torn(Rank),
}

// === impl Rank ===

impl Rank {
    const ALL: [Self; RANKS] = [Self(1), Self(2), Self(3), Self(4), Self(5), Self(6), Self(7), Self(8)];

    /// Its number, 1 to 8: that of its taints.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The keys of its taints.
    pub fn keys(self) -> impl Iterator<Item = String> {
        (1..=self.0).map(|number| format!("{KEY_PREFIX}{number}"))
    }

    /// Of a node with so many taints of an order.
    fn nearest(taints: usize) -> Self {
        Self::ALL[taints.clamp(1, RANKS) - 1]
    }
}

impl RankFound {
    /// By the taints of a node.
    pub fn of<'a>(taints: impl IntoIterator<Item = NodeTaint<'a>>) -> Self {
        let found: Vec<NodeTaint<'a>> = taints.into_iter().filter(|taint| is_of_order(taint.key)).collect();
        if found.is_empty() {
            return Self::None;
        }
        let rank = Rank::nearest(found.len());
        let has = |key: String| found.iter().any(|taint| taint.key == key && taint.effect == EFFECT);
        let is_whole = found.len() == usize::from(rank.0) && rank.keys().all(has);
        if is_whole { Self::Whole(rank) } else { Self::Torn(rank) }
    }
}

/// Whether a taint with this key belongs to an order.
#[must_use]
pub fn is_of_order(key: &str) -> bool {
    key.starts_with(KEY_PREFIX)
}

/// The rank of each node, by name. A rank that was set stays. Nodes without one get, by name, the rank that the fewest nodes have, the
/// lowest of such ranks: up to eight nodes have one each, and more spread evenly.
pub fn ranks<'a>(nodes: impl IntoIterator<Item = (&'a str, RankFound)>) -> BTreeMap<&'a str, Rank> {
    let (mut ranks, mut unranked) = (BTreeMap::new(), Vec::new());
    for (name, found) in nodes {
        match found {
            RankFound::Whole(rank) | RankFound::Torn(rank) => {
                ranks.insert(name, rank);
            }
            RankFound::None => unranked.push(name),
        }
    }
    unranked.sort_unstable();
    for name in unranked {
        let count = |rank: &Rank| ranks.values().filter(|known| *known == rank).count();
        let rank = Rank::ALL.into_iter().min_by_key(count).unwrap_or(Rank(1));
        ranks.insert(name, rank);
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taints(keys: &[String]) -> Vec<NodeTaint<'_>> {
        keys.iter().map(|key| NodeTaint { key, effect: EFFECT }).collect()
    }

    #[test]
    fn rank_is_read_back_from_its_taints() {
        for rank in Rank::ALL {
            let keys: Vec<String> = rank.keys().collect();
            assert_eq!(keys.len(), usize::from(rank.number()));
            assert_eq!(RankFound::of(taints(&keys)), RankFound::Whole(rank));
        }
        let others = [NodeTaint { key: "node.kubernetes.io/not-ready", effect: "NoExecute" }];
        assert_eq!(RankFound::of(others), RankFound::None);
    }

    #[test]
    fn taints_of_no_rank_are_torn() {
        let keys = |keys: &[&str]| keys.iter().map(|key| format!("{KEY_PREFIX}{key}")).collect::<Vec<_>>();
        for (found, rank) in [
            (keys(&["2"]), 1),
            (keys(&["1", "3"]), 2),
            (keys(&["01"]), 1),
            (keys(&["1", "2", "x"]), 3),
            (keys(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]), 8),
        ] {
            assert_eq!(RankFound::of(taints(&found)), RankFound::Torn(Rank(rank)), "{found:?}");
        }
        let key = format!("{KEY_PREFIX}1");
        let hard = NodeTaint { key: &key, effect: "NoSchedule" };
        assert_eq!(RankFound::of([hard]), RankFound::Torn(Rank(1)));
    }

    #[test]
    fn eight_nodes_have_a_rank_each() {
        let names: Vec<String> = (0..8).map(|n| format!("n{n}")).collect();
        let ranks = ranks(names.iter().map(|name| (name.as_str(), RankFound::None)));
        let numbers: Vec<u8> = ranks.values().map(|rank| rank.number()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    proptest! {
        /// Nodes come and go: the rank of a node that stays never changes, and no two ranks of nodes that were ranked at once differ
        /// by more than one node.
        #[test]
        fn ranks_are_stable_and_even(first in 0_usize..40, second in 0_usize..40) {
            let names: Vec<String> = (0..first + second).map(|n| format!("n{:02}", n * 37 % 97)).collect();
            let (old, new) = names.split_at(first);
            let before = ranks(old.iter().map(|name| (name.as_str(), RankFound::None)));
            let found = |name: &String| before.get(name.as_str()).map_or(RankFound::None, |rank| RankFound::Whole(*rank));
            let after = ranks(old.iter().chain(new).map(|name| (name.as_str(), found(name))));
            prop_assert!(before.iter().all(|(name, rank)| after.get(name) == Some(rank)));
            let count = |rank: Rank| after.values().filter(|known| **known == rank).count();
            let counts = Rank::ALL.map(count);
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        }
    }
}
