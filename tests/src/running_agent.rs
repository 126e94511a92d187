//! An agent in this process, over a simulated node: the cluster's side is plain data.

#![expect(clippy::unwrap_used, reason = "an agent that cannot start fails the test that wants it")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use aliquot_core::disposition::Disposition;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::id::NodeName;
use aliquot_core::offer::ServerVersion;
use aliquot_core::orphans::Knowledge;
use aliquot_driver::agent::card_owners::KubeletPlace;
use aliquot_driver::agent::composition::{self, AgentConfig, AgentParts};
use aliquot_driver::agent::failure::AgentFailure;
use aliquot_driver::agent::governors::Governors;
use aliquot_driver::agent::layouts::PolicyOutcome;
use aliquot_driver::agent::orphans::KubeletRecord;
use aliquot_driver::agent::pace::AgentPace;
use aliquot_driver::agent::store::NodeStore;
use aliquot_driver::agent::takeover::{NodeSource, OpenNode};
use aliquot_driver::disk::Disk;
use aliquot_driver::kube::pod_names::PodNames;
use aliquot_driver::node::{Access, Dirs, Node, OpenError};
use aliquot_driver::ports::{
    AgentError, AgentEvent, BoxFuture, ClaimReader, ClaimReference, DesiredSlices, DeviceStatus, EventSink,
    Publication, StatusWriter,
};
use aliquot_driver::run::simulated::SimulatedCards;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::fake_kubelet::FakeKubelet;
use crate::node::World;

/// Longest wait of an agent for the one before it.
const TAKEOVER: Duration = Duration::from_secs(60);

/// Looks follow each other ten times as fast as in service, and an API server is soon given up.
pub const PACE: AgentPace = AgentPace {
    look: Duration::from_millis(500),
    read: Duration::from_millis(300),
    refused: Duration::from_secs(2),
    ..AgentPace::SERVICE
};

/// Version of the cluster's server.
pub const SERVER: ServerVersion = ServerVersion::with_default_gates(37, 2);

/// What the agent sees of a cluster, and what it wrote there.
#[derive(Default)]
pub struct FakeCluster {
    claims: Mutex<BTreeMap<(String, String), ResourceClaim>>,
    /// Status of devices, by claim UID.
    pub statuses: Mutex<BTreeMap<String, Vec<DeviceStatus>>>,
    /// Events in their order.
    pub events: Mutex<Vec<AgentEvent>>,
    /// Pods of claims.
    pub pods: Arc<PodNames>,
    faults: ApiFaults,
}

/// What goes wrong with the API server, from the agent's side.
struct ApiFaults {
    /// The server does not answer.
    away: AtomicBool,
    /// It answers, but takes no status.
    no_status: AtomicBool,
    /// It refuses to write statuses, for a reason of this disposition.
    refuses: Mutex<Option<Disposition>>,
    /// Writes of statuses that it refused.
    refusals: AtomicUsize,
    /// The claim whose status others change all the time.
    contended: Mutex<Option<String>>,
    /// The claim whose status it never answers for.
    unanswered: Mutex<Option<String>>,
    /// Agents that start do not know its version.
    no_version: AtomicBool,
    /// Calls left until the agent is to be killed.
    left: AtomicUsize,
    side: Mutex<Side>,
    /// The agent is at the call.
    reached: Notify,
    dead: watch::Sender<bool>,
}

/// On which side of a call's effect the agent is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server never received it.
    Before,
    /// The agent never received the answer.
    Behind,
}

/// A running agent.
pub struct RunningAgent {
    /// What it wants published.
    pub desired: watch::Receiver<Option<DesiredSlices>>,
    /// What it believes of the publisher.
    pub publication: watch::Sender<Publication>,
    /// Address of its `/metrics`.
    pub metrics: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), AgentFailure>>,
}

// === impl ApiFaults ===

impl Default for ApiFaults {
    fn default() -> Self {
        Self {
            away: AtomicBool::new(false),
            no_status: AtomicBool::new(false),
            refuses: Mutex::default(),
            refusals: AtomicUsize::new(0),
            contended: Mutex::default(),
            unanswered: Mutex::default(),
            no_version: AtomicBool::new(false),
            left: AtomicUsize::new(usize::MAX),
            side: Mutex::new(Side::Before),
            reached: Notify::new(),
            dead: watch::Sender::new(false),
        }
    }
}

