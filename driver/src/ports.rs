//! Contracts between the parts of the agent: plain data and traits, no gRPC and no Kubernetes types.

use std::future::Future;
use std::pin::Pin;
use std::time::{Instant, SystemTime};

use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{DeviceId, ResourceClaim, ResourceSlice};
use aliquot_core::id::ClaimUid;
use aliquot_core::offer::{CounterStance, ServerVersion};
use aliquot_core::orphans::Knowledge;

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A claim as the kubelet names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimReference {
    /// Namespace.
    pub namespace: String,
    /// Name; a later claim may have the same one.
    pub name: String,
    /// UID.
    pub uid: ClaimUid,
}

impl std::fmt::Display for ClaimReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

/// An error of one operation, in a form that crosses parts: text for people, and what the caller does about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AgentError {
    /// One line: object, what failed, found, expected, remedy.
    pub message: String,
    /// What the caller does about it.
    pub disposition: Disposition,
}

/// Reads claims from the API server.
pub trait ClaimReader: Send + Sync {
    /// The claim with this UID, allocated.
    ///
    /// # Errors
    /// `Retry` if the API server cannot be reached in time; `Refuse` if the claim is absent, has another UID or has no
    /// allocation.
    fn read<'a>(&'a self, claim: &'a ClaimReference) -> BoxFuture<'a, Result<ResourceClaim, AgentError>>;

    /// Whether the server has the claim with this UID, in any state.
    ///
    /// # Errors
    /// The server does not answer, or something else answers in its place.
    fn find<'a>(&'a self, claim: &'a ClaimReference) -> BoxFuture<'a, Result<Knowledge, AgentError>>;
}

/// What the agent wants published: every slice of every pool of this node.
///
/// It travels as `Option` in a watch channel: `None` until the agent has decided, and the publisher then writes and deletes
/// nothing. A node without devices has one slice without devices, which is a decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredSlices {
    /// All slices; the publisher sets generation and slice count.
    pub slices: Vec<ResourceSlice>,
    /// Whether the node is one of those with counters.
    pub counter_stance: Option<CounterStance>,
}

/// What the publisher observed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Publication {
    /// The server's version, the fields that it keeps and the nodes with counters; `None` before its first answers.
    pub server: Option<ServerVersion>,
    /// Whether the server's copy equals the desired slices.
    pub in_sync: bool,
    /// Since when it has not; `None`: it does, or nothing is desired yet.
    pub behind: Option<Instant>,
    /// How often the server's state was found to be older than before, as after a restore from a backup: what is known of the
    /// server is to be read again.
    pub restores: u64,
    /// Writes since the start, deletes included.
    pub writes: u64,
    /// The last failure, until a later success.
    pub error: Option<AgentError>,
}

/// One device of a claim, as its status is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Driver, pool and device.
    pub device: DeviceId,
    /// Share; absent on exclusive devices.
    pub share: Option<String>,
    /// Conditions, at most eight.
    pub conditions: Vec<Condition>,
    /// A JSON object of at most 10 KiB: card, partition, limits.
    pub data: serde_json::Value,
}

/// A condition in the API's sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `Ready`, `Enforced`.
    pub kind: &'static str,
    /// True, false or not known.
    pub status: Truth,
    /// CamelCase reason.
    pub reason: String,
    /// One line for people.
    pub message: String,
    /// Last change of the status.
    pub changed: SystemTime,
}

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It was not observed.
    Unknown,
}

/// Writes the status of claims.
pub trait StatusWriter: Send + Sync {
    /// Replaces this driver's entries of `status.devices`; entries of other drivers stay.
    ///
    /// # Errors
    /// `Retry` if the server cannot be reached or the claim changed meanwhile; `Refuse` if the server rejects it.
    fn write<'a>(
        &'a self,
        claim: &'a ClaimReference,
        devices: &'a [DeviceStatus],
    ) -> BoxFuture<'a, Result<(), AgentError>>;
}

/// Whether an admin wants the drivers of the agent's node free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaintenanceMark {
    /// The server has not said.
    #[default]
    Unknown,
    /// No.
    None,
    /// The node has the label and is not cordoned.
    LabelAlone,
    /// Yes: the node has the label and is cordoned.
    Wanted,
}

/// An Event to publish.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentEvent {
    /// The object that it is about.
    pub about: EventObject,
    /// Whether a person should act.
    pub severity: EventSeverity,
    /// CamelCase reason, one of a fixed set.
    pub reason: &'static str,
    /// One line for people; untrusted text in it is escaped.
    pub message: String,
}

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventObject {
    /// A claim.
    Claim(ClaimReference),
    /// The node that the agent runs on.
    Node,
}

/// Whether a person should act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSeverity {
    /// For information.
    Normal,
    /// A person should act.
    Warning,
}

/// Publishes Events. Never blocks: a full queue drops the Event and counts it.
pub trait EventSink: Send + Sync {
    /// Queues one Event; repeats are aggregated.
    fn publish(&self, event: AgentEvent);
}

/// Health of one device, as the kubelet's health service reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Pool and device.
    pub device: DeviceId,
    /// Healthy, unhealthy or not known.
    pub health: HealthWord,
    /// One line for people; at most 1,024 bytes reach the Pod's status.
    pub message: String,
    /// Time of the observation.
    pub observed: SystemTime,
}

/// Health in the kubelet's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthWord {
    /// Healthy.
    Healthy,
    /// Unhealthy.
    Unhealthy,
    /// Not known.
    Unknown,
}
