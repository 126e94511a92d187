//! The program waits for its work, or asks whether it is done: what is done by then is billed at once, so that a process that
//! ends after its wait leaves nothing behind. Where nothing is unbilled, none of this does more than look at one word.

use core::sync::atomic::Ordering;

use aliquot_enforce::marks::Recorded;
use aliquot_enforce::pace::WaitScope;
use aliquot_enforce::units::Nanos;

use super::fast_path::{self, LaunchPath, NO_STREAM};
use super::markers::{self, Work, may_mark};
use super::{Meter, PacedCard, of_grant};
use crate::compute::captures;
use crate::loader::vendor::{SUCCESS, Target};
use crate::sys::{self, KeepErrno};

/// Turns given away for another thread that is at the markers.
const MARKER_TURNS_MAX: u32 = 100;

/// The meter of a stream's card, where this process has work on it that is not charged.
#[inline(never)]
fn unbilled(lane: u64) -> Option<Meter> {
    paced(lane).and_then(with_work)
}

/// The controller of a stream's card, where its compute is limited.
fn paced(lane: u64) -> Option<&'static PacedCard> {
    fast_path::known(lane).or_else(|| match fast_path::of_stream(lane) {
        LaunchPath::Paced(paced) => Some(paced),
        LaunchPath::Free | LaunchPath::Closed => None,
    })
}

fn with_work(paced: &PacedCard) -> Option<Meter> {
    if paced.unbilled.any.load(Ordering::Acquire) == 0 {
        return None;
    }
    of_grant(usize::try_from(paced.number.load(Ordering::Acquire)).ok()?)
}

/// The meters of all cards with such work: an event does not say on which it is.
fn all_unbilled() -> impl Iterator<Item = Meter> {
    fast_path::all_known().filter_map(with_work)
}

const fn lane_of(waits: WaitScope) -> u64 {
    match waits {
        WaitScope::On(lane) => lane,
        WaitScope::OnAll => NO_STREAM,
    }
}

/// A call that returns when work is done.
pub(crate) fn wait(waits: WaitScope, real: impl FnOnce() -> i32) -> i32 {
    let Some(meter) = unbilled(lane_of(waits)) else { return real() };
    meter.mark(waits);
    let answer = real();
    if answer == SUCCESS {
        meter.settle_all(waits);
    }
    answer
}

/// A call that returns when all work of a context is done, which need not be the current one; 0: it is.
pub(crate) fn wait_in(context: u64, real: impl FnOnce() -> i32) -> i32 {
    if context == 0 {
        return wait(WaitScope::OnAll, real);
    }
    let found = {
        let _errno = KeepErrno::new();
        fast_path::of_context(context).and_then(with_work)
    };
    let Some(meter) = found else { return real() };
    let _put = meter.mark_in(Work::In(context), WaitScope::OnAll);
    let answer = real();
    if answer == SUCCESS {
        meter.settle_all_in(Work::In(context), WaitScope::OnAll);
    }
    answer
}

/// A call that succeeds when some work on a stream is done.
pub(crate) fn ask(target: Target, real: impl FnOnce() -> i32) -> i32 {
    let answer = real();
    if answer == SUCCESS
        && let Some(meter) = unbilled(target.lane())
    {
        meter.settle(target.lane());
    }
    answer
}

/// A copy that returns when it is done, and with it all that was launched before it on its stream. A marker behind it passes
/// microseconds later, which is waited for: a program may compute for long before it asks the driver anything again.
pub(crate) fn copy(target: Target, real: impl FnOnce() -> i32) -> i32 {
    let answer = ask(target, real);
    if answer == SUCCESS
        && let Some(meter) = unbilled(target.lane())
    {
        meter.settle_soon();
    }
    answer
}

