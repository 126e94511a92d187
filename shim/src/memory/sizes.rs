//! How large a context is: what the host says, what this container found, or what is presumed until a process finds it.
//!
//! ```text
//!   limits page ─or─ this process ─or─ word of the usage file ─▶ known: reserved before a context is made
//!   else, one thread of the container at a time:
//!     reserve what is presumed ─▶ the context is made ─▶ as much again is free? reserve it, and measure:
//!       free memory │ a second context for a moment │ free memory │ gone again │ free memory
//!                   └──────────── the same twice ───┴─────────────┘   else once more, three times at most
//! ```
//!
//! So neither the first context nor the second is made where the grant has no room for what is presumed. What was the same twice,
//! while nothing of the container moved, is written into the usage file for all its processes. Where there is no room to
//! measure, or what came was never what went, a context stays in accounting with what is presumed, or with all that is in use
//! on the card where that is less: it takes no more. In a grant that is smaller than what is presumed a context is kept only
//! where that shows that it fits.
//!
//! A turn has an end: the process that waited [`TURN_MILLIS_MAX`] goes on without it, reserves as much, and measures nothing.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_abi::limits::CONTEXT_BYTES_PRESUMED;

use crate::accounting::account::{Bytes, InFlightOperation, Ledger};
use crate::grants::GRANTS_MAX;
use crate::loader::vendor::{self, Device, SUCCESS};
use crate::sys::{self, KeepErrno};

/// Tries to measure while another process moves memory on the card.
const TRIES_MAX: u32 = 3;
/// Longest turn, and longest wait for one, in milliseconds: making a context takes a driver some hundreds.
const TURN_MILLIS_MAX: u32 = 5_000;
/// Sleep before a look whether the turn's owner exited in it.
const TURN_STEP_NANOS: u64 = 10_000_000;
const MILLI: u64 = 1_000_000;
/// What is larger is no context's size: a process wrote over the word.
const LARGEST: u64 = 1 << 40;

/// Bytes of a context plus one, by grant; 0: not known.
static SIZES: [AtomicU64; GRANTS_MAX] = [const { AtomicU64::new(0) }; GRANTS_MAX];

/// How large a context is on the card of a ledger.
pub(crate) fn known(ledger: Ledger) -> Option<Bytes> {
    let published = ledger.context_bytes();
    if published.0 > 0 {
        return Some(published);
    }
    let own = SIZES.get(ledger.number())?.load(Ordering::Acquire).checked_sub(1);
    own.map(Bytes).or_else(|| learnt(ledger).map(|bytes| keep(ledger, bytes)))
}

/// What another process of the container found.
fn learnt(ledger: Ledger) -> Option<Bytes> {
    let word = ledger.usage().view.context_bytes().load(Ordering::Acquire);
    word.checked_sub(1).filter(|bytes| *bytes <= LARGEST).map(Bytes)
}

/// Has this process stay with a size; with which, as another thread may have been first.
fn keep(ledger: Ledger, bytes: Bytes) -> Bytes {
    let Some(size) = SIZES.get(ledger.number()) else { return bytes };
    let word = bytes.0.saturating_add(1);
    let before = size.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
    Bytes(before.err().unwrap_or(word).saturating_sub(1))
}

/// Free memory of the current context's card, in bytes.
pub(crate) fn free_now() -> Option<u64> {
    memory_now().map(|(free, _)| free)
}

/// The same, and all that is in use.
fn memory_now() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0_usize, 0_usize);
    if vendor::cuMemGetInfo_v2(&raw mut free, &raw mut total)? != SUCCESS {
        return None;
    }
    Some((u64::try_from(free).ok()?, u64::try_from(total.saturating_sub(free)).ok()?))
}

/// What is said of a context before it is made.
pub(crate) enum ContextForecast {
    /// It takes so much.
    Known(Bytes),
    /// Unknown.
    Presumed(UnmeasuredContext),
}

/// A context of unknown size.
pub(crate) struct UnmeasuredContext {
    ledger: Ledger,
    presumed: Bytes,
    /// `None`: another's goes on.
    turn: Option<ContextTurn>,
}

/// The turn to make one.
struct ContextTurn {
    word: &'static AtomicU32,
    begun: u32,
    /// From before the turn begins until it is over: a process that waits sees that a process is at it.
    _moving: InFlightOperation,
}

/// What a second context was seen to take.
enum SecondContext {
    /// The same twice, with nothing else moving that can be seen.
    Sure(Bytes),
    /// The same twice, while the container moved memory.
    Likely(Bytes),
    /// No less than that: what came and went was never the same, as another process moved memory.
    Least(Bytes),
}

// === impl ContextForecast ===

impl ContextForecast {
    /// Waits for its turn where the size is unknown, and while the turn's owner settles accounting; not for ever.
    pub(crate) fn of(ledger: Ledger) -> Self {
        let is_at_it = || ledger.usage().view.making().load(Ordering::Acquire) != 0;
        match known(ledger) {
            Some(bytes) if ledger.context_bytes() == bytes || !is_at_it() => Self::Known(bytes),
            _ => Self::first(ledger),
        }
    }

    #[cold]
    fn first(ledger: Ledger) -> Self {
        let _errno = KeepErrno::new();
        let turn = ContextTurn::take(ledger);
        let presumed = ledger.limit().min(Bytes(CONTEXT_BYTES_PRESUMED));
        known(ledger).map_or(Self::Presumed(UnmeasuredContext { ledger, presumed, turn }), Self::Known)
    }

