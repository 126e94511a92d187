//! What lies behind parts of sparse arrays: each part is a hold on physical memory.
//!
//! ```text
//!   cuMemMapArrayAsync: map   ─▶ Place {part, number}
//!                       unmap ─▶ the places that it covers leave when the stream is there ([`crate::memory::deferred_free`])
//! ```
//!
//! A place that is only partly covered stays charged until it is covered whole or its array ends. Where no event can be had
//! they stay until their array ends, too.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::accounting::account::UnaccountedRelease;
use crate::accounting::alloc_map::{AllocMap, Key, Tie};
use crate::accounting::contexts;
use crate::accounting::credit;
use crate::loader::vendor::{SUCCESS, StreamMode};
use crate::memory::deferred_free::{self, DeferredItem};
use crate::memory::physical::Number;
use crate::sys::KeepErrno;

/// Part of an array: the same level, layer and kind, and a range in each direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) array: u64,
    /// Kind, level, layer.
    pub(crate) of: [u32; 3],
    pub(crate) from: [u64; 3],
    pub(crate) to: [u64; 3],
}

/// What is to be behind a part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PartBacking {
    /// What this handle names.
    Handle(u64),
    /// Nothing.
    Nothing,
    /// What the driver will refuse.
    Unknown,
}

/// One part and what is to be behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) part: Part,
    pub(crate) behind: PartBacking,
}

#[derive(Clone, Copy, Debug)]
struct MappedPart {
    part: Part,
    number: Number,
    tie: Tie,
}

static PLACES: AllocMap<MappedPart> = AllocMap::new();
static NEXT: AtomicU64 = AtomicU64::new(1);
/// Places: most programs have none.
static COUNT: AtomicU64 = AtomicU64::new(0);

impl Part {
    fn covers(&self, other: &Self) -> bool {
        let starts = self.from.iter().zip(other.from).all(|(own, other)| *own <= other);
        let ends = self.to.iter().zip(other.to).all(|(own, other)| *own >= other);
        (self.array, self.of) == (other.array, other.of) && starts && ends
    }
}

fn next() -> Key {
    Key(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Nothing is behind any part, and nothing leaves.
pub(crate) fn none() -> bool {
    places_are_none() && deferred_free::none()
}

fn places_are_none() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// Takes out one place that is wanted.
fn take(wanted: impl Fn(&MappedPart) -> bool) -> Option<MappedPart> {
    loop {
        let found = PLACES.find(|key, place| wanted(place).then_some(key))?;
        // Another thread may have been faster.
        if let Some(place) = PLACES.take(found) {
            COUNT.fetch_sub(1, Ordering::AcqRel);
            return Some(place);
        }
    }
}

/// cuMemMapArrayAsync of these changes, which can be gone through again and again.
pub(crate) fn change(
    changes: impl Iterator<Item = Change> + Clone,
    (stream, mode): (u64, StreamMode),
    call: impl FnOnce() -> i32,
) -> i32 {
    let handles = changes.clone().filter_map(|change| match change.behind {
        PartBacking::Handle(handle) => Some(handle),
        PartBacking::Nothing | PartBacking::Unknown => None,
    });
    for (count, handle) in handles.clone().enumerate() {
        if let Err(error) = Number::of(handle).hold() {
            handles.take(count).for_each(|handle| Number::of(handle).unhold());
            return error;
        }
    }
    // What is there leaves the card when its stream says so, and accounting when this process looks.
    handles
        .clone()
        .filter_map(|handle| Number::of(handle).grant().and_then(credit::ledger))
        .for_each(|ledger| ledger.loosen(UnaccountedRelease::Memory));
    let answer = call();
    if answer != SUCCESS {
        handles.for_each(|handle| Number::of(handle).unhold());
        return answer;
    }
    let _errno = KeepErrno::new();
    let tie = contexts::current().map_or(Tie(0), |current| current.tie);
    let mut event = None;
    for Change { part, behind } in changes {
        while !places_are_none()
            && let Some(place) = take(|place| part.covers(&place.part))
        {
            let event = *event.get_or_insert_with(|| deferred_free::StreamPoint::of(stream, mode, tie));
            leave(event, place);
        }
        if let PartBacking::Handle(handle) = behind {
            put(MappedPart { part, number: Number::of(handle), tie });
        }
    }
    if let Some(Some(event)) = event {
        event.begins();
    }
    deferred_free::settle();
    SUCCESS
}

fn put(place: MappedPart) {
    COUNT.fetch_add(1, Ordering::AcqRel);
    if PLACES.insert(next(), place).is_err() {
        // Without a record of where it is it stays charged.
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A place goes when the stream has reached the event; without one it stays until its array ends.
fn leave(event: Option<deferred_free::StreamPoint>, place: MappedPart) {
    let Some(event) = event else {
        // Nothing covers it from now on.
        let part = Part { of: [u32::MAX; 3], ..place.part };
        return put(MappedPart { part, ..place });
    };
    // Without a record of it it stays charged.
    let _recorded = event.add(DeferredItem::Hold(place.number));
}

/// An array ended, and with it what was behind it.
pub(crate) fn array_ended(array: u64) {
    while !places_are_none()
        && let Some(place) = take(|place| place.part.array == array)
    {
        place.number.unhold();
    }
}

/// A context ended, with its arrays.
pub(crate) fn context_ended(tie: Tie) {
    while !places_are_none()
        && let Some(place) = take(|place| place.tie == tie)
    {
        place.number.unhold();
    }
}
