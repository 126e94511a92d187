//! The publisher against a server in this process: minimal writes, wipes, dropped fields, conflicts, outages, faults.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::time::{Duration, Instant};

use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{Device, NodeSelection, Pool, ResourceSlice, Taint, TaintEffect};
use aliquot_core::id::NodeName;
use aliquot_core::offer::CounterStance;
use aliquot_driver::kube::{ClusterAccess, Connection, Publisher, Timing};
use aliquot_driver::ports::{DesiredSlices, Publication};
use aliquot_tests::fake_apiserver::{Effect, FakeApiServer, Fault};
use aliquot_tests::generate::Random;
use aliquot_tests::scenes::scenes;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Longest wait for a publication.
const PATIENCE: Duration = Duration::from_secs(30);
const NODE: &str = "n1";

/// Time for which no older server may answer before a newer version counts.
pub(super) const UPGRADE: Duration = Duration::from_secs(5);

/// Time between two comparisons with the server's list.
pub(super) const COMPARE_AGE: Duration = Duration::from_millis(500);

/// A publisher at work.
pub(super) struct Running {
    desired: watch::Sender<Option<DesiredSlices>>,
    pub(super) publication: watch::Receiver<Publication>,
    task: JoinHandle<()>,
}

impl Running {
    pub(super) async fn start(server: &FakeApiServer) -> Self {
        let access = ClusterAccess::Kubeconfig { file: Some(server.kubeconfig()), context: None };
        let connection = Connection::open(&access).await.unwrap();
        let (desired, wanted) = watch::channel(None);
        let (report, publication) = watch::channel(Publication::default());
        let timing = Timing {
            first_retry: Duration::from_millis(20),
            longest_retry: Duration::from_millis(200),
            request: Duration::from_secs(2),
            upgrade: UPGRADE,
            count_age: Duration::from_millis(50),
            compare_age: COMPARE_AGE,
            ..Timing::default()
        };
        let publisher = Publisher::new(&connection, NodeName::new(NODE).unwrap()).with_timing(timing);
        Self { desired, publication, task: tokio::spawn(publisher.run(wanted, report)) }
    }

    pub(super) fn want(&self, slices: &[ResourceSlice]) {
        self.want_with(slices, None);
    }

    pub(super) fn want_with(&self, slices: &[ResourceSlice], counter_stance: Option<CounterStance>) {
        self.desired.send_replace(Some(DesiredSlices { slices: slices.to_vec(), counter_stance }));
    }

    pub(super) async fn until(&mut self, what: &str, expected: impl Fn(&Publication) -> bool) -> Publication {
        let waited = tokio::time::timeout(PATIENCE, self.publication.wait_for(&expected)).await;
        let found = waited.ok().and_then(Result::ok).map(|publication| publication.clone());
        assert!(found.is_some(), "not {what} within {PATIENCE:?}: {:#?}", self.publication.borrow());
        found.unwrap()
    }

    pub(super) async fn in_sync(&mut self) -> Publication {
        self.until("in sync", |publication| publication.in_sync).await
    }

    /// Ends it as a killed agent ends: nothing is cleaned up.
    pub(super) async fn kill(self) {
        self.task.abort();
        let _aborted = self.task.await;
    }
}

/// Slices of pool `p` on the node, one device each; equal contents give equal slices.
pub(super) fn pool(contents: &[u8]) -> Vec<ResourceSlice> {
    let slice = |(index, content): (usize, &u8)| ResourceSlice {
        name: format!("{NODE}-p-{index:04}"),
        driver: "aliquot.dev".to_owned(),
        pool: Pool { name: format!("{NODE}/p"), generation: 1, slice_count: 1 },
        node: NodeSelection::Name(NODE.to_owned()),
        devices: vec![Device::named(format!("d{index}-{content}"))].into(),
        shared_counters: Vec::new().into(),
    };
    contents.iter().enumerate().map(slice).collect()
}

