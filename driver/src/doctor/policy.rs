//! The layout policy that the agent was given is in force.

use super::node_root::{NodeObject, NodeRoot};
use super::{CheckVerdict, Finding, NodePaths};
use crate::checkpoint::REFUSED;

/// The agent refused no policy at its last start.
pub(super) fn accepted(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "layout policy";
    match root.text(&site.state.join(REFUSED)) {
        NodeObject::Absent => Finding::ok(CHECK, "the agent refused none"),
        NodeObject::Here(why) => Finding::new(
            CHECK,
            CheckVerdict::Warning,
            why.trim(),
            "correct it until `aliquot policy --check FILE` ends with 0, and install it again",
        ),
        NodeObject::Unreadable(error) => Finding::unseen(CHECK, format!("{}: {error}", site.state.display())),
    }
}
