//! Leader election of a card, and the events a governor waits for: requests of the command's thread, and inotify events of two
//! paths. Nothing is polled while inotify is available.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::time::TimeSpec;

use super::LOOK;
use crate::clock::monotonic;
use crate::disk::Disk;
use crate::region::{GrantPaths, Live, wake};
use crate::state_dir::file;

/// Tries for the leader lock after an event, with doubling delays: the kernel reports a closed file shortly before it releases the
/// file's lock.
const TRIES: u32 = 16;
/// Beginning of the UUIDs of partitions that a governor may have.
const PARTITION: &str = "MIG-";
/// Longest time between two of them.
const TRY_AGAIN: Duration = Duration::from_millis(1_000);

/// A request of the command's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GovernorRequest {
    Run,
    Pause,
    Stop,
}

/// State shared by the command's thread and the governor thread.
#[derive(Debug)]
pub(super) struct GovernorRequests {
    wish: Mutex<(GovernorRequest, bool)>,
    changed: Condvar,
    /// Readable once the request changed.
    asked: EventFd,
    /// Changes with each request, for a thread that waits for words.
    requests: AtomicU32,
    /// Its value when the request was last read.
    read: AtomicU32,
}

/// An inotify watch on one path.
#[derive(Debug)]
pub(super) struct FileWatch {
    inotify: Inotify,
    /// On the file by which a tenant calls.
    called: Option<WatchDescriptor>,
}

/// Events of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Heard {
    Nothing,
    /// Something happened to the path.
    News,
    /// A tenant called.
    Call,
}

/// A candidate for the card's leader lock.
pub(super) struct Candidate {
    path: PathBuf,
    /// Its run's share.
    own: GrantPaths,
    disk: Disk,
    /// Open while the candidate waits: closing a file opened for writing wakes the other candidates.
    file: Option<File>,
    /// `None`: no inotify instance is available, and it polls every [`LOOK`].
    watch: Option<FileWatch>,
    /// Its tenant reported a missing governor.
    called: Option<UncheckedReport>,
    tries: u32,
}

/// A tenant's report that was not checked yet.
#[derive(Debug)]
struct UncheckedReport;

/// The card's leader lock, held while the path still names its file. Closing the file releases it and wakes the candidates.
#[derive(Debug)]
pub(super) struct LeaderLock {
    pub(super) path: PathBuf,
    pub(super) file: Flock<File>,
}

// === impl GovernorRequests ===

impl GovernorRequests {
    pub(super) fn new() -> io::Result<Self> {
        let asked = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let [requests, read] = [const { AtomicU32::new(0) }; 2];
        let wish = Mutex::new((GovernorRequest::Run, false));
        Ok(Self { wish, changed: Condvar::new(), asked, requests, read })
    }

