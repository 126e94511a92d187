//! Records of local runs: whose claim it is, and whether anybody still runs on it.
//!
//! ```text
//!   <state>/runs/<claim uid>     locked by the supervisor for as long as it lives; says which process is the command
//! ```
//!
//! The record comes before the claim is prepared and goes after it is released, both while the node is open for changes.
//! So an unlocked record is one whose supervisor died, and whoever has the node open may clean it up ([`sweep`]).
//!
//! A command may outlive its supervisor, and so may what it started. Their grant stays theirs: anybody counts who is
//! the command itself, who has the run's grants in its environment, or who holds memory in the run's books.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use aliquot_core::id::{ClaimUid, NameError};
use nix::fcntl::{Flock, FlockArg};

use crate::node::Node;
use crate::prepare::PrepareError;
use crate::region::{self, USAGE, Watched};

/// Environment that tells a process where its grants are.
pub const GRANTS_VARIABLE: &str = "ALIQUOT_GRANTS";
/// Longest record that is read.
const RECORD_BYTES_MAX: u64 = 256;
/// Most of a process's environment that is looked at; the kernel's own bound for all arguments is larger, and ours come
/// first.
const ENVIRONMENT_BYTES_MAX: u64 = 4 << 20;

/// The record of a run that this process supervises; locked until dropped.
#[derive(Debug)]
pub struct Run {
    /// The claim.
    pub uid: ClaimUid,
    path: PathBuf,
    file: Flock<File>,
}

/// What became of a run whose supervisor is gone.
#[derive(Debug)]
pub enum Swept {
    /// Nobody ran any more; what it held is given back.
    Released(ClaimUid),
    /// Processes of it still run: it keeps what it holds.
    Running(ClaimUid),
    /// It cannot be given back now; the next call tries again.
    Stuck(ClaimUid, Box<PrepareError>),
}

// === impl Run ===

impl Run {
    /// Makes and locks the record of a new run. The node is open for changes.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn register(state: &Path) -> io::Result<Self> {
        let runs = directory(state);
        fs::create_dir_all(&runs)?;
        let pid = std::process::id();
        let start = region::start_time(pid).unwrap_or(0);
        let wrong = |error: NameError| io::Error::other(error);
        // Process and start time are unique while the machine runs; the number is for records that outlived it, and for
        // several runs of one process.
        for number in 0_u32.. {
            let uid = ClaimUid::new(format!("run-{pid}-{start}-{number}")).map_err(wrong)?;
            let path = runs.join(uid.as_str());
            match OpenOptions::new().read(true).write(true).create_new(true).mode_private().open(&path) {
                Ok(file) => {
                    let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                        .map_err(|(_, errno)| io::Error::from(errno))?;
                    return Ok(Self { uid, path, file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no name is left for this run"))
    }

    /// Writes down which process is the command.
    ///
    /// # Errors
    /// The disk refuses; the processes are then found by their environment alone.
    pub fn started(&mut self, pid: u32) -> io::Result<()> {
        let start = region::start_time(pid).unwrap_or(0);
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(format!("{pid} {start}\n").as_bytes())
    }

    /// Forgets the run: its claim is released, or never was. The node is open for changes.
    ///
    /// # Errors
    /// The disk refuses; the next call cleans up.
    pub fn forget(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// A file for its owner alone.
trait Private {
    fn mode_private(&mut self) -> &mut Self;
}

impl Private for OpenOptions {
    fn mode_private(&mut self) -> &mut Self {
        std::os::unix::fs::OpenOptionsExt::mode(self, 0o600)
    }
}

fn directory(state: &Path) -> PathBuf {
    state.join("runs")
}

/// Gives back what runs hold whose supervisor and processes are gone. The node is open for changes.
///
/// # Errors
/// The records cannot be listed or removed.
pub fn sweep(node: &mut Node, state: &Path) -> io::Result<Vec<Swept>> {
    let entries = match fs::read_dir(directory(state)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut swept = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(uid) = name.and_then(|name| ClaimUid::new(name).ok()) else { continue };
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let Ok(mut file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
        let mut text = String::new();
        Read::by_ref(&mut *file).take(RECORD_BYTES_MAX).read_to_string(&mut text)?;
        if anybody_lives(&node.grants_dir().join(uid.as_str()), command(&text)) {
            swept.push(Swept::Running(uid));
            continue;
        }
        match node.release(&uid) {
            Ok(_) => {
                fs::remove_file(&path)?;
                swept.push(Swept::Released(uid));
            }
            Err(error) => swept.push(Swept::Stuck(uid, Box::new(error))),
        }
    }
    Ok(swept)
}

/// Pid and start time of a record; `None`: no command was started, or what is there is not ours.
fn command(text: &str) -> Option<(u32, u64)> {
    let (pid, start) = text.trim_end().split_once(' ')?;
    Some((pid.parse().ok()?, start.parse().ok()?))
}

/// Whether any process of a run lives. `grants` is the directory of its claim.
#[must_use]
pub fn anybody_lives(grants: &Path, command: Option<(u32, u64)>) -> bool {
    let is_command = |(pid, start): (u32, u64)| region::start_time(pid) == Some(start);
    command.is_some_and(is_command) || holds_memory(grants) || is_in_an_environment(grants)
}

fn holds_memory(grants: &Path) -> bool {
    let shares = fs::read_dir(grants).into_iter().flatten().flatten();
    let mut usage = shares.map(|share| share.path().join(USAGE)).filter(|usage| usage.exists());
    // What cannot be looked at cannot be held either: a usage file that its tenant spoilt keeps nobody's grant.
    usage.any(|usage| Watched::open(&usage).and_then(|watched| watched.anybody_lives()).unwrap_or(false))
}

fn is_in_an_environment(grants: &Path) -> bool {
    let mut wanted = format!("{GRANTS_VARIABLE}=").into_bytes();
    wanted.extend(grants.as_os_str().as_bytes());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter(|entry| entry.file_name().as_bytes().first().is_some_and(u8::is_ascii_digit));
    let mut environments = pids.filter_map(|entry| {
        let mut bytes = Vec::new();
        let file = File::open(entry.path().join("environ")).ok()?;
        file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    });
    environments.any(|bytes| bytes.split(|byte| *byte == 0).any(|entry| entry == wanted))
}
