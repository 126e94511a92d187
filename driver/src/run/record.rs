//! Records of local runs: whose claim it is, and whether anybody still runs on it.
//!
//! ```text
//!   <state>/runs/<claim uid>     locked by the supervisor for as long as it lives; says where it runs and which process is
//!                                the command
//!   <state>/living/<claim uid>   locked by the command, and by whatever it starts, for as long as any of them has it open
//! ```
//!
//! The record comes before the claim is prepared and goes after it is released, both while the node is open for changes.
//! So an unlocked record is one whose supervisor died, and whoever has the node open may clean it up ([`sweep`]). It gets its
//! name when its first line is on the disk; the command is a second line, which counts once it is whole. A record that says
//! nothing that we understand is one of which the other signs tell (`signs`).
//!
//! A command may outlive its supervisor, and so may what it started. Their grant stays theirs, as long as any of the signs tells
//! of anybody.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aliquot_core::id::{ClaimUid, NameError};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use crate::disk::{Disk, Mode, TEMP_SUFFIX};
use crate::node::Node;
use crate::prepare::PrepareError;
use crate::region;

use super::signs::{Signs, Where};

/// Environment that tells a process where its grants are.
pub const GRANTS_VARIABLE: &str = "ALIQUOT_GRANTS";
/// Longest record that is read.
const RECORD_BYTES_MAX: u64 = 256;
/// How a file is opened that may be something else.
const LOOK: libc::c_int = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;

/// The record of a run that this process supervises; locked until dropped.
#[derive(Debug)]
pub struct Run {
    /// The claim.
    pub uid: ClaimUid,
    path: PathBuf,
    living: PathBuf,
    file: Flock<File>,
}

/// A record, as whoever has the node open finds it.
#[derive(Debug)]
pub enum Found {
    /// Its supervisor lives: this process, as it numbers itself.
    Supervised(u32),
    /// Its supervisor is gone.
    Left(Left),
}

/// The record of a run whose supervisor is gone; locked until dropped.
#[derive(Debug)]
pub struct Left {
    path: PathBuf,
    living: PathBuf,
    says: Says,
    /// Keeps it ours.
    _file: Flock<File>,
}

/// What a record says.
#[derive(Debug, Default)]
struct Says {
    of: Option<Where>,
    command: Option<(u32, u64)>,
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
    /// What stands where a record belongs is none, or cannot be used: it was passed over.
    Odd(PathBuf, io::Error),
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
        let says = Where::here().map(|of| format!("where {} {}\n", of.boot, of.pids)).unwrap_or_default();
        // Process and start time are unique while the machine runs; the number is for records that outlived it, and for
        // several runs of one process.
        for number in 0_u32.. {
            let uid = ClaimUid::new(format!("run-{pid}-{start}-{number}")).map_err(wrong)?;
            let path = runs.join(uid.as_str());
            // Nobody else makes one while the node is ours.
            if fs::symlink_metadata(&path).is_ok() {
                continue;
            }
            Disk::default().replace(&path, says.as_bytes(), Mode::Private)?;
            let file = Flock::lock(open(&path)?, FlockArg::LockExclusiveNonblock)
                .map_err(|(_, errno)| io::Error::from(errno))?;
            let living = living(state, &uid);
            return Ok(Self { uid, path, living, file });
        }
        Err(io::Error::other("no name is left for this run"))
    }

    /// A locked file, for the command and whatever it starts to have open.
    ///
    /// # Errors
    /// The disk refuses; processes are then found by the other signs alone.
    pub fn sign_of_life(&self) -> io::Result<File> {
        if let Some(dir) = self.living.parent() {
            fs::create_dir_all(dir)?;
        }
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.living);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Nothing can be written through what the command has.
        let file = OpenOptions::new().read(true).custom_flags(LOOK).open(&self.living)?;
        // Until the last who has it open closes it.
        file.try_lock_shared()?;
        Ok(file)
    }

    /// Writes down which process is the command.
    ///
    /// # Errors
    /// The disk refuses; the processes are then found by their environment alone.
    pub fn started(&mut self, pid: u32) -> io::Result<()> {
        let start = region::start_time(pid).unwrap_or(0);
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(format!("command {pid} {start}\n").as_bytes())
    }

    /// Whether anybody of it lives, its supervisor left out. `grants` is the directory of its claim.
    #[must_use]
    pub fn anybody_else_lives(&self, grants: &Path) -> bool {
        let (grants, living) = (grants.to_owned(), Some(self.living.clone()));
        // The command has ended, and its number may be another's.
        Signs { grants, living, command: None, of: None }.anybody()
    }

    /// Forgets the run: its claim is released, or never was. The node is open for changes.
    ///
    /// # Errors
    /// The disk refuses; the next call cleans up.
    pub fn forget(self) -> io::Result<()> {
        forget(&self.path, &self.living)
    }
}

