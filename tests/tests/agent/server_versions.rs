//! What an agent publishes for API servers of other versions and gates, and while these change under it.

use std::time::{Duration, Instant};

use aliquot_core::offer::Support;
use aliquot_driver::ports::Publication;
use aliquot_tests::fake_apiserver::{Effect, FakeApiServer, Fault, Gate, Gates};
use serde_json::Value;

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
