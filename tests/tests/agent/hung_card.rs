//! A card that hangs in its driver: claims on other cards, what the kubelet and `/readyz` learn, the end of the agent.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_driver::agent::pace::AgentPace;
use aliquot_driver::kubelet::proto::health_v1::{HealthStatus, NodeWatchResourcesResponse};
use aliquot_sim_device::{Card, Health};
use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::machine::{CARDS, Machine};
use aliquot_tests::node::World;
use aliquot_tests::running_agent::{FakeCluster, PACE, RunningAgent};
use aliquot_tests::watched_store::{StoreCall, WatchedStore};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use super::driver_reload::{Started, claim_on, devices, plugin};
use super::health::eventually;

/// Longest wait for an answer that nothing hangs in.
const ANSWER: Duration = Duration::from_secs(15);

/// Longest end of an agent: calls are waited for 20 s, the last look 3 s, threads 2 s.
const END: Duration = Duration::from_secs(40);

/// An agent of a machine with NVIDIA cards. Each of its looks asks every card, since the last one never answers.
struct Node {
    machine: Machine,
    server: FakeApiServer,
    agent: Started,
    service: Plugin,
    _kubelet: FakeKubelet,
}

impl Node {
    async fn start() -> Self {
        let (machine, server, kubelet) = (Machine::of(CARDS), FakeApiServer::start(), FakeKubelet::default());
        machine.bench.device().card(2).unwrap().set_health(Health::Lost);
        let (host, policy) = (machine.dir().join("host"), machine.dir().join("policy.toml"));
        fs::create_dir(&host).unwrap();
        fs::write(&policy, "default = \"whole\"\n").unwrap();
        let mut agent = plugin(&machine, &server, &kubelet, &host);
        let agent = Started(agent.arg("--policy").arg(policy).spawn().unwrap());
        let service = kubelet.register().await;
        server.wait_for("resourceslices", |slices| devices(slices).count() == 2).await;
        Self { machine, server, agent, service, _kubelet: kubelet }
    }

    fn card(&self, index: usize) -> Card {
        self.machine.bench.device().card(index).unwrap().clone()
    }

    /// Creates a claim on the device of a card.
    fn claim(&self, name: &str, card: &Card) {
        let is_of_card = |device: &Value| device["attributes"]["uuid"]["string"] == json!(card.facts().uuid);
        self.server.put(claim_on(&self.server.objects("resourceslices"), name, is_of_card));
    }
}

async fn prepare(service: &Plugin, claim: &str) -> Result<usize, String> {
    let answer = service.prepare(&[("default", claim, claim)]).await.remove(claim).unwrap();
    answer.map(|devices| devices.len())
}

async fn within<T>(longest: Duration, answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(longest, answer).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn look_at_a_hung_card_delays_no_claim_on_another() {
    let node = Node::start().await;
    let (hung, other) = (node.card(0), node.card(1));
    node.claim("first", &other);
    node.claim("second", &other);
    assert_eq!(prepare(&node.service, "first").await, Ok(1));
    hung.set_health(Health::Hung);
    eventually(|| hung.has_hung_call()).await;
    let released = within(ANSWER, node.service.unprepare(&[("default", "first", "first")])).await;
    assert_eq!(released["first"], "");
    assert_eq!(within(ANSWER, prepare(&node.service, "second")).await, Ok(1));
    assert!(hung.has_hung_call());
}

/// Starts a program with the signals that end it blocked, as some supervisors do.
const BLOCKED: &str = "import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
os.execv(sys.argv[1], sys.argv[1:])";

#[test]
fn agent_whose_parent_blocks_signals_ends_at_sigterm() {
    let (machine, server, kubelet) =
        (Machine::of("[[card]]"), FakeApiServer::start(), FakeKubelet::default());
    let host = machine.dir().join("host");
    fs::create_dir(&host).unwrap();
    let plain = plugin(&machine, &server, &kubelet, &host);
    let mut blocked = Command::new("python3");
    blocked.args(["-c", BLOCKED]).arg(plain.get_program()).args(plain.get_args());
    blocked.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut agent = Started(blocked.spawn().unwrap());
    let began = Instant::now();
    while kubelet.registrations().is_empty() {
        assert!(began.elapsed() < END, "it does not register");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(agent.0.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let stopped = Instant::now();
    while agent.0.try_wait().unwrap().is_none() {
        assert!(stopped.elapsed() < END, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(agent.0.wait().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_with_a_call_on_a_hung_card_ends_at_sigterm() {
    let mut node = Node::start().await;
    let hung = node.card(0);
    node.claim("stuck", &hung);
    hung.set_health(Health::Hung);
    let service = node.service.clone();
    let stuck = tokio::spawn(async move { prepare(&service, "stuck").await });
    eventually(|| hung.has_hung_call()).await;
    // The call of the claim hangs as well.
    tokio::time::sleep(Duration::from_secs(1)).await;
    kill(Pid::from_raw(node.agent.0.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let mut ended = None;
    let stopped = Instant::now();
    while ended.is_none() && stopped.elapsed() < END {
        ended = node.agent.0.try_wait().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "{ended:?}");
    let why = stuck.await.unwrap().unwrap_err();
    assert!(why.contains("still in progress as this agent ends"), "{why}");
}

/// What `/readyz` answers: the status line, and the line about the node.
fn readiness(agent: &RunningAgent) -> (String, String) {
    let mut stream = TcpStream::connect(agent.metrics).unwrap();
    write!(stream, "GET /readyz HTTP/1.0\r\nHost: agent\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line =
        |start: &str| answer.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    (line("HTTP/"), line("node: "))
}

/// Waits for a report in which every device has this health; the message of the first.
async fn reported(
    reports: &mut tonic::Streaming<NodeWatchResourcesResponse>,
    health: HealthStatus,
) -> String {
    loop {
        let devices = reports.message().await.unwrap().unwrap().devices;
        if !devices.is_empty() && devices.iter().all(|device| device.health() == health) {
            return devices[0].message.clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_unknown_until_a_hung_look_ends() {
    let (world, kubelet, cluster) =
        (World::new("t4-2", ""), FakeKubelet::default(), Arc::new(FakeCluster::default()));
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let hanging = Arc::clone(&gate);
    let hang = move |call: StoreCall<'_>| {
        if matches!(call, StoreCall::View) {
            hanging.1.wait_while_for(&mut hanging.0.lock(), |hangs| *hangs, Duration::from_secs(60));
        }
    };
    let pace = AgentPace { answer: Duration::from_secs(1), ..PACE };
    let watched = |node| WatchedStore::before_each(node, hang);
    let agent = RunningAgent::watched(world.open(), &kubelet, &cluster, pace, watched);
    let mut reports = kubelet.register().await.health().await;
    within(ANSWER, reported(&mut reports, HealthStatus::Healthy)).await;
    eventually(|| readiness(&agent).1 == "node: ok").await;

    *gate.0.lock() = true;
    let message = within(ANSWER, reported(&mut reports, HealthStatus::Unknown)).await;
    assert_eq!(message, "the cards have not answered for 1 s");
    let (status, node) = readiness(&agent);
    assert!(status.contains(" 503 "), "{status}");
    assert!(node.starts_with("node: the cards have not answered for "), "{node}");

    *gate.0.lock() = false;
    gate.1.notify_all();
    within(ANSWER, reported(&mut reports, HealthStatus::Healthy)).await;
    eventually(|| readiness(&agent).1 == "node: ok").await;
    agent.stop().await;
}
