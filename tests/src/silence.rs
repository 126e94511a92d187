//! Whether a process sleeps.

use std::time::Duration;

use crate::local::wait_for;

/// How often the threads of a process have gone to sleep of their own accord.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.map(of).sum()
}

/// No thread of a process wakes up for two seconds. A process that polls every 50 ms never is like that.
///
/// # Panics
/// Something does, again and again.
pub fn falls_silent(what: &str, pid: u32) {
    wait_for(what, || {
        let before = sleeps(pid);
        std::thread::sleep(Duration::from_secs(2));
        sleeps(pid) == before
    });
}
