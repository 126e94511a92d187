//! Exact memory: granted bytes never exceed the limit, not for an instant, across threads and processes.
//!
//! ```text
//!   reserve ──Granted──▶ vendor call ──ok──▶ (held)          free: vendor call ──▶ release
//!      │                      └──failed──▶ release
//!      └──Denied──▶ the vendor's out-of-memory, out-parameters untouched
//! ```
//!
//! `total` is the sum over all processes and the word that reservations race on; `used` is the exact use of one process.
//! Between moving `total` and recording `used` a thread is *inside*. A process killed there leaves `total` too high,
//! which refuses too much and never grants too much, until [`crate::reap`] recounts. During a recount the top bit of
//! `total` is set, and no reservation succeeds: the accounting is frozen. The bits below it then number the freeze.
//!
//! IPC-shared memory is *set apart* into a slot of its own, as it may outlive its exporter.
//!
//! Invariants: `total ≤ limit` at every reservation; `Σ used ≤ total` whenever no thread is inside and nothing is frozen;
//! `own ≤ limit` whatever other processes write into the shared words.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Top bit of `total`: a reaper is recounting.
pub const FREEZE: u64 = 1 << 63;
/// Bits of `total` that are bytes while it is set. More is never reserved.
pub const BYTES: u64 = (1 << 48) - 1;

/// The reserved bytes of a `total`, frozen or not.
#[must_use]
pub const fn bytes_in(total: u64) -> u64 {
    if total & FREEZE == 0 { total } else { total & BYTES }
}

/// The accounting words of one process; shared ones lie in the region, `own` and `apart` in private memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryAccounting<'a> {
    /// Shared: bytes reserved by all processes, and [`FREEZE`].
    pub total: &'a AtomicU64,
    /// Shared: greatest `total` so far.
    pub high_water: &'a AtomicU64,
    /// Shared, this process's slot: threads inside.
    pub inside: &'a AtomicU32,
    /// Shared, this process's slot: bytes reserved by this process.
    pub used: &'a AtomicU64,
    /// Private: bytes reserved by this process; no other process can write it.
    pub own: &'a AtomicU64,
    /// Private: the part of `own` that is set apart into slots of its own.
    pub apart: &'a AtomicU64,
    /// Shared, this process's slot: bytes released while frozen, not yet subtracted from `used` and `total`.
    pub owed: &'a AtomicU64,
}

/// Answer to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// The bytes are this process's until released.
    Granted,
    /// They do not fit.
    Denied {
        /// Bytes that would have fitted.
        free: u64,
    },
    /// A recount is in progress: try again after a moment, or become the reaper if it exited.
    Frozen,
}

/// Answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The bytes are released.
    Done,
    /// A recount is in progress: the next operation releases them.
    Owed,
}

