//! What NVML tells a container about its memory and processes: see `shim/src/shown.rs`. Cards stay countable and visible as they
//! are; BAR1 is address space and not memory, and is left alone.

// UNSAFETY: structures of the caller are read and written.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use core::ffi::{c_char, c_void};

use crate::accounting::account::{Account, Bytes, Ledger};
use crate::grants::CardStatus;
use crate::loader::vendor::SUCCESS;
use crate::reporting::monitored::{self, Handle};
use crate::reporting::processes::{
    self, AccountedEntry, Entry, Process1, Process2, ProcessDetail, ProcessId, Sample, UtilizationSample,
};
use crate::reporting::shown::Memory;
use crate::sys::process::Pid;

/// nvmlMemory_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Memory1 {
    total: u64,
    free: u64,
    used: u64,
}

/// nvmlMemory_v2_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Memory2 {
    version: u32,
    padding: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// nvmlGetMemoryLimits_v1_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryLimits {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

/// nvmlAccountingStats_t: figures of one process, the second version with its number before them.
type Figures1 = [u64; 7];
type Figures2 = [u64; 8];

/// nvmlProcessDetailList_v1_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DetailList {
    version: u32,
    mode: u32,
    count: u32,
    list: *mut ProcessDetail,
}

/// nvmlProcessesUtilizationInfo_v1_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Utilizations {
    version: u32,
    count: u32,
    since: u64,
    list: *mut Sample,
}

/// NVML_ERROR_NOT_FOUND
const NOT_FOUND: i32 = 6;

const _: () = assert!(size_of::<Utilizations>() == 24);
const _: () = assert!(size_of::<Memory1>() == 24 && size_of::<Memory2>() == 40);
const _: () = assert!(size_of::<MemoryLimits>() == 32 && size_of::<DetailList>() == 24);

