//! The ring of the last refusals of a usage file.
//!
//! Writers take a place by its number and clear its time before and set it after the rest, so a reader skips a record that is being
//! written. Two writers of one record, which takes as many refusals within that time as the ring has places, may mix theirs.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::bytes::Bytes;
use crate::layout::{refusal, usage};
use crate::refusal::{Refusal, RefusalCause, RefusedCall, RefusedKind};

/// The ring.
#[derive(Clone, Copy)]
pub struct RefusalsView<'a>(pub(super) Bytes<'a>);

#[derive(Clone, Copy)]
struct RecordView<'a> {
    bytes: Bytes<'a>,
    at: usize,
}

impl<'a> RefusalsView<'a> {
    /// Writes a refusal over the oldest one.
    pub fn record(self, refusal: &Refusal) {
        let number = self.0.half(usage::REFUSED).fetch_add(1, Ordering::Relaxed);
        let place = usize::try_from(number).unwrap_or(0) % usage::REFUSAL_COUNT;
        self.place(place).write(refusal);
    }

    /// The last refusals, in no order. What no shim writes is left out.
    pub fn all(self) -> impl Iterator<Item = Refusal> + use<'a> {
        (0..usage::REFUSAL_COUNT).filter_map(move |place| self.place(place).read())
    }

    fn place(self, number: usize) -> RecordView<'a> {
        RecordView { bytes: self.0, at: usage::REFUSALS + number * refusal::BYTES }
    }
}

impl<'a> RecordView<'a> {
    fn word(self, field: usize) -> &'a AtomicU64 {
        self.bytes.word(self.at + field)
    }

    fn half(self, field: usize) -> &'a AtomicU32 {
        self.bytes.half(self.at + field)
    }

    fn write(self, refusal: &Refusal) {
        let at = self.word(refusal::AT);
        at.store(0, Ordering::SeqCst);
        self.word(refusal::WANTED).store(refusal.call.wanted_bytes, Ordering::SeqCst);
        self.word(refusal::RESERVED).store(refusal.reserved_bytes, Ordering::SeqCst);
        self.word(refusal::RESIDUE).store(refusal.residue_bytes, Ordering::SeqCst);
        self.word(refusal::LIMIT).store(refusal.limit_bytes, Ordering::SeqCst);
        self.half(refusal::PID).store(refusal.pid, Ordering::SeqCst);
        let code = (refusal.call.cause as u32) << 16 | refusal.call.kind as u32;
        self.half(refusal::CODE).store(code, Ordering::SeqCst);
        at.store(refusal.at_nanos.max(1), Ordering::SeqCst);
    }

    /// `None`: none was written here, it is being written, or its words are no shim's.
    fn read(self) -> Option<Refusal> {
        let at_nanos = self.word(refusal::AT).load(Ordering::SeqCst);
        let code = self.half(refusal::CODE).load(Ordering::SeqCst);
        let call = RefusedCall {
            kind: RefusedKind::of_number(code & 0xffff)?,
            cause: RefusalCause::of_number(code >> 16)?,
            wanted_bytes: self.word(refusal::WANTED).load(Ordering::SeqCst),
        };
        let found = Refusal {
            call,
            at_nanos,
            reserved_bytes: self.word(refusal::RESERVED).load(Ordering::SeqCst),
            residue_bytes: self.word(refusal::RESIDUE).load(Ordering::SeqCst),
            limit_bytes: self.word(refusal::LIMIT).load(Ordering::SeqCst),
            pid: self.half(refusal::PID).load(Ordering::SeqCst),
        };
        let is_whole = at_nanos != 0 && self.word(refusal::AT).load(Ordering::SeqCst) == at_nanos;
        is_whole.then_some(found)
    }
}
