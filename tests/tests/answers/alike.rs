//! Pods that are alike but for their labels, manifests that ask for nothing, and hints for many missing names.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsString;
use std::fs;

use aliquot_tests::command_line::{Ran, ran};

const CLUSTER: &str = "\
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {zone: a}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: device.driver == \"gpu.example.com\"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1}
spec: {driver: gpu.example.com, pool: {name: n1, generation: 1, resourceSliceCount: 1}, nodeName: n1, devices: [{name: \
                       gpu-0}, {name: gpu-1}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one, namespace: team}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}}
---
";

fn asked(verb: &str, manifests: &str, more: &[&str]) -> Ran {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(file.path(), manifests).unwrap();
    let path = file.path().display().to_string();
    let words = ["aliquot", verb, "-f", &path].into_iter().chain(more.iter().copied());
    ran(words.map(OsString::from))
}

/// A Pod on the node that keeps others with the label off it, and one that has the label.
fn pair(app: &str) -> String {
    let term = format!("{{topologyKey: zone, labelSelector: {{matchLabels: {{app: {app}}}}}}}");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: guard-{app}, namespace: team}}\nspec: {{nodeName: n1, affinity: \
         {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{term}]}}}}}}\nstatus: {{phase: \
         Running}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {app}, namespace: team, labels: {{app: \
         {app}}}}}\nspec: {{resourceClaims: [{{name: gpu, resourceClaimTemplateName: one}}]}}\n---\n"
    )
}

#[test]
fn pods_alike_but_for_labels_get_their_own_reasons() {
    let answer = asked("plan", &format!("{CLUSTER}{}{}", pair("web"), pair("data")), &[]);
    assert_eq!(answer.code, 1, "{answer:?}");
    for app in ["web", "data"] {
        let line = answer.out.lines().find(|line| line.starts_with(&format!("pod team/{app}"))).unwrap();
        assert!(line.contains(&format!("pod team/guard-{app} in zone=a")), "{line}");
    }
}

#[test]
fn manifests_that_ask_for_nothing_are_said_to() {
    let list = "apiVersion: v1\nkind: List\nitems: []\n";
    for verb in ["plan", "explain"] {
        let answer = asked(verb, list, &["--node", "t4-2"]);
        let expected = "nothing to place: no Pod and no claim asks for devices\n";
        assert_eq!((answer.code, answer.out.as_str()), (0, expected), "{verb}: {}", answer.err);
    }
    let json = asked("explain", list, &["--node", "t4-2", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json, serde_json::json!({ "explanations": [], "withoutPlace": 0 }));
}

#[test]
fn bound_of_near_names_is_said_once() {
    let pods: String = (0..40)
        .map(|n| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{n}, namespace: team}}\nspec: {{resourceClaims: [{{name: g, \
                 resourceClaimTemplateName: ona{n}}}]}}\n---\n"
            )
        })
        .collect();
    for verb in ["plan", "explain"] {
        let answer = asked(verb, &format!("{CLUSTER}{pods}"), &["--limit", "0"]);
        assert_eq!(answer.code, 1, "{answer:?}");
        let notes = answer.err.matches("near names were sought for the first 32 missing names").count();
        assert_eq!(notes, 1, "{verb}: {}", answer.err);
    }
}
