//! Stream-ordered pools: what a pool takes from the card is charged, not the blocks in it.
//!
//! A pool grows with an allocation and shrinks to its release threshold when a thread synchronises; accounting follows at the
//! next allocation, `cuMemFree`, trim, question for memory, or refusal. An allocation in a capture takes nothing: it becomes a
//! node of the graph (see [`crate::memory::graphs`]). An imported pool is its exporter's, which pays; nothing can be allocated
//! from it.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::accounting::account::{self, Account, Bytes, Ledger};
use crate::grants::{self, CardStatus};
use crate::loader::vendor::{self, Device, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, StreamMode};
use crate::memory::address_out::AddressOut;
use crate::memory::graphs;
use crate::memory::meter::{self, CallEnd, Meter, MeterKind, MeterRecord, RunningCall, State};
use crate::sys::KeepErrno;

use aliquot_abi::limits::ManagedPolicy;
use aliquot_abi::refusal::RefusedKind;

/// Where the memory of a pool is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    /// CU_MEM_LOCATION_TYPE
    pub(crate) kind: u32,
    /// Its number among those of the kind.
    pub(crate) number: i32,
    /// CU_MEM_ALLOCATION_TYPE
    pub(crate) allocation: u32,
}

/// An allocation as asked for.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) bytes: usize,
    /// Where the address goes.
    pub(crate) address: AddressOut,
}

/// What accounts an allocation.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// Free: it is handed to the vendor.
    Vendors,
    /// It is refused.
    Closed,
    /// No such pool any more.
    Gone,
    /// No pool that memory comes from, as far as is known: the vendor says what is wrong.
    Nothing,
    /// This pool's, of this ledger.
    Charged(Meter, Ledger),
}

/// Where an allocation comes from, as far as that is known without a look at what is metered.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    /// There.
    Known(Source),
    /// The current pool of a card that is charged.
    Current(Current),
}

/// The current pool of a card.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    handle: u64,
    device: Device,
    ledger: Ledger,
}

impl Location {
    /// The card that has the memory, and how a pool there stands. Managed memory that prefers the host is on a card as well as
    /// soon as a kernel there uses it: it is the current card's, as that of `cuMemAllocManaged` is.
    fn stands(self) -> (Device, State) {
        let is_managed = self.allocation == vendor::ALLOCATION_MANAGED;
        let device = vendor::card_of(self.kind, self.number);
        let Some(device) = device.or_else(|| is_managed.then(vendor::current_or_first)) else {
            return (Device(0), State::Free);
        };
        let is_free = is_managed
            && matches!(grants::standing(device),
                CardStatus::Granted(grant) if grant.first().managed == ManagedPolicy::Free);
        (device, if is_free { State::Free } else { State::Charged })
    }
}

/// A pool is there: where, is remembered.
pub(crate) fn created(handle: u64, location: Location) {
    // An earlier pool of this handle ended without us.
    Meter(handle).forget();
    let (device, state) = location.stands();
    Meter(handle).note(device, state);
}

/// What the driver says about a pool that no thread here saw made; drivers before 13.0 do not.
fn location_of(handle: u64) -> Option<Location> {
    let ask = |attribute| {
        let mut value = 0_u64;
        let answer = vendor::cuMemPoolGetAttribute(handle, attribute, &raw mut value)?;
        // Both are 32-bit numbers, in the low half.
        (answer == SUCCESS).then(|| value.to_le_bytes()).and_then(|bytes| bytes.first_chunk::<4>().copied())
    };
    let number = i32::from_le_bytes(ask(vendor::POOL_LOCATION)?);
    let kind = u32::from_le_bytes(ask(vendor::POOL_LOCATION_KIND)?);
    let allocation = u32::from_le_bytes(ask(vendor::POOL_ALLOCATION)?);
    Some(Location { kind, number, allocation })
}

/// The card whose own or current pool it is; of a pool that no thread here saw made, drivers before 13.0 say nothing else.
#[cold]
fn owner(handle: u64) -> Option<Device> {
    let mut cards = vendor::devices();
    cards.find(|card| [vendor::default_pool(*card), vendor::current_pool(*card)].contains(&Some(handle)))
}

