//! Memory, utilisation and processes, from the cards' usage accounting.

use super::pointer::Out;
use crate::code::{Answer, INSUFFICIENT_SIZE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, VERSION_MISMATCH};
use crate::library;
use aliquot_sim_device::{Card, ListedProcess, MigDevice, MigMode, Process, ProcessList};

/// The vendor's memory information, first version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// The second version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryV2 {
    version: u32,
    padding: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// The vendor's process, first version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessV1 {
    pid: u32,
    padding: u32,
    used: u64,
}

/// Second and third version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessV2 {
    pid: u32,
    padding: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// The vendor's utilisation.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Utilization {
    gpu: u32,
    memory: u32,
}

/// What the vendor keeps of a process, first version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Accounting {
    percent: [u32; 2],
    most: u64,
    millis: u64,
    start: u64,
    running: u32,
    reserved: [u32; 5],
}

/// The second version, in which the process is named.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AccountingV2 {
    pid: u32,
    running: u32,
    percent: [u32; 2],
    most: u64,
    samples: u32,
    sums: [u64; 2],
    millis: u64,
    start: u64,
}

/// The vendor's limits of a container's memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryLimits {
    name_space: u64,
    soft: u64,
    hard: u64,
    used: u64,
}

/// The vendor's process in detail.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Detail {
    process: ProcessV2,
    protected: u64,
}

/// The vendor's list of processes in detail.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DetailList {
    version: u32,
    mode: u32,
    count: u32,
    list: Out<Detail>,
}

const _: () = assert!(size_of::<MemoryLimits>() == 32 && size_of::<Detail>() == 32);
const _: () = assert!(size_of::<MemoryV2>() == 40 && size_of::<ProcessV2>() == 24);

/// A structure says its size and version in its first field.
const MEMORY_V2: u32 = 40 | 2 << 24;
const DETAIL_LIST: u32 = 24 | 1 << 24;
/// Modes of the list in detail that have compute processes: these alone, and all.
const COMPUTE_MODES: [u32; 2] = [0, 3];
/// No MIG instance.
const NO_INSTANCE: u32 = u32::MAX;

/// A process with the instances that it is in.
struct InstanceProcess {
    process: Process,
    instances: Option<(u32, u32)>,
}

/// A card, a MIG device, or all GPU instances of a card in MIG mode, which only some may look at.
fn parts(handle: u64) -> Answer<Vec<(Card, Option<MigDevice>)>> {
    let (card, device) = library::part(handle)?;
    if device.is_some() || card.facts().mig != MigMode::On {
        return Ok(vec![(card, device)]);
    }
    library::privileged()?;
    let mut devices = card.mig_devices();
    // Compute instances of one GPU instance share its memory.
    devices.dedup_by_key(|device| device.gpu.serial);
    // One that was destroyed just now has nothing.
    let part = |device: MigDevice| Some((card.mig_card(device).ok()?, Some(device)));
    Ok(devices.into_iter().filter_map(part).collect())
}

/// What of a card its driver keeps; a MIG device's is the whole card's.
fn reserved(handle: u64) -> Answer<u64> {
    let (card, device) = library::part(handle)?;
    Ok(if device.is_none() { card.node().reserved_bytes } else { 0 })
}

/// What the driver keeps is used, as the first version has it.
fn memory(handle: u64) -> Answer<Memory> {
    let used = |(card, _): &(Card, Option<MigDevice>)| {
        // Reaps at once: a caller may have killed a process just before this query.
        card.reap();
        card.in_use()
    };
    let used = parts(handle)?.iter().map(used).sum::<u64>() + reserved(handle)?;
    let total = library::part(handle)?.0.facts().memory_bytes + reserved(handle)?;
    Ok(Memory { total, free: total.saturating_sub(used), used })
}

/// A card with utilisation figures: not one in MIG mode, nor a part of one.
pub(super) fn sampled(handle: u64) -> Answer<&'static Card> {
    let card = library::card(handle)?;
    if card.facts().mig == MigMode::On { Err(NOT_SUPPORTED) } else { Ok(card) }
}

