//! Scenario 3: the first claim decides what a card becomes: partitions, shares or one whole card. The next kind waits until
//! the last claim of the first one is gone.

use std::time::Duration;

use aliquot_cluster::Namespace;
use serde_json::{Value, json};

use crate::shares::share;
use crate::stage::{BRIEFLY, PATIENCE, Stage, pod, template};

/// Sets of Pods that fill the card together: template and number of Pods.
const SETS: [&[(&str, usize)]; 3] = [&[("1g", 7)], &[("3g", 2)], &[("4g", 1), ("3g", 1)]];
/// More than the card has.
const TOO_MANY: &[(&str, usize)] = &[("4g", 2)];
// They leave room on the card: the scheduler may count a claim twice for a moment, and a Pod that fits only then waits five minutes
// (`docs/upstream/capacity-in-flight-counted-twice.md`).
const SHARES: usize = 20;

fn templates(space: &Namespace<'_>) {
    let class = |name: &str| json!([{"name": "gpu", "exactly": {"deviceClassName": name}}]);
    let in_partition = json!([{"name": "gpu", "exactly": {
        "deviceClassName": "mig-3g-71gb.aliquot.dev",
        "capacity": {"requests": {"memory": "4Gi", "cores": "10"}},
    }}]);
    let all = [
        ("1g", class("mig-1g-18gb.aliquot.dev")),
        ("3g", class("mig-3g-71gb.aliquot.dev")),
        ("4g", class("mig-4g-71gb.aliquot.dev")),
        ("card", class("card.aliquot.dev")),
        ("share", share(4 << 30, 4)),
        ("in-partition", in_partition),
    ];
    for (name, requests) in all {
        space.create_object(&space.devices("resourceclaimtemplates"), &template(name, &requests)).unwrap();
    }
}

fn create(space: &Namespace<'_>, name: &str, template: &str) {
    space.create_object(&space.core("pods"), &pod(name, &[("gpu", template)])).unwrap();
}

/// Runs a set of Pods at the same time; each sees one MIG device.
fn run_set(space: &Namespace<'_>, set: &[(&str, usize)], patience: Duration) -> Result<Vec<String>, String> {
    let names: Vec<(String, &str)> = set
        .iter()
        .flat_map(|(template, count)| {
            (0..*count).map(move |number| (format!("set-{template}-{number}"), *template))
        })
        .collect();
    for (name, template) in &names {
        create(space, name, template);
    }
    let running = space.running("set-", names.len(), patience).map_err(|error| error.to_string())?;
    for pod in &running {
        let said = space.exec(pod, &["tenant", "smi"]).map_err(|error| error.to_string())?;
        if said.out.lines().count() != 1 || !said.out.contains("MIG-") {
            return Err(format!("{pod}: found {said:?}, expected one MIG device"));
        }
    }
    Ok(running)
}

fn remove(space: &Namespace<'_>, beginning: &str) {
    let list = space.kubectl(&["get", "pods", "-o", "name"], "").unwrap();
    let names = list.lines().filter_map(|line| line.strip_prefix("pod/"));
    let names: Vec<&str> = names.filter(|name| name.starts_with(beginning)).collect();
    let words: Vec<&str> = ["delete", "pods", "--wait=true"].into_iter().chain(names).collect();
    space.kubectl(&words, "").unwrap();
}

/// The Pod waits while the others hold the card, and runs when they are gone.
fn waits_for(space: &Namespace<'_>, name: &str, template: &str, holders: &str) {
    create(space, name, template);
    space.unschedulable(name).unwrap();
    remove(space, holders);
    space.running(name, 1, PATIENCE).unwrap();
}

#[test]
fn first_claim_decides_what_a_card_becomes() {
    let Some(stage) = Stage::with_agent("mig", "h200", "dynamic") else { return };
    let space = stage.namespace("all");
    templates(&space);
    for set in SETS {
        let running = run_set(&space, set, PATIENCE).unwrap();
        println!("at the same time: {running:?}");
        remove(&space, "set-");
        space.wait_without_claims().unwrap();
    }
    assert!(run_set(&space, TOO_MANY, BRIEFLY).is_err(), "more partitions than a card has were placed");
    // Partitioned: a whole card waits for it, and a share waits for the whole card.
    waits_for(&space, "whole", "card", "set-");
    waits_for(&space, "share-0", "share", "whole");
    for number in 1..SHARES {
        create(&space, &format!("share-{number}"), "share");
    }
    let sharing = space.running("share-", SHARES, PATIENCE).unwrap();
    let limited = space.exec(&sharing[SHARES - 1], &["tenant", "smi"]).unwrap();
    assert!(limited.out.contains(&format!("total {} ", 4_u64 << 30)), "{limited:?}");
    waits_for(&space, "in-partition-0", "in-partition", "share-");
    create(&space, "in-partition-1", "in-partition");
    space.running("in-partition-", 2, PATIENCE).unwrap();
    let devices: Vec<Value> =
        space.allocations().unwrap().into_values().flatten().map(|result| result["device"].clone()).collect();
    assert_eq!(devices[0], devices[1], "two shares of one partition");
    let inside = space.exec("in-partition-0", &["tenant", "smi"]).unwrap().out;
    assert!(inside.contains("MIG-") && inside.contains(&format!("total {} ", 4_u64 << 30)), "{inside}");
    extended_resource(&space);
    space.delete().unwrap();
    stage.finish();
}

/// A Pod that names no claim: the scheduler makes one for its extended resource.
fn extended_resource(space: &Namespace<'_>) {
    let mut old = pod("old-style", &[]);
    old["spec"]["containers"][0]["resources"] = json!({"limits": {"aliquot.dev/mig-3g-71gb": "1"}});
    space.create_object(&space.core("pods"), &old).unwrap();
    space.running("old-style", 1, PATIENCE).unwrap();
    let said = space.exec("old-style", &["tenant", "smi"]).unwrap().out;
    assert!(said.contains("MIG-"), "old-style: found {said:?}, expected a MIG device");
    // A resource of no class stays with the scheduler.
    old["metadata"]["name"] = json!("no-class");
    old["spec"]["containers"][0]["resources"] = json!({"limits": {"aliquot.dev/mig-9g-71gb": "1"}});
    space.create_object(&space.core("pods"), &old).unwrap();
    space.unschedulable("no-class").unwrap();
}
