//! Physical memory of `cuMemCreate`: charged until the last reference and the last mapping are gone, whatever names it
//! meanwhile, and until the card is seen to give it back where something else may hold it.
//!
//! ```text
//!   handle ──▶ Name {number, references} ──┐
//!   mapping (address) ─────────────────────┴──▶ record {bytes, grant, handle, holds, live, reach}
//! ```
//!
//! A hold is added before the vendor adds one and dropped from `holds` before the vendor drops one, from `live` only after: so
//! the bytes are credited when the vendor has let go of all, and no process adds a hold to what is on its way out.
//!
//! A handle is the memory's name for as long as the memory is held here, also while no reference to it is left. With the last
//! hold the name goes *before* the vendor is asked: the driver may give its value to something else at once. What is imported of
//! another process has a record without bytes: its owner pays.
//!
//! Memory that was exported has a slot of its own, which importers hold beside its maker ([`crate::memory::ipc_memory`]): it
//! outlives that there, too. It may be held elsewhere when the last hold of this process goes, and no driver tells by whom. The
//! same is true of memory that was bound to a multicast object or a logical endpoint, or put behind a sparse array. Then the
//! record is *kept*, without holds, until the card is seen to give as much back ([`crate::memory::free_memory_delta`]), or until
//! the process ends. One such observation credits one record, so accounting is never below the card.

mod exported;
mod mapped;

use core::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::refusal::RefusedKind;

use crate::accounting::account::{self, Account, Bytes, InFlightOperation, Ledger};
use crate::accounting::alloc_map::{AllocMap, Fate, Key, NoRoom};
use crate::accounting::contexts;
use crate::accounting::credit;
use crate::loader::vendor::{Device, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::memory::admission_gate;
use crate::memory::free_memory_delta::{Watch, WatchedCall};
use crate::memory::ipc_memory;

pub(crate) use exported::{bind, exported_as, import, range_exported};
pub(crate) use mapped::{map, mapped_at, mapped_in, share_mapped, unmap};

/// A number of a record; 0: memory that is not charged here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(u64);

#[derive(Clone, Copy, Debug)]
struct Record {
    bytes: Bytes,
    grant: u32,
    /// What the driver calls it.
    handle: u64,
    /// References and mappings that no process has begun to drop.
    holds: u32,
    /// Those that the vendor has not dropped.
    live: u32,
    reach: SharingScope,
    books: ChargedSlot,
}

/// Which slot has the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum ChargedSlot {
    /// The process's.
    Own = 0,
    /// The memory's.
    Apart = 1,
}

/// Where it can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum SharingScope {
    /// By references and mappings of this process alone.
    Own = 0,
    /// By another process, a multicast object or a sparse array, too.
    Shared = 1,
}

/// What a handle names.
#[derive(Clone, Copy, Debug)]
struct Name {
    number: Number,
    /// How often the program has to release it.
    references: u32,
}

static RECORDS: AllocMap<Record> = AllocMap::new();
static NAMES: AllocMap<Name> = AllocMap::new();
static NEXT: AtomicU64 = AtomicU64::new(1);
/// Records that are kept without holds.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// Bytes of which a call drops the last holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DroppedHolds {
    /// Nothing else can hold them.
    own: u64,
    /// Something else may.
    shared: u64,
    /// What goes may take along memory that is kept.
    may_free_kept: bool,
    grant: Option<u32>,
}

/// Whether the card was seen to give back what may have been held elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseSeen {
    /// It was.
    Given,
    /// Not for sure.
    Unsure,
}

/// How the vendor is asked.
enum CreateCall {
    /// Nothing of it is counted.
    Uncounted,
    Moving(InFlightOperation),
    Watched(Ledger, WatchedCall),
}

// === impl Record ===

impl Record {
    /// No process here holds it any more, and a process elsewhere may.
    fn is_kept(&self) -> bool {
        self.live == 0 && self.holds == 0 && self.reach == SharingScope::Shared
    }

