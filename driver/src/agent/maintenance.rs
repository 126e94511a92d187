//! Maintenance of a node: its drivers are free for an update, a reset or another mode, and come back by themselves.
//!
//! ```text
//!  Serving ── labelled and cordoned ──▶ Closing: devices tainted, new claims are answered `retry`
//!     ▲  ◀── label or cordon gone ────────┘  │ no claim is held, the taint is published: marked in the state directory
//!     │                                      ▼
//!     │                            the program begins anew without any vendor's library
//!     │                                      ▼
//!     └── begins anew ◀─ label or cordon gone ─ Parked: the same slices, new claims are answered `retry`, releases work
//! ```
//!
//! The label alone does nothing, so that one set in error stops no node that takes Pods; the cordon alone is everyday work.
//! A vendor's library may hold devices after its shutdown, or have none; the end of a program's image leaves nothing of it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::dra::{ResourceSlice, Taint, TaintEffect};
use aliquot_core::id::ClaimUid;
use aliquot_core::offer::Support;
use tokio::sync::{oneshot, watch};

use super::metrics::{Metrics, Operation};
use super::store::NodeView;
use crate::checkpoint::{ClaimKind, MaintenanceFile};
use crate::clock;
use crate::kube::kept_slices;
use crate::kube::node_mark::MAINTENANCE_LABEL;
use crate::ports::{
    AgentEvent, DesiredSlices, EventObject, EventSeverity, EventSink, MaintenanceMark, Publication,
};

/// Key of the taint on devices of a node in maintenance.
pub const TAINT_MAINTENANCE: &str = "aliquot.dev/maintenance";
/// Longest wait for the taint to reach the server.
const TAINTED: Duration = Duration::from_secs(15);
/// Views of the node after the last prepare has ended: the second one began after that.
const LOOKS: u32 = 2;
/// Time for the last Event to reach the server.
const LAST_EVENT: Duration = Duration::from_secs(1);
/// Most claims that an Event names.
const CLAIMS_NAMED: usize = 3;

/// How far the maintenance of the node is.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MaintenanceStage {
    /// There is none.
    #[default]
    Serving,
    /// No new claims; the drivers are let go once none is held.
    Closing,
    /// No driver is open. These slices stay published; none: what the server has.
    Parked(Arc<DesiredSlices>),
}

/// What maintenance needs from the agent's start.
pub struct MaintenanceParts {
    /// Mark of the node.
    pub mark: watch::Receiver<MaintenanceMark>,
    /// Where the state directory says that the agent is parked.
    pub file: MaintenanceFile,
    /// How the agent begins.
    pub begins: MaintenanceStage,
    /// Has the program begin anew.
    pub restart: oneshot::Sender<()>,
}

/// What it reads of the running agent.
pub(super) struct MaintenanceInputs {
    pub(super) views: watch::Receiver<Option<Arc<NodeView>>>,
    pub(super) publication: watch::Receiver<Publication>,
    /// What is to be published.
    pub(super) wanted: watch::Receiver<Option<DesiredSlices>>,
    pub(super) events: Arc<dyn EventSink>,
    pub(super) metrics: Arc<Metrics>,
}

/// Waits for the last claim.
struct Closing {
    since: Instant,
    /// Writes of slices before.
    writes: u64,
    /// Views since no prepare is in progress.
    looks: u32,
    has_reported_claims: bool,
}

// === impl MaintenanceStage ===

impl MaintenanceStage {
    /// How an agent begins whose state directory says this.
    #[must_use]
    pub fn of(file: &MaintenanceFile) -> Self {
        match file.read() {
            Ok(None) => Self::Serving,
            Ok(Some(text)) => Self::Parked(Arc::new(kept_slices::read(&text))),
            Err(error) => {
                // To open the drivers of a node in maintenance would be the greater harm; the node's label decides.
                tracing::warn!("whether this node is in maintenance cannot be read: {error}");
                Self::Parked(Arc::default())
            }
        }
    }

