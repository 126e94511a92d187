//! Lists of processes: the living processes of the grant that this process can name, each with what accounting says it holds.

// UNSAFETY: the caller's lists are written.
#![expect(unsafe_code, reason = "lists of the caller are raw")]

use aliquot_abi::limits::Limits;

use crate::accounting::account::Ledger;
use crate::accounting::life::{self, Holder};
use crate::loader::vendor::SUCCESS;
use crate::reporting::shown;
use crate::sys::process::Pid;
use crate::sys::{KeepErrno, with_bytes};

/// NVML_ERROR_INSUFFICIENT_SIZE
pub(crate) const INSUFFICIENT_SIZE: i32 = 7;
/// NVML_ERROR_MEMORY
const NO_MEMORY: i32 = 20;
/// NVML's number for no MIG instance.
const NO_INSTANCE: u32 = u32::MAX;
/// Places for processes that come while a list is asked for, and how often one is asked for.
const SPARE: u32 = 16;
const TRIES_MAX: u32 = 4;

/// The MIG instances that a card is, each by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instances {
    pub(crate) gpu: u32,
    pub(crate) compute: u32,
}

impl Instances {
    /// A whole card's.
    pub(crate) const NONE: Self = Self { gpu: NO_INSTANCE, compute: NO_INSTANCE };
}

/// nvmlProcessInfo_v1_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Process1 {
    pid: u32,
    padding: u32,
    used: u64,
}

/// nvmlProcessInfo_v2_t, and the third version, which is the same
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Process2 {
    pid: u32,
    padding: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// nvmlProcessDetail_v1_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessDetail {
    pid: u32,
    padding: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
    protected: u64,
}

/// nvmlProcessUtilizationSample_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UtilizationSample {
    pid: u32,
    padding: u32,
    micros: u64,
    percent: [u32; 4],
}

/// nvmlProcessUtilizationInfo_v1_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Sample {
    micros: u64,
    pid: u32,
    percent: [u32; 6],
    padding: u32,
}

const _: () = assert!(size_of::<UtilizationSample>() == 32 && size_of::<Sample>() == 40);
const _: () = assert!(size_of::<Process1>() == 16 && size_of::<Process2>() == 24);
const _: () = assert!(size_of::<ProcessDetail>() == 32);

/// An entry of a list.
pub(crate) trait Entry: Copy {
    /// The process.
    fn pid(&self) -> Pid;
    /// The same entry with what accounting says, where it tells memory.
    fn holding(self, _bytes: u64) -> Self {
        self
    }
    /// The same entry with another use of the multiprocessors, where it tells that.
    fn working(self, _change: impl Fn(u32) -> u32) -> Self {
        self
    }
}

/// A process of a list that tells nothing else.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ProcessId(u32);

impl Entry for ProcessId {
    fn pid(&self) -> Pid {
        Pid(self.0)
    }
}

/// An entry that accounting alone can make.
pub(crate) trait AccountedEntry: Entry {
    /// One for a process of accounting, on a card that is these instances.
    fn of(holder: Holder, instances: Instances) -> Self;
}

impl AccountedEntry for Process1 {
    fn of(holder: Holder, _instances: Instances) -> Self {
        Self { pid: holder.pid.0, padding: 0, used: holder.bytes }
    }
}

impl Entry for Process1 {
    fn pid(&self) -> Pid {
        Pid(self.pid)
    }
    fn holding(self, used: u64) -> Self {
        Self { used, ..self }
    }
}

impl AccountedEntry for Process2 {
    fn of(holder: Holder, instances: Instances) -> Self {
        let Instances { gpu: gpu_instance, compute: compute_instance } = instances;
        Self { pid: holder.pid.0, padding: 0, used: holder.bytes, gpu_instance, compute_instance }
    }
}

impl Entry for Process2 {
    fn pid(&self) -> Pid {
        Pid(self.pid)
    }
    fn holding(self, used: u64) -> Self {
        Self { used, ..self }
    }
}

impl Entry for ProcessDetail {
    fn pid(&self) -> Pid {
        Pid(self.pid)
    }
    fn holding(self, used: u64) -> Self {
        Self { used, ..self }
    }
}

impl Entry for UtilizationSample {
    fn pid(&self) -> Pid {
        Pid(self.pid)
    }
    fn working(mut self, change: impl Fn(u32) -> u32) -> Self {
        let [multiprocessors, ..] = &mut self.percent;
        *multiprocessors = change(*multiprocessors);
        self
    }
}

