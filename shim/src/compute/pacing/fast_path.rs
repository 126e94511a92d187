//! What becomes of a launch, by the card that it goes to.

// UNSAFETY: private state lies in a mapping.
#![expect(unsafe_code, reason = "private state lies in a mapping")]

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use aliquot_abi::limits::{ComputePolicy, FailMode};

use super::{PacedCard, READY, of_grant};
use crate::grants::Need;
use crate::grants::{self, CardStatus, DEVICES_MAX, Grant};
use crate::loader::vendor::{self, Device, SUCCESS};

/// The only card there is, where there is one and its compute is limited: its grant, found without a question to the driver.
static SOLE: AtomicPtr<PacedCard> = AtomicPtr::new(core::ptr::null_mut());

/// Controllers by the number of their card, for launches that have to ask which card is meant.
static OF_CARD: [AtomicPtr<PacedCard>; DEVICES_MAX] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; DEVICES_MAX];

/// Cards that the process sees; 0: no thread asked yet.
static CARDS: AtomicU32 = AtomicU32::new(0);

/// What becomes of launches on a card.
pub(super) enum LaunchPath {
    /// They go as they are.
    Free,
    /// They go as its share allows.
    Paced(&'static PacedCard),
    /// They are refused: compute is limited, and cannot be metered.
    Closed,
}

/// The stream on which work goes that names none: the current context's.
pub(super) const NO_STREAM: u64 = 0;

/// Streams that are remembered with their cards at once.
const NOTED_MAX: usize = 256;

/// Bits of a noted word that say the card.
const CARD_BITS: u32 = 6;

const _: () = assert!(DEVICES_MAX == 1 << CARD_BITS);

/// Named streams and the cards on which they are: the one above the other's bits; 0: nothing. The driver gives handles again: a
/// stream's word goes with it, and all do with a context and its streams.
static NOTED: [AtomicU64; NOTED_MAX] = [const { AtomicU64::new(0) }; NOTED_MAX];

#[inline]
fn place_of(lane: u64) -> Option<&'static AtomicU64> {
    let spread = lane.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    NOTED.get(usize::try_from(spread).ok()? % NOTED_MAX)
}

/// The card of a stream, where an earlier launch found it.
#[inline]
fn noted(lane: u64) -> Option<Device> {
    let word = place_of(lane)?.load(Ordering::Relaxed);
    let card = i32::try_from(word & ((1 << CARD_BITS) - 1)).ok()?;
    (word >> CARD_BITS == lane).then_some(Device(card))
}

fn note(lane: u64, device: Device) {
    let (Some(place), Ok(card)) = (place_of(lane), u64::try_from(device.0)) else { return };
    // A handle without room above the card's bits is asked about each time.
    if lane << CARD_BITS >> CARD_BITS == lane && card < 1 << CARD_BITS {
        place.store(lane << CARD_BITS | card, Ordering::Relaxed);
    }
}

/// A stream ends.
pub(super) fn forget(lane: u64) {
    if let Some(place) = place_of(lane) {
        place.store(0, Ordering::Relaxed);
    }
}

/// Streams ended with their context.
pub(super) fn forget_all() {
    NOTED.iter().for_each(|place| place.store(0, Ordering::Relaxed));
}

#[inline]
fn ready(found: *mut PacedCard) -> Option<&'static PacedCard> {
    if found.is_null() {
        return None;
    }
    // SAFETY: not null: a mapping of one value that is never unmapped; `ready` guards its markers.
    let paced = unsafe { &*found };
    // A forked child finds zeros there.
    (paced.ready.load(Ordering::Acquire) == READY).then_some(paced)
}

#[inline]
fn of_card(device: Device) -> Option<&'static PacedCard> {
    ready(OF_CARD.get(usize::try_from(device.0).ok()?)?.load(Ordering::Acquire))
}

/// The controller of a stream's card, where its compute is limited and an earlier launch found it.
#[inline]
pub(super) fn known(lane: u64) -> Option<&'static PacedCard> {
    let sole = SOLE.load(Ordering::Acquire);
    if !sole.is_null() {
        return ready(sole);
    }
    let device = if vendor::is_named(lane) { noted(lane)? } else { vendor::current_device()? };
    of_card(device)
}

/// The controllers of all cards that an earlier launch found.
pub(super) fn all_known() -> impl Iterator<Item = &'static PacedCard> {
    let cards = usize::try_from(CARDS.load(Ordering::Relaxed)).unwrap_or(0);
    OF_CARD.iter().take(cards).filter_map(|place| ready(place.load(Ordering::Acquire)))
}

/// What becomes of work on a stream, of which the driver takes the context from the stream; on one without a name, in the
/// current context. Asks which card is meant; with only one, no later launch need ask.
#[cold]
pub(super) fn of_stream(lane: u64) -> LaunchPath {
    if let Some(sole) = ready(SOLE.load(Ordering::Acquire)) {
        return LaunchPath::Paced(sole);
    }
    let is_only = cards() == 1;
    let device = match lane {
        lane if !vendor::is_named(lane) => vendor::current_device(),
        _ if is_only => Some(Device(0)),
        lane => vendor::device_of(lane).or_else(vendor::current_device),
    };
    // The driver will refuse.
    let Some(device) = device else { return LaunchPath::Free };
    let way = of_device(device);
    let LaunchPath::Paced(paced) = way else { return way };
    let place = core::ptr::from_ref(paced).cast_mut();
    if let Some(known) = usize::try_from(device.0).ok().and_then(|index| OF_CARD.get(index)) {
        known.store(place, Ordering::Release);
    }
    if is_only {
        SOLE.store(place, Ordering::Release);
    } else if vendor::is_named(lane) {
        note(lane, device);
    }
    way
}

/// The controller of a context's card, where its compute is limited.
pub(super) fn of_context(context: u64) -> Option<&'static PacedCard> {
    if let Some(sole) = ready(SOLE.load(Ordering::Acquire)) {
        return Some(sole);
    }
    match of_device(vendor::device_of_context(context)?) {
        LaunchPath::Paced(paced) => Some(paced),
        LaunchPath::Free | LaunchPath::Closed => None,
    }
}

/// How many cards the process sees; 0: the driver does not say.
fn cards() -> u32 {
    let known = CARDS.load(Ordering::Relaxed);
    let mut count = 0;
    if known != 0 || vendor::cuDeviceGetCount(&raw mut count) != Some(SUCCESS) {
        return known;
    }
    let count = u32::try_from(count).unwrap_or(0);
    CARDS.store(count, Ordering::Relaxed);
    count
}

fn of_device(device: Device) -> LaunchPath {
    match grants::standing(device) {
        CardStatus::Ungoverned => LaunchPath::Free,
        // Graphs are hooked for grants of memory alone, too.
        CardStatus::Closed if grants::want(Need::Compute) => LaunchPath::Closed,
        CardStatus::Closed => LaunchPath::Free,
        CardStatus::Granted(grant) => match of_grant(grant.number) {
            Some(meter) => LaunchPath::Paced(meter.paced),
            None if is_closed(grant) => LaunchPath::Closed,
            None => LaunchPath::Free,
        },
    }
}

/// Whether the grant limits compute, and leaves nothing open where that cannot be metered: its usage file cannot be used, or the
/// process has no address space left for what metering takes.
fn is_closed(grant: &Grant) -> bool {
    let first = grant.first();
    first.policy != ComputePolicy::Unlimited && first.fail_mode == FailMode::Closed
}
