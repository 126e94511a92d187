//! Looks after the files of claims while the agent runs.
//!
//! ```text
//!  inotify: a file of ours leaves the CDI directory, is altered, or the directory goes ─┐
//!  timer ────────────────────────────────────────────────────────────────────────────────┴─▶ one pass over the claims
//! ```
//!
//! A container that restarts finds its devices again. The thread is its own: a card that hangs delays neither the look at the
//! cards nor calls of the kubelet.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::node::NodeService;

/// Longest time between two passes.
const PASS: Duration = Duration::from_secs(10);
/// Changes within this time are one.
const SETTLE: Duration = Duration::from_millis(50);
/// Beginning of the names of our files in the directory.
const OURS: &str = "aliquot.dev-claim-";

/// Looks after the claims of a node for as long as it is open.
pub(super) fn run(service: &Weak<NodeService>, cdi: &Path) {
    let (watch, mut told) = (CdiWatch::of(cdi), Vec::new());
    while let Some(service) = service.upgrade() {
        watch.renew();
        let lines = service.tend();
        drop(service);
        // What lasts is said once, not at each pass.
        for line in lines.iter().filter(|line| !told.contains(*line)) {
            tracing::warn!("{line}");
        }
        told = lines;
        watch.wait();
    }
}

/// The directory from which container runtimes read.
struct CdiWatch {
    dir: PathBuf,
    /// `None`: the kernel gives none, and the timer serves alone.
    inotify: Option<Inotify>,
}

// === impl CdiWatch ===

impl CdiWatch {
    fn of(dir: &Path) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC);
        if let Err(error) = &inotify {
            tracing::warn!(
                "CDI directory {}: found no inotify ({error}); it is looked at every 10 s",
                dir.display()
            );
        }
        Self { dir: dir.to_owned(), inotify: inotify.ok() }
    }

    /// Watches the directory that has the name now; a second watch of the same one is none.
    fn renew(&self) {
        let lost = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_CLOSE_WRITE;
        let gone = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
        let Some(inotify) = &self.inotify else { return };
        // One that is absent comes with the next file that is written.
        if let Err(error) = inotify.add_watch(&self.dir, lost | gone) {
            tracing::debug!("CDI directory {}: it cannot be watched now: {error}", self.dir.display());
        }
    }

    /// Waits for a change that concerns us, or for the timer.
    fn wait(&self) {
        let Some(inotify) = &self.inotify else {
            thread::sleep(PASS);
            return;
        };
        let longest = PollTimeout::try_from(PASS).unwrap_or(PollTimeout::ZERO);
        loop {
            let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, longest) {
                Ok(0) | Err(_) => return,
                Ok(_) => thread::sleep(SETTLE),
            }
            let events = inotify.read_events().unwrap_or_default();
            let is_ours = |name: Option<&OsStr>| {
                name.is_none_or(|name| name.as_encoded_bytes().starts_with(OURS.as_bytes()))
            };
            if events.iter().any(|event| is_ours(event.name.as_deref())) {
                return;
            }
        }
    }
}
