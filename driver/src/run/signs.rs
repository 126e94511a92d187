//! Who of a claim lives: what tells, and how much.
//!
//! | sign | whom it shows |
//! |---|---|
//! | the grant's books | whoever has a slot, or memory of one that had |
//! | the record's process | the command, in this pid namespace and since this start of the machine |
//! | `ALIQUOT_GRANTS` in an environment | whoever can be seen from here, is ours to look at, and left its environment as it was |
//! | a lock on `living/<claim uid>` | whoever of the run has the descriptor that the command was given, wherever it runs |
//!
//! The lock is of an open file description that the command inherits and hands on, while ours goes as soon as the command
//! is there. So it tells of descendants that overwrote their environment (as `setproctitle` does), run as another user or in
//! another pid namespace; the other signs tell of those that closed what they did not open.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use crate::region::{self, Life, Seen, SeenProcess, USAGE, Watched};

use super::record::GRANTS_VARIABLE;

/// Most of a process's environment that is looked at; the kernel's own bound for all arguments is larger, and ours come
/// first.
const ENVIRONMENT_BYTES_MAX: u64 = 4 << 20;

/// Where a process number means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Where {
    /// The kernel's name for this start of the machine.
    pub(super) boot: String,
    /// Inode of the pid namespace.
    pub(super) pids: String,
}

/// What a run left that tells who of it lives.
#[derive(Debug)]
pub(super) struct Signs {
    /// Directory of its claim.
    pub(super) grants: PathBuf,
    /// The file that its processes keep locked; there once a command was started.
    pub(super) living: Option<PathBuf>,
    /// Its command's number and start time.
    pub(super) command: Option<(u32, u64)>,
    /// Where that number means something; `None`: nobody says.
    pub(super) of: Option<Where>,
}

/// What the lock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Held,
    Free,
    /// There is none.
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

// === impl Signs ===

impl Signs {
    /// Of a claim of which nothing else is known.
    pub(super) fn of_claim(grants: PathBuf) -> Self {
        Self { grants, living: None, command: None, of: None }
    }

    /// Whether anybody lives.
    pub(super) fn anybody(&self) -> bool {
        self.locked() == Lock::Held
            || self.command_lives()
            || self.holds_memory()
            || in_environments(&self.grants).next().is_some()
            || self.is_out_of_sight()
    }

    /// Those who live, as far as they can be named; `None`: nobody does.
    pub(super) fn who(&self) -> Option<BTreeSet<u32>> {
        let mut pids: BTreeSet<u32> = in_environments(&self.grants).collect();
        pids.extend(self.command.filter(|_| self.command_lives()).map(|(pid, _)| pid));
        let seen = self.books().filter_map(|usage| Seen::of(&usage).ok());
        pids.extend(seen.flat_map(|seen| seen.processes).filter_map(|process| number(&process)));
        if let Some(living) = self.living.as_ref().filter(|_| self.locked() == Lock::Held) {
            pids.extend(who_has_open(living));
        }
        // The last look is the one that counts: whoever was named may be gone.
        self.anybody().then_some(pids)
    }

    fn locked(&self) -> Lock {
        let Some(file) = self.living.as_ref().and_then(|path| open_to_lock(path).ok()) else {
            return Lock::Absent;
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(_) => Lock::Free,
            Err((_, Errno::EWOULDBLOCK)) => Lock::Held,
            // A file system without locks tells of nobody; the other signs do.
            Err(_) => Lock::Absent,
        }
    }

    fn command_lives(&self) -> bool {
        let here = self.of.is_none() || self.of == Where::here();
        self.command.is_some_and(|(pid, start)| here && region::start_time(pid) == Some(start))
    }

    /// Whether a command was started where we do not see it, and left no lock to be asked. After another start of the machine
    /// there is none.
    fn is_out_of_sight(&self) -> bool {
        let elsewhere = |of: &Where| Where::here().is_some_and(|here| of.boot == here.boot && *of != here);
        self.command.is_some() && self.of.as_ref().is_some_and(elsewhere) && self.locked() == Lock::Absent
    }

    fn holds_memory(&self) -> bool {
        // What cannot be looked at cannot be held either: a usage file that its tenant spoilt keeps nobody's grant.
        let lives = |usage: &PathBuf| Watched::open(usage).and_then(|watched| watched.anybody_lives());
        self.books().any(|usage| lives(&usage).unwrap_or(false))
    }

    fn books(&self) -> impl Iterator<Item = PathBuf> {
        let shares = fs::read_dir(&self.grants).into_iter().flatten().flatten();
        shares.map(|share| share.path().join(USAGE)).filter(|usage| usage.exists())
    }
}

/// Opens a file that whoever may write its directory may have put there: no link is followed, and a pipe keeps nobody waiting.
fn open_to_lock(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // Over a network a lock that is nobody else's wants a file that may be written.
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// Of one that lives, as seen from here.
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

/// Processes that have a file open, as far as we may see what they have open.
fn who_has_open(path: &Path) -> impl Iterator<Item = u32> {
    let wanted = path.canonicalize().ok();
    let own = std::process::id();
    processes().filter_map(move |(pid, dir)| {
        let files = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        (pid != own && targets.any(|target| Some(&target) == wanted.as_ref())).then_some(pid)
    })
}
