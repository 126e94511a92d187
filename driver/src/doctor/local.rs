//! A machine without Kubernetes: the state of its local runs can be written and read, and programs load the shim from there.

use std::io;
use std::path::PathBuf;

use nix::unistd::{AccessFlags, geteuid};

use super::node_root::{NodeObject, NodeRoot, permitted};
use super::{CheckVerdict, Finding, NodePaths};
use crate::checkpoint::{CardHealth, JournalFile};
use crate::disk::Disk;
use crate::error_text::chain;
use crate::state_dir;
use crate::state_dir::loading::load_obstacle;

const STATE: &str = "state directory";
/// The remedy where this user cannot have a directory.
const ELSEWHERE: &str = "name another directory with --state, here and for `aliquot run`";

/// The state directory, or the nearest directory above it.
enum StatePlace {
    Made(PathBuf),
    Above(PathBuf),
}

/// Why these checks apply.
pub(super) fn kubernetes() -> Finding {
    Finding::ok(
        "kubernetes",
        "not on this machine: these checks are for `aliquot run`; --node-name adds those of a node",
    )
}

/// The state directory is this user's own, or can be made, and programs load the shim from it.
pub(super) fn state_directory(site: &NodePaths, root: &NodeRoot) -> Finding {
    let failed = |found: String| Finding::new(STATE, CheckVerdict::Failed, found, ELSEWHERE);
    let place = match place(site, root) {
        Ok(place) => place,
        Err(finding) => return finding,
    };
    let (path, found) = match &place {
        StatePlace::Made(path) => (path, "is this user's, and programs load the shim from it"),
        StatePlace::Above(path) => (path, "is made by the first run"),
    };
    if let StatePlace::Made(path) = &place
        && let Err(error) = state_dir::check(path)
    {
        return Finding::new(
            STATE,
            CheckVerdict::Failed,
            chain(&error),
            "`aliquot run` refuses it until then",
        );
    }
    match permitted(path, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(true) => {}
        Ok(false) => {
            let user = geteuid();
            return failed(format!("{}: found no write permission for user {user}", path.display()));
        }
        Err(error) => return Finding::unseen(STATE, format!("{}: {error}", path.display())),
    }
    match load_obstacle(path) {
        Ok(None) => Finding::ok(STATE, format!("{} {found}", site.state.display())),
        Ok(Some(obstacle)) => failed(format!("{}: {obstacle}", site.state.display())),
        Err(error) => Finding::unseen(STATE, format!("{}: {error}", path.display())),
    }
}

/// What is there of the state directory.
fn place(site: &NodePaths, root: &NodeRoot) -> Result<StatePlace, Finding> {
    for dir in site.state.ancestors() {
        let unseen = |error: io::Error| Finding::unseen(STATE, format!("{}: {error}", dir.display()));
        match root.owner(dir) {
            NodeObject::Here(_) if dir == site.state => {
                return Ok(StatePlace::Made(root.find(dir).map_err(unseen)?));
            }
            NodeObject::Here(_) => return Ok(StatePlace::Above(root.find(dir).map_err(unseen)?)),
            // The root of a host that is not there is no file.
            NodeObject::Absent if dir.parent().is_some() && root.exists(dir) => {
                let found = format!("{}: found a file, expected a directory", dir.display());
                return Err(Finding::new(STATE, CheckVerdict::Failed, found, ELSEWHERE));
            }
            NodeObject::Absent => {}
            NodeObject::Unreadable(error) => return Err(unseen(error)),
        }
    }
    Err(Finding::unseen(STATE, format!("{}: found no directory above it", site.state.display())))
}

/// The records of promised parts and of unhealthy cards can be read: without them no run starts.
pub(super) fn records(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "records";
    let Ok(StatePlace::Made(dir)) = place(site, root) else {
        return Finding::ok(CHECK, "none yet");
    };
    let refused = |why: String| Finding::new(CHECK, CheckVerdict::Failed, why, "no run starts before that");
    if let NodeObject::Here(false) = root.permits(&site.state.join("journal"), AccessFlags::R_OK) {
        return Finding::unseen(
            CHECK,
            format!("{}: no permission to read it", dir.join("journal").display()),
        );
    }
    if let Err(error) = CardHealth::load(&dir.join("health")) {
        return refused(chain(&error));
    }
    match JournalFile::new(dir.join("journal"), Disk::default()).load() {
        Err(error) => refused(chain(&error)),
        Ok(None) => Finding::ok(CHECK, "none yet"),
        Ok(Some(found)) => {
            Finding::ok(CHECK, format!("{} claims hold parts of cards", found.journal.claims.len()))
        }
    }
}
