//! What a governor waits for: a wish of the command's side, and what the kernel says of two paths. Nothing is looked at again and
//! again to find out.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::time::TimeSpec;

use super::LOOK;
use crate::clock::monotonic;
use crate::disk::Disk;
use crate::region::{Live, Place};

/// Tries for the card after somebody let go of it, each twice as long after the last as that after the one before: the kernel
/// says that a file is closed a moment before it gives its lock back.
const TRIES: u32 = 16;
/// Beginning of the UUIDs of partitions that a governor may have.
const PARTITION: &str = "MIG-";
/// Longest time between two of them.
const TRY_AGAIN: Duration = Duration::from_millis(1_000);

/// What the command's side asks of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Run,
    Pause,
    Stop,
}

/// Between the command's side and the thread.
#[derive(Debug)]
pub(super) struct Shared {
    wish: Mutex<(Wish, bool)>,
    changed: Condvar,
    /// Readable once the wish changed.
    asked: EventFd,
}

/// What the kernel says of one path.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Inotify,
    /// On the file by which a tenant calls.
    called: Option<WatchDescriptor>,
}

/// What a watch heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Heard {
    Nothing,
    /// Something happened to the path.
    News,
    /// A tenant called.
    Call,
}

/// One who wants the office of the card's governor.
pub(super) struct Candidate {
    path: PathBuf,
    /// Its run's share.
    own: Place,
    disk: Disk,
    /// Open for as long as it waits: who opens and closes it wakes the others.
    file: Option<File>,
    /// `None`: none is to be had, and it looks at every [`LOOK`].
    watch: Option<Watch>,
    /// Its tenant said that nobody governs.
    called: Option<Called>,
    tries: u32,
}

/// A tenant's call that was not looked into yet.
#[derive(Debug)]
struct Called;

/// The office of the card's governor, as long as its file has its name. It is closed when it is given up, which tells the others.
#[derive(Debug)]
pub(super) struct Office {
    pub(super) path: PathBuf,
    pub(super) file: Flock<File>,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        let asked = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { wish: Mutex::new((Wish::Run, false)), changed: Condvar::new(), asked })
    }

    pub(super) fn ask(&self, wish: Wish) {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner).0 = wish;
        // A counter at its most is readable as well.
        let _more = self.asked.write(1);
    }

    pub(super) fn wish(&self) -> Wish {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Says that nothing is governed, or is again.
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

    /// Waits for a wish, for news, and at most so long; `None`: for as long as it takes.
    pub(super) fn sleep(&self, longest: Option<Duration>, watch: Option<&Watch>) {
        let _woken = match watch {
            None => wait(&mut [readable(self.asked.as_fd())], longest),
            Some(watch) => {
                wait(&mut [readable(self.asked.as_fd()), readable(watch.inotify.as_fd())], longest)
            }
        };
        // Read first, then the wish: none is missed.
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

// === impl Watch ===

impl Watch {
    /// `None`: the kernel has none left for this user, or there is no such path.
    fn of(path: &Path, what: AddWatchFlags) -> Option<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
        let _number: WatchDescriptor = inotify.add_watch(path, what).ok()?;
        Some(Self { inotify, called: None })
    }

    /// For who comes to lose an office or loses its name, and for who touches the file by which a tenant calls.
    fn of_office(path: &Path, calls: &Path) -> Option<Self> {
        let watch = Self::of(path, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB)?;
        let called = watch.inotify.add_watch(calls, AddWatchFlags::IN_ATTRIB).ok()?;
        Some(Self { called: Some(called), ..watch })
    }

    /// For entries of a directory that come and go.
    pub(super) fn of_entries(dir: &Path) -> Option<Self> {
        let come = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        let go = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        Self::of(dir, come | go | AddWatchFlags::IN_ONLYDIR)
    }

    /// What there was since this was last asked.
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
    pub(super) fn new(path: &Path, own: Place, disk: Disk) -> Self {
        Self { path: path.to_owned(), own, disk, file: None, watch: None, called: None, tries: TRIES }
    }

    /// The office, if nobody has it, or who has it is not at it. Where no watch is to be had a tenant's call is not heard, and it is
    /// looked at as often as anything else.
    pub(super) fn elect(&mut self) -> Option<Office> {
        let office = self.win()?;
        self.clear();
        Some(office)
    }

    fn win(&mut self) -> Option<Office> {
        let called = self.called.take();
        if self.file.as_ref().is_none_or(|file| !is_named(&self.path, file)) {
            let parent = self.path.parent()?;
            if !parent.is_dir() {
                fs::create_dir_all(parent).ok()?;
            }
            let mut options = OpenOptions::new();
            self.file = options.write(true).create(true).truncate(false).open(&self.path).ok();
            self.watch = None;
        }
        if self.watch.is_none() {
            // Before the lock is tried: who lets go of it from now on is heard.
            self.watch = Watch::of_office(&self.path, &self.own.usage());
        }
        match Flock::lock(self.file.take()?, FlockArg::LockExclusiveNonblock) {
            // It may have lost its name before it was locked: then there is another one.
            Ok(file) => Some(Office { path: self.path.clone(), file }).filter(Office::is_held),
            Err((file, _)) => {
                self.file = Some(file);
                let asks = called.is_some() || self.watch.is_none();
                if asks && self.is_missed() { self.take_over() } else { None }
            }
        }
    }

    /// Whether nobody has governed for some time, by what the limits of the tenant that called say.
    fn is_missed(&self) -> bool {
        let until = Live::open(&self.own).and_then(|limits| limits.lent_until());
        until.is_ok_and(|until| until.is_missed(monotonic()))
    }

    /// An office in the place of the one whose governor is not at it. That one has lost it when it comes back, as has who took over at
    /// the same time and was the first.
    fn take_over(&mut self) -> Option<Office> {
        let mut new = self.path.clone().into_os_string();
        new.push(format!(".{}", std::process::id()));
        self.disk.before("make an office").ok()?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(&new).ok()?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
        self.disk.before("name an office").ok()?;
        fs::rename(&new, &self.path).ok()?;
        (self.file, self.watch) = (None, None);
        Some(Office { path: self.path.clone(), file })
    }

    /// Takes away what was made to take the office over by who was killed before it had its name: nobody has that locked. Who is at it
    /// just now and loses it so does not take over from who governs.
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

    /// Waits until the office may be free, or for a wish.
    pub(super) fn wait(&mut self, shared: &Shared) {
        let Some(watch) = self.watch.as_ref().filter(|_| self.file.is_some()) else {
            return shared.sleep(Some(LOOK), None);
        };
        let since = TRIES.saturating_sub(self.tries).min(u32::BITS - 1);
        let again = Duration::from_millis(1_u64 << since).min(TRY_AGAIN);
        shared.sleep((self.tries > 0).then_some(again), Some(watch));
        let heard = watch.take();
        self.tries = match heard {
            Heard::News | Heard::Call => TRIES,
            Heard::Nothing => self.tries.saturating_sub(1),
        };
        self.called = (heard == Heard::Call).then_some(Called);
    }
}

/// Takes an office away that nobody holds; what is none of ours, as a directory, stays. Who is just about to lock it finds that it
/// has lost its name.
fn remove_unheld(path: &Path) {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = OpenOptions::new().write(true).custom_flags(flags).open(path) else { return };
    let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return };
    if is_named(path, &file) {
        // What cannot be removed is tried again by the next one.
        let _stays = fs::remove_file(path);
    }
}