impl MemoryAccounting<'_> {
    /// Reserves `bytes` under `limit` bytes. Lock-free; one compare-and-swap without contention.
    #[must_use]
    pub fn reserve(&self, bytes: u64, limit: u64) -> Reservation {
        self.reserve_under(bytes, || limit)
    }

    /// The same, with `limit` read after this reservation became visible to reapers. A process that lowers the limit and then
    /// recounts therefore sees no later reservation under the earlier limit.
    #[must_use]
    pub fn reserve_under(&self, bytes: u64, limit: impl Fn() -> u64) -> Reservation {
        self.pay_owed();
        // Shared first: a reservation that is refused there must not block a sibling thread's smaller one.
        let (answer, limit) = self.reserve_shared(bytes, limit);
        if answer != Reservation::Granted {
            return answer;
        }
        // Whatever is written into the shared words, this process alone never passes the limit.
        let private = self.own.fetch_update(Ordering::AcqRel, Ordering::Acquire, |own| {
            own.checked_add(bytes).filter(|sum| *sum <= limit)
        });
        let Err(own) = private else { return Reservation::Granted };
        if self.take_off(|| bytes) == Release::Owed {
            self.owed.fetch_add(bytes, Ordering::AcqRel);
        }
        Reservation::Denied { free: limit.saturating_sub(own) }
    }

    /// Records this process's memory in a new slot, after its earlier slot was reclaimed; set-apart memory is left out.
    /// The limit is not checked: the memory is already allocated.
    pub fn restore(&self) -> Reservation {
        let apart = self.apart.load(Ordering::Acquire);
        match self.own.load(Ordering::Acquire).saturating_sub(apart) {
            0 => Reservation::Granted,
            bytes => self.reserve_shared(bytes, || BYTES).0,
        }
    }

    /// The answer, and the limit that it used.
    fn reserve_shared(&self, bytes: u64, limit: impl Fn() -> u64) -> (Reservation, u64) {
        // A reaper that froze earlier reads this, and waits until it is subtracted again.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let limit = limit();
        let mut seen = self.total.load(Ordering::SeqCst);
        let answer = loop {
            if seen & FREEZE != 0 {
                break Reservation::Frozen;
            }
            let Some(sum) = seen.checked_add(bytes).filter(|sum| *sum <= limit.min(BYTES)) else {
                break Reservation::Denied { free: limit.saturating_sub(seen) };
            };
            match self.total.compare_exchange_weak(seen, sum, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    self.used.fetch_add(bytes, Ordering::SeqCst);
                    if self.high_water.load(Ordering::Relaxed) < sum {
                        self.high_water.fetch_max(sum, Ordering::Relaxed);
                    }
                    break Reservation::Granted;
                }
                Err(now) => seen = now,
            }
        };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        (answer, limit)
    }

    /// Releases `bytes` that this process reserved, at most all of them.
    pub fn release(&self, bytes: u64) -> Release {
        let held =
            self.own.fetch_update(Ordering::AcqRel, Ordering::Acquire, |own| Some(own.saturating_sub(bytes)));
        let bytes = bytes.min(held.unwrap_or(0));
        if self.owed.load(Ordering::Acquire) == 0 && self.take_off(|| bytes) == Release::Done {
            return Release::Done;
        }
        self.owed.fetch_add(bytes, Ordering::AcqRel);
        self.pay_owed()
    }

    /// Subtracts owed bytes from the shared words, unless they are frozen.
    fn pay_owed(&self) -> Release {
        if self.owed.load(Ordering::Acquire) == 0 {
            return Release::Done;
        }
        self.take_off(|| self.owed.swap(0, Ordering::AcqRel))
    }

    /// Moves `bytes` that this process reserved into the slot of an allocation, whose word is `apart`. From now on that slot
    /// accounts for them, also after this process exits. The total has them once, before and after; after a kill in between
    /// it is too high, never too low. They stay in `own` until [`MemoryAccounting::let_go`].
    pub fn set_apart(&self, bytes: u64, apart: &AtomicU64) -> Reservation {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let answer = if self.total.load(Ordering::SeqCst) & FREEZE == 0 {
            saturating_take(self.used, bytes);
            apart.fetch_add(bytes, Ordering::SeqCst);
            self.apart.fetch_add(bytes, Ordering::AcqRel);
            Reservation::Granted
        } else {
            Reservation::Frozen
        };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    /// This process freed `bytes` that it set apart; importers may still have them open.
    pub fn let_go(&self, bytes: u64) {
        self.join(bytes);
        subtract(self.own, bytes);
    }

    /// The slot of `bytes` that this process set apart was reclaimed: the process's slot accounts for them again, once restored.
    pub fn join(&self, bytes: u64) {
        subtract(self.apart, bytes);
    }

    /// No process has the set-apart memory open any more: its slot is emptied. While frozen the reaper does that.
    pub fn take_back(&self, apart: &AtomicU64) -> Release {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let answer = if self.total.load(Ordering::SeqCst) & FREEZE == 0 {
            // The slot first: killed between the two, `total` is too high, never too low.
            let bytes = apart.swap(0, Ordering::SeqCst);
            saturating_take(self.total, bytes);
            Release::Done
        } else {
            Release::Owed
        };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    fn take_off(&self, bytes: impl FnOnce() -> u64) -> Release {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let answer = if self.total.load(Ordering::SeqCst) & FREEZE != 0 {
            Release::Owed
        } else {
            let bytes = bytes();
            // The slot first: killed between the two, `total` is too high, never too low.
            saturating_take(self.used, bytes);
            saturating_take(self.total, bytes);
            Release::Done
        };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    /// Bytes that could be reserved now under `limit`, for reports; 0 if the shared words are invalid.
    #[must_use]
    pub fn free(&self, limit: u64) -> u64 {
        let shared = limit.saturating_sub(bytes_in(self.total.load(Ordering::Acquire)));
        shared.min(limit.saturating_sub(self.own.load(Ordering::Acquire)))
    }
}

/// Subtracts from a private word without passing zero.
fn subtract(word: &AtomicU64, bytes: u64) {
    let less = |held: u64| Some(held.saturating_sub(bytes));
    let _before = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
}

/// Subtracts without passing zero and without changing the freeze bits; a hostile word may hold anything.
fn saturating_take(word: &AtomicU64, bytes: u64) {
    let mut seen = word.load(Ordering::SeqCst);
    loop {
        let held = bytes_in(seen);
        let next = held.saturating_sub(bytes) | (seen - held);
        match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}
