//! `aliquot order` on a cluster: which taints it writes, and which it leaves alone.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use aliquot_tests::command_line::{Ran, ran};
use aliquot_tests::fake_apiserver::{Effect, FakeApiServer, Fault};
use serde_json::{Value, json};
use std::ffi::OsString;

/// Nodes by name, with their taints; a slice of this driver for each whose name begins with `gpu`.
fn cluster(nodes: &[(&str, Value)]) -> FakeApiServer {
    let server = FakeApiServer::start();
    nodes.iter().for_each(|(name, taints)| add(&server, name, taints));
    server
}

fn add(server: &FakeApiServer, name: &str, taints: &Value) {
    server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"taints": taints, "podCIDR": "10.0.0.0/24"}}));
    if name.starts_with("gpu") {
        server.put(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{name}-aliquot.dev-x")},
            "spec": {"driver": "aliquot.dev", "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "card"}]}}));
    } else {
        // The agent of a node without cards publishes an empty slice.
        server.put(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{name}-aliquot.dev-x")},
            "spec": {"driver": "aliquot.dev", "nodeName": name, "devices": [],
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}}));
    }
}

fn order(server: &FakeApiServer, words: &[&str]) -> Ran {
    let mut all: Vec<OsString> = ["aliquot", "order"].iter().chain(words).map(OsString::from).collect();
    all.extend(["--kubeconfig".into(), server.kubeconfig().into_os_string()]);
    ran(all)
}

/// Keys and effects of a node.
fn taints(server: &FakeApiServer, node: &str) -> Vec<String> {
    let nodes = server.objects("nodes");
    let node = nodes.iter().find(|found| found["metadata"]["name"] == node).unwrap();
    assert_eq!(node["spec"]["podCIDR"], "10.0.0.0/24");
    let text = |taint: &Value, field: &str| taint[field].as_str().unwrap().to_owned();
    let all = node["spec"]["taints"].as_array().into_iter().flatten();
    all.map(|taint| format!("{}:{}", text(taint, "key"), text(taint, "effect"))).collect()
}

fn rank(number: usize) -> Vec<String> {
    (1..=number).map(|number| format!("order.aliquot.dev/{number}:PreferNoSchedule")).collect()
}

fn writes(server: &FakeApiServer) -> usize {
    server.requests().iter().filter(|request| request.is_write()).count()
}

#[test]
fn ranks_are_set_kept_and_removed_beside_other_taints() {
    let foreign = json!([{"key": "team", "value": "a", "effect": "NoSchedule"}]);
    let server = cluster(&[("gpu-a", json!([])), ("gpu-b", foreign), ("web", json!([]))]);
    let shown = order(&server, &[]);
    assert_eq!((shown.code, shown.err.as_str()), (0, ""));
    let lines: Vec<Vec<&str>> = shown.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines,
        [vec!["NODE", "RANK", "TAINTS"], vec!["gpu-a", "1", "to", "set"], vec!["gpu-b", "2", "to", "set"]]
    );
    assert_eq!(writes(&server), 0, "without --set nothing is changed");

    let set = order(&server, &["--set"]);
    assert_eq!((set.code, set.err.as_str()), (0, ""), "{}", set.out);
    assert_eq!(taints(&server, "gpu-a"), rank(1));
    let beside = |own: Vec<String>| [vec!["team:NoSchedule".to_owned()], own].concat();
    assert_eq!(taints(&server, "gpu-b"), beside(rank(2)));
    assert_eq!((taints(&server, "web"), writes(&server)), (Vec::new(), 2));

    // Again: nothing is written. A new node gets the rank that the fewest have; one that was altered is mended.
    server.forget_requests();
    assert_eq!(order(&server, &["--set", "-o", "json"]).code, 0);
    assert_eq!(writes(&server), 0);
    add(&server, "gpu-0", &json!([]));
    add(&server, "gpu-b", &json!([{"key": "order.aliquot.dev/2", "effect": "NoExecute"}]));
    let set = order(&server, &["--set", "-o", "json"]);
    let value: Value = serde_json::from_str(&set.out).unwrap();
    let of = |node: &str, rank: u8, taints: &str| json!({"node": node, "rank": rank, "taints": taints, "failure": null});
    assert_eq!(
        value["nodes"],
        json!([of("gpu-0", 2, "set"), of("gpu-a", 1, "in place"), of("gpu-b", 1, "mended")])
    );
    assert_eq!((taints(&server, "gpu-0"), taints(&server, "gpu-b")), (rank(2), rank(1)));

    // Slices that are away for a moment take no rank.
    server.wipe_slices();
    assert_eq!(order(&server, &["--set"]).code, 0);
    assert_eq!((taints(&server, "gpu-0"), taints(&server, "gpu-a")), (rank(2), rank(1)));

    // Off every node, also of one without devices.
    add(&server, "web", &json!([{"key": "order.aliquot.dev/1", "effect": "PreferNoSchedule"}]));
    add(
        &server,
        "gpu-b",
        &json!([{"key": "team", "effect": "NoSchedule"}, {"key": "order.aliquot.dev/1", "effect": "PreferNoSchedule"}]),
    );
    assert_eq!(order(&server, &["--clear"]).code, 0);
    for node in ["gpu-0", "gpu-a", "web"] {
        assert_eq!(taints(&server, node), Vec::<String>::new(), "{node}");
    }
    assert_eq!(taints(&server, "gpu-b"), ["team:NoSchedule"]);
}

