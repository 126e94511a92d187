//! Releases claims that neither the kubelet nor the API server knows any more: [`aliquot_core::orphans`] decides.
//!
//! ```text
//!  timer ─▶ claims of containers ─▶ the kubelet's record ─▶ those absent there: GET ─▶ those absent there: processes
//!                                                                                             │
//!            unprepare, as the kubelet calls it ◀── unknown and unused for the grace ◀────────┘
//! ```
//!
//! An answer of the API server counts while it has this node's slices: one that is being restored, or has lost all, does not.
//! Without a record of the kubelet nothing is released.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::id::ClaimUid;
use aliquot_core::orphans::{ClaimUse, Knowledge, OrphanWatch, Sighting};
use tokio::sync::watch;
use tokio::time::sleep;

use super::metrics::Metrics;
use super::report::reference;
use super::store::{HeldClaim, NodeStore, NodeView};
use crate::clock;
use crate::error_text::chain;
use crate::hardware::vendors::resolve_within;
use crate::kubelet::claim_state::{self, ClaimStateError};
use crate::kubelet::dra::{ClaimHandler, WireClaim};
use crate::ports::{
    AgentEvent, ClaimReader, ClaimReference, EventObject, EventSeverity, EventSink, Publication,
};
use crate::printable;
use crate::state_dir::file;

/// Longest text of an Event or a line of the log.
const TEXT_MAX: usize = 600;

/// The kubelet's record of claims.
#[derive(Clone, Debug)]
pub struct KubeletRecord {
    /// Where the host's root directory is seen.
    pub host: PathBuf,
    /// The file, as the host names it.
    pub file: PathBuf,
}

/// What the task reads and does.
pub(super) struct OrphanParts {
    pub(super) record: KubeletRecord,
    pub(super) node: watch::Receiver<Option<Arc<dyn NodeStore>>>,
    pub(super) views: watch::Receiver<Option<Arc<NodeView>>>,
    pub(super) publication: watch::Receiver<Publication>,
    pub(super) reader: Arc<dyn ClaimReader>,
    pub(super) events: Arc<dyn EventSink>,
    pub(super) metrics: Arc<Metrics>,
    /// Becomes true when the agent ends.
    pub(super) draining: watch::Receiver<bool>,
    /// Time for which a claim is unknown and unused before it is released.
    pub(super) grace: Duration,
}

/// A claim of containers, and what a pass has found of it so far.
struct Candidate {
    held: HeldClaim,
    claim: ClaimReference,
    sighting: Sighting,
}

/// What is known of a claim before anything is asked.
const UNANSWERED: Sighting = Sighting {
    kubelet: Knowledge::Unanswered,
    server: Knowledge::Unanswered,
    processes: ClaimUse::Unanswered,
};

/// Passes until the agent ends. `handler` serves the kubelet's calls.
pub(super) async fn run(parts: OrphanParts, handler: Arc<dyn ClaimHandler>) {
    let mut draining = parts.draining.clone();
    let end = async {
        // An error means that the agent is gone, which is an end as well.
        drop(draining.wait_for(|draining| *draining).await);
    };
    tokio::select! {
        () = end => {}
        () = parts.passes(handler.as_ref()) => {}
    }
}

// === impl OrphanParts ===

impl OrphanParts {
    async fn passes(&self, handler: &dyn ClaimHandler) {
        let (began, mut watch) = (clock::now(), OrphanWatch::new(self.grace));
        let (mut restores, mut told) = (self.publication.borrow().restores, String::new());
        loop {
            sleep(watch.pause()).await;
            let candidates = self.look(&mut told).await;
            let now = self.publication.borrow().restores;
            if std::mem::replace(&mut restores, now) != now {
                // Answers of a state that is no more.
                watch.begin_anew();
                continue;
            }
            let found = candidates.iter().map(|one| (one.claim.uid.clone(), one.sighting)).collect();
            let orphans: BTreeSet<ClaimUid> = watch.pass(began.elapsed(), &found).into_iter().collect();
            for orphan in candidates.into_iter().filter(|one| orphans.contains(&one.claim.uid)) {
                self.release(handler, orphan).await;
            }
        }
    }

