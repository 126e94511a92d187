//! Held streams wait for something other than the card: a function on the host, a word of memory, an event behind either.
//!
//! ```text
//!   stream:  ─launch─┃marker─ wait for the host ─marker┃─launch─launch─┃marker
//!                    passed                     not passed
//! ```
//!
//! A batch has not begun while the marker before it has not passed. The process may not have had its turn on the card yet. The
//! batch is held if one of these is true:
//!
//! - a marker that was recorded later on another stream has passed;
//! - the program put a wait before the batch;
//! - another stream is held, and this one may wait for it.
//!
//! A held batch is charged as any other, and never counts as late. Only the first batch of a held stream is queried: a stream's
//! work is done in order.

use super::*;

/// Batches that are held and have markers of their own; more of a stream go into its last.
const MARKED_MAX: usize = 8;
/// A base that has not passed for so long is put elsewhere.
const BASE_STUCK: Nanos = Nanos::from_millis(50);

/// Held work of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldWork {
    /// What it was charged.
    pub charged: Nanos,
    /// Since when launches wait for it.
    pub awaited_from: Option<Nanos>,
}

impl Base {
    /// A moment on the device's clock.
    pub(super) fn after(&self, elapsed: i64) -> Nanos {
        Nanos(self.device.0.saturating_add_signed(elapsed))
    }
}

impl Marks {
    #[inline(never)]
    pub(super) fn has_batch(&self, stream: u64) -> bool {
        self.batches().any(|pending| pending.batch.stream == stream)
    }

    /// The batch of its stream that comes first.
    #[inline(never)]
    fn first(&self, stream: u64) -> Option<&Pending> {
        self.batches().find(|first| first.batch.stream == stream)
    }

    /// Whether something before it on its stream is pending.
    pub(super) fn is_behind_another(&self, at: usize) -> bool {
        let Some(Some(pending)) = self.pending.get(at) else { return false };
        self.pending().take(at).any(|first| first.batch.stream == pending.batch.stream)
    }

    /// Since when any of those can have been at work.
    #[inline(never)]
    pub(super) fn earliest(&self, which: impl Fn(&Pending) -> bool) -> Option<Nanos> {
        let mut earliest = None;
        for pending in self.pending().filter(|it| which(it)) {
            let first = self.first(pending.batch.stream).map_or(Nanos::ZERO, |first| first.opened_at);
            let since = first.max(pending.opened_at);
            earliest = Some(earliest.map_or(since, |before: Nanos| before.min(since)));
        }
        earliest
    }

    #[inline(never)]
    fn is_held(&self, stream: u64) -> bool {
        self.first(stream).is_some_and(|first| matches!(first.begun, BatchOpening::Held { .. }))
    }

    /// Batches that are not held, oldest first.
    pub(super) fn at_work(&self) -> impl Iterator<Item = &Pending> + Clone {
        self.batches().filter(|it| !self.is_held(it.batch.stream))
    }

    fn held(&self) -> impl Iterator<Item = &Pending> + Clone {
        self.batches().filter(|it| self.is_held(it.batch.stream))
    }

    /// Whether anything is held.
    #[must_use]
    pub fn holds_any(&self) -> bool {
        self.held().next().is_some()
    }

    /// The held work of the context, if that stream is held.
    #[must_use]
    pub fn behind(&self, stream: u64) -> Option<HeldWork> {
        let first = self.first(stream).filter(|_| self.is_held(stream))?;
        let charged = self.held().fold(Nanos::ZERO, |sum, it| sum.plus(it.batch.charged));
        Some(HeldWork { charged, awaited_from: first.awaited_from })
    }

    /// A launch waits for what that stream waits for.
    pub fn wait_behind(&mut self, now: Nanos, stream: u64) {
        let mut batches = self.pending_mut().filter(|it| !it.batch.is_none());
        if let Some(first) = batches.find(|it| it.batch.stream == stream) {
            first.awaited_from.get_or_insert(now);
        }
    }

    /// Takes the late charges of held batches, made before the hold was detected.
    #[inline(never)]
    pub fn take_held_late(&mut self) -> Nanos {
        let late = self.pending_mut().filter(|it| matches!(it.begun, BatchOpening::Held { .. }));
        late.fold(Nanos::ZERO, |sum, it| sum.plus(core::mem::replace(&mut it.late, Nanos::ZERO)))
    }

