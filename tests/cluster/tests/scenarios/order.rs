//! Scenario: `aliquot order` and the real scheduler. Nodes without a kubelet, which decides nothing here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use aliquot_cluster::{Api, Scope};
use aliquot_tests::command_line::{Ran, ran};
use serde_json::{Value, json};

use crate::world::{Turn, World, needs_own};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";
const PATIENCE: Duration = Duration::from_secs(180);
/// Nodes of one card, with room for four shares each.
const CARDS: usize = 4;
const SHARES: usize = 4;

fn said(words: &[&str], kubeconfig: Option<&std::path::Path>) -> String {
    let mut words: Vec<OsString> = words.iter().map(OsString::from).collect();
    words.extend(kubeconfig.iter().flat_map(|file| ["--kubeconfig".into(), file.as_os_str().to_owned()]));
    let Ran { code, out, err } = ran(words);
    assert_eq!(code, 0, "{err}");
    out
}

fn items(list: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(list).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Publishes slices, classes and nodes; the names of the nodes.
fn publish(api: &Api) -> Vec<String> {
    let directory = tempfile::TempDir::new().unwrap();
    let policy = directory.path().join("policy.toml");
    std::fs::write(&policy, "default = \"shared\"\n").unwrap();
    let (policy, fleet) = (policy.display().to_string(), format!("1xh100*{CARDS}"));
    let of = |command| ["aliquot", command, "--node", &fleet, "--policy", &policy, "-o", "json"];
    let slices = items(&said(&of("slices"), None));
    let name = |slice: &Value| slice["spec"]["nodeName"].as_str().unwrap().to_owned();
    let mut nodes: Vec<String> = slices.iter().map(name).collect();
    nodes.dedup();
    assert_eq!(nodes.len(), CARDS);
    let capacity = json!({"cpu": "64", "memory": "512Gi", "pods": "1000"});
    for name in &nodes {
        let ready = json!({"type": "Ready", "status": "True", "reason": "Test", "message": "no kubelet"});
        let status = json!({"capacity": capacity, "allocatable": capacity, "conditions": [ready]});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status});
        api.create(NODES, &node).unwrap();
    }
    for slice in &slices {
        api.create("/apis/resource.k8s.io/v1/resourceslices", slice).unwrap();
    }
    for class in items(&said(&of("classes"), None)) {
        api.create("/apis/resource.k8s.io/v1/deviceclasses", &class).unwrap();
    }
    let untainted = |all: &BTreeMap<String, Value>| {
        all.values().all(|node| node["spec"]["taints"].is_null()).then_some(())
    };
    api.wait(NODES, "no node has a taint", PATIENCE, untainted).unwrap();
    nodes
}

/// Creates Pods with a quarter of a card each, one after the other; the nodes that the scheduler chooses.
fn placed(api: &Api, count: usize) -> Vec<String> {
    let place = |number: usize| {
        let name = format!("pod-{number}");
        api.create(
            CLAIMS,
            &json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "share.aliquot.dev",
                    "capacity": {"requests": {"memory": "19Gi"}}}}]}}}),
        )
        .unwrap();
        api.create(
            PODS,
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                "spec": {"resourceClaims": [{"name": "c", "resourceClaimName": name}],
                    "containers": [{"name": "main", "image": "localhost/none:1",
                        "resources": {"claims": [{"name": "c"}], "requests": {"cpu": "1"}}}]}}),
        )
        .unwrap();
        let path = format!("{PODS}?fieldSelector=metadata.name={name}");
        let node = |pods: &BTreeMap<String, Value>| {
            pods.values().next()?["spec"]["nodeName"].as_str().map(str::to_owned)
        };
        api.wait(&path, "the scheduler chooses a node", PATIENCE, node).unwrap()
    };
    (0..count).map(place).collect()
}

fn remove(api: &Api, count: usize) {
    for number in 0..count {
        api.delete(&format!("{PODS}/pod-{number}"), Some(0)).unwrap();
        api.delete(&format!("{CLAIMS}/pod-{number}"), None).unwrap();
    }
    let gone = |claims: &BTreeMap<String, Value>| claims.is_empty().then_some(());
    api.wait(CLAIMS, "the claims are gone", PATIENCE, gone).unwrap();
}

/// Taints of orders, by node.
fn ranks(api: &Api) -> BTreeMap<String, usize> {
    let nodes = api.get(NODES).unwrap();
    let count = |node: &Value| {
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        assert!(taints.iter().all(|taint| taint["effect"] == "PreferNoSchedule"), "{taints:?}");
        taints.len()
    };
    let all = nodes["items"].as_array().unwrap();
    all.iter().map(|node| (node["metadata"]["name"].as_str().unwrap().to_owned(), count(node))).collect()
}

#[test]
fn scheduler_fills_nodes_in_the_order_that_is_set() {
    if needs_own() {
        return;
    }
    let _turn = Turn::beside();
    let Some(World::Own(cluster)) = World::start("order", Scope::ControlPlane) else { return };
    let (api, kubeconfig) = (cluster.api(), Some(cluster.client().kubeconfig()));
    let nodes = publish(api);

    let spread = placed(api, CARDS);
    let used = |nodes: &[String]| nodes.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!(used(&spread), CARDS, "without an order each Pod goes to another node: {spread:?}");
    remove(api, CARDS);

    let told = said(&["aliquot", "order", "--set"], kubeconfig);
    let expected: BTreeMap<String, usize> = nodes.iter().cloned().zip(1..).collect();
    assert_eq!(ranks(api), expected, "{told}");
    let packed = placed(api, CARDS * SHARES);
    let filled: Vec<String> =
        nodes.iter().flat_map(|node| std::iter::repeat_n(node.clone(), SHARES)).collect();
    assert_eq!(packed, filled, "each node is full before the next one is used");

    said(&["aliquot", "order", "--clear"], kubeconfig);
    assert!(ranks(api).values().all(|taints| *taints == 0));
    println!("order: {} Pods on {} nodes without, {} with", CARDS, used(&spread), used(&packed[..CARDS]));
}
