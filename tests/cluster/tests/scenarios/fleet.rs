//! Quota: the manifests of `docs/user/fleet.md`, applied as written.

use std::collections::BTreeMap;
use std::fs;

use aliquot_cluster::Namespace;
use serde_json::{Value, json};

use crate::kueue::{Kueue, QUEUES, WORKLOADS};
use crate::stage::{PATIENCE, Stage, checkout};
use crate::world::needs_own;

const PAGE: &str = "docs/user/fleet.md";
/// Of each kind two Jobs fit into the quota of the page.
const KINDS: [&str; 3] = ["share", "partition", "card"];

/// The YAML block of the page that has this line.
pub(crate) fn block(line: &str) -> String {
    let page = fs::read_to_string(checkout(PAGE)).unwrap();
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut found = blocks.filter(|block| block.lines().any(|one| one == line));
    let block = found.next().unwrap_or_else(|| panic!("{PAGE}: found no block with {line:?}, expected one"));
    assert!(found.next().is_none(), "{PAGE}: found two blocks with {line:?}, expected one");
    block.to_owned()
}

/// The third of three Jobs waits for quota, and runs when one of the others is gone.
fn third_waits(stage: &Stage, space: &Namespace<'_>, kind: &str) {
    let jobs = space.batch("jobs");
    let manifest = block(&format!("  name: {kind}-1"));
    space.apply(&manifest).unwrap();
    space.running(&format!("{kind}-"), 1, PATIENCE).unwrap();
    for number in 2..=3 {
        space
            .apply(&manifest.replace(&format!("name: {kind}-1"), &format!("name: {kind}-{number}")))
            .unwrap();
    }
    space.running(&format!("{kind}-"), 2, PATIENCE).unwrap();
    let suspended = |object: &&Value| object["spec"]["suspend"] == json!(true);
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let waits = |list: Value| -> Vec<String> {
        list["items"].as_array().unwrap().iter().filter(suspended).map(name).collect()
    };
    let waiting = waits(stage.api().get(&jobs).unwrap());
    let [third] = &waiting[..] else { panic!("{kind}: found {waiting:?} waiting, expected one Job") };
    println!("{third}: {}", refusal(stage, space, third));
    let first = if third.ends_with('1') { 2 } else { 1 };
    space.kubectl(&["delete", "job", &format!("{kind}-{first}")], "").unwrap();
    stage.wait_for("the third Job runs", || waits(stage.api().get(&jobs).unwrap()).is_empty());
    space.running(third, 1, PATIENCE).unwrap();
    space.kubectl(&["delete", "jobs", "--all"], "").unwrap();
    space.wait_without_claims().unwrap();
}

/// Why Kueue lets a Job wait.
fn refusal(stage: &Stage, space: &Namespace<'_>, job: &str) -> String {
    let path = format!("{WORKLOADS}/namespaces/{}/workloads", space.name());
    let message = |workloads: &BTreeMap<String, Value>| {
        let of_job = |one: &&Value| one["metadata"]["ownerReferences"][0]["name"] == json!(job);
        let conditions = workloads.values().find(of_job)?["status"]["conditions"].as_array()?.clone();
        let refused = conditions.into_iter().find(|one| one["type"] == json!("QuotaReserved"))?;
        refused["message"]
            .as_str()
            .filter(|said| said.contains("insufficient unused quota"))
            .map(str::to_owned)
    };
    stage.api().wait(&path, "Kueue says why the Job waits", PATIENCE, message).unwrap()
}

#[test]
fn jobs_over_the_quota_of_kueue_wait() {
    if needs_own() {
        return;
    }
    if std::env::var("ALIQUOT_SOAK").as_deref() != Ok("1") {
        println!("stood aside: Kueue is built for minutes; tests/soak plays this");
        return;
    }
    let Some(stage) = Stage::with_agent("kueue", "h100-8", "dynamic") else { return };
    let kueue = Kueue::start(&stage, &block("kind: Configuration"));
    let space = stage.namespace("team-a");
    space.apply(&block("kind: ClusterQueue")).unwrap();
    let active = |queue: &Value| {
        let conditions = queue["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == json!("Active") && one["status"] == json!("True"))
    };
    let queues = stage
        .api()
        .wait(QUEUES, "the queue is active", PATIENCE, |queues| queues.values().any(active).then_some(()));
    queues.unwrap_or_else(|error| panic!("{error}\n{}", kueue.log()));
    for kind in KINDS {
        third_waits(&stage, &space, kind);
    }
    space.delete().unwrap();
    kueue.end();
    stage.finish();
}

#[test]
fn claims_over_a_resource_quota_are_refused() {
    let Some(stage) = Stage::empty("resourcequota") else { return };
    let space = stage.namespace("team-a");
    let quota = block("kind: ResourceQuota");
    space.apply(&quota).unwrap();
    // Before its first count a quota refuses everything.
    stage.wait_for("the quota is counted", || {
        let found = stage.api().get(&format!("{}/team-a", space.core("resourcequotas"))).unwrap();
        found["status"]["used"]["count/resourceclaims.resource.k8s.io"] == json!("0")
    });
    let claim = |name: &str, class: &str| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": class}}]}},
        })
    };
    let path = space.devices("resourceclaims");
    for name in ["first", "second"] {
        space.create_object(&path, &claim(name, "share.aliquot.dev")).unwrap();
    }
    let refused = space.create_object(&path, &claim("third", "share.aliquot.dev")).unwrap_err().to_string();
    assert!(refused.contains("exceeded quota: team-a"), "{refused}");
    space.create_object(&path, &claim("card", "card.aliquot.dev")).unwrap();
    space.delete_claim("first").unwrap();
    stage.wait_for("the quota counts less", || {
        space.create_object(&path, &claim("third", "share.aliquot.dev")).is_ok()
    });
    for name in ["second", "third", "card"] {
        space.delete_claim(name).unwrap();
    }
    space.delete().unwrap();
    stage.finish();
}
