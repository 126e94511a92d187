//! Scenario 5: the real scheduler and `aliquot plan` agree on random claims, with deletions in between.
//!
//! The nodes are objects without a kubelet. Each round creates a claim and a Pod, waits for the scheduler's decision, and
//! asks `aliquot plan` about the same objects: on the chosen node if the Pod has one, else on all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use aliquot_cluster::{Api, Scope};
use aliquot_core::dra::ResourceSlice;
use aliquot_core::offer::classes;
use aliquot_driver::manifest::Object;
use aliquot_tests::command_line::ran;
use aliquot_tests::generate::Random;
use aliquot_tests::scenes::{Scene, scenes};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::given::kubeconfig;
use crate::world::{Turn, World};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";
const PATIENCE: Duration = Duration::from_secs(180);
const ROUNDS: usize = 500;
/// The personality and layout of each node.
const NODES: [&str; 6] = [
    "h100-8 dynamic 1.36",
    "a100-4 split 1.36",
    "ascend-310p dynamic 1.36",
    "ascend-910b3-8 auto 1.36",
    "t4-2 shared 1.36",
    "rtx-pro-6000 slots 1.36",
];

/// The scenes of [`NODES`] as one: every node publishes what it offers.
fn fleet() -> (Vec<Scene>, Scene) {
    let all = scenes().unwrap();
    let found: Vec<Scene> = NODES
        .iter()
        .map(|name| {
            let names: Vec<&str> = all.iter().map(|scene| scene.name.as_str()).collect();
            all.iter()
                .find(|scene| scene.name == *name)
                .unwrap_or_else(|| panic!("{name}: found {names:?}"))
                .clone()
        })
        .collect();
    let slices: Vec<ResourceSlice> = found.iter().flat_map(|scene| scene.slices.clone()).collect();
    let first = found[0].clone();
    let together = Scene { name: "all".to_owned(), classes: classes(&slices), slices, ..first };
    (found, together)
}

fn node(scene: &Scene) -> Value {
    let capacity = json!({"cpu": "64", "memory": "512Gi", "pods": "1000"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": scene.node.name, "labels": scene.node.labels},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "no kubelet"}],
        },
    })
}

/// Creates nodes, slices and classes, and waits until the nodes take Pods.
fn publish(api: &Api, scenes: &[Scene], together: &Scene) {
    for scene in scenes {
        api.create("/api/v1/nodes", &node(scene)).unwrap();
    }
    for slice in &together.slices {
        api.create("/apis/resource.k8s.io/v1/resourceslices", &Object::Slice(slice).json()).unwrap();
    }
    for class in &together.classes {
        api.create("/apis/resource.k8s.io/v1/deviceclasses", &Object::Class(class).json()).unwrap();
    }
    let untainted = |nodes: &BTreeMap<String, Value>| {
        let all = scenes
            .iter()
            .all(|scene| nodes.get(&scene.node.name).is_some_and(|n| n["spec"]["taints"].is_null()));
        all.then_some(())
    };
    api.wait("/api/v1/nodes", "no node has a taint", PATIENCE, untainted).unwrap();
}

/// Removes what [`publish`] created, from a cluster that stays.
fn withdraw(api: &Api, scenes: &[Scene], together: &Scene) {
    let objects = |collection: &str, objects: Vec<Value>| -> Vec<String> {
        let name = |object: Value| object["metadata"]["name"].as_str().map(str::to_owned);
        objects.into_iter().filter_map(name).map(|name| format!("{collection}/{name}")).collect()
    };
    let slices = together.slices.iter().map(|slice| Object::Slice(slice).json()).collect();
    let classes = together.classes.iter().map(|class| Object::Class(class).json()).collect();
    let all = [
        objects("/api/v1/nodes", scenes.iter().map(node).collect()),
        objects("/apis/resource.k8s.io/v1/resourceslices", slices),
        objects("/apis/resource.k8s.io/v1/deviceclasses", classes),
    ];
    for path in all.concat() {
        api.delete(&path, None).unwrap();
    }
}

