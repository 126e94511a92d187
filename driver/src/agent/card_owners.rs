//! Reports other drivers that hand out this node's cards: two drivers know nothing of each other's claims.
//!
//! The agent goes on, since a node that migrates has both for a while; `aliquot doctor` fails on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::metrics::Metrics;
use crate::hardware::card_owners::other_owners;
use crate::hardware::vendors::resolve_within;
use crate::ports::{AgentEvent, EventObject, EventSeverity, EventSink};

/// Time between two passes, in looks at the node: 30 s in service.
const LOOKS: u32 = 6;

/// Where the kubelet has its directories.
#[derive(Clone, Debug)]
pub struct KubeletPlace {
    /// Where the host's root directory is seen.
    pub host: PathBuf,
    /// The kubelet's directory, as the host names it.
    pub root: PathBuf,
}

/// What the task needs.
pub(super) struct OwnerParts {
    pub(super) place: KubeletPlace,
    /// Time between two looks at the node.
    pub(super) look: Duration,
    pub(super) events: Arc<dyn EventSink>,
    pub(super) metrics: Arc<Metrics>,
    /// Becomes true when the agent ends.
    pub(super) draining: watch::Receiver<bool>,
}

/// Passes until the agent ends.
pub(super) async fn run(mut parts: OwnerParts) {
    let (mut reported, mut unread) = (Vec::new(), String::new());
    loop {
        let place = parts.place.clone();
        // A socket may take its time to answer.
        let found = tokio::task::spawn_blocking(move || names_of(&place)).await;
        match found {
            Ok(Ok(found)) => {
                parts.report(&reported, &found);
                (reported, unread) = (found, String::new());
            }
            // What lasts is said once.
            Ok(Err(why)) if why != unread => {
                tracing::warn!("other drivers of the cards are not looked for: {why}");
                unread = why;
            }
            Ok(Err(_)) => {}
            Err(error) => tracing::error!("other drivers of the cards are not looked for: {error}"),
        }
        let end = parts.draining.wait_for(|draining| *draining);
        if timeout(parts.look * LOOKS, end).await.is_ok() {
            return;
        }
    }
}

fn names_of(place: &KubeletPlace) -> Result<Vec<String>, String> {
    let find = |dir: &str| Ok(place.host.join(resolve_within(&place.host, &place.root.join(dir))?));
    let owners = other_owners(find).map_err(|error| error.to_string())?;
    Ok(owners.iter().map(ToString::to_string).collect())
}

// === impl OwnerParts ===

impl OwnerParts {
    /// Reports what has changed.
    fn report(&self, before: &[String], now: &[String]) {
        self.metrics.other_drivers(now.len());
        if before == now {
            return;
        }
        let (severity, reason, message) = match now.is_empty() {
            true => {
                let message = "no other driver hands out this node's cards any more".to_owned();
                (EventSeverity::Normal, "OtherDriverGone", message)
            }
            false => {
                let message = format!(
                    "this node's cards are handed out by {} as well, and no driver knows what the other has given: keep it off \
                     this node (nodeSelector), or keep the agent off it",
                    now.join(", ")
                );
                (EventSeverity::Warning, "OtherDriverFound", message)
            }
        };
        match severity {
            EventSeverity::Warning => tracing::warn!("{message}"),
            EventSeverity::Normal => tracing::info!("{message}"),
        }
        self.events.publish(AgentEvent { about: EventObject::Node, severity, reason, message });
    }
}
