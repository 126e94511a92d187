//! Two agents on one node, as rolling updates and downgrades have them: the later one registers, waits, and takes over; and what
//! an agent finds that a newer version wrote.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aliquot_core::dra::ResourceClaim;
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, NodeParts, OpenError};
use aliquot_libraries::SHIM;
use aliquot_tests::fake_kubelet::{FakeKubelet, Plugin};
use aliquot_tests::journal_text::of_version_2;
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};
use aliquot_tests::watched_store::{StoreCall, WatchedStore};
use parking_lot::{Condvar, Mutex};

const SHARE: Want = Want { card: 2, part: "card", memory_mib: Some(1024), cores: 5 };
const PREPARES: usize = 1000;
const UPDATES: usize = 8;
const WORKERS: usize = 6;
/// Longest wait of an agent for the one before it.
const TAKEOVER: Duration = Duration::from_secs(60);

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

/// What an agent brings along.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    /// This version.
    Current,
    /// A later one: another shim, and a journal of the next version that this one may read.
    Next,
}

impl Release {
    const fn of(update: usize) -> Self {
        if update.is_multiple_of(2) { Self::Current } else { Self::Next }
    }

    fn shim(self) -> &'static [u8] {
        static NEXT: LazyLock<Vec<u8>> = LazyLock::new(|| [SHIM, b"of the next version"].concat());
        match self {
            Self::Current => SHIM,
            Self::Next => &NEXT,
        }
    }

    /// Opens the node as this version does.
    fn open(self, parts: impl Fn() -> NodeParts, state: &Path) -> Result<Node, OpenError> {
        let open = || {
            let parts = NodeParts { shim: self.shim(), ..parts() };
            Node::open(parts, &Dirs::in_state(state), Access::Own(TAKEOVER)).map(|(node, _)| node)
        };
        let node = open()?;
        if self == Self::Current {
            return Ok(node);
        }
        drop(node);
        write_newer(state, 1);
        open()
    }
}

/// Has the journal written by version 2, for readers of this version and later ones.
fn write_newer(state: &Path, min_reader: u32) {
    let path = state.join("journal");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, of_version_2(&text, min_reader)).unwrap();
}

