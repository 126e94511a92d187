//! Scenario: `aliquot order` and the real scheduler. Nodes without a kubelet, which decides nothing here.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use aliquot_cluster::{Api, Cluster, Scope};
use aliquot_tests::command_line::{Ran, ran};
use serde_json::{Value, json};

use crate::stage::checkout;
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
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "status": status});
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

/// How a Pod wishes to be spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// Of no Service or Deployment: not at all.
    Alone,
    /// Of a Service: by the scheduler's default constraints.
    ByDefault,
    /// Of a Service, with the constraint of docs/user/packing.md in place of these.
    Opposed,
}

impl Spread {
    fn labels(self) -> Value {
        if self == Self::Alone { json!({}) } else { json!({"app": "served"}) }
    }

    fn constraints(self) -> Value {
        let none = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"spread": "none"}}});
        if self == Self::Opposed { json!([none]) } else { json!([]) }
    }
}

/// Creates Pods with a quarter of a card each, one after the other; the nodes that the scheduler chooses.
fn placed(api: &Api, count: usize, spread: Spread) -> Vec<String> {
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
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": spread.labels()},
                "spec": {"resourceClaims": [{"name": "c", "resourceClaimName": name}],
                    "topologySpreadConstraints": spread.constraints(),
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

    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "served"},
        "spec": {"selector": {"app": "served"}, "ports": [{"port": 80}]}});
    api.create("/api/v1/namespaces/default/services", &service).unwrap();
    let used = |nodes: &[String]| nodes.iter().collect::<BTreeSet<_>>().len();

    let before = placed(api, CARDS, Spread::Alone);
    assert_eq!(used(&before), CARDS, "without an order each Pod goes to another node: {before:?}");
    remove(api, CARDS);

    let told = said(&["aliquot", "order", "--set"], kubeconfig);
    let expected: BTreeMap<String, usize> = nodes.iter().cloned().zip(1..).collect();
    assert_eq!(ranks(api), expected, "{told}");
    let filled: Vec<String> =
        nodes.iter().flat_map(|node| std::iter::repeat_n(node.clone(), SHARES)).collect();
    for spread in [Spread::Alone, Spread::Opposed] {
        let packed = placed(api, CARDS * SHARES, spread);
        assert_eq!(packed, filled, "{spread:?}: each node is full before the next one is used");
        remove(api, CARDS * SHARES);
    }
    // The limit of an order that the page names.
    let served = placed(api, CARDS, Spread::ByDefault);
    assert!(used(&served) > 1, "the default constraints do not outweigh an order any more: {served:?}");
    remove(api, CARDS);

    as_the_charts_account(&cluster, &nodes);
    said(&["aliquot", "order", "--clear"], kubeconfig);
    assert!(ranks(api).values().all(|taints| *taints == 0));
    println!(
        "order: {CARDS} Pods on {} nodes without, on 1 with; of a Service on {}",
        used(&before),
        used(&served)
    );
}

/// The account of the chart's CronJob may set an order, and write nothing else of a node.
fn as_the_charts_account(cluster: &Cluster, nodes: &[String]) {
    const ACCOUNT: &str = "system:serviceaccount:aliquot:aliquot-order";
    let client = cluster.client();
    let chart = std::fs::read_to_string(checkout("tests/golden/chart/all.yaml")).unwrap();
    let is_of_account =
        |object: &&str| object.contains("\n  name: aliquot-order\n") && !object.contains("kind: CronJob");
    let objects: Vec<&str> = chart.split("\n---\n").filter(is_of_account).collect();
    assert_eq!(objects.len(), 5, "account, role, binding, policy and its binding");
    client.kubectl(&["create", "namespace", "aliquot"], "").unwrap();
    client.kubectl(&["apply", "-f", "-"], &objects.join("\n---\n")).unwrap();

    let directory = tempfile::TempDir::new().unwrap();
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(client.kubeconfig()).unwrap()).unwrap();
    config["users"][0]["user"]["as"] = json!(ACCOUNT);
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    said(&["aliquot", "order", "--clear"], Some(&file));
    assert!(ranks(cluster.api()).values().all(|taints| *taints == 0));
    said(&["aliquot", "order", "--set"], Some(&file));
    assert!(ranks(cluster.api()).values().all(|taints| *taints > 0));

    for patch in [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"annotations": {"a": "b"}}}),
        json!({"metadata": {"finalizers": ["example.com/held"]}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "gone",
            "uid": "11111111-2222-4333-8444-555555555555"}]}}),
        json!({"spec": {"unschedulable": true}}),
        json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}),
        json!({"spec": {"taints": [{"key": "order.aliquot.dev/1", "effect": "NoExecute"}]}}),
    ] {
        let (patch, account) = (patch.to_string(), format!("--as={ACCOUNT}"));
        let words = ["patch", "node", &nodes[0], "--type=merge", "-p", &patch, &account];
        // A policy is in force some moments after it was created.
        let refused = (0..50).any(|_| {
            let output = client.kubectl_output(&[&words[..], &["--dry-run=server"]].concat(), "").unwrap();
            let is_refused = output.err.contains("packing order");
            if !is_refused {
                std::thread::sleep(Duration::from_millis(200));
            }
            is_refused
        });
        assert!(refused, "{patch}");
    }
}
