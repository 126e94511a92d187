//! Liveness of a claim's processes: the evidence, and the processes that each kind covers.
//!
//! | evidence | processes that it covers |
//! |---|---|
//! | the grant's usage file | owners of a slot, and processes with memory of an exited owner |
//! | the record's process | the command, in this pid namespace and this boot |
//! | `ALIQUOT_GRANTS` in an environment | processes with an unchanged environment that this process may read |
//! | a lock on `living/<claim uid>` | processes of the run that still have the inherited descriptor open, wherever they run |
//!
//! The lock belongs to an open file description that the command inherits and passes on; the supervisor closes its own copy once
//! the command runs. So the lock covers descendants that overwrote their environment (as `setproctitle` does), run as another user
//! or in another pid namespace. The other evidence covers descendants that closed inherited descriptors.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use crate::region::{self, Life, SeenProcess, USAGE, UsageCopy, UsageFile};

use crate::config::GRANTS_VARIABLE;

/// Greatest part of a process's environment that is read; the kernel's own limit for all arguments is larger, and the supervisor
/// puts its variables first.
const ENVIRONMENT_BYTES_MAX: u64 = 4 << 20;

/// The scope in which a process id is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Where {
    /// The kernel's boot id.
    pub(super) boot: String,
    /// Inode of the pid namespace.
    pub(super) pids: String,
}

/// Liveness evidence of one run.
#[derive(Debug)]
pub(super) struct RunLiveness {
    /// Directory of its claim.
    pub(super) grants: PathBuf,
    /// The file that its processes keep locked; it exists once a command was started.
    pub(super) living: Option<PathBuf>,
    /// Process id and start time of its command.
    pub(super) command: Option<(u32, u64)>,
    /// The scope of that process id; `None`: unknown.
    pub(super) of: Option<Where>,
}

/// State of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Held,
    Free,
    /// The file does not exist or cannot be locked.
    Absent,
}

// === impl Where ===

impl Where {
    /// Of this process.
    pub(super) fn here() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let pids = fs::read_link("/proc/self/ns/pid").ok()?;
        let pids: String = pids.to_str()?.chars().filter(char::is_ascii_digit).collect();
        Some(Self { boot: boot.trim().to_owned(), pids })
    }
}

// === impl RunLiveness ===

impl RunLiveness {
    /// Of a claim without a record.
    pub(super) fn of_claim(grants: PathBuf) -> Self {
        Self { grants, living: None, command: None, of: None }
    }

    /// Whether any process is alive.
    pub(super) fn any_alive(&self) -> bool {
        self.locked() == Lock::Held
            || self.command_lives()
            || self.holds_memory()
            || in_environments(&self.grants).next().is_some()
            || self.is_out_of_sight()
    }

    /// The known process ids of live processes; `None`: no process is alive.
    pub(super) fn live_processes(&self) -> Option<BTreeSet<u32>> {
        let mut pids: BTreeSet<u32> = in_environments(&self.grants).collect();
        pids.extend(self.command.filter(|_| self.command_lives()).map(|(pid, _)| pid));
        let seen = self.books().filter_map(|usage| UsageCopy::of(&usage).ok());
        pids.extend(seen.flat_map(|seen| seen.processes).filter_map(|process| number(&process)));
        if let Some(living) = self.living.as_ref().filter(|_| self.locked() == Lock::Held) {
            pids.extend(processes_with_open(living));
        }
        // Checked last: processes of the list may have exited meanwhile.
        self.any_alive().then_some(pids)
    }

    /// The processes that the kernel's own evidence ties to the run: the recorded command, processes with its grants in their
    /// environment, and those that hold the inherited lock or a process slot's.
    pub(super) fn kernel_known_processes(&self) -> BTreeSet<u32> {
        let mut pids: BTreeSet<u32> = in_environments(&self.grants).collect();
        pids.extend(self.command.filter(|_| self.command_lives()).map(|(pid, _)| pid));
        pids.extend(self.holders().into_iter().flatten());
        if let Some(living) = self.living.as_ref().filter(|_| self.locked() == Lock::Held) {
            pids.extend(processes_with_open(living).filter(|pid| locks_shared(*pid, living)));
        }
        pids
    }

