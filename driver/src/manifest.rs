//! Manifests as written for `kubectl`, and dumps that `kubectl` wrote: YAML or JSON ⇄ plain values.
//!
//! ```text
//!   text ──tree──▶ nodes with lines ──documents──▶ one object at a time ──claim│class│slice│pod│node──▶ Manifests
//!                                                                       ╲
//!                                                                        ▶ Problems: file, line, object, field
//!   Manifests ──render──▶ API form ──▶ JSON │ YAML
//! ```
//!
//! This module alone knows the API's spelling. Reading never stops at the first fault: valid objects are read, every fault is
//! reported with its place, and the caller decides whether to go on. A user's manifest is read by the API server's rules (unknown
//! fields, names, limits, defaults). A server's output (a `List`, or an object with a `resourceVersion`) was already accepted, so
//! the same faults are warnings there.
//!
//! Invariants: reading is deterministic and never panics on any bytes; its memory is linear in the text plus a fixed allowance for
//! aliases and replicas; `read(render(x)) == x` for every object that was read.

mod allocation;
mod claim;
mod class;
mod documents;
mod field;
mod json;
mod meta;
mod name;
mod node;
mod placement;
mod pod;
mod problem;
mod render;
mod slice;
mod taint;
mod toleration;
mod tree;
mod values;
mod workload;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use aliquot_core::dra::{
    AllocationResult, DeviceClass, DeviceConstraint, DeviceId, DeviceRequest, Node, NodeSelector,
    RequestConfig, ResourceClaim, ResourceSlice, Taint, Toleration,
};
use aliquot_core::quantity::Quantity;

use tree::Piece;

pub(crate) use field::nearest;
pub(crate) use meta::version_of;
pub use placement::{
    HostPort, LabelSelector, NodeInclusion, PlacementRules, PodPhase, PodTerm, SpreadRule, Unscheduled,
};
pub use problem::{ManifestProblem, ProblemSeverity};
pub use render::{Object, allocation_json, yaml_document};
pub(crate) use taint::CORDONED;
pub use values::{DocumentError, values};

/// Everything that was read, each kind in the order of the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifests {
    /// Claims, with their allocation where they have one.
    pub claims: Vec<ResourceClaim>,
    /// Templates of claims.
    pub templates: Vec<ClaimTemplate>,
    /// Classes.
    pub classes: Vec<DeviceClass>,
    /// Slices.
    pub slices: Vec<ResourceSlice>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Taints of nodes that keep Pods off, or make the scheduler prefer other nodes, by node; a cordoned node has one.
    pub node_taints: BTreeMap<String, Vec<Taint>>,
    /// What Pods may request of a node altogether, by node and resource (`status.allocatable`).
    pub node_allocatable: BTreeMap<String, BTreeMap<String, Quantity>>,
    /// Labels of the namespaces that were read, by name.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Taints that an admin puts on devices.
    pub taint_rules: Vec<TaintRule>,
    /// Pods, and those that Deployments, `StatefulSet`s, `ReplicaSet`s, `ReplicationController`s, Jobs and one run of a
    /// `CronJob` would make.
    pub pods: Vec<Pod>,
    /// What `DaemonSet`s would make on each node that their Pods may use.
    pub daemons: Vec<Pod>,
    /// The newest version among the kubelets of the nodes, as `v1.37.2`; the API server is not older.
    pub kubelet: Option<String>,
    /// Resources that device plugins serve on some node.
    pub plugin_resources: BTreeSet<String>,
    /// Objects of other kinds, counted by kind.
    pub ignored: BTreeMap<String, usize>,
    /// What was not read for want of a right, in words: what it would decide stays open.
    pub hidden: Vec<String>,
    /// Files that were read, as the command line names them.
    pub files: Vec<String>,
}

