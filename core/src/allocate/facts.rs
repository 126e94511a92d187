//! What the index knows of slices, pools, devices and counters.

use std::ops::Range;

use super::numbers::{CounterNo, DeviceNo, EntryNo, PoolNo, ProfileNo, SliceNo, SlotNo, VersionNo};
use super::problem::PoolFault;
use crate::dra::{DeviceCapacity, Sharing};
use crate::quantity::Quantity;

/// What is known of a slice beside its text.
#[derive(Debug)]
pub(super) struct SliceFacts {
    pub(super) version: VersionNo,
    pub(super) entries: Range<u32>,
    /// First reference to a counter that the pool version does not have.
    pub(super) dangling: Option<PoolFault>,
}

/// One pool.
#[derive(Debug)]
pub(super) struct PoolFacts {
    pub(super) driver: String,
    pub(super) name: String,
    /// All its slices of all generations, as given.
    pub(super) slices: Vec<SliceNo>,
    /// In the order of their names.
    pub(super) devices: Vec<DeviceNo>,
}

/// One generation of a pool.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) pool: PoolNo,
    pub(super) slots: Range<u32>,
    pub(super) duplicate_set: Option<PoolFault>,
}

/// One device identity.
#[derive(Debug)]
pub(super) struct DeviceFacts {
    pub(super) pool: PoolNo,
    /// Its first description.
    pub(super) first: EntryNo,
}

/// One description of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceEntry {
    pub(super) device: DeviceNo,
    pub(super) slice: SliceNo,
    pub(super) position: u32,
    pub(super) version: VersionNo,
    pub(super) profile: ProfileNo,
    /// Where its used amounts start, one for each capacity of the profile.
    pub(super) first_amount: u32,
    pub(super) draws: Range<u32>,
    /// It names counter sets, if only with empty lists: then every counter of the pool is looked at.
    pub(super) counted: CounterUse,
    pub(super) sharing: Sharing,
}

/// Whether a device draws on counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterUse {
    Yes,
    No,
}

/// A distinct capacity map, in key order.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) capacities: Vec<(String, DeviceCapacity)>,
    /// Whole amounts in nano-units.
    pub(super) whole: Vec<i128>,
}

/// One counter of one pool version.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterSlot {
    pub(super) version: VersionNo,
    pub(super) counter: CounterNo,
}

/// A distinct counter: equal cards of different nodes have equal ones.
#[derive(Debug)]
pub(super) struct CounterFacts {
    pub(super) set: String,
    pub(super) counter: String,
    pub(super) total: Quantity,
}

/// What an entry takes from one counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub(super) slot: SlotNo,
    pub(super) nanos: i128,
}

/// A draw that equal devices of different nodes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RelativeDraw {
    /// From the first slot of the pool version.
    pub(super) offset: u32,
    pub(super) nanos: i128,
}

// === impl DeviceEntry ===

impl DeviceEntry {
    /// Where its used amounts start.
    pub(super) const fn amounts(&self) -> usize {
        self.first_amount as usize
    }
}
