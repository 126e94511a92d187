//! The shim loads: it is preloaded into a process of this very program.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{CheckVerdict, Finding};

/// This very program, also after another version has taken its place on disk.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A directory of this process alone, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("aliquot-doctor-{process}-{number}"));
        // One that another user has put there is not used.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is a file of a temporary directory.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The loader preloads the shim.
pub(super) fn loadable() -> Finding {
    const CHECK: &str = "shim";
    let unseen = |why: String| {
        Finding::new(
            CHECK,
            CheckVerdict::NotChecked,
            why,
            "free space in the temporary directory, or name another in TMPDIR",
        )
    };
    let scratch = match Scratch::new() {
        Ok(scratch) => scratch,
        Err(error) => return unseen(format!("it cannot be put into a temporary directory: {error}")),
    };
    let shim = match aliquot_libraries::install_shim(&scratch.0) {
        Ok(shim) => shim,
        Err(error) => return unseen(format!("it cannot be put into a temporary directory: {error}")),
    };
    match preload(&shim) {
        Ok(None) => Finding::ok(
            CHECK,
            format!("the loader preloads {} of this program", aliquot_libraries::SHIM_NAME),
        ),
        Ok(Some(why)) => Finding::new(
            CHECK,
            CheckVerdict::Failed,
            why,
            "shares would not be enforced: check that the temporary directory allows execution, and report this",
        ),
        Err(error) => unseen(format!("no process can be started: {error}")),
    }
}

/// Why the loader did not take it; `None`: it did.
fn preload(shim: &Path) -> io::Result<Option<String>> {
    let mut command = Command::new(OWN_PROGRAM);
    command.arg("--version").env_clear().env("LD_PRELOAD", shim).stdin(Stdio::null()).stdout(Stdio::null());
    let ended = command.output()?;
    if let Some(signal) = ended.status.signal() {
        return Ok(Some(format!("a process with it ended by signal {signal}")));
    }
    let text = String::from_utf8_lossy(&ended.stderr);
    let told = text.lines().find(|line| line.contains("LD_PRELOAD") || line.contains("preload"));
    Ok(told.map(|line| line.chars().take(200).collect()))
}
