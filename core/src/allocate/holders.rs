//! The claims that hold something, by UID and by device.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::numbers::{DeviceNo, NumberMap};
use crate::dra::{DeviceId, DeviceResult};
use crate::quantity::Quantity;

/// All holders, by UID and by device.
#[derive(Clone, Debug, Default)]
pub(super) struct HolderIndex {
    pub(super) claims: HashMap<String, ClaimHolder>,
    /// The claim of each holding of a device, as namespace/name.
    pub(super) by_device: NumberMap<DeviceNo, Vec<Arc<str>>>,
}

/// One claim that holds something.
#[derive(Clone, Debug)]
pub(super) struct ClaimHolder {
    /// namespace/name
    pub(super) claim: Arc<str>,
    pub(super) holdings: Vec<HeldResult>,
    pub(super) unknown: Vec<DeviceId>,
}

/// One result of an allocation, without those of administrative access.
#[derive(Clone, Debug)]
pub(super) struct HeldResult {
    pub(super) device: DeviceNo,
    pub(super) part: DeviceShare,
}

/// How much of a device.
#[derive(Clone, Debug)]
pub(super) enum DeviceShare {
    Whole,
    /// A share, with what its result records; empty: it records nothing.
    Share(BTreeMap<String, Quantity>),
}

// === impl HolderIndex ===

impl HolderIndex {
    /// Every holder with its UID, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, &ClaimHolder)> {
        self.claims.iter()
    }

    /// The claims that hold any of the devices, as namespace/name, each once and in order.
    pub(super) fn of(&self, devices: impl IntoIterator<Item = DeviceNo>) -> Vec<String> {
        let holders = devices.into_iter().filter_map(|device| self.by_device.get(&device)).flatten();
        let names: BTreeSet<&str> = holders.map(|claim| &**claim).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    pub(super) fn insert(&mut self, uid: String, holder: ClaimHolder) {
        for holding in &holder.holdings {
            self.by_device.entry(holding.device).or_default().push(Arc::clone(&holder.claim));
        }
        self.claims.insert(uid, holder);
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<ClaimHolder> {
        let holder = self.claims.remove(uid)?;
        for holding in &holder.holdings {
            let Some(names) = self.by_device.get_mut(&holding.device) else { continue };
            if let Some(at) = names.iter().position(|claim| Arc::ptr_eq(claim, &holder.claim)) {
                names.swap_remove(at);
            }
            if names.is_empty() {
                self.by_device.remove(&holding.device);
            }
        }
        Some(holder)
    }
}

// === impl DeviceShare ===

impl DeviceShare {
    pub(super) fn of(result: &DeviceResult) -> Self {
        match result.share_id {
            None => Self::Whole,
            Some(_) => Self::Share(result.consumed_capacity.clone()),
        }
    }

    /// What it takes of a capacity of a shareable device, in nano-units.
    pub(super) fn amount(&self, capacity: &str) -> i128 {
        match self {
            Self::Whole => 0,
            Self::Share(consumed) => consumed.get(capacity).map_or(0, |amount| amount.nanos()),
        }
    }
}
