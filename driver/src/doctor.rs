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
mod finding;
mod host;
mod local;
mod metrics;
mod node_root;
mod policy;
mod runtime;
mod selinux;
mod shim;
mod state;

use std::path::Path;

pub use cluster::{ClusterSight, judge_cluster};
pub use finding::{CardsAt, CheckVerdict, Finding, MachineAnswer, NodePaths, Purpose};

use node_root::NodeRoot;

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
