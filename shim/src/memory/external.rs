//! Memory that another interface to the card made (`cuImportExternalMemory`): no other process can have charged it, so a
//! process that imports it pays.
//!
//! ```text
//!   object (handle) ────────────────┐
//!   buffer (address) ───────────────┼──▶ number ─▶ its bytes in [`IMPORTED`], until the last hold goes
//!   mipmapped array (handle) ───────┘
//! ```
//!
//! The vendor says that what is mapped of an object has to be freed on its own, the object being destroyed or not. Where it gives
//! the same address twice, that is two holds.
//!
//! The card has the memory before, and perhaps after: accounting changes and free memory does not. So no process measures
//! meanwhile.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::accounting::account::{self, Account, Bytes, InFlightOperation, Ledger};
use crate::accounting::alloc_map::{AllocEntry, AllocMap, Fate, Key, NoRoom, Tie};
use crate::accounting::contexts;
use crate::loader::vendor::{OUT_OF_MEMORY, SUCCESS};
use crate::memory::admission_gate::DeltaTurn;
use crate::memory::plain::{self, Charge, IMPORTED, VendorAllocation};
use crate::sys::KeepErrno;

static HOLDS: AllocMap<Holds> = AllocMap::new();
static OBJECTS: AllocMap<Name> = AllocMap::new();
static BUFFERS: AllocMap<Name> = AllocMap::new();
static ARRAYS: AllocMap<Name> = AllocMap::new();
static NEXT: AtomicU64 = AtomicU64::new(1);
/// 1: something was mapped, which most programs never do.
static MAPPED: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, Debug)]
struct Holds {
    count: u32,
    tie: Tie,
}

/// What the vendor's handle or address stands for.
#[derive(Clone, Copy, Debug)]
struct Name {
    number: u64,
    /// How often the program has to let go of it, each a hold.
    times: u32,
    tie: Tie,
}

/// What is mapped of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Its address is freed.
    Buffer,
    /// It is destroyed.
    Array,
}

impl Mapping {
    fn names(self) -> &'static AllocMap<Name> {
        match self {
            Self::Buffer => &BUFFERS,
            Self::Array => &ARRAYS,
        }
    }
}

/// No process measures while this is held; `None`: nothing is charged in the current context.
fn turn() -> Option<DeltaTurn> {
    let _errno = KeepErrno::new();
    match account::of(contexts::current()?.device) {
        Account::Counted(ledger) => Some(DeltaTurn::take(ledger)),
        Account::Uncounted | Account::Closed => None,
    }
}

/// One more hold. False: it is gone, or not charged.
fn hold(number: u64) -> bool {
    HOLDS.update(Key(number), |holds| holds.count = holds.count.saturating_add(1)).is_some()
}

/// So many holds less; with the last the bytes go back.
fn let_go(number: u64, times: u32) {
    let held = HOLDS.decide(Key(number), |holds| {
        holds.count = holds.count.saturating_sub(times);
        if holds.count == 0 { Fate::Goes } else { Fate::Stays }
    });
    if let Some((Fate::Goes, _)) = held
        && let Some(freeing) = plain::before_free(&IMPORTED, Key(number))
    {
        freeing.freed();
    }
}

/// Notes a name; what it stood for before is gone.
fn note(names: &AllocMap<Name>, key: Key, name: Name) -> Result<(), NoRoom> {
    if let Some(stale) = names.insert(key, name)? {
        let_go(stale.number, stale.times);
    }
    Ok(())
}