    /// One pass over the claims of containers. `told` is the last line of the log about the record.
    async fn look(&self, told: &mut String) -> Vec<Candidate> {
        let view = self.views.borrow().clone();
        let claims = view.iter().flat_map(|view| &view.claims);
        let candidate = |held: &HeldClaim| {
            Some(Candidate { held: held.clone(), claim: reference(held)?, sighting: UNANSWERED })
        };
        let mut candidates: Vec<Candidate> = claims.filter_map(candidate).collect();
        if candidates.is_empty() {
            return candidates;
        }
        self.ask_kubelet(&mut candidates, told).await;
        self.ask_server(&mut candidates).await;
        self.ask_node(&mut candidates).await;
        candidates
    }

    async fn ask_kubelet(&self, candidates: &mut [Candidate], told: &mut String) {
        let record = self.record.clone();
        let read = tokio::task::spawn_blocking(move || record.claims()).await;
        let line = match read {
            Ok(Ok(known)) => {
                for one in candidates {
                    let knows = known.contains(one.claim.uid.as_str());
                    one.sighting.kubelet = if knows { Knowledge::Known } else { Knowledge::Absent };
                }
                String::new()
            }
            Ok(Err(error)) => chain(&error),
            Err(error) => error.to_string(),
        };
        if !line.is_empty() && *told != line {
            let line = printable::line_of(&line, TEXT_MAX);
            tracing::warn!(
                "the kubelet's record of claims, {}: {line}; claims that the cluster has lost stay prepared",
                self.record.file.display()
            );
        }
        *told = line;
    }

    /// Asks the API server for the claims that the kubelet does not know. The first failure ends it.
    async fn ask_server(&self, candidates: &mut [Candidate]) {
        for one in candidates.iter_mut().filter(|one| one.sighting.kubelet == Knowledge::Absent) {
            match self.reader.find(&one.claim).await {
                Ok(found) => one.sighting.server = found,
                Err(error) => {
                    tracing::debug!(claim = %one.claim, "whether the API server has it is not known: {error}");
                    break;
                }
            }
        }
        if !self.publication.borrow().in_sync {
            for one in candidates {
                one.sighting.server = Knowledge::Unanswered;
            }
        }
    }

    /// Looks for processes of the claims that neither knows.
    async fn ask_node(&self, candidates: &mut [Candidate]) {
        let both = |one: &&mut Candidate| {
            (one.sighting.kubelet, one.sighting.server) == (Knowledge::Absent, Knowledge::Absent)
        };
        let lost: Vec<&mut Candidate> = candidates.iter_mut().filter(both).collect();
        let Some(node) = self.node.borrow().clone().filter(|_| !lost.is_empty()) else { return };
        let claims: Vec<HeldClaim> = lost.iter().map(|one| one.held.clone()).collect();
        match tokio::task::spawn_blocking(move || node.uses(&claims)).await {
            Ok(uses) => {
                for (one, processes) in lost.into_iter().zip(uses) {
                    one.sighting.processes = processes;
                }
            }
            Err(error) => tracing::error!("processes of claims are not looked for: {error}"),
        }
    }

    async fn release(&self, handler: &dyn ClaimHandler, orphan: Candidate) {
        let Candidate { held, claim, .. } = orphan;
        let ClaimReference { namespace, name, uid } = &claim;
        let (namespace, name, uid) = (namespace.clone(), name.clone(), uid.to_string());
        let released = handler.unprepare(vec![WireClaim { namespace, name, uid }]).await;
        // A failure has an Event of its own; the next pass tries again.
        if released.values().any(Result::is_err) {
            return;
        }
        let parts: BTreeMap<String, String> =
            held.grants.iter().map(|grant| (grant.card.to_string(), grant.part.to_string())).collect();
        let parts = parts.iter().map(|(card, part)| format!("`{part}` of card {card}")).collect::<Vec<_>>();
        let message = format!(
            "claim {claim}: released: for {} s neither the API server nor the kubelet has known it, and no process has used it; \
             free again: {}",
            self.grace.as_secs(),
            parts.join(", ")
        );
        tracing::warn!("{message}");
        self.metrics.orphan_released();
        self.events.publish(AgentEvent {
            about: EventObject::Node,
            severity: EventSeverity::Normal,
            reason: "OrphanReleased",
            message: printable::line_of(&message, TEXT_MAX),
        });
    }
}

// === impl KubeletRecord ===

impl KubeletRecord {
    /// The UIDs of the kubelet's claims.
    fn claims(&self) -> Result<BTreeSet<String>, ClaimStateError> {
        let path = self.host.join(resolve_within(&self.host, &self.file)?);
        claim_state::read(file::to_read(&path)?)
    }
}
