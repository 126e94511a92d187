//! The program waits for its work, or asks whether it is done: what is done by then is billed at once, so that a process that
//! ends after its wait leaves nothing behind. Where nothing is unbilled, none of this does more than look at one word.

use core::sync::atomic::Ordering;

use aliquot_enforce::pace::Waits;
use aliquot_enforce::units::Nanos;

use super::markers::{self, may_mark};
use super::way::{Way, current};
use super::{Meter, Target, of_grant};
use crate::sys::{self, KeepErrno};
use crate::vendor::SUCCESS;

/// What no stream is called.
const NO_STREAM: u64 = 0;

/// The meter of the current card, where this process has work on it that is not on the books.
fn unbilled() -> Option<Meter> {
    let Way::Paced(paced) = current() else { return None };
    if paced.unbilled_since.load(Ordering::Acquire) == 0 {
        return None;
    }
    of_grant(usize::try_from(paced.number.load(Ordering::Acquire)).ok()?)
}

/// A call that returns when work is done.
pub(crate) fn wait(waits: Waits, real: impl FnOnce() -> i32) -> i32 {
    let Some(meter) = unbilled() else { return real() };
    meter.mark(waits);
    let answer = real();
    if answer == SUCCESS {
        meter.settle_all(waits);
    }
    answer
}

/// A call that succeeds when some work is done.
pub(crate) fn ask(real: impl FnOnce() -> i32) -> i32 {
    let answer = real();
    if answer == SUCCESS
        && let Some(meter) = unbilled()
    {
        meter.settle();
    }
    answer
}

/// A copy that returns when it is done, and with it all that was launched before it on its stream. A marker behind it passes
/// microseconds later, which is waited for: a program may compute for long before it asks the driver anything again.
pub(crate) fn copy(real: impl FnOnce() -> i32) -> i32 {
    let answer = ask(real);
    if answer == SUCCESS
        && let Some(meter) = unbilled()
    {
        meter.settle_soon();
    }
    answer
}

/// A call that returns when an event is reached, and so some work is done.
pub(crate) fn wait_for_event(real: impl FnOnce() -> i32) -> i32 {
    let Some(meter) = unbilled() else { return real() };
    meter.mark(Waits::OnAll);
    let answer = real();
    if answer == SUCCESS {
        meter.settle_all(Waits::On(NO_STREAM));
    }
    answer
}

/// A stream is about to be destroyed: from now on nothing can be put into it.
pub(crate) fn stream_going(target: Target) {
    if let Some(meter) = unbilled() {
        meter.mark(Waits::On(target.lane()));
    }
    let _errno = KeepErrno::new();
    markers::stream_going(target.lane());
}

impl Meter {
    /// Puts markers behind what the program is about to wait for.
    #[cold]
    fn mark(&self, waits: Waits) {
        let _errno = KeepErrno::new();
        self.with_marks(|marks, world| {
            if let Some(marks) = marks {
                self.paced.pace.waits(Nanos(sys::now()), waits, marks, world, may_mark);
            }
        });
    }

    /// Bills what the program has waited for.
    #[cold]
    fn settle_all(&self, waits: Waits) {
        let _errno = KeepErrno::new();
        let Some(terms) = self.terms() else { return };
        self.with_marks(|marks, world| {
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
        while self.paced.owed_since.load(Ordering::Acquire) != 0
            && Nanos(sys::now()).minus(begun) < markers::LAST_MARKERS
        {
            sys::yield_now();
            self.settle_all(Waits::On(NO_STREAM));
        }
    }

    /// Bills what may be done by now.
    #[cold]
    fn settle(&self) {
        let _errno = KeepErrno::new();
        let Some(terms) = self.terms() else { return };
        self.with_marks(|marks, world| {
            if let Some(marks) = marks {
                self.paced.pace.settle(Nanos(sys::now()), terms, &self.shared(), marks, world);
            }
        });
    }
}
