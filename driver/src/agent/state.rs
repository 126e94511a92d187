//! From the node's state to what is published: one task that recomputes slices and health after a change.
//!
//! ```text
//!  ledger changed ─┐  (several changes within DEBOUNCE count as one)
//!  card's event ───┤
//!  server's fields ┼─▶ node.view ─▶ slices, if they differ ─▶ publisher
//!  timer ──────────┘            └─▶ health, if it differs ──▶ kubelet
//!                   longer than the limit: health unknown, `/readyz` fails, until it ends
//! ```
//!
//! A driver's call may hang for ever, and no thread in it can be ended: the task waits for its one look and starts no other.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::dra::DeviceId;
use aliquot_core::offer::ServerVersion;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::card_figures::CardFigures;
use super::governors::CardsInUse;
use super::maintenance::MaintenanceStage;
use super::observe::ShareUse;
use super::pace::AgentPace;
use super::store::{NodeStore, NodeView};
use crate::clock;
use crate::error_text::chain;
use crate::kubelet::health::HealthList;
use crate::ports::{DesiredSlices, DeviceHealth, HealthWord, Publication};

/// Changes of the ledger and events of cards within this time are published together: each may change the order of devices.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// What the task reads.
pub struct StateInputs {
    /// The node.
    pub node: Arc<dyn NodeStore>,
    /// Goes up with every change of the ledger.
    pub changed: watch::Receiver<u64>,
    /// What the publisher observed.
    pub publication: watch::Receiver<Publication>,
    /// How far the maintenance of the node is.
    pub maintenance: watch::Receiver<MaintenanceStage>,
    /// Becomes true at the stop.
    pub stopped: watch::Receiver<bool>,
    /// What governs cards in use.
    pub governors: Arc<Mutex<dyn CardsInUse>>,
    /// How long it waits.
    pub pace: AgentPace,
}

/// What the task writes; each value only if it differs.
pub struct StateOutputs {
    /// Slices to publish; `None` until the server's version is known.
    pub desired: watch::Sender<Option<DesiredSlices>>,
    /// Health for the kubelet.
    pub health: watch::Sender<HealthList>,
    /// What shares use.
    pub uses: watch::Sender<Arc<Vec<ShareUse>>>,
    /// What drivers report of cards.
    pub figures: watch::Sender<Arc<CardFigures>>,
    /// The node at the last look.
    pub view: watch::Sender<Option<Arc<NodeView>>>,
    /// Since when a look has been in progress that takes longer than the limit.
    pub silence: watch::Sender<Option<Instant>>,
}

/// What the log has of the looks before.
#[derive(Default)]
struct Told {
    /// Why the last look failed.
    failure: String,
    /// What became of local runs.
    runs: Vec<String>,
}

/// Runs until the stop.
pub async fn run(mut inputs: StateInputs, outputs: StateOutputs) {
    let mut told = Told::default();
    let recorded = inputs.governors.lock().recorded();
    loop {
        let server = inputs.publication.borrow_and_update().server;
        inputs.changed.mark_unchanged();
        inputs.maintenance.mark_unchanged();
        let look = look_and_publish(&inputs, &outputs, server, &mut told);
        limited(look, inputs.pace.answer, &outputs).await;
        let settle = tokio::select! {
            () = stop(&mut inputs.stopped) => return,
            () = another_server(&mut inputs.publication, server) => Duration::ZERO,
            Ok(()) = inputs.changed.changed() => DEBOUNCE,
            // A tenant can provoke events: they count as one for a moment, too.
            () = recorded.notified() => DEBOUNCE,
            Ok(()) = inputs.maintenance.changed() => Duration::ZERO,
            () = tokio::time::sleep(inputs.pace.look) => Duration::ZERO,
        };
        tokio::time::sleep(settle).await;
    }
}

/// Waits for a look. Past the limit the health of every card is unknown, until the look ends.
async fn limited(look: impl Future<Output = ()>, limit: Duration, outputs: &StateOutputs) {
    let (began, mut look) = (clock::now(), pin!(look));
    if timeout(limit, look.as_mut()).await.is_ok() {
        return;
    }
    let why = format!("the cards have not answered for {} s", limit.as_secs());
    tracing::error!("{why}: a call of their driver hangs; see the kernel's log");
    outputs.silence.send_replace(Some(began));
    outputs.health.send_modify(|list| *list = Arc::new(unknown(list, &why)));
    look.await;
    outputs.silence.send_replace(None);
    tracing::info!("the cards answered after {} s", began.elapsed().as_secs());
}

