//! All devices of one card.

use super::device::PartDevice;
use super::names::{PoolKind, pool_name};
use super::offered::{DRIVER, OfferedPart};
use super::policy::LayoutKind;
use super::problem::OfferProblem;
use super::slices::Rank;
use crate::dra::{CounterSet, DeviceId};
use crate::id::NodeName;

/// All devices of one card.
pub(super) struct CardDevices {
    pub(super) layout: LayoutKind,
    pub(super) pool: PoolKind,
    pub(super) groups: Vec<(Rank, Vec<PartDevice>)>,
    pub(super) set: Option<CounterSet>,
    pub(super) problems: Vec<OfferProblem>,
}

// === impl CardDevices ===

impl CardDevices {
    /// What each device stands for, by its name on this node.
    pub(super) fn parts(&self, node: &NodeName) -> impl Iterator<Item = (DeviceId, OfferedPart)> {
        let pool = pool_name(node, self.pool);
        let id = move |built: &PartDevice| {
            let (driver, pool) = (DRIVER.to_owned(), pool.clone());
            (DeviceId { driver, pool, device: built.device.name.clone() }, built.offered.clone())
        };
        self.groups.iter().flat_map(|(_, group)| group).map(id)
    }
}
