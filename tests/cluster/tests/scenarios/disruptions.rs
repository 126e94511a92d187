//! Scenario 6: components end and come back, objects are removed by force, and nothing is lost or left.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use aliquot_cluster::Namespace;
use aliquot_tests::generate::Random;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::shares::share;
use crate::stage::{BRIEFLY, PATIENCE, SLICES, Stage, pod, template};
use crate::world::needs_own;

const MEMORY: u64 = 2 << 30;
/// Pods that come and go while the agent is killed.
const ROUNDS: usize = 8;
/// Variable with the seconds for which the API server is away; a longer time is for soak runs.
const AWAY_VARIABLE: &str = "ALIQUOT_CLUSTER_AWAY_SECONDS";
const AWAY: u64 = 10;

fn begin(name: &'static str) -> Option<Stage> {
    if needs_own() {
        return None;
    }
    Stage::with_agent(name, "t4-2", "shared")
}

pub(crate) fn space(stage: &Stage) -> Namespace<'_> {
    let space = stage.namespace("all");
    space
        .create_object(&space.devices("resourceclaimtemplates"), &template("share", &share(MEMORY, 10)))
        .unwrap();
    space
}

pub(crate) fn create(space: &Namespace<'_>, name: &str) {
    space.create_object(&space.core("pods"), &pod(name, &[("gpu", "share")])).unwrap();
}

/// Whether a Pod still is held to its share.
#[track_caller]
pub(crate) fn held(space: &Namespace<'_>, pod: &str) {
    let said = space.exec(pod, &["tenant", "fill"]).unwrap();
    assert!(
        said.out.starts_with(&format!("total {MEMORY} ")) && said.out.ends_with("code 2\n"),
        "{pod}: {said:?}"
    );
}

fn restarts(space: &Namespace<'_>, pod: &str) -> u64 {
    space.pod(pod).unwrap()["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap()
}

#[test]
fn pods_survive_restarts_of_kubelet_and_agent() {
    let Some(stage) = begin("restarts") else { return };
    let space = space(&stage);
    create(&space, "first");
    space.running("first", 1, PATIENCE).unwrap();
    let cluster = stage.cluster();
    cluster.end_process("kubelet", Signal::SIGTERM).unwrap();
    cluster.start_component("kubelet").unwrap();
    stage.agent().wait_until_ready(cluster).unwrap();
    create(&space, "second");
    space.running("second", 1, PATIENCE).unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        stage.agent().end(cluster, signal).unwrap();
        held(&space, "first");
        // An agent that does not come back has to be caught.
        create(&space, "without-agent");
        assert!(
            space.running("without-agent", 1, BRIEFLY).is_err(),
            "a Pod with a claim runs without an agent"
        );
        space.delete_pod("without-agent", Some(0)).unwrap();
        stage.agent().start_again(cluster).unwrap();
        stage.agent().wait_until_ready(cluster).unwrap();
    }
    create(&space, "third");
    space.running("third", 1, PATIENCE).unwrap();
    for pod in ["first", "second", "third"] {
        held(&space, pod);
        assert_eq!(restarts(&space, pod), 0, "{pod}");
    }
    // What is left of claims at the end of a scenario is seen: each has a CDI file and a grant.
    assert!(stage.files_of_claims().len() >= 6, "found {:?}", stage.files_of_claims());
    space.delete().unwrap();
    stage.finish();
}

#[test]
fn pods_come_and_go_while_the_agent_is_killed() {
    let Some(stage) = begin("kills") else { return };
    let space = space(&stage);
    let seed = std::env::var("ALIQUOT_CLUSTER_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for round in 0..ROUNDS {
        create(&space, &format!("pod-{round}"));
        if round > 1 {
            let path = format!("{}/pod-{}", space.core("pods"), round - 2);
            stage.api().delete(&path, None).unwrap();
        }
        thread::sleep(Duration::from_millis(random.bits() % 1000));
        stage.agent().end(stage.cluster(), Signal::SIGKILL).unwrap();
        stage.agent().start_again(stage.cluster()).unwrap();
    }
    stage.agent().wait_until_ready(stage.cluster()).unwrap();
    // The kubelet retries a Pod after a failed preparation some seconds later.
    space.running("pod-", 2, PATIENCE * 2).unwrap();
    held(&space, &format!("pod-{}", ROUNDS - 1));
    space.delete().unwrap();
    stage.finish();
}

