//! Atomics for the schedule explorer (feature `shuttle`, tests only): every access is a point where another thread may
//! run, and where the accessing thread may be killed.
//!
//! A thread that [`die_after`] was called in stops at that access as if its process had been killed: nothing after it
//! happens, not even unwinding code of ours, because there is none.

use core::cell::Cell;
use core::sync::atomic::Ordering;
use std::boxed::Box;

/// What a killed thread unwinds with; catch it at the top of the thread.
#[derive(Debug)]
pub struct KilledThread;

shuttle::thread_local! {
    static LEFT: Cell<Option<u32>> = Cell::new(None);
}

/// Kills the calling thread at its `accesses`-th access from now; 0 is the next one.
pub fn die_after(accesses: u32) {
    LEFT.with(|left| left.set(Some(accesses)));
}

fn step() {
    LEFT.with(|left| match left.get() {
        None => {}
        Some(0) => std::panic::resume_unwind(Box::new(KilledThread)),
        Some(more) => left.set(Some(more - 1)),
    });
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// The explorer's atomic with a kill point before each access.
        #[derive(Debug, Default)]
        pub struct $name(shuttle::sync::atomic::$name);

        impl $name {
            /// A new word.
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(shuttle::sync::atomic::$name::new(value))
            }

            /// As the processor's.
            pub fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            /// As the processor's.
            pub fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }

            /// As the processor's.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.swap(value, order)
            }

            /// As the processor's.
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_add(value, order)
            }

            /// As the processor's.
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_sub(value, order)
            }

            /// As the processor's.
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_or(value, order)
            }

            /// As the processor's.
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_and(value, order)
            }

            /// As the processor's.
            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_max(value, order)
            }

            /// As the processor's.
            ///
            /// # Errors
            /// `change` says `None`.
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                step();
                self.0.fetch_update(success, failure, change)
            }

            /// As the processor's.
            ///
            /// # Errors
            /// The word is not `current`.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step();
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As the processor's.
            ///
            /// # Errors
            /// The word is not `current`.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step();
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