/// What is kept of a process; of those that ended nothing is.
fn accounting(handle: u64, pid: u32) -> Answer<Accounting> {
    let found = on_card(handle)?.into_iter().map(|placed| placed.process);
    let found = found.into_iter().find(|process| process.pid == pid).ok_or(NOT_FOUND)?;
    let percent = [found.utilization, 0];
    Ok(Accounting { percent, most: found.held_bytes, millis: 0, start: 0, running: 1, reserved: [0; 5] })
}

/// All processes with a context or any memory there.
fn on_card(handle: u64) -> Answer<Vec<InstanceProcess>> {
    let mut found = Vec::new();
    for (card, device) in parts(handle)? {
        let instances = device.map(|device| (device.gpu.id, device.compute.id));
        let processes = card.processes().into_iter().filter(|process| process.held_bytes > 0);
        found.extend(processes.map(|process| InstanceProcess { process, instances }));
    }
    Ok(found)
}

/// Fills a list in, or says how long it would have to be.
pub(super) fn fill<T: Copy>(found: &[T], count: Out<u32>, list: Out<T>) -> Answer {
    let room = usize::try_from(count.get()?).map_err(|_| INVALID_VALUE)?;
    count.set(u32::try_from(found.len()).map_err(|_| INVALID_VALUE)?)?;
    if room < found.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    found.iter().enumerate().try_for_each(|(index, item)| list.set_at(index, *item))
}

fn first_version(InstanceProcess { process, .. }: &InstanceProcess) -> ProcessV1 {
    ProcessV1 { pid: process.pid, padding: 0, used: process.held_bytes }
}

fn second_version(InstanceProcess { process, instances }: &InstanceProcess) -> ProcessV2 {
    let (gpu_instance, compute_instance) = instances.unwrap_or((NO_INSTANCE, NO_INSTANCE));
    ProcessV2 { pid: process.pid, padding: 0, used: process.held_bytes, gpu_instance, compute_instance }
}

fn compute_v1(handle: u64, count: Out<u32>, list: Out<ProcessV1>) -> Answer {
    fill(&on_card(handle)?.iter().map(first_version).collect::<Vec<_>>(), count, list)
}

fn compute_v2(handle: u64, count: Out<u32>, list: Out<ProcessV2>) -> Answer {
    fill(&on_card(handle)?.iter().map(second_version).collect::<Vec<_>>(), count, list)
}

/// Processes of this kind on a whole card, from `node.toml`.
fn listed(handle: u64, does: ProcessList) -> Answer<Vec<ListedProcess>> {
    let (card, device) = library::part(handle)?;
    let is_one = |one: &&ListedProcess| device.is_none() && one.card == card.index() && one.does == does;
    Ok(card.node().listed.iter().filter(is_one).copied().collect())
}

fn others_v1(handle: u64, does: ProcessList, count: Out<u32>, list: Out<ProcessV1>) -> Answer {
    let entry = |one: ListedProcess| ProcessV1 { pid: one.pid, padding: 0, used: one.bytes };
    fill(&listed(handle, does)?.into_iter().map(entry).collect::<Vec<_>>(), count, list)
}

fn others_v2(handle: u64, does: ProcessList, count: Out<u32>, list: Out<ProcessV2>) -> Answer {
    let (gpu_instance, compute_instance) = (NO_INSTANCE, NO_INSTANCE);
    let entry = |one: ListedProcess| ProcessV2 {
        pid: one.pid,
        padding: 0,
        used: one.bytes,
        gpu_instance,
        compute_instance,
    };
    fill(&listed(handle, does)?.into_iter().map(entry).collect::<Vec<_>>(), count, list)
}

