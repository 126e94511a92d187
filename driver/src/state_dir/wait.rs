//! Waits for a lock of the state directory: for a bounded time, and not in silence.
//!
//! ```text
//!   0 s        1 s                              limit
//!   ├─ blocks ─┼─ `slow` hears of the holder ─┬─┤ gives up, names the holder
//!                                             └─ locked
//! ```

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Longest wait of a command for a lock of the state.
pub const LONGEST: Duration = Duration::from_secs(30);
/// A shorter wait is not reported.
const SLOW: Duration = Duration::from_secs(1);
/// Longest command that is shown of a holder.
const COMMAND_BYTES_MAX: u64 = 4096;
const COMMAND_CHARS_MAX: usize = 60;
/// Longest note that is read.
const NOTE_BYTES_MAX: u64 = 32;
/// Most readings of the kernel's table for one holder.
const READINGS_MAX: usize = 10;
/// Second line of the agent's note.
const AGENT: &str = "agent";

/// What the holder writes into the locked file: its process id, and `agent` on a second line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    pid: u32,
    role: Role,
}

/// The process that holds a lock, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    pid: Option<u32>,
    command: Option<String>,
    role: Role,
}

/// How long a process holds the lock of the state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// For one change.
    Command,
    /// While it runs: the node agent.
    Agent,
}

/// Why a lock was not obtained.
#[derive(Debug)]
pub enum LockFailure {
    /// Another process holds it.
    Held(LockHolder),
    /// The kernel refuses.
    Refused(io::Error),
}

type LockAttempt = Result<Flock<File>, (File, Errno)>;

/// Locks the file, or gives up at once.
///
/// # Errors
/// [`LockFailure`].
pub fn try_lock(file: File) -> Result<Flock<File>, LockFailure> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(missed)
}

/// Locks the file in the order in which processes began to wait, or gives up after `limit`. After a second `slow` is called
/// with the holder.
///
/// # Errors
/// [`LockFailure`].
pub fn lock(file: File, limit: Duration, slow: impl FnOnce(&LockHolder)) -> Result<Flock<File>, LockFailure> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Err((file, Errno::EWOULDBLOCK)) => file,
        ended => return ended.map_err(missed),
    };
    let again = file.try_clone().map_err(LockFailure::Refused)?;
    let waiting = waiter(again).map_err(LockFailure::Refused)?;
    let early = SLOW.min(limit);
    if let Ok(ended) = waiting.recv_timeout(early) {
        return ended.map_err(missed);
    }
    if limit > early {
        slow(&LockHolder::of(&file));
        if let Ok(ended) = waiting.recv_timeout(limit - early) {
            return ended.map_err(missed);
        }
    }
    Err(LockFailure::Held(LockHolder::of(&file)))
}

/// A thread that blocks until it has the lock. If the caller gave up meanwhile, the lock is dropped at once.
fn waiter(file: File) -> io::Result<Receiver<LockAttempt>> {
    let (sender, receiver) = mpsc::channel();
    let wait = move || drop(sender.send(uninterrupted(file)));
    thread::Builder::new().name("aliquot-lock".to_owned()).spawn(wait)?;
    Ok(receiver)
}

/// A signal that is handled is no reason to stop waiting.
fn uninterrupted(mut file: File) -> LockAttempt {
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusive) {
            Err((file, Errno::EINTR)) => file,
            ended => return ended,
        };
    }
}

fn missed((file, errno): (File, Errno)) -> LockFailure {
    match errno {
        Errno::EWOULDBLOCK => LockFailure::Held(LockHolder::of(&file)),
        errno => LockFailure::Refused(errno.into()),
    }
}

// === impl LockHolder ===

