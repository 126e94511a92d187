//! How a running agent follows the vendor's driver: what it asks of it, and a driver that is loaded anew.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_core::id::CardUuid;
use aliquot_core::ports::DISCOVERY_AGE_MAX;
use aliquot_core::units::Bytes;
use aliquot_driver::checkpoint::{ContextDevice, ContextSizes};
use aliquot_sim_device::{Card, Placement, ReportPosition};
use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::FakeKubelet;
use aliquot_tests::machine::Machine;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Errors of a card's memory, and of a program.
const OF_THE_CARD: u64 = 48;
const OF_A_PROGRAM: u64 = 13;

/// Puts another driver under the library and into the kernel.
fn load_driver(machine: &Machine, host: &Path, number: u32) {
    let (next, file) = (machine.bench.cards().join("next"), machine.bench.cards().join("driver-load"));
    fs::write(&next, number.to_string()).unwrap();
    fs::rename(next, file).unwrap();
    let modules = host.join("sys/module");
    let next = modules.join("next");
    fs::create_dir_all(&next).unwrap();
    if number > 1 {
        fs::rename(modules.join("nvidia"), modules.join(format!("unloaded-{number}"))).unwrap();
    }
    fs::rename(next, modules.join("nvidia")).unwrap();
}

/// A program that does not outlive its test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// An agent of this machine, and the root of its host.
fn start(machine: &Machine, server: &FakeApiServer, kubelet: &FakeKubelet) -> (Started, PathBuf) {
    let host = machine.dir().join("host");
    fs::create_dir(&host).unwrap();
    load_driver(machine, &host, 1);
    (Started(plugin(machine, server, kubelet, &host).spawn().unwrap()), host)
}

fn plugin(machine: &Machine, server: &FakeApiServer, kubelet: &FakeKubelet, host: &Path) -> Command {
    let mut plugin = machine.aliquot("plugin", &["--node-name", "n1", "--metrics-address", "none"]);
    plugin.arg("--kubeconfig").arg(server.kubeconfig()).arg("--cdi-dir").arg(machine.dir().join("cdi"));
    plugin.arg("--kubelet-root").arg(kubelet.registry().parent().unwrap()).arg("--host-root").arg(host);
    plugin.stdout(Stdio::null()).stderr(Stdio::null());
    plugin
}

/// Times at which cards were enumerated: each call for their number reports an error of a program on the first card.
struct Enumerations {
    card: Card,
    seen: ReportPosition,
    times: Vec<u64>,
}

