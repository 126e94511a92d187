//! The governor of local runs, with real processes: idle compute is lent and comes back, the dead give back, and whoever
//! governs may be killed. What is measured is the card's side.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_driver::region::{Seen, USAGE};
use aliquot_sim_device::Card;
use aliquot_sim_device::processor::Lack;
use aliquot_tests::generate::Random;
use aliquot_tests::local::{Local, aliquot, wait_for};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// In which shares are measured.
const WINDOW: Duration = Duration::from_millis(500);
/// Windows in which a share may become what it is to be.
const WINDOWS: usize = 24;
/// The first of them, in which it is on its way there.
const LEARNING: usize = 4;

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
}

/// Waits until a process has this part of the card's time, in percent, in a window of half a second. Where the machine is too
/// busy for that, most windows miss it by no more than the part of them in which a tenant or a governor had no processor.
fn share_becomes(card: &Card, pid: u32, from: u64, to: u64) {
    let mut missed = Vec::new();
    for _ in 0..WINDOWS {
        let before = card.moment();
        let lack = Lack::of(before.processes.iter().flat_map(|process| [process.pid, parent(process.pid)]));
        std::thread::sleep(WINDOW);
        let after = card.moment();
        let had = after.device_nanos(pid).saturating_sub(before.device_nanos(pid)) * 100;
        let share = had / (after.at - before.at);
        if (from..=to).contains(&share) {
            return;
        }
        let off = from.saturating_sub(share).max(share.saturating_sub(to));
        missed.push((share, off, lack.most().as_millis() * 100 / WINDOW.as_millis()));
    }
    let explained = |(_, off, lacked): &(u64, u64, u128)| u128::from(*off) <= *lacked;
    if missed.iter().skip(LEARNING).filter(|window| explained(window)).count() > (WINDOWS - LEARNING) / 2 {
        return println!("stood aside: the machine is too busy to show {from} to {to} %: {missed:?}");
    }
    panic!(
        "process {pid} has not {from} to {to} % of the card's time; had, off by, without processor: {missed:?}"
    );
}

/// Who started it: the supervisor, and so perhaps the governor.
fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn idle_compute_is_lent_and_taken_back_also_when_the_governor_is_killed() {
    let local = Local::new("h200");
    let work = ["work", "1000000"];
    let mut first = local.tenant(&["--memory", "1Gi", "--cores", "10", "--policy", "burst"], &work);
    let card = local.card();
    share_becomes(&card, first.pid, 90, 100);
    let capped = local.tenant(&["--memory", "1Gi", "--cores", "60"], &work);
    share_becomes(&card, capped.pid, 57, 63);
    share_becomes(&card, first.pid, 33, 43);
    // Whoever governs, it is the first one: its command goes on, the other supervisor takes over.
    let orphans_input = first.child.stdin.take();
    kill(first.child.id());
    first.child.wait().unwrap();
    let late = local.tenant(&["--memory", "1Gi", "--cores", "20", "--policy", "burst"], &work);
    share_becomes(&card, capped.pid, 57, 63);
    share_becomes(&card, late.pid, 23, 31);
    share_becomes(&card, first.pid, 9, 16);
    capped.end();
    late.end();
    drop(orphans_input);
    wait_for("the end of the orphan", || card.processes().is_empty());
    local.settle();
}

#[test]
fn what_killed_processes_held_is_back_within_a_tenth_of_a_second() {
    let local = Local::new("h200");
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let keeper = local.tenant(&["--memory", "8Gi"], &["fill", "256"]);
    let usage = || {
        let claims = std::fs::read_dir(local.state().join("grants")).unwrap().flatten();
        let shares = claims.flat_map(|claim| std::fs::read_dir(claim.path()).unwrap().flatten());
        shares.map(|share| share.path().join(USAGE)).find(|usage| usage.exists()).unwrap()
    };
    let usage = usage();
    let total = || Seen::of(&usage).unwrap().total;
    let alone = total();
    let environ = std::fs::read(format!("/proc/{}/environ", keeper.pid)).unwrap();
    let environ: Vec<(String, String)> = environ
        .split(|byte| *byte == 0)
        .filter_map(|entry| {
            String::from_utf8_lossy(entry).split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()))
        })
        .collect();
    let mut took = Vec::new();
    for _ in 0..10 {
        let mut other = Command::new(aliquot());
        other.args(["demo-tenant", "fill", "1024"]).env_clear().envs(environ.iter().cloned());
        let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("filled"));
        assert!(total().0 >= alone.0 + (1 << 30));
        std::thread::sleep(Duration::from_millis(u64::try_from(random.below(60)).unwrap()));
        // The dying, the governor that sees it, and this test, which sees the governor's work, wait for each other.
        let lack = Lack::of([other.id(), keeper.child.id(), std::process::id()]);
        let begun = Instant::now();
        kill(other.id());
        wait_for("the books", || total() == alone);
        took.push(begun.elapsed().saturating_sub(lack.sum()));
        other.wait().unwrap();
    }
    took.sort();
    println!(
        "time until the books are right again, without what was spent waiting for a processor: {took:?}"
    );
    // One of ten may have met what no account shows, such as a page of the books on its way to a disk.
    assert!(took[8] < Duration::from_millis(100), "{took:?}");
    keeper.end();
    local.settle();
}
