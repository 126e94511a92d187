//! A layout policy that cannot be read: the agent serves with the last good one, and says so.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::machine::Machine;
use aliquot_tests::running_agent::own_address;
use serde_json::{Value, json};

use super::driver_reload::{Started, devices, plugin_without_metrics_address};

const WHOLE: &str = "default = \"whole\"\n";
const MISTYPED: &str = "\n[[rule]]\nmodel = \"nvidia-h100-*\"\nlayout = \"hole\"\n";

/// A machine with a card, on which agents follow each other.
struct Node {
    machine: Machine,
    server: FakeApiServer,
    host: PathBuf,
}

/// An agent of it.
struct Agent {
    metrics: SocketAddr,
    _service: Plugin,
    _plugin: (Started, FakeKubelet),
}

impl Node {
    fn new() -> Self {
        let machine = Machine::of("[[card]]");
        let host = machine.dir().join("host");
        fs::create_dir(&host).unwrap();
        Self { machine, server: FakeApiServer::start(), host }
    }

    /// Starts an agent with this policy; the kubelet accepts it.
    async fn start(&self, policy: Option<&str>) -> Agent {
        let (kubelet, metrics) = (FakeKubelet::default(), own_address());
        let mut plugin = plugin_without_metrics_address(&self.machine, &self.server, &kubelet, &self.host);
        plugin.arg("--metrics-address").arg(metrics.to_string());
        if let Some(text) = policy {
            let file = self.machine.dir().join("policy.toml");
            fs::write(&file, text).unwrap();
            plugin.arg("--policy").arg(file);
        }
        let plugin = Started(plugin.spawn().unwrap());
        let service = kubelet.register().await;
        Agent { metrics, _service: service, _plugin: (plugin, kubelet) }
    }

    /// Waits until the only card is published for one holder, or for several.
    async fn published(&self, whole: bool) {
        let is_whole = |device: &Value| device["allowMultipleAllocations"] != json!(true);
        let is_so = |slices: &[Value]| {
            devices(slices).count() == 1 && devices(slices).all(|device| is_whole(device) == whole)
        };
        self.server.wait_for("resourceslices", is_so).await;
    }

    /// Waits for an Event of the node with this reason; its text.
    async fn event(&self, reason: &str) -> String {
        let of = |events: &[Value]| events.iter().find(|event| event["reason"] == json!(reason)).cloned();
        self.server.wait_for("events", |events| of(events).is_some()).await;
        let event = of(&self.server.objects("events")).unwrap();
        assert_eq!(
            (&event["regarding"]["kind"], &event["regarding"]["name"]),
            (&json!("Node"), &json!("n1"))
        );
        event["note"].as_str().unwrap().to_owned()
    }
}

/// What `aliquot doctor` finds of a machine by this check.
pub(super) fn finding(machine: &Machine, check: &str) -> Value {
    let mut doctor = machine.aliquot(
        "doctor",
        &["-o", "json", "--metrics-address", "none", "--kubelet-root", "/var/lib/kubelet"],
    );
    let output = doctor.arg("--host-root").arg("/").output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut checks = answer["checks"].as_array().unwrap().iter();
    checks.find(|found| found["check"] == json!(check)).unwrap().clone()
}

impl Agent {
    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: agent\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until the agent is ready and has published; the line of `/readyz` about the policy, and the metric.
    async fn readiness(&self) -> (String, bool) {
        let ready = || {
            let answer = self.page("/readyz");
            let code = answer.lines().next().unwrap_or_default();
            code.contains(" 200 ") && answer.contains("slices: in sync")
        };
        for _ in 0..200 {
            if ready() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let answer = self.page("/readyz");
        assert!(ready(), "{answer}");
        let line = answer.lines().find_map(|line| line.strip_prefix("policy: ")).unwrap().to_owned();
        (line, self.page("/metrics").contains("\naliquot_policy_refused{node=\"n1\"} 1\n"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_policy_leaves_the_last_good_one_in_force() {
    let node = Node::new();
    let mistyped = format!("{WHOLE}{MISTYPED}");
    let place = "policy.toml: line 5: `rule[1].layout`: found hole, expected auto, whole";

    // Nothing is kept yet.
    let agent = node.start(Some(&mistyped)).await;
    node.published(false).await;
    let note = node.event("PolicyRefused").await;
    assert!(note.contains(place) && note.contains("every card is `auto` meanwhile"), "{note}");
    let (line, metric) = agent.readiness().await;
    assert!(line.starts_with("refused: ") && line.contains(place) && metric, "{line} {metric}");
    let found = finding(&node.machine, "layout policy");
    assert_eq!(found["verdict"], json!("warning"), "{found}");
    assert!(found["found"].as_str().unwrap().contains(place), "{found}");
    drop(agent);

    let agent = node.start(Some(WHOLE)).await;
    node.published(true).await;
    let note = node.event("PolicyAccepted").await;
    assert!(note.contains(place), "{note}");
    assert_eq!(agent.readiness().await, ("ok".to_owned(), false));
    assert_eq!(finding(&node.machine, "layout policy")["verdict"], json!("ok"));
    drop(agent);

    // A field with a typing error, this time.
    let agent = node.start(Some("defualt = \"dynamic\"\n")).await;
    let (line, metric) = agent.readiness().await;
    let says = ["line 1: ", "unknown field `defualt`", "the last good policy stays in force"];
    assert!(says.iter().all(|word| line.contains(word)) && metric, "{line}");
    node.published(true).await;
    drop(agent);

    // Without a policy none is kept for later.
    let agent = node.start(None).await;
    node.published(false).await;
    drop(agent);
    let agent = node.start(Some(&mistyped)).await;
    assert!(agent.readiness().await.0.contains("every card is `auto` meanwhile"));
    node.published(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn absent_policy_file_and_damaged_kept_one_are_survived() {
    let node = Node::new();
    fs::write(node.machine.state().join("policy"), "default = \"gone\"\n").unwrap();
    let agent = node.start(Some("\u{0}")).await;
    let (line, _) = agent.readiness().await;
    assert!(line.contains("line 1") && line.contains("the policy before is refused as well"), "{line}");
    drop(agent);
    let kubelet = FakeKubelet::default();
    let mut plugin = plugin_without_metrics_address(&node.machine, &node.server, &kubelet, &node.host);
    plugin.args(["--metrics-address", "none", "--policy", "/nonexistent/policy.toml"]);
    let _plugin = Started(plugin.spawn().unwrap());
    kubelet.register().await;
    let found = finding(&node.machine, "layout policy");
    assert!(found["found"].as_str().unwrap().contains("/nonexistent/policy.toml"), "{found}");
}