#[test]
fn pods_are_held_to_their_shares_after_a_reboot() {
    let Some(stage) = begin("reboot") else { return };
    let space = space(&stage);
    create(&space, "first");
    space.running("first", 1, PATIENCE).unwrap();
    let cluster = stage.cluster();
    cluster.end_process("kubelet", Signal::SIGKILL).unwrap();
    stage.agent().end(cluster, Signal::SIGKILL).unwrap();
    // A reboot ends all containers and empties what is in memory.
    cluster.end_containers().unwrap();
    for directory in ["run-cdi", "run-aliquot"] {
        for entry in fs::read_dir(cluster.place().path(directory)).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.unwrap();
        }
    }
    cluster.start_component("kubelet").unwrap();
    // Without the agent, which writes them again, the container does not start without limits.
    thread::sleep(BRIEFLY);
    assert_eq!(restarts(&space, "first"), 0, "a container was started without its CDI file");
    stage.agent().start_again(cluster).unwrap();
    stage.agent().wait_until_ready(cluster).unwrap();
    stage.wait_for("the Pod's container is started again", || restarts(&space, "first") == 1);
    space.running("first", 1, PATIENCE).unwrap();
    held(&space, "first");
    space.delete().unwrap();
    stage.finish();
}

#[test]
fn claims_are_released_after_the_api_server_was_away() {
    let Some(stage) = begin("away") else { return };
    let space = space(&stage);
    for pod in ["first", "second"] {
        create(&space, pod);
        space.running(pod, 1, PATIENCE).unwrap();
    }
    let away = std::env::var(AWAY_VARIABLE).map_or(AWAY, |seconds| seconds.parse().unwrap());
    let cluster = stage.cluster();
    cluster.end_process("kube-apiserver", Signal::SIGKILL).unwrap();
    thread::sleep(Duration::from_secs(away));
    assert!(space.pod("first").is_err(), "the API server is not away");
    cluster.start_component("kube-apiserver").unwrap();
    held(&space, "first");
    space.delete_pod("first", None).unwrap();
    create(&space, "third");
    space.running("third", 1, PATIENCE).unwrap();
    held(&space, "third");
    assert_eq!(restarts(&space, "second"), 0);
    space.delete().unwrap();
    stage.finish();
}

#[test]
fn claims_of_objects_removed_by_force_are_released() {
    let Some(stage) = begin("force") else { return };
    let space = space(&stage);
    create(&space, "first");
    create(&space, "second");
    space.running("first", 1, PATIENCE).unwrap();
    space.running("second", 1, PATIENCE).unwrap();
    let prepared = |count: u64| {
        stage.wait_for(&format!("{count} prepared claims"), || {
            stage.agent().metric("aliquot_dra_prepared_claims").is_ok_and(|found| found == count)
        });
    };
    prepared(2);
    space.delete_pod("first", Some(0)).unwrap();
    prepared(1);
    // The claim's finalizer is taken away: the object is gone while its Pod runs.
    let claim = space.allocations().unwrap().into_keys().find(|claim| claim.starts_with("second-")).unwrap();
    let path = format!("{}/{claim}", space.devices("resourceclaims"));
    stage.api().delete(&path, None).unwrap();
    stage.api().merge(&path, &json!({"metadata": {"finalizers": null}})).unwrap();
    space.delete_pod("second", Some(0)).unwrap();
    prepared(0);
    create(&space, "third");
    space.running("third", 1, PATIENCE).unwrap();
    // The documented way to empty a node.
    let node = stage.cluster().node();
    let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s"];
    stage.client().kubectl(&drain, "").unwrap();
    prepared(0);
    // The driver is removed: the kubelet wipes its slices, and nothing of a claim is left on the node.
    stage.agent().end(stage.cluster(), Signal::SIGTERM).unwrap();
    assert_eq!(stage.files_of_claims(), Vec::<PathBuf>::new(), "CDI files and grants of a removed driver");
    stage.wait_for("the slices are gone", || {
        stage.api().get(SLICES).is_ok_and(|slices| slices["items"] == json!([]))
    });
    stage.agent().start_again(stage.cluster()).unwrap();
    stage.agent().wait_until_ready(stage.cluster()).unwrap();
    stage.client().kubectl(&["uncordon", &node], "").unwrap();
    create(&space, "fourth");
    space.running("fourth", 1, PATIENCE).unwrap();
    space.delete().unwrap();
    stage.finish();
}
