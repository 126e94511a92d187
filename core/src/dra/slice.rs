//! What a driver publishes: `ResourceSlice` and everything in it.

use std::collections::BTreeMap;

use super::device_attributes::DeviceAttributes;
use super::node::NodeSelector;
use super::shared::SharedValue;
use crate::quantity::Quantity;

/// One `ResourceSlice`: devices or counter sets of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceSlice {
    /// Object name; since Kubernetes 1.36 the slices of a pool are tried in this order.
    pub name: String,
    /// Driver that publishes it.
    pub driver: String,
    /// The pool it belongs to.
    pub pool: Pool,
    /// Where its devices can be used.
    pub node: NodeSelection,
    /// Devices in the order in which first fit tries them.
    pub devices: Devices,
    /// Counter sets of the pool; a slice carries these or devices, never both.
    pub shared_counters: SharedValue<Vec<CounterSet>>,
}

/// The devices of a slice.
pub type Devices = SharedValue<Vec<Device>>;

/// One device as published.
pub type Device = SharedValue<DeviceDescription>;

/// Which version of which pool a slice belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Pool name, unique for the driver.
    pub name: String,
    /// Only slices of the highest generation count.
    pub generation: i64,
    /// Number of slices of this generation; fewer seen means the pool is incomplete.
    pub slice_count: i64,
}

/// Where a slice's devices, or one device, can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSelection {
    /// On the node of this name alone.
    Name(String),
    /// On every node that the selector matches.
    Selector(NodeSelector),
    /// On every node.
    All,
    /// Each device says for itself (`perDeviceNodeSelection`); only on slices.
    PerDevice,
}

/// A named set of counters that devices of the pool draw on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSet {
    /// DNS label, unique in the pool.
    pub name: String,
    /// Totals by counter name.
    pub counters: BTreeMap<String, Quantity>,
}

/// What one device takes from one counter set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterConsumption {
    /// Name of a [`CounterSet`] of the same pool.
    pub counter_set: String,
    /// Amounts by counter name.
    pub counters: BTreeMap<String, Quantity>,
    /// `compatibilityGroups` (alpha in 1.37): devices that draw on the set together have one in common; those without
    /// groups go with each other alone.
    pub compatibility_groups: Vec<String>,
}

/// Whether several claims may hold a device at once (`allowMultipleAllocations`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of shares that fit the capacity.
    Shareable,
}

/// Whether a request or result is administrative: it sees a device without holding it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Access {
    /// Ordinary access: the device is held.
    #[default]
    Normal,
    /// Administrative access: nothing is held.
    Admin,
}

/// The fields of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDescription {
    /// DNS label, unique in the pool.
    pub name: String,
    /// Attributes by name as written: bare, or `domain/name`.
    pub attributes: DeviceAttributes,
    /// Capacities by name as written.
    pub capacity: SharedValue<BTreeMap<String, DeviceCapacity>>,
    /// What it takes from counter sets when it is allocated.
    pub consumes: SharedValue<Vec<CounterConsumption>>,
    /// Its own node selection; only where the slice says [`NodeSelection::PerDevice`].
    pub node: Option<NodeSelection>,
    /// Taints on it.
    pub taints: Vec<Taint>,
    /// Allocation pins the claim to the chosen node (`bindsToNode`).
    pub binds_to_node: bool,
    /// Conditions that must come true before binding.
    pub binding_conditions: Vec<String>,
    /// Conditions that abort binding.
    pub binding_failure_conditions: Vec<String>,
    /// Whether it can be shared.
    pub sharing: Sharing,
}

impl Device {
    /// An exclusive device with nothing but a name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        DeviceDescription::named(name).into()
    }
}

impl DeviceDescription {
    /// An exclusive device with nothing but a name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            attributes: DeviceAttributes::default(),
            capacity: SharedValue::default(),
            consumes: SharedValue::default(),
            node: None,
            taints: Vec::new(),
            binds_to_node: false,
            binding_conditions: Vec::new(),
            binding_failure_conditions: Vec::new(),
            sharing: Sharing::Exclusive,
        }
    }
}

/// A capacity and how requests against it are rounded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCapacity {
    /// The whole amount.
    pub value: Quantity,
    /// How much of it a request takes; `None`: as requested, or all of it without a request.
    pub policy: Option<CapacityPolicy>,
}

/// `requestPolicy` of a capacity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CapacityPolicy {
    /// What a request takes that does not name the capacity.
    pub default: Option<Quantity>,
    /// What amounts are allowed.
    pub restriction: CapacityRestriction,
}

/// What amounts a request may take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CapacityRestriction {
    /// Anything.
    None,
    /// `validRange`: rounded up to `min` + k·`step`, at most `max`.
    Range {
        /// Smallest amount; smaller requests are raised to it.
        min: Quantity,
        /// Largest amount, if bounded.
        max: Option<Quantity>,
        /// Grid, if any.
        step: Option<Quantity>,
    },
    /// `validValues`: rounded up to the next of these, ascending.
    Values(Vec<Quantity>),
}

/// A taint on a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Label name.
    pub key: String,
    /// Label value, may be empty.
    pub value: String,
    /// What it does.
    pub effect: TaintEffect,
}

/// Effect of a taint; unknown ones act like `None`, as Kubernetes says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TaintEffect {
    /// Informational.
    None,
    /// No new allocation.
    NoSchedule,
    /// No new allocation, and holders are evicted.
    NoExecute,
    /// An effect of a later API version, kept as written.
    Other(String),
}