impl ApiFaults {
    /// Counts a call; says on which side of its effect the agent is killed.
    fn count(&self) -> Option<Side> {
        let less = |left: usize| left.checked_sub(1);
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        left.is_err().then(|| *self.side.lock())
    }

    /// Waits for the kill.
    async fn wait_for_death(&self) -> AgentError {
        self.reached.notify_one();
        drop(self.dead.subscribe().wait_for(|dead| *dead).await);
        away()
    }
}

fn away() -> AgentError {
    AgentError { message: "the API server is away".to_owned(), disposition: Disposition::Retry }
}

// === impl FakeCluster ===

impl FakeCluster {
    /// Whether the server answers from now on.
    pub fn set_away(&self, away: bool) {
        self.faults.away.store(away, Ordering::SeqCst);
    }

    /// Whether it takes the status of claims from now on.
    pub fn set_statuses_away(&self, away: bool) {
        self.faults.no_status.store(away, Ordering::SeqCst);
    }

    /// For which reason it refuses to write the status of claims from now on; `None`: it writes them.
    pub fn refuse_statuses(&self, reason: Option<Disposition>) {
        *self.faults.refuses.lock() = reason;
    }

    /// Writes of statuses that it refused.
    #[must_use]
    pub fn refusals(&self) -> usize {
        self.faults.refusals.load(Ordering::SeqCst)
    }

    /// From now on each write of this claim's status meets a change by others.
    pub fn contend(&self, uid: &str) {
        *self.faults.contended.lock() = Some(uid.to_owned());
    }

    /// From now on writes of this claim's status get no answer.
    pub fn never_answer(&self, uid: &str) {
        *self.faults.unanswered.lock() = Some(uid.to_owned());
    }

    /// Agents that start from now on do not know the server's version; [`RunningAgent::publication`] tells them.
    pub fn hide_version(&self) {
        self.faults.no_version.store(true, Ordering::SeqCst);
    }

    /// After so many calls more, the next one waits for the agent's death.
    pub fn kill_after(&self, calls: usize, side: Side) {
        *self.faults.side.lock() = side;
        self.faults.left.store(calls, Ordering::SeqCst);
    }

    /// Waits until the agent is at the call of [`FakeCluster::kill_after`].
    pub async fn reached(&self) {
        self.faults.reached.notified().await;
    }

    /// The agent is dead: its calls end, and nothing of it has an effect.
    pub fn bury(&self) {
        self.kill_after(0, Side::Before);
        self.faults.dead.send_replace(true);
    }

    /// The same claims, for another agent.
    #[must_use]
    pub fn of_next_agent(&self) -> Self {
        Self { claims: Mutex::new(self.claims.lock().clone()), ..Self::default() }
    }

    /// Creates or replaces a claim.
    pub fn put(&self, claim: &ResourceClaim) {
        self.claims.lock().insert((claim.namespace.clone(), claim.name.clone()), claim.clone());
    }

    /// Deletes a claim, as a restore from a backup that is older than the claim does.
    pub fn lose(&self, namespace: &str, name: &str) {
        self.claims.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// A claim that was created.
    #[must_use]
    pub fn claim(&self, namespace: &str, name: &str) -> ResourceClaim {
        self.claims.lock().get(&(namespace.to_owned(), name.to_owned())).cloned().unwrap()
    }
}

impl ClaimReader for FakeCluster {
    fn read<'a>(&'a self, claim: &'a ClaimReference) -> BoxFuture<'a, Result<ResourceClaim, AgentError>> {
        let key = (claim.namespace.clone(), claim.name.clone());
        let found = self.claims.lock().get(&key).cloned();
        let absent = move || AgentError {
            message: format!("claim {claim}: not found"),
            disposition: Disposition::Refuse,
        };
        Box::pin(async move {
            if self.faults.count().is_some() {
                return Err(self.faults.wait_for_death().await);
            }
            if self.faults.away.load(Ordering::SeqCst) {
                return Err(away());
            }
            found.ok_or_else(absent)
        })
    }

