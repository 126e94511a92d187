//! One node, put together: hardware, ledger, journal, files. The command line holds a [`Node`], the node agent a [`NodeService`].
//!
//! ```text
//!   Site: fixed while open        hardware, directories, turns ─┐
//!   State: promises and ledger ───┬─ alone ───▶ Node            ├─▶ Operation: prepare, release, repair
//!                                 └─ locked ──▶ NodeService ────┘
//! ```
//!
//! | below the state directory | content |
//! |---|---|
//! | `lock` | one process at a time makes changes |
//! | `journal` | what is promised |
//! | `grants/…` | what tenants are shown |
//! | `shims/…` | the shim that containers load, by version |
//! | `lib/…` | the shim that commands of local runs load |
//! | `contexts` | how much of each card a context takes |
//! | `health` | what was observed of the cards |
//! | `cdi/…` | what container runtimes read, unless another directory is named |
//! | `hardware/…` | the simulated hardware, where there is no real one |
//!
//! [`Node::invariants`] compares ledger, journal, hardware and files, and every test calls it after every action.

mod agree;
mod amend;
mod contexts;
mod lock;
mod monitor;
mod operate;
mod preview;
pub mod recover;
mod service;
mod site;
mod state;
mod tend;
mod turns;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use aliquot_cdi::CdiDir;
use aliquot_core::card::Inventory;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::disposition::Disposition;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::grant::Grant;
use aliquot_core::health::Era;
use aliquot_core::id::{ClaimUid, NodeName};
use aliquot_core::ledger::Ledger;
use aliquot_core::offer::server::ServerVersion;
use aliquot_core::offer::{LayoutPolicy, Offers};
use aliquot_core::ports::{BackendError, DeviceBackend, PartitionAt};
use nix::fcntl::Flock;

pub use agree::Differs;
pub use contexts::{ContextMeasurement, MeasuredContext};
use lock::{lock, must_be_own};
use operate::{NewPartitions, NodeOperation};
use recover::{Recovery, recover};
pub use service::{NodeService, NodeSnapshot};
use site::Site;
use state::{ExclusiveState, State, ledger_of, offers_of};

use crate::checkpoint::{ClaimKind, ClaimRecord, JournalError, JournalFile, JournalStore, PartitionProgress};
use crate::contexts::{self as gauges, ContextGauge};
use crate::disk::Disk;
use crate::hardware::{Hardware, HardwareKind};
use crate::health::era;
use crate::prepare::{Hands, PrepareError, PrepareOutcome, PreparedClaim, ReleaseOutcome};
use crate::region::close_to_others;
use crate::selinux::Selinux;
pub use crate::state_dir::Access;
use crate::state_dir::wait::LockHolder;
use crate::state_dir::{self, StateDirError};

/// What a node is made of.
pub struct NodeParts {
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
    /// The shim that containers load; [`aliquot_libraries::SHIM`] in service.
    pub shim: &'static [u8],
    /// The disk; [`Disk::default`] in service.
    pub disk: Disk,
    /// Measures contexts; `None`: this node does not.
    pub gauge: Option<Arc<dyn ContextGauge>>,
    /// SELinux of the host: whether files of containers are labelled.
    pub selinux: Selinux,
    /// Where the host's root is seen, of which CDI files name paths.
    pub host: PathBuf,
    /// Called with the process that holds the lock, after a wait of a second.
    pub on_wait: fn(&LockHolder),
}

/// Where a node keeps its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    /// State directory; made if only its last component is missing.
    pub state: PathBuf,
    /// Directory of CDI files; `None`: `cdi` in the state directory.
    pub cdi: Option<PathBuf>,
}

/// One node, with one owner.
pub struct Node {
    site: Site,
    state: State,
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
    /// The state directory is unsafe to use.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
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
    /// The node agent owns it.
    #[error(
        "state directory {}: the node agent ({holder}) owns it while it runs: request parts through Kubernetes, or stop the agent \
         first; `aliquot top`, `devices` and `doctor` work beside it",
        state.display()
    )]
    AgentRuns {
        /// The state directory.
        state: PathBuf,
        /// The agent's process.
        holder: String,
    },
    /// The journal is refused.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Recovery could not go on.
    #[error("recovery stopped")]
    Recovery(#[source] Box<PrepareError>),
}

