//! Maintenance of a node: the agent lets go of every vendor's driver, keeps its cards published, and comes back by itself.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::time::{Duration, Instant};

use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::machine::Machine;
use aliquot_tests::npus::{NpuMachine, ROOT_ENV};
use serde_json::{Value, json};

use super::driver_reload::{Started, claim_on, devices, install_driver, load_driver, plugin};
use super::policy::finding;

const TAINT: &str = "aliquot.dev/maintenance";
const OLD: &str = "580.65.06";
const NEW: &str = "590.48.01";
/// Longest wait for a change of the agent: looks at the node, the way to the server, and the start of a program.
const PATIENCE: Duration = Duration::from_secs(90);

/// An agent of a machine with cards of both vendors.
struct Node {
    machine: Machine,
    npus: NpuMachine,
    server: FakeApiServer,
    kubelet: FakeKubelet,
    host: std::path::PathBuf,
    agent: Started,
}

impl Node {
    async fn start() -> (Self, Plugin) {
        let (machine, npus) =
            (Machine::of(&format!("driver = \"{OLD}\"\n[[card]]\n")), NpuMachine::of_310p(1));
        let (server, kubelet, host) =
            (FakeApiServer::start(), FakeKubelet::default(), machine.dir().join("host"));
        install_driver(&machine, &host, OLD);
        load_driver(&machine, &host, 1);
        let policy = machine.dir().join("policy.toml");
        fs::write(&policy, "default = \"whole\"\n").unwrap();
        let mut plugin = plugin(&machine, &server, &kubelet, &host);
        plugin.env_remove("LD_LIBRARY_PATH").env(ROOT_ENV, npus.root()).arg("--policy").arg(policy);
        let agent = Started(plugin.spawn().unwrap());
        let service = kubelet.register().await;
        let node = Self { machine, npus, server, kubelet, host, agent };
        node.published(false).await;
        (node, service)
    }