    pub(super) fn ask(&self, wish: GovernorRequest) {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner).0 = wish;
        self.wake();
    }

    /// Ends the thread's sleep.
    pub(super) fn wake(&self) {
        // A counter at its most is readable as well.
        let _more = self.asked.write(1);
        self.requests.fetch_add(1, Ordering::SeqCst);
        wake(&self.requests);
    }

    /// The word of requests, with its value when the request was last read.
    pub(super) fn word(&self) -> (&AtomicU32, u32) {
        (&self.requests, self.read.load(Ordering::SeqCst))
    }

    pub(super) fn wish(&self) -> GovernorRequest {
        // Before the request: one that comes later ends the next wait.
        self.read.store(self.requests.load(Ordering::SeqCst), Ordering::SeqCst);
        self.wish.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Records whether this thread is idle, and notifies waiters.
    pub(super) fn set_idle(&self, idle: bool) {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner).1 = idle;
        self.changed.notify_all();
    }

    pub(super) fn wait_until_idle(&self) {
        let mut state = self.wish.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.1 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a request or an event of `watch`, at most `longest`; `None`: without a limit.
    pub(super) fn sleep(&self, longest: Option<Duration>, watch: Option<BorrowedFd<'_>>) {
        let _woken = match watch {
            None => wait(&mut [readable(self.asked.as_fd())], longest),
            Some(watch) => wait(&mut [readable(self.asked.as_fd()), readable(watch)], longest),
        };
        // The eventfd is read before the request: no request is missed.
        let _asked = self.asked.read();
    }
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

fn wait(ready: &mut [PollFd<'_>], longest: Option<Duration>) -> nix::Result<i32> {
    ppoll(ready, longest.map(TimeSpec::from_duration), None)
}

/// Whether a path names this file.
fn is_named(path: &Path, file: &File) -> bool {
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    let named = fs::metadata(path).map(id);
    named.is_ok_and(|named| file.metadata().map(id).is_ok_and(|open| open == named))
}

// === impl FileWatch ===

impl FileWatch {
    /// `None`: the user's inotify limit is reached, or the path does not exist.
    fn of(path: &Path, what: AddWatchFlags) -> Option<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
        let _number: WatchDescriptor = inotify.add_watch(path, what).ok()?;
        Some(Self { inotify, called: None })
    }

    /// Watches a leader lock that is closed or loses its name, and the file by which a tenant reports a missing governor.
    fn of_leader_lock(path: &Path, calls: &Path) -> Option<Self> {
        let watch = Self::of(path, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB)?;
        let called = watch.inotify.add_watch(calls, AddWatchFlags::IN_ATTRIB).ok()?;
        Some(Self { called: Some(called), ..watch })
    }

    /// Watches a directory for new and removed entries.
    pub(super) fn of_entries(dir: &Path) -> Option<Self> {
        let come = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        let go = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        Self::of(dir, come | go | AddWatchFlags::IN_ONLYDIR)
    }

    /// Readable once there are events.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// The greatest event since the last call.
    pub(super) fn take(&self) -> Heard {
        let mut heard = Heard::Nothing;
        loop {
            match self.inotify.read_events() {
                Ok(events) => heard = events.iter().map(|event| self.heard(event)).fold(heard, Heard::max),
                Err(Errno::EINTR) => {}
                // There are no more.
                Err(_) => return heard,
            }
        }
    }

    fn heard(&self, event: &InotifyEvent) -> Heard {
        if self.called == Some(event.wd) { Heard::Call } else { Heard::News }
    }
}

// === impl Candidate ===

impl Candidate {
    pub(super) fn new(path: &Path, own: GrantPaths, disk: Disk) -> Self {
        Self { path: path.to_owned(), own, disk, file: None, watch: None, called: None, tries: TRIES }
    }

    /// Acquires the leader lock if it is free or its leader is stopped. Without a watch a tenant's report raises no event, so each
    /// try checks for a stopped leader.
    pub(super) fn elect(&mut self) -> Option<LeaderLock> {
        let leader_lock = self.win()?;
        self.clear();
        Some(leader_lock)
    }

    /// Takes the leader lock, from another leader too: for the process that owns all grants. `None`: the disk refuses.
    pub(super) fn seize(&mut self) -> Option<LeaderLock> {
        let leader_lock = match self.win() {
            Some(leader_lock) => leader_lock,
            None => self.take_over()?,
        };
        self.clear();
        // Of the few inotify instances that a user has, one a governor is left for dormant shares.
        self.watch = None;
        Some(leader_lock)
    }

    fn win(&mut self) -> Option<LeaderLock> {
        let called = self.called.take();
        if self.file.as_ref().is_none_or(|file| !is_named(&self.path, file)) {
            let parent = self.path.parent()?;
            if !parent.is_dir() {
                file::make_dirs(parent).ok()?;
            }
            self.file = file::to_lock(&self.path).ok();
            self.watch = None;
        }
        if self.watch.is_none() {
            // Before the lock is tried: a release from now on raises an event.
            self.watch = FileWatch::of_leader_lock(&self.path, &self.own.usage());
        }
        match Flock::lock(self.file.take()?, FlockArg::LockExclusiveNonblock) {
            // The file may have lost its name before it was locked: then another leader lock exists.
            Ok(file) => Some(LeaderLock { path: self.path.clone(), file }).filter(LeaderLock::is_held),
            Err((file, _)) => {
                self.file = Some(file);
                let asks = called.is_some() || self.watch.is_none();
                if asks && self.is_missed() { self.take_over() } else { None }
            }
        }
    }

    /// Whether the governor has been missing for some time, by the limits of the tenant that reported it.
    fn is_missed(&self) -> bool {
        let until = Live::open(&self.own).and_then(|limits| limits.lent_until());
        until.is_ok_and(|until| until.is_missed(monotonic()))
    }

    /// Replaces the leader lock of a stopped governor by a new one. That governor has lost its leadership when it continues. If two
    /// candidates do this at once, the later rename wins.
    fn take_over(&mut self) -> Option<LeaderLock> {
        let mut new = self.path.clone().into_os_string();
        new.push(format!(".{}", std::process::id()));
        self.disk.before("make a leader lock").ok()?;
        let file = file::to_lock(Path::new(&new)).ok()?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
        self.disk.before("name a leader lock").ok()?;
        fs::rename(&new, &self.path).ok()?;
        (self.file, self.watch) = (None, None);
        Some(LeaderLock { path: self.path.clone(), file })
    }

    /// Removes unlocked replacement files, left by candidates that were killed before the rename. A candidate that loses its file
    /// here while it creates it does not take over from the present leader.
    fn clear(&self) {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else { return };
        let is_new = |found: &fs::DirEntry| {
            let found = found.file_name();
            let number =
                found.as_bytes().strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
            number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
        };
        for found in fs::read_dir(parent).into_iter().flatten().flatten().filter(is_new) {
            remove_unheld(&found.path());
        }
    }

    /// Waits until the leader lock may be free, or for a request.
    pub(super) fn wait(&mut self, shared: &GovernorRequests) {
        let Some(watch) = self.watch.as_ref().filter(|_| self.file.is_some()) else {
            return shared.sleep(Some(LOOK), None);
        };
        let since = TRIES.saturating_sub(self.tries).min(u32::BITS - 1);
        let again = Duration::from_millis(1_u64 << since).min(TRY_AGAIN);
        shared.sleep((self.tries > 0).then_some(again), Some(watch.as_fd()));
        let heard = watch.take();
        self.tries = match heard {
            Heard::News | Heard::Call => TRIES,
            Heard::Nothing => self.tries.saturating_sub(1),
        };
        self.called = (heard == Heard::Call).then_some(UncheckedReport);
    }
}

/// Removes an unlocked leader lock; a foreign entry, such as a directory, stays. A candidate that locks the file afterwards finds
/// that it has lost its name.
fn remove_unheld(path: &Path) {
    let Ok(file) = file::to_change(path) else { return };
    let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return };
    if is_named(path, &file) {
        // The next leader tries again.
        let _stays = fs::remove_file(path);
    }
}

