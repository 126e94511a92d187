//! Two agents on one node, as a rolling update has them: the later one registers, waits, and takes over.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use aliquot_core::dra::ResourceClaim;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::offer::ServerVersion;
use aliquot_core::ports::{BackendError, PartitionAt};
use aliquot_driver::agent::store::{NodeStore, NodeView};
use aliquot_driver::prepare::{PrepareError, PreparedClaim, ReleaseOutcome};
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};
use parking_lot::{Condvar, Mutex};

const SHARE: Want = Want { card: 2, part: "card", memory_mib: Some(1024), cores: 5 };
const PREPARES: usize = 1000;
const UPDATES: usize = 8;
const WORKERS: usize = 6;

/// Calls that reached a node.
#[derive(Default)]
struct Calls {
    /// Prepares by claim, over all agents.
    prepares: Mutex<BTreeMap<String, usize>>,
    /// Releases by claim, over all agents.
    releases: Mutex<BTreeMap<String, usize>>,
    /// Keeps prepares waiting while it is true.
    held: Mutex<bool>,
    freed: Condvar,
}

/// A node that counts calls.
struct Counted {
    node: Arc<dyn NodeStore>,
    calls: Arc<Calls>,
    /// Calls that reached this agent's node.
    reached: Arc<AtomicUsize>,
}

impl NodeStore for Counted {
    fn prepare(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        *self.calls.prepares.lock().entry(claim.uid.clone()).or_default() += 1;
        self.reached.fetch_add(1, SeqCst);
        let mut held = self.calls.held.lock();
        self.calls.freed.wait_while(&mut held, |held| *held);
        drop(held);
        self.node.prepare(claim)
    }

    fn monitor(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        self.node.monitor(claim)
    }

    fn release(&self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        *self.calls.releases.lock().entry(uid.to_string()).or_default() += 1;
        self.reached.fetch_add(1, SeqCst);
        self.node.release(uid)
    }

    fn end_runs(&self) -> Vec<String> {
        self.node.end_runs()
    }

    fn missing_partitions(&self, card: &CardUuid) -> Result<Vec<PartitionAt>, BackendError> {
        self.node.missing_partitions(card)
    }

    fn view(&self, server: ServerVersion) -> Result<NodeView, BackendError> {
        self.node.view(server)
    }
}

/// One agent of the update.
struct Generation {
    agent: RunningAgent,
    endpoint: String,
    reached: Arc<AtomicUsize>,
}

/// A node under update.
struct Bench {
    world: World,
    kubelet: FakeKubelet,
    cluster: Arc<FakeCluster>,
    calls: Arc<Calls>,
    /// Calls that the kubelet sent, by endpoint.
    sent: Mutex<BTreeMap<String, usize>>,
}

impl Bench {
    /// A node with claims `c0`, `c1` and so on.
    fn new(claims: usize) -> Arc<Self> {
        let world = World::new("mixed", "");
        let cluster = Arc::new(FakeCluster::default());
        let first = claim(&world.open(), "first", &[SHARE]);
        for number in 0..claims {
            let (name, uid) = (format!("claim-{number}"), format!("c{number}"));
            cluster.put(&ResourceClaim { name, uid, ..first.clone() });
        }
        let (calls, sent) = (Arc::default(), Mutex::default());
        Arc::new(Self { world, kubelet: FakeKubelet::default(), cluster, calls, sent })
    }

