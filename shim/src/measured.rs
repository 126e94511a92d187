//! What a call took from the card or gave back: free memory before less free memory after, corrected by what the books moved.
//!
//! ```text
//!   take turns ─▶ wait until nobody else moves memory ─▶ free memory and books ─▶ the call
//!              ─▶ wait until nobody else does ─▶ free memory and books ─▶ the next one's turn
//! ```
//!
//! Each process of the container says in its slot which of its calls are under way. While there is none but the measured one,
//! books and card differ by what nobody booked, so two such moments tell what the call took, whatever came and went between
//! them; unless another process has pools or graphs, whose memory comes back to the card before its books say so. Both waits
//! have an end: whoever is in the driver for long makes a reading doubtful and nobody wait for him. A turn that somebody died in
//! is over after [`TURN_MILLIS_MAX`]. Other tenants of the card cannot be seen. Where something would be credited by what is read, each reading is two at once: where
//! they differ, somebody is at work.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::account::{self, Account, Bytes, Ledger, Still};
use crate::contexts;
use crate::pools;
use crate::sizes::free_now;
use crate::sys::{self, KeepErrno};
use crate::vendor::SUCCESS;

/// Longest wait for others who measure, in milliseconds: after it their turn is over.
const TURN_MILLIS_MAX: u32 = 1_000;
/// Longest sleep before the turn is looked at again.
const TURN_STEP_NANOS: u64 = 5_000_000;
/// First and longest sleep before a look whether somebody still moves memory.
const STEP_NANOS: u64 = 50_000;
const STEP_NANOS_MAX: u64 = 2_000_000;
const MILLI: u64 = 1_000_000;

/// 1: the last reading waited in vain, so the next ones wait little.
static IS_TIRED: AtomicU32 = AtomicU32::new(0);

/// How long a reading waits for others to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// Where much is known without it.
    Little,
    /// Where nothing is.
    Much,
}

impl Patience {
    fn nanos(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Much if IS_TIRED.load(Ordering::Relaxed) == 0 => 250 * MILLI,
            Self::Little | Self::Much => 2 * MILLI,
        }
    }
}

/// Free memory and the books at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    free: u64,
    still: Still,
    /// Nothing moved meanwhile but by the measured call.
    is_settled: bool,
}

/// What a call took.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// So much, by all that can be seen.
    Sure(Bytes),
    /// That, by the books of all processes of the container; one that ended may have hidden some.
    Likely(Bytes),
    /// That, or somebody else's.
    Doubtful(Bytes),
    /// It gave so much back, by all that can be seen.
    Given(Bytes),
}

/// The turn to measure, among all threads of the container.
#[must_use]
pub(crate) struct Turn {
    word: &'static AtomicU32,
    /// When it began; `None`: somebody else's goes on.
    own: Option<u32>,
}

fn millis() -> u32 {
    u32::try_from((sys::now() / MILLI) & u64::from(u32::MAX)).unwrap_or(0).max(1)
}

impl Turn {
    /// Waits for the turn, not for ever.
    pub(crate) fn take(ledger: Ledger) -> Self {
        let (word, begun) = (ledger.usage().view.measuring(), millis());
        loop {
            let (seen, now) = (word.load(Ordering::Acquire), millis());
            // A turn that lasts has been left, or its call takes long: what is measured beside it is seen to be doubtful.
            let is_over = seen == 0 || now.wrapping_sub(seen) > TURN_MILLIS_MAX;
            if is_over && word.compare_exchange(seen, now, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Self { word, own: Some(now) };
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

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(own) = self.own else { return };
        if self.word.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            sys::wake_one(self.word);
        }
    }
}

/// Reads the card of the current context, while the measured call alone is under way, if that comes to pass in time.
pub(crate) fn read(ledger: Ledger, patience: Patience) -> Option<Reading> {
    pools::refresh();
    let (until, mut step) = (sys::now().saturating_add(patience.nanos()), 0);
    loop {
        let still = ledger.still();
        if still.calls.under_way == 1 {
            let free = free_now()?;
            if ledger.still() == still {
                IS_TIRED.store(0, Ordering::Relaxed);
                return Some(Reading { free, still, is_settled: true });
            }
        }
        if sys::now() >= until {
            if patience == Patience::Much {
                IS_TIRED.store(1, Ordering::Relaxed);
            }
            return Some(Reading { free: free_now()?, still, is_settled: false });
        }
        if step == 0 {
            // Who died in a call is at nothing any more.
            let _done_or_elsewhere = ledger.look();
        } else {
            sys::wait_while(&AtomicU32::new(0), 0, step);
        }
        step = (step * 2).clamp(STEP_NANOS, STEP_NANOS_MAX);
    }
}

impl Reading {
    /// Whether nothing was seen to move but by the measured call.
    fn is_undisturbed_until(&self, later: &Self) -> bool {
        self.is_settled && later.is_settled && self.still == later.still
    }
}

/// The same without waiting, and doubtful where the card says something else at once.
fn read_twice(ledger: Ledger) -> Option<Reading> {
    let first = read(ledger, Patience::None)?;
    let is_steady = free_now()? == first.free;
    Some(Reading { is_settled: first.is_settled && is_steady, ..first })
}

/// What one call between two readings took.
pub(crate) fn taken(before: &Reading, after: &Reading) -> Taken {
    let (then, now) = (before.still, after.still);
    let difference = i128::from(before.free) - i128::from(after.free);
    let moved = i128::from(now.total.0) - i128::from(then.total.0);
    let bytes = |signed: i128| Bytes(u64::try_from(signed.max(0)).unwrap_or(0));
    let is_alone = then.calls.others == 0 && now.calls.others == 0;
    let is_booked = then.calls.loose == 0 && now.calls.loose == 0;
    let taken = difference - moved;
    let is_settled = before.is_settled && after.is_settled;
    if !is_settled || !is_booked {
        Taken::Doubtful(bytes(taken))
    } else if !is_alone {
        Taken::Likely(bytes(taken))
    } else if taken < 0 {
        Taken::Given(bytes(-taken))
    } else {
        Taken::Sure(bytes(taken))
    }
}

/// What the card got back between two readings beside what the books moved, where both were settled; `None`: nothing, or who knows.
/// It may be somebody's who has pools or graphs, or has ended.
pub(crate) fn given(before: &Reading, after: &Reading) -> Option<Bytes> {
    let card = i128::from(after.free) - i128::from(before.free);
    let booked = i128::from(after.still.total.0) - i128::from(before.still.total.0);
    let is_settled = before.is_settled && after.is_settled;
    u64::try_from(card + booked).ok().filter(|bytes| is_settled && *bytes > 0).map(Bytes)
}

/// Calls, and says what that took of the card of a ledger; doubtful where another card is the current one, and where anything
/// else moved. The caller says that its call moves memory.
pub(crate) fn around(ledger: Ledger, call: impl FnOnce() -> i32) -> (i32, Taken) {
    let before = {
        let _errno = KeepErrno::new();
        if is_current(ledger) { read_twice(ledger) } else { None }
    };
    let answer = call();
    let _errno = KeepErrno::new();
    let after = before.as_ref().filter(|_| answer == SUCCESS).and_then(|_| read_twice(ledger));
    match (before, after) {
        (Some(before), Some(after)) if before.is_undisturbed_until(&after) => {
            (answer, taken(&before, &after))
        }
        _ => (answer, Taken::Doubtful(Bytes(0))),
    }
}

fn is_current(ledger: Ledger) -> bool {
    let current = contexts::current().map(|current| account::of(current.device));
    matches!(current, Some(Account::Counted(other)) if other.number() == ledger.number())
}
