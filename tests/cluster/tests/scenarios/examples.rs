//! Scenario 1: every file of `deploy/examples` is applied as written, and its Pods run with what they asked for.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use aliquot_cluster::Namespace;
use serde_json::{Value, json};

use crate::shares::HARDWARE;
use crate::stage::{BRIEFLY, PATIENCE, Stage, checkout};

/// Each file in the order in which the node holds all of them at once: the beginning of its Pods' names, and the profiles
/// of the devices that they get.
const EXAMPLES: [(&str, &str, &[&str]); 6] = [
    ("ascend-310p-quarter.yaml", "quarter", &["vir02"]),
    ("ascend-310p-four-quarters.yaml", "four-quarters", &["vir02", "vir02", "vir02", "vir02_1c"]),
    ("mig.yaml", "mig", &["1g.10gb"]),
    ("share-in-partition.yaml", "in-partition", &["2g.20gb", "2g.20gb"]),
    ("shares.yaml", "share", &["whole 8Gi 30", "whole 8Gi 30"]),
    ("prefer-partition.yaml", "prefer-partition", &["3g.20gb", "3g.20gb", "whole 12Gi 40"]),
];
/// Files with claims alone. The first one has no place on any node, the second one none on this node.
const CLAIMS: [(&str, &str); 2] = [("too-large.yaml", "too-large"), ("two-npus.yaml", "two-npus")];

/// How many Pods each file has: one, or the replicas of its Deployment.
fn pods_of(manifest: &str) -> usize {
    let replicas = manifest.lines().find_map(|line| line.trim().strip_prefix("replicas: "));
    replicas.map_or(1, |count| count.parse().unwrap())
}

/// Profile and consumed capacity of each device by its name.
fn profiles(stage: &Stage) -> BTreeMap<String, String> {
    let slices = stage.api().get("/apis/resource.k8s.io/v1/resourceslices").unwrap();
    let items = slices["items"].as_array().cloned().unwrap_or_default();
    let devices =
        items.iter().flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    devices
        .map(|device| {
            let profile = text(&device["attributes"]["profile"]["string"]);
            (text(&device["name"]), if profile.is_empty() { "whole".to_owned() } else { profile })
        })
        .collect()
}

/// The sorted devices of the Pods of a file, as [`EXAMPLES`] writes them.
fn devices_of(stage: &Stage, space: &Namespace<'_>, beginning: &str) -> Vec<String> {
    let profiles = profiles(stage);
    let mut found = Vec::new();
    for (claim, results) in space.allocations().unwrap() {
        if !claim.starts_with(beginning) {
            continue;
        }
        for result in results {
            let profile = profiles.get(result["device"].as_str().unwrap()).cloned().unwrap_or_default();
            let consumed =
                |name: &str| result["consumedCapacity"][name].as_str().unwrap_or_default().to_owned();
            let described = format!("{profile} {} {}", consumed("memory"), consumed("cores"));
            found.push(if profile == "whole" { described } else { profile });
        }
    }
    found.sort();
    found
}

/// Applies a file and compares the devices of its Pods with what it asks for.
fn play(
    stage: &Stage,
    space: &Namespace<'_>,
    manifest: &str,
    beginning: &str,
    expected: &[&str],
    patience: Duration,
) -> Result<(), String> {
    space.apply(manifest).map_err(|error| error.to_string())?;
    space.running(beginning, pods_of(manifest), patience).map_err(|error| error.to_string())?;
    let found = devices_of(stage, space, beginning);
    (found == expected)
        .then_some(())
        .ok_or_else(|| format!("{beginning}: found {found:?}, expected {expected:?}"))
}

#[test]
fn every_example_runs_as_written() {
    let Some(stage) = Stage::with_agent("examples", "mixed", "dynamic") else { return };
    let space = stage.namespace("all");
    let text = |file: &str| fs::read_to_string(checkout("deploy/examples").join(file)).unwrap();
    for (file, beginning, expected) in EXAMPLES {
        play(&stage, &space, &text(file), beginning, expected, PATIENCE).unwrap();
    }
    for (file, claim) in CLAIMS {
        space.apply(&text(file)).unwrap();
        assert!(space.allocations().unwrap()[claim].is_empty(), "{claim}: found devices, expected none");
    }
    let all = EXAMPLES.iter().map(|(file, ..)| *file).chain(CLAIMS.iter().map(|(file, _)| *file));
    let mut all: Vec<String> = all.map(str::to_owned).collect();
    all.sort();
    let entries = fs::read_dir(checkout("deploy/examples")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|name| name.ends_with(".yaml")).collect();
    found.sort();
    assert_eq!(found, all, "files of deploy/examples");
    assert_container_contents(&space);
    // A manifest that asks for more than it is expected to, and one that names no class, have to be caught.
    let larger = text("shares.yaml").replace("memory: 8Gi", "memory: 1Gi").replace("cores: 30", "cores: 10");
    let larger = larger.replace("share", "larger").replace("larger.aliquot.dev", "share.aliquot.dev");
    let caught = play(&stage, &space, &larger, "larger", &["whole 8Gi 30"; 2], PATIENCE).unwrap_err();
    assert!(caught.starts_with("larger: found [\"whole 1Gi 10\""), "{caught}");
    let classless =
        text("mig.yaml").replace("mig-1g-10gb", "classless").replace("name: mig\n", "name: classless\n");
    assert!(
        play(&stage, &space, &classless, "classless", &["1g.10gb"], BRIEFLY).is_err(),
        "a class that is not there passed"
    );
    space.delete().unwrap();
    stage.finish();
}

/// Environment, mounts and device nodes inside the containers.
fn assert_container_contents(space: &Namespace<'_>) {
    let shell = |pod: &str, script: &str| {
        let output = space.exec(pod, &["sh", "-c", script]).unwrap();
        assert_eq!(output.code, 0, "{pod}: {script}: {}{}", output.out, output.err);
        output.out
    };
    let share = space.running("share-", 2, PATIENCE).unwrap().remove(0);
    let seen = shell(
        &share,
        "ls /dev | grep nvidia; cat /etc/ld.so.preload; grep -c libaliquot.so /proc/self/mounts; env; tenant maps",
    );
    for part in ["nvidia3", "nvidiactl", "libaliquot.so", HARDWARE[0], HARDWARE[1], "mapped "] {
        assert!(seen.contains(part), "{share}: found {seen:?}, expected {part}");
    }
    assert!(!seen.contains("nvidia0"), "{share}: a card of others: {seen}");
    let filled = shell(&share, "tenant fill");
    assert!(filled.starts_with(&format!("total {} ", 8_u64 << 30)), "{share}: {filled}");
    let quarter = shell("quarter", "ls /dev | grep davinci; ls /run/aliquot/grants");
    let of_a_virtual_npu =
        |line: &str| line.strip_prefix("davinci").is_some_and(|id| id.parse().is_ok_and(|id: u32| id >= 100));
    assert!(
        quarter.contains("davinci_manager") && quarter.lines().any(of_a_virtual_npu),
        "quarter: {quarter}"
    );
    let partition = shell("mig", "tenant smi");
    assert!(partition.contains("MIG-"), "mig: {partition}");
    assert_eq!(json!(space.pod("mig").unwrap()["status"]["phase"]), json!("Running"));
}