    /// It is on the card no longer.
    fn credit(&self, number: Number) {
        match self.books {
            ChargedSlot::Own => credit::credit(self.grant, self.bytes),
            ChargedSlot::Apart => ipc_memory::give_back(number.lent()),
        }
        if self.bytes.0 == 0 && self.reach == SharingScope::Shared {
            ipc_memory::import_ended(number.lent());
        }
    }
}

// === impl DroppedHolds ===

impl DroppedHolds {
    /// What loses its last hold.
    fn add(&mut self, record: Record) {
        self.grant = Some(record.grant);
        // An import may be of what this process exported.
        self.may_free_kept |= record.bytes.0 == 0;
        let sum = if record.reach == SharingScope::Own { &mut self.own } else { &mut self.shared };
        *sum = sum.saturating_add(record.bytes.0);
    }

    /// Has the vendor do it. Where memory may be held elsewhere the card is watched meanwhile.
    pub(crate) fn ask(self, call: impl FnOnce() -> i32) -> (i32, ReleaseSeen, Option<InFlightOperation>) {
        let asked = self.begin();
        let answer = call();
        let (seen, moving) = self.end(asked, answer);
        (answer, seen, moving)
    }

    fn begin(self) -> CreateCall {
        let Some(ledger) = self.grant.and_then(credit::ledger).or_else(current_ledger) else {
            return CreateCall::Uncounted;
        };
        let has_kept = KEPT.load(Ordering::Acquire) > 0;
        let is_close = self.shared > 0 || has_kept && self.may_free_kept;
        let watch = if is_close { Watch::Closely } else { Watch::Aside };
        if is_close || has_kept {
            return CreateCall::Watched(ledger, WatchedCall::begin(ledger, watch));
        }
        admission_gate::pass_admission_gate(ledger);
        CreateCall::Moving(ledger.moving())
    }

    fn end(self, asked: CreateCall, answer: i32) -> (ReleaseSeen, Option<InFlightOperation>) {
        match asked {
            CreateCall::Uncounted => (ReleaseSeen::Unsure, None),
            CreateCall::Moving(moving) => (ReleaseSeen::Unsure, Some(moving)),
            CreateCall::Watched(ledger, watched) => {
                let (given, moving) = watched.end(answer);
                (given.map_or(ReleaseSeen::Unsure, |given| self.explain(ledger, given)), Some(moving))
            }
        }
    }

    /// What the bytes are that the card has got back: all of these, and perhaps some that were kept.
    fn explain(self, ledger: Ledger, given: Bytes) -> ReleaseSeen {
        let Some(rest) = given.0.checked_sub(self.own.saturating_add(self.shared)) else {
            return ReleaseSeen::Unsure;
        };
        if rest == 0 || credit_kept(ledger, Bytes(rest)) { ReleaseSeen::Given } else { ReleaseSeen::Unsure }
    }
}

/// The accounting of the current card's memory.
pub(crate) fn current_ledger() -> Option<Ledger> {
    match account::of(contexts::current()?.device) {
        Account::Counted(ledger) => Some(ledger),
        Account::Uncounted | Account::Closed => None,
    }
}

/// Credits one kept record of that size, if there is one.
fn credit_kept(ledger: Ledger, bytes: Bytes) -> bool {
    let fits = |record: &Record| {
        record.is_kept() && record.bytes == bytes && usize::try_from(record.grant) == Ok(ledger.number())
    };
    let found = RECORDS.find(|key, record| fits(record).then_some(key));
    let taken = found.and_then(|key| {
        let fate = |record: &mut Record| if fits(record) { Fate::Goes } else { Fate::Stays };
        RECORDS.decide(key, fate).filter(|(fate, _)| *fate == Fate::Goes).map(|(_, record)| (key, record))
    });
    if let Some((key, record)) = taken {
        KEPT.fetch_sub(1, Ordering::AcqRel);
        record.credit(Number(key.0));
    }
    taken.is_some()
}

// === impl Number ===

impl Number {
    /// Memory that is not charged here.
    pub(crate) const NONE: Self = Self(0);

