//! What the state directory says: prepared claims have their CDI files, which a reboot removes until an agent starts; no
//! maintenance keeps the drivers closed.

use aliquot_core::id::ClaimUid;

use super::node_root::{NodeObject, NodeRoot};
use super::{CheckVerdict, Finding, NodePaths};
use crate::checkpoint::MAINTENANCE;

/// Beginning of the UID of a local run, which has no CDI file.
const RUN: &str = "run-";

/// The node is in no maintenance.
pub(super) fn maintenance(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "maintenance";
    let file = site.state.join(MAINTENANCE);
    match root.mode(&file) {
        NodeObject::Absent => Finding::ok(CHECK, "none"),
        NodeObject::Unreadable(error) => Finding::unseen(CHECK, format!("{}: {error}", file.display())),
        NodeObject::Here(_) => Finding::new(
            CHECK,
            CheckVerdict::Warning,
            "the agent has let go of the drivers, and prepares no claims",
            "uncordon the node when the maintenance is over; its agent then opens them again",
        ),
    }
}

/// Every claim with grants has its CDI file.
pub(super) fn claims(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "prepared claims";
    let grants = site.state.join("grants");
    let names = match root.names(&grants) {
        NodeObject::Here(names) => names,
        NodeObject::Absent => return Finding::ok(CHECK, "none"),
        NodeObject::Unreadable(error) => {
            return Finding::unseen(CHECK, format!("{}: {error}", grants.display()));
        }
    };
    let is_claim = |name: &&String| !name.starts_with(RUN) && ClaimUid::new(name.as_str()).is_ok();
    let claims: Vec<&String> = names.iter().filter(is_claim).collect();
    let has_file = |uid: &str| root.exists(&site.cdi.join(format!("aliquot.dev-claim-{uid}.json")));
    let absent: Vec<&&String> = claims.iter().filter(|uid| !has_file(uid)).collect();
    match absent.first() {
        None => Finding::ok(CHECK, format!("{} have their CDI files", claims.len())),
        Some(first) => Finding::new(
            CHECK,
            CheckVerdict::Failed,
            format!(
                "{} of {} have no CDI file in {}, such as claim {first}: their containers cannot start",
                absent.len(),
                claims.len(),
                site.cdi.display()
            ),
            "start the agent, which writes them again; a reboot empties the directory",
        ),
    }
}
