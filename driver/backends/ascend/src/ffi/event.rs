//! Fault events: the library calls [`deliver`] on a thread of its own, without a word for whom. A watcher has a queue.

// UNSAFETY: the event lies behind a pointer of the library's.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::layout::Event;

/// Most events that wait for a watcher; older ones go first.
const WAITING_MAX: usize = 256;

static QUEUES: Mutex<Vec<Queue>> = Mutex::new(Vec::new());
static NEWS: Condvar = Condvar::new();
/// Events of all chips so far.
static DELIVERED: AtomicU64 = AtomicU64::new(0);

/// What waits for one watcher.
#[derive(Debug)]
struct Queue {
    watcher: u64,
    device: u32,
    waiting: VecDeque<FaultEvent>,
}

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

/// The events of one chip, from its making on.
#[derive(Debug)]
pub(crate) struct Watcher(u64);

fn queues() -> MutexGuard<'static, Vec<Queue>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many events the library delivered so far.
pub(crate) fn delivered() -> u64 {
    DELIVERED.load(Ordering::Acquire)
}

/// Takes an event from the library.
pub(crate) extern "C" fn deliver(event: *const Event) {
    if event.is_null() {
        return;
    }
    DELIVERED.fetch_add(1, Ordering::AcqRel);
    // SAFETY: not null, and an event by the call's contract; unaligned is allowed for.
    let event = unsafe { event.read_unaligned() };
    let Event { id, device, severity, assertion, .. } = event;
    let told = FaultEvent { device: u32::from(device), code: id, severity, assertion };
    for queue in queues().iter_mut().filter(|queue| queue.device == told.device) {
        if queue.waiting.len() == WAITING_MAX {
            queue.waiting.pop_front();
        }
        queue.waiting.push_back(told);
    }
    NEWS.notify_all();
}

// === impl Watcher ===

impl Watcher {
    /// A watcher of the chip with this number.
    pub(crate) fn of(device: u32) -> Self {
        let mut queues = queues();
        let watcher = queues.iter().map(|queue| queue.watcher).max().unwrap_or(0) + 1;
        queues.push(Queue { watcher, device, waiting: VecDeque::new() });
        Self(watcher)
    }

    /// The next event; `None`: there is none for so long.
    pub(crate) fn next(&self, longest: Duration) -> Option<FaultEvent> {
        let own = |queues: &mut Vec<Queue>| queues.iter().position(|queue| queue.watcher == self.0);
        let nothing = |queues: &mut Vec<Queue>| {
            own(queues).and_then(|at| queues.get(at)).is_none_or(|queue| queue.waiting.is_empty())
        };
        let woken =
            NEWS.wait_timeout_while(queues(), longest, nothing).unwrap_or_else(PoisonError::into_inner);
        let (mut queues, _) = woken;
        let at = own(&mut queues)?;
        queues.get_mut(at)?.waiting.pop_front()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        queues().retain(|queue| queue.watcher != self.0);
    }
}
