//! The agent, put together: its parts started in the order in which they need each other, and stopped in reverse.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::id::NodeName;
use nix::errno::Errno;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::card_events;
use super::card_owners::{self, KubeletPlace, OwnerParts};
use super::failure::AgentFailure;
use super::http::{self, Probes};
use super::layouts::PolicyOutcome;
use super::maintenance::{self, MaintenanceInputs, MaintenanceParts, MaintenanceStage};
use super::metrics::Metrics;
use super::orphans::{self, KubeletRecord, OrphanParts};
use super::pace::AgentPace;
use super::publish_gate;
use super::report::Reporter;
use super::service::{ClaimService, ServiceParts};
use super::state::{self, StateInputs, StateOutputs};
use super::store::NodeStore;
use super::takeover::{NodeSource, OpenNode};
use crate::kube::pod_names::PodNames;
use crate::kubelet::registration::RegistrationOutcome;
use crate::kubelet::server::{KubeletServer, Services};
use crate::kubelet::sockets::{SocketPaths, secure_directory};
use crate::ports::{BoxFuture, ClaimReader, DesiredSlices, EventSink, Publication, StatusWriter};

/// Longest wait for the last claim states to be written at a stop.
const LAST_REPORTS: Duration = Duration::from_secs(5);

/// Longest wait for the last look at a stop: one at a card that hangs never ends.
const LAST_LOOK: Duration = Duration::from_secs(3);

/// Where the agent meets the kubelet and its observers.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Name of the Kubernetes node, a label of metrics.
    pub node: NodeName,
    /// Directory of registration sockets.
    pub registry: PathBuf,
    /// Directory of the plugin.
    pub plugin: PathBuf,
    /// UID of the agent's Pod, if it runs in one.
    pub pod: Option<String>,
    /// The kubelet's record of claims.
    pub record: KubeletRecord,
    /// Where other drivers of the cards have their sockets; `None`: they are not looked for.
    pub kubelet: Option<KubeletPlace>,
    /// Address of `/metrics`, `/healthz` and `/readyz`; `None`: not served.
    pub metrics: Option<SocketAddr>,
    /// How long it waits.
    pub pace: AgentPace,
}

/// What the agent is made of.
pub struct AgentParts {
    /// The node.
    pub node: NodeSource,
    /// Claims of the API server.
    pub reader: Arc<dyn ClaimReader>,
    /// Status of claims.
    pub status: Arc<dyn StatusWriter>,
    /// Events.
    pub events: Arc<dyn EventSink>,
    /// Pods of claims.
    pub pods: Arc<PodNames>,
    /// Where the publisher reads what to publish.
    pub desired: watch::Sender<Option<DesiredSlices>>,
    /// What the publisher observed.
    pub publication: watch::Receiver<Publication>,
    /// What became of the layout policy that the agent was given.
    pub policy: PolicyOutcome,
    /// Maintenance of the node; `None`: it is not looked for.
    pub maintenance: Option<MaintenanceParts>,
}

