//! The words that the processes of one tenant share, for models of a card.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use aliquot_enforce::bucket::Bucket;
use aliquot_enforce::busy_floor::BusyFloor;
use aliquot_enforce::cells::Cells;
use aliquot_enforce::pace::SharedWords;

const MILLI: u64 = 1_000_000;
/// A machine that has been up for a while.
pub(crate) const UP: u64 = 1_000_000 * MILLI;

/// The words of a tenant.
pub(crate) struct Books {
    credit: AtomicI64,
    refilled_at: AtomicU64,
    pub(crate) words: [AtomicU64; 7],
    sure: Vec<AtomicU64>,
    sure_nanos: AtomicI64,
    halves: [AtomicU32; 2],
    cells: Vec<AtomicU32>,
}

impl Books {
    pub(crate) fn new() -> Self {
        Self {
            credit: AtomicI64::new(0),
            refilled_at: AtomicU64::new(UP),
            words: Default::default(),
            sure: (0..128).map(|_| AtomicU64::new(0)).collect(),
            sure_nanos: AtomicI64::new(0),
            halves: Default::default(),
            cells: (0..512).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    pub(crate) fn shared(&self, me: u32) -> SharedWords<'_> {
        let [device, process, interval, counted, reporter, active, limited] = &self.words;
        let [demand, wake] = &self.halves;
        SharedWords {
            bucket: Bucket { credit: &self.credit, refilled_at: &self.refilled_at },
            cells: Cells::new(&self.cells),
            device_nanos: device,
            process_nanos: process,
            interval_nanos: interval,
            counted_until: counted,
            sure: BusyFloor::new(&self.sure),
            sure_nanos: &self.sure_nanos,
            reporter,
            active_until: active,
            limited_until: limited,
            demand,
            wake,
            me,
        }
    }

    /// Milliseconds on the books.
    pub(crate) fn booked(&self) -> u64 {
        self.words[0].load(Relaxed) / MILLI
    }
}