    /// The accounting that pays, if any does.
    pub(crate) fn ledger(self) -> Option<Ledger> {
        self.grant().and_then(credit::ledger)
    }

    /// The grant that pays, if any does.
    pub(crate) fn grant(self) -> Option<u32> {
        RECORDS.get(self.key()).filter(|record| record.bytes.0 > 0).map(|record| record.grant)
    }

    fn key(self) -> Key {
        Key(self.0)
    }

    /// By what it is shared, or was imported; no address is one.
    fn lent(self) -> Key {
        Key(self.0 | 1 << 63)
    }

    /// What a handle names.
    pub(crate) fn of(handle: u64) -> Self {
        NAMES.get(Key(handle)).map_or(Self::NONE, |name| name.number)
    }

    /// Adds a hold before the vendor does; what of it is charged. What is on its way out cannot be held any more.
    pub(crate) fn hold(self) -> Result<Self, i32> {
        let held = RECORDS.update(self.key(), |record| {
            if record.is_kept() {
                // The value is another's by now.
                return Ok(Self::NONE);
            }
            if record.holds == 0 {
                return Err(INVALID_VALUE);
            }
            record.holds = record.holds.saturating_add(1);
            record.live = record.live.saturating_add(1);
            Ok(self)
        });
        held.unwrap_or(Ok(Self::NONE))
    }

    /// Before the vendor drops a hold.
    pub(crate) fn begin_drop(self, going: &mut DroppedHolds) {
        let last = RECORDS.update(self.key(), |record| {
            record.holds = record.holds.saturating_sub(1);
            (record.holds == 0).then_some(*record)
        });
        let Some(last) = last.flatten() else { return };
        self.forget_name(last.handle);
        going.add(last);
    }

    /// The vendor did not.
    pub(crate) fn keep(self) {
        let handle = RECORDS.update(self.key(), |record| {
            record.holds = record.holds.saturating_add(1);
            record.handle
        });
        // A range has none.
        if let Some(handle) = handle.filter(|handle| *handle != 0 && NAMES.get(Key(*handle)).is_none()) {
            // Without a place for its name the next release is free, and it stays charged.
            let _named = NAMES.insert(Key(handle), Name { number: self, references: 0 });
        }
    }

    /// The vendor did; with the last hold the bytes go back, or are kept.
    pub(crate) fn dropped(self, seen: ReleaseSeen) {
        let ended = RECORDS.decide(self.key(), |record| {
            record.live = record.live.saturating_sub(1);
            let is_own = record.reach == SharingScope::Own || record.bytes.0 == 0;
            let is_over = is_own || seen == ReleaseSeen::Given;
            if record.live == 0 && is_over { Fate::Goes } else { Fate::Stays }
        });
        match ended {
            Some((Fate::Goes, record)) => record.credit(self),
            Some((Fate::Stays, record)) if record.is_kept() => {
                KEPT.fetch_add(1, Ordering::AcqRel);
            }
            Some((Fate::Stays, _)) | None => {}
        }
    }

    /// It is charged elsewhere, and was never held here.
    pub(crate) fn discard(self) {
        RECORDS.take(self.key());
    }

    /// Takes back a hold that the vendor never had, or has dropped already.
    pub(crate) fn unhold(self) {
        self.begin_drop(&mut DroppedHolds::default());
        self.dropped(ReleaseSeen::Unsure);
    }

    /// The handle names something else, or nothing, from now on.
    fn forget_name(self, handle: u64) {
        let is_its = |name: &mut Name| if name.number == self { Fate::Goes } else { Fate::Stays };
        let _name = NAMES.decide(Key(handle), is_its);
    }
}

/// Memory that is not charged here was made, and has this handle: what it named before is gone.
pub(crate) fn uncharged(handle: u64) {
    forget_references(NAMES.take(Key(handle)));
}

fn forget_references(stale: Option<Name>) {
    if let Some(Name { number, references }) = stale {
        (0..references).for_each(|_| number.unhold());
    }
}

