//! Scenario 1, in part: a Pod with a share reaches Running on a real kubelet and containerd, and is held to its limit, also
//! with an empty environment and without root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use aliquot_cluster::{Cluster, Image, Scope, Start};
use aliquot_tests::command_line::ran;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::world::World;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";
const IMAGE: &str = "localhost/cuda-client:1";
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: u64 = 4 << 30;
const OUT_OF_MEMORY: u64 = 2;
/// Pods of each kind with a timed start.
const TIMED: usize = 20;

/// A program or library that cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    let message = "found no such file; run cargo build --package aliquot_driver --package aliquot_sim_cuda";
    assert!(path.exists(), "{}: {message}", path.display());
    path
}

/// A busybox with a C library, the simulated libcuda and the client.
fn image() -> Image {
    let directory = TempDir::new().unwrap();
    let client = directory.path().join("client");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/cuda_client.c");
    let compiled = Command::new("cc").arg("-o").arg(&client).arg(source).arg("-ldl").status().unwrap();
    assert!(compiled.success(), "cuda_client.c: {compiled}");
    let image = Image::busybox(IMAGE, &["sleep", "infinity"]).unwrap();
    image.program(&client, "/bin/cuda-client").unwrap();
    image.program(&built("libaliquot_sim_cuda.so"), "/usr/lib/x86_64-linux-gnu/libcuda.so.1").unwrap();
    image
}

fn start_driver(cluster: &Cluster) {
    let words =
        ["plugin", "--node-name", &cluster.node(), "--node", "t4-2", "--kubeconfig"].map(str::to_owned);
    let kubeconfig = cluster.place().kubeconfig().display().to_string();
    let argv =
        std::iter::once(built("aliquot").display().to_string()).chain(words).chain([kubeconfig]).collect();
    cluster.start_process(Start { name: "driver".to_owned(), argv, ..Start::default() }).unwrap();
    let some = |slices: &BTreeMap<String, Value>| (!slices.is_empty()).then_some(());
    let published = cluster.api().wait(SLICES, "the driver publishes", PATIENCE, some);
    published.unwrap_or_else(|error| panic!("{error}\n{}", cluster.log("driver", 20)));
    wait_for_registration(cluster);
    let listed = ran(["aliquot", "classes", "--node", "t4-2", "-o", "json"].map(Into::into));
    let classes: Value = serde_json::from_str(&listed.out).unwrap();
    for class in classes["items"].as_array().unwrap() {
        cluster.api().create(CLASSES, class).unwrap();
    }
    let exactly = json!({
        "deviceClassName": "share.aliquot.dev",
        "capacity": {"requests": {"memory": LIMIT.to_string(), "cores": "25"}},
    });
    let template = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "share"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    });
    cluster.api().create(TEMPLATES, &template).unwrap();
}

/// A kubelet that prepares a Pod before the driver is registered tries again only after a minute. The API has no object for
/// the registration; the driver's log has a line.
fn wait_for_registration(cluster: &Cluster) {
    let until = Instant::now() + PATIENCE;
    while !cluster.log("driver", usize::MAX).contains("registered the plugin") {
        assert!(
            Instant::now() < until,
            "the kubelet did not register the driver\n{}",
            cluster.log("driver", 20)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    Claimed,
    /// The Pod has the claim, and its container does not name it.
    NotNamed,
    None,
}

fn pod(name: &str, share: Share, user: u32) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsUser": user},
            "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never"}],
        },
    });
    if share != Share::None {
        pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "share"}]);
    }
    if share == Share::Claimed {
        pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
    }
    pod
}

/// Creates a Pod and returns the time until it runs.
fn run_pod(cluster: &Cluster, name: &str, share: Share, user: u32) -> Duration {
    let began = Instant::now();
    cluster.api().create(PODS, &pod(name, share, user)).unwrap();
    let path = format!("{PODS}?fieldSelector=metadata.name={name}");
    let running = |pods: &BTreeMap<String, Value>| {
        (pods.values().next()?["status"]["phase"] == json!("Running")).then_some(())
    };
    let ran = cluster.api().wait(&path, "the Pod runs", PATIENCE, running);
    ran.unwrap_or_else(|error| panic!("{error}\n{}", cluster.log("driver", 20)));
    began.elapsed()
}

