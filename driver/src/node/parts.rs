//! What a node is made of, where it keeps its files, and why it is not opened.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::catalogue::Catalogue;
use aliquot_core::disposition::Disposition;
use aliquot_core::id::NodeName;
use aliquot_core::offer::server::ServerVersion;
use aliquot_core::offer::{LayoutPolicy, Offers};
use aliquot_core::ports::DeviceBackend;

use crate::checkpoint::JournalError;
use crate::contexts::{self as gauges, ContextGauge};
use crate::disk::Disk;
use crate::hardware::{Hardware, HardwareKind};
use crate::prepare::PrepareError;
use crate::selinux::Selinux;
use crate::state_dir::StateDirError;
use crate::state_dir::wait::LockHolder;

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
