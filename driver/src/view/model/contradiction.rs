//! Where the driver contradicts what a share's usage file says. Its tenant writes that file, so it can lower the totals or raise the
//! credit by which the shim admits its calls.

use aliquot_abi::limits::{ComputePolicy, Limits, MemoryLimit};
use aliquot_core::units::{Bytes, Cores};

use super::looks::sum;
use super::rate::TimeRate;
use super::rate::of_card;
use super::rows::{ProcessRow, Shim};
use crate::region::UsageCopy;

/// Difference between accounting and driver that each process may have: four times what was measured on an H100 (4 MiB).
const SLACK: u64 = 16 << 20;
/// Shortest time over which device time is judged: launches of unknown length are billed late.
const INTERVAL_MIN_NANOS: u128 = 900_000_000;
/// Device time beyond the grant that counts: half of the grant, and five percent of the card.
const OVER: (u64, u64) = (2, 50_000);

/// Device time of a share's processes by the driver, between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DriverTime {
    ppm: u64,
    nanos: u128,
}

// === impl DriverTime ===

impl DriverTime {
    /// Adds a process; `nanos` is the time between the looks.
    pub(super) fn add(&mut self, rate: TimeRate, nanos: u128) {
        if let TimeRate::Ppm(ppm) = rate {
            self.ppm = self.ppm.saturating_add(ppm);
            self.nanos = nanos;
        }
    }
}

/// What contradicts the usage file; `None`: nothing does.
pub(super) fn of(
    limits: &Limits,
    usage: &UsageCopy,
    processes: &[ProcessRow],
    time: DriverTime,
    part: Option<Cores>,
) -> Option<String> {
    memory(limits, usage, processes).or_else(|| compute(limits, time, part))
}

fn memory(limits: &Limits, usage: &UsageCopy, processes: &[ProcessRow]) -> Option<String> {
    let reported: Vec<&ProcessRow> = processes
        .iter()
        .filter(|process| process.driver.is_some() && process.shim != Shim::Missing)
        .collect();
    let held = |all: bool| {
        // A context alone is charged with the first allocation in it.
        let counts = |process: &&&ProcessRow| all || process.books.is_some_and(|books| books.0 > 0);
        sum(reported.iter().filter(counts).filter_map(|process| process.driver))
    };
    let slack = SLACK.saturating_mul(u64::try_from(reported.len()).unwrap_or(u64::MAX));
    let Bytes(counted) = usage.total;
    let MemoryLimit::Bytes(limit) = limits.memory else { return None };
    let (all, charged) = (held(true).0, held(false).0);
    if all > limit.saturating_add(slack) || charged > counted.saturating_add(slack) {
        let mib = |bytes: u64| bytes >> 20;
        return Some(format!(
            "the driver reports {} MiB of its processes, its usage file {} MiB, its limit is {} MiB: its tenant lowered the \
             totals, or uses memory that the shim does not charge",
            mib(all),
            mib(counted),
            mib(limit)
        ));
    }
    None
}

/// `part`: how much of the card the limits are limits of.
fn compute(limits: &Limits, time: DriverTime, part: Option<Cores>) -> Option<String> {
    let granted = u64::from(limits.granted_ppm);
    let most = granted.saturating_add(granted / OVER.0).saturating_add(OVER.1);
    let is_over = limits.policy == ComputePolicy::Cap && time.nanos >= INTERVAL_MIN_NANOS && time.ppm > most;
    let percent = |ppm: u64| of_card(ppm, part.unwrap_or(Cores::ALL)) / 10_000;
    is_over.then(|| {
        format!(
            "the driver reports {} % of the card's time for its processes, granted are {} %: its tenant raised its credit, or its \
             launches are not billed yet",
            percent(time.ppm),
            percent(granted)
        )
    })
}
