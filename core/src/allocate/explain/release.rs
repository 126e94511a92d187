//! Which claim's release would place others: the one that holds the least comes first.
//!
//! The order of all holders is worked out once and kept until something is held or released for good: the questions of
//! one command ask for it again and again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::change::{Change, ChangesTried};
use super::release_order::{ReleaseOrder, ReleasedClaim};
use super::remedy::Question;
use crate::allocate::holders::{ClaimHolder, DeviceShare, HeldResult};
use crate::allocate::index::ProfileNo;
use crate::allocate::memo::Neighbourhood;
use crate::allocate::numbers::NodeIndex;
use crate::allocate::world::World;

/// Claims that are released for a try: the first of each kind, then the second, and so on.
const RELEASES_MAX: usize = 4_000;

/// How much a claim holds, and of what: claims of one kind free as much.
type HoldingKind = Vec<(ProfileNo, u32, Vec<i128>)>;

// === impl World ===

impl World {
    pub(super) fn release_one(&mut self, question: &mut Question<'_>) -> Option<Change> {
        let concerned: HashSet<NodeIndex> = question.nodes.iter().copied().collect();
        let order = self.releases();
        if order.tried == ChangesTried::Some {
            question.tried = ChangesTried::Some;
        }
        for ReleasedClaim { uid, claim, holds } in &order.first {
            if self.work >= question.work_end {
                question.tried = ChangesTried::Some;
                return None;
            }
            let Some(holder) = self.take_out(uid) else { continue };
            let pools = holder.holdings.iter().map(|held| self.index.devices[held.device.at()].pool);
            let freed: BTreeSet<Neighbourhood> = pools.map(|pool| self.neighbourhoods.of(pool)).collect();
            let placed = if freed.contains(&Neighbourhood::All) {
                self.places(question, question.claims)
            } else {
                let nodes: Vec<NodeIndex> =
                    freed.iter().filter_map(|one| one.node()).filter(|n| concerned.contains(n)).collect();
                !nodes.is_empty() && self.places_on(question, question.claims, &nodes)
            };
            self.put_back(uid.clone(), holder);
            if placed {
                return Some(Change::ReleaseClaim { claim: claim.to_string(), holds: *holds });
            }
        }
        None
    }

    /// The claims that hold something. The one that holds the least comes first; of more than can be tried, the first of
    /// each kind come before the second of any.
    fn releases(&mut self) -> Arc<ReleaseOrder> {
        if let Some(known) = &self.release_order {
            return Arc::clone(known);
        }
        let mut order: Vec<(&String, &ClaimHolder)> =
            self.held.all().filter(|(_, holder)| !holder.holdings.is_empty()).collect();
        self.work += order.len() as u64;
        order.sort_by_cached_key(|(uid, holder)| {
            (holder.holdings.len(), self.weight(&holder.holdings), Arc::clone(&holder.claim), *uid)
        });
        let mut tried = ChangesTried::All;
        if order.len() > RELEASES_MAX {
            tried = ChangesTried::Some;
            let mut known: BTreeMap<HoldingKind, usize> = BTreeMap::new();
            // Sorting keeps the order of equal ranks.
            order.sort_by_cached_key(|(_, holder)| {
                let rank = known.entry(self.kind_of(&holder.holdings)).or_default();
                *rank += 1;
                *rank
            });
        }
        let released = order.into_iter().take(RELEASES_MAX).map(|(uid, holder)| ReleasedClaim {
            uid: uid.clone(),
            claim: Arc::clone(&holder.claim),
            holds: holder.holdings.len(),
        });
        let order = Arc::new(ReleaseOrder { first: released.collect(), tried });
        self.release_order = Some(Arc::clone(&order));
        order
    }

    fn kind_of(&self, holdings: &[HeldResult]) -> HoldingKind {
        let kind = |held: &HeldResult| {
            let entry = self.index.entries_of(held.device).last()?;
            let facts = &self.index.entries[entry.at()];
            let profile = &self.index.profiles[facts.profile.at()];
            let state = &self.state.devices[held.device.at()];
            let used = &self.state.used[facts.amounts()..facts.amounts() + profile.capacities.len()];
            let taken = profile.capacities.iter().map(|(name, _)| held.part.amount(name));
            let left = used.iter().zip(taken).map(|(used, taken)| used - taken).collect();
            Some((facts.profile, state.exclusive + state.shares, left))
        };
        holdings.iter().filter_map(kind).collect()
    }

    /// How much of its devices a claim holds, in millionths of a device.
    fn weight(&self, holdings: &[HeldResult]) -> i128 {
        let of = |holding: &HeldResult| match &holding.part {
            DeviceShare::Whole => 1_000_000,
            DeviceShare::Share(consumed) => {
                let entry = self.index.entries_of(holding.device).last();
                let profile = entry.map(|entry| self.index.entries[entry.at()].profile);
                let capacities = profile.map(|p| self.index.profiles[p.at()].capacities.as_slice());
                let parts = capacities.unwrap_or_default().iter().filter_map(|(name, capacity)| {
                    let held = consumed.get(name)?.nanos();
                    held.checked_mul(1_000_000)?.checked_div(capacity.value.nanos())
                });
                parts.max().unwrap_or(0)
            }
        };
        holdings.iter().map(of).sum()
    }
}
