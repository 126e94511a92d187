//! Contexts: what they are presumed to take ([`crate::memory::sizes`]) is reserved before they are made, lowered by the host's
//! look at the driver, and given back when they are gone. A primary context that a runtime library got past the hooks is charged when memory
//! is first asked for in it; that one ended so is found out before any thread is refused.

mod attached;
mod primary;
mod retention;

use core::sync::atomic::Ordering;

use aliquot_abi::refusal::RefusedKind;

use crate::accounting::account::{self, Account, Bytes, Ledger, UnaccountedRelease};
use crate::accounting::alloc_map::{AllocEntry, AllocMap, Key, NoRoom, Tie};
use crate::accounting::contexts::{self, ContextEnd};
use crate::loader::vendor::{self, Device, SUCCESS};
use crate::memory::address_out::AddressOut;
use crate::memory::closed;
use crate::memory::sizes;
use crate::sys::KeepErrno;

pub(crate) use attached::{attach, destroy, detach};
pub(crate) use primary::begins;
use primary::{PRIMARY, Primary, PrimaryCreation};
use retention::Relying;

/// Cards a process numbers.
const DEVICES_MAX: usize = 64;

/// Contexts by handle, primary ones by card.
static CONTEXTS: AllocMap = AllocMap::new();

fn primary(device: Device) -> Option<&'static Primary> {
    usize::try_from(device.0).ok().and_then(|index| PRIMARY.get(index))
}

fn is_active(device: Device) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    let answer = vendor::cuDevicePrimaryCtxGetState(device.0, &raw mut flags, &raw mut active)?;
    (answer == SUCCESS).then_some(active != 0)
}

/// It is there and stays; `None`: it is not, or unknown.
fn stays(device: Device) -> Option<Relying> {
    let relying = primary(device)?.retention.rely()?;
    (is_active(device) == Some(true)).then_some(relying)
}

/// Where a card's primary context is noted: no handle is so small.
fn key_of(device: Device) -> Key {
    Key(u64::try_from(device.0).unwrap_or(0) + 1)
}

/// A context is there, for which so much is reserved: it is presumed from now on. `Err`: it may not fit, or cannot be noted, and
/// nothing is reserved for it any more.
fn hold(ledger: Ledger, key: Key, context: Option<u64>, reserved: Bytes) -> Result<(), NoRoom> {
    let found = sizes::found(ledger, context, reserved);
    let held = found.and_then(|bytes| Some((bytes, AllocEntry::new(bytes, ledger.number(), Tie(0))?)));
    let Some((bytes, held)) = held else {
        ledger.release(reserved);
        return Err(NoRoom);
    };
    // First: a thread that finds it noted may withdraw it at once.
    ledger.presume(bytes);
    match CONTEXTS.insert(key, held) {
        Ok(earlier) => {
            // One that ended unseen, or another thread's note of this one.
            earlier.into_iter().for_each(withdraw);
            ledger.release(Bytes(reserved.0.saturating_sub(bytes.0)));
            Ok(())
        }
        Err(no_room) => {
            ledger.withdraw(bytes);
            ledger.release(Bytes(reserved.0.saturating_sub(bytes.0)));
            Err(no_room)
        }
    }
}

fn withdraw(held: AllocEntry) {
    held.ledger().into_iter().for_each(|ledger| ledger.withdraw(held.bytes()));
}

/// The primary context of a card may have ended.
fn credit_if_gone(device: Device) {
    if is_active(device) != Some(false) {
        return;
    }
    let Some(held) = CONTEXTS.take(key_of(device)) else { return };
    if is_active(device) == Some(true) {
        // Another thread made it anew. Without a place for it the driver's account has it.
        if CONTEXTS.insert(key_of(device), held).is_ok() {
            return;
        }
    }
    withdraw(held);
}

/// Holders of a primary context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The program, which releases it.
    Program,
    /// A green context, with which it is released.
    Green,
}

impl Holder {
    /// The primary context's handle, after a call that wrote to `place`.
    fn handle(self, device: Device, place: AddressOut) -> Option<u64> {
        match self {
            Self::Program => Some(place.read()),
            Self::Green => vendor::relaxed(|| primary_handle(device)),
        }
    }

