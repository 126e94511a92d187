//! The agent from its settings: hardware and node opened, the cluster connected, everything composed.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::{CardUuid, NodeName};
use aliquot_core::offer::ServerVersion;
use futures::FutureExt as _;
use nix::sys::signal::{SigSet, Signal};
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::arrival::CardArrival;
use super::composition::{self, AgentConfig, AgentParts};
use super::failure::AgentFailure;
use super::governors::Governors;
use super::layouts::{self, PolicyInForce, PolicyOutcome};
use super::maintenance::{MaintenanceParts, MaintenanceStage};
use super::simulated::ContainerCards;
use super::store::{NodeStore, told};
use super::takeover::{NodeSource, OpenNode};
use super::{restart, tend, unused_pages};
use crate::checkpoint::MaintenanceFile;
use crate::hardware::vendors::HostRoots as DriverPlace;
use crate::hardware::{Hardware, HardwareError, MachineCards, node_spec, read_catalogue};
use crate::health::HealthBook;
use crate::kube::node_mark;
use crate::kube::pod_names::PodNames;
use crate::kube::{ApiClaims, ApiStatus, ClusterAccess, ConnectError, Connection, EventQueue, Publisher};
use crate::kubelet::sockets::{SocketError, secure_directory};
use crate::node::{Access, Dirs, Node, NodeParts, NodeService, OpenError};
use crate::ports::{MaintenanceMark, Publication};
use crate::run::cards::Cards;
use crate::run::machine::LocalMachine;
use crate::run::record::sweep;
use crate::run::simulated::SimulatedCards;
use crate::selinux::Selinux;
use crate::state_dir::wait::LockHolder;
use crate::state_dir::{self, StateDirError};

/// Threads that serve calls; blocking calls of the node have threads of their own.
const WORKERS: usize = 2;
/// The node is open within this time unless another process owns it: its recovery precedes the registration.
const OPENED_AT_ONCE: Duration = Duration::from_millis(500);
/// When contexts are measured first: publication and registration precede it.
const FIRST_MEASUREMENT: Duration = Duration::from_secs(3);
/// Time between two looks for cards on which a context was not measured yet.
const NEXT_MEASUREMENT: Duration = Duration::from_secs(60);
/// Longest wait of the end for calls of the node: one of a card that hangs never returns.
const LAST_CALLS: Duration = Duration::from_secs(2);
/// What offers are made for until the server has answered: the oldest version with all fields.
const SERVER_UNTIL_KNOWN: ServerVersion = ServerVersion::with_default_gates(36, 2);

/// Everything that a person can set.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Name of the Kubernetes node.
    pub node_name: NodeName,
    /// Cards and layouts.
    pub hardware: HardwareSettings,
    /// Access to the cluster.
    pub cluster: ClusterAccess,
    /// State directory.
    pub state: PathBuf,
    /// Directory of CDI files.
    pub cdi: PathBuf,
    /// Longest wait for another process that holds the state.
    pub state_wait: Duration,
    /// Sockets and addresses.
    pub agent: AgentConfig,
}

/// Cards and layouts.
#[derive(Clone, Debug)]
pub struct HardwareSettings {
    /// Simulated node; `None`: this machine's own cards.
    pub node: Option<String>,
    /// Layout policy.
    pub policy: Option<PathBuf>,
    /// Directory of card models.
    pub catalogue: Option<PathBuf>,
    /// Where the vendor's driver is on the host.
    pub driver: DriverPlace,
}

