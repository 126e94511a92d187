//! What claims cost: the start of a Pod, writes to the API server, and the scheduler's throughput. The suite measures little
//! of each; `ALIQUOT_CLUSTER_ROUNDS` asks for more, as the figures of `benches/results` do.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use aliquot_cluster::{Api, Namespace, Scope};
use aliquot_core::offer::classes;
use aliquot_driver::manifest::Object;
use aliquot_tests::scenes::{Scene, scenes};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage, pod, template};
use crate::world::{Turn, World, needs_own};

const ROUNDS_VARIABLE: &str = "ALIQUOT_CLUSTER_ROUNDS";
/// Resources that the agent writes, as the API server's metrics name them.
const WRITTEN: [&str; 2] = ["resourceslices", "resourceclaims"];
const NODES: usize = 100;

/// Repetitions: a few in the suite.
fn rounds(few: usize) -> usize {
    std::env::var(ROUNDS_VARIABLE).map_or(few, |rounds| rounds.parse().unwrap())
}

/// The median, the 99th percentile and the number of some durations.
pub(crate) fn summary(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)].as_millis();
    format!("p50 {} ms, p99 {} ms of {}", at(50), at(99), times.len())
}

fn requests(class: &str, capacity: &Value) -> Value {
    let mut exactly = json!({"deviceClassName": class});
    if !capacity.is_null() {
        exactly["capacity"] = json!({"requests": capacity});
    }
    json!([{"name": "gpu", "exactly": exactly}])
}

/// Creates a Pod and returns the time until it runs.
pub(crate) fn start(space: &Namespace<'_>, stage: &Stage, name: &str, claims: &[(&str, &str)]) -> Duration {
    let began = Instant::now();
    space.create_object(&space.core("pods"), &pod(name, claims)).unwrap();
    let path = format!("{}?fieldSelector=metadata.name={name}", space.core("pods"));
    let running = |pods: &BTreeMap<String, Value>| {
        (pods.values().next()?["status"]["phase"] == json!("Running")).then_some(())
    };
    stage.api().wait(&path, "the Pod runs", PATIENCE, running).unwrap();
    began.elapsed()
}

/// Writes of the API server to [`WRITTEN`] since its start.
fn writes(api: &Api) -> u64 {
    let metrics = api.text("/metrics").unwrap();
    let written = metrics.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && WRITTEN.iter().any(|resource| line.contains(&format!("resource=\"{resource}\"")))
            && ["POST", "PUT", "PATCH", "APPLY", "DELETE"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    });
    written.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn start_of_pods_and_api_writes_are_measured() {
    if needs_own() {
        return;
    }
    let Some(mut stage) = Stage::empty("figures") else { return };
    let before = writes(stage.api());
    stage.start_agent("mixed", "default = \"shared\"\n[[rule]]\nindex = 0\nlayout = \"dynamic\"\n");
    println!("writes at the agent's start, a node of 6 cards: {}", writes(stage.api()) - before);
    let space = stage.namespace("all");
    let kinds = [
        ("share", requests("share.aliquot.dev", &json!({"memory": "4Gi", "cores": "25"}))),
        ("template", requests("mig-1g-10gb.aliquot.dev", &Value::Null)),
    ];
    for (name, requests) in &kinds {
        space.create_object(&space.devices("resourceclaimtemplates"), &template(name, requests)).unwrap();
    }
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut of_pods = 0;
    let rounds = rounds(3);
    for round in 0..rounds {
        for (kind, claims) in
            [("share", &[("gpu", "share")][..]), ("template", &[("gpu", "template")]), ("none", &[])]
        {
            let name = format!("{kind}-{round}");
            let before = writes(stage.api());
            times.entry(kind).or_default().push(start(&space, &stage, &name, claims));
            space.delete_pod(&name, None).unwrap();
            space.wait_without_claims().unwrap();
            of_pods += writes(stage.api()) - before;
        }
    }
    for (kind, times) in times {
        println!("created to Running, {kind}: {}", summary(times));
    }
    println!("writes of {} Pods with claims, from all components: {of_pods}", 2 * rounds);
    start(&space, &stage, "steady", &[("gpu", "share")]);
    let steady = Duration::from_secs(u64::try_from(rounds.min(60)).unwrap());
    // The Pod's own status is written a little after it runs.
    thread::sleep(Duration::from_secs(2));
    let before = writes(stage.api());
    thread::sleep(steady);
    assert_eq!(writes(stage.api()) - before, 0, "writes in {} s without a change", steady.as_secs());
    space.delete().unwrap();
    stage.finish();
}

