//! Devices into slices: pools of one shape, chunks that Kubernetes takes, names in the order of first fit.
//!
//! ```text
//!  pool node-1/aliquot-3-shared-024-nvidia-l4-24gb pool node-1/aliquot-5-dynamic-080-nvidia-h100-80gb-sxm
//!    …-0000  cards                                   …-0000  counter sets, eight cards each
//!    …-0001  …                                       …-0001  partitions of cards A and B
//!                                                    …-0002  partitions of cards C and D
//!                                                    …-0003  the cards themselves, last card first
//! ```
//!
//! Partitions are tried from the first card on, whole cards from the last: small parts gather at one end while a share
//! or a whole card is taken at the other.
//!
//! Invariants: at most 64 devices a slice, so that a taint never makes one too large; counter sets and devices never
//! share a slice; device names are unique in the pool.

use std::collections::BTreeSet;

use super::device::PartDevice;
use super::names::{PoolKey, pool_name, slice_name};
use super::offered::{DRIVER, OfferedPart, Offers};
use crate::dra::{CounterSet, Device, DeviceId, NodeSelection, Pool, ResourceSlice};
use crate::id::NodeName;

/// Devices of a slice with taints or counters.
const DEVICES_MAX: usize = 64;
/// Counter sets of a slice.
const COUNTER_SETS_MAX: usize = 8;

/// Where a device stands in its pool; ordered as tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Software parts of fixed size.
    Slot,
    /// Partitions.
    Partition,
    /// Cards that are shared.
    SharedCard,
    /// Cards for one holder.
    WholeCard,
}

/// One pool in the making: groups of devices that stay in one slice if they fit.
#[derive(Default)]
pub(super) struct PoolDraft {
    groups: Vec<(Rank, Vec<PartDevice>)>,
    sets: Vec<CounterSet>,
    names: BTreeSet<String>,
}

impl PoolDraft {
    /// Adds the devices of one card and rank. Returns those with a taken name, for a report.
    pub(super) fn add(&mut self, rank: Rank, group: Vec<PartDevice>) -> Vec<PartDevice> {
        let (fresh, taken): (Vec<PartDevice>, Vec<PartDevice>) =
            group.into_iter().partition(|built| self.names.insert(built.device.name.clone()));
        if !fresh.is_empty() {
            self.groups.push((rank, fresh));
        }
        taken
    }

    pub(super) fn add_set(&mut self, set: CounterSet) {
        self.sets.push(set);
    }

    /// The slices of the pool, and in the order of publication what its devices stand for.
    pub(super) fn finish(
        mut self,
        node: &NodeName,
        key: &PoolKey,
    ) -> (Vec<ResourceSlice>, Vec<(DeviceId, OfferedPart)>) {
        let pool = pool_name(node, key);
        self.groups.sort_by_key(|(rank, _)| *rank);
        if key.is_dynamic() {
            let cards = self.groups.partition_point(|(rank, _)| *rank < Rank::SharedCard);
            self.groups[cards..].reverse();
        }
        let mut contents: Vec<(Vec<Device>, Vec<CounterSet>)> =
            self.sets.chunks(COUNTER_SETS_MAX).map(|sets| (Vec::new(), sets.to_vec())).collect();
        let mut parts = Vec::new();
        for chunk in chunks(self.groups.into_iter().map(|(_, group)| group)) {
            let mut devices = Vec::new();
            for PartDevice { device, offered } in chunk {
                let id =
                    DeviceId { driver: DRIVER.to_owned(), pool: pool.clone(), device: device.name.clone() };
                parts.push((id, offered));
                devices.push(device);
            }
            contents.push((devices, Vec::new()));
        }
        if contents.is_empty() {
            // An empty slice says that the driver runs and has nothing.
            contents.push((Vec::new(), Vec::new()));
        }
        let slice_count = i64::try_from(contents.len()).unwrap_or(i64::MAX);
        let slices =
            contents.into_iter().enumerate().map(|(index, (devices, shared_counters))| ResourceSlice {
                name: slice_name(node, key, index),
                driver: DRIVER.to_owned(),
                pool: Pool { name: pool.clone(), generation: Offers::FIRST_GENERATION, slice_count },
                node: NodeSelection::Name(node.as_str().to_owned()),
                devices: devices.into(),
                shared_counters: shared_counters.into(),
            });
        (slices.collect(), parts)
    }
}

/// Groups into slices: a group begins a new slice where it does not fit into the current one, and is cut only where it
/// does not fit into any.
fn chunks(groups: impl Iterator<Item = Vec<PartDevice>>) -> Vec<Vec<PartDevice>> {
    let mut chunks: Vec<Vec<PartDevice>> = Vec::new();
    for group in groups {
        let mut rest = group.into_iter().peekable();
        while rest.peek().is_some() {
            let fits = |chunk: &Vec<PartDevice>| chunk.len() + rest.len() <= DEVICES_MAX;
            match chunks.last_mut().filter(|chunk| fits(chunk)) {
                Some(chunk) => chunk.extend(rest.by_ref()),
                None => chunks.push(rest.by_ref().take(DEVICES_MAX).collect()),
            }
        }
    }
    chunks
}
