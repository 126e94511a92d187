//! Physical memory that others may have by descriptors (`cuMemExportToShareableHandle`). A driver keeps it until its maker has
//! let go of it, every importer has, and the last copy of each descriptor is closed, in any order.
//!
//! ```text
//!   export ─▶ a slot of its own, as for IPC-shared memory by a handle; and a mark on the descriptor
//!   import ─▶ the mark says which slot: held until the import ends
//!        └──▶ no such slot, though of this grant: its maker is gone, no process had it: charged anew, in a slot of its own
//! ```
//!
//! The mark is a lock of the descriptor's open file description, on a byte far behind every file: it goes wherever copies of the
//! descriptor go, and the kernel tells of it in `/proc/self/fdinfo`. What takes no mark (a fabric handle, a descriptor without
//! locks) is not exported: its importers would not be known.

use core::ffi::c_int;

use super::{Entry, IpcSlot, MADE, Tag, move_bytes, move_out, take_any, take_slot};
use crate::accounting::account::{Bytes, Ledger};
use crate::accounting::alloc_map::{Key, Tie};
use crate::accounting::credit;
use crate::accounting::life::{self, Turns};
use crate::grants::Usage;
use crate::loader::vendor::OUT_OF_MEMORY;
use crate::memory::admission_gate::pass_admission_gate;
use crate::sys::process;
use crate::sys::{self, KeepErrno};

use aliquot_abi::layout::slot::{LET_GO, lock_of_adopter};
use aliquot_abi::refusal::RefusedKind;
use core::sync::atomic::{AtomicU32, Ordering};

/// The byte that is locked: which slot of which grant had the memory, and how much it is.
///
/// Bit 62; 26 bits of [`UNIT`]s; 12 of the usage file; 14 of the slot's generation, 10 of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorMark(u64);

const MARKED: u64 = 1 << 62;
/// Bytes of physical memory come in multiples of it.
const UNIT: u64 = 64 << 10;
const UNITS_MAX: u64 = (1 << 26) - 1;
/// Waits for another process that pays for the same memory, and how long each is.
const ADOPTED_ELSEWHERE_MAX: u32 = 10_000;
const ADOPTED_STEP_NANOS: u64 = 100_000;

/// A thread of this process pays for what exited processes exported: record locks do not keep threads apart.
static ADOPTING: Turns = Turns::new();

/// Turns given away for a thread that exports the same memory for the first time.
const TURNS_MAX: u32 = 10_000;

/// Bits of a usage file.
fn grant_of(usage: Usage) -> u64 {
    usage.inode().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52
}

impl DescriptorMark {
    fn new(lent: IpcSlot, bytes: Bytes) -> Self {
        let units = bytes.0.div_ceil(UNIT).min(UNITS_MAX);
        let slot = (lent.owner >> 32 & 0x3fff) << 10 | u64::from(lent.number & 1023);
        Self(MARKED | units << 36 | grant_of(lent.usage) << 24 | slot)
    }

    /// What a descriptor has, if it was exported with a mark.
    pub(crate) fn of(descriptor: c_int) -> Option<Self> {
        let _errno = KeepErrno::new();
        process::lock_of(descriptor, MARKED..MARKED << 1).map(Self)
    }

    /// That of the slot.
    pub(super) fn tag(self) -> Tag {
        Tag(self.0)
    }

    fn bytes(self) -> Bytes {
        Bytes((self.0 >> 36 & UNITS_MAX) * UNIT)
    }

    fn is_of(self, usage: Usage) -> bool {
        self.0 >> 24 & 0xfff == grant_of(usage)
    }

    /// Puts it on a descriptor. False: that takes none.
    fn put(self, descriptor: c_int) -> bool {
        sys::share_description(descriptor, self.0) && Self::of(descriptor) == Some(self)
    }
}

/// Whether a descriptor takes a mark.
fn takes_marks(descriptor: c_int) -> bool {
    let trial = DescriptorMark(MARKED);
    let takes = trial.put(descriptor);
    sys::unlock_description(descriptor, trial.0);
    takes
}

