//! Streams whose work is written down instead of done.
//!
//! Nobody asks the driver about a stream while no capture is under way. One that is left open costs its process that question
//! at each launch and nothing else: whoever launches elsewhere is billed as before.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::pacing::Target;
use crate::vendor::{self, SUCCESS};

/// Captures that were begun and not ended.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Streams that are captured for another graphics interface, of which the driver may not tell; 0: free.
static FOREIGN: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Whether any is under way.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Whether a stream is captured.
#[inline]
pub(crate) fn holds(target: Target) -> bool {
    any() && (is_foreign(target) || vendor::is_capturing(target.stream, target.mode))
}

fn is_foreign(target: Target) -> bool {
    let lane = target.lane();
    FOREIGN.iter().any(|stream| stream.load(Ordering::Acquire) == lane)
}

fn ended() {
    // One that was begun before the hooks came counts from zero.
    let _none = COUNT.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
}

/// A capture begins: counted before the driver begins, so that no question of ours falls into it.
pub(crate) fn begin(real: impl FnOnce() -> i32) -> i32 {
    COUNT.fetch_add(1, Ordering::AcqRel);
    let answer = real();
    if answer != SUCCESS {
        ended();
    }
    answer
}

/// Something that may end a stream's capture. One that was spoilt ends as well, with an error; so the stream is asked, not the
/// answer.
pub(crate) fn end(target: Target, real: impl FnOnce() -> i32) -> i32 {
    let before = vendor::is_capturing(target.stream, target.mode);
    let answer = real();
    if before && !vendor::is_capturing(target.stream, target.mode) {
        ended();
    }
    answer
}

/// A stream ends, and its capture with it.
pub(crate) fn destroy(target: Target, real: impl FnOnce() -> i32) -> i32 {
    if !any() {
        return real();
    }
    let captured = vendor::is_capturing(target.stream, target.mode);
    let answer = real();
    if answer == SUCCESS && (captured | forget(target)) {
        ended();
    }
    answer
}

/// A capture for another graphics interface begins.
pub(crate) fn begin_foreign(target: Target, real: impl FnOnce() -> i32) -> i32 {
    let take = |stream: &AtomicU64| {
        stream.compare_exchange(0, target.lane(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    };
    // Without a place the driver's word is all there is.
    let taken = !is_foreign(target) && FOREIGN.iter().any(take);
    let answer = begin(real);
    if answer != SUCCESS && taken {
        forget(target);
    }
    answer
}

/// Such a capture ends.
pub(crate) fn end_foreign(target: Target, real: impl FnOnce() -> i32) -> i32 {
    let answer = real();
    if answer == SUCCESS {
        forget(target);
        ended();
    }
    answer
}

fn forget(target: Target) -> bool {
    let free = |stream: &AtomicU64| {
        stream.compare_exchange(target.lane(), 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    };
    FOREIGN.iter().any(free)
}
