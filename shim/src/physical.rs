//! Physical memory of `cuMemCreate`: it lives until the last handle reference and the last mapping are gone.
//!
//! ```text
//!   handle ──▶ record {bytes, grant, holds, live} ◀── mapping (address)
//! ```
//!
//! A hold is added before the vendor adds one and dropped from `holds` before the vendor drops one, from `live` only after: so
//! the bytes are credited when the vendor has let go of all, and nobody adds a hold to what is on its way out.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::account::{Account, Bytes, Ledger, Moving};
use crate::alloc_map::{AllocMap, Key, NoRoom};
use crate::plain;
use crate::vendor::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};

/// A number of a record; 0: memory that is not charged here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(u64);

#[derive(Clone, Copy, Debug)]
struct Record {
    bytes: Bytes,
    grant: u32,
    /// References and mappings that nobody has begun to drop.
    holds: u32,
    /// References and mappings that the vendor has not dropped.
    live: u32,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    number: Number,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum State {
    Mapped = 0,
    Going = 1,
}

static RECORDS: AllocMap<Record> = AllocMap::new();
static HANDLES: AllocMap<Number> = AllocMap::new();
static MAPPINGS: AllocMap<Mapping> = AllocMap::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Number {
    fn key(self) -> Key {
        Key(self.0)
    }

    /// Adds a hold before the vendor does. Untracked memory always can; what is on its way out cannot.
    fn hold(self) -> Result<(), i32> {
        let held = RECORDS.update(self.key(), |record| {
            let can = record.holds > 0;
            if can {
                record.holds = record.holds.saturating_add(1);
                record.live = record.live.saturating_add(1);
            }
            can
        });
        if held == Some(false) { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Held while the vendor is asked to drop it.
    fn moving(self) -> Option<Moving> {
        RECORDS.get(self.key()).and_then(|record| plain::ledger(record.grant)).map(Ledger::moving)
    }

    /// Before the vendor drops a hold.
    fn begin_drop(self) {
        RECORDS.update(self.key(), |record| record.holds = record.holds.saturating_sub(1));
    }

    /// The vendor did not.
    fn keep(self) {
        RECORDS.update(self.key(), |record| record.holds = record.holds.saturating_add(1));
    }

    /// The vendor did; with the last hold the bytes go back.
    fn dropped(self) {
        let left = RECORDS.update(self.key(), |record| {
            record.live = record.live.saturating_sub(1);
            record.live
        });
        if left == Some(0)
            && let Some(record) = RECORDS.take(self.key())
        {
            plain::credit(record.grant, record.bytes);
        }
    }
}

/// cuMemCreate on a card: charged to it.
pub(crate) fn create(
    account: Account,
    bytes: Bytes,
    make: impl FnOnce() -> Result<u64, i32>,
    unmake: impl FnOnce(u64) -> i32,
) -> Result<u64, i32> {
    let ledger = match account {
        Account::Uncounted => return make(),
        Account::Closed => return Err(OUT_OF_MEMORY),
        Account::Counted(ledger) => ledger,
    };
    let _moving = ledger.moving();
    ledger.reserve(bytes).map_err(|_| ledger.refuse())?;
    let handle = make().inspect_err(|_| ledger.release(bytes))?;
    let number = Number(NEXT.fetch_add(1, Ordering::Relaxed));
    let grant = u32::try_from(ledger.number()).unwrap_or(u32::MAX);
    let record = Record { bytes, grant, holds: 1, live: 1 };
    let recorded = RECORDS.insert(number.key(), record).and_then(|_new| HANDLES.insert(Key(handle), number));
    if recorded == Err(NoRoom) {
        RECORDS.take(number.key());
        if unmake(handle) == SUCCESS {
            ledger.release(bytes);
        }
        return Err(ledger.refuse());
    }
    Ok(handle)
}

/// cuMemRelease.
pub(crate) fn release(handle: u64, call: impl FnOnce() -> i32) -> i32 {
    let Some(number) = HANDLES.get(Key(handle)) else { return call() };
    let _moving = number.moving();
    number.begin_drop();
    let answer = call();
    if answer != SUCCESS {
        number.keep();
        return answer;
    }
    number.dropped();
    answer
}

/// cuMemRetainAllocationHandle: one more reference for what is mapped at an address.
pub(crate) fn retain(address: u64, call: impl FnOnce() -> Result<u64, i32>) -> Result<u64, i32> {
    let Some(number) = mapped_at(address) else { return call() };
    number.hold()?;
    match call() {
        Ok(handle) => {
            // Mostly the same handle; a place there is, or the reference is never credited.
            let _same_or_new = HANDLES.insert(Key(handle), number);
            Ok(handle)
        }
        Err(error) => {
            number.begin_drop();
            number.dropped();
            Err(error)
        }
    }
}

/// The record of the mapping that holds an address.
fn mapped_at(address: u64) -> Option<Number> {
    let number = match MAPPINGS.get(Key(address)) {
        Some(mapping) => Some(mapping.number),
        None => MAPPINGS.find(|start, mapping| {
            let inside = start.0 <= address && address - start.0 < mapping.bytes;
            inside.then_some(mapping.number)
        }),
    };
    number.filter(|number| number.0 != 0)
}

/// cuMemMap.
pub(crate) fn map(
    (address, bytes): (u64, u64),
    handle: u64,
    call: impl FnOnce() -> i32,
    undo: impl FnOnce() -> i32,
) -> i32 {
    let number = HANDLES.get(Key(handle)).unwrap_or(Number(0));
    if let Err(error) = number.hold() {
        return error;
    }
    let answer = call();
    let mapping = Mapping { bytes, number, state: State::Mapped };
    let recorded = if answer == SUCCESS { MAPPINGS.insert(Key(address), mapping) } else { Ok(None) };
    match recorded {
        Ok(None) if answer == SUCCESS => {}
        // What was mapped there before is not any more.
        Ok(Some(stale)) => {
            stale.number.begin_drop();
            stale.number.dropped();
        }
        Ok(None) => {
            number.begin_drop();
            number.dropped();
        }
        Err(NoRoom) => {
            if undo() == SUCCESS {
                number.begin_drop();
                number.dropped();
            }
            return OUT_OF_MEMORY;
        }
    }
    answer
}

/// Visits the mappings of a range, one behind the other.
fn walk(address: u64, bytes: u64, mut visit: impl FnMut(Key, Mapping)) {
    let end = address.saturating_add(bytes);
    let mut at = address;
    while at < end {
        let Some(mapping) = MAPPINGS.get(Key(at)) else { return };
        visit(Key(at), mapping);
        at = at.saturating_add(mapping.bytes.max(1));
    }
}

fn change_state(key: Key, from: State, to: State) -> bool {
    let changed = MAPPINGS.update(key, |mapping| {
        let fits = mapping.state == from;
        if fits {
            mapping.state = to;
        }
        fits
    });
    changed == Some(true)
}

/// cuMemUnmap: whole mappings, one or several in a row.
pub(crate) fn unmap(address: u64, bytes: u64, call: impl FnOnce() -> i32) -> i32 {
    let _moving = mapped_at(address).and_then(Number::moving);
    walk(address, bytes, |key, mapping| {
        if change_state(key, State::Mapped, State::Going) {
            mapping.number.begin_drop();
        }
    });
    let answer = call();
    walk(address, bytes, |key, mapping| {
        if mapping.state != State::Going {
            return;
        }
        if answer == SUCCESS {
            if MAPPINGS.take(key).is_some() {
                mapping.number.dropped();
            }
        } else if change_state(key, State::Going, State::Mapped) {
            mapping.number.keep();
        }
    });
    answer
}

/// Something else keeps the memory of a handle for good: it stays charged until the process ends.
#[expect(clippy::allow_attributes, reason = "callers come and go")]
#[allow(dead_code, reason = "for families that hand handles to the driver")]
pub(crate) fn pin(handle: u64) {
    if let Some(number) = HANDLES.get(Key(handle)) {
        // On its way out: then the driver refuses what the caller is about to ask.
        let _refused = number.hold();
    }
}
