//! What the server's tasks and the test share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::faults::{Faults, Request};
use super::slices::Gates;
use super::store::Store;

/// Objects, and the orders to their watchers.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Version of the last change, for watches.
    pub(super) changed: watch::Sender<u64>,
    /// Number of the last order to close or expire watches.
    pub(super) cut: watch::Sender<u64>,
}

pub(super) struct State {
    pub(super) store: Store,
    pub(super) gates: Gates,
    pub(super) version: (u32, u32),
    pub(super) faults: Faults,
    pub(super) requests: Vec<Request>,
}

// === impl Shared ===

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes watches to look for new objects.
    pub(super) fn announce(&self) {
        let version = self.state().store.version();
        self.changed.send_replace(version);
    }
}