/// `device` says where a pool is of which nothing else does.
fn source(handle: u64, device: impl FnOnce() -> Option<Device>) -> Source {
    let meter = Meter(handle);
    let known = meter.known();
    let (device, state) = match known {
        Some(known) => (known.device, known.state),
        None => match location_of(handle) {
            Some(told) => told.stands(),
            None => match device() {
                Some(device) => (device, State::Charged),
                None => return Source::Nothing,
            },
        },
    };
    // That it is a pool the driver has said by now.
    let is_noted = known.is_some() || state != State::Charged || meter.note(device, state);
    match (state, account::of(device)) {
        (State::Free, _) | (_, Account::Uncounted) => Source::Vendors,
        (State::Going, _) => Source::Gone,
        (_, Account::Closed) => Source::Closed,
        (State::Charged, Account::Counted(_)) if !is_noted => Source::Closed,
        (State::Charged, Account::Counted(ledger)) => Source::Charged(meter, ledger),
    }
}

/// Where an allocation on a stream comes from: the current pool of the stream's card.
pub(crate) fn of_stream(stream: u64, mode: StreamMode) -> Origin {
    let _errno = KeepErrno::new();
    let Some(device) = vendor::device_of(stream) else { return Origin::Known(Source::Nothing) };
    Origin::Known(match account::of(device) {
        Account::Uncounted => Source::Vendors,
        Account::Counted(ledger) if vendor::is_capturing(stream, mode) => {
            graphs::watch(ledger);
            Source::Vendors
        }
        Account::Closed => Source::Closed,
        Account::Counted(ledger) => match vendor::current_pool(device) {
            Some(handle) => return Origin::Current(Current { handle, device, ledger }),
            None => Source::Vendors,
        },
    })
}

/// Where an allocation from a pool comes from.
pub(crate) fn of_pool(handle: u64, stream: u64, mode: StreamMode) -> Origin {
    let _errno = KeepErrno::new();
    if handle == 0 {
        return Origin::Known(Source::Nothing);
    }
    Origin::Known(match source(handle, || owner(handle)) {
        Source::Charged(_, ledger) if vendor::is_capturing(stream, mode) => {
            graphs::watch(ledger);
            Source::Vendors
        }
        source => source,
    })
}

/// An allocation: `real` is the vendor's, `back` frees in the same order what it gave.
pub(crate) fn allocate(
    origin: Origin,
    request: Request,
    real: impl Fn() -> i32,
    back: impl Fn(u64) -> i32,
) -> i32 {
    let source = match origin {
        Origin::Known(source) => source,
        Origin::Current(Current { handle, device, ledger }) => {
            let running = request.taken().and_then(|bytes| {
                let _errno = KeepErrno::new();
                Meter(handle).enter_at_once(device, ledger, bytes)
            });
            match running {
                Some(running) => return run(running, request, real, back),
                None => source(handle, || Some(device)),
            }
        }
    };
    match source {
        Source::Vendors => real(),
        Source::Closed => OUT_OF_MEMORY,
        Source::Gone => INVALID_VALUE,
        Source::Nothing if request.address.is_null() => real(),
        Source::Nothing => {
            let before = request.address.before();
            let answer = real();
            if answer != SUCCESS {
                return answer;
            }
            // Of a pool that no thread counts.
            let _freed = back(request.address.read());
            request.address.write(before);
            OUT_OF_MEMORY
        }
        Source::Charged(meter, ledger) => match request.taken() {
            // The vendor says what is wrong with it.
            None => real(),
            Some(bytes) => match meter.enter(ledger, bytes) {
                Some(running) => run(running, request, real, back),
                None => ledger.refuse(RefusedKind::Pool.over_limit(bytes.0)),
            },
        },
    }
}

impl Request {
    /// What it takes; `None`: nothing, as the vendor will refuse it.
    fn taken(&self) -> Option<Bytes> {
        let is_sound = self.bytes != 0 && !self.address.is_null();
        is_sound.then(|| Bytes(u64::try_from(self.bytes).unwrap_or(u64::MAX)))
    }
}

/// The vendor's call; its worst case is in accounting.
fn run(running: RunningCall, request: Request, real: impl Fn() -> i32, back: impl Fn(u64) -> i32) -> i32 {
    let (meter, ledger) = (running.meter(), running.ledger());
    let before = request.address.read();
    let answer = real();
    let _errno = KeepErrno::new();
    if running.end(answer) != CallEnd::Over || answer != SUCCESS {
        return answer;
    }
    let _freed = back(request.address.read());
    request.address.write(before);
    trim(meter);
    meter.refresh(ledger);
    ledger.refuse(RefusedKind::Pool.over_limit(request.taken().unwrap_or(Bytes(0)).0))
}

/// Has a pool give back to the card what it does not use; in any capture that may go on, too.
fn trim(meter: Meter) {
    let _answer = vendor::relaxed(|| vendor::cuMemPoolTrimTo(meter.0, 0));
}

