//! What makes Pods: how many, and one of them.
//!
//! | kind | Pods |
//! |---|---|
//! | `Deployment`, `StatefulSet`, `ReplicaSet`, `ReplicationController` | `replicas` |
//! | `Job` | `parallelism`, but no more than `completions`; none while `suspend` |
//! | `CronJob` | those of one run of its Job; none while `suspend` |
//! | `DaemonSet` | one on each node that its Pods may use |

use aliquot_core::dra::{TaintEffect, Toleration, TolerationOperator};

use super::Pod;
use super::field::{Context, Path};
use super::meta::Meta;
use super::tree::YamlNode;
use super::{node, pod};

/// How many Pods are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodCount {
    Number(u32),
    /// One on each node that the Pod may use.
    OnEveryNode,
}

/// The numbers by which a controller makes Pods.
struct Numbers {
    replicas: u32,
    completions: u32,
    suspended: SuspendedJob,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SuspendedJob {
    Yes,
    No,
}

/// Fields of the `spec` of each kind, those that are read first.
fn fields(kind: &str) -> &'static [&'static str] {
    match kind {
        "Job" => &[
            "template",
            "parallelism",
            "completions",
            "suspend",
            "activeDeadlineSeconds",
            "backoffLimit",
            "backoffLimitPerIndex",
            "completionMode",
            "managedBy",
            "manualSelector",
            "maxFailedIndexes",
            "podFailurePolicy",
            "podReplacementPolicy",
            "scheduling",
            "selector",
            "successPolicy",
            "ttlSecondsAfterFinished",
        ],
        "CronJob" => &[
            "jobTemplate",
            "suspend",
            "schedule",
            "concurrencyPolicy",
            "failedJobsHistoryLimit",
            "startingDeadlineSeconds",
            "successfulJobsHistoryLimit",
            "timeZone",
        ],
        "DaemonSet" => &["template", "minReadySeconds", "revisionHistoryLimit", "selector", "updateStrategy"],
        _ => &[
            "template",
            "replicas",
            "selector",
            "minReadySeconds",
            "ordinals",
            "paused",
            "persistentVolumeClaimRetentionPolicy",
            "podManagementPolicy",
            "progressDeadlineSeconds",
            "revisionHistoryLimit",
            "serviceName",
            "strategy",
            "updateStrategy",
            "volumeClaimTemplates",
        ],
    }
}

/// Reads the `spec` of a kind that makes Pods.
pub(super) fn pods(
    cx: &mut Context,
    kind: &str,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    meta: Meta,
) -> (Pod, PodCount) {
    let mut made = pod::pod(cx, None, None, meta);
    let mut numbers = Numbers { replicas: 1, completions: u32::MAX, suspended: SuspendedJob::No };
    spec(cx, kind, node, path, &mut made, &mut numbers);
    let copies = match (kind, numbers.suspended) {
        ("DaemonSet", _) => {
            made.tolerations.extend(DAEMON_TOLERATES.iter().map(|(key, effect)| Toleration {
                key: Some((*key).to_owned()),
                operator: TolerationOperator::Exists,
                effect: Some(effect.clone()),
                seconds: None,
            }));
            PodCount::OnEveryNode
        }
        ("Job" | "CronJob", SuspendedJob::Yes) => PodCount::Number(0),
        ("Job" | "CronJob", SuspendedJob::No) => PodCount::Number(numbers.replicas.min(numbers.completions)),
        _ => PodCount::Number(numbers.replicas),
    };
    (made, copies)
}

/// Taints that the `DaemonSet` controller lets its Pods tolerate.
const DAEMON_TOLERATES: [(&str, TaintEffect); 6] = [
    ("node.kubernetes.io/not-ready", TaintEffect::NoExecute),
    ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
    ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
    (super::CORDONED, TaintEffect::NoSchedule),
];

fn spec(
    cx: &mut Context,
    kind: &str,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    made: &mut Pod,
    numbers: &mut Numbers,
) {
    let known = fields(kind);
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        let value = &entry.value;
        match entry.key.as_ref() {
            field if !known.contains(&field) => cx.unknown(&at, known),
            "replicas" | "parallelism" => numbers.replicas = cx.count(value, &at).unwrap_or(0),
            "completions" => numbers.completions = cx.count(value, &at).unwrap_or(0),
            "suspend" if cx.boolean(value, &at) == Some(true) => numbers.suspended = SuspendedJob::Yes,
            "template" => {
                let labels = value.get("metadata").and_then(|meta| meta.get("labels"));
                made.labels =
                    labels.map(|l| node::labels(cx, l, &at.missing("metadata"))).unwrap_or_default();
                for entry in cx.entries(value, &at) {
                    let at = at.key(entry);
                    match entry.key.as_ref() {
                        "spec" => pod::pod_spec(cx, &entry.value, &at, made),
                        // Labels are read first: rules of the Pods may be about them.
                        "metadata" => {
                            node::template_metadata(cx, &entry.value, &at);
                            let annotations = entry.value.get("annotations");
                            let annotations = annotations.map(|node| node::labels(cx, node, &at));
                            made.part_annotations = pod::part_annotations(annotations.unwrap_or_default());
                        }
                        _ => cx.unknown(&at, &["metadata", "spec"]),
                    }
                }
            }
            "jobTemplate" => {
                for entry in cx.entries(value, &at) {
                    let at = at.key(entry);
                    match entry.key.as_ref() {
                        "spec" => spec(cx, "Job", &entry.value, &at, made, numbers),
                        "metadata" => node::template_metadata(cx, &entry.value, &at),
                        _ => cx.unknown(&at, &["metadata", "spec"]),
                    }
                }
            }
            _ => {}
        }
    }
}