impl LockHolder {
    /// The holder of a file's lock: as the kernel says, else as a holder wrote into the file.
    fn of(file: &File) -> Self {
        let holder = file
            .metadata()
            .ok()
            .and_then(|found| of_kernel(found.ino(), || fs::read_to_string("/proc/locks").ok()));
        // A holder writes its note after it has the lock: until then the note is that of an earlier holder.
        let own = |note: &Note| holder.is_none_or(|holder| numbers(holder).contains(&note.pid));
        let note = Note::read(file).filter(own);
        let pid = holder.or(note.map(|note| note.pid));
        Self { pid, command: pid.and_then(command), role: note.map_or(Role::Command, |note| note.role) }
    }

    /// Whether it is the node agent, which releases the lock only when it ends.
    #[must_use]
    pub fn is_agent(&self) -> bool {
        self.role == Role::Agent
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.command) {
            (Some(pid), Some(command)) => write!(f, "process {pid} ({command})"),
            (Some(pid), None) => write!(f, "process {pid}"),
            (None, _) => f.write_str("another process"),
        }
    }
}

// === impl LockFailure ===

impl From<LockFailure> for io::Error {
    fn from(missed: LockFailure) -> Self {
        match missed {
            LockFailure::Refused(error) => error,
            LockFailure::Held(holder) => {
                Self::new(io::ErrorKind::WouldBlock, format!("{holder} holds its lock"))
            }
        }
    }
}

/// The holder of a lock that was seen held, by its inode, in the kernel's table. The kernel gives the table in pieces and may leave
/// a lock out while others come and go, as those of a node with many tenants do: so it is read again.
fn of_kernel(inode: u64, mut table: impl FnMut() -> Option<String>) -> Option<u32> {
    (0..READINGS_MAX).find_map(|_| in_table(&table()?, inode))
}

/// A line of `/proc/locks`: `12: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF`. Lines with `->` are of processes that wait.
fn in_table(table: &str, inode: u64) -> Option<u32> {
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, "FLOCK", _, _, pid, at, ..] = words.as_slice() else { return None };
        let found = at.rsplit(':').next()?.parse::<u64>().ok()?;
        pid.parse().ok().filter(|pid| found == inode && *pid != 0)
    })
}

/// Every number of a process: its own, and those in the containers that it runs in, which it writes into its note.
fn numbers(pid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let nested = line.split_ascii_whitespace().filter_map(|number| number.parse().ok());
    nested.chain([pid]).collect()
}

// === impl Note ===

impl Note {
    /// Of this process.
    #[must_use]
    pub fn own(role: Role) -> Self {
        Self { pid: std::process::id(), role }
    }

    fn read(mut file: &File) -> Option<Self> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(NOTE_BYTES_MAX).read_to_string(&mut text).ok()?;
        let mut lines = text.lines();
        let pid = lines.next()?.trim().parse().ok()?;
        let role = if lines.next() == Some(AGENT) { Role::Agent } else { Role::Command };
        Some(Self { pid, role })
    }

    /// Writes it in place of the previous holder's.
    ///
    /// # Errors
    /// The disk is full.
    pub fn write(self, mut file: &File) -> io::Result<()> {
        let role = match self.role {
            Role::Command => String::new(),
            Role::Agent => format!("{AGENT}\n"),
        };
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{}\n{role}", self.pid).as_bytes())
    }
}

fn command(pid: u32) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/cmdline")).ok()?.take(COMMAND_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let words: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let text: String = words.join(" ").trim().chars().take(COMMAND_CHARS_MAX).collect();
    let text = crate::printable::line(&text).into_owned();
    if text.is_empty() { None } else { Some(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_left_out_of_a_reading_is_found_in_a_later_one() {
        let others =
            "1: POSIX  ADVISORY  WRITE 4712 08:01:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 0 08:01:1234 0 EOF\n";
        let whole = format!("{others}3: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF\n");
        let waiting = format!("{others}3: -> FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF\n");
        let mut tables = [others.to_owned(), waiting.clone(), whole].into_iter();
        assert_eq!(of_kernel(1234, || tables.next()), Some(4711));
        let mut readings = 0;
        let holder = of_kernel(1234, || {
            readings += 1;
            Some(waiting.clone())
        });
        assert_eq!((holder, readings), (None, READINGS_MAX));
    }
}