impl Enumerations {
    /// The time between the last two, once it comes to this; how many there were until then.
    async fn pause_of(&mut self, least: Duration) -> (Duration, usize) {
        let began = Instant::now();
        loop {
            while let Some((seen, xid)) = self.card.xid_after(self.seen) {
                self.seen = seen;
                self.times.push(xid.at);
                if let [.., one, other] = self.times[..]
                    && Duration::from_nanos(other - one) >= least
                {
                    return (Duration::from_nanos(other - one), self.times.len());
                }
            }
            assert!(began.elapsed() < Duration::from_secs(90), "{:?}", self.times);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn looks_without_a_change_enumerate_no_cards() {
    let (machine, server, kubelet) =
        (Machine::of("[[card]]"), FakeApiServer::start(), FakeKubelet::default());
    machine.fault("nvmlDeviceGetCount_v2", &format!("{{ xid = {OF_A_PROGRAM} }}"));
    let card = machine.bench.device().card(0).unwrap().clone();
    let mut enumerations = Enumerations { seen: card.xids_until_now(), card, times: Vec::new() };
    let (_plugin, host) = start(&machine, &server, &kubelet);
    kubelet.register().await;
    // The agent looks every 5 s; a snapshot of the cards counts for 30 s.
    let (pause, count) = enumerations.pause_of(DISCOVERY_AGE_MAX - Duration::from_secs(5)).await;
    assert!(pause < DISCOVERY_AGE_MAX + Duration::from_secs(10), "{pause:?}");
    assert!(count < 12, "{:?}", enumerations.times);
    // A change is noticed at the next look.
    load_driver(&machine, &host, 2);
    let (pause, _) = enumerations.pause_of(Duration::ZERO).await;
    assert!(pause < DISCOVERY_AGE_MAX / 2, "{pause:?}");
}

/// Reports an error until the agent has noted it.
async fn report(machine: &Machine, card: &Card) {
    let began = Instant::now();
    while !fs::read_to_string(machine.state().join("health")).is_ok_and(|notes| notes.contains("code 48 ")) {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is noted");
        card.raise_xid(OF_THE_CARD, None);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn devices(slices: &[Value]) -> impl Iterator<Item = &Value> {
    slices.iter().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten()
}

/// What slices say of the hardware.
fn described(slices: &[Value]) -> Value {
    slices.iter().map(|slice| json!([slice["spec"]["devices"], slice["spec"]["sharedCounters"]])).collect()
}

fn is_tainted(device: &Value) -> bool {
    device["taints"]
        .as_array()
        .is_some_and(|taints| taints.iter().any(|t| t["key"] == json!("aliquot.dev/unhealthy")))
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_of_the_driver_is_followed_and_ends_its_errors() {
    let (machine, server, kubelet) =
        (Machine::of("[[card]]"), FakeApiServer::start(), FakeKubelet::default());
    let (_plugin, host) = start(&machine, &server, &kubelet);
    kubelet.register().await;
    let whole = |slices: &[Value]| devices(slices).count() > 0 && !devices(slices).any(is_tainted);
    let unhealthy = |slices: &[Value]| devices(slices).any(is_tainted);
    server.wait_for("resourceslices", whole).await;
    let card = machine.bench.device().card(0).unwrap().clone();
    report(&machine, &card).await;
    server.wait_for("resourceslices", unhealthy).await;

    load_driver(&machine, &host, 2);
    server.wait_for("resourceslices", whole).await;
    // What the new driver reports counts for it.
    fs::remove_file(machine.state().join("health")).unwrap();
    report(&machine, &card).await;
    server.wait_for("resourceslices", unhealthy).await;
}

/// The agent has seen the instance once, after its watch of the card began; the event comes after the instance's end.
#[tokio::test(flavor = "multi_thread")]
async fn xid_of_an_instance_that_is_gone_counts_against_its_place() {
    let (machine, server, kubelet) = (
        Machine::of("mig_access = \"anybody\"\n[[card]]\nmig = \"on\"\n"),
        FakeApiServer::start(),
        FakeKubelet::default(),
    );
    // Partitions are published on servers of this version.
    server.set_version(37, 0);
    let (_plugin, host) = start(&machine, &server, &kubelet);
    kubelet.register().await;
    let before = Mutex::new(Value::Null);
    let some = |slices: &[Value]| {
        *before.lock() = described(slices);
        devices(slices).count() > 0
    };
    server.wait_for("resourceslices", some).await;
    let card = machine.bench.device().card(0).unwrap().clone();
    let gpu = card.create_gpu_instance(19, Some(Placement { start: 3, size: 1 })).unwrap();
    let instance = card.create_compute_instance(gpu.serial, 0).unwrap();
    load_driver(&machine, &host, 2);
    let other = |slices: &[Value]| described(slices) != *before.lock();
    server.wait_for("resourceslices", other).await;
    card.destroy_compute_instance(instance.compute.serial).unwrap();
    card.destroy_gpu_instance(gpu.serial).unwrap();

    let began = Instant::now();
    let notes = || fs::read_to_string(machine.state().join("health")).unwrap_or_default();
    while !notes().contains("code 48 ") {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is noted");
        card.raise_xid(OF_THE_CARD, Some(instance));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(notes().contains("1g.10gb@3"), "{}", notes());
}

/// The host's driver is below its root; the loader has none.
#[tokio::test(flavor = "multi_thread")]
async fn contexts_of_idle_cards_are_measured_with_the_hosts_driver() {
    let (machine, server, kubelet) = (
        Machine::of("context_bytes = 314572800\n[[card]]\n"),
        FakeApiServer::start(),
        FakeKubelet::default(),
    );
    let host = machine.dir().join("host");
    let libraries = host.join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&libraries).unwrap();
    load_driver(&machine, &host, 1);
    for name in ["libnvidia-ml.so", "libcuda.so"] {
        let file = format!("{name}.580.65.06");
        fs::copy(machine.bench.libraries().join(format!("{name}.1")), libraries.join(&file)).unwrap();
        symlink(file, libraries.join(format!("{name}.1"))).unwrap();
    }
    let mut plugin = plugin(&machine, &server, &kubelet, &host);
    let _plugin = Started(plugin.env_remove("LD_LIBRARY_PATH").spawn().unwrap());
    kubelet.register().await;
    let began = Instant::now();
    let cards: Vec<CardUuid> = machine
        .bench
        .device()
        .cards()
        .iter()
        .map(|card| CardUuid::new(card.facts().uuid.as_str()).unwrap())
        .collect();
    let size = |card: &CardUuid| {
        let sizes = ContextSizes::load(&machine.state().join("contexts"), "580.65.06");
        sizes.of(&ContextDevice { card: card.clone(), template: None }).map(|size| size.context)
    };
    while cards.iter().any(|card| size(card) != Some(Bytes(314_572_800))) {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?}",
            cards.iter().map(size).collect::<Vec<_>>()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
