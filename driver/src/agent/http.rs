//! `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::metrics::Metrics;
use super::observe::ShareUse;
use super::store::{NodeStore, NodeView};
use crate::clock;
use crate::kubelet::registration::RegistrationOutcome;
use crate::ports::Publication;

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

async fn metrics(State(probes): State<Probes>) -> Response {
    let view = probes.views.borrow().clone();
    let publication = probes.publication.borrow().clone();
    let uses = Arc::clone(&probes.uses.borrow());
    match probes.metrics.text(view.as_deref(), &uses, &publication) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The process answers: its reactor runs.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Calls are answered: the kubelet accepted the plugin, the node was read, and its cards still answer. An agent that waits for an earlier one is
/// ready as well: a rolling update ends the earlier one after that.
async fn readyz(State(probes): State<Probes>) -> Response {
    let (waits, read) = (probes.node.borrow().is_none(), probes.views.borrow().is_some());
    let silent = *probes.silence.borrow();
    let node = match (waits, silent, read) {
        (true, ..) => Ok("waits for another process to release the state directory; calls wait"),
        (false, Some(since), _) => Err(format!(
            "the cards have not answered for {} s: a call of their driver hangs; see the kernel's log",
            clock::now().duration_since(since).as_secs()
        )),
        (false, None, true) => Ok("ok"),
        (false, None, false) => Err("the node was not read yet".to_owned()),
    };
    let kubelet = match &*probes.registration.borrow() {
        RegistrationOutcome::Accepted => Ok("ok"),
        RegistrationOutcome::Waiting => Err("the kubelet has not registered the plugin".to_owned()),
        RegistrationOutcome::Refused(why) => {
            Err(format!("the kubelet refused the plugin: {}", why.escape_debug()))
        }
    };
    let publication = probes.publication.borrow().clone();
    let published = match (publication.in_sync, publication.error) {
        (true, _) => "in sync".to_owned(),
        (false, None) => "not in sync".to_owned(),
        (false, Some(error)) => format!("not in sync: {error}"),
    };
    let line = |name: &str, result: &Result<&str, String>| match result {
        Ok(word) => format!("{name}: {word}\n"),
        Err(why) => format!("{name}: {why}\n"),
    };
    let text = format!("{}{}slices: {published}\n", line("node", &node), line("kubelet", &kubelet));
    let code = if node.is_ok() && kubelet.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, text).into_response()
}