// === impl OpenError ===

impl OpenError {
    /// What the caller does about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Locked { .. } => Disposition::Retry,
            Self::OtherNode { .. } | Self::AgentRuns { .. } => Disposition::Refuse,
            Self::Journal(error) => error.disposition(),
            Self::Recovery(error) => error.disposition(),
            Self::State { .. } | Self::StateDir(_) => Disposition::Broken,
        }
    }
}

// === impl Dirs ===

impl Dirs {
    /// A state directory with everything in it.
    #[must_use]
    pub fn in_state(state: impl Into<PathBuf>) -> Self {
        Self { state: state.into(), cdi: None }
    }
}

// === impl NodeParts ===

impl NodeParts {
    /// The parts of a node with this hardware.
    #[must_use]
    pub fn of(
        hardware: Hardware,
        catalogue: Arc<Catalogue>,
        policy: LayoutPolicy,
        server: ServerVersion,
    ) -> Self {
        Self {
            name: hardware.name,
            backend: hardware.backend,
            catalogue,
            policy,
            server,
            offers: None,
            shim: aliquot_libraries::SHIM,
            disk: Disk::default(),
            gauge: gauges::gauge(hardware.contexts),
            selinux: match hardware.kind {
                HardwareKind::Machine => Selinux::of_host(Path::new("/")),
                HardwareKind::Simulated => Selinux::ignored(),
            },
            host: PathBuf::from("/"),
            on_wait: |_| {},
        }
    }
}

// === impl Node ===

impl Node {
    /// Opens a node. For changes, this takes the lock and recovers from whatever interrupted the last process.
    ///
    /// # Errors
    /// The directory or the journal cannot be used; nothing of them is lost.
    pub fn open(parts: NodeParts, dirs: &Dirs, access: Access) -> Result<(Self, Recovery), OpenError> {
        let state = state_dir::make(&dirs.state, access)?;
        let grants = state.join("grants");
        // The user names it, maybe by a symbolic link: /var/run is one.
        let cdi = CdiDir::new(dirs.cdi.clone().unwrap_or_else(|| state.join("cdi")));
        let failed = |verb, path: &Path, source| OpenError::State {
            state: state.clone(),
            verb,
            path: path.to_owned(),
            source,
        };
        let lock = lock(&state, access, parts.on_wait)?;
        let file = JournalFile::new(state.join("journal"), parts.disk.clone());
        let offers = parts.offers.clone().map_or_else(OnceLock::new, OnceLock::from);
        let server = parts.server;
        let (disk, notes) = (parts.disk.clone(), Vec::new());
        let found = match lock {
            Some(_) => file.read()?,
            None => file.load()?,
        };
        match &found {
            Some(found) => must_be_own(&state, &parts.name, &found.journal)?,
            None => file.check_missing(&grants)?,
        }
        if lock.is_none() {
            let store = JournalStore::to_look(file, found.map(|found| found.journal).unwrap_or_default());
            let site = Site::new(parts, state.clone(), grants, cdi);
            return Ok((
                Self { site, state: State::new(store, offers, server), notes, lock },
                Recovery::default(),
            ));
        }
        disk.remove_temp(file.path()).map_err(|e| failed("clean up", file.path(), e))?;
        let store = JournalStore::resume(file, found)?;
        disk.make_dir(&grants).map_err(|e| failed("make", &grants, e))?;
        close_to_others(&grants).map_err(|e| failed("close to others", &grants, e))?;
        let site = Site::new(parts, state.clone(), grants, cdi);
        if let Access::Own(_) = access {
            // Before recovery: claims without a copy of their own share the file.
            site.hold_shim();
        }
        let mut node = Self { site, state: State::new(store, offers, server), notes, lock };
        node.collect_temps().map_err(|e| OpenError::Recovery(Box::new(e)))?;
        let recovery = recover(&mut node).map_err(|e| OpenError::Recovery(Box::new(e)))?;
        Ok((node, recovery))
    }

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
    fn collect_temps(&self) -> Result<(), PrepareError> {
        let failed = |source| PrepareError::Cdi { claim: "(all)".to_owned(), source: Box::new(source) };
        self.site.cdi.remove_temps().map_err(failed).map(drop)
    }
}
