//! Multicast objects and logical endpoints: memory that is bound to one is held by it until it is unbound, or the object ends.
//!
//! ```text
//!   object (handle) ─▶ a record without bytes ([`crate::memory::physical`]) ─▶ Bound {place, number} ─▶ a hold on the memory's record
//! ```
//!
//! An object that was exported or imported may be others' as well when its last hold of this process goes. What is bound to it
//! then stays charged, unless the card is seen to give it back ([`crate::memory::free_memory_delta`]): no process can unbind
//! it here any more, as a handle of the same value is another object's.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::accounting::account::{self, Account};
use crate::accounting::alloc_map::{AllocMap, Key};
use crate::loader::vendor::{Device, OUT_OF_MEMORY, SUCCESS};
use crate::memory::physical::{DroppedHolds, Number, ReleaseSeen};

#[derive(Clone, Copy, Debug)]
struct Binding {
    object: Number,
    /// Where in the object.
    from: u64,
    /// The grant of the memory's card: two cards bind at the same place.
    grant: u32,
    number: Number,
    /// 0: no thread; else the thread that lets go of it.
    leaving: u64,
}

/// What lets go of memory when its object ends.
const WITH_OBJECT: u64 = u64::MAX;
/// Mappings in a row that one call binds.
const MEMORIES_MAX: usize = 64;

static BOUND: AllocMap<Binding> = AllocMap::new();
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

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn none() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// Has `leaving` let go of all that is wanted, and says so to the memory; whether there was any.
fn begin(wanted: impl Fn(&Binding) -> bool, leaving: u64, going: &mut DroppedHolds) -> bool {
    let is_free = |bound: &Binding| bound.leaving == 0 && wanted(bound);
    let mut any = false;
    while let Some(key) = BOUND.find(|key, bound| is_free(bound).then_some(key)) {
        let taken = BOUND.update(key, |bound| {
            let is_ours = is_free(bound);
            if is_ours {
                bound.leaving = leaving;
            }
            is_ours.then_some(bound.number)
        });
        if let Some(Some(number)) = taken {
            any = true;
            number.begin_drop(going);
        }
    }
    any
}

/// The vendor let go of what `wanted` names.
fn end(wanted: impl Fn(&Binding) -> bool, seen: ReleaseSeen) {
    while let Some(key) = BOUND.find(|key, bound| wanted(bound).then_some(key)) {
        if let Some(bound) = BOUND.take(key) {
            COUNT.fetch_sub(1, Ordering::AcqRel);
            bound.number.dropped(seen);
        }
    }
}

/// It did not.
fn keep(wanted: impl Fn(&Binding) -> bool) {
    while let Some(key) = BOUND.find(|key, bound| wanted(bound).then_some(key)) {
        if let Some(number) = BOUND.update(key, |bound| {
            bound.leaving = 0;
            bound.number
        }) {
            number.keep();
        }
    }
}

fn ends_with(object: Number) -> impl Fn(&Binding) -> bool {
    move |bound: &Binding| bound.object == object && bound.leaving == WITH_OBJECT
}

/// The last hold on something is about to go: what is bound to it goes with it; whether anything is.
pub(crate) fn ends(object: Number, going: &mut DroppedHolds) -> bool {
    !none() && begin(|bound| bound.object == object, WITH_OBJECT, going)
}

/// Whether anything is bound to it.
pub(crate) fn has_any(object: Number) -> bool {
    !none() && BOUND.find(|_, bound| (bound.object == object).then_some(())).is_some()
}

/// It went.
pub(crate) fn ended(object: Number, seen: ReleaseSeen) {
    if !none() {
        end(ends_with(object), seen);
    }
}

/// It did not, or another process may have it.
pub(crate) fn stays(object: Number) {
    if !none() {
        keep(ends_with(object));
    }
}

/// Memory that a call binds, held for it: the number, and the grant that pays.
#[derive(Clone, Copy)]
struct BoundMemory(Number, u32);

/// The same of one call, all or nothing.
struct HeldAll {
    held: [BoundMemory; MEMORIES_MAX],
    count: usize,
}

impl HeldAll {
    const NONE: Self = Self { held: [BoundMemory(Number::NONE, 0); MEMORIES_MAX], count: 0 };

    /// In place: it is large for a stack.
    fn hold(&mut self, memory: &mut dyn Iterator<Item = Number>) -> Result<(), i32> {
        for (number, grant) in memory.filter_map(|number| Some((number, number.grant()?))) {
            let Some(place) = self.held.get_mut(self.count) else {
                self.unhold();
                return Err(OUT_OF_MEMORY);
            };
            match number.hold() {
                Ok(number) => *place = BoundMemory(number, grant),
                Err(error) => {
                    self.unhold();
                    return Err(error);
                }
            }
            self.count += 1;
        }
        Ok(())
    }

    fn each(&self) -> impl Iterator<Item = BoundMemory> {
        self.held.iter().copied().take(self.count)
    }

    fn unhold(&self) {
        self.each().for_each(|BoundMemory(number, _)| number.unhold());
    }

    /// It is bound there. Without a record of where it is it stays charged.
    fn note(&self, (object, from): (u64, u64)) {
        let object = Number::of(object);
        let is_known = |held: &BoundMemory| object != Number::NONE && held.0 != Number::NONE;
        for BoundMemory(number, grant) in self.each().filter(is_known) {
            COUNT.fetch_add(1, Ordering::AcqRel);
            let bound = Binding { object, from, grant, number, leaving: 0 };
            if BOUND.insert(Key(next()), bound).is_err() {
                COUNT.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// cuMulticastBindMem and cuMulticastBindAddr: memory of these numbers, from there on.
pub(crate) fn bind(
    place: (u64, u64),
    memory: &mut dyn Iterator<Item = Number>,
    call: impl FnOnce() -> i32,
) -> i32 {
    let mut held = HeldAll::NONE;
    if let Err(error) = held.hold(memory) {
        return error;
    }
    let answer = call();
    if answer == SUCCESS {
        held.note(place);
    } else {
        held.unhold();
    }
    answer
}

/// cuMulticastUnbind of what a card has there.
pub(crate) fn unbind(part: Part, device: Device, call: impl FnOnce() -> i32) -> i32 {
    let ledger = match account::of(device) {
        Account::Counted(ledger) if !none() => ledger,
        _ => return call(),
    };
    let (object, grant) = (Number::of(part.object), u32::try_from(ledger.number()).unwrap_or(u32::MAX));
    let until = part.from.saturating_add(part.bytes);
    let is_there = |bound: &Binding| {
        (bound.object, bound.grant) == (object, grant) && part.from <= bound.from && bound.from < until
    };
    let (mut going, ours) = (DroppedHolds::default(), next());
    let _any = begin(is_there, ours, &mut going);
    let (answer, seen, _moving) = going.ask(call);
    if answer == SUCCESS {
        end(|bound| bound.leaving == ours, seen);
    } else {
        keep(|bound| bound.leaving == ours);
    }
    answer
}
