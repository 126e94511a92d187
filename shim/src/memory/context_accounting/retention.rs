//! Threads that rely on a primary context, and threads that release it: never both at once.
//!
//! A call that retains a context which is there takes nothing of the card; one that finds it gone makes one. So nothing is
//! reserved only where no thread lets it go meanwhile:
//!
//! ```text
//!   relies ─▶ no thread lets go? ─▶ it is there ─▶ vendor call retains it ─▶ relies no more
//!   lets go ─▶ no thread relies?                ─▶ vendor call releases it ─▶ lets go no more
//! ```
//!
//! Each says first what it does and looks then, so of two at once one sees the other. No lock is held while the vendor is
//! called: a thread that sees the other waits until that is done, and not for ever. One that releases it past the hooks is not
//! seen.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// Looks at what others do before they are not waited for any longer: the processor is given away at each of the first, and of
/// the others each sleeps.
const LOOKS_MAX: u32 = 10_000;
const LOOKS_WITHOUT_SLEEP: u32 = 100;
const SLEEP_NANOS: u64 = 100_000;

/// Of one card's primary context.
pub(super) struct Retention {
    relying: AtomicU32,
    letting: AtomicU32,
}

/// No thread lets it go while this is there.
#[must_use]
pub(super) struct Relying(&'static Retention);

/// No thread relies on it while this is there.
#[must_use]
pub(super) struct RetentionGuard(&'static Retention);

impl Retention {
    pub(super) const fn new() -> Self {
        Self { relying: AtomicU32::new(0), letting: AtomicU32::new(0) }
    }

    /// Relies on what is there; `None`: a thread lets it go, and has for long.
    pub(super) fn rely(&'static self) -> Option<Relying> {
        for look in 0..LOOKS_MAX {
            self.relying.fetch_add(1, Ordering::SeqCst);
            let relying = Relying(self);
            if self.letting.load(Ordering::SeqCst) == 0 {
                return Some(relying);
            }
            drop(relying);
            pause(look);
        }
        None
    }

    /// Lets it go, when no thread relies on it any more, or has for long.
    pub(super) fn let_go(&'static self) -> RetentionGuard {
        self.letting.fetch_add(1, Ordering::SeqCst);
        for look in 0..LOOKS_MAX {
            if self.relying.load(Ordering::SeqCst) == 0 {
                break;
            }
            pause(look);
        }
        RetentionGuard(self)
    }
}

fn pause(look: u32) {
    if look < LOOKS_WITHOUT_SLEEP {
        sys::yield_now();
    } else {
        sys::wait_while(&AtomicU32::new(0), 0, SLEEP_NANOS);
    }
}

impl Drop for Relying {
    fn drop(&mut self) {
        self.0.relying.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for RetentionGuard {
    fn drop(&mut self) {
        self.0.letting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_by_another_thread_is_relied_on_by_none() {
        static STAY: Retention = Retention::new();
        static IS_THERE: AtomicU32 = AtomicU32::new(1);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let relying = STAY.rely();
                        let is_there = IS_THERE.load(Ordering::SeqCst);
                        std::thread::yield_now();
                        let still = IS_THERE.load(Ordering::SeqCst);
                        assert!(relying.is_none() || is_there == still, "it went meanwhile");
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let _letting = STAY.let_go();
                    IS_THERE.fetch_xor(1, Ordering::SeqCst);
                }
            });
        });
    }
}
