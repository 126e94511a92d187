//! Which process runs on a card, and when: pure, in integers, `now` passed in.
//!
//! Inside a process work is first in, first out, and serial: a kernel is taken to fill the card. Among processes that have
//! work the card goes round, one slice each; a process that runs out of work hands over at once, and alone it keeps the card.
//!
//! ```text
//!   submitted:  P ████████████████████     Q       ██████
//!   card:       P P P P|P P P P|Q Q Q Q|P P P P|Q Q|P P P P …      | = a slice ends, or there is no more work
//! ```
//!
//! A piece of work is no object here. A process has *submitted* so many nanoseconds and is *done* with so many; a kernel is
//! complete when `done` passes what was submitted up to its end. So a queue of any length costs two numbers.

/// Seats a card has: processes at a time.
pub const SEATS: usize = 256;

/// The current slice of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Turn {
    /// Up to when the card has been played, in nanoseconds of the clock.
    pub at: u64,
    /// When the present slice ends.
    pub slice_end: u64,
    /// The seat of the current slice, or of the last one.
    pub current: u64,
}

/// The work of one seat, in nanoseconds of device time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Work {
    /// Handed in since the seat was taken.
    pub submitted: u64,
    /// Executed of it.
    pub done: u64,
}

/// A stretch of card time that one seat had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The seat that runs.
    pub seat: usize,
    /// From when.
    pub start: u64,
    /// Till when; after `start`.
    pub end: u64,
    /// The seat's `done` at the start.
    pub done_before: u64,
}

impl Work {
    fn waiting(self) -> u64 {
        self.submitted.saturating_sub(self.done)
    }
}

/// Plays the card forward by one stretch, not past `until`. `None`: no seat has work before `until`, and the
/// card is played up to there.
pub fn step(turn: &mut Turn, works: &mut [Work], slice: u64, until: u64) -> Option<Run> {
    if turn.at >= until {
        return None;
    }
    let current = usize::try_from(turn.current).unwrap_or(0).min(works.len().saturating_sub(1));
    let keeps = works.get(current).is_some_and(|work| work.waiting() > 0) && turn.at < turn.slice_end;
    let seat = if keeps { Some(current) } else { after(current, works) };
    let Some(seat) = seat else {
        turn.at = until;
        turn.slice_end = until;
        return None;
    };
    if !keeps {
        turn.current = u64::try_from(seat).unwrap_or(0);
        turn.slice_end = turn.at.saturating_add(slice);
    }
    let work = works.get_mut(seat)?;
    let (start, done_before) = (turn.at, work.done);
    let length = work.waiting().min(turn.slice_end - start).min(until - start);
    work.done += length;
    turn.at += length;
    Some(Run { seat, start, end: turn.at, done_before })
}

/// The next seat with work behind `current`, going round; `current` itself comes last.
fn after(current: usize, works: &[Work]) -> Option<usize> {
    let has_work = |seat: &usize| works.get(*seat).is_some_and(|work| work.waiting() > 0);
    (current + 1..works.len()).find(has_work).or_else(|| (0..=current).find(has_work))
}

/// When `seat` reaches `mark` if no more work arrives: plays a copy forward. Already reached: now. If that is
/// after `until`, some moment after it, so a distant mark costs no long simulation.
#[must_use]
pub fn finish(mut turn: Turn, works: &[Work], slice: u64, seat: usize, mark: u64, until: u64) -> u64 {
    let mut copy = [Work::default(); SEATS];
    let count = works.len().min(SEATS);
    let (copy, _) = copy.split_at_mut(count);
    copy.copy_from_slice(works.split_at(count).0);
    loop {
        let done = copy.get(seat).map_or(u64::MAX, |work| work.done);
        if done >= mark || turn.at > until {
            return turn.at;
        }
        let Some(run) = step(&mut turn, copy, slice, u64::MAX) else { return turn.at };
        let done = copy.get(seat).map_or(u64::MAX, |work| work.done);
        if run.seat == seat && done >= mark {
            return run.start + (mark - run.done_before);
        }
    }
}

#[cfg(test)]
mod tests;