/// One agent of the update.
struct Generation {
    agent: RunningAgent,
    endpoint: String,
    reached: Arc<AtomicUsize>,
    /// Whether the node is its own.
    owns: Arc<AtomicBool>,
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
    async fn next(self: &Arc<Self>, number: usize, release: Release) -> Generation {
        let (reached, owns) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (calls, entered, opened) = (Arc::clone(&self.calls), Arc::clone(&reached), Arc::clone(&owns));
        let count = move |call: StoreCall<'_>| match call {
            StoreCall::View => {}
            StoreCall::Prepare(claim) => {
                entered.fetch_add(1, SeqCst);
                *calls.prepares.lock().entry(claim.uid.clone()).or_default() += 1;
                let mut held = calls.held.lock();
                calls.freed.wait_while(&mut held, |held| *held);
            }
            StoreCall::Release(uid) => {
                entered.fetch_add(1, SeqCst);
                *calls.releases.lock().entry(uid.to_string()).or_default() += 1;
            }
        };
        let watched = move |node| {
            opened.store(true, SeqCst);
            WatchedStore::before_each(node, count)
        };
        let bench = Arc::clone(self);
        let opens = move || release.open(|| bench.world.parts(Disk::default()), &bench.world.state());
        let pod = format!("00000000-0000-4000-8000-{number:012}");
        let agent = RunningAgent::opening(opens, &self.kubelet, &self.cluster, &pod, watched);
        let endpoint = loop {
            self.kubelet.reconcile().await;
            let endpoint = self.kubelet.current().map(|plugin| plugin.info.endpoint).unwrap_or_default();
            if endpoint.contains(&pod) {
                break endpoint;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        Generation { agent, endpoint, reached, owns }
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

    /// Prepares one claim; returns the number of its devices.
    async fn prepare(&self, number: usize) -> Result<usize, String> {
        let (name, uid) = (format!("claim-{number}"), format!("c{number}"));
        let devices = self.plugin().prepare(&[("test", &name, &uid)]).await.remove(&uid).unwrap()?;
        Ok(devices.len())
    }

    /// Unprepares one claim.
    async fn unprepare(&self, number: usize) -> Result<(), String> {
        let (name, uid) = (format!("claim-{number}"), format!("c{number}"));
        match self.plugin().unprepare(&[("test", &name, &uid)]).await.remove(&uid).unwrap() {
            error if error.is_empty() => Ok(()),
            error => Err(error),
        }
    }

    /// Prepares and unprepares one claim; returns the number of its devices, and of which version its shim was.
    async fn use_claim(&self, number: usize) -> Result<(usize, Release), String> {
        let devices = self.prepare(number).await?;
        let cdi = self.world.state().join(format!("cdi/aliquot.dev-claim-c{number}.json"));
        let cdi: serde_json::Value = serde_json::from_slice(&fs::read(cdi).unwrap()).unwrap();
        let mounts = cdi["devices"][0]["containerEdits"]["mounts"].as_array().unwrap();
        let paths = mounts.iter().map(|mount| mount["hostPath"].as_str().unwrap());
        let shim = paths.into_iter().find(|path| path.ends_with("/libaliquot.so")).unwrap();
        let shim = fs::read(shim).unwrap();
        let release = [Release::Current, Release::Next].into_iter().find(|release| release.shim() == shim);
        self.unprepare(number).await?;
        Ok((devices, release.unwrap()))
    }

    fn journal(&self) -> String {
        fs::read_to_string(self.world.state().join("journal")).unwrap()
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
async fn updates_and_downgrades_fail_no_prepare_and_repeat_none() {
    let bench = Bench::new(PREPARES);
    let mut current = bench.next(0, Release::of(0)).await;
    let shims = Arc::new(Mutex::new(Vec::new()));
    let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (bench, begun, done) = (Arc::clone(&bench), Arc::clone(&begun), Arc::clone(&done));
            let shims = Arc::clone(&shims);
            tokio::spawn(async move {
                loop {
                    let number = begun.fetch_add(1, SeqCst);
                    if number >= PREPARES {
                        return;
                    }
                    let (devices, shim) = bench.use_claim(number).await.unwrap();
                    assert_eq!(devices, 1, "claim {number}");
                    shims.lock().push(shim);
                    done.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    for update in 1..=UPDATES {
        eventually(|| done.load(SeqCst) >= PREPARES * update / (UPDATES + 1)).await;
        let next = bench.next(update, Release::of(update)).await;
        bench.end(std::mem::replace(&mut current, next)).await;
        eventually(|| current.owns.load(SeqCst)).await;
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
    let of = |release| shims.lock().iter().filter(|shim| **shim == release).count();
    assert!(of(Release::Current) > 100 && of(Release::Next) > 100, "{}", of(Release::Next));
    // The agents of this version wrote on what the later ones had written.
    assert!(bench.journal().starts_with("aliquot-journal 2 min-reader 1 "));
    let node = bench.world.open();
    node.invariants().unwrap();
    assert_eq!(node.claims().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn downgraded_agent_carries_what_a_newer_one_wrote() {
    let bench = Bench::new(2);
    let earlier = bench.next(0, Release::Current).await;
    assert_eq!(bench.prepare(0).await, Ok(1));
    earlier.agent.stop().await;
    write_newer(&bench.world.state(), 1);
    let later = bench.next(1, Release::Current).await;
    assert_eq!((bench.prepare(0).await, bench.prepare(1).await), (Ok(1), Ok(1)));
    let journal = bench.journal();
    assert!(journal.starts_with("aliquot-journal 2 min-reader 1 "), "{journal}");
    assert_eq!(journal.matches("sinceVersion2").count(), 1, "{journal}");
    assert_eq!((bench.unprepare(0).await, bench.unprepare(1).await), (Ok(()), Ok(())));
    later.agent.stop().await;
    bench.world.open().invariants().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn downgraded_agent_refuses_what_it_cannot_read() {
    let bench = Bench::new(1);
    let earlier = bench.next(0, Release::Current).await;
    assert_eq!(bench.prepare(0).await, Ok(1));
    earlier.agent.stop().await;
    write_newer(&bench.world.state(), 2);
    let before = bench.journal();
    let state = bench.world.state();
    let parts = bench.world.parts(Disk::default());
    let opens =
        move || Node::open(parts, &Dirs::in_state(state), Access::Own(TAKEOVER)).map(|(node, _)| node);
    let later = RunningAgent::opening(opens, &bench.kubelet, &bench.cluster, "later", |node| node);
    let why = later.failure().await.to_string();
    assert!(why.contains("version 2 wants a reader of version 2 or later"), "{why}");
    assert_eq!(bench.journal(), before, "it is kept as it is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn agent_that_ends_answers_calls_in_progress() {
    let bench = Bench::new(2);
    let earlier = bench.next(0, Release::Current).await;
    *bench.calls.held.lock() = true;
    let using = |number: usize| {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move { bench.use_claim(number).await.map(|(devices, _)| devices) })
    };
    let first = using(0);
    eventually(|| earlier.reached.load(SeqCst) == 1).await;
    let later = bench.next(1, Release::Current).await;
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