/// Takes away the offices of partitions that are no more, as far as `visible` knows, and that nobody is at: partitions that others
/// made are governed as well, and in no journal. Those of cards stay.
///
/// # Errors
/// The directory cannot be read.
pub fn remove_offices(state: &Path, visible: &dyn Fn(&str) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(offices(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // What was made to take one over has a process's number behind it.
        let of = name.to_str().and_then(|name| name.split('.').next());
        if of.is_some_and(|uuid| uuid.starts_with(PARTITION) && !visible(uuid)) {
            remove_unheld(&entry.path());
        }
    }
    Ok(())
}

/// Directory of the offices of a state directory, each with the name of its card or partition.
#[must_use]
pub fn offices(state: &Path) -> PathBuf {
    state.join("governors")
}

// === impl Office ===

impl Office {
    /// Whether nobody took it over.
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
        let at = |name: &str| offices(state.path()).join(name);
        fs::create_dir_all(at("MIG-a-directory")).unwrap();
        std::os::unix::fs::symlink("MIG-held", at("MIG-a-link")).unwrap();
        let made = ["GPU-0", "MIG-held", "MIG-there", "MIG-gone", "MIG-gone.17"]
            .map(|name| File::create(at(name)).unwrap());
        let [_, held, ..] = made;
        // Of an instance that somebody else made: governed, and in no journal.
        let held = Flock::lock(held, FlockArg::LockExclusiveNonblock).unwrap();
        let left = || {
            remove_offices(state.path(), &|uuid| uuid == "MIG-there").unwrap();
            let entries = fs::read_dir(offices(state.path())).unwrap().flatten();
            let mut left: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            left.sort_unstable();
            left
        };
        assert_eq!(left(), ["GPU-0", "MIG-a-directory", "MIG-a-link", "MIG-held", "MIG-there"]);
        drop(held);
        assert_eq!(left(), ["GPU-0", "MIG-a-directory", "MIG-a-link", "MIG-there"]);
    }
}
