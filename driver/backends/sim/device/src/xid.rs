//! Xids that a card reported: the last ones lie in its shared state, where every process follows them for itself.

use crate::card::Card;
use crate::header::Record;
use crate::mapping::monotonic_nanos;
use crate::mig::MigDevice;

/// Reports that a card keeps; a reader that falls behind misses the oldest.
const KEPT: usize = 64;
/// These, for the header of a card's file.
pub(crate) const REPORT: Record = Record::of::<Report>(KEPT);
/// In the place of an instance's number: the whole card.
const NO_INSTANCE: u32 = u32::MAX;

/// An error that a driver reports of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The vendor's number of it.
    pub number: u64,
    /// When, in nanoseconds of the monotonic clock.
    pub at: u64,
    /// Numbers of the GPU instance and the compute instance that it is about; `None`: the whole card.
    pub instance: Option<(u32, u32)>,
}

/// A reader's position in a card's reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportPosition(u64);

#[derive(Clone, Copy)]
#[repr(C)]
struct Report {
    number: u64,
    at: u64,
    gpu: u32,
    compute: u32,
}

/// The reports of a card. All zero: none.
#[repr(C)]
pub(crate) struct Reports {
    made: u64,
    kept: [Report; KEPT],
}

// === impl Reports ===

impl Reports {
    fn make(&mut self, report: Report) {
        if let Some(place) = self.kept.get_mut(place(self.made)) {
            *place = report;
        }
        // Last: a process that is killed before has reported nothing.
        self.made += 1;
    }

    /// The oldest kept one that was not seen.
    fn after(&self, seen: ReportPosition) -> Option<(ReportPosition, Xid)> {
        let oldest = self.made.saturating_sub(u64::try_from(KEPT).unwrap_or(0));
        let number = seen.0.max(oldest);
        let report = self.kept.get(place(number)).filter(|_| number < self.made)?;
        let instance = Some((report.gpu, report.compute)).filter(|(gpu, _)| *gpu != NO_INSTANCE);
        Some((ReportPosition(number + 1), Xid { number: report.number, at: report.at, instance }))
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0) % KEPT
}

// === impl Card ===

impl Card {
    /// Reports an Xid; `of`: the compute instance that it is about, where it is not about the whole card.
    pub fn raise_xid(&self, number: u64, of: Option<MigDevice>) {
        let (gpu, compute) = of.map_or((NO_INSTANCE, NO_INSTANCE), |of| (of.gpu.id, of.compute.id));
        // The clock is read inside, so that reports are in the order of their times.
        self.with(|state| state.xids.make(Report { number, at: monotonic_nanos(), gpu, compute }));
        self.stir();
    }

    /// Number of the last Xid that it reported; 0 where there was none.
    #[must_use]
    pub fn last_xid(&self) -> u64 {
        self.with(|state| {
            let last = state.xids.made.checked_sub(1).map(ReportPosition);
            last.and_then(|last| state.xids.after(last)).map_or(0, |(_, xid)| xid.number)
        })
    }

    /// Everything that it reported until now.
    #[must_use]
    pub fn xids_until_now(&self) -> ReportPosition {
        self.with(|state| ReportPosition(state.xids.made))
    }

    /// What it reported after that, with what is seen then; of more than it keeps the oldest are lost.
    #[must_use]
    pub fn xid_after(&self, seen: ReportPosition) -> Option<(ReportPosition, Xid)> {
        self.with(|state| state.xids.after(seen))
    }
}
