//! Work without a marker behind it: the clock bills it. Time in which markers show other work is billed once.
//!
//! ```text
//!   clock:    [· · · · · · · ·]  claims the own part of the time: the most that the process may have run there
//!   markers:     [▓▓▓]  [▓▓]     show its other work
//!   billed:   the greater of both sums
//! ```
//!
//! The account is of one process: a sibling's turns are no part of it, and are not deducted.
//!
//! The clock stops when the work ends: a marker behind it has passed, or the program has waited for all of it. Waiting launches
//! put that marker there, as other launches may not be able to. Some work cannot be marked: its stream is destroyed or captured,
//! or it is one of too many. Any later marker ends that work. Without one the clock stops [`LATE_WAIT_MAX`] after its last launch.

use super::*;

/// Streams with such work that are told apart.
const STREAMS: usize = 8;

/// Where work without a marker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmarkedWork {
    /// On a stream of a context, each by its number.
    Stream {
        /// As [`World::context`] says it.
        context: u64,
        /// As [`LaunchRequest::stream`] says it.
        stream: u64,
    },
    /// On a stream that cannot be marked, or an unknown one.
    Elsewhere,
}

/// Work without a marker in one place.
#[derive(Debug)]
struct UnmarkedSpan {
    /// Context and stream; if one is 0, the stream cannot be marked.
    context: AtomicU64,
    stream: AtomicU64,
    /// When the last of it was launched; 0: there is none.
    at: AtomicU64,
}

/// For each place its stream, where a marker can be put there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Markable([Option<u64>; STREAMS + 1]);

/// Time that the clock bills, and its sums.
#[derive(Debug)]
pub(super) struct ClockBilling {
    /// Since when there may be unbilled work; 0: there is none.
    since: AtomicU64,
    /// Its streams; the last entry is all other work.
    places: [UnmarkedSpan; STREAMS + 1],
    /// Beginning and end of the present or last period with such work.
    from: AtomicU64,
    until: AtomicU64,
    /// The clock's claim in that period minus the markers' bills, in device nanoseconds.
    lead: AtomicI64,
}

impl ClockBilling {
    pub(super) const fn new() -> Self {
        Self {
            since: AtomicU64::new(0),
            places: [const { UnmarkedSpan::new() }; STREAMS + 1],
            from: AtomicU64::new(0),
            until: AtomicU64::new(0),
            lead: AtomicI64::new(0),
        }
    }

    pub(super) fn since(&self) -> Option<Nanos> {
        Some(Nanos(self.since.load(Ordering::Relaxed))).filter(|at| *at != Nanos::ZERO)
    }

