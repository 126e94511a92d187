//! What containers need on the host, and the files that the agent puts there: absent ones are refused with their path, made or
//! made again, while the agent runs.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::machine::Machine;
use serde_json::Value;

use super::driver_reload::{Started, claim_on, devices, install_driver, is_tainted, load_driver, plugin};

/// An agent of a machine with one card and driver files below a host's root.
struct Node {
    machine: Machine,
    server: FakeApiServer,
    host: PathBuf,
    service: Plugin,
    _plugin: (Started, FakeKubelet),
}

const DRIVER: &str = "580.65.06";

impl Node {
    async fn start() -> Self {
        let (machine, server, kubelet) =
            (Machine::of("[[card]]"), FakeApiServer::start(), FakeKubelet::default());
        let host = machine.dir().join("host");
        install_driver(&machine, &host, DRIVER);
        load_driver(&machine, &host, 1);
        let mut plugin = plugin(&machine, &server, &kubelet, &host);
        let plugin = Started(plugin.env_remove("LD_LIBRARY_PATH").spawn().unwrap());
        let service = kubelet.register().await;
        let node = Self { machine, server, host, service, _plugin: (plugin, kubelet) };
        node.published(false).await;
        node
    }

    /// Waits until every device is published with the taint for health, or without.
    async fn published(&self, with_taint: bool) {
        let all = |slices: &[Value]| {
            devices(slices).count() > 0 && devices(slices).all(|device| is_tainted(device) == with_taint)
        };
        self.server.wait_for("resourceslices", all).await;
    }

    async fn prepare(&self, claim: &str) -> Result<(), String> {
        self.server.put(claim_on(&self.server.objects("resourceslices"), claim, |_| true));
        self.service.prepare(&[("default", claim, claim)]).await.remove(claim).unwrap().map(drop)
    }

    async fn release(&self, claim: &str) {
        assert_eq!(self.service.unprepare(&[("default", claim, claim)]).await[claim], "");
    }

    fn cdi(&self, claim: &str) -> PathBuf {
        self.machine.dir().join(format!("cdi/aliquot.dev-claim-{claim}.json"))
    }

    fn spec(&self, claim: &str) -> Value {
        serde_json::from_slice(&fs::read(self.cdi(claim)).unwrap()).unwrap()
    }
}

async fn wait_until(what: &str, there: impl Fn() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An unattended upgrade: other files on the disk, the old driver in the kernel.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_driver_files_are_refused_by_path_and_taint_cards() {
    let node = Node::start().await;
    node.prepare("before").await.unwrap();
    install_driver(&node.machine, &node.host, "580.105.08");
    let why = node.prepare("after").await.unwrap_err();
    let path = format!("/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}");
    assert!(
        why.contains(&path) && why.contains("580.105.08") && why.contains("restart the machine"),
        "{why}"
    );
    assert!(!node.cdi("after").exists());
    node.published(true).await;
    // The claim that was there keeps its file; its containers have the old files mounted.
    assert!(node.cdi("before").exists());
    install_driver(&node.machine, &node.host, DRIVER);
    node.published(false).await;
    node.release("before").await;
    node.prepare("after").await.unwrap();
}

/// A fresh boot: the driver's own programs make some nodes when they are first needed.
#[tokio::test(flavor = "multi_thread")]
async fn absent_device_nodes_are_named_until_they_come() {
    let node = Node::start().await;
    for (round, name) in ["nvidia-uvm", "nvidia0", "nvidiactl"].into_iter().enumerate() {
        let file = node.host.join("dev").join(name);
        fs::remove_file(&file).unwrap();
        let claim = format!("claim-{round}");
        let why = node.prepare(&claim).await.unwrap_err();
        let says = format!("device node /dev/{name}: found none");
        assert!(why.contains(&says) && why.contains("nvidia-modprobe"), "{why}");
        assert!(!node.cdi(&claim).exists());
        node.published(true).await;
        symlink("/dev/null", file).unwrap();
        node.prepare(&claim).await.unwrap();
        let nodes = node.spec(&claim)["devices"][0]["containerEdits"]["deviceNodes"].to_string();
        assert!(nodes.contains(name), "{nodes}");
        node.release(&claim).await;
        node.published(false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_and_altered_cdi_files_are_made_again() {
    let node = Node::start().await;
    node.prepare("kept").await.unwrap();
    let (path, text) = (node.cdi("kept"), fs::read(node.cdi("kept")).unwrap());
    let is_whole = || fs::read(&path).is_ok_and(|found| found == text);
    let removals: [(&str, &dyn Fn()); 4] = [
        ("removed", &|| fs::remove_file(&path).unwrap()),
        ("moved", &|| fs::rename(&path, path.with_extension("old")).unwrap()),
        ("altered", &|| fs::write(&path, "{}").unwrap()),
        ("removed with its directory", &|| fs::remove_dir_all(path.parent().unwrap()).unwrap()),
    ];
    for (what, remove) in removals {
        remove();
        wait_until(what, is_whole).await;
    }
    // The new directory is watched as well.
    fs::remove_file(&path).unwrap();
    wait_until("removed from the new directory", is_whole).await;
    // A mount source that goes keeps a container from restarting as well.
    let grants = node.machine.state().join("grants/kept");
    let list = grants.join("ld.so.preload");
    if list.exists() {
        fs::remove_file(&list).unwrap();
        wait_until("the loader's list", || list.exists()).await;
    }
    node.release("kept").await;
    assert!(!path.exists() && !grants.exists());
}