// === impl Left ===

impl Left {
    /// Those of it who live, as far as they can be named; `None`: nobody does.
    #[must_use]
    pub fn who_lives(&self, grants: PathBuf) -> Option<BTreeSet<u32>> {
        self.signs(grants).who()
    }

    /// Forgets the run: its claim is released. The node is open for changes.
    ///
    /// # Errors
    /// The disk refuses; the next call cleans up.
    pub fn forget(self) -> io::Result<()> {
        forget(&self.path, &self.living)
    }

    fn signs(&self, grants: PathBuf) -> Signs {
        let living = Some(self.living.clone());
        Signs { grants, living, command: self.says.command, of: self.says.of.clone() }
    }
}

// === impl Says ===

impl Says {
    /// What the lines say that are whole.
    fn of(text: &str) -> Self {
        let mut says = Self::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["where", boot, pids] => {
                    says.of = Some(Where { boot: (*boot).to_owned(), pids: (*pids).to_owned() });
                }
                // The second form is that of versions that did not say where.
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

/// Whether a claim is that of a local run: it has a record from before it is prepared until after it is released.
pub(crate) fn is_of_a_run(state: &Path, uid: &ClaimUid) -> bool {
    fs::symlink_metadata(directory(state).join(uid.as_str())).is_ok()
}

fn living(state: &Path, uid: &ClaimUid) -> PathBuf {
    state.join("living").join(uid.as_str())
}

/// The record goes last: without it nobody would take the other away.
fn forget(record: &Path, living: &Path) -> io::Result<()> {
    match fs::remove_file(living) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_file(record)
}

/// Opens a record. Anybody's mishap may stand there: a link is not followed, and a pipe keeps nobody waiting.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(LOOK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("no plain file")) }
}

/// The record of a claim; `None`: it is of no run. The node is open for changes.
///
/// # Errors
/// What stands there is no record, or cannot be read.
pub fn find(state: &Path, uid: &ClaimUid) -> io::Result<Option<Found>> {
    let path = directory(state).join(uid.as_str());
    let file = match open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(file) => file,
        Err((_, Errno::EWOULDBLOCK)) => {
            let pid = uid.as_str().strip_prefix("run-").and_then(|rest| rest.split('-').next());
            return Ok(Some(Found::Supervised(pid.and_then(|pid| pid.parse().ok()).unwrap_or(0))));
        }
        // Nobody can tell whether its supervisor lives: that is for whoever reads the reason to mend.
        Err((_, errno)) => return Err(errno.into()),
    };
    let mut bytes = Vec::new();
    Read::by_ref(&mut *file).take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
    let says = Says::of(&String::from_utf8_lossy(&bytes));
    Ok(Some(Found::Left(Left { path, living: living(state, uid), says, _file: file })))
}

/// Those who live of a claim that is of no run, as far as they can be named; `None`: nobody does.
#[must_use]
pub fn who_lives_on(grants: PathBuf) -> Option<BTreeSet<u32>> {
    Signs::of_claim(grants).who()
}

/// Gives back what runs hold whose supervisor and processes are gone. The node is open for changes.
///
/// # Errors
/// The records cannot be listed.
pub fn sweep(node: &mut Node, state: &Path) -> io::Result<Vec<Swept>> {
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
            // Whoever was about to make a record was killed, and has no claim: nobody makes one while the node is ours.
            if let Err(error) = Disk::default().remove_file(&path) {
                swept.push(Swept::Odd(path, error));
            }
            continue;
        }
        let Ok(uid) = ClaimUid::new(name) else { continue };
        match find(state, &uid) {
            Ok(None | Some(Found::Supervised(_))) => {}
            Ok(Some(Found::Left(left))) => swept.push(give_back(node, uid, left)),
            Err(error) => swept.push(Swept::Odd(path, error)),
        }
    }
    Ok(swept)
}

fn give_back(node: &mut Node, uid: ClaimUid, left: Left) -> Swept {
    if left.signs(node.grants_dir().join(uid.as_str())).anybody() {
        return Swept::Running(uid);
    }
    if let Err(error) = node.release(&uid) {
        return Swept::Stuck(uid, Box::new(error));
    }
    let path = left.path.clone();
    match left.forget() {
        Ok(()) => Swept::Released(uid),
        Err(error) => Swept::Odd(path, error),
    }
}
