//! Prepared claims that neither the kubelet nor the API server knows any more.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_abi::layout::usage::SLOTS;
use aliquot_driver::agent::pace::AgentPace;
use aliquot_driver::ports::EventObject;
use aliquot_driver::region::USAGE;
use aliquot_tests::node::Want;
use aliquot_tests::running_agent::{FakeCluster, PACE};
use nix::unistd::geteuid;

use super::kubelet_protocol::{Bench, REST, SHARE};
use super::waits::HOLDER;

/// A grace with a pass a second, which a loaded machine does not delay by another.
const LOST_SOON: AgentPace = AgentPace { grace: Duration::from_secs(5), ..PACE };
/// Longest wait for a release.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a test stands aside of this user: then no claim is released.
const ASIDE: &str = "stood aside: only root reads the mounts of other users' processes";

/// Names of the claims that were released for being lost.
fn released(cluster: &FakeCluster) -> Vec<String> {
    let events = cluster.events.lock();
    let of_node = events.iter().filter(|event| event.reason == "OrphanReleased");
    let name = |message: &str| message.split(' ').nth(1).unwrap().to_owned();
    of_node
        .inspect(|event| assert_eq!(event.about, EventObject::Node))
        .map(|event| name(&event.message))
        .collect()
}

/// An agent with prepared claims, whose slices the server has.
async fn prepared(claims: &[(&str, &[Want])]) -> Bench {
    let bench = Bench::paced("mixed", claims, LOST_SOON).await;
    bench.agent.publication.send_modify(|publication| publication.in_sync = true);
    for (uid, _) in claims {
        bench.prepare(uid).await.unwrap();
    }
    bench
}

/// More than the grace and some looks: what is to be released is released by then.
async fn long_enough() {
    tokio::time::sleep(LOST_SOON.grace * 3 / 2 + PACE.look * 2).await;
}

/// Waits until claim `a`, and no other, was released for being lost.
async fn until_a_is_released(bench: &Bench) {
    let began = Instant::now();
    while released(&bench.cluster).is_empty() && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(released(&bench.cluster), ["test/claim-a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_that_neither_side_knows_is_released() {
    if !geteuid().is_root() {
        return println!("{ASIDE}");
    }
    let wants: &[(&str, &[Want])] = &[("a", &[SHARE]), ("b", &[SHARE]), ("c", &[SHARE])];
    let bench = prepared(wants).await;
    // The kubelet knows one, the API server another.
    bench.kubelet.record(&["b"]);
    bench.cluster.lose("test", "claim-a");
    bench.cluster.lose("test", "claim-b");
    until_a_is_released(&bench).await;
    assert!(!bench.world.state().join("grants/a").exists());
    long_enough().await;
    assert_eq!(released(&bench.cluster), ["test/claim-a"]);
    for uid in ["b", "c"] {
        assert!(bench.world.state().join("grants").join(uid).exists(), "{uid}");
    }
    let mut stream = TcpStream::connect(bench.agent.metrics).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: agent\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    assert!(metrics.contains("aliquot_dra_orphans_released_total{node=\"node-1\"} 1\n"), "{metrics}");
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_claim_is_kept_while_an_answer_is_missing() {
    if !geteuid().is_root() {
        return println!("{ASIDE}");
    }
    let bench = prepared(&[("a", &[SHARE])]).await;
    bench.cluster.lose("test", "claim-a");
    // No record of the kubelet.
    long_enough().await;
    assert!(released(&bench.cluster).is_empty());
    // A damaged one, and one that is no file.
    bench.kubelet.record(&[]);
    let whole = fs::read(bench.kubelet.claim_state()).unwrap();
    fs::write(bench.kubelet.claim_state(), &whole[..whole.len() - 1]).unwrap();
    long_enough().await;
    assert!(released(&bench.cluster).is_empty());
    fs::remove_file(bench.kubelet.claim_state()).unwrap();
    fs::create_dir(bench.kubelet.claim_state()).unwrap();
    long_enough().await;
    assert!(released(&bench.cluster).is_empty());
    fs::remove_dir(bench.kubelet.claim_state()).unwrap();
    // No answer of the API server, or one from a server without this node's slices.
    bench.cluster.set_away(true);
    fs::write(bench.kubelet.claim_state(), &whole).unwrap();
    long_enough().await;
    assert!(released(&bench.cluster).is_empty());
    bench.agent.publication.send_modify(|publication| publication.in_sync = false);
    bench.cluster.set_away(false);
    long_enough().await;
    assert!(released(&bench.cluster).is_empty());
    assert!(bench.world.state().join("grants/a").exists());
    bench.agent.publication.send_modify(|publication| publication.in_sync = true);
    until_a_is_released(&bench).await;
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_of_another_uid_under_the_name_is_released() {
    if !geteuid().is_root() {
        return println!("{ASIDE}");
    }
    let bench = prepared(&[("a", &[SHARE])]).await;
    bench.kubelet.record(&["a2"]);
    let mut another = bench.cluster.claim("test", "claim-a");
    another.uid = "a2".to_owned();
    bench.cluster.put(&another);
    until_a_is_released(&bench).await;
    bench.agent.stop().await;
}

/// A process that a container of claim `a` could be: it has the mount of a grant, and no process slot.
fn container() -> Child {
    let script = "mount -t tmpfs none /run && mkdir -p /run/aliquot/grants/a/0 && \
                  mount -t tmpfs none /run/aliquot/grants/a/0 && echo && cat";
    let mut child = Command::new("unshare")
        .args(["-rm", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

/// A process with a slot in the first share of claim `a`.
fn slot_holder(bench: &Bench) -> Child {
    let grants = bench.world.state().join("grants/a");
    let share = fs::read_dir(grants).unwrap().flatten().find(|entry| entry.path().is_dir()).unwrap();
    let mut child = Command::new("python3")
        .args(["-c", HOLDER, share.path().join(USAGE).to_str().unwrap(), &SLOTS.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_claim_is_kept_while_a_process_uses_it() {
    if !geteuid().is_root() {
        return println!("{ASIDE}");
    }
    for (wants, is_container) in [(SHARE, false), (REST, true)] {
        let bench = prepared(&[("a", &[wants])]).await;
        let mut process = if is_container { container() } else { slot_holder(&bench) };
        bench.kubelet.record(&[]);
        bench.cluster.lose("test", "claim-a");
        long_enough().await;
        assert!(released(&bench.cluster).is_empty(), "in a container: {is_container}");
        drop(process.stdin.take());
        process.wait().unwrap();
        until_a_is_released(&bench).await;
        bench.agent.stop().await;
    }
}
