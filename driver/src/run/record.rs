//! Records of local runs: the owner of a claim, and whether processes still run on it.
//!
//! ```text
//!   <state>/runs/<claim uid>     locked by the supervisor until it exits; names boot, pid namespace and the command
//!   <state>/living/<claim uid>   locked by the command and its descendants, as long as one of them has it open
//! ```
//!
//! The record is created before the claim is prepared and removed after its release, both while the node is open for changes.
//! So an unlocked record has lost its supervisor, and the next process that opens the node for changes may clean it up ([`sweep`]).
//! The record gets its name once its first line is on the disk. The second line names the command, and counts once it is
//! complete. If a record cannot be parsed, the other liveness checks apply (`liveness`).
//!
//! A command and its descendants may outlive the supervisor. They keep the grant as long as any liveness check finds a process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use aliquot_core::id::{ClaimUid, NameError};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::disk::{Disk, Mode, TEMP_SUFFIX};
use crate::node::{Node, NodeService};
use crate::prepare::{PrepareError, ReleaseOutcome};
use crate::region;
use crate::state_dir::{file, wait};

use super::liveness::{RunLiveness, Where};

/// Longest record that is read.
const RECORD_BYTES_MAX: u64 = 256;

/// The record of a run that this process supervises; locked until dropped.
#[derive(Debug)]
pub struct Run {
    /// The claim.
    pub uid: ClaimUid,
    path: PathBuf,
    living: PathBuf,
    file: Flock<File>,
}

/// A record, as a process reads it while it has the node open.
#[derive(Debug)]
pub enum RecordState {
    /// Its supervisor is alive: its process id, in its own pid namespace.
    Supervised(u32),
    /// Its supervisor has exited.
    Left(OrphanedRun),
}

/// The record of a run without a supervisor; locked until dropped.
#[derive(Debug)]
pub struct OrphanedRun {
    path: PathBuf,
    living: PathBuf,
    says: Says,
    /// Keeps the lock.
    _file: Flock<File>,
}

/// The live processes of a run, as a process reads them beside it.
#[derive(Debug)]
pub struct RunProcesses {
    /// Its supervisor.
    pub supervisor: Option<u32>,
    /// All others that can be named.
    pub others: BTreeSet<u32>,
    /// Whether process ids of its record are valid here.
    pub in_sight: bool,
}

/// The content of a record.
#[derive(Debug, Default)]
struct Says {
    of: Option<Where>,
    command: Option<(u32, u64)>,
}

/// The result of cleaning up a run without a supervisor.
#[derive(Debug)]
pub enum SweepOutcome {
    /// No process of it was alive; its claim is released.
    Released(ClaimUid),
    /// Processes of it are alive: it keeps its claim.
    Running(ClaimUid),
    /// Its claim cannot be released now; the next call tries again.
    Stuck(ClaimUid, Box<PrepareError>),
    /// The entry is no record, or cannot be used: it was skipped.
    Odd(PathBuf, io::Error),
}

// === impl Run ===

impl Run {
    /// Creates and locks the record of a new run. The node is open for changes.
    ///
    /// # Errors
    /// The record cannot be written or locked.
    pub fn register(state: &Path) -> io::Result<Self> {
        let runs = directory(state);
        file::make_dirs(&runs)?;
        let pid = std::process::id();
        let start = region::start_time(pid).unwrap_or(0);
        let wrong = |error: NameError| io::Error::other(error);
        let says = Where::here().map(|of| format!("where {} {}\n", of.boot, of.pids)).unwrap_or_default();
        // Process id and start time are unique within one boot. The number serves records of an earlier boot, and several
        // runs of one process.
        for number in 0_u32.. {
            let uid = ClaimUid::new(format!("run-{pid}-{start}-{number}")).map_err(wrong)?;
            let path = runs.join(uid.as_str());
            // No other process creates one while this process has the node open.
            if fs::symlink_metadata(&path).is_ok() {
                continue;
            }
            Disk::default().replace(&path, says.as_bytes(), Mode::Private)?;
            let file = wait::try_lock(file::to_change(&path)?)?;
            let living = living(state, &uid);
            return Ok(Self { uid, path, living, file });
        }
        Err(io::Error::other("no name is left for this run"))
    }

