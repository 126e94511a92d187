//! Multicast objects: memory that is bound to one is held by it until it is unbound, or the object ends.
//!
//! ```text
//!   object (handle) ─▶ a record without bytes ([`crate::physical`]) ─▶ Bound {place, number} ─▶ a hold on the memory's record
//! ```
//!
//! An object of another process has no record: what is bound to it stays charged until it is unbound, or this process ends.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::account::{self, Account};
use crate::alloc_map::{AllocMap, Key};
use crate::physical::{Going, Number, Seen};
use crate::vendor::{Device, SUCCESS};

#[derive(Clone, Copy, Debug)]
struct Bound {
    object: u64,
    /// Where in the object.
    from: u64,
    /// The grant of the memory's card: two cards bind at the same place.
    grant: u32,
    number: Number,
    /// 0: nobody; else who lets go of it.
    leaving: u64,
}

/// What lets go of memory when its object ends.
const WITH_OBJECT: u64 = u64::MAX;
/// Tells handles of objects that are not known from numbers.
const UNKNOWN: u64 = 1 << 63;

static BOUND: AllocMap<Bound> = AllocMap::new();
static NEXT: AtomicU64 = AtomicU64::new(1);
/// What is bound: in most programs nothing.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A part of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The object's handle.
    pub(crate) object: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

fn object_of(handle: u64) -> u64 {
    match Number::of(handle) {
        Number::NONE => handle | UNKNOWN,
        number => number.get(),
    }
}

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn none() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// Has `leaving` let go of all that is wanted, and says so to the memory.
fn begin(wanted: impl Fn(&Bound) -> bool, leaving: u64, going: &mut Going) {
    let is_free = |bound: &Bound| bound.leaving == 0 && wanted(bound);
    while let Some(key) = BOUND.find(|key, bound| is_free(bound).then_some(key)) {
        let taken = BOUND.update(key, |bound| {
            let is_ours = is_free(bound);
            if is_ours {
                bound.leaving = leaving;
            }
            is_ours.then_some(bound.number)
        });
        if let Some(Some(number)) = taken {
            number.begin_drop(going);
        }
    }
}

/// The vendor let go of what `wanted` names.
fn end(wanted: impl Fn(&Bound) -> bool, seen: Seen) {
    while let Some(key) = BOUND.find(|key, bound| wanted(bound).then_some(key)) {
        if let Some(bound) = BOUND.take(key) {
            COUNT.fetch_sub(1, Ordering::AcqRel);
            bound.number.dropped(seen);
        }
    }
}

/// It did not.
fn keep(wanted: impl Fn(&Bound) -> bool) {
    while let Some(key) = BOUND.find(|key, bound| wanted(bound).then_some(key)) {
        if let Some(number) = BOUND.update(key, |bound| {
            bound.leaving = 0;
            bound.number
        }) {
            number.keep();
        }
    }
}

fn ends_with(object: Number) -> impl Fn(&Bound) -> bool {
    move |bound: &Bound| bound.object == object.get() && bound.leaving == WITH_OBJECT
}

/// The last hold on something is about to go: what is bound to it goes with it.
pub(crate) fn ends(object: Number, going: &mut Going) {
    if !none() {
        begin(|bound| bound.object == object.get(), WITH_OBJECT, going);
    }
}

/// It went.
pub(crate) fn ended(object: Number, seen: Seen) {
    if !none() {
        end(ends_with(object), seen);
    }
}

/// It did not, or somebody else may have it.
pub(crate) fn stays(object: Number) {
    if !none() {
        keep(ends_with(object));
    }
}

/// cuMulticastBindMem and cuMulticastBindAddr: memory of this number, from there on.
pub(crate) fn bind((object, from): (u64, u64), number: Number, call: impl FnOnce() -> i32) -> i32 {
    let number = match number.hold() {
        Ok(number) => number,
        Err(error) => return error,
    };
    let Some(grant) = number.grant() else { return call() };
    let answer = call();
    if answer != SUCCESS {
        number.unhold();
        return answer;
    }
    COUNT.fetch_add(1, Ordering::AcqRel);
    let bound = Bound { object: object_of(object), from, grant, number, leaving: 0 };
    if BOUND.insert(Key(next()), bound).is_err() {
        // Without a record of where it is it stays charged.
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
    SUCCESS
}

/// cuMulticastUnbind of what a card has there.
pub(crate) fn unbind(part: Part, device: Device, call: impl FnOnce() -> i32) -> i32 {
    let ledger = match account::of(device) {
        Account::Counted(ledger) if !none() => ledger,
        _ => return call(),
    };
    let (object, grant) = (object_of(part.object), u32::try_from(ledger.number()).unwrap_or(u32::MAX));
    let until = part.from.saturating_add(part.bytes);
    let is_there = |bound: &Bound| {
        (bound.object, bound.grant) == (object, grant) && part.from <= bound.from && bound.from < until
    };
    let (mut going, ours) = (Going::default(), next());
    begin(is_there, ours, &mut going);
    let (answer, seen, _moving) = going.ask(call);
    if answer == SUCCESS {
        end(|bound| bound.leaving == ours, seen);
    } else {
        keep(|bound| bound.leaving == ours);
    }
    answer
}