/// cuImportExternalMemory of so many bytes, of which the first are reserved before it; `destroy` is the vendor's. The card has
/// the memory already.
pub(crate) fn import(
    (first, bytes): (Bytes, Bytes),
    call: impl FnOnce() -> Result<u64, i32>,
    destroy: fn(u64) -> i32,
) -> Result<u64, i32> {
    let _turn = turn();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let made = Cell::new(0);
    let make = || {
        made.set(call()?);
        Ok(VendorAllocation { key: Key(number), bytes })
    };
    plain::make((&IMPORTED, Charge::Exact), Some(first), make, |_| destroy(made.get()))?;
    let handle = made.get();
    let Some(held) = IMPORTED.get(Key(number)) else { return Ok(handle) };
    let tie = held.tie();
    let noted = HOLDS
        .insert(Key(number), Holds { count: 1, tie })
        .and_then(|_new| note(&OBJECTS, Key(handle), Name { number, times: 1, tie }));
    if noted.is_ok() {
        return Ok(handle);
    }
    // What is still there stays charged.
    HOLDS.take(Key(number));
    if destroy(handle) == SUCCESS
        && let Some(freeing) = plain::before_free(&IMPORTED, Key(number))
    {
        freeing.freed();
    }
    Err(OUT_OF_MEMORY)
}

/// A mapping of an object is made; `undo` is the vendor's way back.
pub(crate) fn map(
    mapping: Mapping,
    object: u64,
    call: impl FnOnce() -> Result<u64, i32>,
    undo: fn(u64) -> i32,
) -> Result<u64, i32> {
    let Some(name) = OBJECTS.get(Key(object)).filter(|name| hold(name.number)) else { return call() };
    let made = call().inspect_err(|_| let_go(name.number, 1))?;
    let again = mapping.names().update(Key(made), |known| {
        let is_same = known.number == name.number;
        known.times = known.times.saturating_add(u32::from(is_same));
        is_same
    });
    MAPPED.store(1, Ordering::Release);
    if again == Some(true) || note(mapping.names(), Key(made), name).is_ok() {
        return Ok(made);
    }
    if undo(made) == SUCCESS {
        let_go(name.number, 1);
    }
    Err(OUT_OF_MEMORY)
}

/// Something that the vendor is about to be asked to let go of.
#[must_use]
pub(crate) struct ExternalRelease {
    names: &'static AllocMap<Name>,
    key: Key,
    name: Name,
    _turn: Option<DeltaTurn>,
    _moving: Option<InFlightOperation>,
}

fn before(names: &'static AllocMap<Name>, key: Key) -> Option<ExternalRelease> {
    let fewer = |name: &mut Name| {
        name.times = name.times.saturating_sub(1);
        if name.times == 0 { Fate::Goes } else { Fate::Stays }
    };
    let (_, name) = names.decide(key, fewer)?;
    // Of whatever card, and in whatever context or none.
    let ledger = IMPORTED.get(Key(name.number)).and_then(AllocEntry::ledger);
    let _errno = KeepErrno::new();
    Some(ExternalRelease {
        names,
        key,
        name,
        _turn: ledger.map(DeltaTurn::take),
        _moving: ledger.map(Ledger::moving),
    })
}

/// Before a mapping is freed. `None`: it is none.
pub(crate) fn before_free(mapping: Mapping, key: Key) -> Option<ExternalRelease> {
    if MAPPED.load(Ordering::Acquire) == 0 {
        return None;
    }
    before(mapping.names(), key)
}

impl ExternalRelease {
    /// As the vendor answered.
    pub(crate) fn settle(self, answer: i32) {
        let Self { names, key, name, .. } = self;
        if answer == SUCCESS {
            return let_go(name.number, 1);
        }
        let more = |known: &mut Name| known.times = known.times.saturating_add(1);
        if names.update(key, more).is_none() {
            // Without a place it stays charged until its context ends.
            let _noted = note(names, key, Name { times: 1, ..name });
        }
    }
}

/// cuDestroyExternalMemory.
pub(crate) fn destroy(object: u64, call: impl FnOnce() -> i32) -> i32 {
    let letting = before(&OBJECTS, Key(object));
    let answer = call();
    if let Some(letting) = letting {
        letting.settle(answer);
    }
    answer
}

/// A context ended, and with it what was imported and mapped in it. Its bytes are credited with the context's.
pub(crate) fn context_ended(tie: Tie) {
    for names in [&OBJECTS, &BUFFERS, &ARRAYS] {
        names.sweep(|_, name| name.tie == tie, |_| ());
    }
    HOLDS.sweep(|_, holds| holds.tie == tie, |_| ());
}
