//! Pods, and workloads that create Pods: only the fields that placement uses.

mod requests;
mod rules;

use std::collections::BTreeMap;

use aliquot_core::dra::NodeSelector;
use aliquot_core::quantity::Quantity;

use super::field::{Context, Path};
use super::meta::Meta;
use super::tree::YamlNode;
use super::{Container, Pod, PodClaim, PodClaimSource, PodPhase, Unscheduled, name, node, taint};
use requests::{Amounts, ContainerRole, RequestSum};
use rules::CONTAINERS_MAX;

const CLAIMS_MAX: usize = 1_024;
/// Annotations by which other systems give a Pod a part of a card.
const PART_ANNOTATIONS: [&str; 4] =
    ["gpu-fraction", "gpu-memory", "tensor-fusion.ai/compute-percent-limit", "tensor-fusion.ai/vram-limit"];

/// Fields of a Pod's `spec` in 1.37.
const POD_FIELDS: &[&str] = &[
    "resourceClaims",
    "containers",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "affinity",
    "tolerations",
    "activeDeadlineSeconds",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resources",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "schedulingGroup",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "topologySpreadConstraints",
    "volumes",
    "workloadRef",
];

/// Fields of a container in 1.37.
const CONTAINER_FIELDS: &[&str] = &[
    "name",
    "image",
    "resources",
    "command",
    "args",
    "env",
    "envFrom",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
];

/// Reads a Pod from its `spec` and `status`.
pub(super) fn pod(
    cx: &mut Context,
    spec: Option<(&YamlNode<'_>, &Path<'_>)>,
    status: Option<(&YamlNode<'_>, &Path<'_>)>,
    meta: Meta,
) -> Pod {
    let mut pod = Pod {
        namespace: meta.namespace,
        name: meta.name,
        labels: meta.labels,
        node_name: None,
        daemon_node: None,
        node_labels: BTreeMap::new(),
        affinity: None,
        tolerations: Vec::new(),
        claims: Vec::new(),
        containers: Vec::new(),
        claim_names: BTreeMap::new(),
        extended_claim: None,
        requests: BTreeMap::new(),
        rules: None,
        phase: PodPhase::NotCreated,
        unscheduled: None,
        finished: meta.deleted,
        part_annotations: part_annotations(meta.annotations),
    };
    if let Some((node, path)) = spec {
        pod_spec(cx, node, path, &mut pod);
    }
    if let Some((node, path)) = status {
        pod_status(cx, node, path, &mut pod);
    }
    pod
}

/// Those of the annotations that ask KAI, Run:ai or TensorFusion for a part of a card.
pub(super) fn part_annotations(annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let asks = |key: &str| PART_ANNOTATIONS.contains(&key);
    annotations.into_iter().filter(|(key, _)| asks(key)).collect()
}

pub(super) fn pod_spec(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>, pod: &mut Pod) {
    let mut sum = RequestSum::default();
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        let value = &entry.value;
        match entry.key.as_ref() {
            "nodeName" => pod.node_name = cx.string(value, &at).filter(|n| !n.is_empty()),
            "nodeSelector" => pod.node_labels = node::labels(cx, value, &at),
            "affinity" => pod.affinity = affinity(cx, value, &at),
            "tolerations" => pod.tolerations = taint::of_pod(cx, value, &at),
            "resourceClaims" => {
                pod.claims = cx.each(value, &at, CLAIMS_MAX, pod_claim);
                super::claim::unique(cx, &at, "claim", pod.claims.iter().map(|c| c.name.as_str()));
            }
            key @ ("initContainers" | "containers") => {
                for read in cx.each(value, &at, CONTAINERS_MAX, container) {
                    let role = if key == "containers" { ContainerRole::Main } else { read.role };
                    sum.add(role, &read.requests);
                    pod.containers.push(read.container);
                }
            }
            "overhead" => sum.overhead = requests::amounts(cx, value, &at),
            "resources" => sum.of_pod = requests::of_pod(cx, value, &at),
            known if POD_FIELDS.contains(&known) => {}
            _ => cx.unknown(&at, POD_FIELDS),
        }
    }
    pod.requests = sum.total();
    pod.rules = rules::rules(cx, node, path, pod);
    for (index, container) in pod.containers.iter().enumerate() {
        for (claim, _) in &container.claims {
            if !pod.claims.iter().any(|c| c.name == *claim) {
                let at = path.missing("containers");
                let at = at.missing_item(index);
                let at = at.missing("resources");
                let message = format!("found \"{claim}\", which spec.resourceClaims does not have");
                cx.error(&at.missing("claims"), message);
            }
        }
    }
}

