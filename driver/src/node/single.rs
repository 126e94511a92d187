//! One node with one owner: what a command holds.

use std::fs::File;
use std::path::Path;

use aliquot_core::card::Inventory;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::dra::{DeviceResult, ResourceClaim};
use aliquot_core::grant::Grant;
use aliquot_core::health::Era;
use aliquot_core::id::{ClaimUid, NodeName};
use aliquot_core::ledger::Ledger;
use aliquot_core::offer::Offers;
use aliquot_core::ports::{BackendError, PartitionAt};
use nix::fcntl::Flock;

use super::agree::Differs;
use super::operate::{NewPartitions, NodeOperation};
use super::service::NodeService;
use super::site::Site;
use super::state::{ExclusiveState, State, ledger_of, offers_of};

use crate::checkpoint::{ClaimKind, ClaimRecord, PartitionProgress};
use crate::health::era;
use crate::prepare::{Hands, PrepareError, PrepareOutcome, PreparedClaim, ReleaseOutcome};

// === impl Node ===

/// One node, with one owner.
pub struct Node {
    pub(super) site: Site,
    pub(super) state: State,
    /// What people are to be told of what was prepared.
    pub(super) notes: Vec<String>,
    /// Keeps other processes out; none where the node was opened for reading.
    pub(super) lock: Option<Flock<File>>,
}

// === impl Node ===

impl Node {
    /// The same node for many threads.
    #[must_use]
    pub fn into_service(self) -> NodeService {
        NodeService::new(self.site, self.state, self.lock)
    }

    /// What is published, and what each device stands for; made once, from the cards as they are then.
    ///
    /// # Errors
    /// The hardware cannot be asked.
    pub fn offers(&self) -> Result<&Offers, BackendError> {
        if let Some(offers) = self.state.offers.get() {
            return Ok(offers);
        }
        let cards = self.inventory()?;
        let made = || offers_of(&self.site, &cards, self.state.server, &self.state.usage());
        Ok(self.state.offers.get_or_init(made))
    }

    /// Name of the node.
    #[must_use]
    pub fn name(&self) -> &NodeName {
        &self.site.parts.name
    }