    fn find<'a>(&'a self, claim: &'a ClaimReference) -> BoxFuture<'a, Result<Knowledge, AgentError>> {
        let key = (claim.namespace.clone(), claim.name.clone());
        let is_there = self.claims.lock().get(&key).is_some_and(|found| found.uid == claim.uid.as_str());
        let found = if is_there { Knowledge::Known } else { Knowledge::Absent };
        let result = if self.faults.away.load(Ordering::SeqCst) { Err(away()) } else { Ok(found) };
        Box::pin(std::future::ready(result))
    }
}

impl StatusWriter for FakeCluster {
    fn write<'a>(
        &'a self,
        claim: &'a ClaimReference,
        devices: &'a [DeviceStatus],
    ) -> BoxFuture<'a, Result<(), AgentError>> {
        Box::pin(async {
            let killed = self.faults.count();
            if killed == Some(Side::Before) {
                return Err(self.faults.wait_for_death().await);
            }
            let refuses = *self.faults.refuses.lock();
            if let Some(disposition) = refuses {
                self.faults.refusals.fetch_add(1, Ordering::SeqCst);
                return Err(AgentError { message: "the API server refuses it".to_owned(), disposition });
            }
            let is_unanswered = self.faults.unanswered.lock().as_deref() == Some(claim.uid.as_str());
            if is_unanswered {
                std::future::pending::<()>().await;
            }
            let is_contended = self.faults.contended.lock().as_deref() == Some(claim.uid.as_str());
            let is_away = self.faults.away.load(Ordering::SeqCst);
            if is_contended || is_away || self.faults.no_status.load(Ordering::SeqCst) {
                return Err(away());
            }
            self.statuses.lock().insert(claim.uid.to_string(), devices.to_vec());
            match killed {
                Some(_) => Err(self.faults.wait_for_death().await),
                None => Ok(()),
            }
        })
    }
}

impl EventSink for FakeCluster {
    fn publish(&self, event: AgentEvent) {
        self.events.lock().push(event);
    }
}

// === impl RunningAgent ===

impl RunningAgent {
    /// Starts an agent on a node with a server of this version.
    #[must_use]
    pub fn start(node: Node, kubelet: &FakeKubelet, cluster: &Arc<FakeCluster>, pod: Option<&str>) -> Self {
        Self::from(NodeSource::Open(open(node, |store| store, PACE)), kubelet, cluster, pod, PACE)
    }

    /// Starts an agent that opens the node as soon as another agent has closed it. `watched` may put itself before the node.
    #[must_use]
    pub fn after_another(
        world: &World,
        kubelet: &FakeKubelet,
        cluster: &Arc<FakeCluster>,
        pod: &str,
        watched: impl FnOnce(Arc<dyn NodeStore>) -> Arc<dyn NodeStore> + Send + 'static,
    ) -> Self {
        let (parts, dirs) = (world.parts(Disk::default()), Dirs::in_state(world.state()));
        let opens = move || Node::open(parts, &dirs, Access::Own(TAKEOVER)).map(|(node, _)| node);
        Self::opening(opens, kubelet, cluster, pod, watched)
    }

    /// As [`RunningAgent::after_another`], with a node that `opens` opens.
    #[must_use]
    pub fn opening(
        opens: impl FnOnce() -> Result<Node, OpenError> + Send + 'static,
        kubelet: &FakeKubelet,
        cluster: &Arc<FakeCluster>,
        pod: &str,
        watched: impl FnOnce(Arc<dyn NodeStore>) -> Arc<dyn NodeStore> + Send + 'static,
    ) -> Self {
        let opening = tokio::task::spawn_blocking(opens);
        let node = async move { Ok(open(opening.await.unwrap()?, watched, PACE)) };
        Self::from(NodeSource::Awaited(Box::pin(node)), kubelet, cluster, Some(pod), PACE)
    }

    /// As [`RunningAgent::start`], at another pace.
    #[must_use]
    pub fn paced(node: Node, kubelet: &FakeKubelet, cluster: &Arc<FakeCluster>, pace: AgentPace) -> Self {
        Self::watched(node, kubelet, cluster, pace, |store| store)
    }

