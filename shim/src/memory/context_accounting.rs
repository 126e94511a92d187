//! Contexts: what they take from the card is in accounting before they are made, and leaves them when they are gone.
//!
//! How large one is says [`crate::memory::sizes`]; where it is unknown, what is presumed is reserved, and the first one is
//! taken away again where it does not fit. A primary context that a runtime library got past the hooks is charged when memory
//! is first asked for in it; that one ended so is found out before any thread is refused.

mod attached;
mod primary;
mod retention;

use core::sync::atomic::Ordering;

use crate::accounting::account::{self, Account, Bytes, Ledger, UnaccountedRelease};
use crate::accounting::alloc_map::{AllocEntry, AllocMap, Key, Tie};
use crate::accounting::contexts::{self, ContextEnd};
use crate::loader::vendor::{self, Device, OUT_OF_MEMORY, SUCCESS};
use crate::memory::closed;
use crate::memory::meter::{CallEnd, Meter, State};
use crate::memory::pools::AddressOut;
use crate::memory::sizes::{self, ContextForecast};
use crate::sys::KeepErrno;

pub(crate) use attached::{attach, destroy, detach};
pub(crate) use primary::begins;
use primary::{PRIMARY, Primary, PrimaryCreation};
use retention::Relying;

/// Cards a process numbers.
const DEVICES_MAX: usize = 64;

/// Contexts that are not primary ones, by handle.
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

/// What a card's primary context takes now; `None`: not known.
pub(crate) fn primary_bytes(device: Device) -> Option<Bytes> {
    let Account::Counted(ledger) = account::of(device) else { return None };
    if is_active(device)? { sizes::known(ledger) } else { Some(Bytes(0)) }
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
    let meter = Meter::Primary(device);
    // Its turn, where it has one, ends when accounting is right.
    let foreseen = ContextForecast::of(ledger);
    let relying = stays(device);
    let worst = if relying.is_some() { Bytes(0) } else { foreseen.bytes() };
    let running = meter.note(device, State::Charged).then(|| meter.enter_worst(ledger, worst));
    let Some(running) = running.flatten() else { return ledger.refuse() };
    let before = context.before();
    let answer = real();
    let _errno = KeepErrno::new();
    // It is held by now.
    drop(relying);
    let handle = if answer == SUCCESS { holder.handle(device, context) } else { None };
    let is_settled = handle.is_none_or(|handle| foreseen.settle(device, handle, worst).is_some());
    let take_away = || {
        let _letting = primary(device).map(|primary| primary.retention.let_go());
        let _released = undo(context.read());
        context.write(before);
    };
    if !is_settled {
        // Before what was reserved for it is given back.
        take_away();
        let _fits = running.end(OUT_OF_MEMORY);
        return ledger.refuse();
    }
    if running.end(answer) != CallEnd::Over || answer != SUCCESS {
        holder.holds(device, handle);
        return answer;
    }
    take_away();
    meter.refresh(ledger);
    ledger.refuse()
}

/// Something is done in a context for the first time. Runtime libraries get their primary context past every function with a
/// name: it is charged here, whether it fits or not, as it is there.
pub(crate) fn noticed(device: Device, context: u64) {
    let Account::Counted(ledger) = account::of(device) else { return };
    let _errno = KeepErrno::new();
    let meter = Meter::Primary(device);
    let is_charged = meter.known().is_some_and(|known| known.in_books() > 0);
    if let Some(primary) = primary(device).filter(|_| is_charged) {
        end_if_gone(device, primary, primary.handle.load(Ordering::Acquire));
    }
    if is_charged || is_active(device) != Some(true) || !meter.note(device, State::Charged) {
        return;
    }
    if !primary(device).is_some_and(Primary::is_held) {
        // It may end past them as well.
        ledger.loosen(UnaccountedRelease::Context);
    }
    let foreseen = ContextForecast::of(ledger);
    let handle = vendor::relaxed(|| {
        foreseen.settle_anyway(device, context);
        primary_handle(device)
    });
    if let (Some(primary), Some(handle)) = (primary(device), handle) {
        primary.is_at(device, handle);
    }
    meter.refresh(ledger);
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
    if let Account::Counted(ledger) = account::of(device) {
        Meter::Primary(device).refresh(ledger);
    }
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
    if let Some(ledger) = ledger {
        Meter::Primary(device).refresh(ledger);
    }
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
    let foreseen = ContextForecast::of(ledger);
    let worst = foreseen.bytes();
    let _moving = ledger.moving();
    if ledger.reserve(worst).is_err() {
        return ledger.refuse();
    }
    let before = context.before();
    let answer = real();
    let _errno = KeepErrno::new();
    if answer != SUCCESS {
        ledger.release(worst);
        return answer;
    }
    let handle = context.read();
    begins(handle);
    let settled = foreseen.settle(device, handle, worst);
    let bytes = settled.unwrap_or(worst);
    let more = Bytes(bytes.0.saturating_sub(worst.0));
    let fits = settled.is_some() && ledger.reserve(more).is_ok();
    let held = AllocEntry::new(bytes, ledger.number(), Tie(0)).filter(|_| fits);
    if held.is_some_and(|held| CONTEXTS.insert(Key(handle), held).is_ok()) {
        ledger.release(Bytes(worst.0.saturating_sub(bytes.0)));
        return SUCCESS;
    }
    let _destroyed = undo(handle);
    ledger.release(if fits { worst.max(bytes) } else { worst });
    context.write(before);
    ledger.refuse()
}