/// Physical memory of this process that others may import from now on by a descriptor. An error: that cannot be written down.
pub(crate) fn lend_physical(
    entry: &impl Entry,
    key: Key,
    (bytes, grant): (Bytes, u32),
    descriptor: c_int,
) -> Result<(), i32> {
    let _errno = KeepErrno::new();
    let Some(ledger) = credit::ledger(grant) else { return Ok(()) };
    // No process finds it by this: the slot's own comes once it is known which.
    let lent = if takes_marks(descriptor) { take_any(ledger, Tag(MARKED)) } else { None };
    let Some(lent) = lent else { return Err(ledger.refuse(RefusedKind::Ipc.without_place())) };
    if let Some(slot) = lent.slot() {
        slot.tag().store(DescriptorMark::new(lent, bytes).0, Ordering::SeqCst);
    }
    move_out(entry, key, (ledger, lent), lent.place(ledger, bytes, Tie(0)))?;
    mark_again(key, descriptor)
}

/// One more descriptor of what is shared under this key.
pub(crate) fn mark_again(key: Key, descriptor: c_int) -> Result<(), i32> {
    let _errno = KeepErrno::new();
    let mut turns = 0..TURNS_MAX;
    let place = loop {
        match MADE.get(key) {
            Some(place) => break place,
            None if turns.next().is_none() => return Err(OUT_OF_MEMORY),
            None => sys::yield_now(),
        }
    };
    match place.lent() {
        Some((lent, ledger)) => DescriptorMark::new(lent, place.bytes)
            .put(descriptor)
            .then_some(())
            .ok_or_else(|| ledger.refuse(RefusedKind::Ipc.without_place())),
        None => Ok(()),
    }
}

/// Memory of this container that no process had when its maker ended: a process that imports it pays. `None`: it is of another
/// one.
pub(super) fn adopt(
    mark: DescriptorMark,
    mut ledgers: impl Iterator<Item = Ledger>,
) -> Result<Option<(IpcSlot, Ledger)>, i32> {
    let Some(ledger) = ledgers.find(|ledger| mark.is_of(ledger.usage())) else { return Ok(None) };
    pass_admission_gate(ledger);
    let _moving = ledger.moving();
    // A slot for this process is taken before other threads are kept from taking one.
    if !ledger.has_books() {
        return Err(ledger.refuse(RefusedKind::Ipc.without_place()));
    }
    let mut is_relieved = false;
    for _ in 0..ADOPTED_ELSEWHERE_MAX {
        match ADOPTING.alone(|| adopt_alone(mark, ledger)) {
            AdoptOutcome::Has(lent) => return Ok(Some((lent, ledger))),
            AdoptOutcome::Elsewhere => sys::wait_while(&AtomicU32::new(0), 0, ADOPTED_STEP_NANOS),
            AdoptOutcome::OutOfMemory if is_relieved => break,
            // The driver is asked to give back what pools keep, which no other importer waits for.
            AdoptOutcome::OutOfMemory => {
                ledger.relieve();
                is_relieved = true;
            }
        }
    }
    Err(ledger.refuse(RefusedKind::Ipc.over_limit(mark.bytes().0)))
}

/// What came of it.
enum AdoptOutcome {
    /// This process holds its slot.
    Has(IpcSlot),
    /// Another process is at the same memory, or at some that is taken for it.
    Elsewhere,
    /// It does not fit, or there is no slot.
    OutOfMemory,
}

/// One process at a time pays for one memory: the next one finds its slot.
fn adopt_alone(mark: DescriptorMark, ledger: Ledger) -> AdoptOutcome {
    let Some(file) = ledger.usage().file() else { return AdoptOutcome::OutOfMemory };
    let byte = lock_of_adopter(mark.tag().0);
    if !sys::lock_byte(file, byte) {
        return AdoptOutcome::Elsewhere;
    }
    let found = IpcSlot::find(ledger, mark.tag()).or_else(|| pay(mark, ledger));
    sys::unlock_byte(file, byte);
    found.map_or(AdoptOutcome::OutOfMemory, AdoptOutcome::Has)
}

fn pay(mark: DescriptorMark, ledger: Ledger) -> Option<IpcSlot> {
    ledger.reserve_now(mark.bytes()).ok()?;
    // No process finds it before it has the bytes.
    let lent = life::one_at_a_time(|| take_slot(ledger.usage(), Tag(MARKED)));
    let Some(lent) = lent.filter(|lent| move_bytes(ledger, *lent, mark.bytes())) else {
        ledger.release(mark.bytes());
        lent.into_iter().for_each(|lent| lent.let_go(ledger));
        return None;
    };
    ledger.let_go(mark.bytes());
    if let Some(slot) = lent.slot() {
        slot.kind().store(LET_GO, Ordering::SeqCst);
        slot.tag().store(mark.0, Ordering::SeqCst);
    }
    Some(lent)
}
