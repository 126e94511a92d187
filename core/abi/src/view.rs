//! Views of mapped regions: the only place that touches the bytes.
//!
//! A view borrows a mapping for as long as it lives and hands out atomics. Bytes are checked once, when the view is
//! made; after that nothing that another process writes can make a view go out of bounds, since every offset is a
//! constant below the checked size.

// UNSAFETY: shared memory is reached through a raw pointer; there is no safe way to say that other processes write it.
#![expect(unsafe_code, reason = "mapped memory that other processes write")]

mod bytes;
mod process;
mod refusals;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::layout::{KIND_LIMITS, KIND_USAGE, limits, usage};
use crate::limits::{Limits, RecordFault};

use bytes::Bytes;
pub use bytes::RegionFault;
pub use process::SlotView;
pub use refusals::RefusalsView;

/// Why no limits could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsFault {
    /// Neither record is whole; the fault is that of the record in force.
    Record(RecordFault),
    /// The agent changed the limits again and again while we read.
    Busy,
}

/// Reader's view of the limits file.
#[derive(Clone, Copy)]
pub struct LimitsView<'a>(Bytes<'a>);

impl<'a> LimitsView<'a> {
    /// Checks a mapping of the limits file.
    ///
    /// # Errors
    /// The bytes are no limits file that this version can use.
    ///
    /// # Safety
    /// `base` is the start of a readable mapping of `length` bytes that stays mapped for `'a`. Its writers
    /// write atomically or from another process.
    pub unsafe fn new(base: NonNull<u8>, length: usize) -> Result<Self, RegionFault> {
        Bytes::from(base).check(length, limits::BYTES, KIND_LIMITS).map(Self)
    }

    /// The limits in force.
    ///
    /// # Errors
    /// No record is whole, or the agent kept changing it (8 tries).
    pub fn read(self) -> Result<Limits, LimitsFault> {
        for _ in 0..8 {
            let active = self.0.half(limits::ACTIVE).load(Ordering::Acquire);
            let decoded = Limits::decode(&self.copy(active));
            if self.0.half(limits::ACTIVE).load(Ordering::Acquire) != active {
                continue;
            }
            match decoded {
                Ok(limits) => return Ok(limits),
                // Two changes during one copy tear it without moving `active`: the next copy is whole.
                Err(RecordFault::Checksum) => {}
                Err(fault) => return Err(LimitsFault::Record(fault)),
            }
        }
        match Limits::decode(&self.copy(self.0.half(limits::ACTIVE).load(Ordering::Acquire))) {
            Ok(_) => Err(LimitsFault::Busy),
            Err(fault) => Err(LimitsFault::Record(fault)),
        }
    }

    /// Generation of the record in force, for a cheap check for changes; unchecked. The load is sequentially
    /// consistent: a process that marks itself as reserving and then reads here either sees new limits, or is
    /// seen by the agent's check after it wrote them.
    #[must_use]
    pub fn generation(self) -> u64 {
        let active = self.0.half(limits::ACTIVE).load(Ordering::SeqCst);
        self.0.word(record_at(active)).load(Ordering::SeqCst)
    }

    /// [`limits::LENT_UNTIL`]
    #[must_use]
    pub fn lent_until(self) -> u64 {
        self.0.word(limits::LENT_UNTIL).load(Ordering::Acquire)
    }

    /// [`limits::RESIDUE`]
    #[must_use]
    pub fn residue(self) -> u64 {
        self.0.word(limits::RESIDUE).load(Ordering::Acquire)
    }

    /// [`limits::LOOKED_AT`]
    #[must_use]
    pub fn looked_at(self) -> u64 {
        self.0.word(limits::LOOKED_AT).load(Ordering::Acquire)
    }

    /// [`limits::LOOKED_FOR`]
    #[must_use]
    pub fn looked_for(self) -> u32 {
        self.0.half(limits::LOOKED_FOR).load(Ordering::Acquire)
    }