hooks! {
    Nvml, Memory;
    fn nvmlDeviceGetMemoryInfo(device: *mut c_void, memory: *mut Memory1) {
        let answer = nvmlDeviceGetMemoryInfo::real(device, memory);
        change(answer, memory, |found| {
            let shown = as_granted(Handle(device), found.total, found.free)?;
            Some(Memory1 { total: shown.total.0, free: shown.free.0, used: shown.used().0 })
        });
        answer
    }
    fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut Memory2) {
        let answer = nvmlDeviceGetMemoryInfo_v2::real(device, memory);
        change(answer, memory, |found| {
            let shown = as_granted(Handle(device), found.total, found.free)?;
            // What the driver keeps for itself is no part of a grant.
            let (total, free, used) = (shown.total.0, shown.free.0, shown.used().0);
            Some(Memory2 { total, reserved: 0, free, used, ..found })
        });
        answer
    }
    fn nvmlDeviceGetMemoryLimits_v1(device: *mut c_void, limits: *mut MemoryLimits) {
        let answer = nvmlDeviceGetMemoryLimits_v1::real(device, limits);
        change(answer, limits, |found| {
            let (limit, used) = match monitored::account(Handle(device)) {
                Account::Uncounted => return None,
                Account::Counted(ledger) => {
                    crate::memory::pools::refresh();
                    let limit = ledger.limit();
                    (limit, Bytes(limit.0.saturating_sub(ledger.free().0)))
                }
                Account::Closed => (Bytes(0), Bytes(0)),
            };
            Some(MemoryLimits {
                soft: found.soft.min(limit.0),
                hard: found.hard.min(limit.0),
                used: used.0,
                ..found
            })
        });
        answer
    }
    fn nvmlDeviceGetComputeRunningProcesses(device: *mut c_void, count: *mut u32, list: *mut Process1) {
        computing(Handle(device), count, list, nvmlDeviceGetComputeRunningProcesses::real)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: *mut c_void, count: *mut u32, list: *mut Process2) {
        computing(Handle(device), count, list, nvmlDeviceGetComputeRunningProcesses_v2::real)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: *mut c_void, count: *mut u32, list: *mut Process2) {
        computing(Handle(device), count, list, nvmlDeviceGetComputeRunningProcesses_v3::real)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(device: *mut c_void, count: *mut u32, list: *mut Process1) {
        listed(Handle(device), count, list, nvmlDeviceGetGraphicsRunningProcesses::real)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: *mut c_void, count: *mut u32, list: *mut Process2) {
        listed(Handle(device), count, list, nvmlDeviceGetGraphicsRunningProcesses_v2::real)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: *mut c_void, count: *mut u32, list: *mut Process2) {
        listed(Handle(device), count, list, nvmlDeviceGetGraphicsRunningProcesses_v3::real)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: *mut c_void, count: *mut u32, list: *mut Process1) {
        listed(Handle(device), count, list, nvmlDeviceGetMPSComputeRunningProcesses::real)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: *mut c_void, count: *mut u32, list: *mut Process2) {
        listed(Handle(device), count, list, nvmlDeviceGetMPSComputeRunningProcesses_v2::real)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: *mut c_void, count: *mut u32, list: *mut Process2) {
        listed(Handle(device), count, list, nvmlDeviceGetMPSComputeRunningProcesses_v3::real)
    }
    fn nvmlDeviceGetRunningProcessDetailList(device: *mut c_void, details: *mut DetailList) {
        if details.is_null() {
            return nvmlDeviceGetRunningProcessDetailList::real(device, details);
        }
        // SAFETY: not null: the caller's structure. What is read is used once NVML accepted it as such a one.
        let places = unsafe { Places::of(&raw mut (*details).count, (*details).list) };
        ours_alone(Handle(device), &places, &|count, list| {
            // SAFETY: the caller's structure, which is there until this call returns.
            unsafe { ((*details).count, (*details).list) = (*count, list) };
            let answer = nvmlDeviceGetRunningProcessDetailList::real(device, details);
            // SAFETY: the caller's structure, which is there until this call returns.
            unsafe { (*count, (*details).list) = ((*details).count, places.list) };
            answer
        })
    }
    fn nvmlDeviceGetProcessUtilization(
        device: *mut c_void,
        list: *mut UtilizationSample,
        count: *mut u32,
        since: u64,
    ) {
        work_of_ours(Handle(device), &Places::of(count, list), &|count, list| {
            nvmlDeviceGetProcessUtilization::real(device, list, count, since)
        })
    }
    fn nvmlDeviceGetProcessesUtilizationInfo(device: *mut c_void, info: *mut Utilizations) {
        if info.is_null() {
            return nvmlDeviceGetProcessesUtilizationInfo::real(device, info);
        }
        // SAFETY: not null: the caller's structure. What is read is used once NVML accepted it as such a one.
        let places = unsafe { Places::of(&raw mut (*info).count, (*info).list) };
        work_of_ours(Handle(device), &places, &|count, list| {
            // SAFETY: the caller's structure, which is there until this call returns.
            unsafe { ((*info).count, (*info).list) = (*count, list) };
            let answer = nvmlDeviceGetProcessesUtilizationInfo::real(device, info);
            // SAFETY: the caller's structure, which is there until this call returns.
            unsafe { (*count, (*info).list) = ((*info).count, places.list) };
            answer
        })
    }
    fn nvmlDeviceGetAccountingPids(device: *mut c_void, count: *mut u32, pids: *mut ProcessId) {
        listed(Handle(device), count, pids, nvmlDeviceGetAccountingPids::real)
    }
    fn nvmlDeviceGetAccountingStats(device: *mut c_void, pid: u32, figures: *mut Figures1) {
        if is_shown(Handle(device), pid) {
            return nvmlDeviceGetAccountingStats::real(device, pid, figures);
        }
        let mut hidden: Figures1 = [0; 7];
        not_found(nvmlDeviceGetAccountingStats::real(device, pid, &raw mut hidden))
    }
    fn nvmlDeviceGetAccountingStats_v2(device: *mut c_void, figures: *mut Figures2) {
        if figures.is_null() {
            return nvmlDeviceGetAccountingStats_v2::real(device, figures);
        }
        // SAFETY: not null: the caller's structure, which begins with the process.
        let pid = unsafe { figures.cast::<u32>().read_unaligned() };
        if is_shown(Handle(device), pid) {
            return nvmlDeviceGetAccountingStats_v2::real(device, figures);
        }
        // SAFETY: not null: the caller's structure, whole by the vendor's contract.
        let mut hidden = unsafe { figures.read_unaligned() };
        not_found(nvmlDeviceGetAccountingStats_v2::real(device, &raw mut hidden))
    }
    fn nvmlShutdown() {
        let answer = nvmlShutdown::real();
        monitored::forget();
        answer
    }
}

/// Whether a process of a card is told about.
fn is_shown(card: Handle, pid: u32) -> bool {
    match monitored::account(card) {
        Account::Uncounted => true,
        Account::Counted(ledger) => processes::is_ours(Some(ledger), Pid(pid)),
        Account::Closed => false,
    }
}

/// NVML's answer about a process that is not told about: its refusals stay its own.
const fn not_found(answer: i32) -> i32 {
    if answer == SUCCESS { NOT_FOUND } else { answer }
}