/// The real slices of a simulated node with every kind of field, as if they were of this node.
pub(super) fn real() -> Vec<ResourceSlice> {
    let scene = scenes().unwrap().into_iter().find(|found| found.name == "h100-8 dynamic 1.36").unwrap();
    let mut slices = scene.slices;
    for slice in &mut slices {
        slice.node = NodeSelection::Name(NODE.to_owned());
    }
    slices
}

fn taint(value: &str) -> Taint {
    let (key, value) = ("aliquot.dev/unhealthy".to_owned(), value.to_owned());
    Taint { key, value, effect: TaintEffect::NoSchedule }
}

pub(super) fn device_names(objects: &[Value]) -> Vec<String> {
    let devices =
        objects.iter().flat_map(|object| object["spec"]["devices"].as_array().into_iter().flatten());
    devices.filter_map(|device| device["name"].as_str()).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_without_a_change_writes_nothing() {
    let server = FakeApiServer::start();
    let slices = real();
    let mut running = Running::start(&server).await;
    running.until("reporting a server", |publication| publication.server.is_some()).await;
    assert_eq!(server.slice_writes(), [], "nothing is written before slices are desired");
    running.want(&slices);
    let published = running.in_sync().await;
    assert_eq!(published.writes, u64::try_from(slices.len()).unwrap());
    let owner = &server.objects("resourceslices")[0]["metadata"]["ownerReferences"][0];
    assert_eq!((owner["kind"].as_str(), owner["name"].as_str()), (Some("Node"), Some(NODE)));
    running.kill().await;

    server.forget_requests();
    let mut running = Running::start(&server).await;
    running.want(&slices);
    assert_eq!(running.in_sync().await.writes, 0);
    assert_eq!(server.slice_writes(), []);
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wiped_slices_return_within_a_second() {
    let server = FakeApiServer::start();
    let slices = real();
    let mut running = Running::start(&server).await;
    running.want(&slices);
    running.in_sync().await;
    let mut took = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        server.wipe_slices();
        server.wait_for("resourceslices", |found| found.len() == slices.len()).await;
        took.push(began.elapsed());
        running.in_sync().await;
    }
    running.kill().await;
    // The fastest round: the others may have waited for a processor beside other tests.
    assert!(took.iter().min().is_some_and(|took| *took < Duration::from_secs(1)), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_content_cost_the_fewest_writes() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0, 0, 0]));
    running.in_sync().await;
    for (contents, writes) in [(&[0, 1, 0][..], 1), (&[1, 1, 1], 3), (&[1, 1], 3), (&[], 2)] {
        server.forget_requests();
        running.want(&pool(contents));
        let before = running.publication.borrow().writes;
        let done = before + u64::try_from(writes).unwrap();
        running.until("written", |p| p.in_sync && p.writes >= done).await;
        assert_eq!(device_names(&server.objects("resourceslices")), device_names_of(&pool(contents)));
        assert_eq!(server.slice_writes().len(), writes, "{contents:?}: {:#?}", server.slice_writes());
    }
    running.kill().await;
}

