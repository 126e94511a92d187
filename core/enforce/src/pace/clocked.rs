//! Work that no marker is behind: the clock bills it, and time is billed once where markers show other work in it.
//!
//! ```text
//!   clock:    [· · · · · · · ·]  claims the own part of the time: all that the process may have run there
//!   markers:     [▓▓▓]  [▓▓]     show what else it ran
//!   billed:   the greater of both sums
//! ```
//!
//! The account is of one process: a sibling's turns are no part of this one's, and nothing is left out for them.

use super::*;

/// Time that the clock bills, and how the sums stand.
#[derive(Debug)]
pub(super) struct Clocked {
    /// Since when there may be work that is not on the books; 0: there is none.
    since: AtomicU64,
    /// When the last of it was launched.
    at: AtomicU64,
    /// From when to when there was any, the last time or now.
    from: AtomicU64,
    until: AtomicU64,
    /// What the clock claimed there beyond what markers showed; negative where they showed more. Device nanoseconds.
    lead: AtomicI64,
}

impl Clocked {
    pub(super) const fn new() -> Self {
        Self {
            since: AtomicU64::new(0),
            at: AtomicU64::new(0),
            from: AtomicU64::new(0),
            until: AtomicU64::new(0),
            lead: AtomicI64::new(0),
        }
    }

    pub(super) fn since(&self) -> Option<Nanos> {
        Some(Nanos(self.since.load(Ordering::Relaxed))).filter(|at| *at != Nanos::ZERO)
    }

    fn begin(&self, since: Nanos, now: Nanos) {
        let earlier = |at: u64| (at == 0 || at > since.0).then_some(since.0.max(1));
        // A word that says an earlier moment already is right.
        let before = self.since.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier);
        if before == Ok(0) {
            self.lead.store(0, Ordering::Relaxed);
            self.from.store(since.0, Ordering::Relaxed);
        }
        self.until.store(u64::MAX, Ordering::Release);
        self.at.fetch_max(now.0, Ordering::AcqRel);
    }

    /// There is no such work any more.
    pub(super) fn end(&self) {
        let since = self.since.swap(0, Ordering::AcqRel);
        if since != 0 {
            self.until.store(since, Ordering::Release);
        }
    }

    /// What was launched after all of it is done, and so is it.
    pub(super) fn passed(&self, done: &Done) {
        if self.since().is_some() && done.sure_from.0 > self.at.load(Ordering::Acquire) {
            self.end();
        }
    }

    /// Of a marked batch's bill, the part that lies in time that the clock bills.
    fn part(&self, done: &Done, bill: Nanos) -> Nanos {
        let (from, until) = (self.from.load(Ordering::Relaxed), self.until.load(Ordering::Acquire));
        let inside = done.end.min(Nanos(until)).minus(done.start.max(Nanos(from)));
        Ppm::of(inside, done.end.minus(done.start)).times(bill)
    }

    /// How much of a marked batch's bill the clock has billed already.
    pub(super) fn covers(&self, done: &Done, bill: Nanos) -> Nanos {
        if self.until.load(Ordering::Acquire) == 0 {
            return Nanos::ZERO;
        }
        let part = self.part(done, bill).signed();
        let lead = self.lead.fetch_update(Ordering::AcqRel, Ordering::Acquire, |lead| {
            (lead > 0).then(|| lead - lead.min(part))
        });
        Nanos(lead.map_or(0, |lead| lead.min(part).unsigned_abs()))
    }

    /// So much of a marked batch was billed.
    pub(super) fn marked(&self, done: &Done, billed: Nanos) {
        if self.since().is_some() {
            self.lead.fetch_sub(self.part(done, billed).signed(), Ordering::AcqRel);
        }
    }

    /// How much of what the clock claims was billed by markers already.
    fn marked_of(&self, claim: Nanos) -> Nanos {
        let lead = self.lead.fetch_update(Ordering::AcqRel, Ordering::Acquire, |lead| {
            (lead < 0).then(|| lead.saturating_add(claim.signed()).min(0))
        });
        Nanos(lead.map_or(0, i64::unsigned_abs)).min(claim)
    }
}

impl Pace {
    /// Work since then, the last of it launched now, has no marker behind it: the clock bills it, until work that came later is
    /// done or the program has waited.
    pub fn unmarked(&self, since: Nanos, now: Nanos) {
        self.clocked.begin(since, now);
    }

    /// Bills what has no marker, up to now.
    pub(super) fn bill_unmarked(&self, now: Nanos, terms: Terms, shared: &Shared<'_>) {
        let clocked = &self.clocked;
        if clocked.since().is_none() {
            return;
        }
        let later = |since: u64| (since != 0 && since < now.0).then_some(now.0);
        let Ok(since) = clocked.since.fetch_update(Ordering::AcqRel, Ordering::Acquire, later) else {
            return;
        };
        let start = Nanos(since).max(now.minus(unbilled::LONGEST));
        let ours = Nanos(self.counted_until.fetch_max(now.0, Ordering::Relaxed));
        shared.interval_nanos.fetch_add(now.minus(start.max(ours)).0, Ordering::Relaxed);
        let claim = terms.own.times(now.minus(start));
        let amount = claim.minus(clocked.marked_of(claim));
        let books = Books { bucket: shared.bucket, cells: shared.cells, device_nanos: shared.device_nanos };
        let billed = books.bill(&Stretch { start, end: now, amount, counted_until: Nanos::ZERO });
        clocked.lead.fetch_add(billed.signed(), Ordering::AcqRel);
        shared.process_nanos.fetch_add(billed.0, Ordering::Relaxed);
    }

    /// Whether there is work without a marker.
    #[must_use]
    pub fn has_unmarked(&self) -> bool {
        self.clocked.since().is_some()
    }
}