    fn copy(self, active: u32) -> [u8; limits::RECORD_BYTES] {
        let mut bytes = [0; limits::RECORD_BYTES];
        for (at, to) in bytes.chunks_exact_mut(8).enumerate() {
            let word = self.0.word(record_at(active) + at * 8).load(Ordering::Acquire);
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Offset of the record that `active` names; any other value than 1 names record 0.
const fn record_at(active: u32) -> usize {
    if active == 1 { limits::RECORDS + limits::RECORD_BYTES } else { limits::RECORDS }
}

/// The agent's view of the limits file.
pub struct LimitsWriter<'a>(Bytes<'a>);

impl LimitsWriter<'_> {
    /// Takes a zeroed or earlier mapping of the limits file and writes its header.
    ///
    /// # Errors
    /// The mapping is too short or unaligned.
    ///
    /// # Safety
    /// `base` is the start of a writable mapping of `length` bytes that stays mapped for as long as the writer lives,
    /// and there is one writer.
    pub unsafe fn new(base: NonNull<u8>, length: usize) -> Result<Self, RegionFault> {
        if length < limits::BYTES {
            return Err(RegionFault::Short { found: length, needed: limits::BYTES });
        }
        if !base.addr().get().is_multiple_of(8) {
            return Err(RegionFault::Unaligned);
        }
        let bytes = Bytes::from(base);
        bytes.write_header(KIND_LIMITS, 4096);
        Ok(Self(bytes))
    }

    /// Puts new limits in force. Killed at any instruction, the earlier ones stay.
    pub fn write(&mut self, new: &Limits) {
        let next = u32::from(self.0.half(limits::ACTIVE).load(Ordering::Acquire) != 1);
        for (at, from) in new.encode().chunks_exact(8).enumerate() {
            let word = from.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
            self.0.word(record_at(next) + at * 8).store(word, Ordering::Release);
        }
        // Pairs with the loads in `read`: a reader that sees the new index sees the whole record.
        self.0.half(limits::ACTIVE).store(next, Ordering::Release);
    }

    /// Sets the end of borrowed compute time: [`limits::LENT_UNTIL`].
    pub fn lend_until(&mut self, nanos: u64) {
        self.0.word(limits::LENT_UNTIL).store(nanos, Ordering::Release);
    }

    /// Publishes what a look found: [`limits::RESIDUE`].
    pub fn publish_residue(&mut self, bytes: u64) {
        self.0.word(limits::RESIDUE).store(bytes, Ordering::Release);
    }

    /// All of a look is published that began at `nanos`, when tenants had wanted `wanted` looks: [`limits::LOOKED_FOR`],
    /// [`limits::LOOKED_AT`]. A reader that sees the time sees its residue or that of a later one.
    pub fn publish_look(&mut self, nanos: u64, wanted: u32) {
        self.0.half(limits::LOOKED_FOR).store(wanted, Ordering::Release);
        self.0.word(limits::LOOKED_AT).store(nanos, Ordering::Release);
    }
}

/// A view of the usage file for agent and tenant processes.
#[derive(Clone, Copy)]
pub struct UsageView<'a>(Bytes<'a>);

impl<'a> UsageView<'a> {
    /// Checks a mapping of the usage file.
    ///
    /// # Errors
    /// The bytes are no usage file that this version can use.
    ///
    /// # Safety
    /// As for [`LimitsView::new`], with a writable mapping.
    pub unsafe fn new(base: NonNull<u8>, length: usize) -> Result<Self, RegionFault> {
        Bytes::from(base).check(length, usage::BYTES, KIND_USAGE).map(Self)
    }

    /// Writes the header of a zeroed mapping and views it.
    ///
    /// # Errors
    /// The mapping is too short or unaligned.
    ///
    /// # Safety
    /// As for [`UsageView::new`]; no other thread or process uses the file yet.
    pub unsafe fn create(base: NonNull<u8>, length: usize) -> Result<Self, RegionFault> {
        if length < usage::BYTES {
            return Err(RegionFault::Short { found: length, needed: usage::BYTES });
        }
        if !base.addr().get().is_multiple_of(8) {
            return Err(RegionFault::Unaligned);
        }
        let bytes = Bytes::from(base);
        bytes.write_header(KIND_USAGE, 135_168);
        Ok(Self(bytes))
    }

