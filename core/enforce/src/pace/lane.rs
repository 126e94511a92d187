//! Launches on one stream since its last marker, in private memory: what the fast path touches.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::cost::{Key, Shape};
use crate::marks::{Batch, ChargeBasis};
use crate::units::Nanos;

/// No launch is measured by itself before so many: half of what the count can tell apart.
pub(super) const PROBE_NEVER: u32 = u32::MAX / 2;

/// Launches on one stream since its last marker. Two threads on one stream may lose each other's counts; bills do not depend
/// on them. The words of the fast path are a cache line of their own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Lane {
    stream: AtomicU64,
    /// Part of the process's lease that launches on this stream may use up, in device nanoseconds.
    left: AtomicI64,
    /// What was put there and charged apart from it since the lane opened.
    given: AtomicI64,
    key: AtomicU64,
    family: AtomicU64,
    blocks: AtomicU64,
    /// Launches ever, round and round.
    seen: AtomicU32,
    /// As many as there were when the lane opened.
    seen_before: AtomicU32,
    /// As many as there are when one is to be measured by itself.
    probe_at: AtomicU32,
    state: AtomicU32,
    /// Deposits of its launches beyond their charges, in device nanoseconds; they come back with the bill. Only the thread that
    /// holds the markers touches it.
    deposit: AtomicU64,
    /// Of its launches since it opened, those that the vendor refused.
    refused: AtomicU32,
}

const _: () = assert!(core::mem::offset_of!(Lane, deposit) == 64, "behind the line that launches touch");

/// Bits of a lane's state.
const OPEN: u32 = 1;
/// Launches differ.
const MIXED: u32 = 2;
/// A charge is not known at all.
pub(super) const UNKNOWN_COST: u32 = 4;
/// A charge is only bounded.
pub(super) const BOUNDED_COST: u32 = 8;

// === impl Lane ===

impl Lane {
    pub(super) const fn new() -> Self {
        Self {
            stream: AtomicU64::new(0),
            left: AtomicI64::new(0),
            given: AtomicI64::new(0),
            key: AtomicU64::new(0),
            family: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            seen: AtomicU32::new(0),
            seen_before: AtomicU32::new(0),
            probe_at: AtomicU32::new(0),
            state: AtomicU32::new(0),
            deposit: AtomicU64::new(0),
            refused: AtomicU32::new(0),
        }
    }

    pub(super) fn has(&self, bits: u32) -> bool {
        self.state.load(Ordering::Relaxed) & bits != 0
    }