    /// Starts the next agent, and waits until the kubelet calls it.
    async fn next(&self, number: usize) -> Generation {
        let reached = Arc::new(AtomicUsize::new(0));
        let (calls, entered) = (Arc::clone(&self.calls), Arc::clone(&reached));
        let count = move |node| Arc::new(Counted { node, calls, reached: entered }) as Arc<dyn NodeStore>;
        let pod = format!("00000000-0000-4000-8000-{number:012}");
        let agent = RunningAgent::after_another(&self.world, &self.kubelet, &self.cluster, &pod, count);
        let endpoint = loop {
            self.kubelet.reconcile().await;
            let endpoint = self.kubelet.current().map(|plugin| plugin.info.endpoint).unwrap_or_default();
            if endpoint.contains(&pod) {
                break endpoint;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        Generation { agent, endpoint, reached }
    }

    /// Ends an agent after the kubelet's calls have reached its node; some are still in progress there.
    async fn end(&self, generation: Generation) {
        let sent = || self.sent.lock().get(&generation.endpoint).copied().unwrap_or_default();
        eventually(|| sent() == generation.reached.load(SeqCst)).await;
        generation.agent.stop().await;
    }

    /// The plugin to call now; the call counts as sent to it.
    fn plugin(&self) -> Plugin {
        let mut sent = self.sent.lock();
        let plugin = self.kubelet.current().unwrap();
        *sent.entry(plugin.info.endpoint.clone()).or_default() += 1;
        plugin
    }

    /// Prepares and unprepares one claim; returns the names of its devices.
    async fn use_claim(&self, number: usize) -> Result<usize, String> {
        let (name, uid) = (format!("claim-{number}"), format!("c{number}"));
        let named = [("test", name.as_str(), uid.as_str())];
        let devices = self.plugin().prepare(&named).await.remove(&uid).unwrap()?;
        match self.plugin().unprepare(&named).await.remove(&uid).unwrap() {
            error if error.is_empty() => Ok(devices.len()),
            error => Err(error),
        }
    }
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(holds(), "not within 30 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rolling_updates_fail_no_prepare_and_run_none_twice() {
    let bench = Bench::new(PREPARES);
    let mut current = bench.next(0).await;
    let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (bench, begun, done) = (Arc::clone(&bench), Arc::clone(&begun), Arc::clone(&done));
            tokio::spawn(async move {
                loop {
                    let number = begun.fetch_add(1, SeqCst);
                    if number >= PREPARES {
                        return;
                    }
                    assert_eq!(bench.use_claim(number).await, Ok(1), "claim {number}");
                    done.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    for update in 1..=UPDATES {
        eventually(|| done.load(SeqCst) >= PREPARES * update / (UPDATES + 1)).await;
        let next = bench.next(update).await;
        bench.end(std::mem::replace(&mut current, next)).await;
        bench.kubelet.reconcile().await;
    }
    for worker in workers {
        worker.await.unwrap();
    }
    current.agent.stop().await;
    for calls in [&bench.calls.prepares, &bench.calls.releases] {
        let calls = calls.lock();
        assert_eq!(calls.len(), PREPARES);
        assert!(calls.values().all(|count| *count == 1), "{calls:?}");
    }
    let node = bench.world.open();
    node.invariants().unwrap();
    assert_eq!(node.claims().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn agent_that_ends_answers_calls_in_progress() {
    let bench = Bench::new(2);
    let earlier = bench.next(0).await;
    *bench.calls.held.lock() = true;
    let using = |number: usize| {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move { bench.use_claim(number).await })
    };
    let first = using(0);
    eventually(|| earlier.reached.load(SeqCst) == 1).await;
    let later = bench.next(1).await;
    let second = using(1);
    eventually(|| bench.sent.lock().get(&later.endpoint) == Some(&1)).await;
    let sockets = bench.kubelet.registrations();
    assert_eq!(sockets.len(), 2, "{sockets:?}");
    let ending = tokio::spawn(earlier.agent.stop());
    eventually(|| bench.kubelet.registrations().len() == 1).await;
    // The earlier agent has a call in progress, so the node is still its own.
    assert_eq!(later.reached.load(SeqCst), 0);
    assert!(!ending.is_finished());
    *bench.calls.held.lock() = false;
    bench.calls.freed.notify_all();
    assert_eq!(first.await.unwrap(), Ok(1));
    assert_eq!(second.await.unwrap(), Ok(1));
    ending.await.unwrap();
    later.agent.stop().await;
    assert!(bench.calls.prepares.lock().values().all(|count| *count == 1));
}
