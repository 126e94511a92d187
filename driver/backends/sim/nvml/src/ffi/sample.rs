//! What was used of a card's time lately, as samples: of the card, and of processes. Cards in MIG mode have none.

use super::pointer::Out;
use super::usage::{fill, sampled};
use crate::code::{Answer, INSUFFICIENT_SIZE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, VERSION_MISMATCH};

/// nvmlSample_t, with the value as a number of 32 bits in a place for 64
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Sample {
    micros: u64,
    value: u64,
}

/// nvmlProcessUtilizationSample_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OfProcess {
    pid: u32,
    padding: u32,
    micros: u64,
    /// Multiprocessors, memory, encoder, decoder.
    percent: [u32; 4],
}

/// nvmlProcessUtilizationInfo_v1_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InfoOfProcess {
    micros: u64,
    pid: u32,
    /// Multiprocessors, memory, encoder, decoder, images, optical flow.
    percent: [u32; 6],
    padding: u32,
}

/// nvmlProcessesUtilizationInfo_v1_t
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OfProcesses {
    version: u32,
    count: u32,
    since: u64,
    list: Out<InfoOfProcess>,
}

const _: () = assert!(size_of::<Sample>() == 16 && size_of::<OfProcess>() == 32);
const _: () = assert!(size_of::<InfoOfProcess>() == 40 && size_of::<OfProcesses>() == 24);

/// A structure says its size and version in its first field.
const OF_PROCESSES: u32 = 24 | 1 << 24;
/// NVML_VALUE_TYPE_UNSIGNED_INT
const UNSIGNED: u32 = 1;
/// Kinds of samples that nvml.h has numbers for, and of these the card's time and its memory's.
const KINDS: u32 = 10;
const COMPUTE: u32 = 1;
const MEMORY: u32 = 2;

/// The kept samples of a kind, oldest first.
fn samples(handle: u64, kind: u32) -> Answer<Vec<Sample>> {
    if kind >= KINDS {
        return Err(INVALID_VALUE);
    }
    let card = sampled(handle)?;
    if ![COMPUTE, MEMORY].contains(&kind) {
        return Err(NOT_SUPPORTED);
    }
    // As in nvmlDeviceGetUtilizationRates, kernels and copies take time, and none of the memory's.
    let value = |percent: u32| if kind == COMPUTE { percent.into() } else { 0 };
    let record = card.utilization_record().into_iter();
    Ok(record.map(|(ended, percent)| Sample { micros: ended / 1_000, value: value(percent) }).collect())
}

/// Percent of the card's time that each process had, and the end of that time; an error where nothing is newer than `since`.
fn of_processes(handle: u64, since: u64) -> Answer<(u64, Vec<(u32, u32)>)> {
    let (ended, found) =
        sampled(handle)?.process_samples(since.saturating_mul(1_000).saturating_add(999)).ok_or(NOT_FOUND)?;
    Ok((ended / 1_000, found))
}

exports! {
    fn nvmlDeviceGetSamples(
        handle: u64,
        kind: u32,
        since: u64,
        value_kind: Out<u32>,
        count: Out<u32>,
        list: Out<Sample>,
    ) {
        let kept = samples(handle, kind)?;
        let room = usize::try_from(count.get()?).map_err(|_| INVALID_VALUE)?;
        value_kind.set(UNSIGNED)?;
        if list.is_null() {
            return count.set(u32::try_from(kept.len()).map_err(|_| INVALID_VALUE)?);
        }
        if room == 0 {
            return Err(INVALID_VALUE);
        }
        // Those that follow what the caller has seen, so that it goes on behind them.
        let newer = kept.into_iter().filter(|sample| sample.micros > since).take(room).collect::<Vec<_>>();
        if newer.is_empty() {
            return Err(NOT_FOUND);
        }
        fill(&newer, count, list)
    }
    fn nvmlDeviceGetProcessUtilization(handle: u64, list: Out<OfProcess>, count: Out<u32>, since: u64) {
        let (micros, found) = of_processes(handle, since).inspect_err(|_| count.set_if_wanted(0))?;
        if list.is_null() {
            count.set(u32::try_from(found.len()).map_err(|_| INVALID_VALUE)?)?;
            return Err(INSUFFICIENT_SIZE);
        }
        let sample =
            |(pid, sm): (u32, u32)| OfProcess { pid, padding: 0, micros, percent: [sm, 0, 0, 0] };
        fill(&found.into_iter().map(sample).collect::<Vec<_>>(), count, list)
    }
    fn nvmlDeviceGetProcessesUtilizationInfo(handle: u64, info: Out<OfProcesses>) {
        let asked = info.get()?;
        if asked.version != OF_PROCESSES {
            return Err(VERSION_MISMATCH);
        }
        let (micros, found) = of_processes(handle, asked.since)?;
        info.set(OfProcesses { count: u32::try_from(found.len()).map_err(|_| INVALID_VALUE)?, ..asked })?;
        if asked.list.is_null() || usize::try_from(asked.count).map_err(|_| INVALID_VALUE)? < found.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        let entry = |(pid, sm): (u32, u32)| InfoOfProcess {
            micros,
            pid,
            percent: [sm, 0, 0, 0, 0, 0],
            padding: 0,
        };
        found.into_iter().enumerate().try_for_each(|(at, found)| asked.list.set_at(at, entry(found)))
    }
}