/// The part of a claim that a user writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimSpec {
    /// Requests in order.
    pub requests: Vec<DeviceRequest>,
    /// Constraints in order.
    pub constraints: Vec<DeviceConstraint>,
    /// Configuration in order.
    pub config: Vec<RequestConfig>,
}

/// One `ResourceClaimTemplate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimTemplate {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// What its claims ask for.
    pub spec: ClaimSpec,
}

/// One `DeviceTaintRule`: a taint for all devices that match, `None` being any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintRule {
    /// Name.
    pub name: String,
    /// Driver of the device.
    pub driver: Option<String>,
    /// Its pool.
    pub pool: Option<String>,
    /// Its name.
    pub device: Option<String>,
    /// The taint.
    pub taint: Taint,
}

/// The fields of a Pod that placement uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Node it is bound to.
    pub node_name: Option<String>,
    /// Node that its `DaemonSet` makes it for; the scheduler places it there.
    pub daemon_node: Option<String>,
    /// Labels that its node must have (`nodeSelector`).
    pub node_labels: BTreeMap<String, String>,
    /// Required node affinity.
    pub affinity: Option<NodeSelector>,
    /// Taints of nodes that it bears.
    pub tolerations: Vec<Toleration>,
    /// `spec.resourceClaims`.
    pub claims: Vec<PodClaim>,
    /// Init containers, then containers.
    pub containers: Vec<Container>,
    /// Claims made for it already, by name in the Pod (`status.resourceClaimStatuses`).
    pub claim_names: BTreeMap<String, String>,
    /// The claim made for its extended resources (`status.extendedResourceClaimStatus`).
    pub extended_claim: Option<String>,
    /// What it requests of its node, by resource.
    pub requests: BTreeMap<String, Quantity>,
    /// What else its placement depends on; most Pods have none.
    pub rules: Option<Box<PlacementRules>>,
    /// How far it is, by its status.
    pub phase: PodPhase,
    /// Why the scheduler has not placed it, by its own condition.
    pub unscheduled: Option<Box<Unscheduled>>,
    /// Whether it has ended or is being deleted, and so asks for nothing.
    pub finished: bool,
    /// Annotations that ask another system for a part of a card, with their values.
    pub part_annotations: BTreeMap<String, String>,
}

/// One of `spec.resourceClaims`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    /// Name in the Pod.
    pub name: String,
    /// Where the claim comes from.
    pub source: PodClaimSource,
}

/// Where a Pod's claim comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodClaimSource {
    /// A claim of this name in the Pod's namespace.
    Claim(String),
    /// Made for the Pod from the template of this name.
    Template(String),
}

/// The fields of a container that placement uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Claims it uses, by name in the Pod, each with one request or all.
    pub claims: Vec<(String, Option<String>)>,
    /// Limits on extended resources, whole and above zero.
    pub limits: BTreeMap<String, Quantity>,
}

/// Reads any number of texts into one set of manifests.
pub struct Reader {
    cx: field::Context,
    manifests: Manifests,
    seen: HashMap<String, String>,
    /// How many names were made of each `generateName`.
    generated: HashMap<String, usize>,
    objects: usize,
}

/// Text of one file that is read at most; a dump of 5,000 nodes is a tenth of it.
pub const TEXT_BYTES_MAX: usize = 1 << 30;

// === impl Reader ===

impl Reader {
    /// A reader that has read nothing.
    #[must_use]
    pub fn new() -> Self {
        let cx = field::Context {
            problems: problem::Problems::default(),
            file: String::new(),
            origin: field::Origin::Manifest,
            kind: String::new(),
            object: String::new(),
            selectors: HashMap::new(),
        };
        Self {
            cx,
            manifests: Manifests::default(),
            seen: HashMap::new(),
            generated: HashMap::new(),
            objects: 0,
        }
    }

