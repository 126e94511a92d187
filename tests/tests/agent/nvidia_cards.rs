//! What a running agent publishes of NVIDIA cards that are lost, and of those that a driver does not list any more.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use aliquot_core::ports::DISCOVERY_AGE_MAX;
use aliquot_sim_device::{Card, Health};
use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::{FakeKubelet, Named, Plugin};
use aliquot_tests::machine::{CARDS, Machine};
use aliquot_tests::simulated::Bench;
use serde_json::{Value, json};

use super::driver_reload::{OF_A_PROGRAM, Started, claim_on, devices, plugin, report};

const LOST: &str = "GPU-74740000-0000-0000-0000-000000000001";
/// How long a lost card is on trial in service.
const TRIAL: Duration = Duration::from_secs(10);

/// An agent of a machine with three cards, which evicts Pods from lost ones.
struct Node {
    machine: Machine,
    server: FakeApiServer,
    kubelet: FakeKubelet,
    _plugin: Started,
}

/// Devices of a card in the slices: names, and effects of the taint for health.
type Published = (BTreeSet<String>, BTreeSet<String>);

impl Node {
    fn start(bench: Bench) -> Self {
        let (machine, server, kubelet) =
            (Machine::with(bench), FakeApiServer::start(), FakeKubelet::default());
        machine.bench.write("node.toml", CARDS);
        let policy = machine.dir().join("policy.toml");
        fs::write(&policy, "default = \"whole\"\nevict = [\"lost\"]\n").unwrap();
        let host = machine.dir().join("host");
        fs::create_dir(&host).unwrap();
        let mut plugin = plugin(&machine, &server, &kubelet, &host);
        plugin.arg("--policy").arg(policy);
        let plugin = Started(plugin.spawn().unwrap());
        Self { machine, server, kubelet, _plugin: plugin }
    }

    fn card(&self) -> Card {
        self.machine.bench.device().card(1).unwrap().clone()
    }

    /// Waits until devices of all cards are published, those of one with these effects; which they are.
    async fn published(&self, effects: &[&str]) -> BTreeSet<String> {
        let expected: BTreeSet<String> = effects.iter().map(|effect| (*effect).to_owned()).collect();
        let began = Instant::now();
        loop {
            let slices = self.server.objects("resourceslices");
            let lost = published(&slices, |uuid| uuid == LOST);
            let others = published(&slices, |uuid| uuid != LOST);
            if lost.0.len() == 1 && lost.1 == expected && others.0.len() == 2 && others.1.is_empty() {
                return lost.0.into_iter().chain(others.0).collect();
            }
            // Without events a loss is found when the latest discovery counts no more.
            assert!(began.elapsed() < 3 * DISCOVERY_AGE_MAX, "{lost:?} {others:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A claim on the device of the card that is lost.
    fn claim(&self, name: &str) {
        let is_lost = |device: &Value| device["attributes"]["uuid"]["string"] == json!(LOST);
        self.server.put(claim_on(&self.server.objects("resourceslices"), name, is_lost));
    }

    fn notes(&self) -> String {
        fs::read_to_string(self.machine.state().join("health")).unwrap_or_default()
    }
}

fn published(slices: &[Value], of: impl Fn(&str) -> bool) -> Published {
    let is_of = |device: &&Value| device["attributes"]["uuid"]["string"].as_str().is_some_and(&of);
    let (mut names, mut effects) = (BTreeSet::new(), BTreeSet::new());
    for device in devices(slices).filter(is_of) {
        names.extend(device["name"].as_str().map(str::to_owned));
        for taint in device["taints"].as_array().into_iter().flatten() {
            assert_eq!(taint["key"], json!("aliquot.dev/unhealthy"));
            effects.extend(taint["effect"].as_str().map(str::to_owned));
        }
    }
    (names, effects)
}

const fn named(claim: &str) -> [Named<'_>; 1] {
    [("default", claim, claim)]
}

async fn refused(service: &Plugin, claim: &str) -> String {
    service.prepare(&named(claim)).await.remove(claim).unwrap().unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_card_keeps_tainted_devices_until_proof() {
    let node = Node::start(Bench::new());
    let service = node.kubelet.register().await;
    let before = node.published(&[]).await;
    node.claim("holder");
    node.claim("next");
    assert!(service.prepare(&named("holder")).await["holder"].is_ok());
    // The card is watched.
    let card = node.card();
    report(&node.machine, &card, OF_A_PROGRAM).await;
    card.set_health(Health::Lost);
    assert_eq!(node.published(&["NoExecute", "NoSchedule"]).await, before);
    // A container of the claim that holds it cannot start, and the end of the claim needs no answer of the card.
    let why = refused(&service, "holder").await;
    assert!(why.contains("vendor error 15") && why.contains("reset it"), "{why}");
    assert_eq!(service.unprepare(&named("holder")).await["holder"], "");
    let why = refused(&service, "next").await;
    assert!(why.contains("is not healthy: lost: it answers no more, seen on "), "{why}");
    assert_eq!(node.published(&["NoExecute", "NoSchedule"]).await, before);
    card.set_health(Health::Well);
    let well = Instant::now();
    assert_eq!(node.published(&[]).await, before);
    assert!(well.elapsed() >= TRIAL, "{:?}", well.elapsed());
    assert!(!node.notes().contains("lost"), "{}", node.notes());
    assert!(service.prepare(&named("next")).await["next"].is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn card_lost_without_events_is_tainted_until_it_answers() {
    let node = Node::start(Bench::without(&["nvmlEventSetCreate"]));
    node.kubelet.register().await;
    let before = node.published(&[]).await;
    node.card().set_health(Health::Lost);
    assert_eq!(node.published(&["NoExecute", "NoSchedule"]).await, before);
    node.card().set_health(Health::Well);
    assert_eq!(node.published(&[]).await, before);
    assert!(!node.notes().contains("lost"), "{}", node.notes());
}

/// A stopped agent's exit code.
fn ended(mut agent: Started) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = agent.0.try_wait().unwrap() {
            return status.code();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the agent does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_without_cards_releases_claims_until_there_is_one() {
    let (machine, server, kubelet) =
        (Machine::of("[[card]]"), FakeApiServer::start(), FakeKubelet::default());
    let host = machine.dir().join("host");
    fs::create_dir(&host).unwrap();
    let start = || Started(plugin(&machine, &server, &kubelet, &host).spawn().unwrap());
    let devices = |slices: Vec<Value>| devices(&slices).count();
    let published = async |wanted: bool| {
        let began = Instant::now();
        while (devices(server.objects("resourceslices")) > 0) != wanted {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", server.objects("resourceslices"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let agent = start();
    let service = kubelet.register().await;
    published(true).await;
    server.put(claim_on(&server.objects("resourceslices"), "held", |_| true));
    assert!(service.prepare(&named("held")).await["held"].is_ok());
    let pid = nix::unistd::Pid::from_raw(agent.0.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(ended(agent), Some(0));
    // The machine starts again, and its driver does not.
    machine.fault("nvmlInit_v2", "{ error = 9 }");
    let agent = start();
    let service = kubelet.register().await;
    published(false).await;
    assert_eq!(service.unprepare(&named("held")).await["held"], "");
    assert!(machine.state().join("grants").read_dir().unwrap().next().is_none(), "a grant is left");
    machine.no_fault();
    assert_eq!(ended(agent), Some(0), "its next start has the card");
    let _agent = start();
    kubelet.register().await;
    published(true).await;
}
