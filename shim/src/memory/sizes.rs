//! How large a context is presumed to be until the host's look at the driver has it.
//!
//! | known by | bytes |
//! |---|---|
//! | the limits page | what the driver showed the host of a process on this card |
//! | the usage file | the least that was in use on the card beside a new context of this container: no context is larger |
//! | nothing | 512 MiB; a smaller limit, if it then shows that it fits |

use core::sync::atomic::{AtomicU32, Ordering};

use aliquot_abi::limits::CONTEXT_BYTES_PRESUMED;

use crate::accounting::account::{Bytes, Ledger, OutOfMemory};
use crate::loader::vendor::{self, SUCCESS};
use crate::sys;

/// What is larger is no context's size: a process wrote over the word.
const LARGEST: u64 = 1 << 40;
/// Longest wait for another process that may find the size, and time between two tries: making a context takes a driver some
/// hundreds of milliseconds.
const OTHERS_NANOS_MAX: u64 = 5_000_000_000;
const OTHERS_STEP_NANOS: u64 = 5_000_000;

/// What a context takes, as far as it is known.
pub(crate) fn known(ledger: Ledger) -> Option<Bytes> {
    let published = ledger.context_bytes();
    if published.0 > 0 { Some(published) } else { bound(ledger) }
}

/// What a process of the container found that no context exceeds.
fn bound(ledger: Ledger) -> Option<Bytes> {
    let word = ledger.usage().view.context_bytes().load(Ordering::Acquire);
    word.checked_sub(1).filter(|bytes| *bytes <= LARGEST).map(Bytes)
}

/// What is reserved before a context is made.
pub(crate) fn presumed(ledger: Ledger) -> Bytes {
    known(ledger).unwrap_or_else(|| ledger.limit().min(Bytes(CONTEXT_BYTES_PRESUMED)))
}

/// Reserves what a context is presumed to take. While the size is unknown and other calls are under way, one of them may find it:
/// processes that begin at once wait for each other, within a bound.
pub(crate) fn reserve(ledger: Ledger) -> Result<Bytes, OutOfMemory> {
    let until = sys::now().saturating_add(OTHERS_NANOS_MAX);
    loop {
        let is_known = known(ledger).is_some();
        let resting = ledger.resting();
        let are_others = ledger.still().calls.under_way > 0;
        drop(resting);
        let presumed = presumed(ledger);
        if ledger.reserve(presumed).is_ok() {
            return Ok(without_excess(ledger, presumed));
        }
        if is_known || !are_others || sys::now() >= until {
            return Err(OutOfMemory);
        }
        let _resting = ledger.resting();
        sys::wait_while(&AtomicU32::new(0), 0, OTHERS_STEP_NANOS);
    }
}

/// What stays reserved of this presumption: another process may have found the size while it was being reserved, and what is
/// reserved above that size would refuse memory to it.
fn without_excess(ledger: Ledger, reserved: Bytes) -> Bytes {
    let enough = presumed(ledger).min(reserved);
    ledger.release(Bytes(reserved.0 - enough.0));
    enough
}

/// What a context is presumed to take that is there now, with so much reserved for it: no more than is in use on the card. `None`:
/// perhaps more than a limit below 512 MiB, and nothing tells.
pub(crate) fn found(ledger: Ledger, context: Option<u64>, reserved: Bytes) -> Option<Bytes> {
    if ledger.context_bytes().0 > 0 {
        return Some(reserved);
    }
    let in_use = context.and_then(|context| vendor::with_context(context, in_use_now));
    if let Some(in_use) = in_use.filter(|in_use| *in_use <= reserved) {
        ledger.usage().view.context_bytes().store(in_use.0.saturating_add(1), Ordering::Release);
        return Some(in_use);
    }
    (bound(ledger).is_some() || reserved.0 >= CONTEXT_BYTES_PRESUMED).then_some(reserved)
}

fn in_use_now() -> Option<Bytes> {
    let (free, total) = memory_now()?;
    Some(Bytes(total.saturating_sub(free)))
}

/// Free memory of the current context's card, in bytes.
pub(crate) fn free_now() -> Option<u64> {
    memory_now().map(|(free, _)| free)
}

/// The same, and all memory.
fn memory_now() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0_usize, 0_usize);
    if vendor::cuMemGetInfo_v2(&raw mut free, &raw mut total)? != SUCCESS {
        return None;
    }
    Some((u64::try_from(free).ok()?, u64::try_from(total).ok()?))
}
