//! What is checked, and what a check finds.

use std::net::SocketAddr;
use std::path::PathBuf;

use aliquot_core::card::Inventory;

/// Where the node's parts are, as paths of the node.
#[derive(Clone, Debug)]
pub struct NodePaths {
    /// Where the node's file system is seen; `/` on the node itself.
    pub root: PathBuf,
    /// Directory of the kubelet.
    pub kubelet: PathBuf,
    /// State directory of the agent, or of local runs.
    pub state: PathBuf,
    /// Directory from which the container runtime reads CDI files.
    pub cdi: PathBuf,
    /// Root of the vendor's driver; `None`: the usual ones.
    pub driver: Option<PathBuf>,
    /// Address of the agent's metrics; `None`: not checked.
    pub metrics: Option<SocketAddr>,
    /// What the cards are: simulated cards need no driver.
    pub cards: CardsAt,
}

/// What a machine is checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Pods: it is a node of a cluster.
    Pods,
    /// `aliquot run` alone.
    LocalRuns,
}

/// Which cards the node has.
#[derive(Clone, Debug)]
pub enum CardsAt {
    /// Simulated ones.
    Simulated(Inventory),
    /// The machine's own; the error says why there are none.
    Machine(Result<MachineAnswer, String>),
}

/// What the drivers of a machine answer.
#[derive(Clone, Debug)]
pub struct MachineAnswer {
    /// The cards.
    pub cards: Inventory,
    /// Why cards or vendors are left out, one line each.
    pub trouble: Vec<String>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// What it comes to.
    pub verdict: CheckVerdict,
    /// What was found.
    pub found: String,
    /// What to do; empty if nothing is to be done.
    pub remedy: String,
}

/// What a check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckVerdict {
    /// As it should be.
    Ok,
    /// This user cannot see it.
    NotChecked,
    /// It works, and something else will not.
    Warning,
    /// Pods with devices fail.
    Failed,
}

// === impl CheckVerdict ===

impl CheckVerdict {
    /// As a word of the answer.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotChecked => "not checked",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

// === impl Finding ===

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: CheckVerdict::Ok, found: found.into(), remedy: String::new() }
    }

    pub(super) fn new(
        check: &'static str,
        verdict: CheckVerdict,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { check, verdict, found: found.into(), remedy: remedy.into() }
    }

    /// Something that this user may not read.
    pub(super) fn unseen(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(
            check,
            CheckVerdict::NotChecked,
            what,
            "run it as root on the node, or in the agent's container",
        )
    }
}