    /// [`usage::TOTAL`]
    #[must_use]
    pub fn total(self) -> &'a AtomicU64 {
        self.0.word(usage::TOTAL)
    }

    /// [`usage::HIGH_WATER`]
    #[must_use]
    pub fn high_water(self) -> &'a AtomicU64 {
        self.0.word(usage::HIGH_WATER)
    }

    /// [`usage::DENIED`]
    #[must_use]
    pub fn denied(self) -> &'a AtomicU64 {
        self.0.word(usage::DENIED)
    }

    /// [`usage::UNKNOWN_SYMBOLS`]
    #[must_use]
    pub fn unknown_symbols(self) -> &'a AtomicU64 {
        self.0.word(usage::UNKNOWN_SYMBOLS)
    }

    /// [`usage::REAPED`]
    #[must_use]
    pub fn reaped(self) -> &'a AtomicU64 {
        self.0.word(usage::REAPED)
    }

    /// [`usage::CLOSINGS`]
    #[must_use]
    pub fn closings(self) -> &'a AtomicU64 {
        self.0.word(usage::CLOSINGS)
    }

    /// [`usage::CREDIT_NANOS`]
    #[must_use]
    pub fn credit_nanos(self) -> &'a AtomicI64 {
        self.0.signed(usage::CREDIT_NANOS)
    }

    /// [`usage::REFILLED_AT`]
    #[must_use]
    pub fn refilled_at(self) -> &'a AtomicU64 {
        self.0.word(usage::REFILLED_AT)
    }

    /// [`usage::DEVICE_NANOS`]
    #[must_use]
    pub fn device_nanos(self) -> &'a AtomicU64 {
        self.0.word(usage::DEVICE_NANOS)
    }

    /// [`usage::MEASURING`]
    #[must_use]
    pub fn measuring(self) -> &'a AtomicU32 {
        self.0.half(usage::MEASURING)
    }

    /// [`usage::CONTEXT_BYTES`]
    #[must_use]
    pub fn context_bytes(self) -> &'a AtomicU64 {
        self.0.word(usage::CONTEXT_BYTES)
    }

    /// [`usage::WAKE`]
    #[must_use]
    pub fn wake(self) -> &'a AtomicU32 {
        self.0.half(usage::WAKE)
    }

    /// [`usage::DEMAND`]
    #[must_use]
    pub fn demand(self) -> &'a AtomicU32 {
        self.0.half(usage::DEMAND)
    }

    /// [`usage::LOOK_WANTED`]
    #[must_use]
    pub fn look_wanted(self) -> &'a AtomicU32 {
        self.0.half(usage::LOOK_WANTED)
    }

    /// [`usage::REFUSALS`]
    #[must_use]
    pub const fn refusals(self) -> RefusalsView<'a> {
        RefusalsView(self.0)
    }

    /// [`usage::ACTIVE_UNTIL`]
    #[must_use]
    pub fn active_until(self) -> &'a AtomicU64 {
        self.0.word(usage::ACTIVE_UNTIL)
    }

    /// [`usage::LIMITED_UNTIL`]
    #[must_use]
    pub fn limited_until(self) -> &'a AtomicU64 {
        self.0.word(usage::LIMITED_UNTIL)
    }

    /// [`usage::INTERVAL_NANOS`]
    #[must_use]
    pub fn interval_nanos(self) -> &'a AtomicU64 {
        self.0.word(usage::INTERVAL_NANOS)
    }

    /// [`usage::COUNTED_UNTIL`]
    #[must_use]
    pub fn counted_until(self) -> &'a AtomicU64 {
        self.0.word(usage::COUNTED_UNTIL)
    }

    /// [`usage::REPORTER`]
    #[must_use]
    pub fn reporter(self) -> &'a AtomicU64 {
        self.0.word(usage::REPORTER)
    }

    /// [`usage::SURE_NANOS`]
    #[must_use]
    pub fn sure_nanos(self) -> &'a AtomicI64 {
        self.0.signed(usage::SURE_NANOS)
    }

    /// [`usage::SURE`]
    #[must_use]
    pub fn sure(self) -> &'a [AtomicU64; usage::SURE_COUNT] {
        // SAFETY: the words end below the checked size, and the base is aligned to 8.
        let place = unsafe { self.0.base.add(usage::SURE) }.cast::<[AtomicU64; usage::SURE_COUNT]>();
        // SAFETY: the mapping lives for 'a by the constructor's contract, and atomics may be shared.
        unsafe { place.as_ref() }
    }

    /// [`usage::CELLS`]
    #[must_use]
    pub fn cells(self) -> &'a [AtomicU32; usage::CELL_COUNT] {
        // SAFETY: the cells end below the checked size, and the base is aligned to 8.
        let place = unsafe { self.0.base.add(usage::CELLS) }.cast::<[AtomicU32; usage::CELL_COUNT]>();
        // SAFETY: the mapping lives for 'a by the constructor's contract, and atomics may be shared.
        unsafe { place.as_ref() }
    }

    /// The slot of this number; `None` from [`usage::SLOT_COUNT`] on.
    #[must_use]
    pub fn slot(self, number: usize) -> Option<SlotView<'a>> {
        let at = usage::SLOTS + number.checked_mul(usage::SLOT_BYTES)?;
        (number < usage::SLOT_COUNT).then_some(SlotView::at(self.0, at))
    }
}