    /// Reads one text; `file` is how problems name it.
    pub fn text(&mut self, file: &str, text: &str) {
        file.clone_into(&mut self.cx.file);
        if text.len() > TEXT_BYTES_MAX {
            let found = text.len();
            self.fault(1, format!("is {found} bytes long; at most {TEXT_BYTES_MAX} are read"));
            return;
        }
        for piece in tree::Pieces::of(text) {
            match piece {
                Ok(Piece::Document(node)) if node.is_null() => {}
                Ok(Piece::Document(node)) => self.document(&node),
                Ok(Piece::Item(node)) => self.item(&node),
                Err(error) => self.fault(error.line, error.to_string()),
            }
        }
    }

    /// Notes a file of the command line, so that advice can name it.
    pub(crate) fn note_file(&mut self, file: &str) {
        self.manifests.files.push(file.to_owned());
    }

    /// Everything read, and everything wrong with it.
    #[must_use]
    pub fn finish(self) -> (Manifests, Vec<ManifestProblem>) {
        (self.manifests, self.cx.problems.into_list())
    }

    /// Objects found so far, those with faults among them; a list counts as one.
    pub(crate) const fn objects(&self) -> usize {
        self.objects
    }

    fn fault(&mut self, line: usize, message: String) {
        self.objects += 1;
        self.cx.kind.clear();
        self.cx.object.clear();
        self.cx.fault(&field::Path::root(line), message);
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads one text.
#[must_use]
pub fn read(file: &str, text: &str) -> (Manifests, Vec<ManifestProblem>) {
    let mut reader = Reader::new();
    reader.text(file, text);
    reader.finish()
}

// === impl TaintRule ===

impl TaintRule {
    /// Whether a device is one of those that the rule taints.
    #[must_use]
    pub fn selects(&self, device: &DeviceId) -> bool {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        is(&self.driver, &device.driver) && is(&self.pool, &device.pool) && is(&self.device, &device.device)
    }

    /// Puts the taint on the devices of a slice that match.
    pub fn apply(&self, slice: &mut ResourceSlice) {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        if is(&self.driver, &slice.driver) && is(&self.pool, &slice.pool.name) {
            if !slice.devices.iter().any(|device| is(&self.device, &device.name)) {
                return;
            }
            for device in slice.devices.iter_mut().filter(|device| is(&self.device, &device.name)) {
                device.taints.push(self.taint.clone());
            }
        }
    }
}

// === impl ClaimSpec ===

impl ClaimSpec {
    /// A claim of this spec.
    #[must_use]
    pub fn claim(
        self,
        namespace: String,
        name: String,
        uid: String,
        allocation: Option<AllocationResult>,
    ) -> ResourceClaim {
        let Self { requests, constraints, config } = self;
        ResourceClaim { namespace, name, uid, requests, constraints, config, allocation }
    }
}

/// The UID of a claim that no server has named: a UUID that depends on namespace and name alone, so that the same
/// manifest is the same claim in the next process.
#[must_use]
pub fn made_up_uid(namespace: &str, name: &str) -> String {
    // FNV-1a, 128 bits: offset basis and prime as published by its authors.
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in namespace.bytes().chain([b'/']).chain(name.bytes()) {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    // Version 8 (own scheme), variant 1, as RFC 9562 has it.
    let hash = (hash & !(0xf << 76) & !(0x3 << 62)) | (0x8 << 76) | (0x2 << 62);
    let hex = format!("{hash:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

// === impl Pod ===

impl Pod {
    /// Whether it waits for a node.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let done = matches!(self.phase, PodPhase::Running | PodPhase::Ended);
        self.node_name.is_none() && !self.finished && !done
    }

    /// What else its placement depends on.
    #[must_use]
    pub fn rules(&self) -> &PlacementRules {
        const NONE: &PlacementRules = &PlacementRules {
            gates: Vec::new(),
            near: Vec::new(),
            apart: Vec::new(),
            spread: Vec::new(),
            ports: Vec::new(),
            unknown: Vec::new(),
        };
        self.rules.as_deref().unwrap_or(NONE)
    }
}

#[cfg(test)]
mod tests;
