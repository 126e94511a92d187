//! What becomes of a launch, by the card that it goes to.

// UNSAFETY: private state lies in a mapping.
#![expect(unsafe_code, reason = "private state lies in a mapping")]

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use aliquot_abi::limits::{ComputePolicy, FailMode};

use super::{Paced, READY, of_grant};
use crate::grants::{self, DEVICES_MAX, Grant, Standing};
use crate::hook::Need;
use crate::vendor::{self, Device, SUCCESS};

/// The only card there is, where there is one and its compute is limited: its grant, found without a question to the driver.
static SOLE: AtomicPtr<Paced> = AtomicPtr::new(core::ptr::null_mut());

/// Controllers by the number of their card, for launches that have to ask which card is meant.
static OF_CARD: [AtomicPtr<Paced>; DEVICES_MAX] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; DEVICES_MAX];

/// Cards that the process sees; 0: nobody asked yet.
static CARDS: AtomicU32 = AtomicU32::new(0);

/// What becomes of launches on a card.
pub(super) enum Way {
    /// They go as they are.
    Free,
    /// They go as its share allows.
    Paced(&'static Paced),
    /// They are refused: compute is limited, and cannot be metered.
    Closed,
}

/// The controller of the current card, where its compute is limited and an earlier launch found it.
#[inline]
pub(super) fn known() -> Option<&'static Paced> {
    let mut found = SOLE.load(Ordering::Acquire);
    if found.is_null() {
        let device = vendor::current_device()?;
        found = OF_CARD.get(usize::try_from(device.0).ok()?)?.load(Ordering::Acquire);
    }
    if found.is_null() {
        return None;
    }
    // SAFETY: as in `super::paced`.
    let paced = unsafe { &*found };
    // A forked child finds zeros there.
    (paced.ready.load(Ordering::Acquire) == READY).then_some(paced)
}

/// What becomes of launches on the current card.
#[inline]
pub(super) fn current() -> Way {
    known().map_or_else(look, Way::Paced)
}

/// Asks which card is meant; with only one, no later launch need ask.
#[cold]
fn look() -> Way {
    // Without a context the driver will refuse.
    let Some(device) = vendor::current_device() else { return Way::Free };
    let way = of_device(device);
    let Way::Paced(paced) = way else { return way };
    let place = core::ptr::from_ref(paced).cast_mut();
    if let Some(known) = usize::try_from(device.0).ok().and_then(|index| OF_CARD.get(index)) {
        known.store(place, Ordering::Release);
    }
    if CARDS.load(Ordering::Relaxed) == 0 {
        let mut count = 0;
        if vendor::cuDeviceGetCount(&raw mut count) == Some(SUCCESS) {
            CARDS.store(count.unsigned_abs(), Ordering::Relaxed);
        }
    }
    if CARDS.load(Ordering::Relaxed) == 1 {
        SOLE.store(place, Ordering::Release);
    }
    way
}

pub(super) fn of_device(device: Device) -> Way {
    match grants::standing(device) {
        Standing::Ungoverned => Way::Free,
        // Graphs are hooked for grants of memory alone, too.
        Standing::Closed if grants::want(Need::Compute) => Way::Closed,
        Standing::Closed => Way::Free,
        Standing::Granted(grant) => match of_grant(grant.number) {
            Some(meter) => Way::Paced(meter.paced),
            None if is_closed(grant) => Way::Closed,
            None => Way::Free,
        },
    }
}

/// Whether the grant limits compute, and leaves nothing open where that cannot be metered: its usage file cannot be used, or the
/// process has no address space left for what metering takes.
fn is_closed(grant: &Grant) -> bool {
    let first = grant.first();
    first.policy != ComputePolicy::Unlimited && first.fail_mode == FailMode::Closed
}
