//! Scenario 7: what a card reports of itself reaches its slice, the Pods that use it and the scheduler.

use std::time::Duration;

use aliquot_cluster::{ClusterError, Namespace};
use aliquot_sim_device::{Card, Health};
use serde_json::{Value, json};

use crate::shares::share;
use crate::stage::{BRIEFLY, PATIENCE, SLICES, Stage, built, pod, template};
use crate::world::needs_own;

const UNHEALTHY: &str = "aliquot.dev/unhealthy";
/// An error of the card's memory, and one of a program.
const OF_THE_CARD: u64 = 48;
const OF_A_PROGRAM: u64 = 13;

/// The simulated card below the agent's state, as hardware that breaks.
fn card(stage: &Stage, index: usize) -> Card {
    let directory = stage.cluster().place().path(&format!("aliquot/{}/cards", stage.name()));
    aliquot_sim_device::open(&directory).unwrap().card(index).unwrap().clone()
}

/// Waits until so many devices have the taint.
fn tainted(stage: &Stage, count: usize, patience: Duration) -> Result<(), ClusterError> {
    let condition = format!("{count} devices have the taint {UNHEALTHY}");
    let unhealthy = |device: &&Value| {
        device["taints"]
            .as_array()
            .is_some_and(|taints| taints.iter().any(|taint| taint["key"] == json!(UNHEALTHY)))
    };
    Ok(stage.api().wait(SLICES, &condition, patience, |slices| {
        let devices: Vec<Value> = slices
            .values()
            .filter_map(|slice| slice["spec"]["devices"].as_array())
            .flatten()
            .cloned()
            .collect();
        (devices.iter().filter(unhealthy).count() == count).then_some(())
    })?)
}

/// Waits until the kubelet reports this health of the Pod's device.
fn reported(space: &Namespace<'_>, stage: &Stage, name: &str, health: &str) {
    let path = format!("{}?fieldSelector=metadata.name={name}", space.core("pods"));
    let condition = format!("the device of {name} is {health}");
    let waited = stage.api().wait(&path, &condition, PATIENCE, |pods| {
        let container = &pods.values().next()?["status"]["containerStatuses"][0];
        let resources = container["allocatedResourcesStatus"].as_array()?.iter();
        let mut devices = resources.filter_map(|resource| resource["resources"].as_array()).flatten();
        devices.any(|device| device["health"] == json!(health)).then_some(())
    });
    waited.unwrap();
}

fn create(space: &Namespace<'_>, name: &str) -> String {
    space.create_object(&space.core("pods"), &pod(name, &[("gpu", "share")])).unwrap();
    space.running(name, 1, PATIENCE).unwrap();
    let claims = space.allocations().unwrap();
    let (_, results) = claims.into_iter().find(|(claim, _)| claim.starts_with(&format!("{name}-"))).unwrap();
    results[0]["device"].as_str().unwrap().to_owned()
}

/// The documented end of a broken card's exclusion, after its reset.
fn clear_notes(stage: &Stage) {
    let program = built("aliquot").display().to_string();
    let clear = [&program, "health", "--state", &stage.agent().state(), "--clear", "all"];
    let cleared = stage.cluster().run(&clear, "", PATIENCE).unwrap();
    assert_eq!(cleared.code, 0, "{cleared:?}");
}

