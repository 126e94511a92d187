//! A cluster leaves no process, mount, cgroup, link or file after its test is killed or ended, nor after a failed start.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_cluster::{Api, Parts, Place};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::world::{Turn, needs_own};

const NAME: &str = "killed";
const FAILS: &str = "fails";
const PATIENCE: Duration = Duration::from_secs(90);

/// What is left of the cluster on this machine.
fn left(place: &Place) -> Vec<String> {
    let mut found = Vec::new();
    let root = place.text("");
    let name = place.path("").file_name().unwrap().display().to_string();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.contains(&root) || words.contains(&format!("aliquot_cluster hold {name}")) {
            found.push(format!("process {}: {words}", entry.path().display()));
        }
        let mounts = fs::read_to_string(entry.path().join("mounts")).unwrap_or_default();
        if mounts.contains(&root) {
            found.push(format!("mounts of {}", entry.path().display()));
        }
    }
    let cgroups = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let cgroups: Vec<PathBuf> = cgroups.chain([PathBuf::from("/sys/fs/cgroup")]).collect();
    let cgroups = cgroups.iter().map(|hierarchy| hierarchy.join(format!("aliquot-cluster-{name}")));
    let link = Path::new("/sys/class/net").join(format!("aq-{name}"));
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

/// Waits until nothing is left.
#[track_caller]
fn nothing_is_left(place: &Place) {
    let until = Instant::now() + PATIENCE;
    let mut last = left(place);
    while !last.is_empty() {
        assert!(Instant::now() < until, "left: {last:#?}");
        std::thread::sleep(Duration::from_millis(100));
        last = left(place);
    }
}

fn serve(name: &str) -> Command {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_aliquot_cluster"));
    serve.args(["serve", name]).stdin(Stdio::null());
    serve
}

/// Ends a cluster with a running Pod by this signal.
fn end_by(signal: Signal) {
    let place = Place::new(&NAME.parse().unwrap());
    let mut serve = serve(NAME).spawn().unwrap();
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
    kill(Pid::from_raw(i32::try_from(serve.id()).unwrap()), signal).unwrap();
    serve.wait().unwrap();
    nothing_is_left(&place);
}

#[test]
fn ended_cluster_leaves_nothing_on_the_machine() {
    if needs_own() {
        return;
    }
    let _turn = Turn::beside();
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        end_by(signal);
    }
}

/// The container runtime ends at once: the start fails when the other components run already.
#[test]
fn failed_start_leaves_nothing_on_the_machine() {
    if needs_own() {
        return;
    }
    let _turn = Turn::beside();
    let parts = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(Parts::find().unwrap().directory()).unwrap().flatten() {
        let link = parts.path().join(entry.file_name());
        if entry.file_name() == "containerd" {
            fs::write(&link, "#!/bin/sh\necho broken on purpose >&2\nexit 1\n").unwrap();
            fs::set_permissions(&link, fs::Permissions::from_mode(0o755)).unwrap();
        } else {
            symlink(entry.path(), link).unwrap();
        }
    }
    let failed = serve(FAILS).env("ALIQUOT_CLUSTER_PARTS", parts.path()).output().unwrap();
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && said.contains("broken on purpose"), "{failed:?}");
    nothing_is_left(&Place::new(&FAILS.parse().unwrap()));
}