impl Entry for Sample {
    fn pid(&self) -> Pid {
        Pid(self.pid)
    }
    fn working(mut self, change: impl Fn(u32) -> u32) -> Self {
        let [multiprocessors, ..] = &mut self.percent;
        *multiprocessors = change(*multiprocessors);
        self
    }
}

/// The grant's processes that hold something, exited processes left out.
fn holders(ledger: Option<Ledger>) -> impl Iterator<Item = Holder> + Clone {
    if let Some(ledger) = ledger {
        // Another process at it is as good.
        let _done_or_elsewhere = ledger.look();
    }
    ledger.into_iter().flat_map(|ledger| life::holders(ledger.usage()))
}

/// Whether a process is the grant's, and living.
pub(crate) fn is_ours(ledger: Option<Ledger>, pid: Pid) -> bool {
    let _errno = KeepErrno::new();
    holders(ledger).any(|holder| holder.pid == pid)
}

/// Writes the list into `room` places; how many there are, and NVML's answer.
pub(crate) fn write<E: AccountedEntry>(
    ledger: Option<Ledger>,
    room: u32,
    list: *mut E,
    instances: Instances,
) -> (u32, i32) {
    let _errno = KeepErrno::new();
    let room = if list.is_null() { 0 } else { usize::try_from(room).unwrap_or(0) };
    let mut count = 0_usize;
    for holder in holders(ledger) {
        if count < room {
            // SAFETY: below the number of places that the caller said the list has.
            unsafe { list.add(count).write_unaligned(E::of(holder, instances)) };
        }
        count += 1;
    }
    (u32::try_from(count).unwrap_or(0), if count > room { INSUFFICIENT_SIZE } else { SUCCESS })
}

/// Keeps the grant's processes of a list of `count`, in their order; how many they are.
pub(crate) fn keep_ours<E: Entry>(ledger: Option<Ledger>, count: u32, list: *mut E) -> u32 {
    let _errno = KeepErrno::new();
    let holders = holders(ledger);
    let mut kept = 0;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: NVML has just written that many entries.
        let entry = unsafe { list.add(index).read_unaligned() };
        let Some(holder) = holders.clone().find(|holder| holder.pid == entry.pid()) else { continue };
        // SAFETY: NVML has just written more entries than are kept.
        unsafe { list.add(kept).write_unaligned(entry.holding(holder.bytes)) };
        kept += 1;
    }
    u32::try_from(kept).unwrap_or(0)
}

/// Has a list written elsewhere that NVML has some `found` entries for, and the grant's of these into the `room` places of a
/// caller's; how many there are, and NVML's answer.
pub(crate) fn read_ours<E: Entry>(
    ledger: Option<Ledger>,
    mut found: u32,
    (room, list): (u32, *mut E),
    ask: &dyn Fn(*mut u32, *mut E) -> i32,
) -> (u32, i32) {
    let (mut kept, mut answer) = (0, INSUFFICIENT_SIZE);
    for _ in 0..TRIES_MAX {
        let places = found.saturating_add(SPARE);
        answer = NO_MEMORY;
        let bytes = usize::try_from(places).unwrap_or(usize::MAX).saturating_mul(size_of::<E>());
        with_bytes(bytes, |bytes| {
            let own = bytes.as_mut_ptr().cast::<E>();
            found = places;
            answer = ask(&raw mut found, own);
            if answer == SUCCESS {
                kept = keep_ours(ledger, found.min(places), own);
                copy(own, kept, (room, list));
            }
        });
        if answer != INSUFFICIENT_SIZE {
            break;
        }
    }
    let is_short = kept > 0 && (list.is_null() || kept > room);
    (kept, if answer == SUCCESS && is_short { INSUFFICIENT_SIZE } else { answer })
}

/// Copies entries to where there is room for all of them.
fn copy<E: Entry>(entries: *const E, count: u32, (room, list): (u32, *mut E)) {
    if list.is_null() || count > room {
        return;
    }
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller has just had that many entries written.
        let entry = unsafe { entries.add(index).read_unaligned() };
        // SAFETY: below the number of places that the caller said the list has.
        unsafe { list.add(index).write_unaligned(entry) };
    }
}

/// Shows the use of the multiprocessors as a part of the granted time.
pub(crate) fn show_as_share<E: Entry>(limits: &Limits, count: u32, list: *mut E) {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller has just had that many entries written.
        let place = unsafe { list.add(index) };
        // SAFETY: one of the entries that were just written.
        let entry = unsafe { place.read_unaligned() };
        // SAFETY: one of the entries in the caller's list.
        unsafe { place.write_unaligned(entry.working(|percent| shown::of_share(limits, percent))) };
    }
}