/// Runs the agent until `stop` resolves.
///
/// # Errors
/// [`AgentFailure`]; what was started is stopped.
pub async fn run(
    config: &AgentConfig,
    parts: AgentParts,
    stop: impl Future<Output = ()>,
) -> Result<(), AgentFailure> {
    secure_directory(&config.registry)?;
    secure_directory(&config.plugin)?;
    let paths = SocketPaths::new(&config.registry, &config.plugin, config.pod.as_deref())?;
    let (stopping, stopped) = watch::channel(false);
    let (draining, drains) = watch::channel(false);
    let (changed, changes) = watch::channel(0);
    let (registered, registration) = watch::channel(RegistrationOutcome::Waiting);
    let (health, health_list) = watch::channel(Arc::new(Vec::new()));
    let (view, views) = watch::channel(None);
    let (uses, observed) = watch::channel(Arc::default());
    let (figures, of_cards) = watch::channel(Arc::default());
    let ((own, owned), (silence, silent)) = (watch::channel(None), watch::channel(None));
    let (wanted, to_publish) = watch::channel(None);
    let (stage, stages) = watch::channel(first_stage(parts.maintenance.as_ref()));
    let metrics = Arc::new(metrics_of(config, parts.pods, &parts.policy));
    let probes = Probes {
        publication: parts.publication.clone(),
        registration: registration.clone(),
        node: owned.clone(),
        views: views.clone(),
        silence: silent,
        uses: observed.clone(),
        figures: of_cards,
        policy: parts.policy.refused.clone(),
        maintenance: stages.clone(),
        metrics: Arc::clone(&metrics),
    };
    let follows = inputs_of(&probes, &to_publish, &parts.events);
    serve_metrics(config.metrics, probes.clone(), stopped.clone()).await?;
    tokio::spawn(publish_gate::run(to_publish.clone(), registration, parts.desired));
    follow_node(follows, parts.policy, parts.maintenance, stage);
    follow_owners(config, &parts.events, &metrics, &drains);
    let lost = lost_claims(config, &parts.reader, &parts.events, probes, &drains);
    let slices = parts.publication.clone();
    let reporter =
        Reporter::start(parts.status, parts.events, views.clone(), observed, slices, &metrics, config.pace);
    let service = ServiceParts {
        node: owned,
        maintenance: stages.clone(),
        views,
        draining: drains,
        reader: parts.reader,
        metrics: Arc::clone(&metrics),
        changed,
        pace: config.pace,
        offered: to_publish,
        outcomes: Arc::new(reporter.sink()),
    };
    let state = StateStart {
        changed: changes,
        publication: parts.publication,
        maintenance: stages,
        stopped,
        outputs: StateOutputs { desired: wanted, health, uses, figures, view, silence },
        own,
        pace: config.pace,
    };
    let (state, node) = match parts.node {
        NodeSource::Open(node) => (StateTask::Running(state.start(node)), None),
        NodeSource::Awaited(node) => (StateTask::Waits(Box::new(state)), Some(node)),
    };
    let handler = Arc::new(ClaimService::new(service));
    tokio::spawn(orphans::run(lost, Arc::<ClaimService>::clone(&handler)));
    let server = KubeletServer::start(paths, Services { handler, health: health_list, registered })?;
    tracing::info!("serving the kubelet");
    let mut agent = RunningAgent { server, state };
    let ended = agent.serve(node, stop).await;
    agent.stop(ended, (&draining, &stopping), reporter).await
}

/// How far the maintenance of the node is at the start.
fn first_stage(maintenance: Option<&MaintenanceParts>) -> MaintenanceStage {
    maintenance.map(|parts| parts.begins.clone()).unwrap_or_default()
}

/// Counters, and what gauges are labelled with.
fn metrics_of(config: &AgentConfig, pods: Arc<PodNames>, policy: &PolicyOutcome) -> Metrics {
    Metrics::new().on_node(config.node.clone()).with_pods(pods).with_policy(policy)
}

/// What maintenance reads, of that which observers read.
fn inputs_of(
    probes: &Probes,
    wanted: &watch::Receiver<Option<DesiredSlices>>,
    events: &Arc<dyn EventSink>,
) -> MaintenanceInputs {
    MaintenanceInputs {
        views: probes.views.clone(),
        publication: probes.publication.clone(),
        wanted: wanted.clone(),
        events: Arc::clone(events),
        metrics: Arc::clone(&probes.metrics),
    }
}

/// Starts what follows the node beside the calls of the kubelet.
fn follow_node(
    inputs: MaintenanceInputs,
    policy: PolicyOutcome,
    maintenance: Option<MaintenanceParts>,
    stage: watch::Sender<MaintenanceStage>,
) {
    let seen = (inputs.views.clone(), inputs.publication.clone());
    tokio::spawn(card_events::run(seen, policy, Arc::clone(&inputs.events)));
    if let Some(parts) = maintenance {
        tokio::spawn(maintenance::run(parts, inputs, stage));
    }
}

/// Starts what reports other drivers of the cards.
fn follow_owners(
    config: &AgentConfig,
    events: &Arc<dyn EventSink>,
    metrics: &Arc<Metrics>,
    draining: &watch::Receiver<bool>,
) {
    if let Some(place) = config.kubelet.clone() {
        let (events, metrics) = (Arc::clone(events), Arc::clone(metrics));
        let (look, draining) = (config.pace.look, draining.clone());
        tokio::spawn(card_owners::run(OwnerParts { place, look, events, metrics, draining }));
    }
}