/// The scheduler's decision on a Pod: its node, or none.
fn decision(api: &Api, pod: &str) -> Option<String> {
    let path = format!("{PODS}?fieldSelector=metadata.name={pod}");
    api.wait(&path, "the scheduler decides", PATIENCE, |pods| {
        let pod = pods.values().next()?;
        if let Some(node) = pod["spec"]["nodeName"].as_str() {
            return Some(Some(node.to_owned()));
        }
        let conditions = pod["status"]["conditions"].as_array()?;
        conditions
            .iter()
            .any(|c| c["type"] == json!("PodScheduled") && c["status"] == json!("False"))
            .then_some(None)
    })
    .unwrap()
}

/// What a claim got, in a form that both sides can be brought to: the IDs of shares are drawn by each side for itself.
fn results(claim: &Value) -> Vec<Value> {
    let mut results =
        claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
    for result in &mut results {
        if let Some(fields) = result.as_object_mut() {
            fields.remove("shareID");
        }
    }
    results
}

/// `aliquot plan` on these objects.
fn plan(items: &[Value]) -> Value {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("dump.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    let words = ["aliquot", "plan", "-o", "json", "--kubernetes", "1.36.3", "-f"].map(OsString::from);
    let ran = ran(words.into_iter().chain([file.into_os_string()]));
    serde_json::from_str(&ran.out)
        .unwrap_or_else(|error| panic!("aliquot plan: {error}: {} {}", ran.err, ran.out))
}

/// One scheduler against one planner.
struct Match<'a> {
    api: &'a Api,
    scenes: &'a [Scene],
    /// What the planner believes is published.
    believed: &'a Scene,
    random: Random,
    held: BTreeSet<String>,
    placed: usize,
    refused: usize,
}

impl Match<'_> {
    /// Plays one round and returns the difference, if there is one.
    fn round(&mut self, number: usize) -> Option<String> {
        if self.random.percent(35) && !self.held.is_empty() {
            let held: Vec<String> = self.held.iter().cloned().collect();
            self.remove(&self.random.clone().pick(&held).clone());
            let _drawn = self.random.bits();
        }
        let name = format!("claim-{number}");
        let mut claim = self.believed.claims(&mut self.random, 1).remove(0);
        claim["apiVersion"] = json!("resource.k8s.io/v1");
        claim["kind"] = json!("ResourceClaim");
        claim["metadata"] = json!({"name": name, "namespace": "default"});
        let before = self.api.get(CLAIMS).unwrap()["items"].clone();
        let created = self.api.create(CLAIMS, &claim).unwrap();
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "containers": [{"name": "main", "image": "localhost/none:1", "resources": {"claims": [{"name": "c"}]}}],
                "resourceClaims": [{"name": "c", "resourceClaimName": name}],
            },
        });
        self.api.create(PODS, &pod).unwrap();
        let theirs = decision(self.api, &name);
        let allocated = results(&self.api.get(&format!("{CLAIMS}/{name}")).unwrap());
        let (outcome, ours) = self.ours(theirs.as_deref(), &before, created, &pod);
        match &theirs {
            Some(_) => self.placed += 1,
            None => self.refused += 1,
        }
        self.held.insert(name.clone());
        if theirs.is_none() {
            // It would be tried again after the next deletion.
            self.remove(&name);
        }
        let agree = (outcome["outcome"] == json!("placed")) == theirs.is_some() && ours == allocated;
        (!agree).then(|| {
            format!(
                "{name} {}:\n  scheduler {theirs:?} {}\n  plan      {outcome} {}",
                claim["spec"],
                json!(allocated),
                json!(ours)
            )
        })
    }

    /// The planner's outcome and results for the same claim and Pod.
    fn ours(
        &self,
        node_name: Option<&str>,
        before: &Value,
        mut claim: Value,
        pod: &Value,
    ) -> (Value, Vec<Value>) {
        let name = claim["metadata"]["name"].clone();
        let mut items: Vec<Value> = self
            .scenes
            .iter()
            .filter(|scene| node_name.is_none_or(|name| name == scene.node.name))
            .map(node)
            .collect();
        items.extend(self.believed.slices.iter().map(|slice| Object::Slice(slice).json()));
        items.extend(self.believed.classes.iter().map(|class| Object::Class(class).json()));
        claim["apiVersion"] = json!("resource.k8s.io/v1");
        claim["kind"] = json!("ResourceClaim");
        for mut held in before.as_array().cloned().unwrap_or_default() {
            held["apiVersion"] = json!("resource.k8s.io/v1");
            held["kind"] = json!("ResourceClaim");
            items.push(held);
        }
        items.extend([claim, pod.clone()]);
        let answer = plan(&items);
        let label = format!("default/{}", name.as_str().unwrap_or_default());
        let outcomes = answer["outcomes"].as_array().cloned().unwrap_or_default();
        let outcome = outcomes.into_iter().find(|outcome| {
            outcome["claims"].as_array().is_some_and(|claims| claims.contains(&json!(label)))
        });
        let items = answer["items"].as_array().cloned().unwrap_or_default();
        let planned = items.into_iter().find(|item| item["metadata"]["name"] == name);
        (outcome.unwrap_or_default(), planned.map(|claim| results(&claim)).unwrap_or_default())
    }

    /// Deletes a Pod and its claim, and waits until the devices are free.
    fn remove(&mut self, name: &str) {
        self.held.remove(name);
        self.api.delete(&format!("{PODS}/{name}"), Some(0)).unwrap();
        self.api.delete(&format!("{CLAIMS}/{name}"), None).unwrap();
        let path = format!("{CLAIMS}?fieldSelector=metadata.name={name}");
        self.api
            .wait(&path, "the claim is gone", PATIENCE, |claims| claims.is_empty().then_some(()))
            .unwrap();
    }
}