    /// Sets the label and the cordon of the node.
    fn mark(&self, label: Option<&str>, is_cordoned: bool) {
        let labels = label.map_or_else(|| json!({}), |value| json!({ TAINT: value }));
        let mut node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}});
        node["spec"]["unschedulable"] = json!(is_cordoned);
        self.server.put(node);
    }

    /// Waits until both cards are published, with the taint or without.
    async fn published(&self, with_taint: bool) {
        let is_tainted = |device: &Value| {
            let taints = device["taints"].as_array().cloned().unwrap_or_default();
            taints.iter().any(|taint| taint["key"] == json!(TAINT) && taint["effect"] == json!("NoSchedule"))
        };
        let all = |slices: &[Value]| {
            devices(slices).count() == 2 && devices(slices).all(|device| is_tainted(device) == with_taint)
        };
        self.server.wait_for("resourceslices", all).await;
    }

    async fn event(&self, reason: &str, says: &str) {
        let is_it = |event: &Value| {
            event["reason"] == json!(reason) && event["note"].as_str().is_some_and(|note| note.contains(says))
        };
        self.server.wait_for("events", |events| events.iter().any(is_it)).await;
    }

    async fn prepare(&self, service: &Plugin, claim: &str) -> Result<(), String> {
        let is_nvidia = |device: &Value| device["attributes"]["vendor"]["string"] == json!("nvidia");
        self.server.put(claim_on(&self.server.objects("resourceslices"), claim, is_nvidia));
        service.prepare(&[("default", claim, claim)]).await.remove(claim).unwrap().map(drop)
    }

    /// What the agent has of the drivers: libraries in its memory, and open files of theirs.
    fn held(&self) -> Vec<String> {
        let process = format!("/proc/{}", self.agent.0.id());
        let maps = fs::read_to_string(format!("{process}/maps")).unwrap();
        let mapped = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).map(str::to_owned);
        let open = fs::read_dir(format!("{process}/fd"))
            .unwrap()
            .filter_map(|fd| fs::read_link(fd.ok()?.path()).ok().map(|target| target.display().to_string()));
        let (cards, npus) = (self.machine.bench.cards(), self.npus.root());
        let (cards, npus) = (cards.display().to_string(), npus.display().to_string());
        let of_drivers = |path: &String| {
            ["libnvidia-ml", "libcuda", "libdcmi", "/dev/nvidia", "/dev/davinci"]
                .iter()
                .any(|it| path.contains(it))
                || path.starts_with(&cards)
                || path.starts_with(&npus)
        };
        mapped.chain(open).filter(of_drivers).collect()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}", self.held());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn has(&self, library: &str) -> bool {
        self.held().iter().any(|path| path.contains(library))
    }

    /// The agent that has begun anew, once the kubelet knows it.
    async fn registered(&self) -> Plugin {
        // The socket of the agent before is gone by then.
        self.kubelet.register().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_lets_go_of_drivers_and_comes_back() {
    let (node, service) = Node::start().await;
    let process = node.agent.0.id();
    assert!(node.has("libnvidia-ml") && node.has("libdcmi"), "{:?}", node.held());
    node.prepare(&service, "held").await.unwrap();

    // The label alone stops no node that takes Pods.
    node.mark(Some("true"), false);
    node.event("MaintenanceWaits", "cordon it").await;
    node.published(false).await;

    // Claims are held: cards take no new ones, and the drivers stay open for those that are there.
    node.mark(Some("true"), true);
    node.published(true).await;
    node.event("MaintenanceWaits", "1 are, such as default/held").await;
    let why = node.prepare(&service, "next").await.unwrap_err();
    assert!(
        why.starts_with("not yet") && why.contains("in maintenance") && why.contains("uncordon"),
        "{why}"
    );
    node.prepare(&service, "held").await.unwrap();
    assert!(node.has("libnvidia-ml") && node.has("libdcmi"));

    // The last claim is gone.
    assert_eq!(service.unprepare(&[("default", "held", "held")]).await["held"], "");
    node.event("MaintenanceBegun", "no claim is held").await;
    node.until("the drivers are let go", |node| node.held().is_empty()).await;
    let service = node.registered().await;
    assert_eq!(node.held(), [""; 0]);
    assert_eq!(node.agent.0.id(), process);
    let why = node.prepare(&service, "next").await.unwrap_err();
    assert!(why.starts_with("not yet") && why.contains("in maintenance"), "{why}");
    assert_eq!(finding(&node.machine, "maintenance")["verdict"], json!("warning"));
    // A kubelet that starts removes the slices of its node.
    node.published(true).await;
    node.server.wipe_slices();
    node.published(true).await;

    // Another driver is installed, and the node takes Pods again.
    fs::remove_dir_all(node.host.join("usr")).unwrap();
    load_driver(&node.machine, &node.host, 2);
    node.machine.bench.write("node.toml", &format!("driver = \"{NEW}\"\n[[card]]\n"));
    install_driver(&node.machine, &node.host, NEW);
    node.mark(Some("true"), false);
    node.event("MaintenanceEnded", "opened again").await;
    node.until("the drivers are opened", |node| node.has(NEW) && node.has("libdcmi")).await;
    let service = node.registered().await;
    node.published(false).await;
    node.prepare(&service, "next").await.unwrap();
    assert!(!node.machine.state().join("maintenance").exists());
}

/// What ends an agent meanwhile, such as a restart of the node, opens no driver.
#[tokio::test(flavor = "multi_thread")]
async fn parked_agent_that_starts_again_stays_parked() {
    let (mut node, _service) = Node::start().await;
    node.mark(Some("true"), true);
    node.until("the drivers are let go", |node| node.held().is_empty()).await;
    drop(node.registered().await);
    drop(node.agent.0.kill());
    drop(node.agent.0.wait());
    node.server.wipe_slices();
    let mut plugin = plugin(&node.machine, &node.server, &node.kubelet, &node.host);
    plugin.env_remove("LD_LIBRARY_PATH").env(ROOT_ENV, node.npus.root());
    plugin.arg("--policy").arg(node.machine.dir().join("policy.toml"));
    node.agent = Started(plugin.spawn().unwrap());
    let service = node.registered().await;
    node.published(true).await;
    assert_eq!(node.held(), [""; 0]);
    assert!(node.prepare(&service, "next").await.unwrap_err().contains("in maintenance"));
    node.mark(None, true);
    node.until("the drivers are opened", |node| node.has("libnvidia-ml") && node.has("libdcmi")).await;
    node.published(false).await;
}