    /// Why a claim is not prepared now; `None`: it may be. Containers of claims that are held may start again.
    pub(super) fn refuses(&self, uid: &ClaimUid, view: Option<&NodeView>) -> Option<String> {
        let is_held = || view.is_some_and(|view| view.claims.iter().any(|claim| claim.uid == *uid));
        match self {
            Self::Serving => None,
            Self::Closing if is_held() => None,
            Self::Closing | Self::Parked(_) => Some(format!(
                "this node is in maintenance: it is cordoned and has the label {MAINTENANCE_LABEL}; uncordon it when the \
                 maintenance is over"
            )),
        }
    }

    /// The slices to publish, from those of the cards as they are now; `None`: those that the server has.
    pub(super) fn slices(&self, mut now: DesiredSlices, taints: Support) -> Option<DesiredSlices> {
        match self {
            Self::Serving => Some(now),
            Self::Closing => {
                if taints.is_kept() {
                    now.slices.iter_mut().for_each(|slice| *slice = tainted(slice));
                }
                Some(now)
            }
            Self::Parked(kept) if kept.slices.is_empty() => None,
            Self::Parked(kept) => Some(kept.as_ref().clone()),
        }
    }

    /// In one word, for `/readyz`.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Serving => "none",
            Self::Closing => "wanted: new claims wait, and the drivers are let go when no claim is held",
            Self::Parked(_) => "no driver is open; new claims wait",
        }
    }
}

/// The slice with the taint on every device.
fn tainted(slice: &ResourceSlice) -> ResourceSlice {
    let mut devices = slice.devices.to_vec();
    for device in &mut devices {
        device.taints.push(Taint {
            key: TAINT_MAINTENANCE.to_owned(),
            value: String::new(),
            effect: TaintEffect::NoSchedule,
        });
    }
    ResourceSlice { devices: devices.into(), ..slice.clone() }
}

/// Follows the admin's mark until the program is to begin anew.
pub(super) async fn run(
    parts: MaintenanceParts,
    inputs: MaintenanceInputs,
    stage: watch::Sender<MaintenanceStage>,
) {
    let MaintenanceParts { mut mark, file, begins, restart } = parts;
    let is_parked = matches!(begins, MaintenanceStage::Parked(_));
    inputs.metrics.in_maintenance(is_parked);
    if is_parked {
        parked(&mut mark, &file, &inputs).await;
    } else if close(&mut mark, &file, inputs, &stage).await.is_none() {
        return;
    }
    // Without a receiver the agent ends already.
    let _unheard = restart.send(());
}

/// Waits until the maintenance is over.
async fn parked(
    mark: &mut watch::Receiver<MaintenanceMark>,
    file: &MaintenanceFile,
    inputs: &MaintenanceInputs,
) {
    tracing::info!(
        "parked for maintenance: no driver is open; an uncordoned node or its label's end ends that"
    );
    let is_over =
        |mark: &MaintenanceMark| matches!(mark, MaintenanceMark::None | MaintenanceMark::LabelAlone);
    loop {
        if mark.wait_for(is_over).await.is_err() {
            std::future::pending::<()>().await;
        }
        match file.remove() {
            Ok(()) => break,
            Err(error) => {
                tracing::error!("the end of the maintenance cannot be recorded, tries again: {error}");
            }
        }
        tokio::time::sleep(TAINTED).await;
    }
    let message = "the maintenance is over: the drivers are opened again";
    tell(inputs, EventSeverity::Normal, "MaintenanceEnded", message.to_owned());
    tokio::time::sleep(LAST_EVENT).await;
}

