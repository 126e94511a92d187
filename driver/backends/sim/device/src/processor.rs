//! Lack of processor: how long processes were ready to run and were not let.
//!
//! A simulated card runs by the clock. A program that the machine keeps off its processors submits no work
//! and releases nothing meanwhile. By the clock alone, that looks like a share that is too small or a late
//! guarantee. A test that measures on a shared machine reads here how much time the machine took.
//!
//! The kernel counts, for each thread, the time between ready and running (second word of `/proc/PID/task/TID/schedstat`),
//! and for each processor what the host of a virtual machine took from it (`steal` in `/proc/stat`, in hundredths of a
//! second). A kernel that keeps no such accounts shows no lack, and excuses nothing.

use std::collections::BTreeMap;
use std::time::Duration;

/// One tick of `/proc/stat`: its unit is fixed for programs, whatever the kernel's own is.
const TICK: Duration = Duration::from_millis(10);
/// Which number of a processor's line in `/proc/stat` is what the host took.
const STEAL: usize = 7;

/// Run delays of a process's threads, in nanoseconds.
type Delays = BTreeMap<u32, u64>;

/// What some processes lack from a moment on.
#[derive(Clone, Debug)]
pub struct Lack {
    begun: Vec<(u32, Delays)>,
    stolen: Vec<u64>,
}

// === impl Lack ===

impl Lack {
    /// Begins to count for these processes, with all their threads. One that is gone lacks nothing more.
    #[must_use]
    pub fn of(pids: impl IntoIterator<Item = u32>) -> Self {
        Self {
            begun: pids.into_iter().map(|pid| (pid, delays(pid))).collect(),
            stolen: stolen(&read("/proc/stat")),
        }
    }

    /// The most that one of them lacked: how long work that any of them would have done may have been left undone.
    #[must_use]
    pub fn most(&self) -> Duration {
        self.each().max().unwrap_or_default() + self.taken()
    }

    /// What they lacked together: how much later something may have happened in which each waits for another.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.each().sum::<Duration>() + self.taken()
    }

    fn each(&self) -> impl Iterator<Item = Duration> {
        self.begun.iter().map(|(pid, before)| since(before, &delays(*pid)))
    }

    /// What the host took from the processor that it took most from.
    fn taken(&self) -> Duration {
        let now = stolen(&read("/proc/stat"));
        let ticks = now.iter().zip(&self.stolen).map(|(now, before)| now.saturating_sub(*before)).max();
        TICK * u32::try_from(ticks.unwrap_or(0)).unwrap_or(0)
    }
}

/// What threads lacked from one reading to the next; one that was not there before, all its life.
fn since(before: &Delays, now: &Delays) -> Duration {
    let lacked = now.iter().map(|(thread, delay)| delay.saturating_sub(*before.get(thread).unwrap_or(&0)));
    Duration::from_nanos(lacked.sum())
}

fn delays(pid: u32) -> Delays {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let delay = |thread: std::fs::DirEntry| {
        let number = thread.file_name().to_str()?.parse().ok()?;
        Some((number, run_delay(&read(thread.path().join("schedstat")))?))
    };
    threads.filter_map(delay).collect()
}

fn run_delay(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// Of each processor, in order.
fn stolen(stat: &str) -> Vec<u64> {
    let lines = stat.lines().filter_map(|line| line.strip_prefix("cpu"));
    let processors = lines.filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let taken = |line: &str| line.split_whitespace().nth(1 + STEAL)?.parse().ok();
    processors.map(|line| taken(line).unwrap_or(0)).collect()
}

/// What is gone, or may not be read, says nothing.
fn read(path: impl AsRef<std::path::Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests;
