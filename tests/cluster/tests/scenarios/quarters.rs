//! Scenario 2: four quarters of an Ascend 310P, and a fifth that waits for a reason that `aliquot explain` names.

use aliquot_cluster::Namespace;
use serde_json::json;

use crate::stage::{PATIENCE, Stage, built, pod, template};

/// `aliquot explain` on the live cluster: exit code and output.
fn explained(stage: &Stage, pod: &str) -> (i32, String) {
    let program = built("aliquot").display().to_string();
    let kubeconfig = stage.cluster().place().kubeconfig().display().to_string();
    let words = [&program, "explain", "--cluster", "--kubeconfig", &kubeconfig, pod];
    let said = stage.cluster().run(&words, "", PATIENCE).unwrap();
    (said.code, said.out + &said.err)
}

fn create(space: &Namespace<'_>, name: &str) {
    space.create_object(&space.core("pods"), &pod(name, &[("npu", "quarter")])).unwrap();
}

#[test]
fn fifth_quarter_of_an_npu_waits_with_a_reason() {
    let Some(stage) = Stage::with_agent("quarters", "ascend-310p", "dynamic") else { return };
    let space = stage.namespace("all");
    let request = json!([{"name": "npu", "exactly": {"deviceClassName": "ascend310p-quarter.aliquot.dev"}}]);
    space.create_object(&space.devices("resourceclaimtemplates"), &template("quarter", &request)).unwrap();
    for number in 1..=4 {
        create(&space, &format!("quarter-{number}"));
    }
    space.running("quarter-", 4, PATIENCE).unwrap();
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
}
