//! One node, put together: hardware, books, journal, files. What the kubelet plugin and the command line both hold.
//!
//! ```text
//!   <state>/lock         one process at a time makes changes
//!   <state>/journal      what is promised
//!   <state>/grants/…     what tenants are shown, and the shim that their containers load
//!   <state>/lib/…        the shim that commands of local runs load
//!   <state>/contexts     how much of each card a context takes, as far as it was measured
//!   <state>/health       what was seen of the cards, where anything was
//!   <state>/measuring/…  one process at a time measures that on a card
//!   <state>/cdi/…        what container runtimes read, unless another directory is named
//!   <state>/hardware/…   the simulated hardware, where there is no real one
//! ```
//!
//! The books are not kept: each decision rebuilds them from the cards as they are and the journal, so they cannot
//! drift from either. [`Node::invariants`] compares all four, and every test calls it after every action.

mod agree;
mod amend;
mod cards;
mod contexts;
mod lock;
mod monitor;
mod partitions;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aliquot_cdi::CdiDir;
use aliquot_core::card::Inventory;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::grant::Grant;
use aliquot_core::id::{ClaimUid, NodeName};
use aliquot_core::ledger::Ledger;
use aliquot_core::offer::server::ServerVersion;
use aliquot_core::offer::{HeldDevice, LayoutPolicy, Offers, UsageHint, offers};
use aliquot_core::plan::{Step, Undo, plan, undo};
use aliquot_core::ports::{BackendError, DeviceBackend, LivePartition, PartitionAt};
use nix::fcntl::Flock;

pub use agree::Differs;
pub use contexts::{Measured, Measuring};
use lock::{lock, make_state, must_be_directory, must_be_own};

use crate::checkpoint::{ClaimRecord, Journal, JournalError, JournalFile, Making, Phase};
use crate::contexts::Gauge;
use crate::disk::Disk;
use crate::health::HealthBook;
use crate::prepare::{
    Earlier, Hands, Outcome, PrepareError, PreparedClaim, Released, decode, run_steps, run_undo,
};
use crate::recover::{Recovery, recover};
use crate::region::close_to_others;

/// What a node is made of.
pub struct Parts {
    /// Name of the node.
    pub name: NodeName,
    /// Hardware, or a simulation of it.
    pub backend: Box<dyn DeviceBackend>,
    /// Card models.
    pub catalogue: Arc<Catalogue>,
    /// What each card is to be published as.
    pub policy: LayoutPolicy,
    /// What the cluster keeps of what is published.
    pub server: ServerVersion,
    /// What is published already; `None`: to be made from cards and policy when it is needed.
    pub offers: Option<Arc<Offers>>,
    /// The disk; [`Disk::default`] in service.
    pub disk: Disk,
    /// Who finds out what a context takes; `None`: nobody here.
    pub gauge: Option<Arc<dyn Gauge>>,
}

/// Where a node keeps its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    /// State directory; made if only its last component is missing.
    pub state: PathBuf,
    /// Directory of CDI files; `None`: `cdi` in the state directory.
    pub cdi: Option<PathBuf>,
}

/// What a node is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To look at it, beside anybody else.
    Read,
    /// To change it; waits while another process does.
    Change,
    /// To change it; refused while another process does.
    ChangeNow,
    /// To change it; refused where another process does for longer than this.
    ChangeWithin(Duration),
}

/// One node.
pub struct Node {
    parts: Parts,
    grants_dir: PathBuf,
    cdi: CdiDir,
    file: JournalFile,
    journal: Journal,
    /// What was seen of the cards.
    health: HealthBook,
    /// What is published; fixed while the node is open.
    offers: OnceLock<Arc<Offers>>,
    /// What people are to be told of what was prepared.
    notes: Vec<String>,
    /// Keeps other processes out; none where the node was opened for reading.
    lock: Option<Flock<File>>,
}