#[test]
fn conflicts_are_repeated_and_refusals_named() {
    let server = cluster(&[("gpu-a", json!([])), ("gpu-b", json!([]))]);
    server.inject(Fault::once("patch", "nodes", Effect::Status(409)));
    assert_eq!(order(&server, &["--set"]).code, 0);
    assert_eq!((taints(&server, "gpu-a"), taints(&server, "gpu-b")), (rank(1), rank(2)));
    // One that is refused keeps no other back.
    server.inject(Fault::once("patch", "nodes", Effect::Status(403)));
    let cleared = order(&server, &["--clear"]);
    assert_eq!(cleared.code, 3);
    assert!(cleared.err.contains("error: nodes gpu-a: patch is forbidden"), "{}", cleared.err);
    assert!(cleared.err.contains("grant the verb `patch` on `nodes` by RBAC"), "{}", cleared.err);
    assert_eq!((taints(&server, "gpu-a"), taints(&server, "gpu-b")), (rank(1), Vec::new()));
    // A server that refuses every write of a node is left after a few.
    server.inject(Fault {
        verb: Some("patch"),
        resource: Some("nodes"),
        times: 100,
        effect: Effect::Status(409),
    });
    server.forget_requests();
    assert_eq!(order(&server, &["--clear"]).code, 3);
    assert_eq!(writes(&server), 5);
    for resource in ["nodes", "resourceslices"] {
        server.inject(Fault::once("list", resource, Effect::Status(403)));
        let refused = order(&server, &["--set"]);
        assert!(refused.code == 3 && refused.err.contains("is forbidden"), "{}", refused.err);
    }
}

#[test]
fn pods_that_tolerate_everything_are_named() {
    let server = cluster(&[("gpu-a", json!([]))]);
    let pod = |name: &str, phase: &str, claims: Value, toleration: Value| {
        server
            .put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "team", "name": name},
            "spec": {"resourceClaims": claims, "tolerations": [toleration]}, "status": {"phase": phase}}));
    };
    let claims = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
    let all = json!({"operator": "Exists"});
    pod("bears-all", "Pending", claims.clone(), all.clone());
    pod("ended", "Succeeded", claims.clone(), all.clone());
    pod("without-claims", "Running", json!([]), all);
    pod("bears-one", "Running", claims, json!({"key": "team", "operator": "Exists"}));
    let shown = order(&server, &[]);
    assert!(shown.err.contains("since they tolerate every taint: team/bears-all; give"), "{}", shown.err);
    server.inject(Fault::once("list", "pods", Effect::Status(403)));
    let shown = order(&server, &[]);
    assert_eq!(shown.code, 0);
    assert!(shown.err.contains("note: Pods that tolerate every taint are not named: pods"), "{}", shown.err);
}

#[test]
fn plan_fills_nodes_in_the_order_that_is_set() {
    let node = |name: &str, taints: usize| {
        let taints: Vec<Value> = (1..=taints)
            .map(|number| json!({"key": format!("order.aliquot.dev/{number}"), "effect": "PreferNoSchedule"}))
            .collect();
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}})
    };
    let planned = |tolerations: Value| {
        let server = FakeApiServer::start();
        // By name, a node of a higher rank comes first.
        for (name, taints) in [("1xh100-80gb-sxm-0", 3), ("1xh100-80gb-sxm-1", 1)] {
            server.put(node(name, taints));
        }
        let slices = ran(["aliquot", "slices", "--node", "1xh100*2", "-o", "json"].map(OsString::from));
        let slices: Value = serde_json::from_str(&slices.out).unwrap();
        slices["items"].as_array().unwrap().iter().for_each(|slice| drop(server.put(slice.clone())));
        let classes = ran(["aliquot", "classes", "--node", "1xh100", "-o", "json"].map(OsString::from));
        let classes: Value = serde_json::from_str(&classes.out).unwrap();
        classes["items"].as_array().unwrap().iter().for_each(|class| drop(server.put(class.clone())));
        server.put(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"namespace": "team", "name": "gpu", "uid": "11111111-2222-4333-8444-555555555555"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "card.aliquot.dev"}}]}}}));
        server.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "team", "name": "p", "uid": "p"},
            "spec": {"tolerations": tolerations, "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
                "containers": [{"name": "main", "image": "i"}]}, "status": {"phase": "Pending"}}));
        let mut words: Vec<OsString> = ["aliquot", "plan", "--cluster"].iter().map(OsString::from).collect();
        words.extend(["--kubeconfig".into(), server.kubeconfig().into_os_string()]);
        let Ran { out, err, .. } = ran(words);
        assert!(out.contains("1xh100-80gb-sxm-"), "{out}{err}");
        out.contains("1xh100-80gb-sxm-1")
    };
    assert!(planned(json!([])));
    assert!(!planned(json!([{"operator": "Exists"}])), "it bears both: by name");
}
