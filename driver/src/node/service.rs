//! A node for many threads: the state is locked for moments, devices and files are worked on outside of that lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use aliquot_core::card::Inventory;
use aliquot_core::dra::{DeviceResult, ResourceClaim};
use aliquot_core::grant::Grant;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::ledger::CardReport;
use aliquot_core::offer::{Offers, ServerVersion};
use aliquot_core::ports::{BackendError, LivePartition, PartitionAt};
use nix::fcntl::Flock;
use parking_lot::Mutex;

use super::agree::Differs;
use super::operate::NodeOperation;
use super::site::Site;
use super::state::{State, StateAccess, ledger_of, offers_of};
use crate::checkpoint::{ClaimKind, ClaimRecord, Journal, PartitionProgress};
use crate::prepare::{PrepareError, PreparedClaim, ReleaseOutcome};

/// The state of a file or directory; an entry of a directory that comes or goes changes it.
pub(super) type Stamp = Option<(u64, u64, i64, i64)>;

/// Files as this process left them, by claim.
pub(super) type FilesAsLeft = BTreeMap<String, Vec<Stamp>>;

/// One node, with many callers. Calls block; those for other cards do not wait for each other.
pub struct NodeService {
    pub(super) site: Site,
    pub(super) state: Mutex<State>,
    /// Claims of which a release failed. A prepare takes its claim out again.
    pub(super) owed: Mutex<BTreeSet<ClaimUid>>,
    /// Claims of which the file for monitoring could not be removed.
    pub(super) owed_monitors: Mutex<BTreeSet<ClaimUid>>,
    /// Files of claims as prepares left them.
    pub(super) left: Mutex<FilesAsLeft>,
    /// Keeps other processes out.
    _lock: Option<Flock<File>>,
}

/// Everything about a node at one moment.
#[derive(Clone, Debug)]
pub struct NodeSnapshot {
    /// The cards; `found` has the partitions that are not ours.
    pub inventory: Inventory,
    /// What is published of them.
    pub offers: Arc<Offers>,
    /// Used and free, by card.
    pub cards: Vec<CardReport>,
    /// Every claim, by UID.
    pub claims: Vec<ClaimRecord>,
    /// Partitions that the node made for claims.
    pub partitions: Vec<LivePartition>,
}

/// The state, locked for a moment at a time.
pub(super) struct LockedState<'s>(&'s Mutex<State>);

impl StateAccess for LockedState<'_> {
    fn with<R>(&mut self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.0.lock())
    }
}

// === impl NodeService ===

impl NodeService {
    pub(super) fn new(site: Site, state: State, lock: Option<Flock<File>>) -> Self {
        let (site, state) = (site.for_service(), Mutex::new(state));
        let (owed, owed_monitors) = (Mutex::default(), Mutex::default());
        let service = Self { site, state, owed, owed_monitors, left: Mutex::default(), _lock: lock };
        for record in service.claims() {
            service.note_files(&record);
        }
        service
    }

    /// Makes a claim ready for a container. Repeating it gives the same answer, and makes again what is absent; with other
    /// limits of the same parts it puts these in force.
    ///
    /// # Errors
    /// [`PrepareError`]; the node is as it was before, or the journal has what is left to undo.
    pub fn prepare(&self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        self.owed.lock().retain(|uid| uid.as_str() != claim.uid);
        let prepared = self.operate(|operation| operation.prepare(claim, ClaimKind::Container))?;
        let record = self.state.lock().claim(&prepared.uid).cloned();
        if let Some(record) = record {
            self.note_files(&record);
        }
        Ok(prepared)
    }

    /// Gives everything back that a claim holds. Repeating it is no error.
    ///
    /// # Errors
    /// [`PrepareError`]; the next call, [`NodeService::tend`] or the next start goes on.
    pub fn release(&self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        let released = self.operate(|operation| operation.release(uid));
        match &released {
            Ok(_) => drop(self.owed.lock().remove(uid)),
            Err(_) => drop(self.owed.lock().insert(uid.clone())),
        }
        released
    }

    /// Gives a claim's containers these devices to read, without a limit and without holding anything.
    ///
    /// # Errors
    /// [`PrepareError`] if a device is not on offer, its access is unknown or the CDI file cannot be written.
    pub fn monitor(
        &self,
        claim: &ResourceClaim,
        results: &[&DeviceResult],
    ) -> Result<PreparedClaim, PrepareError> {
        let hardware = |source| PrepareError::Hardware {
            claim: format!("{}/{}", claim.namespace, claim.name),
            source: Box::new(source),
        };
        let offers = NodeOperation::new(&self.site, LockedState(&self.state)).offers().map_err(hardware)?;
        self.owed_monitors.lock().retain(|uid| uid.as_str() != claim.uid);
        self.site.monitor(claim, results, &offers)
    }

