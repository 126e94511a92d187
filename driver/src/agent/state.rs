//! From the node's state to what is published: one task that recomputes slices and health after a change.
//!
//! ```text
//!  ledger changed ─┐  (several changes within DEBOUNCE count as one)
//!  server's fields ┼─▶ node.view ─▶ slices, if they differ ─▶ publisher
//!  timer ──────────┘            └─▶ health, if it differs ──▶ kubelet
//! ```

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::dra::DeviceId;
use aliquot_core::offer::ServerVersion;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::governors::CardsInUse;
use super::observe::ShareUse;
use super::store::{NodeStore, NodeView};
use crate::clock;
use crate::error_text::chain;
use crate::kubelet::health::HealthList;
use crate::ports::{DesiredSlices, DeviceHealth, HealthWord, Publication};

/// Changes of the ledger within this time are published together: each may change the order of devices.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// What the task reads.
pub struct StateInputs {
    /// The node.
    pub node: Arc<dyn NodeStore>,
    /// Goes up with every change of the ledger.
    pub changed: watch::Receiver<u64>,
    /// What the publisher observed.
    pub publication: watch::Receiver<Publication>,
    /// Becomes true at the stop.
    pub stopped: watch::Receiver<bool>,
    /// What governs cards in use.
    pub governors: Arc<Mutex<dyn CardsInUse>>,
    /// Time between two looks without a change.
    pub again: Duration,
}

/// What the task writes; each value only if it differs.
pub struct StateOutputs {
    /// Slices to publish; `None` until the server's version is known.
    pub desired: watch::Sender<Option<DesiredSlices>>,
    /// Health for the kubelet.
    pub health: watch::Sender<HealthList>,
    /// What shares use.
    pub uses: watch::Sender<Arc<Vec<ShareUse>>>,
    /// The node at the last look.
    pub view: watch::Sender<Option<Arc<NodeView>>>,
}

/// Runs until the stop.
pub async fn run(mut inputs: StateInputs, outputs: StateOutputs) {
    let (mut failed, mut said) = (String::new(), Vec::new());
    loop {
        let server = inputs.publication.borrow_and_update().server;
        inputs.changed.mark_unchanged();
        match look(&inputs.node, server).await {
            Ok((ended, view)) => {
                failed.clear();
                // What cannot be given back is said once, not at each look.
                ended.iter().filter(|line| !said.contains(*line)).for_each(|line| tracing::info!("{line}"));
                said = ended;
                let view = Arc::new(view);
                publish(&outputs, &view, server);
                govern(&inputs, view, &outputs.uses).await;
            }
            Err(error) if error != failed => {
                tracing::error!("the node cannot be read: {error}");
                failed = error;
            }
            Err(_) => {}
        }
        let settle = tokio::select! {
            () = stop(&mut inputs.stopped) => return,
            () = another_server(&mut inputs.publication, server) => Duration::ZERO,
            Ok(()) = inputs.changed.changed() => DEBOUNCE,
            () = tokio::time::sleep(inputs.again) => Duration::ZERO,
        };
        tokio::time::sleep(settle).await;
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

async fn govern(inputs: &StateInputs, view: Arc<NodeView>, uses: &watch::Sender<Arc<Vec<ShareUse>>>) {
    let (governors, node) = (Arc::clone(&inputs.governors), Arc::clone(&inputs.node));
    match tokio::task::spawn_blocking(move || governors.lock().follow(&view, node.as_ref())).await {
        Ok(seen) => drop(uses.send_replace(Arc::new(seen))),
        Err(error) => tracing::error!("cards in use are not governed: {error}"),
    }
}

fn publish(outputs: &StateOutputs, view: &Arc<NodeView>, server: Option<ServerVersion>) {
    if server.is_some() {
        let slices = Some(DesiredSlices { slices: view.offers.slices.clone() });
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

/// Whether two lists say the same, whenever it was observed.
fn same_health(one: &[DeviceHealth], other: &[DeviceHealth]) -> bool {
    let key = |health: &DeviceHealth| (health.device.clone(), health.health, health.message.clone());
    one.iter().map(key).eq(other.iter().map(key))
}