    pub(super) fn set(&self, bits: u32) {
        self.state.store(self.state.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }

    pub(super) fn is_open(&self) -> bool {
        self.has(OPEN)
    }

    /// Whether anything in it was charged without knowing what it takes.
    pub(super) fn is_unknown(&self) -> bool {
        self.has(UNKNOWN_COST)
    }

    pub(super) fn stream(&self) -> u64 {
        self.stream.load(Ordering::Relaxed)
    }

    /// Forgets what another thread put back while the lane was being closed.
    pub(super) fn forget_left(&self) {
        self.left.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_of(&self, stream: u64) -> bool {
        self.stream.load(Ordering::Relaxed) == stream
    }

    pub(super) fn is_open_for(&self, stream: u64) -> bool {
        self.is_of(stream) && self.is_open()
    }

    /// Takes the cost from the lane's lease. Loads and stores instead of read-modify-write: a lane usually belongs to one thread.
    #[inline]
    pub(super) fn take(&self, key: Key, cost: i64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left < cost || self.probe_in() == 0 {
            return false;
        }
        self.left.store(left - cost, Ordering::Relaxed);
        self.count(key);
        true
    }

    #[inline]
    pub(super) fn count(&self, key: Key) {
        if self.key.load(Ordering::Relaxed) != key.number() {
            self.set(MIXED);
        }
        self.seen.store(self.seen.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A launch that was counted did not run; of those that ran so many are left at least.
    pub(super) fn uncount(&self, least: u32) {
        let counted = self.counted();
        let more = |refused: u32| (counted.saturating_sub(refused) > least).then(|| refused + 1);
        // Threads may have been refused more than they were counted.
        let _may_be = self.refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Launches since it opened, for one of which it did. A thread may have put back a count from before that.
    fn counted(&self) -> u32 {
        let counted = self.seen().wrapping_sub(self.opened());
        if counted > PROBE_NEVER { 1 } else { counted.max(1) }
    }

    /// Launches in it that ran, as far as is known.
    fn launches(&self) -> u32 {
        if self.is_open() { self.counted().saturating_sub(self.refused.load(Ordering::Relaxed)) } else { 0 }
    }

    /// Tells its batch from those before and after: launches that there were when it opened.
    pub(super) fn opened(&self) -> u32 {
        self.seen_before.load(Ordering::Relaxed)
    }

    /// Whether no launch is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.launches() == 0
    }

    /// Launches before the one that is to be measured by itself.
    #[inline]
    pub(super) fn probe_in(&self) -> u32 {
        let ahead = self.probe_at.load(Ordering::Relaxed).wrapping_sub(self.seen.load(Ordering::Relaxed));
        // Two threads may have counted past it.
        if ahead > PROBE_NEVER { 0 } else { ahead }
    }

    pub(super) fn set_probe_in(&self, launches: u32) {
        self.probe_at.store(self.seen.load(Ordering::Relaxed).wrapping_add(launches), Ordering::Relaxed);
    }

    /// Launches ever, round and round.
    pub(super) fn seen(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Whether launches on it differ from this one, as far back as it remembers.
    pub(super) fn differs(&self, key: Key) -> bool {
        self.has(MIXED) || self.key.load(Ordering::Relaxed) != key.number()
    }

    /// What the launches since the lane opened were charged.
    pub(super) fn charged(&self) -> Nanos {
        let given = self.given.load(Ordering::Relaxed);
        let charged = given.saturating_sub(self.left.load(Ordering::Relaxed).max(0));
        Nanos(u64::try_from(charged).unwrap_or(0))
    }

    pub(super) fn give(&self, amount: i64) {
        self.given.store(self.given.load(Ordering::Relaxed).saturating_add(amount), Ordering::Relaxed);
    }

    /// What its launches may take in all.
    pub(super) fn taken(&self) -> Nanos {
        self.charged().plus(self.deposited())
    }

    pub(super) fn deposited(&self) -> Nanos {
        Nanos(self.deposit.load(Ordering::Relaxed))
    }

    pub(super) fn deposit(&self, deposit: Nanos) {
        if deposit > Nanos::ZERO {
            self.deposit.store(self.deposited().plus(deposit).0, Ordering::Relaxed);
            self.set(BOUNDED_COST);
        }
    }

    /// What was deposited goes elsewhere.
    pub(super) fn withdraw(&self, deposit: Nanos) {
        self.deposit.store(self.deposited().minus(deposit).0, Ordering::Relaxed);
    }

    /// Lease that it may still be given, up to a marker after so much.
    pub(super) fn room(&self, mark_every: Nanos) -> i64 {
        mark_every.minus(self.taken()).signed() - self.left.load(Ordering::Relaxed)
    }

    /// Puts so much of the lease at its disposal.
    pub(super) fn lend(&self, lease: i64) {
        self.give(lease);
        self.left.store(self.left.load(Ordering::Relaxed).saturating_add(lease), Ordering::Relaxed);
    }

    /// Takes back the rest of the lease.
    pub(super) fn reclaim(&self) -> i64 {
        let left = self.left.swap(0, Ordering::Relaxed).max(0);
        self.give(-left);
        left
    }

    pub(super) fn open_for(&self, stream: u64, shape: &Shape) {
        let [key, family, blocks] = shape.numbers();
        self.stream.store(stream, Ordering::Relaxed);
        self.key.store(key, Ordering::Relaxed);
        self.family.store(family, Ordering::Relaxed);
        self.blocks.store(blocks, Ordering::Relaxed);
        self.seen_before.store(self.seen.load(Ordering::Relaxed), Ordering::Relaxed);
        self.given.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
        self.state.store(OPEN, Ordering::Relaxed);
    }

    /// Ends the batch; the second result is the rest of the lease.
    pub(super) fn close(&self) -> (Batch, i64) {
        let charged = self.charged();
        let numbers = [&self.key, &self.family, &self.blocks].map(|word| word.load(Ordering::Relaxed));
        let batch = Batch {
            stream: self.stream.load(Ordering::Relaxed),
            charged,
            deposit: Nanos(self.deposit.swap(0, Ordering::Relaxed)),
            launches: self.launches(),
            shape: if self.has(MIXED) { None } else { Shape::from_numbers(numbers) },
            known: if self.has(UNKNOWN_COST) {
                ChargeBasis::Not
            } else if self.has(BOUNDED_COST) {
                ChargeBasis::AtMost
            } else {
                ChargeBasis::Exactly
            },
        };
        self.state.store(0, Ordering::Relaxed);
        (batch, self.left.swap(0, Ordering::Relaxed).max(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape::kernel(1, [1, 1, 1], [1, 1, 1]);

    /// Launches in a batch of three, after another thread restored an older count, and `refused` were refused.
    fn launches(before: u32, put_back: i32, refused: u32) -> u32 {
        let lane = Lane::new();
        lane.seen.store(before, Ordering::Relaxed);
        lane.open_for(7, &SHAPE);
        (0..3).for_each(|_| lane.count(SHAPE.key));
        lane.seen.store(before.wrapping_add_signed(put_back), Ordering::Relaxed);
        (0..refused).for_each(|_| lane.uncount(1));
        lane.close().0.launches
    }

    #[test]
    fn racing_counts_leave_at_least_one_launch_and_never_wrap() {
        for before in [0, 1, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
            for (put_back, refused, left) in
                [(3, 0, 3), (3, 1, 2), (3, 2, 1), (3, 9, 1), (1, 2, 1), (0, 0, 1), (-1, 0, 1), (-9, 5, 1)]
            {
                assert_eq!(launches(before, put_back, refused), left, "{before} {put_back} {refused}");
            }
        }
    }

    #[test]
    fn batch_is_issued_once_and_empty_after_its_opener_was_refused() {
        let lane = Lane::new();
        assert_eq!(lane.close().0.launches, 0, "never opened");
        lane.open_for(7, &SHAPE);
        lane.count(SHAPE.key);
        assert!(!lane.is_empty());
        assert_eq!([lane.close().0.launches, lane.close().0.launches], [1, 0]);
        lane.open_for(7, &SHAPE);
        lane.count(SHAPE.key);
        (0..2).for_each(|_| lane.uncount(0));
        assert!(lane.is_empty());
        assert_eq!(lane.close().0.launches, 0);
        lane.open_for(7, &SHAPE);
        lane.count(SHAPE.key);
        assert_eq!(lane.close().0.launches, 1, "as if none had been refused before");
    }
}