    /// Removes what [`NodeService::monitor`] made; nothing is removed for other claims.
    ///
    /// # Errors
    /// [`PrepareError`] if the CDI file cannot be removed; the next call or [`NodeService::tend`] goes on.
    pub fn end_monitoring(&self, uid: &ClaimUid) -> Result<(), PrepareError> {
        let ended = self.site.end_monitoring(uid);
        match &ended {
            Ok(()) => drop(self.owed_monitors.lock().remove(uid)),
            Err(_) => drop(self.owed_monitors.lock().insert(uid.clone())),
        }
        ended
    }

    /// The node now, with offers made anew for a server that keeps these fields.
    ///
    /// # Errors
    /// [`BackendError`] if the hardware cannot be asked; the earlier offers stay.
    pub fn snapshot(&self, server: ServerVersion) -> Result<NodeSnapshot, BackendError> {
        let mut operation = NodeOperation::new(&self.site, LockedState(&self.state));
        let (inventory, usage, journal) = operation
            .with_cards(|state, found| (state.without_ours(found), state.usage(), state.journal().clone()))?;
        let offers = offers_of(&self.site, &inventory, server, &usage);
        {
            let mut state = self.state.lock();
            state.server = server;
            state.offers = Arc::clone(&offers).into();
        }
        let (ledger, _) = ledger_of(&inventory, &self.site.parts.catalogue, &journal);
        let cards = inventory.cards.iter().filter_map(|card| ledger.report(&card.uuid)).collect();
        let (partitions, claims) = (made(&journal), journal.claims.into_values().collect());
        Ok(NodeSnapshot { inventory, offers, cards, claims, partitions })
    }

    /// Partitions that the journal has on a card and that are not there as they were made.
    ///
    /// # Errors
    /// [`BackendError`] if the hardware cannot be asked.
    pub fn missing_partitions(&self, card: &CardUuid) -> Result<Vec<PartitionAt>, BackendError> {
        let of_card = |state: &State| -> Vec<LivePartition> {
            let mut made = made(state.journal());
            made.retain(|live| live.at.card == *card);
            made
        };
        let expected = of_card(&self.state.lock());
        if expected.is_empty() {
            return Ok(Vec::new());
        }
        let live = self.site.parts.backend.partitions_on(card)?;
        // Those that went meanwhile were given back.
        let still = of_card(&self.state.lock());
        let missing = expected.into_iter().filter(|one| still.contains(one) && !live.contains(one));
        Ok(missing.map(|one| one.at).collect())
    }

    /// Whether the hardware has processes on a part; a card shared by several claims has those of all. `None`: it does not report
    /// processes.
    ///
    /// # Errors
    /// [`BackendError`] if the hardware cannot be asked.
    pub fn has_processes(&self, grant: &Grant) -> Result<Option<bool>, BackendError> {
        let backend = &self.site.parts.backend;
        let used =
            backend.access(&grant.card, &grant.part).and_then(|access| backend.usage(&access.visible_uuid));
        match used {
            Ok(usage) => Ok(Some(!usage.processes.is_empty())),
            Err(BackendError::Unsupported { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every claim now, by UID.
    #[must_use]
    pub fn claims(&self) -> Vec<ClaimRecord> {
        self.state.lock().journal().claims.values().cloned().collect()
    }

    /// State directory.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.site.state
    }

    /// Directory of grants.
    #[must_use]
    pub fn grants_dir(&self) -> &Path {
        self.site.grants_dir()
    }

    /// Whether hardware, journal, ledger and files say the same. No call is in progress meanwhile.
    ///
    /// # Errors
    /// The first thing that differs.
    pub fn invariants(&self) -> Result<(), Differs> {
        self.state.lock().agrees(&self.site)
    }

    pub(super) fn operate<R>(&self, run: impl FnOnce(&mut NodeOperation<'_, LockedState<'_>>) -> R) -> R {
        let mut operation = NodeOperation::new(&self.site, LockedState(&self.state));
        let answer = run(&mut operation);
        for note in operation.notes {
            tracing::warn!("{note}");
        }
        answer
    }
}

/// The partitions of a journal that exist.
fn made(journal: &Journal) -> Vec<LivePartition> {
    let made = journal.partitions.iter().filter_map(|(at, making)| match making {
        PartitionProgress::Made(handle) => Some(LivePartition { at: at.clone(), handle: handle.clone() }),
        PartitionProgress::Planned => None,
    });
    made.collect()
}
