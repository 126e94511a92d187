//! `aliquot doctor`: is this machine fit for the agent, or for local runs? One finding a check, each with the remedy.
//!
//! ```text
//!  Site: where things are ─▶ host checks (files below a root) ─┐
//!  cluster ─▶ kube::survey ─▶ cluster checks (pure) ───────────┴─▶ findings: ok, warning, failed, not checked
//! ```
//!
//! A machine without a kubelet has the checks of [`Purpose::LocalRuns`]: what `aliquot run` requires.
//!
//! A check never changes anything. What this user cannot see is `not checked`, with what it takes to see it: never `ok`.

mod cluster;
mod disk;
mod driver;
mod host;
mod local;
mod metrics;
mod node_root;
mod policy;
mod runtime;
mod selinux;
mod shim;
mod state;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use aliquot_core::card::Inventory;

pub use cluster::{ClusterSight, judge_cluster};

use node_root::NodeRoot;

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

// === impl Purpose ===

impl Purpose {
    /// That of a machine with its file system at `root`: a kubelet leaves directories on each node.
    #[must_use]
    pub fn of_machine(root: &Path) -> Self {
        match host::is_of_cluster(&NodeRoot::new(root)) {
            true => Self::Pods,
            false => Self::LocalRuns,
        }
    }
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
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: CheckVerdict::Ok, found: found.into(), remedy: String::new() }
    }

    fn new(
        check: &'static str,
        verdict: CheckVerdict,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { check, verdict, found: found.into(), remedy: remedy.into() }
    }

    /// Something that this user may not read.
    fn unseen(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(
            check,
            CheckVerdict::NotChecked,
            what,
            "run it as root on the node, or in the agent's container",
        )
    }
}

/// Every check of the node itself for Pods, in the order in which a Pod needs what they look at.
#[must_use]
pub fn examine(site: &NodePaths) -> Vec<Finding> {
    let root = NodeRoot::new(&site.root);
    vec![
        host::kubelet(site, &root),
        runtime::runtime(site, &root),
        host::owners(site, &root),
        driver::libraries(Purpose::Pods, site, &root),
        driver::devices(Purpose::Pods, site, &root),
        host::permissions(site, &root),
        disk::room_of_agent(site, &root),
        selinux::labels(site, &root),
        policy::accepted(site, &root),
        state::maintenance(site, &root),
        state::claims(site, &root),
        host::sockets(site, &root),
        shim::loadable(),
        metrics::served(site),
    ]
}

/// Every check for local runs, in the order in which `aliquot run` needs what they examine.
#[must_use]
pub fn examine_local(site: &NodePaths) -> Vec<Finding> {
    let root = NodeRoot::new(&site.root);
    vec![
        local::kubernetes(),
        driver::libraries(Purpose::LocalRuns, site, &root),
        driver::devices(Purpose::LocalRuns, site, &root),
        local::state_directory(site, &root),
        disk::room_of_runs(site, &root),
        local::records(site, &root),
        shim::loadable(),
    ]
}
