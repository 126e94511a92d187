//! Scenario 4: what the device API offers to requests, each with a Pod that runs.

use std::fs;

use aliquot_cluster::Namespace;
use serde_json::{Value, json};

use crate::shares::share;
use crate::stage::{BRIEFLY, PATIENCE, Stage, checkout, pod, template};

/// Nodes on which two NPUs are placed, and the alternative that they get.
const CLOSENESS: [(&str, &str); 3] = [
    ("ascend-310p-duo", "npu/same-card"),
    ("ascend-910a-8", "npu/same-hccs"),
    ("deploy/examples/nodes/pcie-pair.toml", "npu/same-pcie"),
];

/// Of eight NPUs of the first generation, the first four are one HCCS ring and the last four the other.
fn are_of_one_ring(seen: &str) {
    let nodes: Vec<u32> =
        seen.lines().filter_map(|line| line.strip_prefix("davinci")?.parse().ok()).collect();
    let [first, second] = nodes[..] else { panic!("found {nodes:?}, expected two NPUs: {seen}") };
    let chips = seen.lines().filter(|line| line.starts_with("chip ")).count();
    assert_eq!((chips, first / 4), (8, second / 4), "{seen}");
}

/// Runs a Pod with a claim of `two-npus.yaml` and returns the alternative that it got.
fn alternative(stage: &Stage, name: &str) -> Vec<Value> {
    let space = stage.namespace(name);
    space.apply(&fs::read_to_string(checkout("deploy/examples/two-npus.yaml")).unwrap()).unwrap();
    let mut two = pod("two", &[]);
    two["spec"]["resourceClaims"] = json!([{"name": "npu", "resourceClaimName": "two-npus"}]);
    two["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "npu"}]});
    space.create_object(&space.core("pods"), &two).unwrap();
    space.running("two", 1, PATIENCE).unwrap();
    let seen = space.exec("two", &["sh", "-c", "ls /dev | grep '^davinci[0-9]'; tenant npu"]).unwrap();
    assert_eq!(seen.code, 0, "{name}: {}{}", seen.out, seen.err);
    let results = space.allocations().unwrap().remove("two-npus").unwrap();
    if results[0]["request"] == "npu/same-hccs" {
        are_of_one_ring(&seen.out);
    }
    space.delete().unwrap();
    results.iter().map(|result| result["request"].clone()).collect()
}

#[test]
fn two_npus_are_as_close_as_the_node_allows() {
    for (node, expected) in CLOSENESS {
        let file = checkout(node);
        let node = if file.exists() { file.display().to_string() } else { node.to_owned() };
        let Some(stage) = Stage::with_agent("closeness", &node, "whole") else { return };
        assert_eq!(alternative(&stage, "pair"), [json!(expected), json!(expected)], "{node}");
        stage.finish();
    }
    // Without a constraint the first alternative has a place everywhere: this test sees the difference.
    let Some(stage) = Stage::with_agent("closeness", "ascend-910a-8", "whole") else { return };
    assert_ne!(alternative(&stage, "broken"), [json!("npu/same-card"), json!("npu/same-card")]);
    stage.finish();
}

/// Creates a template and a Pod that uses it.
fn create(space: &Namespace<'_>, name: &str, mut spec: Value) {
    let constraints = spec["constraints"].take();
    let mut made = template(name, &spec["requests"]);
    if !constraints.is_null() {
        made["spec"]["spec"]["devices"]["constraints"] = constraints;
    }
    space.create_object(&space.devices("resourceclaimtemplates"), &made).unwrap();
    space.create_object(&space.core("pods"), &pod(name, &[("gpu", name)])).unwrap();
}

/// The devices of a Pod's claim.
fn devices(space: &Namespace<'_>, pod: &str) -> Vec<String> {
    let all = space.allocations().unwrap();
    let own = all.into_iter().filter(|(claim, _)| claim.starts_with(pod)).flat_map(|(_, results)| results);
    own.map(|result| result["device"].as_str().unwrap_or_default().to_owned()).collect()
}

fn two_shares(constraint: &str) -> Value {
    let half = share(1 << 30, 10)[0]["exactly"].clone();
    json!({
        "requests": [{"name": "a", "exactly": half}, {"name": "b", "exactly": half}],
        "constraints": [{"requests": ["a", "b"], constraint: "aliquot.dev/uuid"}],
    })
}

/// Two Pods name one claim: both get its devices, it is prepared once, and it stays until the last of them is gone.
fn two_pods_on_one_claim(space: &Namespace<'_>) {
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "both"},
        "spec": {"devices": {"requests": share(1 << 30, 10)}},
    });
    space.create_object(&space.devices("resourceclaims"), &claim).unwrap();
    for name in ["both-1", "both-2"] {
        let mut made = pod(name, &[]);
        made["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "both"}]);
        made["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
        space.create_object(&space.core("pods"), &made).unwrap();
    }
    space.running("both-", 2, PATIENCE).unwrap();
    space.delete_pod("both-1", None).unwrap();
    let filled = space.exec("both-2", &["tenant", "fill"]).unwrap().out;
    assert!(filled.starts_with(&format!("total {} ", 1 << 30)), "both-2: {filled}");
    space.delete_pod("both-2", None).unwrap();
    space.delete_claim("both").unwrap();
}

#[test]
fn constraints_all_and_admin_access_reach_pods() {
    let Some(stage) = Stage::with_agent("requests", "t4-2", "shared") else { return };
    let space = stage.namespace("all");
    create(&space, "same", two_shares("matchAttribute"));
    create(&space, "apart", two_shares("distinctAttribute"));
    space.running("same", 1, PATIENCE).unwrap();
    space.running("apart", 1, PATIENCE).unwrap();
    let (same, apart) = (devices(&space, "same"), devices(&space, "apart"));
    assert!(same.len() == 2 && same[0] == same[1], "matchAttribute: found {same:?}, expected one card twice");
    assert!(
        apart.len() == 2 && apart[0] != apart[1],
        "distinctAttribute: found {apart:?}, expected two cards"
    );
    let seen = space.exec("apart", &["tenant", "smi"]).unwrap().out;
    assert_eq!(seen.lines().count(), 2, "{seen}");
    // A claim without the constraint has to be told apart: both shares come from the first card with room.
    create(&space, "unbound", json!({"requests": two_shares("distinctAttribute")["requests"]}));
    space.running("unbound", 1, PATIENCE).unwrap();
    let unbound = devices(&space, "unbound");
    assert!(unbound.len() == 2 && unbound[0] == unbound[1], "without a constraint: found {unbound:?}");

    two_pods_on_one_claim(&space);

    // All cards: waits for the others, which hold shares of both.
    let every = json!({"requests": [{"name": "gpu", "exactly": {
        "deviceClassName": "card.aliquot.dev", "allocationMode": "All",
    }}]});
    create(&space, "every", every.clone());
    space.unschedulable("every").unwrap();
    // A monitor reads all cards while they are in use, if its namespace may.
    let mut monitor = every;
    monitor["requests"][0]["exactly"]["adminAccess"] = json!(true);
    let refused = space
        .create_object(&space.devices("resourceclaimtemplates"), &template("monitor", &monitor["requests"]));
    assert!(refused.is_err(), "administrative access without the namespace's label");
    let label = ["label", "namespace", space.name(), "resource.kubernetes.io/admin-access=true"];
    stage.client().kubectl(&label, "").unwrap();
    // The scheduler compares even such a request with the capacity that is left (docs/upstream/admin-access-capacity.md).
    create(&space, "greedy", monitor.clone());
    space.unschedulable("greedy").unwrap();
    monitor["requests"][0]["exactly"]["capacity"] = json!({"requests": {"memory": "1Mi"}});
    create(&space, "monitor", monitor);
    space.running("monitor", 1, PATIENCE).unwrap();
    assert_eq!(devices(&space, "monitor").len(), 2);
    let seen = space.exec("monitor", &["tenant", "smi"]).unwrap().out;
    assert_eq!(seen.lines().count(), 2, "{seen}");

    assert!(space.running("every", 1, BRIEFLY).is_err(), "all cards were given while shares are held");
    // The one that holds both cards is the last: until 1.37 "all" is every card with room (upstream-differences.md).
    for pod in ["same", "unbound", "greedy", "apart"] {
        space.delete_pod(pod, None).unwrap();
    }
    space.running("every", 1, PATIENCE).unwrap();
    assert_eq!(devices(&space, "every").len(), 2);
    space.delete().unwrap();
    stage.finish();
}
