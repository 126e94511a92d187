//! The lock of the state directory: one process at a time makes changes, and only to the state of its own node.

use std::fs::File;
use std::path::Path;

use aliquot_core::id::NodeName;
use aliquot_core::offer::is_pool_of;
use nix::fcntl::Flock;

use super::parts::OpenError;
use crate::checkpoint::Journal;
use crate::state_dir::Access;
use crate::state_dir::wait::{LockFailure, LockHolder, Note, Role};
use crate::state_dir::{file, wait};

/// Refuses promises of another node: its claims would be made again on cards that never had them. The pool of a device
/// begins with the name of its node.
pub(super) fn must_be_own(state: &Path, node: &NodeName, journal: &Journal) -> Result<(), OpenError> {
    for record in journal.claims.values() {
        let mut pools = record.plan.grants.iter().map(|grant| grant.device.pool.as_str());
        if let Some(pool) = pools.find(|pool| !is_pool_of(node, pool)) {
            let found = pool.rsplit_once('/').map_or(pool, |(node, _)| node).to_owned();
            let (state, claim, expected) = (state.to_owned(), record.plan.name.clone(), node.clone());
            return Err(OpenError::OtherNode { state, claim, found, expected });
        }
    }
    Ok(())
}

/// Keeps other processes from making changes, until the file is dropped. After a second of waiting `slow` is called with the
/// process that holds the lock. The node agent holds it while it runs: then a command is refused at once.
pub(super) fn lock(
    state: &Path,
    access: Access,
    slow: fn(&LockHolder),
) -> Result<Option<Flock<File>>, OpenError> {
    let path = state.join("lock");
    let failed =
        |verb, source| OpenError::State { state: state.to_owned(), verb, path: path.clone(), source };
    let open = || file::to_lock(&path).map_err(|e| failed("open", e));
    // The agent ends at the earliest with its Pod, so a command does not wait for it.
    let unless_agent = |limit| -> Result<Result<Flock<File>, LockFailure>, OpenError> {
        Ok(match wait::try_lock(open()?) {
            Err(LockFailure::Held(holder)) if !holder.is_agent() => wait::lock(open()?, limit, slow),
            tried => tried,
        })
    };
    let (locked, role) = match access {
        Access::Read => return Ok(None),
        Access::Change => (unless_agent(wait::LONGEST)?, Role::Command),
        Access::ChangeNow => (wait::try_lock(open()?), Role::Command),
        Access::ChangeWithin(limit) => (unless_agent(limit)?, Role::Command),
        Access::Own(limit) => (wait::lock(open()?, limit, slow), Role::Agent),
    };
    let lock = locked.map_err(|missed| match missed {
        LockFailure::Held(holder) if holder.is_agent() && role == Role::Command => {
            OpenError::AgentRuns { state: state.to_owned(), holder: holder.to_string() }
        }
        LockFailure::Held(holder) => {
            OpenError::Locked { state: state.to_owned(), holder: holder.to_string() }
        }
        LockFailure::Refused(source) => failed("lock", source),
    })?;
    match Note::own(role).write(&lock) {
        // The lock holds without its note for people; a full disk must not keep any process from releasing.
        Ok(()) | Err(_) => Ok(Some(lock)),
    }
}