    /// A locked file, to be kept open by the command and its descendants.
    ///
    /// # Errors
    /// The file cannot be created or locked; the other liveness checks then apply alone.
    pub fn sign_of_life(&self) -> io::Result<File> {
        if let Some(dir) = self.living.parent() {
            file::make_dirs(dir)?;
        }
        drop(file::to_lock(&self.living)?);
        // Read-only: the command inherits this descriptor.
        let file = file::to_read(&self.living)?;
        // Held until the last process with this description closes it.
        file.try_lock_shared()?;
        Ok(file)
    }

    /// Records the command's process.
    ///
    /// # Errors
    /// The record cannot be written; the other liveness checks then apply alone.
    pub fn started(&mut self, pid: u32) -> io::Result<()> {
        let start = region::start_time(pid).unwrap_or(0);
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(format!("command {pid} {start}\n").as_bytes())
    }

    /// Whether any process of it but the supervisor is alive. `grants` is the directory of its claim.
    #[must_use]
    pub fn has_other_live_process(&self, grants: &Path) -> bool {
        let (grants, living) = (grants.to_owned(), Some(self.living.clone()));
        // The command has ended, and its process id may be reused.
        RunLiveness { grants, living, command: None, of: None }.any_alive()
    }

    /// Removes the record: its claim is released, or was never prepared. The node is open for changes.
    ///
    /// # Errors
    /// A file cannot be removed; the next sweep does it.
    pub fn forget(self) -> io::Result<()> {
        forget(&self.path, &self.living)
    }
}

// === impl OrphanedRun ===

impl OrphanedRun {
    /// The known process ids of its live processes; `None`: no process is alive.
    #[must_use]
    pub fn live_processes(&self, grants: PathBuf) -> Option<BTreeSet<u32>> {
        self.liveness(grants).live_processes()
    }

    /// Removes the record: its claim is released. The node is open for changes.
    ///
    /// # Errors
    /// A file cannot be removed; the next sweep does it.
    pub fn forget(self) -> io::Result<()> {
        forget(&self.path, &self.living)
    }

    fn liveness(&self, grants: PathBuf) -> RunLiveness {
        let living = Some(self.living.clone());
        RunLiveness { grants, living, command: self.says.command, of: self.says.of.clone() }
    }
}

// === impl Says ===

impl Says {
    fn read(file: &mut File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        Read::by_ref(file).take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(Self::of(&String::from_utf8_lossy(&bytes)))
    }

    /// Parses the complete lines.
    fn of(text: &str) -> Self {
        let mut says = Self::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["where", boot, pids] => {
                    says.of = Some(Where { boot: (*boot).to_owned(), pids: (*pids).to_owned() });
                }
                // The second form has no boot and pid namespace beside it.
                ["command", pid, start] | [pid, start] => {
                    says.command = pid.parse().ok().zip(start.parse().ok()).or(says.command);
                }
                _ => {}
            }
        }
        says
    }
}

fn directory(state: &Path) -> PathBuf {
    state.join("runs")
}

fn living(state: &Path, uid: &ClaimUid) -> PathBuf {
    state.join("living").join(uid.as_str())
}

/// The commands of a state directory's runs, by claim: process id and start time of each. A record of another boot or pid namespace
/// names no process of this one.
pub(super) fn commands(state: &Path) -> Vec<(ClaimUid, (u32, u64))> {
    let here = Where::here();
    let entries = fs::read_dir(directory(state)).into_iter().flatten().flatten();
    let command = |entry: fs::DirEntry| {
        let uid = ClaimUid::new(entry.file_name().to_str()?).ok()?;
        let says = Says::read(&mut file::to_read(&entry.path()).ok()?).ok()?;
        let is_here = says.of.is_none() || says.of == here;
        Some((uid, says.command.filter(|_| is_here)?))
    };
    entries.filter_map(command).collect()
}

/// The record is removed last: without it no sweep would remove the other file.
fn forget(record: &Path, living: &Path) -> io::Result<()> {
    match fs::remove_file(living) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_file(record)
}

/// The record of a claim; `None`: it is of no run. The node is open for changes.
///
/// # Errors
/// The entry is no plain file, or cannot be read or locked.
pub fn find(state: &Path, uid: &ClaimUid) -> io::Result<Option<RecordState>> {
    let path = directory(state).join(uid.as_str());
    let file = match file::to_change(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(file) => file,
        Err((_, Errno::EWOULDBLOCK)) => {
            return Ok(Some(RecordState::Supervised(supervisor_in(uid).map_or(0, |(pid, _)| pid))));
        }
        // The liveness of its supervisor is unknown: the administrator must remove the cause.
        Err((_, errno)) => return Err(errno.into()),
    };
    let says = Says::read(&mut file)?;
    Ok(Some(RecordState::Left(OrphanedRun { path, living: living(state, uid), says, _file: file })))
}