/// One look, and all that follows from it.
async fn look_and_publish(
    inputs: &StateInputs,
    outputs: &StateOutputs,
    server: Option<ServerVersion>,
    told: &mut Told,
) {
    match look(&inputs.node, server).await {
        Ok((ended, view)) => {
            told.failure.clear();
            // What cannot be given back is said once, not at each look.
            let news = ended.iter().filter(|line| !told.runs.contains(*line));
            news.for_each(|line| tracing::info!("{line}"));
            told.runs = ended;
            let view = Arc::new(view);
            publish(outputs, &view, server, &inputs.maintenance.borrow());
            govern(inputs, view, outputs).await;
        }
        Err(error) if error != told.failure => {
            tracing::error!("the node cannot be read: {error}");
            told.failure = error;
        }
        Err(_) => {}
    }
}

async fn stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the composition is gone, which is a stop as well.
    drop(stopped.wait_for(|stop| *stop).await);
}

/// Waits until the publisher observed another version or other fields of the server.
async fn another_server(publication: &mut watch::Receiver<Publication>, server: Option<ServerVersion>) {
    if publication.wait_for(|observed| observed.server != server).await.is_err() {
        // The publisher ended; the timer goes on.
        std::future::pending::<()>().await;
    }
}

/// Local runs that have ended, and the node after that.
async fn look(
    node: &Arc<dyn NodeStore>,
    server: Option<ServerVersion>,
) -> Result<(Vec<String>, NodeView), String> {
    let node = Arc::clone(node);
    let server = server.unwrap_or(ServerVersion::with_default_gates(36, 2));
    let look = move || (node.end_runs(), node.view(server));
    let (ended, view) = tokio::task::spawn_blocking(look).await.map_err(|error| error.to_string())?;
    Ok((ended, view.map_err(|error| chain(&error))?))
}

async fn govern(inputs: &StateInputs, view: Arc<NodeView>, outputs: &StateOutputs) {
    let (governors, node) = (Arc::clone(&inputs.governors), Arc::clone(&inputs.node));
    match tokio::task::spawn_blocking(move || governors.lock().follow(&view, node.as_ref())).await {
        Ok(seen) => {
            outputs.figures.send_replace(Arc::new(seen.cards));
            outputs.uses.send_replace(Arc::new(seen.shares));
        }
        Err(error) => tracing::error!("cards in use are not governed: {error}"),
    }
}

fn publish(
    outputs: &StateOutputs,
    view: &Arc<NodeView>,
    server: Option<ServerVersion>,
    maintenance: &MaintenanceStage,
) {
    if let Some(server) = server {
        let now =
            DesiredSlices { slices: view.offers.slices.clone(), counter_stance: view.offers.counter_stance };
        let slices = maintenance.slices(now, server.taints);
        outputs.desired.send_if_modified(|desired| {
            let differs = *desired != slices;
            *desired = slices;
            differs
        });
    }
    let health = health(view);
    outputs.health.send_if_modified(|list| {
        let differs = !same_health(list, &health);
        *list = Arc::new(health);
        differs
    });
    outputs.view.send_replace(Some(Arc::clone(view)));
}

/// Health of every device on offer.
fn health(view: &NodeView) -> Vec<DeviceHealth> {
    let observed = clock::wall();
    let of = |(id, part): (&DeviceId, &aliquot_core::offer::OfferedPart)| {
        let card = view.inventory.card(&part.card);
        let (health, message) = match card.map(|card| card.why_unwell(&part.part)) {
            Some(None) => (HealthWord::Healthy, String::new()),
            Some(Some(why)) => (HealthWord::Unhealthy, format!("card {}: {why}", part.card)),
            None => (HealthWord::Unknown, format!("card {} is not on this node any more", part.card)),
        };
        DeviceHealth { device: id.clone(), health, message, observed }
    };
    view.offers.parts.iter().map(of).collect()
}

/// The same devices while no card answers.
fn unknown(list: &[DeviceHealth], why: &str) -> Vec<DeviceHealth> {
    let (health, observed) = (HealthWord::Unknown, clock::wall());
    let of = |known: &DeviceHealth| DeviceHealth {
        device: known.device.clone(),
        health,
        message: why.to_owned(),
        observed,
    };
    list.iter().map(of).collect()
}

/// Whether two lists say the same, whenever it was observed.
fn same_health(one: &[DeviceHealth], other: &[DeviceHealth]) -> bool {
    let key = |health: &DeviceHealth| (health.device.clone(), health.health, health.message.clone());
    one.iter().map(key).eq(other.iter().map(key))
}
