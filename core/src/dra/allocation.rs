//! What the allocator answers: which device for which request, how much of it, with which configuration.

use std::collections::BTreeMap;
use std::fmt;

use super::node::NodeSelector;
use super::opaque_config::OpaqueConfig;
use super::slice::Access;
use super::toleration::Toleration;
use crate::quantity::Quantity;

/// The triple that names a device in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// Driver.
    pub driver: String,
    /// Pool.
    pub pool: String,
    /// Device.
    pub device: String,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// Name of one share of a device: a lower-case UUID in Kubernetes; core makes deterministic ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(pub String);

/// `status.allocation` of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationResult {
    /// One entry a device, in request order.
    pub devices: Vec<DeviceResult>,
    /// Class configuration first, then claim configuration.
    pub config: Vec<AllocatedConfig>,
    /// Where the claim can be used; `None`: everywhere.
    pub node_selector: Option<NodeSelector>,
}

/// One allocated device or share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceResult {
    /// `req` or `req/sub`.
    pub request: String,
    /// The device.
    pub device: DeviceId,
    /// Whether nothing is held.
    pub access: Access,
    /// Tolerations of the request.
    pub tolerations: Vec<Toleration>,
    /// Copied from the device.
    pub binding_conditions: Vec<String>,
    /// Copied from the device.
    pub binding_failure_conditions: Vec<String>,
    /// Present on shares alone.
    pub share_id: Option<ShareId>,
    /// Every capacity of a shared device, keys as in the slice; empty otherwise.
    pub consumed_capacity: BTreeMap<String, Quantity>,
}

/// Configuration as it applies to an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedConfig {
    /// The object it comes from.
    pub source: ConfigSource,
    /// Requests it is for; empty means all.
    pub requests: Vec<String>,
    /// The configuration.
    pub opaque: OpaqueConfig,
}

/// The object that a configuration comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// The class.
    Class,
    /// The claim.
    Claim,
}