    /// The process ids, as far as they are known, of processes that hold the lock of a process slot; `None`: there is none. The
    /// kernel drops such a lock at the process's end. What a tenant could pretend counts for nothing here: names in slots and
    /// environments.
    pub(super) fn holders(&self) -> Option<BTreeSet<u32>> {
        let seen = self.books().filter_map(|usage| UsageCopy::of(&usage).ok());
        let held = |process: SeenProcess| match process.life {
            Life::Held { pid } => Some(pid),
            Life::Named { .. } | Life::Dead => None,
        };
        let held: Vec<Option<u32>> = seen.flat_map(|seen| seen.processes).filter_map(held).collect();
        (!held.is_empty()).then(|| held.into_iter().flatten().collect())
    }

    fn locked(&self) -> Lock {
        let Some(file) = self.living.as_ref().and_then(|path| open_to_lock(path).ok()) else {
            return Lock::Absent;
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(_) => Lock::Free,
            Err((_, Errno::EWOULDBLOCK)) => Lock::Held,
            // A file system without locks gives no evidence; the other kinds apply.
            Err(_) => Lock::Absent,
        }
    }

    fn command_lives(&self) -> bool {
        let here = self.of.is_none() || self.of == Where::here();
        self.command.is_some_and(|(pid, start)| here && region::start_time(pid) == Some(start))
    }

    /// Whether a command was started in another pid namespace and left no lock. After a reboot it cannot be alive.
    fn is_out_of_sight(&self) -> bool {
        let elsewhere = |of: &Where| Where::here().is_some_and(|here| of.boot == here.boot && *of != here);
        self.command.is_some() && self.of.as_ref().is_some_and(elsewhere) && self.locked() == Lock::Absent
    }

    fn holds_memory(&self) -> bool {
        // An unreadable usage file does not keep the grant: its tenant may have corrupted it.
        let lives = |usage: &PathBuf| UsageFile::open(usage).and_then(|watched| watched.any_alive());
        self.books().any(|usage| lives(&usage).unwrap_or(false))
    }

    fn books(&self) -> impl Iterator<Item = PathBuf> {
        let shares = fs::read_dir(&self.grants).into_iter().flatten().flatten();
        shares.map(|share| share.path().join(USAGE)).filter(|usage| usage.exists())
    }
}

/// Opens a file in a directory that others may write: a symbolic link is not followed, and a pipe does not block.
fn open_to_lock(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // On a network file system an exclusive lock requires a writable descriptor.
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// The process id of a live process, in this pid namespace.
fn number(process: &SeenProcess) -> Option<u32> {
    match process.life {
        Life::Held { pid } | Life::Named { pid } => pid,
        Life::Dead => None,
    }
}

fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

/// Processes that have these grants in their environment.
fn in_environments(grants: &Path) -> impl Iterator<Item = u32> {
    let mut wanted = format!("{GRANTS_VARIABLE}=").into_bytes();
    wanted.extend(grants.as_os_str().as_bytes());
    processes().filter_map(move |(pid, dir)| {
        let mut bytes = Vec::new();
        let file = File::open(dir.join("environ")).ok()?;
        file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        bytes.split(|byte| *byte == 0).any(|entry| entry == wanted).then_some(pid)
    })
}

/// Whether a process has a descriptor of a file with the lock that a run passes on. A command that only tries to lock the file has
/// none.
fn locks_shared(pid: u32, path: &Path) -> bool {
    let Ok(wanted) = path.canonicalize() else { return false };
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let files = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
    let mut infos = files
        .filter(|file| fs::read_link(file.path()).is_ok_and(|target| target == wanted))
        .filter_map(|file| fs::read_to_string(dir.join("fdinfo").join(file.file_name())).ok());
    let locks = |line: &str| line.contains("FLOCK") && line.contains("READ");
    infos.any(|info| info.lines().any(locks))
}

/// Processes that have a file open, if this process may read their descriptors.
fn processes_with_open(path: &Path) -> impl Iterator<Item = u32> {
    let wanted = path.canonicalize().ok();
    let own = std::process::id();
    processes().filter_map(move |(pid, dir)| {
        let files = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        (pid != own && targets.any(|target| Some(&target) == wanted.as_ref())).then_some(pid)
    })
}
