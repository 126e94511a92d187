//! Commands of local runs, by process: a command may clear its environment, and still is of its run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::region::start_time;

use super::record;

/// Commands of the runs of some state directories.
#[derive(Debug, Default)]
pub(crate) struct Commands(BTreeMap<u32, StartedCommand>);

#[derive(Debug)]
struct StartedCommand {
    at: u64,
    grants: PathBuf,
}

// === impl Commands ===

impl Commands {
    /// As the records of these state directories have them. A record that cannot be read has none.
    pub(crate) fn of<'a>(states: impl IntoIterator<Item = &'a Path>) -> Self {
        let recorded = states.into_iter().flat_map(|state| {
            let commands = record::commands(state).into_iter();
            commands.map(|(uid, (pid, at))| {
                (pid, StartedCommand { at, grants: state.join("grants").join(uid.as_str()) })
            })
        });
        Self(recorded.collect())
    }

    /// Directory of the grants of the run that started this process as its command.
    pub(crate) fn grants_of(&self, pid: u32) -> Option<&Path> {
        let started = self.0.get(&pid)?;
        // A later process may have the number.
        (start_time(pid) == Some(started.at)).then_some(started.grants.as_path())
    }
}