fn device_names_of(slices: &[ResourceSlice]) -> Vec<String> {
    slices.iter().flat_map(|slice| &slice.devices).map(|device| device.name.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_of_taints_stay_until_the_taint_goes() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    let mut slices = pool(&[0]);
    slices[0].devices[0].taints = vec![taint("xid-79")];
    running.want(&slices);
    running.in_sync().await;
    let time = || server.objects("resourceslices")[0]["spec"]["devices"][0]["taints"][0]["timeAdded"].clone();
    let first = time();
    assert!(first.is_string());
    slices[0].devices[0].taints.push(Taint { key: "aliquot.dev/other".to_owned(), ..taint("") });
    running.want(&slices);
    server.wait_for("resourceslices", |found| found[0]["spec"]["devices"][0]["taints"][1].is_object()).await;
    running.in_sync().await;
    assert_eq!(time(), first);
    slices[0].devices[0].taints[0] = taint("xid-48");
    running.want(&slices);
    server
        .wait_for("resourceslices", |found| found[0]["spec"]["devices"][0]["taints"][0]["value"] == "xid-48")
        .await;
    assert_ne!(time(), first);
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_by_others_are_undone() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0, 0]));
    running.in_sync().await;
    let mut edited = server.objects("resourceslices")[0].clone();
    edited["spec"]["devices"][0]["name"] = "foreign".into();
    edited["metadata"]["labels"]["team"] = "a".into();
    server.put(edited);
    server.wait_for("resourceslices", |found| device_names(found) == ["d0-0", "d1-0"]).await;
    running.in_sync().await;
    assert_eq!(server.objects("resourceslices")[0]["metadata"]["labels"]["team"], "a");
    let mut older = server.objects("resourceslices")[0].clone();
    older["metadata"] = serde_json::json!({ "name": "left-behind" });
    server.put(older);
    server.wait_for("resourceslices", |found| found.len() == 2).await;
    running.in_sync().await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_node_object_becomes_the_owner() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0]));
    running.in_sync().await;
    server.delete("nodes", "", NODE);
    let node =
        server.put(serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}));
    // The garbage collector removes what the deleted Node owned.
    server.wipe_slices();
    let owned = |found: &[Value]| {
        found.len() == 1 && found[0]["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    };
    server.wait_for("resourceslices", owned).await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_that_was_forbidden_is_asked_for_again() {
    let server = FakeApiServer::start();
    server.inject(Fault { times: 3, ..Fault::once("get", "nodes", Effect::Status(403)) });
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0]));
    running.in_sync().await;
    let owner = |found: &[Value]| found[0]["metadata"]["ownerReferences"][0]["name"].clone();
    assert_eq!(
        owner(&server.objects("resourceslices")),
        Value::Null,
        "slices are published without an owner"
    );
    server.wait_for("resourceslices", |found| owner(found) == NODE).await;
    running.in_sync().await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_other_nodes_are_left_alone() {
    let server = FakeApiServer::start();
    let mut foreign = serde_json::json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "other"},
        "spec": {"driver": "aliquot.dev", "nodeName": "n2", "allNodes": null,
            "pool": {"name": "n2/p", "generation": 1, "resourceSliceCount": 1}},
    });
    foreign["spec"].as_object_mut().unwrap().remove("allNodes");
    server.put(foreign.clone());
    // A slice of another node that has the name of one of ours.
    foreign["metadata"]["name"] = format!("{NODE}-p-0000").into();
    server.put(foreign);
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0]));
    let publication = running.until("refused", |p| p.error.is_some()).await;
    let error = publication.error.unwrap();
    assert_eq!(error.disposition, Disposition::Broken);
    assert!(error.message.contains("expected none of this name"), "{}", error.message);
    assert_eq!(server.objects("resourceslices").len(), 2);
    server.delete("resourceslices", "", &format!("{NODE}-p-0000"));
    running.in_sync().await;
    assert_eq!(server.objects("resourceslices").len(), 2);
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicts_and_lost_answers_converge() {
    let effects =
        [Effect::Status(409), Effect::LoseAnswer, Effect::Break, Effect::Status(500), Effect::Status(429)];
    for verb in ["create", "update", "delete"] {
        for effect in effects {
            let server = FakeApiServer::start();
            let mut running = Running::start(&server).await;
            if verb != "create" {
                running.want(&pool(&[0, 0]));
                running.in_sync().await;
            }
            // Dry runs come before; the fault is for the write.
            running.until("reporting a server", |p| p.server.is_some()).await;
            server.inject(Fault::once(verb, "resourceslices", effect));
            let last: &[u8] = if verb == "delete" { &[0] } else { &[1, 0] };
            running.want(&pool(last));
            server
                .wait_for("resourceslices", |found| {
                    found.len() == last.len() && device_names(found) == device_names_of(&pool(last))
                })
                .await;
            running.in_sync().await;
            running.kill().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_slices_are_named_and_tried_again() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.until("reporting a server", |p| p.server.is_some()).await;
    server.inject(Fault::once("create", "resourceslices", Effect::Status(403)));
    running.want(&pool(&[0]));
    let error = running.until("refused", |p| p.error.is_some()).await.error.unwrap();
    assert_eq!(error.disposition, Disposition::Broken);
    assert!(
        error.message.contains("grant the verb `create` on `resourceslices.resource.k8s.io`"),
        "{}",
        error.message
    );
    running.in_sync().await;

    // A pool that breaks the API's rules is left as it is; other pools are published.
    let mut broken = pool(&[1]);
    let twin = broken[0].devices[0].clone();
    broken[0].devices.push(twin);
    let mut other = pool(&[0]);
    other[0].pool.name = format!("{NODE}/q");
    other[0].name = format!("{NODE}-q-0000");
    running.want(&[broken, other].concat());
    let error = running.until("refused", |p| p.error.is_some()).await.error.unwrap();
    assert!(error.message.contains("1 pools are not published"), "{}", error.message);
    server.wait_for("resourceslices", |found| device_names(found) == ["d0-0", "d0-0"]).await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_ends_with_the_desired_slices() {
    let mut server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0]));
    running.in_sync().await;
    server.stop();
    let error = running.until("failing", |p| p.error.is_some()).await.error.unwrap();
    assert_eq!(error.disposition, Disposition::Retry);
    running.want(&pool(&[1, 1]));
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.wipe_slices();
    server.resume();
    server.wait_for("resourceslices", |found| device_names(found) == ["d0-1", "d1-1"]).await;
    let recovered = running.until("recovered", |p| p.in_sync && p.error.is_none()).await;
    assert!(recovered.server.is_some());
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_that_was_forbidden_ends_in_sync_without_a_change() {
    for code in [401, 403] {
        let mut server = FakeApiServer::start();
        let mut running = Running::start(&server).await;
        running.want(&pool(&[0]));
        running.in_sync().await;
        server.inject(Fault::once("watch", "resourceslices", Effect::Status(code)));
        server.stop();
        server.resume();
        let refused =
            |p: &Publication| p.error.as_ref().is_some_and(|e| e.disposition == Disposition::Broken);
        running.until("refused", refused).await;
        running.until("recovered", |p| p.in_sync && p.error.is_none()).await;
        running.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_absent_at_the_start_is_waited_for() {
    let mut server = FakeApiServer::start();
    server.stop();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0]));
    running.until("failing", |p| p.error.is_some() && p.server.is_none()).await;
    server.resume();
    running.in_sync().await;
    assert_eq!(device_names(&server.objects("resourceslices")), ["d0-0"]);
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_watches_miss_nothing() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0, 0]));
    running.in_sync().await;
    for _ in 0..3 {
        server.delete("resourceslices", "", &format!("{NODE}-p-0001"));
        server.expire_watches();
        server.wait_for("resourceslices", |found| found.len() == 2).await;
    }
    running.until("recovered", |p| p.in_sync && p.error.is_none()).await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_end_with_the_desired_slices() {
    let seed = aliquot_tests::seed::seed();
    let mut random = Random::new(seed);
    let mut server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    for round in 0..20 {
        server.disturb(seed ^ round, 300);
        let contents: Vec<u8> =
            (0..random.below(5)).map(|_| u8::try_from(random.below(3)).unwrap()).collect();
        running.want(&pool(&contents));
        match random.below(6) {
            0 => server.wipe_slices(),
            1 => server.expire_watches(),
            2 => {
                server.stop();
                server.resume();
            }
            3 => {
                running.kill().await;
                running = Running::start(&server).await;
                running.want(&pool(&contents));
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(random.bits() % 60)).await;
        server.disturb(seed, 0);
        let expected = device_names_of(&pool(&contents));
        let count = contents.len();
        server
            .wait_for("resourceslices", |found| found.len() == count && device_names(found) == expected)
            .await;
        running.until("recovered", |p| p.in_sync).await;
    }
    running.kill().await;
}
