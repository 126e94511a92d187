//! `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::card_figures::CardFigures;
use super::exposition::ExpositionForm;
use super::maintenance::MaintenanceStage;
use super::metrics::{Metrics, NodeReadings};
use super::observe::ShareUse;
use super::store::{NodeStore, NodeView};
use crate::clock;
use crate::kubelet::registration::RegistrationOutcome;
use crate::ports::Publication;

/// Time for which slices may be out of sync before the agent is not ready: a comparison with the server, the API server's own
/// restart or a change of its credentials take less.
const BEHIND_MAX: Duration = Duration::from_secs(60);

/// What the answers are made of.
#[derive(Clone)]
pub struct Probes {
    /// What the publisher observed.
    pub publication: watch::Receiver<Publication>,
    /// Whether the kubelet accepted the plugin.
    pub registration: watch::Receiver<RegistrationOutcome>,
    /// The node, once it is this agent's.
    pub node: watch::Receiver<Option<Arc<dyn NodeStore>>>,
    /// The node at the last look.
    pub views: watch::Receiver<Option<Arc<NodeView>>>,
    /// Since when a look has been in progress that takes longer than the limit.
    pub silence: watch::Receiver<Option<Instant>>,
    /// What shares use.
    pub uses: watch::Receiver<Arc<Vec<ShareUse>>>,
    /// What drivers report of cards.
    pub figures: watch::Receiver<Arc<CardFigures>>,
    /// Why the layout policy is not in force; `None`: it is.
    pub policy: Option<String>,
    /// How far the maintenance of the node is.
    pub maintenance: watch::Receiver<MaintenanceStage>,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
}

/// Serves until the stop.
pub async fn serve(listener: TcpListener, probes: Probes, mut stopped: watch::Receiver<bool>) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(probes);
    let stop = async move { drop(stopped.wait_for(|stop| *stop).await) };
    if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stop).await {
        tracing::error!("the metrics server ended: {error}");
    }
}

async fn metrics(State(probes): State<Probes>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let form = ExpositionForm::accepted_by(accept);
    let view = probes.views.borrow().clone();
    let publication = probes.publication.borrow().clone();
    let (uses, figures) = (Arc::clone(&probes.uses.borrow()), Arc::clone(&probes.figures.borrow()));
    let read = NodeReadings { view: view.as_deref(), uses: &uses, figures: &figures };
    match probes.metrics.text(&read, &publication) {
        Ok(text) => {
            let headers = [(header::CONTENT_TYPE, form.media_type()), (header::VARY, "Accept")];
            (headers, form.of(text)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The process answers: its reactor runs.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Calls are answered and slices are true: the kubelet accepted the plugin, the node was read, its cards still answer, and the
/// API server has what it is to have. An agent that waits for an earlier one is ready as well: a rolling update ends the earlier
/// one after that.
async fn readyz(State(probes): State<Probes>) -> Response {
    let lines = [
        ("node", node(&probes)),
        ("kubelet", kubelet(&probes)),
        ("slices", slices(&probes)),
        // Claims are prepared and released all the same with another policy, and released in maintenance: a rollout goes on.
        ("policy", Ok(policy(&probes))),
        ("maintenance", Ok(probes.maintenance.borrow().word().to_owned())),
    ];
    let line = |(name, result): &(&str, Result<String, String>)| {
        let (Ok(text) | Err(text)) = result;
        format!("{name}: {text}\n")
    };
    let text: String = lines.iter().map(line).collect();
    let is_ready = lines.iter().all(|(_, result)| result.is_ok());
    let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, text).into_response()
}

fn node(probes: &Probes) -> Result<String, String> {
    let (waits, read) = (probes.node.borrow().is_none(), probes.views.borrow().is_some());
    match (waits, *probes.silence.borrow(), read) {
        (true, ..) => Ok("waits for another process to release the state directory; calls wait".to_owned()),
        (false, Some(since), _) => Err(format!(
            "the cards have not answered for {} s: a call of their driver hangs; see the kernel's log",
            clock::now().duration_since(since).as_secs()
        )),
        (false, None, true) => Ok("ok".to_owned()),
        (false, None, false) => Err("the node was not read yet".to_owned()),
    }
}

fn kubelet(probes: &Probes) -> Result<String, String> {
    match &*probes.registration.borrow() {
        RegistrationOutcome::Accepted => Ok("ok".to_owned()),
        RegistrationOutcome::Waiting => Err("the kubelet has not registered the plugin".to_owned()),
        RegistrationOutcome::Refused(why) => {
            Err(format!("the kubelet refused the plugin: {}", why.escape_debug()))
        }
    }
}

fn slices(probes: &Probes) -> Result<String, String> {
    let publication = probes.publication.borrow().clone();
    let text = match (publication.in_sync, publication.error) {
        (true, _) => "in sync".to_owned(),
        (false, None) => "not in sync".to_owned(),
        (false, Some(error)) => format!("not in sync: {error}"),
    };
    let behind = publication.behind.map(|since| clock::now().duration_since(since));
    match behind.filter(|behind| *behind >= BEHIND_MAX) {
        Some(behind) => Err(format!("{text} (for {} s)", behind.as_secs())),
        None => Ok(text),
    }
}

/// What became of the policy that the agent was given.
fn policy(probes: &Probes) -> String {
    match &probes.policy {
        None => "ok".to_owned(),
        Some(why) => format!("refused: {why}"),
    }
}
