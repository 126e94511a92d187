//! When pending work should be done, and since when launches wait for it.

use super::*;

/// When pending work should be done, by what it was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Since when the device has had only the oldest batch and later ones.
    pub from: Nanos,
    /// When the oldest can be done.
    pub at: Nanos,
    /// Charge of all marked batches.
    pub charged: Nanos,
    /// Deposit of all marked batches, as they may be far longer.
    pub deposit: Nanos,
    /// Extra charge of the oldest, as it was late.
    pub late: Nanos,
    /// The least that is known about any charge.
    pub known: ChargeBasis,
    /// Since when launches wait for the oldest.
    pub awaited_from: Option<Nanos>,
}

impl Due {
    /// How long launches have waited for the oldest batch.
    #[must_use]
    pub fn awaited(&self, now: Nanos) -> Nanos {
        self.awaited_from.map_or(Nanos::ZERO, |from| now.minus(from))
    }
}

impl Marks {
    /// When the oldest pending batch should have been done; `None` if only held batches are pending.
    #[must_use]
    pub fn due(&self) -> Option<Due> {
        let mut all: Option<(Pending, Batch)> = None;
        for pending in self.at_work() {
            let sum = all.as_ref().map_or(pending.batch, |(_, sum)| sum.and(&pending.batch));
            let (oldest, _) = all.unwrap_or((*pending, sum));
            all = Some((oldest, sum));
        }
        let (oldest, Batch { charged, deposit, known, .. }) = all?;
        let begun = self.streams.iter().flatten().find(|it| it.handle == oldest.batch.stream);
        let end = begun.and_then(|it| it.end).map(|end| self.offset.earliest.plus(end));
        let start = oldest.opened_at.max(end.unwrap_or(Nanos::ZERO));
        let from = start.max(oldest.closed_at);
        let (at, late, awaited_from) = (start.plus(oldest.batch.charged), oldest.late, oldest.awaited_from);
        Some(Due { from, at, charged, deposit, late, known, awaited_from })
    }

    /// Notes what the oldest pending batch was charged beyond its charges.
    pub fn set_late(&mut self, late: Nanos) {
        if let Some(oldest) = self.oldest() {
            oldest.late = late;
        }
    }

    /// A launch waits for the oldest pending batch.
    pub fn wait(&mut self, now: Nanos) {
        if let Some(oldest) = self.oldest() {
            oldest.awaited_from.get_or_insert(now);
        }
    }

    #[inline(never)]
    fn oldest(&mut self) -> Option<&mut Pending> {
        let event = self.at_work().next()?.event;
        self.pending_mut().find(|pending| pending.event == event)
    }
}