/// Why a node is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory or file of the state cannot be used.
    #[error("state directory {}: cannot {verb} {}: name another directory or mend this one", state.display(), path.display())]
    State {
        /// The state directory.
        state: PathBuf,
        /// What was tried.
        verb: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something else stands where a directory of the state belongs.
    #[error(
        "state directory {}: {} is {found}; expected a directory, so that what is written there lies there: move it \
         away and start again",
        state.display(), path.display()
    )]
    NotADirectory {
        /// The state directory.
        state: PathBuf,
        /// Where it stands.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// The claims in it were prepared on another node.
    #[error(
        "state directory {}: it belongs to node {found}: claim {claim} was prepared there; expected node {expected}. \
         Start as {found}, or name another directory",
        state.display()
    )]
    OtherNode {
        /// The state directory.
        state: PathBuf,
        /// A claim in it.
        claim: String,
        /// The node that it was prepared on.
        found: String,
        /// This node.
        expected: NodeName,
    },
    /// Another process changes it.
    #[error("state directory {}: {holder} is making changes: wait for it, or use another directory", state.display())]
    Locked {
        /// The state directory.
        state: PathBuf,
        /// Process id, as it wrote it.
        holder: String,
    },
    /// The journal is refused.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Recovery could not go on.
    #[error("recovery stopped")]
    Recovery(#[source] Box<PrepareError>),
}

// === impl Dirs ===

impl Dirs {
    /// A state directory with everything in it.
    #[must_use]
    pub fn in_state(state: impl Into<PathBuf>) -> Self {
        Self { state: state.into(), cdi: None }
    }
}

// === impl Node ===

impl Node {
    /// Opens a node. For changes, this takes the lock and recovers from whatever interrupted the last process.
    ///
    /// # Errors
    /// The directory or the journal cannot be used; nothing of them is lost.
    pub fn open(parts: Parts, dirs: &Dirs, access: Access) -> Result<(Self, Recovery), OpenError> {
        let state = make_state(&dirs.state)?;
        let grants_dir = state.join("grants");
        must_be_directory(&state, &grants_dir)?;
        must_be_directory(&state, &state.join("lib"))?;
        let cdi = CdiDir::new(match &dirs.cdi {
            // It is named by a person, who may well name a link: /var/run is one.
            Some(cdi) => cdi.clone(),
            None => must_be_directory(&state, &state.join("cdi"))?,
        });
        let failed = |verb, path: &Path, source| OpenError::State {
            state: state.clone(),
            verb,
            path: path.to_owned(),
            source,
        };
        let lock = lock(&state, access)?;
        let file = JournalFile::new(state.join("journal"), parts.disk.clone());
        let journal = match file.load()? {
            Some(journal) => journal,
            None => {
                file.check_missing(&grants_dir)?;
                Journal::default()
            }
        };
        must_be_own(&state, &parts.name, &journal)?;
        let fresh = journal.is_empty() && !file.path().exists();
        let offers = parts.offers.clone().map_or_else(OnceLock::new, OnceLock::from);
        let (health, notes) = (HealthBook::of(&state), Vec::new());
        let mut node = Self { parts, grants_dir, cdi, file, journal, health, offers, notes, lock };
        if node.lock.is_none() {
            return Ok((node, Recovery::default()));
        }
        let disk = &node.parts.disk;
        disk.remove_temp(node.file.path()).map_err(|e| failed("clean up", node.file.path(), e))?;
        if fresh {
            // From now on a missing journal is a loss, and not the first day.
            node.file.store(&node.journal)?;
        }
        disk.make_dir(&node.grants_dir).map_err(|e| failed("make", &node.grants_dir, e))?;
        close_to_others(&node.grants_dir).map_err(|e| failed("close to others", &node.grants_dir, e))?;
        node.collect_temps().map_err(|e| OpenError::Recovery(Box::new(e)))?;
        let recovery = recover(&mut node).map_err(|e| OpenError::Recovery(Box::new(e)))?;
        Ok((node, recovery))
    }

    /// What is published, and what each device stands for; made once, from the cards as they are then.
    ///
    /// # Errors
    /// The hardware cannot be asked.
    pub fn offers(&self) -> Result<&Offers, BackendError> {
        if let Some(offers) = self.offers.get() {
            return Ok(offers);
        }
        let inventory = self.inventory()?;
        let mut usage = UsageHint::default();
        for grant in self.grants() {
            let held = usage.held.entry(grant.card.clone()).or_default();
            *held = held.checked_add(grant.memory).unwrap_or(*held);
            usage.devices.entry(grant.card.clone()).or_default().push(HeldDevice::of(grant));
        }
        let parts = &self.parts;
        Ok(self
            .offers
            .get_or_init(|| Arc::new(offers(&parts.name, &inventory, &parts.policy, parts.server, &usage))))
    }

