//! What a call took from the card or gave back: free memory before less free memory after, corrected by what the books moved.
//!
//! It is sure where nothing else of this process moved memory meanwhile and the container has no other process. Other tenants
//! of the card cannot be seen. Where something would be credited by what is read, each reading is two at once: where they
//! differ, somebody is at work.

use crate::account::{self, Account, Bytes, Ledger, Still};
use crate::contexts;
use crate::overhead::free_now;
use crate::pools;
use crate::sys::KeepErrno;
use crate::vendor::SUCCESS;

/// Free memory and the books at a moment.
pub(crate) struct Reading {
    free: u64,
    /// Not seen to move by itself.
    steady: bool,
    still: Option<Still>,
}

/// What a call took.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// So much, by all that can be seen.
    Sure(Bytes),
    /// That, unless another process of the container moved memory at that moment.
    Likely(Bytes),
    /// That, or somebody else's.
    Doubtful(Bytes),
    /// It gave so much back, by all that can be seen.
    Given(Bytes),
}

/// Reads the card of the current context: the driver is asked once.
pub(crate) fn read(ledger: Ledger) -> Option<Reading> {
    pools::refresh();
    let still = ledger.still();
    Some(Reading { free: free_now()?, steady: true, still })
}

/// The same twice.
fn read_twice(ledger: Ledger) -> Option<Reading> {
    let first = read(ledger)?;
    let free = free_now()?;
    Some(Reading { free, steady: free == first.free, ..first })
}

/// What one call between two readings took.
pub(crate) fn taken(before: &Reading, after: &Reading) -> Taken {
    let (Some(then), Some(now)) = (before.still, after.still) else {
        return Taken::Doubtful(Bytes(0));
    };
    let difference = i128::from(before.free) - i128::from(after.free);
    let moved = i128::from(now.total.0) - i128::from(then.total.0);
    let bytes = |signed: i128| Bytes(u64::try_from(signed.max(0)).unwrap_or(0));
    let calm = before.steady && after.steady && then.but_for_one_call(&now);
    match difference - moved {
        taken if !calm => Taken::Doubtful(bytes(taken)),
        taken if !then.alone(&now) => Taken::Likely(bytes(taken)),
        taken if taken < 0 => Taken::Given(bytes(-taken)),
        taken => Taken::Sure(bytes(taken)),
    }
}

/// Calls, and says what that took of the card of a ledger; doubtful where another card is the current one.
pub(crate) fn around(ledger: Ledger, call: impl FnOnce() -> i32) -> (i32, Taken) {
    let before = {
        let _errno = KeepErrno::new();
        if is_current(ledger) { read_twice(ledger) } else { None }
    };
    let moving = ledger.moving();
    let answer = call();
    drop(moving);
    let _errno = KeepErrno::new();
    let after = before.as_ref().filter(|_| answer == SUCCESS).and_then(|_| read_twice(ledger));
    match (before, after) {
        (Some(before), Some(after)) => (answer, taken(&before, &after)),
        _ => (answer, Taken::Doubtful(Bytes(0))),
    }
}

fn is_current(ledger: Ledger) -> bool {
    let current = contexts::current().map(|current| account::of(current.device));
    matches!(current, Some(Account::Counted(other)) if other.number() == ledger.number())
}
