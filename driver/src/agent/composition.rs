//! The agent, put together: its parts started in the order in which they need each other, and stopped in reverse.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use super::governors::CardsInUse;
use super::http::{self, Probes};
use super::metrics::Metrics;
use super::ports::{ClaimReader, DesiredSlices, EventSink, Publication, StatusWriter};
use super::report::Reporter;
use super::service::{ClaimService, ServiceParts};
use super::state::{self, StateInputs, StateOutputs};
use super::store::NodeStore;
use crate::kubelet::registration::Registered;
use crate::kubelet::server::{KubeletServer, Services};
use crate::kubelet::sockets::{SocketError, SocketPaths, secure_directory};

/// Longest wait for the last claim states to be written at a stop.
const LAST_REPORTS: Duration = Duration::from_secs(5);

/// Where the agent meets the kubelet and its observers.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Directory of registration sockets.
    pub registry: PathBuf,
    /// Directory of the plugin.
    pub plugin: PathBuf,
    /// UID of the agent's Pod, if it runs in one.
    pub pod: Option<String>,
    /// Address of `/metrics`, `/healthz` and `/readyz`; `None`: not served.
    pub metrics: Option<SocketAddr>,
}

/// What the agent is made of.
pub struct AgentParts {
    /// The node.
    pub node: Arc<dyn NodeStore>,
    /// Claims of the API server.
    pub reader: Arc<dyn ClaimReader>,
    /// Status of claims.
    pub status: Arc<dyn StatusWriter>,
    /// Events.
    pub events: Arc<dyn EventSink>,
    /// Where the publisher reads what to publish.
    pub desired: watch::Sender<Option<DesiredSlices>>,
    /// What the publisher observed.
    pub publication: watch::Receiver<Publication>,
    /// What governs cards in use.
    pub governors: Arc<Mutex<dyn CardsInUse>>,
}

/// Why the agent does not run, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentFailure {
    /// A socket or its directory.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The address of the metrics.
    #[error("metrics address {address}: cannot listen there; name another --metrics-address")]
    Metrics {
        /// Address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A server ended.
    #[error("kubelet sockets: {0}; start the agent again")]
    Ended(String),
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
    let (changed, changes) = watch::channel(0);
    let (registered, registration) = watch::channel(Registered::Waiting);
    let (health, health_list) = watch::channel(Arc::new(Vec::new()));
    let (view, views) = watch::channel(None);
    let (uses, observed) = watch::channel(Arc::default());
    let metrics = Arc::new(Metrics::new());
    let probes = Probes {
        publication: parts.publication.clone(),
        registration,
        views: views.clone(),
        uses: observed.clone(),
        metrics: Arc::clone(&metrics),
    };
    if let Some(address) = config.metrics {
        let failed = |source| AgentFailure::Metrics { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        tokio::spawn(http::serve(listener, probes, stopped.clone()));
    }
    let reporter = Reporter::start(parts.status, parts.events, views, observed, Arc::clone(&metrics));
    let service = ServiceParts {
        node: Arc::clone(&parts.node),
        reader: parts.reader,
        changed,
        outcomes: Arc::new(reporter.sink()),
    };
    let inputs = StateInputs {
        node: parts.node,
        changed: changes,
        publication: parts.publication,
        stopped,
        governors: parts.governors,
    };
    let outputs = StateOutputs { desired: parts.desired, health, uses, view };
    let state = tokio::spawn(state::run(inputs, outputs));
    let handler = Arc::new(ClaimService::new(service));
    let services = Services { handler, health: health_list, registered };
    let mut server = KubeletServer::start(paths, services)?;
    tracing::info!("serving the kubelet");
    let ended = tokio::select! {
        () = stop => None,
        why = server.failed() => Some(why),
    };
    tracing::info!("stopping");
    let stopped = match &ended {
        None => server.stop().await,
        Some(_) => Ok(()),
    };
    stopping.send_replace(true);
    drop(timeout(LAST_REPORTS, reporter.finish()).await);
    drop(timeout(LAST_REPORTS, state).await);
    match ended {
        Some(why) => Err(AgentFailure::Ended(why)),
        None => Ok(stopped?),
    }
}