/// Plays rounds against a scheduler that sees `published`, with a planner that believes `believed`.
fn play(
    world: &World,
    scenes: &[Scene],
    believed: &Scene,
    rounds: usize,
    seed: u64,
) -> (Vec<String>, usize, usize) {
    let random = Random::new(seed);
    let held = BTreeSet::new();
    let mut game = Match { api: world.api(), scenes, believed, random, held, placed: 0, refused: 0 };
    let differences = (0..rounds).filter_map(|number| game.round(number)).collect();
    let held: Vec<String> = game.held.iter().cloned().collect();
    for name in held {
        game.remove(&name);
    }
    (differences, game.placed, game.refused)
}

#[test]
fn scheduler_and_plan_agree_on_random_claims() {
    // On a given cluster the classes are those that the other scenarios install.
    let _turn = if kubeconfig().is_some() { Turn::alone() } else { Turn::beside() };
    let Some(world) = World::start("agree", Scope::ControlPlane) else { return };
    let (scenes, together) = fleet();
    publish(world.api(), &scenes, &together);
    let seed = std::env::var("ALIQUOT_CLUSTER_SEED").map_or(1, |seed| seed.parse().unwrap());
    let (differences, placed, refused) = play(&world, &scenes, &together, ROUNDS, seed);
    // A planner that takes every card for another one has to be caught.
    let mut broken = together.clone();
    for device in broken.slices.iter_mut().flat_map(|slice| slice.devices.iter_mut()) {
        device.capacity.clear();
    }
    let (noticed, _, _) = play(&world, &scenes, &broken, 20, seed);
    withdraw(world.api(), &scenes, &together);
    println!("seed {seed}: {placed} placed, {refused} refused, {} differ", differences.len());
    assert!(differences.is_empty(), "seed {seed}:\n{}", differences.join("\n"));
    assert!(
        placed >= ROUNDS / 4 && refused >= ROUNDS / 10,
        "seed {seed}: {placed} placed, {refused} refused"
    );
    assert!(!noticed.is_empty(), "a planner without capacities was not noticed");
}