/// Lets `with` replace what NVML has just written, where it did.
fn change<T: Copy>(answer: i32, place: *mut T, with: impl FnOnce(T) -> Option<T>) {
    if answer != SUCCESS || place.is_null() {
        return;
    }
    // SAFETY: not null, and NVML has just written there.
    let found = unsafe { place.read_unaligned() };
    if let Some(shown) = with(found) {
        // SAFETY: not null, and NVML has just written there.
        unsafe { place.write_unaligned(shown) };
    }
}

fn as_granted(card: Handle, total: u64, free: u64) -> Option<Memory> {
    crate::memory::pools::refresh();
    Memory { total: Bytes(total), free: Bytes(free) }.as_granted(monitored::account(card))
}

type List<E> = fn(*mut c_void, *mut u32, *mut E) -> i32;

/// The processes that compute: those of accounting, which know what the container's processes hold also where the driver names
/// them by other numbers, or not at all.
fn computing<E: AccountedEntry>(card: Handle, count: *mut u32, list: *mut E, real: List<E>) -> i32 {
    match monitored::account(card) {
        Account::Uncounted => real(card.0, count, list),
        Account::Counted(ledger) => booked(card, count, list, real, Some(ledger)),
        Account::Closed => booked(card, count, list, real, None),
    }
}

fn booked<E: AccountedEntry>(
    card: Handle,
    count: *mut u32,
    list: *mut E,
    real: List<E>,
    ledger: Option<Ledger>,
) -> i32 {
    let mut others = 0;
    let answer = real(card.0, &raw mut others, core::ptr::null_mut());
    // The driver's refusals stay its own: of a handle that is none, of a card that was lost.
    if count.is_null() || (answer != SUCCESS && answer != processes::INSUFFICIENT_SIZE) {
        return real(card.0, count, list);
    }
    crate::memory::pools::refresh();
    // SAFETY: not null: the caller's number of places, in and out.
    let room = unsafe { count.read() };
    let (found, answer) = processes::write(ledger, room, list, monitored::instances(card));
    // SAFETY: not null: the caller's number of places, in and out.
    unsafe { count.write(found) };
    answer
}

/// A caller's list, and how many entries it has room for.
struct Places<E> {
    count: *mut u32,
    list: *mut E,
    room: u32,
}

impl<E> Places<E> {
    fn of(count: *mut u32, list: *mut E) -> Self {
        // SAFETY: not null: the caller's number of places.
        let room = if count.is_null() { 0 } else { unsafe { count.read_unaligned() } };
        Self { count, list, room }
    }
}

/// A list of NVML's with what is the container's alone.
fn listed<E: Entry>(card: Handle, count: *mut u32, list: *mut E, real: List<E>) -> i32 {
    ours_alone(card, &Places::of(count, list), &|count, list| real(card.0, count, list))
}

/// What NVML answers to `ask`, with what is not the container's left out: also of how many there are.
fn ours_alone<E: Entry>(card: Handle, places: &Places<E>, ask: &dyn Fn(*mut u32, *mut E) -> i32) -> i32 {
    let answer = ask(places.count, places.list);
    let ledger = match monitored::account(card) {
        Account::Uncounted => return answer,
        Account::Counted(ledger) => Some(ledger),
        Account::Closed => None,
    };
    if places.count.is_null() || !matches!(answer, SUCCESS | processes::INSUFFICIENT_SIZE) {
        return answer;
    }
    crate::memory::pools::refresh();
    // SAFETY: not null, and NVML has just written it.
    let found = unsafe { places.count.read_unaligned() };
    let (kept, answer) = if answer == SUCCESS && (found == 0 || !places.list.is_null()) {
        (processes::keep_ours(ledger, found, places.list), answer)
    } else {
        // NVML counted all processes.
        processes::read_ours(ledger, found, (places.room, places.list), ask)
    };
    // SAFETY: not null: the caller's number of places, which NVML has just written.
    unsafe { places.count.write_unaligned(kept) };
    answer
}

/// The same for a list of what processes did: as parts of the granted time, where time is limited.
fn work_of_ours<E: Entry>(card: Handle, places: &Places<E>, ask: &dyn Fn(*mut u32, *mut E) -> i32) -> i32 {
    let answer = ours_alone(card, places, ask);
    if answer != SUCCESS || places.count.is_null() {
        return answer;
    }
    // SAFETY: not null, and NVML or we have just written it.
    let found = unsafe { places.count.read_unaligned() };
    if let CardStatus::Granted(grant) = monitored::standing(card) {
        processes::show_as_share(&grant.limits(), found, places.list);
    }
    // NVML's way to say that no process did anything.
    if found == 0 && !matches!(monitored::account(card), Account::Uncounted) { NOT_FOUND } else { answer }
}
