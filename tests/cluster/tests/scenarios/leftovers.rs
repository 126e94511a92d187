//! A cluster leaves no process, mount, cgroup, link or file after its test is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_cluster::{Api, Place};
use serde_json::json;

use crate::world::{Turn, needs_own};

const NAME: &str = "killed";
const PATIENCE: Duration = Duration::from_secs(90);

/// What is left of the cluster on this machine.
fn left(place: &Place) -> Vec<String> {
    let mut found = Vec::new();
    let root = place.text("");
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.contains(&root) || words.contains(&format!("aliquot_cluster hold {NAME}")) {
            found.push(format!("process {}: {words}", entry.path().display()));
        }
        let mounts = fs::read_to_string(entry.path().join("mounts")).unwrap_or_default();
        if mounts.contains(&root) {
            found.push(format!("mounts of {}", entry.path().display()));
        }
    }
    let cgroups = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let cgroups: Vec<PathBuf> = cgroups.chain([PathBuf::from("/sys/fs/cgroup")]).collect();
    let cgroups = cgroups.iter().map(|hierarchy| hierarchy.join(format!("aliquot-cluster-{NAME}")));
    let link = Path::new("/sys/class/net").join(format!("aq-{NAME}"));
    found.extend(cgroups.chain([link]).filter(|path| path.exists()).map(|path| path.display().to_string()));
    let files = fs::read_dir(place.path("")).into_iter().flatten().flatten();
    let files =
        files.filter(|entry| entry.file_name() != "logs").map(|entry| entry.path().display().to_string());
    found.extend(files);
    found
}

fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "waited {} s until {condition}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn killed_cluster_leaves_nothing_on_the_machine() {
    if needs_own() {
        return;
    }
    let _turn = Turn::beside();
    let place = Place::new(&NAME.parse().unwrap());
    let program = env!("CARGO_BIN_EXE_aliquot_cluster");
    let mut serve = Command::new(program).args(["serve", NAME]).stdin(Stdio::null()).spawn().unwrap();
    wait_until("the cluster is ready", || {
        assert!(serve.try_wait().unwrap().is_none(), "the cluster ended by itself");
        place.path("ready").exists()
    });
    let api = Api::connect(&place.kubeconfig()).unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sleeper"},
        "spec": {"dnsPolicy": "Default", "containers": [{"name": "main", "image": "localhost/pause:1"}]},
    });
    api.create("/api/v1/namespaces/default/pods", &pod).unwrap();
    let running = |pods: &std::collections::BTreeMap<String, serde_json::Value>| {
        (pods.values().next()?["status"]["phase"] == json!("Running")).then_some(())
    };
    api.wait("/api/v1/namespaces/default/pods", "the Pod runs", PATIENCE, running).unwrap();
    let link = format!("/sys/class/net/aq-{NAME}");
    let before = left(&place);
    assert!(before.contains(&link), "found {before:?}, expected {link}: this test sees nothing");
    serve.kill().unwrap();
    serve.wait().unwrap();
    let mut last = Vec::new();
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        last = left(&place);
        if last.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("left: {last:#?}");
}
