//! The shares of one card, kept by an owner of all grants in the governor's own process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::dormant::DormantNumbers;
use super::unshimmed::UnshimmedProcess;

/// Directories of the card's shares. A governor without a register looks for them in the directory of all grants instead.
#[derive(Debug, Default)]
pub(super) struct Register {
    shares: Mutex<Arc<BTreeSet<PathBuf>>>,
    /// By share, a process that uses the card without the shim.
    unshimmed: Mutex<BTreeMap<PathBuf, UnshimmedProcess>>,
    /// Shares that no process uses.
    dormant: Mutex<Arc<DormantNumbers>>,
}

// === impl Register ===

impl Register {
    pub(super) fn new(shares: BTreeSet<PathBuf>) -> Self {
        Self { shares: Mutex::new(Arc::new(shares)), unshimmed: Mutex::default(), dormant: Mutex::default() }
    }

    /// Replaces the shares; whether they differ.
    pub(super) fn set(&self, shares: BTreeSet<PathBuf>) -> bool {
        let mut now = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = **now != shares;
        if differs {
            *now = Arc::new(shares);
        }
        differs
    }

    pub(super) fn shares(&self) -> Arc<BTreeSet<PathBuf>> {
        Arc::clone(&self.shares.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the governor found at its last look.
    pub(super) fn report(
        &self,
        unshimmed: BTreeMap<PathBuf, UnshimmedProcess>,
        dormant: Arc<DormantNumbers>,
    ) {
        *self.dormant.lock().unwrap_or_else(PoisonError::into_inner) = dormant;
        *self.unshimmed.lock().unwrap_or_else(PoisonError::into_inner) = unshimmed;
    }

    pub(super) fn dormant(&self) -> Arc<DormantNumbers> {
        Arc::clone(&self.dormant.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn unshimmed(&self) -> BTreeMap<PathBuf, UnshimmedProcess> {
        self.unshimmed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