/// What looks for claims that the cluster has lost, from what observers see of the agent.
fn lost_claims(
    config: &AgentConfig,
    reader: &Arc<dyn ClaimReader>,
    events: &Arc<dyn EventSink>,
    observed: Probes,
    draining: &watch::Receiver<bool>,
) -> OrphanParts {
    OrphanParts {
        record: config.record.clone(),
        node: observed.node,
        views: observed.views,
        publication: observed.publication,
        reader: Arc::clone(reader),
        events: Arc::clone(events),
        metrics: observed.metrics,
        draining: draining.clone(),
        grace: config.pace.grace,
    }
}

/// Serves the pages of observers, if there is an address for them.
async fn serve_metrics(
    address: Option<SocketAddr>,
    probes: Probes,
    stopped: watch::Receiver<bool>,
) -> Result<(), AgentFailure> {
    let Some(address) = address else { return Ok(()) };
    let failed = |source| AgentFailure::Metrics { address, source };
    let listener = listen(address).await.map_err(failed)?;
    tokio::spawn(http::serve(listener, probes, stopped));
    Ok(())
}

/// Listens at an address. All addresses of IPv6 are those of IPv4 as well; a kernel without IPv6 has the latter alone.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let is_absent = |error: &std::io::Error| {
        let code = error.raw_os_error().map(Errno::from_raw);
        matches!(code, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
    };
    match TcpListener::bind(address).await {
        Err(error) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && is_absent(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listened => listened,
    }
}

/// The agent while it serves.
struct RunningAgent {
    server: KubeletServer,
    state: StateTask,
}

/// The task that follows the node's state.
enum StateTask {
    /// The node is not this agent's yet.
    Waits(Box<StateStart>),
    /// It follows the node.
    Running(JoinHandle<()>),
    /// Neither, for an instant.
    Nothing,
}

/// Everything of the state task but the node.
struct StateStart {
    changed: watch::Receiver<u64>,
    publication: watch::Receiver<Publication>,
    maintenance: watch::Receiver<MaintenanceStage>,
    stopped: watch::Receiver<bool>,
    outputs: StateOutputs,
    own: watch::Sender<Option<Arc<dyn NodeStore>>>,
    pace: AgentPace,
}

// === impl StateTask ===

impl StateTask {
    /// Waits for the look in progress.
    async fn finish(self) {
        if let Self::Running(task) = self {
            drop(timeout(LAST_LOOK, task).await);
        }
    }
}

// === impl StateStart ===

impl StateStart {
    /// Lets calls through to the node, and follows it.
    fn start(self, node: OpenNode) -> JoinHandle<()> {
        let Self { changed, publication, maintenance, stopped, outputs, own, pace } = self;
        own.send_replace(Some(Arc::clone(&node.store)));
        let OpenNode { store: node, governors } = node;
        let inputs = StateInputs { node, changed, publication, maintenance, stopped, governors, pace };
        tokio::spawn(state::run(inputs, outputs))
    }
}

// === impl RunningAgent ===

impl RunningAgent {
    /// Answers calls in progress, then ends what is left: `draining` and `stopping` tell the tasks.
    async fn stop(
        self,
        ended: Result<(), AgentFailure>,
        (draining, stopping): (&watch::Sender<bool>, &watch::Sender<bool>),
        reporter: Reporter,
    ) -> Result<(), AgentFailure> {
        tracing::info!("stopping");
        draining.send_replace(true);
        let Self { server, state } = self;
        let stopped = match &ended {
            Ok(()) => server.stop().await,
            // One of the servers is gone, or calls wait for a node that never comes.
            Err(_) => server.abandon(),
        };
        stopping.send_replace(true);
        drop(timeout(LAST_REPORTS, reporter.finish()).await);
        state.finish().await;
        ended.and(Ok(stopped?))
    }

    /// Serves until the stop; takes the node over when it comes.
    async fn serve(
        &mut self,
        node: Option<BoxFuture<'static, Result<OpenNode, AgentFailure>>>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), AgentFailure> {
        let mut stop = std::pin::pin!(stop);
        if let Some(node) = node {
            let opened = tokio::select! {
                () = &mut stop => return Ok(()),
                why = self.server.failed() => return Err(AgentFailure::Ended(why)),
                opened = node => opened?,
            };
            tracing::info!("the node's state is this agent's");
            if let StateTask::Waits(state) = std::mem::replace(&mut self.state, StateTask::Nothing) {
                self.state = StateTask::Running(state.start(opened));
            }
        }
        tokio::select! {
            () = stop => Ok(()),
            why = self.server.failed() => Err(AgentFailure::Ended(why)),
        }
    }
}