    /// What is to be reserved before it is made.
    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Self::Known(bytes) => *bytes,
            Self::Presumed(first) => first.presumed,
        }
    }

    /// What the context takes that is there now, with `reserved` in accounting for it. `None`: perhaps more than the limit, and
    /// nothing tells.
    pub(crate) fn settle(&self, device: Device, context: u64, reserved: Bytes) -> Option<Bytes> {
        match self {
            Self::Known(bytes) => Some(*bytes),
            Self::Presumed(first) => first.settle(device, context, reserved),
        }
    }

    /// The same of one that no process can take away again.
    pub(crate) fn settle_anyway(&self, device: Device, context: u64) {
        if let Self::Presumed(first) = self
            && first.settle(device, context, Bytes(0)).is_none()
        {
            keep(first.ledger, first.presumed);
        }
    }
}

// === impl UnmeasuredContext ===

impl UnmeasuredContext {
    #[cold]
    fn settle(&self, device: Device, context: u64, reserved: Bytes) -> Option<Bytes> {
        if let Some(known) = known(self.ledger) {
            return Some(known);
        }
        let look = || {
            let (_, in_use) = memory_now()?;
            let most = Bytes(in_use).min(self.presumed);
            Some((Bytes(in_use), self.turn.as_ref().and_then(|_| self.measure(device, most, reserved))))
        };
        let found = vendor::with_context(context, look);
        let (in_use, seen) = found.unwrap_or((Bytes(u64::MAX), None));
        let bytes = match seen {
            Some(SecondContext::Sure(bytes)) => {
                self.tell(bytes);
                bytes
            }
            Some(SecondContext::Likely(bytes)) => bytes,
            // It takes no more than is in use.
            _ if in_use <= self.presumed => in_use,
            _ if self.presumed.0 < CONTEXT_BYTES_PRESUMED => return None,
            Some(SecondContext::Least(least)) => least.max(self.presumed),
            None => self.presumed,
        };
        Some(keep(self.ledger, bytes))
    }

    /// Measures how large a context is, beside one that is there, if there is room for another as large.
    fn measure(&self, device: Device, most: Bytes, reserved: Bytes) -> Option<SecondContext> {
        let both = most.0.saturating_mul(2);
        let more = Bytes(both.saturating_sub(reserved.0));
        if more.0 > 0 {
            self.ledger.reserve_now(more).ok()?;
        }
        let found = self.probe(device);
        self.ledger.release(more);
        found
    }

    fn probe(&self, device: Device) -> Option<SecondContext> {
        let (mut least, mut likely): (Option<u64>, Option<Bytes>) = (None, None);
        for _ in 0..TRIES_MAX {
            let (still, before) = (self.ledger.still(), free_now()?);
            let mut second = 0;
            if vendor::cuCtxCreate_v2(&raw mut second, 0, device.0)? != SUCCESS {
                break;
            }
            let with = free_now();
            if vendor::cuCtxDestroy_v2(second)? != SUCCESS {
                break;
            }
            let (with, after, later) = (with?, free_now()?, self.ledger.still());
            let (taken, given) = (before.saturating_sub(with), after.saturating_sub(with));
            let smaller = taken.min(given);
            least = Some(least.map_or(smaller, |least| least.min(smaller)));
            let is_still = (still.total, still.calls.begun) == (later.total, later.calls.begun);
            match (taken == given, is_still) {
                (true, true) => return Some(SecondContext::Sure(Bytes(taken))),
                (true, false) => likely = Some(Bytes(taken)),
                (false, _) => {}
            }
        }
        likely.map(SecondContext::Likely).or_else(|| least.map(|least| SecondContext::Least(Bytes(least))))
    }

    /// Has the container's other processes know it.
    fn tell(&self, bytes: Bytes) {
        if bytes.0 <= LARGEST && learnt(self.ledger).is_none() {
            self.ledger.usage().view.context_bytes().store(bytes.0 + 1, Ordering::Release);
        }
    }
}

// === impl ContextTurn ===

impl ContextTurn {
    /// `None`: another's does not end.
    fn take(ledger: Ledger) -> Option<Self> {
        let (word, begun) = (ledger.usage().view.making(), millis());
        loop {
            let (seen, now) = (word.load(Ordering::Acquire), millis());
            if seen == 0 || now.wrapping_sub(seen) > TURN_MILLIS_MAX || is_left(ledger) {
                let moving = ledger.moving();
                if word.compare_exchange(seen, now, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    return Some(Self { word, begun: now, _moving: moving });
                }
            } else {
                sys::wait_while(word, seen, TURN_STEP_NANOS);
            }
            if millis().wrapping_sub(begun) > TURN_MILLIS_MAX {
                return None;
            }
        }
    }
}

impl Drop for ContextTurn {
    fn drop(&mut self) {
        if self.word.compare_exchange(self.begun, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            sys::wake_all(self.word);
        }
    }
}

/// Whether the turn's owner exited in it: no live process is in a call that moves memory.
fn is_left(ledger: Ledger) -> bool {
    let _done_or_elsewhere = ledger.look();
    ledger.still().calls.under_way == 0
}

/// Never 0.
fn millis() -> u32 {
    u32::try_from((sys::now() / MILLI) & u64::from(u32::MAX)).unwrap_or(0).max(1)
}