exports! {
    fn nvmlDeviceGetMemoryInfo(handle: u64, info: Out<Memory>) { info.set(memory(handle)?) }
    fn nvmlDeviceGetMemoryInfo_v2(handle: u64, info: Out<MemoryV2>) {
        if info.cast::<u32>().get()? != MEMORY_V2 {
            return Err(VERSION_MISMATCH);
        }
        let (Memory { total, free, used }, reserved) = (memory(handle)?, reserved(handle)?);
        info.set(MemoryV2 { version: MEMORY_V2, padding: 0, total, reserved, free, used: used - reserved })
    }
    fn nvmlDeviceGetMemoryLimits_v1(handle: u64, limits: Out<MemoryLimits>) {
        let name_space = limits.get()?.name_space;
        // No limit is ever set.
        let used = memory(handle)?.used - reserved(handle)?;
        limits.set(MemoryLimits { name_space, soft: u64::MAX, hard: u64::MAX, used })
    }
    fn nvmlDeviceGetRunningProcessDetailList(handle: u64, details: Out<DetailList>) {
        let asked = details.get()?;
        if asked.version != DETAIL_LIST {
            return Err(VERSION_MISMATCH);
        }
        let mut found = on_card(handle)?;
        found.retain(|_| COMPUTE_MODES.contains(&asked.mode));
        details.set(DetailList { count: u32::try_from(found.len()).map_err(|_| INVALID_VALUE)?, ..asked })?;
        if usize::try_from(asked.count).map_err(|_| INVALID_VALUE)? < found.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        let entry = |placed: &InstanceProcess| Detail { process: second_version(placed), protected: 0 };
        found.iter().enumerate().try_for_each(|(index, process)| asked.list.set_at(index, entry(process)))
    }
    fn nvmlDeviceGetBAR1MemoryInfo(handle: u64, info: Out<Memory>) {
        let total = library::card(handle)?.facts().memory_bytes.next_power_of_two();
        info.set(Memory { total, free: total, used: 0 })
    }
    fn nvmlDeviceGetUtilizationRates(handle: u64, rates: Out<Utilization>) {
        rates.set(Utilization { gpu: sampled(handle)?.utilization(), memory: 0 })
    }
    fn nvmlDeviceGetAccountingMode(handle: u64, mode: Out<u32>) {
        library::card(handle)?;
        mode.set(1)
    }
    fn nvmlDeviceGetAccountingBufferSize(handle: u64, places: Out<u32>) {
        library::card(handle)?;
        places.set(4_000)
    }
    fn nvmlDeviceGetAccountingPids(handle: u64, count: Out<u32>, pids: Out<u32>) {
        fill(&on_card(handle)?.iter().map(|placed| placed.process.pid).collect::<Vec<_>>(), count, pids)
    }
    fn nvmlDeviceGetAccountingStats(handle: u64, pid: u32, stats: Out<Accounting>) {
        stats.set(accounting(handle, pid)?)
    }
    fn nvmlDeviceGetAccountingStats_v2(handle: u64, stats: Out<AccountingV2>) {
        let pid = stats.cast::<u32>().get()?;
        let Accounting { percent, most, millis, start, running, .. } = accounting(handle, pid)?;
        stats.set(AccountingV2 { pid, running, percent, most, samples: 0, sums: [0; 2], millis, start })
    }

    fn nvmlDeviceGetComputeRunningProcesses(handle: u64, count: Out<u32>, list: Out<ProcessV1>) {
        compute_v1(handle, count, list)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(handle: u64, count: Out<u32>, list: Out<ProcessV2>) {
        compute_v2(handle, count, list)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(handle: u64, count: Out<u32>, list: Out<ProcessV2>) {
        compute_v2(handle, count, list)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(handle: u64, count: Out<u32>, list: Out<ProcessV1>) {
        others_v1(handle, ProcessList::Graphics, count, list)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(handle: u64, count: Out<u32>, list: Out<ProcessV2>) {
        others_v2(handle, ProcessList::Graphics, count, list)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(handle: u64, count: Out<u32>, list: Out<ProcessV2>) {
        others_v2(handle, ProcessList::Graphics, count, list)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses(handle: u64, count: Out<u32>, list: Out<ProcessV1>) {
        others_v1(handle, ProcessList::Mps, count, list)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(handle: u64, count: Out<u32>, list: Out<ProcessV2>) {
        others_v2(handle, ProcessList::Mps, count, list)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(handle: u64, count: Out<u32>, list: Out<ProcessV2>) {
        others_v2(handle, ProcessList::Mps, count, list)
    }
}