fn affinity(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<NodeSelector> {
    let required = node.get("nodeAffinity")?.get("requiredDuringSchedulingIgnoredDuringExecution")?;
    let at = path.missing("nodeAffinity");
    let at = at.missing("requiredDuringSchedulingIgnoredDuringExecution");
    Some(node::selector(cx, required, &at))
}

fn pod_claim(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<PodClaim> {
    const FIELDS: &[&str] = &["name", "resourceClaimName", "resourceClaimTemplateName"];
    let (mut name, mut claim, mut template) = (None, None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "name" => name = name::label(cx, &entry.value, &at),
            "resourceClaimName" => claim = name::subdomain(cx, &entry.value, &at),
            "resourceClaimTemplateName" => template = name::subdomain(cx, &entry.value, &at),
            "source" => {
                cx.error(&at, "is of an older API version; write what is below it one level higher");
            }
            "podGroupResourceClaim" => {
                cx.without_effect(&at, "claims of Pod groups are of a later API version");
                return None;
            }
            _ => cx.unknown(&at, FIELDS),
        }
    }
    if node.get("name").is_none() {
        cx.required(path, "name", "a name that is unique in the Pod");
    }
    let source = match (claim, template) {
        (Some(claim), None) => PodClaimSource::Claim(claim),
        (None, Some(template)) => PodClaimSource::Template(template),
        (Some(_), Some(_)) => {
            let expected = "expected one of resourceClaimName and resourceClaimTemplateName";
            cx.error(path, format!("names both a claim and a template; {expected}"));
            return None;
        }
        (None, None) => {
            if !FIELDS[1..].iter().any(|f| node.get(f).is_some()) {
                cx.error(path, "names no claim; expected resourceClaimName or resourceClaimTemplateName");
            }
            return None;
        }
    };
    Some(PodClaim { name: name?, source })
}

/// A container, and what counts for its Pod alone.
struct ReadContainer {
    container: Container,
    requests: Amounts,
    /// As an init container.
    role: ContainerRole,
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that every reader of list items has")]
fn container(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<ReadContainer> {
    let mut container = Container::default();
    let (mut requests, mut limits_of_all) = (Amounts::new(), Amounts::new());
    let mut role = ContainerRole::Init;
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "name" => container.name = cx.string(&entry.value, &at).unwrap_or_default(),
            "resources" => {
                for entry in cx.entries(&entry.value, &at) {
                    let at = at.key(entry);
                    match entry.key.as_ref() {
                        "claims" => container.claims = cx.each(&entry.value, &at, CLAIMS_MAX, used_claim),
                        "limits" => {
                            container.limits = limits(cx, &entry.value, &at);
                            limits_of_all = requests::amounts(cx, &entry.value, &at);
                        }
                        "requests" => requests = requests::amounts(cx, &entry.value, &at),
                        _ => cx.unknown(&at, &["claims", "limits", "requests"]),
                    }
                }
            }
            "restartPolicy" if entry.value.text() == Some("Always") => role = ContainerRole::Sidecar,
            known if CONTAINER_FIELDS.contains(&known) => {}
            _ => cx.unknown(&at, CONTAINER_FIELDS),
        }
    }
    requests::complete(&mut requests, limits_of_all, &container.limits);
    Some(ReadContainer { container, requests, role })
}

fn used_claim(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<(String, Option<String>)> {
    let (mut name, mut request) = (None, None);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "name" => name = cx.string(&entry.value, &at),
            "request" => request = cx.string(&entry.value, &at),
            _ => cx.unknown(&at, &["name", "request"]),
        }
    }
    if node.get("name").is_none() {
        cx.required(path, "name", "the name of one of spec.resourceClaims");
    }
    Some((name?, request))
}

/// Extended resources among the limits; what has no domain belongs to the node itself.
fn limits(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> BTreeMap<String, Quantity> {
    let mut limits = BTreeMap::new();
    for entry in cx.entries(node, path).filter(|e| e.key.contains('/')) {
        let at = path.key(entry);
        let Some(quantity) = cx.quantity(&entry.value, &at) else { continue };
        if quantity.nanos() < 0 || !quantity.is_whole() {
            cx.error(&at, format!("found {quantity}, expected a whole number of 0 or more"));
        } else if quantity > Quantity::ZERO {
            limits.insert(entry.key.to_string(), quantity);
        }
    }
    limits
}

fn pod_status(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>, pod: &mut Pod) {
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "phase" => {
                pod.phase = match entry.value.text() {
                    Some("Succeeded" | "Failed") => PodPhase::Ended,
                    Some("Running" | "Unknown") => PodPhase::Running,
                    _ => PodPhase::Pending,
                };
                pod.finished |= pod.phase == PodPhase::Ended;
            }
            "conditions" => pod.unscheduled = unscheduled(cx, &entry.value, &at),
            "resourceClaimStatuses" => {
                for status in cx.items(&entry.value, &at) {
                    let text = |key| status.get(key).and_then(YamlNode::text).map(str::to_owned);
                    if let (Some(name), Some(claim)) = (text("name"), text("resourceClaimName")) {
                        pod.claim_names.insert(name, claim);
                    }
                }
            }
            "extendedResourceClaimStatus" => {
                pod.extended_claim =
                    entry.value.get("resourceClaimName").and_then(YamlNode::text).map(str::to_owned);
            }
            _ => {}
        }
    }
}

/// The condition by which the scheduler says why a Pod waits.
fn unscheduled(cx: &mut Context, node: &YamlNode<'_>, path: &Path<'_>) -> Option<Box<Unscheduled>> {
    let conditions = cx.items(node, path);
    let is =
        |condition: &YamlNode<'_>, key, wanted| condition.get(key).and_then(YamlNode::text) == Some(wanted);
    let waits =
        |condition: &&YamlNode<'_>| is(condition, "type", "PodScheduled") && is(condition, "status", "False");
    let condition = conditions.iter().find(waits)?;
    let text = |key| condition.get(key).and_then(YamlNode::text).unwrap_or_default().to_owned();
    Some(Box::new(Unscheduled { reason: text("reason"), message: text("message") }))
}
