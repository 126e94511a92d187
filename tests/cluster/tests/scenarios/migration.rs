//! Scenario 9: manifests of other systems, as `aliquot convert` prints them, run with their limits, beside a device plugin.

use std::ffi::OsString;
use std::fs;

use aliquot_cluster::{Cluster, Namespace, Parts, Start};
use aliquot_tests::command_line::{Ran, ran};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage, pod};

/// Memory of a quarter and of three quarters of a T4, in bytes.
const PARTS: [(&str, u32, u64); 2] = [("quarter", 25, 3_840 << 20), ("rest", 75, 11_520 << 20)];

/// Classes that the conversions print.
const CLASSES: [&str; 3] = [
    "legacy-nvidia-gpu.aliquot.dev",
    "legacy-nvidia-mig-1g-10gb.aliquot.dev",
    "legacy-huawei-ascend310p-2c.aliquot.dev",
];

/// What `aliquot convert` prints for an object.
fn converted(object: &Value) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in.json");
    fs::write(&file, object.to_string()).unwrap();
    let file = file.display().to_string();
    let words = ["aliquot", "convert", "-f", &file, "--node", "mixed"];
    let Ran { code, out, err } = ran(words.map(OsString::from));
    assert!(code <= 1, "{object}: {err}");
    out
}

/// A Pod that asks for a resource of another system.
fn asks_for(name: &str, limits: &Value) -> Value {
    let mut old = pod(name, &[]);
    old["spec"]["containers"][0]["resources"] = json!({ "limits": limits });
    old
}

/// A Deployment for HAMi: a part of the T4, memory and compute alike.
fn for_hami(name: &str, percent: u32) -> Value {
    let limits = json!({
        "nvidia.com/gpu": 1,
        "nvidia.com/gpumem-percentage": percent,
        "nvidia.com/gpucores": percent,
    });
    let spec = asks_for(name, &limits)["spec"].clone();
    let labels = json!({ "app": name });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"nvidia.com/use-gputype": "T4"}},
                "spec": spec,
            },
        },
    })
}

fn shares_of_hami(space: &Namespace<'_>) {
    for (name, percent, bytes) in PARTS {
        space.apply(&converted(&for_hami(name, percent))).unwrap();
        let pods = space.running(name, 1, PATIENCE).unwrap();
        let filled = space.exec(&pods[0], &["tenant", "fill"]).unwrap().out;
        assert!(filled.starts_with(&format!("total {bytes} ")), "{name}: {filled}");
    }
}

/// Pods that stay as they are: a class stands for their resource.
fn unchanged(space: &Namespace<'_>) {
    for (name, resource) in [
        ("slice", "nvidia.com/mig-1g.10gb"),
        ("whole", "nvidia.com/gpu"),
        ("template", "huawei.com/Ascend310P-2c"),
    ] {
        let mut limits = json!({});
        limits[resource] = json!(1);
        let text = converted(&asks_for(name, &limits));
        assert!(!text.contains("ResourceClaimTemplate"), "{name}: {text}");
        space.apply(&text).unwrap();
        space.running(name, 1, PATIENCE).unwrap();
    }
    let inside = space.exec("slice", &["tenant", "smi"]).unwrap().out;
    assert!(inside.contains("MIG-"), "slice: {inside}");
    let inside = space.exec("whole", &["tenant", "smi"]).unwrap().out;
    assert!(!inside.contains("MIG-") && inside.contains("total "), "whole: {inside}");
    let all = space.allocations().unwrap();
    let of_template = |(claim, _): &(&String, &Vec<Value>)| claim.starts_with("template-");
    let (_, results) = all.iter().find(of_template).unwrap();
    let device = results[0]["device"].as_str().unwrap();
    assert!(device.starts_with("vir02-"), "template: {device}");
}

/// A device plugin on the node; it ends with the scenario.
struct Plugin<'c>(&'c Cluster);

impl<'c> Plugin<'c> {
    const NAME: &'static str = "device-plugin";
    const RESOURCE: &'static str = "neighbour.example.com/device";

    fn start(cluster: &'c Cluster) -> Self {
        let argv = vec![
            Parts::find().unwrap().program(Self::NAME),
            "/var/lib/kubelet/device-plugins".to_owned(),
            Self::RESOURCE.to_owned(),
        ];
        let start = Start { name: Self::NAME.to_owned(), argv, ..Start::default() };
        cluster.start_process(start).unwrap();
        Self(cluster)
    }

    /// A Pod with its device runs.
    fn serves(&self, space: &Namespace<'_>) {
        let mut limits = json!({});
        limits[Self::RESOURCE] = json!(1);
        space.create_object(&space.core("pods"), &asks_for("neighbour", &limits)).unwrap();
        if let Err(error) = space.running("neighbour", 1, PATIENCE) {
            panic!("{error}\n{}", self.0.log(Self::NAME, 20));
        }
        let device = space.exec("neighbour", &["sh", "-c", "echo $NEIGHBOUR"]).unwrap();
        assert_eq!(device.out.trim(), "device-0", "{device:?}");
    }
}

impl Drop for Plugin<'_> {
    fn drop(&mut self) {
        // A failed scenario has its reason reported already.
        drop(self.0.end_process(Self::NAME, Signal::SIGTERM));
    }
}

#[test]
fn manifests_of_other_systems_run_with_their_limits() {
    let Some(stage) = Stage::with_agent("migration", "mixed", "auto") else { return };
    let space = stage.namespace("others");
    // A given cluster's node is not within reach.
    let plugin = stage.own_cluster().map(Plugin::start);
    shares_of_hami(&space);
    if let Some(plugin) = &plugin {
        plugin.serves(&space);
    }
    unchanged(&space);
    drop(plugin);
    // A resource that no class carries stays with the scheduler.
    space
        .create_object(&space.core("pods"), &asks_for("no-class", &json!({"nvidia.com/gpu.shared": 1})))
        .unwrap();
    space.unschedulable("no-class").unwrap();
    space.delete().unwrap();
    for class in CLASSES {
        stage.client().kubectl(&["delete", "deviceclass", class], "").unwrap();
    }
    stage.finish();
}
