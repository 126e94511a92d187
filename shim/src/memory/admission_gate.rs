//! The turn to measure among all processes of a container, and its gate: while it is shut, a process that is about to move memory
//! waits before it.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::accounting::account::{self, Account, InFlightOperation, Ledger};
use crate::accounting::contexts;
use crate::sys::{self, KeepErrno};

/// Longest wait for others that measure, in milliseconds: after it their turn is over.
const TURN_MILLIS_MAX: u32 = 1_000;
/// Longest sleep before the turn is looked at again.
const TURN_STEP_NANOS: u64 = 5_000_000;
/// Longest time for which a gate is shut to any process, in milliseconds.
const SHUT_MILLIS_MAX: u32 = 200;
const MILLI: u64 = 1_000_000;

/// The turn to measure, among all threads of the container.
#[must_use]
pub(crate) struct DeltaTurn {
    word: &'static AtomicU32,
    /// When it began; `None`: another process's goes on.
    own: Option<u32>,
}

/// Whether others may begin to move memory during a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionGate {
    Open,
    Shut,
}

/// Bit of the turn's word: its gate is shut.
const SHUT: u32 = 1;

fn millis() -> u32 {
    u32::try_from((sys::now() / MILLI) & u64::from(u32::MAX)).unwrap_or(0).max(2)
}

impl AdmissionGate {
    /// The word of a turn that begins now; never later than that.
    fn stamp(self, now: u32) -> u32 {
        match self {
            Self::Open => now & !SHUT,
            Self::Shut => (now - 1) | SHUT,
        }
    }
}

impl DeltaTurn {
    /// Whether it is this thread's.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Waits for the turn, not for ever.
    pub(crate) fn take(ledger: Ledger) -> Self {
        Self::take_with(ledger, AdmissionGate::Open)
    }

    pub(super) fn take_with(ledger: Ledger, door: AdmissionGate) -> Self {
        let (word, begun) = (ledger.usage().view.measuring(), millis());
        loop {
            let (seen, now) = (word.load(Ordering::Acquire), millis());
            // A turn that lasts has been left, or its call takes long: what is measured beside it is seen to be doubtful.
            let is_over = seen == 0 || now.wrapping_sub(seen) > TURN_MILLIS_MAX;
            let own = door.stamp(now);
            if is_over && word.compare_exchange(seen, own, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Self { word, own: Some(own) };
            }
            if now.wrapping_sub(begun) > TURN_MILLIS_MAX {
                return Self { word, own: None };
            }
            if !is_over {
                sys::wait_while(word, seen, TURN_STEP_NANOS);
            }
        }
    }
}

impl Drop for DeltaTurn {
    fn drop(&mut self) {
        let Some(own) = self.own else { return };
        if self.word.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            // Of those before a shut gate no process is next.
            if own & SHUT == 0 { sys::wake_one(self.word) } else { sys::wake_all(self.word) }
        }
    }
}

/// Before a call that moves memory, by a thread that has begun none: where the gate is shut it waits, not for long.
#[inline]
pub(crate) fn pass_admission_gate(ledger: Ledger) {
    let word = ledger.usage().view.measuring();
    if word.load(Ordering::Relaxed) & SHUT != 0 {
        wait_outside(word);
    }
}

/// The call moves memory of the current context's card, until it is over.
pub(crate) fn moving_here() -> InFlightOperation {
    let _errno = KeepErrno::new();
    match contexts::current().map(|current| account::of(current.device)) {
        Some(Account::Counted(ledger)) => {
            pass_admission_gate(ledger);
            ledger.moving()
        }
        _ => InFlightOperation::NOTHING,
    }
}

#[cold]
fn wait_outside(word: &AtomicU32) {
    let _errno = KeepErrno::new();
    let begun = millis();
    loop {
        let (seen, now) = (word.load(Ordering::Acquire), millis());
        // A gate that was shut for longer was left so.
        let is_shut = seen & SHUT != 0 && now.wrapping_sub(seen) <= SHUT_MILLIS_MAX;
        if !is_shut || now.wrapping_sub(begun) > SHUT_MILLIS_MAX {
            return;
        }
        sys::wait_while(word, seen, TURN_STEP_NANOS);
    }
}
