//! User requests: claims, requests, constraints, configuration; and classes, which admins write.

use std::collections::BTreeMap;

use super::allocation::AllocationResult;
use super::opaque_config::OpaqueConfig;
use super::slice::Access;
use super::toleration::Toleration;
use crate::quantity::Quantity;

/// One `ResourceClaim`, with its allocation when it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceClaim {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; for claims that do not exist yet, one that the caller made up and keeps unique.
    pub uid: String,
    /// Requests in order.
    pub requests: Vec<DeviceRequest>,
    /// Constraints in order.
    pub constraints: Vec<DeviceConstraint>,
    /// Configuration in order.
    pub config: Vec<RequestConfig>,
    /// `status.allocation`.
    pub allocation: Option<AllocationResult>,
}

/// One request of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceRequest {
    /// Name, unique in the claim.
    pub name: String,
    /// Exactly one thing, or the first of several.
    pub kind: RequestKind,
}

/// `exactly` or `firstAvailable`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// This and nothing else.
    Exactly(ExactRequest),
    /// The first alternative that can be had.
    FirstAvailable(Vec<SubRequest>),
}

/// A named alternative of `firstAvailable`; its request never has admin access.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubRequest {
    /// Name, unique in the request; results and constraints say `request/name`.
    pub name: String,
    /// The request.
    pub request: ExactRequest,
}

/// A request: devices of a class that pass all selectors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExactRequest {
    /// `deviceClassName`
    pub device_class: String,
    /// CEL expressions, all of which must hold, after those of the class.
    pub selectors: Vec<String>,
    /// How many.
    pub mode: AllocationMode,
    /// Whether the access is administrative.
    pub access: Access,
    /// Taints it bears.
    pub tolerations: Vec<Toleration>,
    /// `capacity.requests`, names as written.
    pub capacity: BTreeMap<String, Quantity>,
}

/// How many devices a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocationMode {
    /// This many different devices, at least one.
    ExactCount(u32),
    /// Every device that matches.
    All,
}

/// A rule over the devices of several requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceConstraint {
    /// Requests (`req` or `req/sub`) it covers; empty means all.
    pub requests: Vec<String>,
    /// The rule.
    pub rule: ConstraintRule,
}

/// `matchAttribute` or `distinctAttribute`, each with a fully qualified attribute name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ConstraintRule {
    /// All covered devices carry this attribute with one value.
    Match(String),
    /// All covered devices carry this attribute with pairwise different values.
    Distinct(String),
}

/// Configuration of a claim for some of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestConfig {
    /// Requests (`req` or `req/sub`) it is for; empty means all.
    pub requests: Vec<String>,
    /// The configuration.
    pub opaque: OpaqueConfig,
}

/// One `DeviceClass`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClass {
    /// Name.
    pub name: String,
    /// CEL expressions, all of which must hold.
    pub selectors: Vec<String>,
    /// Configuration for every request of the class.
    pub config: Vec<OpaqueConfig>,
    /// `extendedResourceName`
    pub extended_resource_name: Option<String>,
    /// `extendedResourceCapacityRequests`: capacity that each device has to have for a Pod that asks by that name.
    pub extended_resource_capacity: BTreeMap<String, Quantity>,
    /// Labels and annotations that matter to people, by name.
    pub annotations: BTreeMap<String, String>,
}