    /// Card models.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        &self.site.parts.catalogue
    }

    /// The cards as they are now; `found` has the partitions that are not ours.
    ///
    /// # Errors
    /// The hardware cannot be asked.
    pub fn inventory(&self) -> Result<Inventory, BackendError> {
        Ok(self.state.without_ours(self.site.look()?))
    }

    /// Variables under which a program outside of containers finds the part of a grant.
    ///
    /// # Errors
    /// The hardware does not know the part.
    pub fn variables(&self, grant: &Grant) -> Result<Vec<(String, String)>, BackendError> {
        self.site.parts.backend.variables(&grant.card, &grant.part)
    }

    /// For how long what is seen of the cards now counts.
    #[must_use]
    pub fn era(&self) -> Era {
        era(self.site.parts.backend.driver_load())
    }

    /// The ledger: the cards as they are now, and everything promised on them.
    ///
    /// # Errors
    /// The hardware cannot be asked.
    pub fn ledger(&self) -> Result<Ledger, BackendError> {
        Ok(ledger_of(&self.inventory()?, &self.site.parts.catalogue, self.state.journal()).0)
    }

    /// Every claim, by UID.
    pub fn claims(&self) -> impl Iterator<Item = &ClaimRecord> {
        self.state.journal().claims.values()
    }

    /// One claim.
    #[must_use]
    pub fn claim(&self, uid: &ClaimUid) -> Option<&ClaimRecord> {
        self.state.claim(uid)
    }

    /// Everything granted, by claim.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.state.grants()
    }

    /// Partitions that we made.
    pub fn partitions(&self) -> impl Iterator<Item = (&PartitionAt, &PartitionProgress)> {
        self.state.journal().partitions.iter()
    }

    /// Directory of CDI files.
    #[must_use]
    pub fn cdi_dir(&self) -> &Path {
        self.site.cdi.dir()
    }

    /// Directory of grants.
    #[must_use]
    pub fn grants_dir(&self) -> &Path {
        self.site.grants_dir()
    }

    /// Makes the claim ready for a container. Repeating it gives the same answer, and mends what is absent; with other limits of
    /// the same parts it puts these in force.
    ///
    /// # Errors
    /// Why not; the node is as it was before, or says in the journal what is still to be undone.
    pub fn prepare(&mut self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        self.prepare_for(claim, ClaimKind::Container)
    }

    /// As [`Node::prepare`], for a claim of either kind.
    ///
    /// # Errors
    /// As [`Node::prepare`].
    pub fn prepare_for(
        &mut self,
        claim: &ResourceClaim,
        kind: ClaimKind,
    ) -> Result<PreparedClaim, PrepareError> {
        if self.lock.is_none() {
            return Err(PrepareError::ReadOnly);
        }
        self.operate(|operation| operation.prepare(claim, kind))
    }

    /// Gives everything back that the claim holds. Repeating it is no error.
    ///
    /// # Errors
    /// Something cannot be given back now; the journal says so, and the next call or start goes on.
    pub fn release(&mut self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        if self.lock.is_none() {
            return Err(PrepareError::ReadOnly);
        }
        self.operate(|operation| operation.release(uid))
    }

    /// What is to be said of what was prepared since the last question: it holds, with less than it could have.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Does what is absent of a claim's plan, and records that it is prepared. `cards` are those of
    /// [`crate::prepare::run_steps`].
    pub(crate) fn make_whole(
        &mut self,
        uid: &ClaimUid,
        cards: &mut Option<Inventory>,
    ) -> Result<PrepareOutcome, PrepareError> {
        self.operate(|operation| operation.make_whole(uid, &NewPartitions::new(), cards))
    }

    /// Undoes everything of a claim, and forgets it.
    pub(crate) fn undo_claim(&mut self, uid: &ClaimUid) -> Result<(), PrepareError> {
        self.operate(|operation| operation.undo_claim(uid))
    }

    /// Everything with side effects that plans reach.
    pub(crate) fn hands(&self) -> Hands<'_> {
        self.site.hands()
    }

    fn operate<R>(&mut self, run: impl FnOnce(&mut NodeOperation<'_, ExclusiveState<'_>>) -> R) -> R {
        let mut operation = NodeOperation::new(&self.site, ExclusiveState(&mut self.state));
        let answer = run(&mut operation);
        self.notes.append(&mut operation.notes);
        answer
    }

    /// Takes away what killed writers of CDI files left; other files stay.
    pub(super) fn collect_temps(&self) -> Result<(), PrepareError> {
        let failed = |source| PrepareError::Cdi { claim: "(all)".to_owned(), source: Box::new(source) };
        self.site.cdi.remove_temps().map_err(failed).map(drop)
    }

    /// Gives a claim's containers these devices to read, without a limit and without holding anything.
    ///
    /// # Errors
    /// The device is not offered, the hardware cannot be asked, or the CDI file cannot be written.
    pub fn monitor(
        &self,
        claim: &ResourceClaim,
        results: &[&DeviceResult],
    ) -> Result<PreparedClaim, PrepareError> {
        let hardware = |source| PrepareError::Hardware {
            claim: format!("{}/{}", claim.namespace, claim.name),
            source: Box::new(source),
        };
        self.site.monitor(claim, results, self.offers().map_err(hardware)?)
    }

    /// Removes what [`Node::monitor`] made; nothing is removed for other claims.
    ///
    /// # Errors
    /// The CDI file cannot be removed.
    pub fn end_monitoring(&self, uid: &ClaimUid) -> Result<(), PrepareError> {
        self.site.end_monitoring(uid)
    }

    /// Whether hardware, journal, ledger and files say the same.
    ///
    /// # Errors
    /// The first thing that differs.
    pub fn invariants(&self) -> Result<(), Differs> {
        self.state.agrees(&self.site)
    }
}