    /// Makes the offers anew: from the cards and the ledger as they are now, for a server that keeps these fields.
    ///
    /// # Errors
    /// The hardware cannot be asked; the earlier offers stay.
    pub fn renew_offers(&mut self, server: ServerVersion) -> Result<&Offers, BackendError> {
        let (before, server_before) = (std::mem::take(&mut self.offers), self.parts.server);
        self.parts.server = server;
        if let Err(error) = self.offers() {
            (self.offers, self.parts.server) = (before, server_before);
            return Err(error);
        }
        self.offers()
    }

    /// Name of the node.
    #[must_use]
    pub const fn name(&self) -> &NodeName {
        &self.parts.name
    }

    /// Card models.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        &self.parts.catalogue
    }

    /// The books: the cards as they are now, and everything promised on them.
    ///
    /// # Errors
    /// The hardware cannot be asked.
    pub fn ledger(&self) -> Result<Ledger, BackendError> {
        Ok(self.books(&self.inventory()?, None).0)
    }

    /// Every claim, by UID.
    pub fn claims(&self) -> impl Iterator<Item = &ClaimRecord> {
        self.journal.claims.values()
    }

    /// One claim.
    #[must_use]
    pub fn claim(&self, uid: &ClaimUid) -> Option<&ClaimRecord> {
        self.journal.claims.get(uid)
    }

    /// Everything granted, by claim.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.claims().flat_map(|record| &record.plan.grants)
    }

    /// Partitions that we made.
    pub fn partitions(&self) -> impl Iterator<Item = (&PartitionAt, &Making)> {
        self.journal.partitions.iter()
    }

    /// Directory of CDI files.
    #[must_use]
    pub fn cdi_dir(&self) -> &Path {
        self.cdi.dir()
    }

    /// Directory of grants.
    #[must_use]
    pub fn grants_dir(&self) -> &Path {
        &self.grants_dir
    }

    /// Makes the claim ready for a container. Repeating it gives the same answer, and mends what is missing; with other limits of
    /// the same parts it puts these in force.
    ///
    /// # Errors
    /// Why not; the node is as it was before, or says in the journal what is still to be undone.
    pub fn prepare(&mut self, claim: &ResourceClaim) -> Result<PreparedClaim, PrepareError> {
        if self.lock.is_none() {
            return Err(PrepareError::ReadOnly);
        }
        let request = decode::decode(claim)?;
        let hardware =
            |source| PrepareError::Hardware { claim: request.name.clone(), source: Box::new(source) };
        if self.claim(&request.uid).is_some_and(|record| record.phase != Phase::Prepared) {
            self.undo_claim(&request.uid)?;
        }
        let live = self.look().map_err(hardware)?;
        let live = self.as_held(live, &request.uid);
        let parts = &self.offers().map_err(hardware)?.parts;
        let (books, _) = self.books(&self.without_ours(live.clone()), Some(&request.uid));
        let plan = plan(&request, parts, &live, &books)
            .map_err(|refusal| self.kept(&request.uid, Box::new(refusal).into()))?;
        if let Some(record) = self.claim(&request.uid) {
            if record.plan.grants != plan.grants {
                return self.amend(plan, &live);
            }
            return Ok(self.make_whole(&request.uid, &mut None)?.prepared);
        }
        let mut next = self.journal.clone();
        for step in &plan.steps {
            if let Step::CreatePartition(at) = step {
                next.partitions.insert(at.clone(), Making::Planned);
            }
        }
        let uid = request.uid;
        next.claims.insert(uid.clone(), ClaimRecord { plan, phase: Phase::Preparing });
        self.write_journal(next)?;
        match self.make_whole(&uid, &mut None) {
            Ok(outcome) => Ok(outcome.prepared),
            Err(error) => {
                // What cannot be undone now stays in the journal, for the next call or the next start.
                match self.undo_claim(&uid) {
                    Ok(()) | Err(_) => Err(error),
                }
            }
        }
    }

    /// Gives everything back that the claim holds. Repeating it is no error.
    ///
    /// # Errors
    /// Something cannot be given back now; the journal says so, and the next call or start goes on.
    pub fn release(&mut self, uid: &ClaimUid) -> Result<Released, PrepareError> {
        if self.lock.is_none() {
            return Err(PrepareError::ReadOnly);
        }
        if self.claim(uid).is_none() {
            return Ok(Released::Unknown);
        }
        self.undo_claim(uid)?;
        Ok(Released::Released)
    }

    /// What is to be said of what was prepared since the last question: it holds, with less than it could have.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Does what is missing of a claim's plan, and records that it is prepared. `cards` are those of [`run_steps`].
    pub(crate) fn make_whole(
        &mut self,
        uid: &ClaimUid,
        cards: &mut Option<Inventory>,
    ) -> Result<Outcome, PrepareError> {
        let Some(record) = self.journal.claims.get(uid) else {
            return Err(PrepareError::Unknown { claim: uid.clone() });
        };
        let (phase, plan) = (record.phase, record.plan.clone());
        let earlier = if phase == Phase::Prepared { Earlier::Perhaps } else { Earlier::None };
        let before = self.journal.partitions.clone();
        self.forget_vanished(&plan.name, &plan.grants)?;
        let outcome = match run_steps(&self.hands(), &plan, &self.journal.partitions, earlier, cards) {
            Err(error) => {
                self.disown(&error, &before)?;
                return Err(error);
            }
            Ok(outcome) => outcome,
        };
        self.publish_contexts(&plan.grants, phase)?;
        let known = |live: &LivePartition| matches!(self.journal.partitions.get(&live.at), Some(Making::Made(handle)) if *handle == live.handle);
        // This is done for each claim whenever the node is opened: a journal that says so already is not copied.
        if phase == Phase::Prepared && outcome.partitions.iter().all(known) {
            return Ok(outcome);
        }
        let mut next = self.journal.clone();
        for live in &outcome.partitions {
            next.partitions.insert(live.at.clone(), Making::Made(live.handle.clone()));
        }
        if let Some(record) = next.claims.get_mut(uid) {
            record.phase = Phase::Prepared;
        }
        self.write_journal(next)?;
        Ok(outcome)
    }

    /// Undoes everything of a claim, and forgets it.
    pub(crate) fn undo_claim(&mut self, uid: &ClaimUid) -> Result<(), PrepareError> {
        let Some(record) = self.journal.claims.get(uid) else { return Ok(()) };
        let plan = record.plan.clone();
        let others = self.claims().filter(|r| r.plan.claim != *uid).flat_map(|r| &r.plan.grants);
        let undos = undo(&plan, |at| self.journal.partitions.contains_key(at), others);
        if record.phase == Phase::Prepared {
            let mut next = self.journal.clone();
            if let Some(record) = next.claims.get_mut(uid) {
                record.phase = Phase::Releasing;
            }
            self.write_journal(next)?;
        }
        run_undo(&self.hands(), &plan, &undos, &self.journal.partitions)?;
        let mut next = self.journal.clone();
        next.claims.remove(uid);
        for undo in &undos {
            if let Undo::DestroyPartition(at) = undo {
                next.partitions.remove(at);
            }
        }
        self.write_journal(next)
    }

    /// Everything with side effects that plans reach.
    pub(crate) fn hands(&self) -> Hands<'_> {
        Hands {
            disk: &self.parts.disk,
            backend: self.parts.backend.as_ref(),
            state: self.file.path().parent().map(Path::to_owned).unwrap_or_default(),
            grants: self.grants_dir.clone(),
            cdi: &self.cdi,
        }
    }

    /// Writes the journal if it is another one, and believes it once it is on disk.
    fn write_journal(&mut self, mut next: Journal) -> Result<(), PrepareError> {
        next.drop_carried_of_the_gone();
        if next != self.journal {
            self.file.store(&next)?;
            self.journal = next;
        }
        Ok(())
    }

    /// The books without one claim, and the claims that do not fit into them.
    fn books(&self, inventory: &Inventory, without: Option<&ClaimUid>) -> (Ledger, Vec<String>) {
        let (mut ledger, problems) = Ledger::new(inventory, &self.parts.catalogue);
        let mut problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        for record in self.claims().filter(|r| Some(&r.plan.claim) != without) {
            let held = ledger.hold_all(record.plan.grants.iter().map(Grant::holding).collect());
            problems.extend(held.err().map(|e| format!("claim {}: {e}", record.plan.name)));
        }
        (ledger, problems)
    }

    /// Takes away what killed writers of CDI files left; whole files stay, known or not.
    fn collect_temps(&self) -> Result<(), PrepareError> {
        let failed = |source| PrepareError::Cdi { claim: "(all)".to_owned(), source: Box::new(source) };
        let there = self.cdi.list().map_err(failed)?.claims.into_iter().collect();
        self.cdi.collect(&there).map_err(failed).map(|_| ())
    }
}