    /// Asks whether the device has come to a batch that it has not done; `None`: the driver does not say.
    #[inline(never)]
    pub(super) fn look_at_begin(
        &mut self,
        now: Nanos,
        at: usize,
        events: &mut impl Events,
    ) -> Option<BatchOpening> {
        let (base, latest) = (self.base.filter(|base| base.passed), self.passed_put_at);
        let (earliest, any) = (self.offset.earliest, self.holds_any());
        let Some(Some(pending)) = self.pending.get_mut(at) else { return Some(BatchOpening::Yes) };
        let (Some(begin), Some((put_at, behind))) = (pending.begin, pending.begun.before()) else {
            return Some(BatchOpening::Yes);
        };
        pending.begun = match events.passed(base.map_or(begin, |base| base.event), begin) {
            Passed::Lost => return None,
            Passed::NotYet => {
                pending.opened_at = pending.opened_at.max(now);
                // Asked before: a marker that was put later had passed by then.
                let is_held = behind == BatchStart::Hold || latest > put_at || any;
                if is_held {
                    BatchOpening::Held { put_at, behind }
                } else {
                    BatchOpening::NotYet { put_at, behind }
                }
            }
            Passed::After(elapsed) => {
                let began = base.map(|base| earliest.plus(base.after(elapsed)).min(now));
                pending.opened_at = pending.opened_at.max(began.unwrap_or(Nanos::ZERO));
                BatchOpening::Yes
            }
        };
        Some(pending.begun)
    }

    /// A launch on `stream` has to wait, maybe for work not begun on other streams: a marker on its stream tells whether the
    /// process has had its turn since. Whether one was put.
    pub fn probe(&mut self, now: Nanos, stream: u64, events: &mut impl Events) -> Recorded {
        self.free_base(now, stream, BatchStart::Last, events);
        let waits = self.batches().filter(|it| it.batch.stream != stream);
        let put_at = waits.filter_map(|it| it.begun.not_begun_since()).min();
        let Some(put_at) = put_at.filter(|put_at| *put_at < now) else { return Recorded::No };
        let is_told = |it: &Pending| it.batch.stream == stream && it.closed_at > put_at;
        if self.passed_put_at > put_at || self.pending().any(is_told) {
            return Recorded::No;
        }
        let before = self.count;
        self.put(now, stream, put_at, events);
        if self.count > before { Recorded::Yes } else { Recorded::No }
    }

    /// Puts a base that may be held into a stream that is not.
    pub(super) fn free_base(&mut self, now: Nanos, stream: u64, begin: BatchStart, events: &mut impl Events) {
        let Some(base) = self.base.filter(|base| !base.passed && base.stream != stream) else { return };
        let is_stuck = now.minus(base.put_at) >= BASE_STUCK;
        if begin == BatchStart::Hold || (!is_stuck && self.has_batch(stream)) || !events.may_record(stream) {
            return;
        }
        let has_passed = matches!(events.passed(base.event, base.event), Passed::After(_));
        if has_passed || events.record(base.event, stream) == Recorded::Yes {
            self.base = Some(if has_passed {
                Base { passed: true, ..base }
            } else {
                Base { stream, put_at: now, ..base }
            });
        }
    }

    /// Puts a batch to the last one of a stream that is held, where many are: its marker is put anew.
    #[inline(never)]
    pub(super) fn join(&mut self, now: Nanos, batch: Batch, events: &mut impl Events) -> Recorded {
        if !self.is_held(batch.stream) || self.held().count() < MARKED_MAX {
            return Recorded::No;
        }
        let last = self.pending_mut().rfind(|it| it.batch.stream == batch.stream);
        let Some(last) = last.filter(|it| !it.batch.is_none()) else { return Recorded::No };
        if events.record(last.event, batch.stream) == Recorded::Yes {
            (last.batch, last.closed_at) = (last.batch.and(&batch), now);
            return Recorded::Yes;
        }
        Recorded::No
    }

    /// A stream is destroyed, and its handle may be reused: its pending batches keep their order under a name of their own.
    pub fn stream_ends(&mut self, stream: u64) {
        let name = u64::MAX - self.ended;
        let mut any = false;
        for pending in self.pending_mut().filter(|it| it.batch.stream == stream) {
            pending.batch.stream = name;
            any = true;
        }
        if any {
            self.ended = self.ended.wrapping_add(1) % u64::from(u32::MAX);
            for known in self.streams.iter_mut().flatten().filter(|it| it.handle == stream) {
                known.handle = name;
            }
        }
    }
}

impl BatchOpening {
    /// When the marker before it was put, and behind what, unless the device has passed it.
    fn before(self) -> Option<(Nanos, BatchStart)> {
        match self {
            Self::Unqueried { put_at, behind }
            | Self::NotYet { put_at, behind }
            | Self::Held { put_at, behind } => Some((put_at, behind)),
            Self::Yes => None,
        }
    }

    /// How many it is of those at work that had not passed.
    pub(super) fn counts(self) -> usize {
        usize::from(!matches!(self, Self::NotYet { .. } | Self::Held { .. }))
    }

    fn not_begun_since(self) -> Option<Nanos> {
        match self {
            Self::NotYet { put_at, .. } => Some(put_at),
            Self::Unqueried { .. } | Self::Held { .. } | Self::Yes => None,
        }
    }
}

impl Batch {
    /// Both, one behind the other.
    pub(super) fn and(&self, next: &Self) -> Self {
        Self {
            stream: self.stream,
            charged: self.charged.plus(next.charged),
            deposit: self.deposit.plus(next.deposit),
            launches: self.launches.saturating_add(next.launches),
            shape: self.shape.filter(|shape| next.shape == Some(*shape)),
            known: self.known.min(next.known),
        }
    }
}
