//! What a governor waits for: a wish of the command's side, and what the kernel says of two paths. Nothing is looked at again and
//! again to find out.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::time::TimeSpec;

use super::LOOK;

/// Tries for the card after somebody let go of it, each twice as long after the last as that after the one before: the kernel
/// says that a file is closed a moment before it gives its lock back.
const TRIES: u32 = 16;
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
}

/// One who wants the office of the card's governor.
#[derive(Debug)]
pub(super) struct Candidate {
    path: PathBuf,
    /// Open for as long as it waits: who opens and closes it wakes the others.
    file: Option<File>,
    /// `None`: none is to be had, and it looks at every [`LOOK`].
    watch: Option<Watch>,
    tries: u32,
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

// === impl Watch ===

impl Watch {
    /// `None`: the kernel has none left for this user, or there is no such path.
    pub(super) fn of(path: &Path, what: AddWatchFlags) -> Option<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
        let _number: WatchDescriptor = inotify.add_watch(path, what).ok()?;
        Some(Self { inotify })
    }

    /// Entries of a directory that come and go.
    pub(super) fn of_entries(dir: &Path) -> Option<Self> {
        let come = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        let go = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        Self::of(dir, come | go | AddWatchFlags::IN_ONLYDIR)
    }

    /// Whether there was news since this was last asked.
    pub(super) fn take(&self) -> bool {
        let mut any = false;
        loop {
            match self.inotify.read_events() {
                Ok(events) => any |= !events.is_empty(),
                Err(Errno::EINTR) => {}
                // There are no more.
                Err(_) => return any,
            }
        }
    }
}

// === impl Candidate ===

impl Candidate {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, watch: None, tries: TRIES }
    }

    /// The lock of the card, if nobody has it. It is closed when it is given up, which tells the others.
    pub(super) fn elect(&mut self) -> Option<Flock<File>> {
        if self.file.is_none() {
            let parent = self.path.parent()?;
            if !parent.is_dir() {
                fs::create_dir_all(parent).ok()?;
            }
            let mut options = OpenOptions::new();
            self.file = options.write(true).create(true).truncate(false).open(&self.path).ok();
        }
        if self.watch.is_none() {
            // Before the lock is tried: who lets go of it from now on is heard.
            self.watch = Watch::of(&self.path, AddWatchFlags::IN_CLOSE_WRITE);
        }
        match Flock::lock(self.file.take()?, FlockArg::LockExclusiveNonblock) {
            Ok(office) => Some(office),
            Err((file, _)) => {
                self.file = Some(file);
                None
            }
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
        self.tries = if watch.take() { TRIES } else { self.tries.saturating_sub(1) };
    }
}
