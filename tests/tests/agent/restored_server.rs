//! What the agent believes of an API server that lost its latest state, as after a restore of etcd from a backup, or of which
//! watches miss changes.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use aliquot_driver::agent::pace::AgentPace;
use aliquot_driver::ports::Publication;
use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::running_agent::{PACE, RunningAgent};
use serde_json::{Value, json};

use super::kubelet_protocol::{Bench, SHARE, eventually};
use super::publisher::{COMPARE_AGE, Running, device_names, pool};

fn owners(slices: &[Value]) -> Vec<&str> {
    slices.iter().filter_map(|slice| slice["metadata"]["ownerReferences"][0]["uid"].as_str()).collect()
}

/// Changes that move the server's version on, as the rest of a cluster does.
fn busy(server: &FakeApiServer) {
    for number in 0..20 {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{number}")}});
        server.put(pod);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_that_a_restore_lost_return() {
    let server = FakeApiServer::start();
    let before = server.snapshot();
    busy(&server);
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0, 0]));
    running.in_sync().await;
    server.restore(&before);
    assert_eq!(server.objects("resourceslices").len(), 0);
    server.wait_for("resourceslices", |found| device_names(found) == ["d0-0", "d1-0"]).await;
    running.until("restored", |p| p.in_sync && p.restores == 1).await;
    // The watch of now tells of changes again.
    server.wipe_slices();
    server.wait_for("resourceslices", |found| found.len() == 2).await;
    tokio::time::sleep(COMPARE_AGE * 3).await;
    running.until("in sync", |p| p.in_sync && p.restores == 1).await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_an_older_state_are_replaced() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0, 0, 0]));
    running.in_sync().await;
    let before = server.snapshot();
    running.want(&pool(&[1, 1]));
    server.wait_for("resourceslices", |found| device_names(found) == ["d0-1", "d1-1"]).await;
    running.in_sync().await;
    busy(&server);
    // The state may also come back with a restart of the server.
    for again in 1..=2 {
        server.restore(&before);
        server.wait_for("resourceslices", |found| device_names(found) == ["d0-1", "d1-1"]).await;
        running.until("restored", |p| p.in_sync && p.restores == again).await;
        busy(&server);
        tokio::time::sleep(COMPARE_AGE * 2).await;
    }
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_slices_have_the_restored_node_as_owner() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0]));
    running.in_sync().await;
    let before = server.snapshot();
    let old = server.objects("nodes")[0]["metadata"]["uid"].as_str().unwrap().to_owned();
    server.delete("nodes", "", "n1");
    let node = server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
    server.wipe_slices();
    let new = node["metadata"]["uid"].as_str().unwrap();
    server.wait_for("resourceslices", |found| owners(found) == [new]).await;
    busy(&server);
    server.restore(&before);
    running.until("restored", |p| p.in_sync && p.restores == 1).await;
    assert_eq!(owners(&server.objects("resourceslices")), [old.as_str()]);
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_that_no_watch_tells_of_is_found() {
    let server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.want(&pool(&[0, 0]));
    running.in_sync().await;
    server.delete_unseen("resourceslices", "", "n1-p-0001");
    server.wait_for("resourceslices", |found| found.len() == 2).await;
    running.until("in sync", |p| p.in_sync && p.restores == 0).await;
    running.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_are_behind_while_the_server_is_away() {
    let mut server = FakeApiServer::start();
    let mut running = Running::start(&server).await;
    running.until("asked", |p| p.server.is_some()).await;
    assert_eq!(running.publication.borrow().behind, None, "nothing is wanted yet");
    running.want(&pool(&[0]));
    running.until("in sync", |p| p.in_sync && p.behind.is_none()).await;
    server.stop();
    let since = running.until("behind", |p| p.behind.is_some()).await.behind;
    running.want(&pool(&[1]));
    tokio::time::sleep(COMPARE_AGE).await;
    assert_eq!(running.publication.borrow().behind, since, "since the first failure");
    server.resume();
    running.until("in sync", |p| p.in_sync && p.behind.is_none()).await;
    running.kill().await;
}

/// Status line and body of a page of the agent.
fn page(agent: &RunningAgent, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(agent.metrics).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: agent\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_ends_with_slices_a_minute_behind() {
    let bench = Bench::new("mixed", &[]).await;
    eventually(|| page(&bench.agent, "/readyz").0.contains(" 200 ").then_some(())).await;
    let behind = |age| Instant::now().checked_sub(Duration::from_secs(age));
    for (age, word) in [(30, " 200 "), (61, " 503 ")] {
        bench.agent.publication.send_modify(|p| p.behind = behind(age));
        let (status, text) = page(&bench.agent, "/readyz");
        assert!(status.contains(word), "{age}: {status}");
        assert!(text.contains("slices: not in sync"), "{text}");
    }
    // A Pod that is not ready is scraped all the same.
    assert!(page(&bench.agent, "/metrics").0.contains(" 200 "));
    assert!(page(&bench.agent, "/healthz").0.contains(" 200 "));
    bench.agent.publication.send_modify(|p| (p.behind, p.in_sync) = (None, true));
    assert!(page(&bench.agent, "/readyz").0.contains(" 200 "));
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_are_written_again_after_a_restore() {
    let bench = Bench::new("mixed", &[("a", &[SHARE]), ("b", &[SHARE])]).await;
    let has = |bench: &Bench| bench.cluster.statuses.lock().keys().cloned().collect::<Vec<_>>();
    bench.prepare("a").await.unwrap();
    eventually(|| (has(&bench) == ["a"]).then_some(())).await;
    tokio::time::sleep(PACE.look * 4).await;
    bench.cluster.statuses.lock().clear();
    tokio::time::sleep(PACE.look * 3).await;
    assert!(has(&bench).is_empty(), "what is believed is not written at each look");
    bench.agent.publication.send_modify(|p: &mut Publication| p.restores += 1);
    eventually(|| (has(&bench) == ["a"]).then_some(())).await;
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_written_long_ago_is_read_again() {
    let pace = AgentPace { believed: Duration::from_secs(2), ..PACE };
    let bench = Bench::paced("mixed", &[("a", &[SHARE])], pace).await;
    bench.prepare("a").await.unwrap();
    let is_written = || bench.cluster.statuses.lock().contains_key("a").then_some(());
    eventually(is_written).await;
    bench.cluster.statuses.lock().clear();
    eventually(is_written).await;
    bench.agent.stop().await;
}