/// Waits until the drivers can be let go, and marks that; `None`: the agent ends.
async fn close(
    mark: &mut watch::Receiver<MaintenanceMark>,
    file: &MaintenanceFile,
    mut inputs: MaintenanceInputs,
    stage: &watch::Sender<MaintenanceStage>,
) -> Option<()> {
    let (mut closing, mut label_alone) = (None::<Closing>, false);
    loop {
        let now = *mark.borrow_and_update();
        match (now, &mut closing) {
            (MaintenanceMark::Wanted, None) => {
                closing = Some(Closing::begin(&mut inputs));
                stage.send_replace(MaintenanceStage::Closing);
            }
            (MaintenanceMark::Wanted | MaintenanceMark::Unknown, Some(waits)) => {
                if waits.is_over(&mut inputs, file.state()) && park(file, &inputs) {
                    tokio::time::sleep(LAST_EVENT).await;
                    return Some(());
                }
            }
            (MaintenanceMark::None | MaintenanceMark::LabelAlone, Some(_)) => {
                closing = None;
                stage.send_replace(MaintenanceStage::Serving);
                inputs.metrics.in_maintenance(false);
                let message = "the maintenance is over before the drivers were let go";
                tell(&inputs, EventSeverity::Normal, "MaintenanceEnded", message.to_owned());
            }
            (MaintenanceMark::None | MaintenanceMark::LabelAlone | MaintenanceMark::Unknown, None) => {}
        }
        if now == MaintenanceMark::LabelAlone && !label_alone {
            let message = format!(
                "the node has the label {MAINTENANCE_LABEL} and takes Pods: nothing follows; cordon it"
            );
            tell(&inputs, EventSeverity::Warning, "MaintenanceWaits", message);
        }
        label_alone = now == MaintenanceMark::LabelAlone;
        tokio::select! {
            changed = mark.changed() => if changed.is_err() { return None },
            changed = inputs.views.changed() => {
                changed.ok()?;
                if let Some(waits) = &mut closing {
                    waits.looks += 1;
                }
            }
        }
    }
}

/// Records that the agent is parked with what it has published; whether that was possible.
fn park(file: &MaintenanceFile, inputs: &MaintenanceInputs) -> bool {
    let kept = inputs.wanted.borrow().clone().unwrap_or_default();
    if let Err(error) = file.write(&kept_slices::text(&kept)) {
        tracing::error!("the drivers stay open, as the maintenance cannot be recorded: {error}");
        return false;
    }
    let message =
        "no claim is held: the drivers are let go for maintenance; uncordon the node when it is over";
    tell(inputs, EventSeverity::Normal, "MaintenanceBegun", message.to_owned());
    true
}

fn tell(inputs: &MaintenanceInputs, severity: EventSeverity, reason: &'static str, message: String) {
    tracing::info!("maintenance: {message}");
    inputs.events.publish(AgentEvent { about: EventObject::Node, severity, reason, message });
}

// === impl Closing ===

impl Closing {
    fn begin(inputs: &mut MaintenanceInputs) -> Self {
        // A view from before is no look.
        inputs.views.mark_unchanged();
        inputs.metrics.in_maintenance(true);
        tracing::info!("maintenance is wanted: cards take no new claims");
        let writes = inputs.publication.borrow().writes;
        Self { since: clock::now(), writes, looks: 0, has_reported_claims: false }
    }

    /// Whether no claim is held or in the making, and the cluster knows that none is to come.
    fn is_over(&mut self, inputs: &mut MaintenanceInputs, state: &Path) -> bool {
        if inputs.metrics.is_in_progress(Operation::Prepare) {
            self.looks = 0;
            inputs.views.mark_unchanged();
        }
        let view = inputs.views.borrow().clone();
        let Some(view) = view.filter(|_| self.looks >= LOOKS) else { return false };
        let held = &view.claims;
        if !held.is_empty() {
            if !self.has_reported_claims {
                self.has_reported_claims = true;
                let named = held.iter().take(CLAIMS_NAMED).map(|claim| claim.name.as_str());
                let (named, count) = (named.collect::<Vec<_>>().join(", "), held.len());
                let run = held.iter().find(|claim| claim.kind == ClaimKind::Run);
                let state = state.display();
                let stop = run.map(|claim| {
                    format!("; `aliquot stop {} --state {state}` on the node ends a local run", claim.uid)
                });
                let message = format!(
                    "the drivers are let go when no claim is held: {count} are, such as {named}; drain the node{}",
                    stop.unwrap_or_default()
                );
                tell(inputs, EventSeverity::Warning, "MaintenanceWaits", message);
            }
            return false;
        }
        let observed = inputs.publication.borrow();
        observed.in_sync && observed.writes > self.writes || self.since.elapsed() >= TAINTED
    }
}
