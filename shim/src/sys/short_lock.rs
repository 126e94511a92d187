//! Locks that are held for some loads and stores, and waited for by no thread in vain.
//!
//! A handler of a signal may call the driver while its own thread has such a lock, and may jump out of what it interrupted; a
//! thread may be cancelled anywhere. So the lock holds a mark of the thread that has it. A thread that finds its own mark, or
//! one that stays for long, does without the lock. No thread takes it from its holder, which may only be slow: what lies under
//! it may be half changed. A thread that cannot do without waits on.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys::{self, KeepErrno};

const OPEN: u32 = 0;
/// Its holder has not come back for long; no thread's mark, all of which are odd. The holder opens it all the same.
const LEFT: u32 = 2;
/// Looks at a taken lock before the processor is given away.
const SPINS: u32 = 64;
/// Turns of the processor given away before a thread sleeps.
const TURNS_MAX: u32 = 10_000;
/// The same, before one's own mark is taken for one's own: a child in the same memory shows its parent's.
const OWN_TURNS_MAX: u32 = 100;
/// Sleeps before a holder is taken for gone, and how long each is, in nanoseconds.
const SLEEPS_MAX: u32 = 2_000;
const SLEEP_NANOS: u64 = 1_000_000;

/// A short lock; zero is an open one.
#[derive(Debug)]
pub(crate) struct ShortLock(AtomicU32);

impl ShortLock {
    /// False: it cannot be had.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let me = sys::thread_mark();
        self.try_take(me) || self.wait(me)
    }

    /// Waits for it without end.
    #[inline]
    pub(crate) fn take_at_last(&self) {
        while !self.take() {
            self.rest();
        }
    }

    #[cold]
    fn rest(&self) {
        let _errno = KeepErrno::new();
        sys::wait_while(&self.0, self.0.load(Ordering::Relaxed), SLEEP_NANOS);
    }

    #[inline]
    pub(crate) fn open(&self) {
        self.0.store(OPEN, Ordering::Release);
    }

    #[inline]
    fn try_take(&self, me: u32) -> bool {
        self.0.compare_exchange(OPEN, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self, me: u32) -> bool {
        let _errno = KeepErrno::new();
        let (mut turns, mut sleeps, mut before) = (0, 0, OPEN);
        loop {
            for _ in 0..SPINS {
                if self.0.load(Ordering::Relaxed) == OPEN && self.try_take(me) {
                    return true;
                }
                core::hint::spin_loop();
            }
            let holder = self.0.load(Ordering::Relaxed);
            if holder == OPEN {
                continue;
            }
            if holder != before {
                (before, sleeps) = (holder, 0);
            }
            if holder == LEFT || holder == me && turns >= OWN_TURNS_MAX {
                return false;
            }
            if turns < TURNS_MAX {
                turns += 1;
                sys::yield_now();
            } else if sleeps < SLEEPS_MAX {
                sleeps += 1;
                sys::wait_while(&self.0, holder, SLEEP_NANOS);
            } else {
                // Not where another thread has it by now.
                let left = self.0.compare_exchange(holder, LEFT, Ordering::Relaxed, Ordering::Relaxed);
                if left.is_ok() {
                    return false;
                }
                sleeps = 0;
            }
        }
    }
}
