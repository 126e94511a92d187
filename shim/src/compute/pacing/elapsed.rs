//! Since when there is work that is not charged, as others see it: threads that launch and wait, and a thread that reaps the
//! process.

use core::sync::atomic::{AtomicU64, Ordering};

/// Since when there is work that is not charged; 0: there is none.
#[repr(C)]
pub(super) struct ElapsedWork {
    /// Of any kind.
    pub(super) any: AtomicU64,
    /// Of a length that no thread knew.
    pub(super) owed: AtomicU64,
}

/// Whether that is what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElapsedChange {
    Changed,
    Same,
}

impl ElapsedWork {
    /// Words that say it already are left alone: threads on other processors read them.
    pub(super) fn say(&self, any: u64, owed: u64) -> ElapsedChange {
        if self.any.load(Ordering::Acquire) != any {
            self.any.store(any, Ordering::Release);
        }
        if self.owed.load(Ordering::Acquire) == owed || self.owed.swap(owed, Ordering::AcqRel) == owed {
            return ElapsedChange::Same;
        }
        ElapsedChange::Changed
    }
}
