//! Fault events: the library calls [`deliver`] on a thread of its own, without saying for whom. One queue for the process.

// UNSAFETY: the event lies behind a pointer of the library's.
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::layout::Event;

/// Most events that wait; older ones go first.
const WAITING_MAX: usize = 256;

static WAITING: Mutex<VecDeque<FaultEvent>> = Mutex::new(VecDeque::new());
static NEWS: Condvar = Condvar::new();

/// A fault that began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// Number of the chip.
    pub device: u32,
    /// Fault code.
    pub code: u32,
    /// 0 notice, 1 minor, 2 major, 3 critical.
    pub severity: u8,
    /// 0 ended, 1 began, 2 once.
    pub assertion: u8,
}

/// Takes an event from the library.
pub(crate) extern "C" fn deliver(event: *const Event) {
    if event.is_null() {
        return;
    }
    // SAFETY: not null, and an event by the call's contract; unaligned is allowed for.
    let event = unsafe { event.read_unaligned() };
    let Event { id, device, severity, assertion, .. } = event;
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    if waiting.len() == WAITING_MAX {
        waiting.pop_front();
    }
    waiting.push_back(FaultEvent { device: u32::from(device), code: id, severity, assertion });
    NEWS.notify_one();
}

/// The next event; `None`: there is none for so long.
pub(crate) fn next(longest: Duration) -> Option<FaultEvent> {
    let waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    let nothing = |waiting: &mut VecDeque<FaultEvent>| waiting.is_empty();
    let woken = NEWS.wait_timeout_while(waiting, longest, nothing).unwrap_or_else(PoisonError::into_inner);
    let (mut waiting, _) = woken;
    waiting.pop_front()
}
