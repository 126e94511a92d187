//! The Kubernetes device API (`resource.k8s.io/v1`) as plain values: what the allocator reads and writes.
//!
//! These mirror the API's fields one for one, without its optional-pointer habits: a field that the API defaults is
//! already defaulted, a choice of which exactly one must be set is an enum. They are made at the edge (manifests,
//! cluster dumps) or by [`crate::offer`], never parsed here, and no serialization lives in this crate.
//!
//! - [`mod@slice`]: what drivers publish: slices, devices, counters, capacity and its policies, taints;
//! - [`claim`]: what users ask for: claims, requests, constraints, configuration, classes;
//! - [`toleration`], [`opaque_config`]: what claims and results have in common;
//! - [`allocation`]: what the allocator answers: results, shares, consumed capacity;
//! - [`node`]: where it may be: nodes and node selectors;
//! - [`shared`], [`device_attributes`]: what equal nodes have in common is one value in memory.

pub mod allocation;
pub mod claim;
pub mod device_attributes;
pub mod node;
pub mod opaque_config;
pub mod shared;
pub mod slice;
pub mod toleration;

pub use allocation::{AllocatedConfig, AllocationResult, ConfigSource, DeviceId, DeviceResult, ShareId};
pub use claim::{
    AllocationMode, ConstraintRule, DeviceClass, DeviceConstraint, DeviceRequest, ExactRequest,
    RequestConfig, RequestKind, ResourceClaim, SubRequest,
};
pub use device_attributes::{AttributeValue, DeviceAttributes};
pub use node::{Node, NodeRequirement, NodeSelector, NodeSelectorTerm, SelectorOperator};
pub use opaque_config::OpaqueConfig;
pub use shared::SharedValue;
pub use slice::{
    Access, CapacityPolicy, CapacityRestriction, CounterConsumption, CounterSet, Device, DeviceCapacity,
    DeviceDescription, Devices, NodeSelection, Pool, ResourceSlice, Sharing, Taint, TaintEffect,
};
pub use toleration::{Toleration, TolerationOperator};