/// Deletes a Pod and waits until it and its claim are gone.
fn remove_pod(cluster: &Cluster, name: &str) {
    cluster.api().delete(&format!("{PODS}/{name}"), None).unwrap();
    let path = format!("{PODS}?fieldSelector=metadata.name={name}");
    cluster.api().wait(&path, "the Pod is gone", PATIENCE, |pods| pods.is_empty().then_some(())).unwrap();
    let gone = |claims: &BTreeMap<String, Value>| {
        (!claims.keys().any(|claim| claim.starts_with(&format!("default/{name}-gpu-")))).then_some(())
    };
    cluster.api().wait(CLAIMS, "the claim is gone", PATIENCE, gone).unwrap();
}

/// Runs the client in a Pod and compares it with the limit; the difference, if there is one.
fn held_to_limit(cluster: &Cluster, pod: &str, command: &[&str]) -> Result<(), String> {
    let words: Vec<&str> = ["exec", pod, "--"].into_iter().chain(command.iter().copied()).collect();
    let said = cluster.kubectl(&words, "").map_err(|error| error.to_string())?;
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [total, got, code] = numbers[..] else {
        return Err(format!("found {said:?}, expected three numbers"));
    };
    // The context of the client is charged to its limit, too.
    let near = (LIMIT / 4 * 3..=LIMIT).contains(&got);
    (total == LIMIT && near && code == OUT_OF_MEMORY)
        .then_some(())
        .ok_or_else(|| format!("{pod} {command:?}: found {said:?}, expected a limit of {LIMIT}"))
}

/// The median and the largest of some durations, in milliseconds.
fn summary(mut times: Vec<Duration>) -> String {
    times.sort();
    let median = times[times.len() / 2].as_millis();
    let largest = times.last().map_or(0, Duration::as_millis);
    format!("median {median} ms, largest of {} {largest} ms", times.len())
}

#[test]
fn pod_with_a_share_runs_and_is_held_to_its_limit() {
    if std::env::var_os("KUBECONFIG").is_some() {
        println!("stood aside: this scenario starts a simulated node of its own");
        return;
    }
    let Some(World::Own(cluster)) = World::start("shares", Scope::Node) else { return };
    cluster.import(&image()).unwrap();
    start_driver(&cluster);
    run_pod(&cluster, "root", Share::Claimed, 0);
    held_to_limit(&cluster, "root", &["/bin/cuda-client"]).unwrap();
    // The simulated driver finds its cards by these two variables, real hardware by device nodes. All others are gone.
    let hardware = ["ALIQUOT_SIM_DIR=/run/aliquot/cards", "ALIQUOT_SIM_DEVICES=present"];
    let empty = ["/bin/busybox", "env", "-i", hardware[0], hardware[1], "/bin/cuda-client"];
    held_to_limit(&cluster, "root", &empty).unwrap();
    // A manifest with a container that does not name the claim has to be caught.
    run_pod(&cluster, "broken", Share::NotNamed, 0);
    assert!(
        held_to_limit(&cluster, "broken", &["/bin/cuda-client"]).is_err(),
        "a container without its claim passed"
    );
    for name in ["root", "broken"] {
        remove_pod(&cluster, name);
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..TIMED {
        for (kind, share, times) in
            [("with", Share::Claimed, &mut with), ("without", Share::None, &mut without)]
        {
            let name = format!("{kind}-{round}");
            times.push(run_pod(&cluster, &name, share, 0));
            remove_pod(&cluster, &name);
        }
    }
    println!("created to Running: with a share {}; without a claim {}", summary(with), summary(without));
    assert_eq!(cluster.end_process("driver", nix::sys::signal::Signal::SIGTERM).unwrap(), 0);
}