/// A call that returns when an event is reached, and so some work is done.
pub(crate) fn wait_for_event(real: impl FnOnce() -> i32) -> i32 {
    all_unbilled().for_each(|meter| meter.mark(WaitScope::OnAll));
    let answer = real();
    if answer == SUCCESS {
        all_unbilled().for_each(|meter| meter.settle_all(WaitScope::On(NO_STREAM)));
    }
    answer
}

/// A call that succeeds when an event is reached.
pub(crate) fn ask_event(real: impl FnOnce() -> i32) -> i32 {
    let answer = real();
    if answer == SUCCESS {
        all_unbilled().for_each(|meter| meter.settle(NO_STREAM));
    }
    answer
}

/// A stream is about to wait for something that the card does not do: that is no time of what comes before or behind it.
#[inline(never)]
pub(crate) fn holds(target: Target) {
    let _errno = KeepErrno::new();
    let lane = target.lane();
    let Some(paced) = paced(lane).filter(|_| !captures::holds(target)) else { return };
    paced.pace.holds(lane);
    let Some(meter) = with_work(paced) else { return };
    // Another thread has the markers for microseconds.
    for _ in 0..MARKER_TURNS_MAX {
        if meter.mark_in(Work::On(lane), WaitScope::On(lane)) == Recorded::Yes {
            return;
        }
        sys::yield_now();
    }
}

/// A stream is about to wait for what another one does, which may wait itself.
#[inline(never)]
pub(crate) fn follows(target: Target) {
    if fast_path::all_known().any(|paced| paced.pace.may_be_held()) {
        holds(target);
    }
}

/// A stream is about to be destroyed: from now on nothing can be put into it.
pub(crate) fn stream_going(target: Target) {
    if let Some(meter) = unbilled(target.lane()) {
        meter.mark(WaitScope::On(target.lane()));
    }
    let _errno = KeepErrno::new();
    markers::stream_going(target.lane());
    fast_path::forget(target.lane());
}

impl Meter {
    /// Puts markers behind what the program is about to wait for.
    fn mark(&self, waits: WaitScope) {
        // Without them its launches stay as they are.
        let _put = self.mark_in(Work::On(lane_of(waits)), waits);
    }

    /// Whether the markers were there to be put.
    #[cold]
    fn mark_in(&self, work: Work, waits: WaitScope) -> Recorded {
        let _errno = KeepErrno::new();
        self.with_marks(work, |marks, world| {
            let Some(marks) = marks else { return Recorded::No };
            self.paced.pace.waits(Nanos(sys::now()), waits, marks, world, may_mark);
            Recorded::Yes
        })
    }

    /// Bills what the program has waited for.
    fn settle_all(&self, waits: WaitScope) {
        self.settle_all_in(Work::On(lane_of(waits)), waits);
    }

    #[cold]
    fn settle_all_in(&self, work: Work, waits: WaitScope) {
        let _errno = KeepErrno::new();
        let Some(terms) = self.terms() else { return };
        self.with_marks(work, |marks, world| {
            let (now, shared) = (Nanos(sys::now()), self.shared());
            if let Some(marks) = marks {
                self.paced.pace.settle_all(now, terms, &shared, marks, world);
            }
            self.paced.pace.waited(now, waits, terms, &shared);
        });
    }

    /// Bills what is done, for as long as a marker of work of unknown length takes to pass.
    #[cold]
    fn settle_soon(&self) {
        let begun = Nanos(sys::now());
        while self.paced.unbilled.owed.load(Ordering::Acquire) != 0
            && Nanos(sys::now()).minus(begun) < markers::LAST_MARKERS
        {
            sys::yield_now();
            self.settle_all(WaitScope::On(NO_STREAM));
        }
    }

    /// Bills what may be done by now.
    #[cold]
    fn settle(&self, lane: u64) {
        let _errno = KeepErrno::new();
        let Some(terms) = self.terms() else { return };
        self.with_marks(Work::On(lane), |marks, world| {
            if let Some(marks) = marks {
                self.paced.pace.settle(Nanos(sys::now()), terms, &self.shared(), marks, world);
            }
        });
    }
}