/// Memory is short: pools give back what they only keep, as the driver has them do when the card is full.
pub(crate) fn trim_kept(ledger: Ledger) {
    meter::each(ledger, |meter, known| {
        if known.in_books() > 0 {
            trim(meter);
            settle(meter, &known, ledger);
        }
    });
}

/// Brings accounting to what the driver says of every pool that holds something, and of graphs.
pub(crate) fn refresh() {
    crate::memory::deferred_free::settle();
    graphs::refresh();
    if !MeterKind::Follows.is_there() {
        return;
    }
    let _errno = KeepErrno::new();
    meter::each_changed(|meter, known, ledger| settle(meter, &known, ledger));
}

/// Something was freed at once that may have been a block of a pool.
pub(crate) fn freed() {
    refresh();
}

/// Something was freed in the order of its stream: no pool has shrunk by that yet, but one that goes may be empty.
pub(crate) fn freed_in_order() {
    if MeterKind::Going.is_there() {
        refresh();
    }
}

/// A thread buries pools; no thread waits for it.
static BURYING: AtomicU32 = AtomicU32::new(0);

fn settle(meter: Meter, known: &MeterRecord, ledger: Ledger) {
    if known.state != State::Going {
        meter.refresh(ledger);
        return;
    }
    if BURYING.swap(1, Ordering::AcqRel) != 0 {
        return;
    }
    // Another thread may have buried it since this one looked, and its handle may name another pool.
    if meter.known().is_some_and(|known| known.state == State::Going) {
        trim(meter);
        if !bury(meter) {
            meter.refresh(ledger);
        }
    }
    BURYING.store(0, Ordering::Release);
}

/// Destroys a pool that the program destroyed, once nothing of it is in use.
fn bury(meter: Meter) -> bool {
    let Meter(handle) = meter;
    let idle = meter.size().is_some_and(|size| size.used == 0);
    let gone = idle && vendor::cuMemPoolDestroy(handle) == Some(SUCCESS);
    if gone {
        meter.forget();
    }
    gone
}

/// A pool is destroyed. While blocks of it are in use the driver would answer no more questions about it: so it is destroyed
/// in fact with the last of them, and until then it keeps nothing and gives nothing. `real` is the vendor's.
pub(crate) fn destroy(handle: u64, real: impl Fn() -> i32) -> i32 {
    let _errno = KeepErrno::new();
    let meter = Meter(handle);
    let Some(known) = meter.known() else { return real() };
    match (known.state, account::of(known.device)) {
        (State::Going, _) => INVALID_VALUE,
        (State::Charged, Account::Counted(ledger)) if vendor::default_pool(known.device) != Some(handle) => {
            trim(meter);
            meter.refresh(ledger);
            if meter.size().is_some_and(|size| size.used > 0) && leave(handle, known.device) {
                meter.stand(State::Going);
                return SUCCESS;
            }
            let answer = real();
            if answer == SUCCESS {
                meter.forget();
            }
            answer
        }
        _ => {
            let answer = real();
            if answer == SUCCESS {
                meter.forget();
            }
            answer
        }
    }
}

/// A pool that goes is no card's current pool any more, and keeps nothing.
fn leave(handle: u64, device: Device) -> bool {
    let mut nothing = 0_u64;
    let set = vendor::cuMemPoolSetAttribute(handle, vendor::POOL_THRESHOLD, &raw mut nothing);
    let Some(default) = vendor::default_pool(device) else { return false };
    if vendor::current_pool(device) == Some(handle)
        && vendor::cuDeviceSetMemPool(device.0, default) != Some(SUCCESS)
    {
        return false;
    }
    set == Some(SUCCESS)
}

/// A pool was trimmed by the program.
pub(crate) fn trimmed(handle: u64) {
    let _errno = KeepErrno::new();
    let meter = Meter(handle);
    if let Some(known) = meter.known()
        && let Account::Counted(ledger) = account::of(known.device)
        && known.state != State::Free
    {
        meter.refresh(ledger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_without_pool_is_freed_and_its_slot_restored() {
        let (mut word, freed) = (9, core::cell::Cell::new(0));
        let address = AddressOut(&raw mut word);
        let real = || {
            address.write(7);
            SUCCESS
        };
        let back = |address| {
            freed.set(address);
            SUCCESS
        };
        let request = Request { bytes: 1, address };
        assert_eq!(allocate(Origin::Known(Source::Nothing), request, real, back), OUT_OF_MEMORY);
        assert_eq!((address.read(), freed.get()), (9, 7));
    }
}