/// A slice under another node's name, which also begins the names of its pools.
fn renamed(text: &Value, from: &str, to: &str) -> Value {
    let whole = text.to_string().replace(&format!("\"{from}\""), &format!("\"{to}\""));
    let text = whole.replace(&format!("\"{from}/"), &format!("\"{to}/"));
    serde_json::from_str(&text).unwrap()
}

/// Publishes nodes of 8 cards in a layout.
fn publish(api: &Api, scene: &Scene) {
    let capacity = json!({"cpu": "64", "memory": "512Gi", "pods": "1000"});
    for number in 0..NODES {
        let node = format!("node-{number}");
        let ready = json!([{"type": "Ready", "status": "True", "reason": "Test", "message": "no kubelet"}]);
        let status = json!({"capacity": capacity, "allocatable": capacity, "conditions": ready});
        let object =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": status});
        api.create("/api/v1/nodes", &object).unwrap();
        for (place, slice) in scene.slices.iter().enumerate() {
            let mut slice = renamed(&Object::Slice(slice).json(), scene.node.name.as_str(), &node);
            slice["metadata"]["name"] = json!(format!("{node}-{place}"));
            api.create("/apis/resource.k8s.io/v1/resourceslices", &slice).unwrap();
        }
    }
    for class in classes(&scene.slices) {
        api.create("/apis/resource.k8s.io/v1/deviceclasses", &Object::Class(&class).json()).unwrap();
    }
    let untainted =
        |nodes: &BTreeMap<String, Value>| nodes.values().all(|n| n["spec"]["taints"].is_null()).then_some(());
    api.wait("/api/v1/nodes", "no node has a taint", PATIENCE, untainted).unwrap();
}

/// Pods a second, from the first one created to the last one placed.
fn throughput(api: &Api, pods: usize) -> f64 {
    let (mut claims, mut objects) = (Vec::new(), Vec::new());
    for number in 0..pods {
        let name = format!("pod-{number}");
        let request = json!([{"name": "gpu", "exactly": {"deviceClassName": "card.aliquot.dev"}}]);
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": request}},
        });
        claims.push(("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims".to_owned(), claim));
        let mut object = pod(&name, &[]);
        object["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": name}]);
        objects.push(("/api/v1/namespaces/default/pods".to_owned(), object));
    }
    api.create_all(&claims, 50).unwrap();
    let began = Instant::now();
    api.create_all(&objects, 50).unwrap();
    let placed = |all: &BTreeMap<String, Value>| {
        (all.len() == pods && all.values().all(|pod| pod["spec"]["nodeName"].is_string())).then_some(())
    };
    api.wait("/api/v1/namespaces/default/pods", "every Pod is placed", PATIENCE * 5, placed).unwrap();
    f64::from(u32::try_from(pods).unwrap()) / began.elapsed().as_secs_f64()
}

#[test]
fn scheduler_throughput_is_measured_by_layout() {
    if needs_own() {
        return;
    }
    let _turn = Turn::beside();
    let pods = rounds(100).min(NODES * 8);
    for layout in ["shared", "whole"] {
        let Some(world) = World::start("rate", Scope::ControlPlane) else { return };
        let name = format!("h100-8 {layout} 1.36");
        let scene = scenes().unwrap().into_iter().find(|scene| scene.name == name);
        let scene = scene.unwrap_or_else(|| panic!("found no scene {name}"));
        publish(world.api(), &scene);
        let rate = throughput(world.api(), pods);
        println!("{NODES} nodes of 8 cards, layout {layout}: {pods} Pods, {rate:.0} a second");
    }
}