    /// It holds one.
    fn holds(self, device: Device, handle: Option<u64>) {
        if let (Some(primary), Some(handle)) = (primary(device), handle) {
            primary.is_at(device, handle);
            primary.count(self).fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A primary context is retained: the first time it is made. `undo` is the vendor's way back from what was written to `place`.
pub(crate) fn retain(
    device: Device,
    (holder, context): (Holder, AddressOut),
    real: impl Fn() -> i32,
    undo: impl Fn(u64) -> i32,
) -> i32 {
    if context.is_null() {
        return real();
    }
    let _coming = PrimaryCreation::to(device);
    let ledger = match account::of(device) {
        Account::Counted(ledger) => ledger,
        Account::Uncounted => return uncounted(device, (holder, context), real),
        Account::Closed => return closed::refuse_handle(device, context, real, undo),
    };
    let _moving = ledger.moving();
    let relying = stays(device);
    let reserved = if relying.is_some() { Ok(Bytes(0)) } else { sizes::reserve(ledger) };
    let Ok(reserved) = reserved else {
        return ledger.refuse(RefusedKind::Context.over_limit(sizes::presumed(ledger).0));
    };
    let before = context.before();
    let answer = real();
    let _errno = KeepErrno::new();
    let is_relied_on = relying.is_some();
    // It is held by now.
    drop(relying);
    if answer != SUCCESS {
        ledger.release(reserved);
        return answer;
    }
    let handle = holder.handle(device, context);
    if is_relied_on || hold(ledger, key_of(device), handle, reserved).is_ok() {
        holder.holds(device, handle);
        return answer;
    }
    let _letting = primary(device).map(|primary| primary.retention.let_go());
    let _released = undo(context.read());
    context.write(before);
    ledger.refuse(RefusedKind::Context.without_place())
}

/// Something is done in a context for the first time. Runtime libraries get their primary context past every function with a
/// name: it is charged here, whether it fits or not, as it is there.
pub(crate) fn noticed(device: Device, context: u64) {
    let Account::Counted(ledger) = account::of(device) else { return };
    let _errno = KeepErrno::new();
    let is_charged = || CONTEXTS.get(key_of(device)).is_some();
    if let Some(primary) = primary(device).filter(|_| is_charged()) {
        end_if_gone(device, primary, primary.handle.load(Ordering::Acquire));
    }
    if is_charged() || is_active(device) != Some(true) {
        return;
    }
    if !primary(device).is_some_and(Primary::is_held) {
        // It may end past them as well.
        ledger.loosen(UnaccountedRelease::Context);
    }
    let _moving = ledger.moving();
    let presumed = sizes::presumed(ledger);
    ledger.charge(presumed);
    let handle = vendor::relaxed(|| {
        // Without a place the driver's account has it.
        let _noted = hold(ledger, key_of(device), Some(context), presumed);
        primary_handle(device)
    });
    if let (Some(primary), Some(handle)) = (primary(device), handle) {
        primary.is_at(device, handle);
    }
}

/// Has a green context's handle stand for its card's primary context.
pub(crate) fn join_primary(device: Device, context: u64) {
    let known = primary(device).map(|primary| primary.handle.load(Ordering::Acquire));
    let asked = || vendor::relaxed(|| primary_handle(device));
    if let Some(handle) = known.filter(|handle| *handle != 0).or_else(asked) {
        contexts::join(context, handle);
    }
}

/// The driver tells it only to the thread that retains it, which is not to make one.
fn primary_handle(device: Device) -> Option<u64> {
    let _relying = stays(device)?;
    let mut handle = 0;
    if vendor::cuDevicePrimaryCtxRetain(&raw mut handle, device.0)? != SUCCESS {
        return None;
    }
    vendor::cuDevicePrimaryCtxRelease_v2(device.0)?;
    Some(handle)
}

/// Does something in the primary context of a grant's card; `None` where there is none, or it may not stay.
pub(crate) fn in_primary<R>(ledger: Ledger, inside: impl FnOnce() -> Option<R>) -> Option<R> {
    let has_one = |(_, primary): &(i32, &Primary)| primary.handle.load(Ordering::Acquire) != 0;
    let (number, _) =
        (0_i32..).zip(&PRIMARY).filter(has_one).find(|(number, _)| is_on(ledger, Device(*number)))?;
    vendor::relaxed(|| {
        let (_relying, mut handle) = (stays(Device(number))?, 0);
        if vendor::cuDevicePrimaryCtxRetain(&raw mut handle, number)? != SUCCESS {
            return None;
        }
        let answer = vendor::with_context(handle, inside);
        vendor::cuDevicePrimaryCtxRelease_v2(number)?;
        answer
    })
}

/// Whether a card's memory is in this ledger.
fn is_on(ledger: Ledger, device: Device) -> bool {
    matches!(account::of(device), Account::Counted(its) if its.number() == ledger.number())
}

/// Memory of a grant is short: what went with primary contexts that ended past the hooks, as they were had, is not there any
/// more.
#[cold]
pub(crate) fn find_ended(ledger: Ledger) {
    for (number, primary) in (0_i32..).zip(&PRIMARY) {
        let handle = primary.handle.load(Ordering::Acquire);
        if handle != 0 && is_on(ledger, Device(number)) {
            end_if_gone(Device(number), primary, handle);
        }
    }
}

/// The primary context of a card now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrimaryState {
    /// There is none.
    None,
    /// This one.
    Handle(u64),
    /// The driver does not say.
    Unknown,
}

impl PrimaryState {
    fn of(device: Device) -> Self {
        match is_active(device) {
            Some(false) => Self::None,
            Some(true) => {
                let handle = vendor::relaxed(|| primary_handle(device));
                // The caller may have been its only holder.
                match is_active(device) {
                    Some(false) => Self::None,
                    _ => handle.map_or(Self::Unknown, Self::Handle),
                }
            }
            None => Self::Unknown,
        }
    }

    /// Whether one of this handle has certainly ended. A new one may have its handle: then it is unknown.
    fn is_without(self, handle: u64) -> bool {
        match self {
            Self::None => true,
            Self::Handle(now) => now != handle,
            Self::Unknown => false,
        }
    }
}

/// A primary context of this handle that has ended goes, with all that was in it.
fn end_if_gone(device: Device, primary: &Primary, handle: u64) {
    if handle == 0 || !PrimaryState::of(device).is_without(handle) {
        return;
    }
    // After the question, which has it for a moment: a thread that let it go in that has put back its number.
    let tie = primary.tie_at(handle);
    let going = contexts::going_as(handle, ContextEnd::Was, tie);
    // What has the old number from here on is not there, if the answer is still the same: what begins anew has another one.
    let now = PrimaryState::of(device);
    if !now.is_without(handle) {
        return going.stays();
    }
    let next = if let PrimaryState::Handle(next) = now { next } else { 0 };
    if primary.leaves(handle, next) {
        primary.clear_holders();
    }
    going.gone();
    credit_if_gone(device);
}

/// Where memory is not counted the context is remembered all the same: markers end with it.
fn uncounted(device: Device, (holder, context): (Holder, AddressOut), real: impl Fn() -> i32) -> i32 {
    let answer = real();
    if answer == SUCCESS {
        let _errno = KeepErrno::new();
        holder.holds(device, holder.handle(device, context));
    }
    answer
}

/// How a primary context is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrimaryRelease {
    /// By one that retained it.
    Release,
    /// By a green context.
    Green,
    /// For all at once.
    Reset,
}

impl PrimaryRelease {
    /// A thread that has it no more; `None`: no thread has.
    fn holder(self) -> Option<Holder> {
        match self {
            Self::Release => Some(Holder::Program),
            Self::Green => Some(Holder::Green),
            Self::Reset => None,
        }
    }
}

/// A green context of this card will not be seen to end.
pub(crate) fn forget_green(device: Device) {
    primary(device).into_iter().for_each(|primary| primary.one_less(Holder::Green));
}

/// A primary context is released or reset.
pub(crate) fn let_go(device: Device, how: PrimaryRelease, real: impl Fn() -> i32) -> i32 {
    let Some(primary) = primary(device) else { return real() };
    let handle = primary.handle.load(Ordering::Acquire);
    let last = how.holder().is_none_or(|holder| !primary.is_held_beside(Some(holder)));
    let ledger = match account::of(device) {
        Account::Counted(ledger) => Some(ledger),
        _ => None,
    };
    let _moving = ledger.map(Ledger::moving);
    // What is allocated from now on under this handle is another context's.
    let tie = primary.tie_at(handle);
    let going = (last && handle != 0).then(|| contexts::going_as(handle, ContextEnd::Comes, tie));
    let letting = primary.retention.let_go();
    let answer = real();
    let _errno = KeepErrno::new();
    drop(letting);
    if answer == SUCCESS {
        match how.holder() {
            Some(holder) => primary.one_less(holder),
            None => primary.clear_holders(),
        }
    }
    let is_there = || is_active(device) != Some(false) && primary.handle.load(Ordering::Acquire) == handle;
    let ended = answer == SUCCESS && (how == PrimaryRelease::Reset || !is_there());
    match going {
        Some(going) if ended => {
            primary.leaves(handle, 0);
            going.gone();
        }
        Some(going) => {
            going.stays();
            // A thread that ended it meanwhile saw it without its number.
            if primary.handle.load(Ordering::Acquire) != handle {
                contexts::going_as(handle, ContextEnd::Was, tie).gone();
            } else if is_active(device) == Some(false) {
                end_if_gone(device, primary, handle);
            }
        }
        None if ended => end_if_gone(device, primary, handle),
        None => {}
    }
    credit_if_gone(device);
    crate::memory::pools::refresh();
    answer
}

/// A context of the program's own is made. `undo` is the vendor's way back.
pub(crate) fn create(
    device: Device,
    context: AddressOut,
    real: impl Fn() -> i32,
    undo: impl Fn(u64) -> i32,
) -> i32 {
    if context.is_null() {
        return real();
    }
    let ledger = match account::of(device) {
        Account::Counted(ledger) => ledger,
        Account::Uncounted => return real(),
        Account::Closed => return closed::refuse_handle(device, context, real, undo),
    };
    let _moving = ledger.moving();
    let Ok(reserved) = sizes::reserve(ledger) else {
        return ledger.refuse(RefusedKind::Context.over_limit(sizes::presumed(ledger).0));
    };
    let before = context.before();
    let answer = real();
    let _errno = KeepErrno::new();
    if answer != SUCCESS {
        ledger.release(reserved);
        return answer;
    }
    let handle = context.read();
    begins(handle);
    if hold(ledger, Key(handle), Some(handle), reserved).is_ok() {
        return SUCCESS;
    }
    let _destroyed = undo(handle);
    context.write(before);
    ledger.refuse(RefusedKind::Context.without_place())
}
