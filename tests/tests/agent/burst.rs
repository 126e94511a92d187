//! A node's Pods all start at once.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::dra::ResourceClaim;
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};
use aliquot_tests::watched_store::{StoreCall, WatchedStore};
use parking_lot::{Condvar, Mutex};

/// Pods of each of two cards. A node has 110 Pods by default; a card has 100 percent.
const PODS: usize = 100;

/// One call for each Pod, as the kubelet makes them.
fn prepare_all(plugin: &Plugin, kind: &'static str) -> Vec<tokio::task::JoinHandle<Result<usize, String>>> {
    let one = |number: usize| {
        let plugin = plugin.clone();
        tokio::spawn(async move {
            let uid = format!("{kind}{number}");
            let answer =
                plugin.prepare(&[("test", &format!("claim-{uid}"), &uid)]).await.remove(&uid).unwrap();
            answer.map(|devices| devices.len())
        })
    };
    (0..PODS).map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn burst_of_pods_is_prepared_beside_a_hanging_card() {
    let (world, kubelet) = (World::new("t4-2", ""), FakeKubelet::default());
    let cluster = Arc::new(FakeCluster::default());
    let node = world.open();
    for (kind, card) in [("slow", 0), ("fast", 1)] {
        let want = Want { card, part: "card", memory_mib: Some(64), cores: 1 };
        let first = claim(&node, "first", &[want]);
        for number in 0..PODS {
            let uid = format!("{kind}{number}");
            cluster.put(&ResourceClaim { name: format!("claim-{uid}"), uid, ..first.clone() });
        }
    }
    drop(node);
    let gate = Arc::new((Mutex::new(true), Condvar::new()));
    let hanging = Arc::clone(&gate);
    // The driver of the first card does not answer for now.
    let hang = move |call: StoreCall<'_>| {
        let (hangs, answers) = &*hanging;
        if matches!(call, StoreCall::Prepare(claim) if claim.uid.starts_with("slow")) {
            answers.wait_while_for(&mut hangs.lock(), |hangs| *hangs, Duration::from_secs(60));
        }
    };
    let watched = move |node| WatchedStore::before_each(node, hang);
    let agent = RunningAgent::after_another(&world, &kubelet, &cluster, "pod", watched);
    let plugin = kubelet.register().await;
    let slow = prepare_all(&plugin, "slow");
    let fast = prepare_all(&plugin, "fast");
    for pod in fast {
        let answer = tokio::time::timeout(Duration::from_secs(30), pod).await;
        assert_eq!(answer.unwrap().unwrap(), Ok(1), "it waits for the card that hangs");
    }
    *gate.0.lock() = false;
    gate.1.notify_all();
    for pod in slow {
        assert_eq!(pod.await.unwrap(), Ok(1));
    }
    agent.stop().await;
    let node = world.open();
    node.invariants().unwrap();
    assert_eq!(node.claims().count(), 2 * PODS);
}
