//! The primary contexts of this process.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::retention::Retention;
use super::{DEVICES_MAX, Holder, end_if_gone, primary};
use crate::accounting::alloc_map::Tie;
use crate::accounting::contexts;
use crate::loader::vendor::Device;

/// A card's primary context, as this process's calls made it.
pub(super) struct Primary {
    pub(super) handle: AtomicU64,
    /// How often the program has it.
    pub(super) retained: AtomicU32,
    /// Green contexts that have it.
    pub(super) greens: AtomicU32,
    /// Calls under way that may come to have it.
    pub(super) coming: AtomicU32,
    pub(super) retention: Retention,
}

impl Primary {
    pub(super) const fn none() -> Self {
        Self {
            handle: AtomicU64::new(0),
            retained: AtomicU32::new(0),
            greens: AtomicU32::new(0),
            coming: AtomicU32::new(0),
            retention: Retention::new(),
        }
    }

    pub(super) fn count(&self, holder: Holder) -> &AtomicU32 {
        match holder {
            Holder::Program => &self.retained,
            Holder::Green => &self.greens,
        }
    }

    /// One holder of this kind less.
    pub(super) fn one_less(&self, holder: Holder) {
        let fewer = |count: u32| count.checked_sub(1);
        let _none_before = self.count(holder).fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
    }

    /// No thread has it any more.
    pub(super) fn clear_holders(&self) {
        for holder in [Holder::Program, Holder::Green] {
            self.count(holder).store(0, Ordering::Release);
        }
    }

    /// Whether a thread has it, or is about to.
    pub(super) fn is_held(&self) -> bool {
        self.is_held_beside(None)
    }

    /// The same beside one holder of this kind.
    pub(super) fn is_held_beside(&self, holder: Option<Holder>) -> bool {
        let held = |kind: Holder| {
            self.count(kind).load(Ordering::Acquire).saturating_sub(u32::from(Some(kind) == holder))
        };
        held(Holder::Program) > 0 || held(Holder::Green) > 0 || self.coming.load(Ordering::Acquire) > 0
    }

    /// Its handle is this one: one of another handle has ended.
    pub(super) fn is_at(&self, device: Device, handle: u64) {
        let before = self.handle.load(Ordering::Acquire);
        if before != handle {
            end_if_gone(device, self, before);
            self.handle.store(handle, Ordering::Release);
        }
    }

    /// The number that its context of this handle has; another context may have the handle by now.
    pub(super) fn tie_at(&self, handle: u64) -> Option<Tie> {
        let tie = contexts::find(handle);
        tie.filter(|_| self.handle.load(Ordering::Acquire) == handle)
    }

    /// One of this handle has ended, or another one has taken its place.
    pub(super) fn leaves(&self, handle: u64, next: u64) -> bool {
        self.handle.compare_exchange(handle, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A context that is no primary one was made, and the driver gave it this handle: a primary one that had it has ended.
pub(crate) fn begins(handle: u64) {
    // Before anything can be allocated in it: a thread that finds the earlier one gone is not to take this one's number.
    for primary in &PRIMARY {
        primary.leaves(handle, 0);
    }
    contexts::begins(handle);
}

/// A call under way that may come to have a primary context.
pub(super) struct PrimaryCreation(Option<&'static Primary>);

impl PrimaryCreation {
    pub(super) fn to(device: Device) -> Self {
        Self(primary(device).inspect(|primary| {
            primary.coming.fetch_add(1, Ordering::AcqRel);
        }))
    }
}

impl Drop for PrimaryCreation {
    fn drop(&mut self) {
        let _others = self.0.map(|primary| primary.coming.fetch_sub(1, Ordering::AcqRel));
    }
}

pub(super) static PRIMARY: [Primary; DEVICES_MAX] = [const { Primary::none() }; DEVICES_MAX];