/// Removes the unlocked leader locks of partitions that `visible` does not know. Locked ones stay, as governors also serve
/// partitions that are in no journal. Leader locks of cards stay.
///
/// # Errors
/// The directory cannot be read.
pub fn remove_leader_locks(state: &Path, visible: &dyn Fn(&str) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(leader_locks(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // A replacement file has a process id as its suffix.
        let of = name.to_str().and_then(|name| name.split('.').next());
        if of.is_some_and(|uuid| uuid.starts_with(PARTITION) && !visible(uuid)) {
            remove_unheld(&entry.path());
        }
    }
    Ok(())
}

/// Directory of leader locks in a state directory, each named after its card or partition.
#[must_use]
pub fn leader_locks(state: &Path) -> PathBuf {
    state.join("governors")
}

// === impl LeaderLock ===

impl LeaderLock {
    /// Whether no other candidate took it over.
    pub(super) fn is_held(&self) -> bool {
        is_named(&self.path, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_leader_lock_stays_and_foreign_files_block_nothing() {
        let state = tempfile::tempdir().unwrap();
        let at = |name: &str| leader_locks(state.path()).join(name);
        fs::create_dir_all(at("MIG-a-directory")).unwrap();
        std::os::unix::fs::symlink("MIG-held", at("MIG-a-link")).unwrap();
        let made = ["GPU-0", "MIG-held", "MIG-there", "MIG-gone", "MIG-gone.17"]
            .map(|name| File::create(at(name)).unwrap());
        let [_, held, ..] = made;
        // Of an instance that another tool made: governed, and in no journal.
        let held = Flock::lock(held, FlockArg::LockExclusiveNonblock).unwrap();
        let left = || {
            remove_leader_locks(state.path(), &|uuid| uuid == "MIG-there").unwrap();
            let entries = fs::read_dir(leader_locks(state.path())).unwrap().flatten();
            let mut left: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            left.sort_unstable();
            left
        };
        assert_eq!(left(), ["GPU-0", "MIG-a-directory", "MIG-a-link", "MIG-held", "MIG-there"]);
        drop(held);
        assert_eq!(left(), ["GPU-0", "MIG-a-directory", "MIG-a-link", "MIG-there"]);
    }
}
