//! Ends of work: the program waits for it, its stream or context ends, or no marker can be put behind it.
//!
//! | event | open or pending work |
//! |---|---|
//! | the program is about to wait | gets its markers ([`Pace::waits`]) and is billed after the wait ([`Pace::settle_all`]) |
//! | a stream ends | the same |
//! | a context ends, or no marker can be had | is billed by the clock at the next question |

use super::*;

/// Streams that a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitScope {
    /// This one.
    On(u64),
    /// All of the context.
    OnAll,
}

/// Since when there is unbilled work; `None`: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnbilledWork {
    /// Of any kind.
    pub since: Option<Nanos>,
    /// With a cost that was unknown at its charge: the debt of a process that exits now. Other work was charged its cost, and
    /// may have finished long ago.
    pub owed: Option<Nanos>,
}

impl WaitScope {
    pub(super) const fn is_on(self, stream: u64) -> bool {
        match self {
            Self::On(one) => one == stream,
            Self::OnAll => true,
        }
    }
}

impl Pace {
    /// A lane is about to open.
    pub(super) fn opens(&self, at: usize) {
        let bit = u32::try_from(at).map_or(0, |at| 1_u32.checked_shl(at).unwrap_or(0));
        if self.opened.load(Ordering::Relaxed) & bit == 0 {
            self.opened.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Lanes that ever opened.
    fn used_lanes(&self) -> impl Iterator<Item = &Lane> {
        let mut left = self.opened.load(Ordering::Relaxed);
        core::iter::from_fn(move || {
            let at = usize::try_from(left.trailing_zeros()).ok()?;
            left &= left.wrapping_sub(1);
            self.lanes.get(at)
        })
    }

    pub(super) fn open_lanes(&self) -> impl Iterator<Item = (u64, &Lane)> {
        self.used_lanes().filter(|lane| lane.is_open()).map(|lane| (lane.stream(), lane))
    }

    /// Before the program waits: puts markers behind what was launched on those streams in this context. `may` says whether
    /// anything can be put into a stream.
    pub fn waits(
        &self,
        now: Nanos,
        waits: WaitScope,
        marks: &mut Marks,
        world: &mut impl World,
        may: impl Fn(u64) -> bool,
    ) {
        for (stream, lane) in self.open_lanes() {
            if waits.is_on(stream) && marks.knows(stream) && may(stream) {
                self.mark(now, lane, marks, world);
            }
        }
    }

    /// After the program waited: discards what another thread put back into a closed lane.
    pub(super) fn forget_leftovers(&self) {
        for lane in self.used_lanes().filter(|lane| !lane.is_open()) {
            lane.forget_left();
        }
    }

    /// A stream is gone, or a whole context with these marks: nothing can be put behind what was launched there.
    pub fn ends(&self, now: Nanos, waits: WaitScope, marks: Option<&Marks>) {
        self.clocked.ends(waits);
        for (stream, lane) in self.open_lanes() {
            if waits.is_on(stream) && marks.is_none_or(|marks| marks.knows(stream)) {
                let (batch, left) = lane.close();
                self.take_back(left);
                self.take_back(batch.deposit.signed());
                if batch.launches > 0 {
                    self.unmarked(
                        marks.and_then(|marks| marks.opened_at(stream)).unwrap_or(now),
                        now,
                        UnmarkedWork::Elsewhere,
                    );
                }
            }
        }
        if let (WaitScope::OnAll, Some(since)) = (waits, marks.and_then(Marks::pending_since)) {
            self.unmarked(since, now, UnmarkedWork::Elsewhere);
        }
    }

    /// The program has waited: for all that it launched in this context, or for a part of it.
    pub fn waited(&self, now: Nanos, waits: WaitScope, terms: PaceTerms, shared: &SharedWords<'_>) {
        self.forget_leftovers();
        self.holds.passed(waits);
        if waits != WaitScope::OnAll {
            return;
        }
        self.bill_unmarked(now, terms, shared);
        self.clocked.end();
    }

    /// Since when there is unbilled work of this context.
    #[must_use]
    pub fn unbilled(&self, marks: &Marks) -> UnbilledWork {
        let (mut open, mut unknown) = (None, None);
        let earlier = |one: Option<Nanos>, at: Nanos| Some(one.map_or(at, |one| one.min(at)));
        for (stream, lane) in self.open_lanes() {
            let Some(at) = marks.opened_at(stream) else { continue };
            open = earlier(open, at);
            unknown = if lane.is_unknown() { earlier(unknown, at) } else { unknown };
        }
        let clocked = self.clocked.since();
        let earliest = |each: [Option<Nanos>; 3]| each.into_iter().flatten().min();
        UnbilledWork {
            since: earliest([open, marks.pending_since(), clocked]),
            owed: earliest([unknown, marks.unknown_since(), clocked]),
        }
    }
}