#[test]
fn broken_card_gets_no_new_pods_until_it_recovers() {
    if needs_own() {
        return;
    }
    let Some(stage) = Stage::with_agent("health", "t4-2", "shared") else { return };
    let space = stage.namespace("all");
    space
        .create_object(&space.devices("resourceclaimtemplates"), &template("share", &share(1 << 30, 10)))
        .unwrap();
    let first = create(&space, "first");
    reported(&space, &stage, "first", "Healthy");
    card(&stage, 0).raise_xid(OF_A_PROGRAM, None);
    assert!(tainted(&stage, 1, BRIEFLY).is_err(), "an error of a program keeps others off the card");

    card(&stage, 0).raise_xid(OF_THE_CARD, None);
    tainted(&stage, 1, PATIENCE).unwrap();
    reported(&space, &stage, "first", "Unhealthy");
    let second = create(&space, "second");
    assert_ne!(first, second, "a new Pod got the card that broke");
    space.running("first", 1, PATIENCE).unwrap();
    clear_notes(&stage);
    tainted(&stage, 0, PATIENCE).unwrap();
    reported(&space, &stage, "first", "Healthy");

    card(&stage, 0).set_health(Health::Lost);
    tainted(&stage, 1, PATIENCE).unwrap();
    reported(&space, &stage, "first", "Unhealthy");
    card(&stage, 0).set_health(Health::Well);
    // The agent's proof ends the loss without an administrator.
    tainted(&stage, 0, PATIENCE).unwrap();
    reported(&space, &stage, "first", "Healthy");
    assert_eq!(create(&space, "third"), first, "the card that recovered is not used");
    space.delete().unwrap();
    stage.finish();
}

/// A request whose claim stays where it is when its device is to be vacated.
fn tolerant(memory: u64) -> Value {
    let mut requests = share(memory, 10);
    requests[0]["exactly"]["tolerations"] =
        json!([{"key": UNHEALTHY, "operator": "Exists", "effect": "NoExecute"}]);
    requests
}

/// Waits until the Pod is gone.
fn evicted(space: &Namespace<'_>, stage: &Stage, name: &str, patience: Duration) -> Result<(), ClusterError> {
    let path = format!("{}?fieldSelector=metadata.name={name}", space.core("pods"));
    Ok(stage.api().wait(&path, "the Pod is evicted", patience, |pods| pods.is_empty().then_some(()))?)
}

#[test]
fn lost_card_evicts_pods_that_do_not_tolerate_it() {
    if needs_own() {
        return;
    }
    let Some(mut stage) = Stage::empty("evict") else { return };
    stage.start_agent("t4-2", "default = \"shared\"\nevict = [\"lost\"]\n");
    let space = stage.namespace("all");
    for (name, requests) in [("share", share(1 << 30, 10)), ("tolerant", tolerant(1 << 30))] {
        space.create_object(&space.devices("resourceclaimtemplates"), &template(name, &requests)).unwrap();
    }
    let leaves = create(&space, "leaves");
    space.create_object(&space.core("pods"), &pod("stays", &[("gpu", "tolerant")])).unwrap();
    space.running("stays", 1, PATIENCE).unwrap();
    let devices = |name: &str| {
        let claims = space.allocations().unwrap().into_iter().filter(|(claim, _)| claim.starts_with(name));
        claims.map(|(_, results)| results[0]["device"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(devices("stays"), [json!(leaves)], "both Pods share a card");

    // An error that the policy does not name: the same card is tainted, and its Pods stay.
    card(&stage, 0).raise_xid(OF_THE_CARD, None);
    reported(&space, &stage, "leaves", "Unhealthy");
    assert!(evicted(&space, &stage, "leaves", BRIEFLY).is_err(), "an Xid ends a Pod, expected a loss alone");

    card(&stage, 0).set_health(Health::Lost);
    evicted(&space, &stage, "leaves", PATIENCE).unwrap();
    stage.wait_for("the claim of the evicted Pod is released", || {
        stage.agent().metric("aliquot_dra_prepared_claims").is_ok_and(|count| count == 1)
    });
    assert_ne!(create(&space, "next"), leaves, "a new Pod got the card that is lost");
    // A claim that tolerates eviction alone gets no place on a broken card.
    space.create_object(&space.core("pods"), &pod("later", &[("gpu", "tolerant")])).unwrap();
    space.running("later", 1, PATIENCE).unwrap();
    assert_ne!(devices("later"), [json!(leaves)], "a new Pod got the card that is lost");
    assert_eq!(space.pod("stays").unwrap()["status"]["phase"], json!("Running"));
    card(&stage, 0).set_health(Health::Well);
    tainted(&stage, 0, PATIENCE).unwrap();
    reported(&space, &stage, "stays", "Healthy");
    space.delete().unwrap();
    stage.finish();
}
