//! All devices of one card.

use super::device::PartDevice;
use super::names::{PoolKey, PoolKind, PoolNaming, pool_name};
use super::offered::{DRIVER, OfferedPart};
use super::policy::LayoutKind;
use super::problem::OfferProblem;
use super::slices::Rank;
use crate::dra::{CounterSet, DeviceId};
use crate::id::{ModelId, NodeName};

/// All devices of one card.
pub(super) struct CardDevices {
    pub(super) layout: LayoutKind,
    pub(super) groups: Vec<DeviceGroup>,
    pub(super) set: Option<CounterSet>,
    pub(super) problems: Vec<OfferProblem>,
}

/// Devices of one card that stand together in a pool.
pub(super) struct DeviceGroup {
    pub(super) rank: Rank,
    pub(super) pool: PoolKey,
    pub(super) devices: Vec<PartDevice>,
}

/// What the pools of a card are named by.
#[derive(Clone, Copy)]
pub(super) struct CardPools<'a> {
    pub(super) naming: PoolNaming,
    pub(super) kind: PoolKind,
    pub(super) model: &'a ModelId,
}

// === impl CardDevices ===

impl CardDevices {
    /// Whether its devices draw on counters.
    pub(super) fn is_dynamic(&self) -> bool {
        self.set.is_some()
    }

    fn old_pool(&self) -> PoolKey {
        if self.is_dynamic() { PoolKey::old_dynamic() } else { PoolKey::old_plain() }
    }

    /// What each device stands for, by its name on this node.
    pub(super) fn parts(&self, node: &NodeName) -> impl Iterator<Item = (DeviceId, OfferedPart)> {
        self.groups.iter().flat_map(move |group| group.parts(pool_name(node, &group.pool)))
    }

    /// The same by the names that 0.1 gave them.
    pub(super) fn old_parts(&self, node: &NodeName) -> impl Iterator<Item = (DeviceId, OfferedPart)> {
        let pool = pool_name(node, &self.old_pool());
        self.groups.iter().flat_map(move |group| group.parts(pool.clone()))
    }
}

// === impl DeviceGroup ===

impl DeviceGroup {
    fn parts(&self, pool: String) -> impl Iterator<Item = (DeviceId, OfferedPart)> {
        self.devices.iter().map(move |built| {
            let (driver, pool) = (DRIVER.to_owned(), pool.clone());
            (DeviceId { driver, pool, device: built.device.name.clone() }, built.offered.clone())
        })
    }
}

// === impl CardPools ===

impl CardPools<'_> {
    /// Devices in groups, each of one pool and in the order given.
    pub(super) fn group(self, rank: Rank, devices: Vec<PartDevice>) -> Vec<DeviceGroup> {
        let mut groups: Vec<DeviceGroup> = Vec::new();
        for built in devices {
            let pool = PoolKey::of(self.naming, self.kind, self.model, &built.offered.part);
            match groups.iter_mut().find(|group| group.pool == pool) {
                Some(group) => group.devices.push(built),
                None => groups.push(DeviceGroup { rank, pool, devices: vec![built] }),
            }
        }
        groups
    }
}
