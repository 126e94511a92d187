//! Shares of a card that no process uses. None of their files is open or mapped, so that thousands of them cost nothing but a system
//! call of each every second.
//!
//! ```text
//!            no process has a slot
//!   active ────────────────────────▶ dormant
//!     ▲                                │ a process touches the usage file: it takes a slot, changes the length, or misses its governor
//!     └────────────────────────────────┘ a look finds a lock, which each process with a slot holds; the driver reports a process of it
//! ```
//!
//! While a tenant of the card borrows time, the events are read at each tick. Otherwise there is nothing to give back to a share that
//! becomes active. A watch ends with its first event, and an active share stays so for a second: a tenant that repeats events costs
//! one look a second.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_enforce::units::Nanos;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::region::{self, USAGE};

/// Time between two looks for locks.
pub(super) const LOCKS: Duration = Duration::from_millis(1_000);

/// By share, a number that differs for each time that it became dormant.
pub(super) type DormantNumbers = BTreeMap<PathBuf, u64>;

/// The dormant shares of a card.
#[derive(Debug)]
pub(super) struct DormantShares {
    inotify: Inotify,
    shares: Arc<DormantNumbers>,
    /// Those of them with limited compute.
    limited: usize,
    watched: BTreeMap<WatchDescriptor, PathBuf>,
    details: BTreeMap<PathBuf, DormantShare>,
    looked_at: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct DormantShare {
    watch: WatchDescriptor,
    compute: DormantCompute,
}

/// Whether the compute of a dormant share is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DormantCompute {
    Limited,
    Unlimited,
}

/// A watch that was set before the slots of a share were read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArmedWatch(WatchDescriptor);

// === impl DormantShares ===

impl DormantShares {
    /// `None`: the user's limit of inotify instances is reached, and every share stays active.
    pub(super) fn new(now: Nanos) -> Option<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
        let shares = Arc::default();
        Some(Self {
            inotify,
            shares,
            limited: 0,
            watched: BTreeMap::new(),
            details: BTreeMap::new(),
            looked_at: now,
        })
    }

    /// Readable once a process touched a dormant share.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// The dormant shares.
    pub(super) fn numbers(&self) -> Arc<DormantNumbers> {
        Arc::clone(&self.shares)
    }

    pub(super) fn have(&self, share: &Path) -> bool {
        self.shares.contains_key(share)
    }

    /// Whether any of them has limited compute: only then the driver's account of device time concerns them.
    pub(super) const fn limit_compute(&self) -> bool {
        self.limited > 0
    }

    /// Watches a share that may become dormant. `None`: it cannot be watched, and stays active.
    pub(super) fn arm(&self, share: &Path) -> Option<ArmedWatch> {
        let touched = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ONESHOT;
        self.inotify.add_watch(&share.join(USAGE), touched).ok().map(ArmedWatch)
    }

    /// Adds a share that no process used after its watch was set.
    pub(super) fn insert(&mut self, now: Nanos, share: &Path, watch: ArmedWatch, compute: DormantCompute) {
        let details = DormantShare { watch: watch.0, compute };
        self.watched.insert(watch.0, share.to_owned());
        if self.details.insert(share.to_owned(), details).is_none() {
            self.limited += usize::from(compute == DormantCompute::Limited);
        }
        Arc::make_mut(&mut self.shares).insert(share.to_owned(), now.0);
    }

    /// Takes out the shares that processes may have begun to use.
    pub(super) fn take_woken(&mut self, now: Nanos) -> Vec<PathBuf> {
        let mut woken = Vec::new();
        while let Ok(events) = self.inotify.read_events() {
            // A removed file needs no watch. After an overflow, which has no watch, the locks tell.
            woken.extend(events.iter().filter_map(|event| self.watched.get(&event.wd).cloned()));
        }
        if Duration::from_nanos(now.minus(self.looked_at).0) >= LOCKS {
            self.looked_at = now;
            let in_use = |share: &&PathBuf| region::is_locked_or_absent(&share.join(USAGE));
            woken.extend(self.shares.keys().filter(in_use).cloned());
        }
        woken.retain(|share| self.remove(share));
        woken
    }

    /// Takes a share out; whether it was dormant.
    pub(super) fn remove(&mut self, share: &Path) -> bool {
        let Some(details) = self.details.remove(share) else { return false };
        self.limited -= usize::from(details.compute == DormantCompute::Limited);
        self.watched.remove(&details.watch);
        // One that gave its event, or whose file is gone, is no watch any more.
        let _ended = self.inotify.rm_watch(details.watch);
        Arc::make_mut(&mut self.shares).remove(share);
        true
    }

    /// Forgets the shares that are not to be kept.
    pub(super) fn retain(&mut self, keeps: impl Fn(&Path) -> bool) {
        let gone: Vec<PathBuf> = self.shares.keys().filter(|share| !keeps(share)).cloned().collect();
        for share in gone {
            self.remove(&share);
        }
    }
}