    fn begin(&self, since: Nanos, now: Nanos, place: UnmarkedWork) {
        if let Some(unmarked) = self.place(place) {
            unmarked.at.fetch_max(now.0, Ordering::AcqRel);
        }
        let earlier = |at: u64| (at == 0 || at > since.0).then_some(since.0.max(1));
        // An earlier moment in the word stays.
        let before = self.since.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier);
        if before == Ok(0) {
            self.lead.store(0, Ordering::Relaxed);
            self.from.store(since.0, Ordering::Relaxed);
        }
        self.until.store(u64::MAX, Ordering::Release);
    }

    /// Where work in that place is noted.
    fn place(&self, place: UnmarkedWork) -> Option<&UnmarkedSpan> {
        let (elsewhere, streams) = self.places.split_last()?;
        let UnmarkedWork::Stream { context, stream: stream @ 1.. } = place else { return Some(elsewhere) };
        let known = streams.iter().find(|it| it.stream_in(context) == Some(stream));
        let free = || streams.iter().find(|it| it.becomes(context, stream));
        known.or_else(free).or(Some(elsewhere))
    }

    /// Nothing can be put into those streams any more.
    pub(super) fn ends(&self, waits: WaitScope) {
        for one in &self.places {
            if waits.is_on(one.stream.load(Ordering::Acquire)) {
                one.context.store(0, Ordering::Release);
                one.stream.store(0, Ordering::Release);
            }
        }
    }

    /// There is no such work any more.
    pub(super) fn end(&self) {
        let since = self.since.swap(0, Ordering::AcqRel);
        if since != 0 {
            self.until.store(since, Ordering::Release);
        }
        self.places.iter().for_each(|one| one.at.store(0, Ordering::Release));
    }

    /// When the last of it was launched.
    fn launched_at(&self) -> Nanos {
        Nanos(self.places.iter().map(|one| one.at.load(Ordering::Acquire)).max().unwrap_or(0))
    }

    /// The streams with such work that can be marked from that context now.
    pub(super) fn markable(&self, context: u64, may: impl Fn(u64) -> bool) -> Markable {
        Markable(self.places.each_ref().map(|one| one.stream_in(context).filter(|stream| may(*stream))))
    }

    /// What was there before that marker is done.
    pub(super) fn passed(&self, done: &FinishedBatch, markable: &Markable) {
        if self.since().is_none() {
            return;
        }
        let mut is_over = true;
        for (one, markable) in self.places.iter().zip(markable.0) {
            let at = one.at.load(Ordering::Acquire);
            let is_here = markable.is_none_or(|stream| stream == done.batch.stream);
            let is_done = done.sure_from.0 > at && is_here;
            // Where more was launched meanwhile, that is not done.
            let is_clear = at == 0
                || is_done && one.at.compare_exchange(at, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
            is_over &= is_clear;
        }
        if is_over {
            self.end();
        }
    }

    /// Of a marked batch's bill, the part that lies in time that the clock bills.
    fn part(&self, done: &FinishedBatch, bill: Nanos) -> Nanos {
        let (from, until) = (self.from.load(Ordering::Relaxed), self.until.load(Ordering::Acquire));
        let inside = done.end.min(Nanos(until)).minus(done.start.max(Nanos(from)));
        Ppm::of(inside, done.end.minus(done.start)).times(bill)
    }

    /// How much of a marked batch's bill the clock has billed already.
    pub(super) fn covers(&self, done: &FinishedBatch, bill: Nanos) -> Nanos {
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
    pub(super) fn marked(&self, done: &FinishedBatch, billed: Nanos) {
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

impl UnmarkedSpan {
    const fn new() -> Self {
        Self { context: AtomicU64::new(0), stream: AtomicU64::new(0), at: AtomicU64::new(0) }
    }

    /// The stream, where it can be marked from that context.
    fn stream_in(&self, context: u64) -> Option<u64> {
        let stream = self.stream.load(Ordering::Acquire);
        (stream != 0 && context != 0 && self.context.load(Ordering::Acquire) == context).then_some(stream)
    }

    /// Takes an unused place. During the change it is on no stream that can be marked.
    fn becomes(&self, context: u64, stream: u64) -> bool {
        let before = self.stream.load(Ordering::Acquire);
        if self.at.load(Ordering::Acquire) != 0 {
            return false;
        }
        self.context.store(0, Ordering::Release);
        let is_ours =
            self.stream.compare_exchange(before, stream, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if is_ours {
            self.context.store(context, Ordering::Release);
        }
        is_ours
    }
}

impl Pace {
    /// Work since then, the last of it launched now, has no marker behind it: the clock bills it, until it is done.
    pub fn unmarked(&self, since: Nanos, now: Nanos, place: UnmarkedWork) {
        self.clocked.begin(since, now, place);
    }

    /// Puts markers behind work that has none, for a launch that may have to wait: on `stream` if the work's stream is unknown.
    pub(super) fn mark_unmarked(&self, now: Nanos, stream: u64, marks: &mut Marks, world: &mut impl World) {
        let clocked = &self.clocked;
        if clocked.since().is_none() {
            return;
        }
        let mut is_over = true;
        let markable = clocked.markable(world.context(), |stream| world.may_record(stream));
        for (one, markable) in clocked.places.iter().zip(markable.0) {
            let at = one.at.load(Ordering::Acquire);
            let on = markable.unwrap_or(stream);
            is_over &= at == 0;
            if at != 0 && now.0 > at {
                marks.put(now, on, Nanos(at), world);
            }
        }
        // Another thread has just found it done.
        if is_over {
            clocked.end();
        }
    }

    /// A stream is about to be destroyed: no marker is put into it once the thread that holds the markers released them.
    pub fn stream_ends(&self, stream: u64) {
        self.clocked.ends(WaitScope::On(stream));
    }

    /// Delay before the next query of work without a marker, if there is any.
    pub(super) fn look_at_unmarked(&self, now: Nanos) -> Option<Nanos> {
        self.clocked.since()?;
        Some(Nanos(now.minus(self.clocked.launched_at()).0 / 8).max(LOOK_AFTER))
    }

    /// Bills work without a marker, up to now.
    pub(super) fn bill_unmarked(&self, now: Nanos, terms: PaceTerms, shared: &SharedWords<'_>) {
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
        let books = ComputeAccounting {
            bucket: shared.bucket,
            cells: shared.cells,
            device_nanos: shared.device_nanos,
        };
        let billed = books.bill(&Stretch { start, end: now, amount, counted_until: Nanos::ZERO });
        clocked.lead.fetch_add(billed.signed(), Ordering::AcqRel);
        shared.process_nanos.fetch_add(billed.0, Ordering::Relaxed);
        if now.minus(clocked.launched_at()) > LATE_WAIT_MAX {
            clocked.end();
        }
    }

    /// Whether there is work without a marker.
    #[must_use]
    pub fn has_unmarked(&self) -> bool {
        self.clocked.since().is_some()
    }
}