/// Why the agent does not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The hardware cannot be opened.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// Files for containers cannot be installed.
    #[error("state directory {}: driver libraries for containers cannot be installed", path.display())]
    Install {
        /// State directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A directory is unsafe.
    #[error(transparent)]
    Directory(#[from] SocketError),
    /// The state directory is unsafe to use.
    #[error(transparent)]
    State(#[from] StateDirError),
    /// The cluster's configuration cannot be used.
    #[error(transparent)]
    Cluster(#[from] ConnectError),
    /// The program cannot begin anew.
    #[error("this program cannot begin anew; start the agent again")]
    Anew(#[source] std::io::Error),
    /// The kernel gives no threads or signals.
    #[error("the runtime cannot be started")]
    Runtime(#[source] std::io::Error),
    /// The agent ended.
    #[error(transparent)]
    Agent(#[from] AgentFailure),
}

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// [`StartError`].
pub fn run(settings: AgentSettings) -> Result<(), StartError> {
    unused_pages::share_arenas();
    // A parent that has them blocked passes that on. Threads that are started later have this thread's mask.
    let ends: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    ends.thread_unblock().map_err(|errno| StartError::Runtime(errno.into()))?;
    let opened = open(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(StartError::Runtime)?;
    let ended = runtime.block_on(serve(settings, opened));
    // What a cut call leaves is finished or undone at the next start, as after a kill.
    runtime.shutdown_timeout(LAST_CALLS);
    match ended? {
        AgentEnd::Stopped => Ok(()),
        AgentEnd::Anew => Err(StartError::Anew(restart::anew())),
    }
}

/// Why an agent without a failure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentEnd {
    /// It was told to.
    Stopped,
    /// The program is to begin anew.
    Anew,
}

/// What an agent was opened with.
struct OpenedAgent {
    node: NodeReceiver,
    policy: PolicyOutcome,
    maintenance: MaintenanceStage,
    arrival: CardArrival,
}

/// The node's way from the thread that opens it.
type NodeReceiver = oneshot::Receiver<Result<OpenNode, OpenError>>;

async fn serve(settings: AgentSettings, opened: OpenedAgent) -> Result<AgentEnd, StartError> {
    let OpenedAgent { node: mut opening, policy, maintenance: begins, arrival } = opened;
    let (restart, restarts) = oneshot::channel();
    let (ending, ends) = watch::channel(AgentEnd::Stopped);
    let stop = terminated(arrival, restarts, ending).map_err(StartError::Runtime)?;
    let mut asked = asked_to_end().map_err(StartError::Runtime)?;
    let connection = Connection::open(&settings.cluster).await?;
    tracing::info!(server = connection.server(), node = %settings.node_name, "connected to the cluster");
    let (desired, to_publish) = watch::channel(None);
    let (observed, publication) = watch::channel(Publication::default());
    let publisher = Publisher::new(&connection, settings.node_name.clone());
    let publisher = tokio::spawn(publisher.run(to_publish, observed));
    tokio::spawn(unused_pages::release_from_time_to_time(publication.clone()));
    let opened = |opened: Result<_, oneshot::error::RecvError>| match opened {
        Ok(opened) => Ok(opened?),
        Err(_) => Err(AgentFailure::NotOpened),
    };
    let node = match timeout(OPENED_AT_ONCE, &mut opening).await {
        Ok(result) => NodeSource::Open(opened(result)?),
        Err(_) => {
            tracing::info!(state = %settings.state.display(), "another process owns the state; calls wait for it");
            NodeSource::Awaited(Box::pin(async move { opened(opening.await) }))
        }
    };
    let (marks, mark) = watch::channel(MaintenanceMark::default());
    tokio::spawn(node_mark::follow(connection.clone(), settings.node_name.clone(), marks));
    let file = MaintenanceFile::of(&settings.state);
    let pods: Arc<PodNames> = Arc::default();
    let parts = AgentParts {
        node,
        reader: Arc::new(ApiClaims::new(&connection)),
        status: Arc::new(ApiStatus::new(&connection).with_pods(Arc::clone(&pods))),
        pods,
        events: Arc::new(EventQueue::start(&connection, settings.node_name.as_str())),
        desired,
        publication,
        policy,
        maintenance: Some(MaintenanceParts { mark, file, begins, restart }),
    };
    let ended = composition::run(&settings.agent, parts, stop).await;
    publisher.abort();
    ended?;
    // A program that begins anew would lose a signal that came during its end.
    let is_asked = asked.iter_mut().any(|signal| signal.recv().now_or_never().is_some());
    let end = *ends.borrow();
    Ok(if is_asked { AgentEnd::Stopped } else { end })
}

/// The signals that end the agent.
fn asked_to_end() -> std::io::Result<[tokio::signal::unix::Signal; 2]> {
    Ok([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?])
}

/// Resolves at SIGTERM or SIGINT, when there are cards for the agent's next start, and when the program is to begin anew.
fn terminated(
    arrival: CardArrival,
    restarts: oneshot::Receiver<()>,
    ending: watch::Sender<AgentEnd>,
) -> std::io::Result<impl Future<Output = ()>> {
    let [mut term, mut interrupt] = asked_to_end()?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
            Ok(()) = restarts => {
                ending.send_replace(AgentEnd::Anew);
            }
            () = arrival.arrived() => {
                tracing::info!("this machine has a card now: the agent ends, and its next start serves it");
            }
        }
    })
}

/// Opens the hardware; opens the node on a thread of its own, which may wait for an earlier agent.
fn open(settings: &AgentSettings) -> Result<OpenedAgent, StartError> {
    for dir in [&settings.state, &settings.cdi] {
        secure_directory(dir)?;
    }
    let state = settings.state.as_path();
    state_dir::check(state)?;
    let catalogue = read_catalogue(settings.hardware.catalogue.as_deref())?;
    let PolicyInForce { policy, outcome } = layouts::in_force(settings.hardware.policy.as_deref(), state);
    let maintenance = MaintenanceStage::of(&MaintenanceFile::of(state));
    let AgentHardware { hardware, catalogue, cards, arrival } = match (&settings.hardware.node, &maintenance)
    {
        (_, MaintenanceStage::Parked(_)) => {
            AgentHardware::of(&MachineCards::none(catalogue), CardArrival::not_awaited())?
        }
        (Some(node), _) => simulated(node, catalogue, state)?,
        (None, _) => machine(catalogue, &settings.hardware.driver)?,
    };
    let hardware = Hardware { name: settings.node_name.clone(), ..hardware };
    let parts = NodeParts::of(hardware, Arc::new(catalogue), policy, SERVER_UNTIL_KNOWN);
    let on_wait =
        |holder: &LockHolder| tracing::info!("waiting for {holder}, which holds the state directory");
    let selinux = match settings.hardware.node {
        Some(_) => Selinux::ignored(),
        None => Selinux::of_host(&settings.hardware.driver.host),
    };
    let host = match settings.hardware.node {
        Some(_) => PathBuf::from("/"),
        None => settings.hardware.driver.host.clone(),
    };
    let parts = NodeParts { on_wait, selinux, host, ..parts };
    let cdi = settings.cdi.clone();
    let dirs = Dirs { state: state.to_owned(), cdi: Some(cdi.clone()) };
    let access = Access::Own(settings.state_wait);
    let (opens, opening) = oneshot::channel();
    let open = move || {
        let (node, service) = match open_node(parts, &dirs, access, cards) {
            Ok((node, service)) => (Ok(node), Arc::downgrade(&service)),
            Err(error) => (Err(error), Weak::new()),
        };
        // Without a receiver the agent has ended, and the node is closed again.
        drop(opens.send(node));
        let tended = Weak::clone(&service);
        let tends = thread::Builder::new().name("aliquot-tend".to_owned());
        if let Err(error) = tends.spawn(move || tend::run(&tended, &cdi)) {
            tracing::error!("files of claims are not looked after: {error}");
        }
        measure_contexts(&service);
    };
    let thread = thread::Builder::new().name("aliquot-open".to_owned());
    thread.spawn(open).map_err(StartError::Runtime)?;
    Ok(OpenedAgent { node: opening, policy: outcome, maintenance, arrival })
}

/// Opens the node and recovers what an earlier process left.
fn open_node(
    parts: NodeParts,
    dirs: &Dirs,
    access: Access,
    cards: Arc<dyn Cards + Send + Sync>,
) -> Result<(OpenNode, Arc<NodeService>), OpenError> {
    let (mut node, recovery) = Node::open(parts, dirs, access)?;
    match sweep(&mut node, &dirs.state) {
        Ok(swept) => {
            for line in swept.iter().filter_map(told) {
                tracing::info!("{line}");
            }
        }
        Err(error) => tracing::warn!("records of local runs cannot be read: {error}"),
    }
    tracing::info!(
        claims = node.claims().count(),
        undone = recovery.undone.len(),
        repaired = recovery.repaired.len(),
        "state recovered"
    );
    for problem in &recovery.problems {
        tracing::warn!("{problem}");
    }
    for problem in HealthBook::of(&dirs.state).xids().1 {
        tracing::warn!("{problem}");
    }
    let grants = node.grants_dir().to_owned();
    let governors = Governors::new(grants.with_file_name(""), grants, cards);
    let service = Arc::new(node.into_service());
    let store: Arc<dyn NodeStore> = Arc::<NodeService>::clone(&service);
    Ok((OpenNode { store, governors: Arc::new(Mutex::new(governors)) }, service))
}

/// Measures contexts on cards without claims for as long as the node is open: after the start, and when a card has become idle.
fn measure_contexts(service: &Weak<NodeService>) {
    thread::sleep(FIRST_MEASUREMENT);
    while let Some(service) = service.upgrade() {
        service.measure_idle_cards();
        drop(service);
        thread::sleep(NEXT_MEASUREMENT);
    }
}

/// Hardware, opened.
struct AgentHardware {
    hardware: Hardware,
    catalogue: Catalogue,
    cards: Arc<dyn Cards + Send + Sync>,
    arrival: CardArrival,
}

impl AgentHardware {
    /// The cards of a machine.
    fn of(machine: &MachineCards, arrival: CardArrival) -> Result<Self, StartError> {
        let slow = |card: &CardUuid| tracing::info!(%card, "measuring the size of a context takes long");
        let hardware = Hardware::machine(machine, slow)?;
        let (catalogue, cards) = (machine.catalogue().clone(), Arc::new(LocalMachine::of(machine)));
        Ok(Self { hardware, catalogue, cards, arrival })
    }
}

fn machine(catalogue: Catalogue, driver: &DriverPlace) -> Result<AgentHardware, StartError> {
    let (machine, arrival) = match MachineCards::open_for_containers(&catalogue, driver) {
        Ok(machine) => (machine, CardArrival::not_awaited()),
        Err(none) => {
            for line in none.reasons() {
                match none.is_absence() {
                    true => tracing::info!("{line}"),
                    // A driver that does not serve, or one that is elsewhere.
                    false => tracing::warn!("{line}"),
                }
            }
            tracing::warn!("this machine has no card for the agent: it publishes none, and looks again");
            let arrival =
                CardArrival::watch(catalogue.clone(), driver.clone()).map_err(StartError::Runtime)?;
            (MachineCards::none(catalogue), arrival)
        }
    };
    for other in machine.others() {
        tracing::info!("{other}");
    }
    for trouble in machine.backend().trouble() {
        tracing::warn!("{trouble}");
    }
    AgentHardware::of(&machine, arrival)
}

fn simulated(node: &str, catalogue: Catalogue, state: &Path) -> Result<AgentHardware, StartError> {
    let hardware = Hardware::simulated(&node_spec(node, &catalogue)?, &catalogue, state)?;
    let install = |source| StartError::Install { path: state.to_owned(), source };
    let backend = ContainerCards::new(hardware.backend, state).map_err(install)?;
    let cards = SimulatedCards { state: state.to_owned(), libraries: state.join("lib") };
    let hardware = Hardware { backend: Box::new(backend), ..hardware };
    Ok(AgentHardware { hardware, catalogue, cards: Arc::new(cards), arrival: CardArrival::not_awaited() })
}
