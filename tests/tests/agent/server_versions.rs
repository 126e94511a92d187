//! What an agent publishes for API servers of other versions and gates, and while these change under it.

use std::time::{Duration, Instant};

use aliquot_core::offer::{CounterNodes, CounterStance, Support};
use aliquot_driver::ports::Publication;
use aliquot_tests::fake_apiserver::{Effect, FakeApiServer, Fault, Gate, Gates};
use serde_json::{Value, json};

use super::publisher::{Running, UPGRADE, device_names, pool, real};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gates_that_are_off_are_known_before_a_write() {
    let server = FakeApiServer::start();
    server.set_gates(Gates { shares: Gate::Off, ..Gates::default() });
    let mut running = Running::start(&server).await;
    let publication = running.until("reporting a server", |p| p.server.is_some()).await;
    let found = publication.server.unwrap();
    assert_eq!((found.minor, found.patch), (36, 3));
    assert_eq!((found.counters, found.shares, found.taints), (Support::Kept, Support::Lost, Support::Kept));
    assert_eq!(server.slice_writes(), []);
    running.kill().await;

    server.set_gates(Gates::off());
    server.set_version(34, 1);
    let mut running = Running::start(&server).await;
    // Partitions without counters could be given to several claims at once: their pool is withheld.
    running.want(&real());
    let publication = running.in_sync().await;
    let found = publication.server.unwrap();
    assert_eq!((found.counters, found.shares, found.taints), (Support::Lost, Support::Lost, Support::Lost));
    assert_eq!(server.objects("resourceslices"), Vec::<Value>::new());
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_server_counts_once_no_older_one_answers() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0]));
    running.in_sync().await;
    // A watch that ends with an error asks the server's version anew.
    let answers = async |running: &mut Running, minor, patch| {
        server.set_version(minor, patch);
        server.inject(Fault::once("watch", "resourceslices", Effect::Status(500)));
        server.expire_watches();
        running.until("in sync", |p| p.in_sync).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let minor = |running: &Running| running.publication.borrow().server.map(|server| server.minor);
    for _ in 0..3 {
        answers(&mut running, 37, 0).await;
        assert_eq!(minor(&running), Some(36), "a newer server beside older ones");
        answers(&mut running, 36, 3).await;
        assert_eq!(minor(&running), Some(36));
    }
    answers(&mut running, 37, 0).await;
    let since = Instant::now();
    running.until("newer", |p| p.server.is_some_and(|server| server.minor == 37)).await;
    assert!(since.elapsed() < 2 * UPGRADE, "{:?}", since.elapsed());
    answers(&mut running, 36, 3).await;
    running.until("older at once", |p| p.server.is_some_and(|server| server.minor == 36)).await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_dropped_later_withdraw_counters() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0]));
    running.in_sync().await;
    server.set_gates(Gates::off());
    let counted = real();
    running.want(&[pool(&[0]), counted].concat());
    let lost = |p: &Publication| p.server.is_some_and(|server| server.counters == Support::Lost);
    running.until("lowered", lost).await;
    server.wait_for("resourceslices", |found| device_names(found) == ["d0-0"]).await;
    let requests = server.slice_writes().len();
    // The answer is settled: nothing is written again and again.
    running.until("in sync", |p| p.in_sync || p.error.is_some()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.slice_writes().len(), requests);
    running.kill().await;
}

/// A slice of another node: of this driver with the label, or of another driver with counters.
fn of_node(number: usize, driver: &str) -> Value {
    let name = format!("other-{number}");
    let labels = match driver {
        "aliquot.dev" => json!({ "aliquot.dev/counters": "published" }),
        _ => json!({}),
    };
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {
            "name": format!("{name}-slice"), "labels": labels,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": name }],
        },
        "spec": {
            "driver": driver, "nodeName": name, "pool": { "name": name, "generation": 1, "resourceSliceCount": 1 },
            "sharedCounters": [{ "name": "card", "counters": { "slices": { "value": "7" } } }],
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_counters_are_counted_with_hysteresis() {
    let server = FakeApiServer::start();
    let others = |range: std::ops::Range<usize>, driver: &str| {
        range.for_each(|number| drop(server.put(of_node(number, driver))));
    };
    let fewer = |range: std::ops::Range<usize>| {
        range.for_each(|number| server.delete("resourceslices", "", &format!("other-{number}-slice")));
    };
    let nodes = |p: &Publication| p.server.map(|server| server.counter_nodes);
    let label = |wanted: &'static str| {
        move |found: &[Value]| {
            let own = found.iter().find(|slice| slice["spec"]["nodeName"] == "n1");
            own.is_some_and(|slice| slice["metadata"]["labels"]["aliquot.dev/counters"] == wanted)
        }
    };
    others(0..9, "aliquot.dev");
    others(9..19, "gpu.nvidia.com");
    // Without counters, a slice does not count.
    let mut plain = of_node(30, "cpu.example.com");
    plain["spec"]["sharedCounters"] = json!(null);
    server.put(plain);
    let mut running = Running::start(&server).await;
    running.want_with(&pool(&[0, 0]), Some(CounterStance::Published));
    running.until("20 nodes", |p| nodes(p) == Some(CounterNodes::Few(20))).await;
    server.wait_for("resourceslices", label("published")).await;
    others(19..20, "aliquot.dev");
    running.until("21 nodes", |p| nodes(p) == Some(CounterNodes::Many(21))).await;
    running.want_with(&pool(&[0, 0]), Some(CounterStance::Withheld));
    server.wait_for("resourceslices", label("withheld")).await;
    fewer(0..3);
    running.until("18 nodes", |p| nodes(p) == Some(CounterNodes::Many(18))).await;
    running.kill().await;

    // The next agent goes on from the label.
    let mut running = Running::start(&server).await;
    running.until("18 nodes", |p| nodes(p) == Some(CounterNodes::Many(18))).await;
    fewer(3..5);
    running.until("16 nodes", |p| nodes(p) == Some(CounterNodes::Few(16))).await;
    // A node without cards for counters has no label.
    running.want_with(&pool(&[0, 0]), None);
    let unlabelled = |found: &[Value]| {
        let mut own = found.iter().filter(|slice| slice["spec"]["nodeName"] == "n1");
        own.all(|slice| slice["metadata"]["labels"]["aliquot.dev/counters"].is_null())
    };
    server.wait_for("resourceslices", unlabelled).await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_count_leaves_counters_unused() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.until("one node", |p| p.server.is_some_and(|s| s.counter_nodes == CounterNodes::Few(1))).await;
    let refused = Fault { times: 1000, ..Fault::once("list", "resourceslices", Effect::Status(403)) };
    server.inject(refused);
    running.until("unknown", |p| p.server.is_some_and(|s| s.counter_nodes == CounterNodes::Unknown)).await;
    running.kill().await;
}