    /// As [`RunningAgent::paced`]; `watched` may put itself before the node.
    #[must_use]
    pub fn watched(
        node: Node,
        kubelet: &FakeKubelet,
        cluster: &Arc<FakeCluster>,
        pace: AgentPace,
        watched: impl FnOnce(Arc<dyn NodeStore>) -> Arc<dyn NodeStore>,
    ) -> Self {
        Self::from(NodeSource::Open(open(node, watched, pace)), kubelet, cluster, None, pace)
    }

    /// Starts an agent that comes to its node in this way.
    fn from(
        node: NodeSource,
        kubelet: &FakeKubelet,
        cluster: &Arc<FakeCluster>,
        pod: Option<&str>,
        pace: AgentPace,
    ) -> Self {
        let is_known = !cluster.faults.no_version.load(Ordering::SeqCst);
        let server = is_known.then_some(SERVER);
        let (publication, observed) = watch::channel(Publication { server, ..Publication::default() });
        let (desired, wanted) = watch::channel(None);
        let (stop, stopped) = oneshot::channel::<()>();
        let parts = AgentParts {
            node,
            reader: Arc::clone(cluster) as Arc<dyn ClaimReader>,
            status: Arc::clone(cluster) as Arc<dyn StatusWriter>,
            events: Arc::clone(cluster) as Arc<dyn EventSink>,
            pods: Arc::clone(&cluster.pods),
            desired,
            publication: observed,
            policy: PolicyOutcome::default(),
            maintenance: None,
        };
        let metrics = own_address();
        let config = AgentConfig {
            node: NodeName::new("node-1").unwrap(),
            registry: kubelet.registry(),
            plugin: kubelet.plugin_dir(),
            pod: pod.map(str::to_owned),
            metrics: Some(metrics),
            kubelet: Some(KubeletPlace { host: PathBuf::from("/"), root: kubelet.root().to_owned() }),
            record: KubeletRecord { host: PathBuf::from("/"), file: kubelet.claim_state() },
            pace,
        };
        let task = tokio::spawn(async move {
            let stop = async { drop(stopped.await) };
            composition::run(&config, parts, stop).await
        });
        Self { desired: wanted, publication, metrics, stop, task }
    }

    /// Stops it as SIGTERM does.
    pub async fn stop(self) {
        // One that ended by itself is waited for all the same.
        let _sent = self.stop.send(());
        let ended = tokio::time::timeout(Duration::from_secs(30), self.task).await;
        ended.unwrap().unwrap().unwrap();
    }

    /// Why it ended by itself.
    pub async fn failure(self) -> AgentFailure {
        let ended = tokio::time::timeout(Duration::from_secs(30), self.task).await;
        ended.unwrap().unwrap().unwrap_err()
    }

    /// Ends it without any of its own steps, as a kill does; its node is gone when this returns.
    pub async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

/// A node and its governors as an agent has them. A lost card is on trial for two looks, as in service.
fn open(
    node: Node,
    watched: impl FnOnce(Arc<dyn NodeStore>) -> Arc<dyn NodeStore>,
    pace: AgentPace,
) -> OpenNode {
    let grants = node.grants_dir().to_owned();
    let state = grants.with_file_name("");
    let cards = SimulatedCards { state: state.clone(), libraries: state.join("lib") };
    let governors = Governors::new(state, grants, Arc::new(cards)).with_trial(pace.look * 2);
    OpenNode { store: watched(store(node)), governors: Arc::new(Mutex::new(governors)) }
}

/// An address that no other agent has: one of the loopback network for this process, and a port for each agent of it.
#[must_use]
pub fn own_address() -> SocketAddr {
    static AGENTS: AtomicU16 = AtomicU16::new(0);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let port = 20_000 + AGENTS.fetch_add(1, Ordering::Relaxed);
    SocketAddr::from(([127, high | 0x80, middle, low], port))
}

/// A node as an agent uses it.
#[must_use]
pub fn store(node: Node) -> Arc<dyn NodeStore> {
    Arc::new(node.into_service())
}