/// cuMemCreate on a card: charged to it.
pub(crate) fn create(
    account: Account,
    (first, bytes): (Bytes, Bytes),
    make: impl FnOnce() -> Result<u64, i32>,
    unmake: impl FnOnce(u64) -> i32,
) -> Result<u64, i32> {
    let ledger = match account {
        Account::Uncounted => return make().inspect(|handle| uncharged(*handle)),
        Account::Closed => return Err(OUT_OF_MEMORY),
        Account::Counted(ledger) => ledger,
    };
    admission_gate::pass_admission_gate(ledger);
    let _moving = ledger.moving();
    ledger.reserve(first).map_err(|_| ledger.refuse(RefusedKind::Physical.over_limit(first.0)))?;
    let handle = make().inspect_err(|_| ledger.release(first))?;
    if ledger.reserve(Bytes(bytes.0.saturating_sub(first.0))).is_err() {
        if unmake(handle) == SUCCESS {
            ledger.release(first);
        }
        return Err(ledger.refuse(RefusedKind::Physical.over_limit(bytes.0)));
    }
    let grant = u32::try_from(ledger.number()).unwrap_or(u32::MAX);
    let record =
        Record { bytes, grant, handle, holds: 1, live: 1, reach: SharingScope::Own, books: ChargedSlot::Own };
    match note(record) {
        Ok(_) => Ok(handle),
        Err(NoRoom) => {
            if unmake(handle) == SUCCESS {
                ledger.release(bytes);
            }
            Err(ledger.refuse(RefusedKind::Physical.without_place()))
        }
    }
}

/// Notes what has one reference by its handle; what that named before is gone.
fn note(record: Record) -> Result<Number, NoRoom> {
    let number = Number(NEXT.fetch_add(1, Ordering::Relaxed));
    let name = Name { number, references: 1 };
    let key = Key(record.handle);
    let named = RECORDS.insert(number.key(), record).and_then(|_new| NAMES.insert(key, name));
    forget_references(named.inspect_err(|_| {
        RECORDS.take(number.key());
    })?);
    Ok(number)
}

/// An object may let go of memory on this card; `None`: on that of the current context.
pub(crate) fn unbind(device: Option<Device>, call: impl FnOnce() -> i32) -> i32 {
    let grant = device.and_then(|device| match account::of(device) {
        Account::Counted(ledger) => u32::try_from(ledger.number()).ok(),
        Account::Uncounted | Account::Closed => None,
    });
    DroppedHolds { may_free_kept: true, grant, ..DroppedHolds::default() }.ask(call).0
}

/// cuMemRelease.
pub(crate) fn release(handle: u64, call: impl FnOnce() -> i32) -> i32 {
    let named = NAMES.update(Key(handle), |name| {
        let number = (name.references > 0).then_some(name.number);
        name.references = name.references.saturating_sub(1);
        number
    });
    // Perhaps a multicast object.
    let Some(number) = named.flatten() else { return unbind(None, call) };
    let mut going = DroppedHolds::default();
    number.begin_drop(&mut going);
    let (answer, seen, _moving) = going.ask(call);
    if answer == SUCCESS {
        number.dropped(seen);
    } else {
        number.keep();
        NAMES.update(Key(handle), |name| name.references = name.references.saturating_add(1));
    }
    answer
}

/// cuMemRetainAllocationHandle: one more reference for what is mapped at an address.
pub(crate) fn retain(address: u64, call: impl FnOnce() -> Result<u64, i32>) -> Result<u64, i32> {
    let Some(number) = mapped_at(address) else { return call() };
    let number = number.hold()?;
    let found = call().inspect_err(|_| number.unhold())?;
    number.name(found);
    Ok(found)
}

impl Number {
    /// One more reference by a handle.
    fn name(self, handle: u64) {
        if self == Self::NONE {
            return;
        }
        let added = NAMES.update(Key(handle), |name| {
            if name.number == self {
                name.references = name.references.saturating_add(1);
            }
        });
        if added.is_none() {
            // Without a place it is never released, and stays charged.
            let _named = NAMES.insert(Key(handle), Name { number: self, references: 1 });
        }
    }
}
