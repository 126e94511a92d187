//! Streams with work that is written down instead of done.
//!
//! ```text
//!   begin ─▶ an origin {stream, context}     other streams join by events, and are let out when the origin ends it
//!   end, or the end of the stream or the context in which it began ─▶ the origin is no more
//! ```
//!
//! No thread asks the driver about a stream while no capture is under way. One that is left open costs its process that question
//! at each launch and nothing else: the thread that launches elsewhere is billed as before. A stream that merely joined ends
//! nothing.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::accounting::contexts::ContextEnd;
use crate::accounting::listeners::{Note, OnContextEnd};
use crate::loader::vendor::{self, SUCCESS, Target};
use crate::sys::KeepErrno;

/// Captures whose origins are known at once.
const ORIGINS_MAX: usize = 32;

/// Where a capture began.
struct Origin {
    /// The stream; 0: free.
    lane: AtomicU64,
    context: AtomicU64,
    /// 1: for another graphics interface, of which the driver may not tell.
    foreign: AtomicU32,
}

/// Captures that were begun and not ended.
static COUNT: AtomicU32 = AtomicU32::new(0);
static ORIGINS: [Origin; ORIGINS_MAX] =
    [const { Origin { lane: AtomicU64::new(0), context: AtomicU64::new(0), foreign: AtomicU32::new(0) } };
        ORIGINS_MAX];
/// Captures for which there was no place among the origins.
static UNPLACED: AtomicU32 = AtomicU32::new(0);

/// The purpose of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapturePurpose {
    /// The program, as a graph.
    Graph,
    /// Another graphics interface.
    Foreign,
}

/// Captures that began in a context, by their places.
#[derive(Clone, Copy, Debug)]
struct ContextCaptures(u32);

const _: () = assert!(ORIGINS_MAX == 32, "one bit each in `ContextCaptures`");

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
    let is = |origin: &Origin| origin.foreign.load(Ordering::Acquire) != 0 && origin.is_of(target);
    ORIGINS.iter().any(is)
}

impl Origin {
    fn is_of(&self, target: Target) -> bool {
        self.lane.load(Ordering::Acquire) == target.lane()
    }

    fn is_in(&self, context: u64) -> bool {
        self.lane.load(Ordering::Acquire) != 0 && self.context.load(Ordering::Acquire) == context
    }

    /// Takes a place before the capture begins, so that no question of ours falls into it.
    fn take(target: Target, asked_for: CapturePurpose) -> Option<&'static Self> {
        let context = context_of(target);
        COUNT.fetch_add(1, Ordering::AcqRel);
        let free = |origin: &&Self| {
            origin.lane.compare_exchange(0, target.lane(), Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let Some(origin) = ORIGINS.iter().find(free) else {
            UNPLACED.fetch_add(1, Ordering::AcqRel);
            return None;
        };
        origin.foreign.store(u32::from(asked_for == CapturePurpose::Foreign), Ordering::Release);
        origin.context.store(context, Ordering::Release);
        Some(origin)
    }

    /// The capture of `lane` ended; another thread may have seen it end first.
    fn ended(&self, lane: u64) -> bool {
        let ours = self.lane.compare_exchange(lane, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if ours {
            // Counted when the place was taken.
            COUNT.fetch_sub(1, Ordering::AcqRel);
        }
        ours
    }
}

/// One without a place ended. Those that began before the hooks came were not counted.
fn unplaced_ended() {
    let less = UNPLACED.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
    if less.is_ok() {
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The context in which a stream is; 0: the driver does not say.
fn context_of(target: Target) -> u64 {
    let _errno = KeepErrno::new();
    let mut context = 0;
    let answer = vendor::cuStreamGetCtx(target.lane(), &raw mut context);
    if answer == Some(SUCCESS) { context } else { 0 }
}

/// A capture begins.
pub(crate) fn begin(target: Target, real: impl FnOnce() -> i32) -> i32 {
    begin_for(target, CapturePurpose::Graph, real)
}

/// A capture for another graphics interface begins.
pub(crate) fn begin_foreign(target: Target, real: impl FnOnce() -> i32) -> i32 {
    begin_for(target, CapturePurpose::Foreign, real)
}

fn begin_for(target: Target, asked_for: CapturePurpose, real: impl FnOnce() -> i32) -> i32 {
    let origin = Origin::take(target, asked_for);
    let answer = real();
    if answer != SUCCESS {
        match origin {
            Some(origin) => {
                origin.ended(target.lane());
            }
            None => unplaced_ended(),
        }
    }
    answer
}

/// Something that may end a stream's capture. One that was spoilt ends as well, with an error; so the stream is asked, not the
/// answer.
pub(crate) fn end(target: Target, real: impl FnOnce() -> i32) -> i32 {
    let before = vendor::is_capturing(target.stream, target.mode);
    let answer = real();
    if before && !vendor::is_capturing(target.stream, target.mode) {
        ended(target);
    }
    answer
}

/// A capture for another graphics interface ends.
pub(crate) fn end_foreign(target: Target, real: impl FnOnce() -> i32) -> i32 {
    let answer = real();
    if answer == SUCCESS {
        ended(target);
    }
    answer
}

fn ended(target: Target) {
    let of = |origin: &Origin| origin.is_of(target) && origin.ended(target.lane());
    if !ORIGINS.iter().any(of) {
        unplaced_ended();
    }
}

/// A stream ends, and what began on it. The driver may give its handle to another stream at once.
pub(crate) fn destroy(target: Target, real: impl FnOnce() -> i32) -> i32 {
    let origin = if any() { ORIGINS.iter().find(|origin| origin.is_of(target)) } else { None };
    let answer = real();
    if answer == SUCCESS
        && let Some(origin) = origin
    {
        origin.ended(target.lane());
    }
    answer
}

/// What began in a context that is about to end.
fn begun_in(context: u64) -> ContextCaptures {
    if !any() {
        return ContextCaptures(0);
    }
    let bit = |(number, origin): (usize, &Origin)| u32::from(origin.is_in(context)) << (number % ORIGINS_MAX);
    ContextCaptures(ORIGINS.iter().enumerate().map(bit).sum())
}

/// The captures of contexts that end.
pub(crate) struct InContexts;

impl OnContextEnd for InContexts {
    fn going(&self, handle: u64, _: ContextEnd) -> Note {
        Note(begun_in(handle).0)
    }

    fn gone(&self, handle: u64, Note(begun): Note) {
        ContextCaptures(begun).end_with(handle);
    }
}

impl ContextCaptures {
    /// The context ended, and its streams with it.
    fn end_with(self, context: u64) {
        let is_one = |number: usize| self.0 & 1 << (number % ORIGINS_MAX) != 0;
        for (_, origin) in ORIGINS.iter().enumerate().filter(|(number, _)| is_one(*number)) {
            if origin.is_in(context) {
                origin.ended(origin.lane.load(Ordering::Acquire));
            }
        }
    }
}
