//! `aliquot demo --cluster`: the demo of a checkout's `tests/cluster`, which brings a real Kubernetes up on this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::failure::{CommandAnswer, Failure};

/// The program of a checkout that starts the cluster, shows Pods and takes the cluster down.
const SCRIPT: &str = "tests/cluster/demo";

/// Whether the cluster is brought up or taken down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Start it and show Pods with parts of cards.
    Up,
    /// End everything.
    Down,
}

pub(super) fn run(way: Move) -> Result<CommandAnswer, Failure> {
    let advice = "Check the current directory";
    let here =
        std::env::current_dir().map_err(|source| Failure::path("find", Path::new("."), source, advice))?;
    let script = script_of(&here).ok_or_else(|| {
        Failure::Usage(format!(
            "--cluster: found no {SCRIPT} in {} or above, expected a checkout of Aliquot; run the command in one",
            here.display()
        ))
    })?;
    let arguments: Vec<OsString> = match way {
        Move::Down => vec!["--down".into()],
        Move::Up => {
            let own = std::env::current_exe()
                .map_err(|source| Failure::path("find", Path::new("aliquot"), source, advice))?;
            vec!["--agent".into(), own.into_os_string()]
        }
    };
    let status = Command::new(&script)
        .args(arguments)
        .status()
        .map_err(|source| Failure::path("run", &script, source, "Check that it may be executed"))?;
    if status.success() {
        return Ok(CommandAnswer::Yes);
    }
    Err(Failure::Node(format!(
        "{}: found {status}, expected success; see the message above",
        script.display()
    )))
}

/// The script in a directory or in one above.
fn script_of(directory: &Path) -> Option<PathBuf> {
    directory.ancestors().map(|directory| directory.join(SCRIPT)).find(|script| script.is_file())
}