/// The live processes of a run, without its locks; `None`: all have ended. Names that a tenant wrote do not count.
///
/// # Errors
/// The record cannot be read.
pub fn processes(state: &Path, uid: &ClaimUid, grants: PathBuf) -> io::Result<Option<RunProcesses>> {
    let path = directory(state).join(uid.as_str());
    let says = match file::to_read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Says::default(),
        file => Says::read(&mut file?)?,
    };
    let in_sight = says.of.is_none() || says.of == Where::here();
    let (pid, start) = supervisor_in(uid).unzip();
    let lives = |pid: &u32| in_sight && region::start_time(*pid) == start;
    let supervisor = pid.filter(lives);
    let (command, of) = (says.command, says.of);
    let liveness = RunLiveness { grants, living: Some(living(state, uid)), command, of };
    let mut others = liveness.kernel_known_processes();
    if let Some(pid) = supervisor {
        others.remove(&pid);
    }
    let any = supervisor.is_some() || !others.is_empty() || liveness.any_alive();
    Ok(any.then_some(RunProcesses { supervisor, others, in_sight }))
}

/// Process id and start time of the supervisor, which a run's UID has.
fn supervisor_in(uid: &ClaimUid) -> Option<(u32, u64)> {
    let mut numbers = uid.as_str().strip_prefix("run-")?.split('-');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The known process ids of live processes of a claim without a run; `None`: no process is alive.
#[must_use]
pub fn live_processes_of_claim(grants: PathBuf) -> Option<BTreeSet<u32>> {
    RunLiveness::of_claim(grants).live_processes()
}

/// The process ids, as far as they are known, of live processes that hold a process slot of a claim's grants; `None`: there is
/// none. A tenant cannot pretend one that outlives its containers.
#[must_use]
pub fn holders_of_claim(grants: PathBuf) -> Option<BTreeSet<u32>> {
    RunLiveness::of_claim(grants).holders()
}

/// The node that runs' claims go back to; this process has it open for changes.
pub trait Releases {
    /// Directory of grants.
    fn grants_dir(&self) -> &Path;

    /// Gives a claim back.
    ///
    /// # Errors
    /// [`PrepareError`]; the journal has what is left to undo.
    fn release(&mut self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError>;
}

impl Releases for Node {
    fn grants_dir(&self) -> &Path {
        Self::grants_dir(self)
    }

    fn release(&mut self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        Self::release(self, uid)
    }
}

impl Releases for &NodeService {
    fn grants_dir(&self) -> &Path {
        NodeService::grants_dir(self)
    }

    fn release(&mut self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        NodeService::release(self, uid)
    }
}

/// Releases the claims of runs without a live supervisor or process. The node is open for changes.
///
/// # Errors
/// The records cannot be listed.
pub fn sweep(node: &mut impl Releases, state: &Path) -> io::Result<Vec<SweepOutcome>> {
    let entries = match fs::read_dir(directory(state)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut swept = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.strip_suffix(TEMP_SUFFIX).is_some_and(|name| ClaimUid::new(name).is_ok()) {
            // A supervisor was killed before its record had a name, and has no claim: no other process creates a record while this
            // one has the node open.
            if let Err(error) = Disk::default().remove_file(&path) {
                swept.push(SweepOutcome::Odd(path, error));
            }
            continue;
        }
        let Ok(uid) = ClaimUid::new(name) else { continue };
        match find(state, &uid) {
            Ok(None | Some(RecordState::Supervised(_))) => {}
            Ok(Some(RecordState::Left(left))) => swept.push(give_back(node, uid, left)),
            Err(error) => swept.push(SweepOutcome::Odd(path, error)),
        }
    }
    Ok(swept)
}

fn give_back(node: &mut impl Releases, uid: ClaimUid, left: OrphanedRun) -> SweepOutcome {
    if left.liveness(node.grants_dir().join(uid.as_str())).any_alive() {
        return SweepOutcome::Running(uid);
    }
    if let Err(error) = node.release(&uid) {
        return SweepOutcome::Stuck(uid, Box::new(error));
    }
    let path = left.path.clone();
    match left.forget() {
        Ok(()) => SweepOutcome::Released(uid),
        Err(error) => SweepOutcome::Odd(path, error),
    }
}
