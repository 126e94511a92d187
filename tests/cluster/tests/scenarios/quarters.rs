//! Scenario 2: four quarters of an Ascend 310P, and a fifth that waits for a reason that `aliquot explain` names.

use std::collections::BTreeMap;

use aliquot_cluster::Namespace;
use serde_json::json;

use crate::stage::{PATIENCE, Stage, built, pod, template};

/// `aliquot explain` on the live cluster: exit code and output.
fn explained(stage: &Stage, pod: &str) -> (i32, String) {
    let program = built("aliquot").display().to_string();
    let kubeconfig = stage.client().kubeconfig().display().to_string();
    let words = [&program, "explain", "--cluster", "--kubeconfig", &kubeconfig, pod];
    let said = stage.client().run(&words, "", PATIENCE).unwrap();
    (said.code, said.out + &said.err)
}

fn create(space: &Namespace<'_>, name: &str) {
    space.create_object(&space.core("pods"), &pod(name, &[("npu", "quarter")])).unwrap();
}

/// Id and template of the vNPU whose device node a Pod has, as the NPU's driver reports it in that Pod.
fn vnpu_of(space: &Namespace<'_>, pod: &str) -> (u32, String) {
    let seen = space.exec(pod, &["sh", "-c", "ls /dev | grep '^davinci[0-9]'; tenant npu"]).unwrap();
    assert_eq!(seen.code, 0, "{pod}: {}{}", seen.out, seen.err);
    let lines = || seen.out.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let nodes: Vec<&str> = seen.out.lines().filter_map(|line| line.strip_prefix("davinci")).collect();
    let [node] = nodes[..] else { panic!("{pod}: found {nodes:?}, expected one node: {}", seen.out) };
    let template = lines().find_map(|words| match words[..] {
        ["vnpu", "0", id, template] if id == node => Some(template.to_owned()),
        _ => None,
    });
    let template = template.unwrap_or_else(|| panic!("{pod}: no vNPU {node}: {}", seen.out));
    (node.parse().unwrap(), template)
}

/// Four Pods have the four vNPUs of the chip, each its own.
fn every_pod_has_a_vnpu(space: &Namespace<'_>) {
    let vnpus: BTreeMap<u32, String> =
        (1..=4).map(|number| vnpu_of(space, &format!("quarter-{number}"))).collect();
    assert_eq!(vnpus.len(), 4, "{vnpus:?}");
    let mut templates: Vec<&str> = vnpus.values().map(String::as_str).collect();
    templates.sort_unstable();
    assert_eq!(templates, ["vir02", "vir02", "vir02", "vir02_1c"], "{vnpus:?}");
}

/// Four Pods with a quarter each.
fn four_quarters(stage: &Stage) -> Namespace<'_> {
    let space = stage.namespace("all");
    let request = json!([{"name": "npu", "exactly": {"deviceClassName": "ascend310p-quarter.aliquot.dev"}}]);
    space.create_object(&space.devices("resourceclaimtemplates"), &template("quarter", &request)).unwrap();
    for number in 1..=4 {
        create(&space, &format!("quarter-{number}"));
    }
    space.running("quarter-", 4, PATIENCE).unwrap();
    space
}

#[test]
fn fifth_quarter_of_an_npu_waits_with_a_reason() {
    let Some(stage) = Stage::with_agent("quarters", "ascend-310p", "dynamic") else { return };
    let space = four_quarters(&stage);
    every_pod_has_a_vnpu(&space);
    create(&space, "fifth");
    let refusal = space.unschedulable("fifth").unwrap();
    assert!(refusal.contains("cannot allocate all claims"), "the scheduler said {refusal:?}");
    let (code, said) = explained(&stage, "quarters-all/fifth");
    println!("{said}");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("quarter-"), "explain: found {said}, expected the claims that hold the chip");
    // The reason is true: with one quarter less, the fifth has a place. A scenario that waits for it must not pass before.
    assert!(
        space.running("fifth", 1, crate::stage::BRIEFLY).is_err(),
        "a fifth quarter of one chip was placed"
    );
    space.delete_pod("quarter-2", None).unwrap();
    space.running("fifth", 1, PATIENCE).unwrap();
    let (code, said) = explained(&stage, "quarters-all/fifth");
    assert_eq!(code, 0, "{said}");
    space.delete().unwrap();
    stage.finish();
    // A node with a second chip has to be told apart.
    let Some(stage) = Stage::with_agent("quarters", "ascend-310p-duo", "dynamic") else { return };
    let space = four_quarters(&stage);
    create(&space, "fifth");
    assert!(space.unschedulable("fifth").is_err(), "a fifth quarter of two chips waits");
    space.delete().unwrap();
    stage.finish();
}
