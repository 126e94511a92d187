//! One lock a claim: calls of the kubelet that overlap take their turn, calls for other claims do not wait.

use std::collections::HashMap;
use std::sync::Arc;

use aliquot_core::id::ClaimUid;
use parking_lot::Mutex;
use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard};

/// The locks of claims with calls in progress; a claim without calls has none.
#[derive(Debug, Default)]
pub(super) struct ClaimLocks(Mutex<HashMap<ClaimUid, Arc<TurnMutex<()>>>>);

/// A claim's turn, given up when dropped.
#[derive(Debug)]
pub(super) struct ClaimTurn {
    locks: Arc<ClaimLocks>,
    uid: ClaimUid,
    guard: Option<OwnedMutexGuard<()>>,
}

// === impl ClaimLocks ===

impl ClaimLocks {
    /// Waits for the claim's turn.
    pub(super) async fn turn(self: &Arc<Self>, uid: &ClaimUid) -> ClaimTurn {
        let lock = Arc::clone(self.0.lock().entry(uid.clone()).or_default());
        let guard = lock.lock_owned().await;
        ClaimTurn { locks: Arc::clone(self), uid: uid.clone(), guard: Some(guard) }
    }
}

impl Drop for ClaimTurn {
    fn drop(&mut self) {
        let mut locks = self.locks.0.lock();
        self.guard = None;
        // The map's own handle is the last one if no call waits; a call that comes now needs the map first.
        if locks.get(&self.uid).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn claim_turns_are_serial_and_leave_nothing() {
        let locks = Arc::new(ClaimLocks::default());
        let (one, other) = (ClaimUid::new("1").unwrap(), ClaimUid::new("2").unwrap());
        let first = locks.turn(&one).await;
        let free = locks.turn(&other).await;
        let (mut waits, again) = (Box::pin(locks.turn(&one)), locks.0.lock().len());
        assert_eq!(again, 2);
        assert!(futures::poll!(waits.as_mut()).is_pending());
        drop(first);
        drop((waits.await, free));
        assert!(locks.0.lock().is_empty());
    }
}
