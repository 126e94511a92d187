//! The agent is killed at each of its calls of the API server, for each shape of claim; the next agent ends what it began.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent, Side};

const UID: &str = "c1a1";
const NAMED: [(&str, &str, &str); 1] = [("test", "claim-c1a1", UID)];

/// Personality, policy and parts of a claim.
type Shape = (&'static str, &'static str, &'static [Want]);

const fn want(card: u32, part: &'static str, memory_mib: Option<u64>) -> Want {
    Want { card, part, memory_mib, cores: if memory_mib.is_some() { 10 } else { 0 } }
}

static SHAPES: [Shape; 6] = [
    ("t4-2", "", &[want(0, "card", Some(4096))]),
    ("h200", "", &[want(0, "1g.18gb at 2", None)]),
    ("h200", "", &[want(0, "3g.71gb at 4", Some(8192))]),
    ("ascend-910b4", "", &[want(0, "vir05_1c_8g at 0", None), want(1, "vir10_3c_16g at 1", None)]),
    ("ascend-310p", "", &[want(0, "vir02 at vg1", None)]),
    ("h200", "default = \"whole\"", &[want(0, "card", None)]),
];

/// What the kubelet asks for when the agent is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Prepare,
    Unprepare,
}

async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "not within 30 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn call(plugin: &Plugin, call: Call) -> Result<(), String> {
    match call {
        Call::Prepare => plugin.prepare(&NAMED).await.remove(UID).unwrap().map(drop),
        Call::Unprepare => match plugin.unprepare(&NAMED).await.remove(UID).unwrap() {
            error if error.is_empty() => Ok(()),
            error => Err(error),
        },
    }
}

/// Waits until the agent has made its last call of the API server: the status is written behind the answer.
async fn last_call(cluster: &FakeCluster, begun: Call) {
    if begun == Call::Prepare {
        eventually(|| cluster.statuses.lock().get(UID).cloned()).await;
    }
    // An agent that is to be killed behind its write says so after the write.
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// Kills an agent at its call number `calls`; whether it came to that call.
async fn kill_at(shape: &Shape, begun: Call, calls: usize, side: Side) -> bool {
    let (personality, policy, wants) = shape;
    let (world, kubelet) = (World::new(personality, policy), FakeKubelet::default());
    let cluster = Arc::new(FakeCluster::default());
    let node = world.open();
    cluster.put(&claim(&node, UID, wants));
    let agent = RunningAgent::start(node, &kubelet, &cluster, None);
    let plugin = kubelet.register().await;
    if begun == Call::Unprepare {
        call(&plugin, Call::Prepare).await.unwrap();
        eventually(|| cluster.statuses.lock().get(UID).cloned()).await;
    }
    cluster.kill_after(calls, side);
    let asked = {
        let plugin = plugin.clone();
        tokio::spawn(async move { call(&plugin, begun).await })
    };
    let reached = tokio::select! {
        () = cluster.reached() => true,
        () = last_call(&cluster, begun) => false,
    };
    asked.abort();
    drop(plugin);
    agent.kill().await;
    cluster.bury();

    let (node, recovery) = eventually(|| world.try_open(None).ok()).await;
    assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
    node.invariants().unwrap();
    let cluster = Arc::new(cluster.of_next_agent());
    let agent = RunningAgent::start(node, &kubelet, &cluster, None);
    let plugin = kubelet.register().await;
    call(&plugin, Call::Prepare).await.unwrap();
    world.look().unwrap().invariants().unwrap();
    let status = eventually(|| cluster.statuses.lock().get(UID).cloned()).await;
    assert_eq!(status.len(), wants.len());
    call(&plugin, Call::Unprepare).await.unwrap();
    agent.stop().await;
    let node = world.open();
    node.invariants().unwrap();
    assert_eq!((node.claims().count(), world.live().len()), (0, 0));
    reached
}

/// Kills an agent at each of its calls for a claim of this shape; how many there were.
async fn kill_at_each_call(shape: &'static Shape) -> usize {
    let mut points = 0;
    for (begun, side) in
        [(Call::Prepare, Side::Before), (Call::Prepare, Side::Behind), (Call::Unprepare, Side::Before)]
    {
        let mut calls = 0;
        while kill_at(shape, begun, calls, side).await {
            calls += 1;
            points += 1;
            assert!(calls < 20, "{shape:?}: calls of the API server without end");
        }
        assert!(begun == Call::Unprepare || calls >= 2, "{shape:?}: a claim is read, and its status written");
    }
    points
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_killed_at_any_api_call_converges() {
    // Most of the time is waiting for calls that do not come.
    let shapes = SHAPES.iter().map(|shape| tokio::spawn(kill_at_each_call(shape)));
    let points: usize = futures::future::join_all(shapes).await.into_iter().map(Result::unwrap).sum();
    println!("{points} points");
}
