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
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::machine::Machine;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Errors of a card's memory, and of a program.
const OF_THE_CARD: u64 = 48;
pub(super) const OF_A_PROGRAM: u64 = 13;

/// Puts another driver under the library and into the kernel.
pub(super) fn load_driver(machine: &Machine, host: &Path, number: u32) {
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
pub(super) struct Started(pub(super) Child);

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

/// Device nodes of the driver below a host's root.
fn device_nodes(host: &Path) {
    let dev = host.join("dev");
    fs::create_dir_all(&dev).unwrap();
    let cards = (0..8).map(|minor| format!("nvidia{minor}"));
    for name in ["nvidiactl", "nvidia-uvm"].map(str::to_owned).into_iter().chain(cards) {
        // Another agent of the test may have them already.
        if !dev.join(&name).exists() {
            symlink("/dev/null", dev.join(name)).unwrap();
        }
    }
}

pub(super) fn plugin(
    machine: &Machine,
    server: &FakeApiServer,
    kubelet: &FakeKubelet,
    host: &Path,
) -> Command {
    let mut plugin = plugin_without_metrics_address(machine, server, kubelet, host);
    plugin.args(["--metrics-address", "none"]);
    plugin
}

/// As [`plugin`]; the caller adds the address of its metrics.
pub(super) fn plugin_without_metrics_address(
    machine: &Machine,
    server: &FakeApiServer,
    kubelet: &FakeKubelet,
    host: &Path,
) -> Command {
    device_nodes(host);
    let mut plugin = machine.aliquot("plugin", &["--node-name", "n1"]);
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
pub(super) async fn report(machine: &Machine, card: &Card, xid: u64) {
    let (began, noted) = (Instant::now(), format!("code {xid} "));
    while !fs::read_to_string(machine.state().join("health")).is_ok_and(|notes| notes.contains(&noted)) {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is noted");
        card.raise_xid(xid, None);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) fn devices(slices: &[Value]) -> impl Iterator<Item = &Value> {
    slices.iter().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten()
}

/// A claim to which the first device of a card is allocated; its UID is its name.
pub(super) fn claim_on(slices: &[Value], claim: &str, of: impl Fn(&Value) -> bool) -> Value {
    let found = slices.iter().find_map(|slice| {
        let device = devices(std::slice::from_ref(slice)).find(|device| of(device))?;
        Some((&slice["spec"]["pool"]["name"], device))
    });
    let (pool, device) = found.unwrap();
    let result = json!({"request": "r", "driver": "aliquot.dev", "pool": pool, "device": device["name"]});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": claim, "uid": claim},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    })
}

/// What slices say of the hardware.
fn described(slices: &[Value]) -> Value {
    slices.iter().map(|slice| json!([slice["spec"]["devices"], slice["spec"]["sharedCounters"]])).collect()
}

pub(super) fn is_tainted(device: &Value) -> bool {
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
    report(&machine, &card, OF_THE_CARD).await;
    server.wait_for("resourceslices", unhealthy).await;

    load_driver(&machine, &host, 2);
    server.wait_for("resourceslices", whole).await;
    // What the new driver reports counts for it.
    fs::remove_file(machine.state().join("health")).unwrap();
    report(&machine, &card, OF_THE_CARD).await;
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

/// Puts the files of a driver of this version below a host's root, in the place of those of every other.
pub(super) fn install_driver(machine: &Machine, host: &Path, version: &str) {
    let libraries = host.join("usr/lib/x86_64-linux-gnu");
    if libraries.exists() {
        fs::remove_dir_all(&libraries).unwrap();
    }
    fs::create_dir_all(&libraries).unwrap();
    for name in ["libnvidia-ml.so", "libcuda.so"] {
        let file = format!("{name}.{version}");
        fs::copy(machine.bench.libraries().join(format!("{name}.1")), libraries.join(&file)).unwrap();
        symlink(file, libraries.join(format!("{name}.1"))).unwrap();
    }
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
    install_driver(&machine, &host, "580.65.06");
    load_driver(&machine, &host, 1);
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

/// An agent whose host has driver files that its loader does not have, with two cards of which the second goes with the update.
struct UpdatedNode {
    machine: Machine,
    server: FakeApiServer,
    host: PathBuf,
    service: Plugin,
    _plugin: (Started, FakeKubelet),
}

impl UpdatedNode {
    async fn start(version: &str) -> Self {
        let (machine, server, kubelet) =
            (Machine::of(&cards_of(version, 2)), FakeApiServer::start(), FakeKubelet::default());
        let (host, policy) = (machine.dir().join("host"), machine.dir().join("policy.toml"));
        install_driver(&machine, &host, version);
        load_driver(&machine, &host, 1);
        fs::write(&policy, "default = \"whole\"\nevict = [\"lost\"]\n").unwrap();
        let mut plugin = plugin(&machine, &server, &kubelet, &host);
        plugin.env_remove("LD_LIBRARY_PATH").arg("--policy").arg(policy);
        let plugin = Started(plugin.spawn().unwrap());
        let service = kubelet.register().await;
        Self { machine, server, host, service, _plugin: (plugin, kubelet) }
    }

    fn slices(&self) -> Vec<Value> {
        self.server.objects("resourceslices")
    }

    /// Prepares a claim on the only device that `of` accepts; the host paths that its containers mount.
    async fn mounts(&self, claim: &str, of: impl Fn(&Value) -> bool) -> Vec<String> {
        self.server.put(claim_on(&self.slices(), claim, of));
        self.service.prepare(&[("default", claim, claim)]).await.remove(claim).unwrap().unwrap();
        let spec = self.machine.dir().join(format!("cdi/aliquot.dev-claim-{claim}.json"));
        let spec: Value = serde_json::from_slice(&fs::read(spec).unwrap()).unwrap();
        let edits = [&spec["containerEdits"], &spec["devices"][0]["containerEdits"]];
        let mounts = edits.into_iter().filter_map(|edits| edits["mounts"].as_array()).flatten();
        mounts.map(|mount| mount["hostPath"].as_str().unwrap().to_owned()).collect()
    }
}

fn cards_of(version: &str, count: usize) -> String {
    let card = |number| format!("[[card]]\nuuid = \"GPU-a11c0de0-51a0-4c4d-8000-{number:012x}\"\n");
    format!("driver = \"{version}\"\n{}", (0..count).map(card).collect::<String>())
}

/// Whether a device is of a card that a driver of this version serves.
fn is_served_by(device: &Value, version: &str) -> bool {
    let version = format!("\"{}\"", version.replace(".0", "."));
    device["attributes"]["driverVersion"].to_string().contains(&version)
}

#[tokio::test(flavor = "multi_thread")]
async fn update_of_the_driver_brings_its_files_to_containers() {
    let (old, new) = ("580.65.06", "590.48.01");
    let node = UpdatedNode::start(old).await;
    let are_old =
        |slices: &[Value]| devices(slices).filter(|d| is_served_by(d, old) && !is_tainted(d)).count() == 2;
    node.server.wait_for("resourceslices", are_old).await;
    let of = |mounts: &[String], version: &str| {
        mounts.iter().filter(|path| path.ends_with(&format!(".so.{version}"))).count()
    };
    let second = |device: &Value| device["attributes"]["uuid"].to_string().contains("-000000000001");
    let mounts = node.mounts("holder", second).await;
    assert!(of(&mounts, old) >= 2 && of(&mounts, new) == 0, "{mounts:?}");

    // The driver is gone for a while, longer than a look: no card is lost with it.
    fs::remove_dir_all(node.host.join("usr")).unwrap();
    load_driver(&node.machine, &node.host, 2);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(are_old(&node.slices()), "{:?}", node.slices());

    node.machine.bench.write("node.toml", &cards_of(new, 1));
    install_driver(&node.machine, &node.host, new);
    let first_is_new =
        |slices: &[Value]| devices(slices).any(|d| is_served_by(d, new) && !is_tainted(d) && !second(d));
    node.server.wait_for("resourceslices", first_is_new).await;
    let mounts = node.mounts("after", |device| !second(device)).await;
    assert!(of(&mounts, new) >= 2 && of(&mounts, old) == 0, "{mounts:?}");
    // The card that is gone is kept for its claim, which no policy ends.
    let slices = node.slices();
    let kept: Vec<&Value> = devices(&slices).filter(|device| second(device)).collect();
    assert_eq!((kept.len(), kept[0]["taints"].as_array().unwrap().len()), (1, 1), "{kept:?}");
    assert_eq!(kept[0]["taints"][0]["effect"], json!("NoSchedule"));
    assert_eq!(node.service.unprepare(&[("default", "holder", "holder")]).await["holder"], "");
    let is_gone = |slices: &[Value]| first_is_new(slices) && !devices(slices).any(second);
    node.server.wait_for("resourceslices", is_gone).await;
}
