//! The governor of local runs, with real processes: idle compute time is borrowed and comes back, exited
//! processes release theirs, and the governing supervisor may be killed. The card's side is measured.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_driver::region::{USAGE, UsageCopy};
use aliquot_sim_device::processor::Lack;
use aliquot_tests::generate::Random;
use aliquot_tests::local::{Local, aliquot, wait_for};
use aliquot_tests::seed::seed;
use aliquot_tests::shares::share_becomes;
use aliquot_tests::silence::falls_silent;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

fn send(signal: Signal, pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
}

/// Processes that are stopped, and go on with the value.
struct Stopped<const N: usize>([u32; N]);

impl<const N: usize> Stopped<N> {
    fn now(pids: [u32; N]) -> Self {
        pids.into_iter().for_each(|pid| send(Signal::SIGSTOP, pid));
        Self(pids)
    }
}

impl<const N: usize> Drop for Stopped<N> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(|pid| send(Signal::SIGCONT, pid));
    }
}

fn kill(pid: u32) {
    send(Signal::SIGKILL, pid);
}

#[test]
fn idle_compute_is_borrowed_and_reclaimed_after_governor_kill() {
    let local = Local::new("h200");
    let work = ["work", "1000000"];
    let mut first = local.tenant(&["--memory", "1Gi", "--cores", "10", "--compute-policy", "burst"], &work);
    let card = local.card();
    share_becomes(&card, first.pid, 90, 100);
    let capped = local.tenant(&["--memory", "1Gi", "--cores", "60"], &work);
    share_becomes(&card, capped.pid, 57, 63);
    share_becomes(&card, first.pid, 33, 43);
    // The first supervisor governs: its command continues after the kill, and the other supervisor is
    // elected.
    let orphans_input = first.child.stdin.take();
    kill(first.child.id());
    first.child.wait().unwrap();
    let late = local.tenant(&["--memory", "1Gi", "--cores", "20", "--compute-policy", "burst"], &work);
    share_becomes(&card, capped.pid, 57, 63);
    share_becomes(&card, late.pid, 23, 31);
    share_becomes(&card, first.pid, 9, 16);
    capped.end();
    late.end();
    drop(orphans_input);
    wait_for("the end of the orphan", || card.processes().is_empty());
    local.settle();
}

/// The governor is stopped while its grants of borrowed time are in force. Its tenants take that time back
/// themselves, and a running supervisor is elected in its place.
#[test]
fn stopped_governor_blocks_neither_owner_nor_idle_time() {
    let local = Local::new("h200");
    let work = ["work", "1000000"];
    let governor = local.tenant(&["--memory", "1Gi", "--cores", "10"], &["fill", "256"]);
    let borrower = local.tenant(&["--memory", "1Gi", "--cores", "25", "--compute-policy", "burst"], &work);
    let owner = local.tenant(&["--memory", "1Gi", "--cores", "60"], &work);
    let card = local.card();
    let rests = Stopped::now([owner.pid]);
    share_becomes(&card, borrower.pid, 90, 100);
    let supervisors = Stopped::now([&governor, &borrower, &owner].map(|tenant| tenant.child.id()));
    drop(rests);
    share_becomes(&card, owner.pid, 57, 63);
    // Its bills are still those of a tenant alone.
    share_becomes(&card, borrower.pid, 10, 28);
    // The former governor is still stopped.
    send(Signal::SIGCONT, borrower.child.id());
    share_becomes(&card, borrower.pid, 34, 43);
    share_becomes(&card, owner.pid, 57, 63);
    // It continues, and waits for the leader lock like the others.
    drop(supervisors);
    share_becomes(&card, borrower.pid, 34, 43);
    share_becomes(&card, owner.pid, 57, 63);
    governor.end();
    owner.end();
    share_becomes(&card, borrower.pid, 90, 100);
    borrower.end();
    local.settle();
}

/// A tenant with a guarantee has it beside a best-effort tenant, which has all that is left.
#[test]
fn best_effort_gets_the_remainder_and_all_when_alone() {
    let local = Local::new("h200");
    let work = ["work", "1000000"];
    let best = local.tenant(&["--memory", "1Gi", "--compute-policy", "best-effort"], &work);
    let card = local.card();
    share_becomes(&card, best.pid, 90, 100);
    let capped = local.tenant(&["--memory", "1Gi", "--cores", "60"], &work);
    share_becomes(&card, capped.pid, 57, 63);
    share_becomes(&card, best.pid, 30, 43);
    capped.end();
    share_becomes(&card, best.pid, 90, 100);
    best.end();
    local.settle();
}

/// Idle time goes to the better priority alone while that wants it, and every tenant keeps its guarantee.
#[test]
fn the_better_priority_has_what_others_leave() {
    let local = Local::new("h200");
    let work = ["work", "1000000"];
    let tenant = |priority| {
        let part = ["--memory", "1Gi", "--cores", "20", "--compute-policy", "burst", "--priority", priority];
        local.tenant(&part, &work)
    };
    let low = tenant("low");
    let card = local.card();
    share_becomes(&card, low.pid, 90, 100);
    let high = tenant("high");
    share_becomes(&card, high.pid, 70, 83);
    share_becomes(&card, low.pid, 16, 30);
    high.end();
    share_becomes(&card, low.pid, 90, 100);
    low.end();
    local.settle();
}

/// A tenant alone on its card: a process that runs past the shim is not held, and everything else of the tenant pays for it.
#[test]
fn work_past_the_shim_is_paid_by_its_tenant_even_alone() {
    let local = Local::new("h200");
    // Its environment emptied but for what a driver library is found by.
    let script = r#"exec 3<&0
        env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" ALIQUOT_SIM_DIR="$ALIQUOT_SIM_DIR" \
            "$0" demo-tenant work 2000000 <&3 >/dev/null &
        echo past $!
        exec "$0" demo-tenant work 1000000 <&3"#;
    let mut run = local.run(&["--memory", "4Gi", "--cores", "60", "--", "sh", "-c", script]);
    let mut run = run.arg(aliquot()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let mut pid = |word: &str| {
        let line = lines.next().unwrap().unwrap();
        line.strip_prefix(word).and_then(|pid| pid.trim().parse::<u32>().ok()).ok_or(line).unwrap()
    };
    let (past, within) = (pid("past"), pid("works"));
    let card = local.card();
    share_becomes(&card, within, 0, 2);
    share_becomes(&card, past, 95, 100);
    let top = Command::new(aliquot()).args(["top", "-o", "json", "--state"]).arg(local.state()).output();
    let top = String::from_utf8(top.unwrap().stdout).unwrap();
    let of = |pid: u32| {
        let at = top.find(&format!("\"pid\": {pid},")).ok_or(&top).unwrap();
        top[at..].lines().find_map(|line| line.trim().strip_prefix("\"shim\": ")).unwrap().to_owned()
    };
    assert_eq!([of(past), of(within)].map(|shim| shim.replace([',', '"'], "")), ["missing", "held"], "{top}");
    kill(past);
    // Twenty seconds of the card are owed at most, and paid at sixty hundredths.
    let had = card.moment().device_nanos(within);
    wait_for("all to be paid", || card.moment().device_nanos(within) > had + 200_000_000);
    share_becomes(&card, within, 57, 63);
    drop(run.stdin.take());
    run.wait().unwrap();
    local.settle();
}

/// Nothing in the environment of the command tells of its run; its record does.
#[test]
fn command_with_cleared_environment_is_charged_to_its_run() {
    let local = Local::new("h200");
    let script = r#"exec 3<&0
        echo past $$
        "$0" demo-tenant work 1000000 <&3 &
        exec env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" ALIQUOT_SIM_DIR="$ALIQUOT_SIM_DIR" \
            "$0" demo-tenant work 2000000 <&3 >/dev/null"#;
    let mut run = local.run(&["--memory", "4Gi", "--cores", "60", "--", "sh", "-c", script]);
    let mut run = run.arg(aliquot()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let mut pid = |word: &str| {
        let line = lines.next().unwrap().unwrap();
        line.strip_prefix(word).and_then(|pid| pid.trim().parse::<u32>().ok()).ok_or(line).unwrap()
    };
    let (past, within) = (pid("past"), pid("works"));
    let card = local.card();
    // The run owes what its command has beyond the limit, so that its other process waits.
    share_becomes(&card, within, 0, 2);
    share_becomes(&card, past, 95, 100);
    let top = Command::new(aliquot()).args(["top", "-o", "json", "--state"]).arg(local.state()).output();
    let top: Value = serde_json::from_slice(&top.unwrap().stdout).unwrap();
    let (share, outside) = (&top["cards"][0]["shares"][0], &top["cards"][0]["outside"]);
    let shims = share["processes"].as_array().unwrap().iter().map(|p| (p["pid"].clone(), p["shim"].clone()));
    let shims: Vec<(Value, Value)> = shims.collect();
    assert!(shims.contains(&(past.into(), "missing".into())), "{top}");
    assert_eq!((&share["enforcement"]["state"], outside), (&"bypassed".into(), &Value::Array(Vec::new())));
    drop(run.stdin.take());
    run.wait().unwrap();
    local.settle();
}

#[test]
fn memory_of_killed_processes_is_back_within_100_ms() {
    let local = Local::new("h200");
    let mut random = Random::new(seed());
    let keeper = local.tenant(&["--memory", "8Gi"], &["fill", "256"]);
    let usage = || {
        let claims = std::fs::read_dir(local.state().join("grants")).unwrap().flatten();
        let shares = claims.flat_map(|claim| std::fs::read_dir(claim.path()).unwrap().flatten());
        shares.map(|share| share.path().join(USAGE)).find(|usage| usage.exists()).unwrap()
    };
    let usage = usage();
    let total = || UsageCopy::of(&usage).unwrap().total;
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
        wait_for("the accounting", || total() == alone);
        took.push(begun.elapsed().saturating_sub(lack.sum()));
        other.wait().unwrap();
    }
    took.sort();
    println!(
        "time until the accounting is right again, without what was spent waiting for a processor: {took:?}"
    );
    // One of ten may have met a delay outside all accounts, such as a page of the usage file on its way to a
    // disk.
    assert!(took[8] < Duration::from_millis(100), "{took:?}");
    keeper.end();
    local.settle();
}

#[test]
fn nothing_polls_for_a_run_that_limits_nothing() {
    let local = Local::new("t4-2");
    let mut whole = local.run(&["--card", "0"]);
    let mut whole = whole.args(["--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    falls_silent("the supervisor of a whole card", whole.id());
    // It sees that others come, and that they go.
    let tenant = local.tenant(&["--card", "1", "--memory", "1Gi"], &["fill", "256"]);
    tenant.end();
    falls_silent("the same, after another run", whole.id());
    drop(whole.stdin.take());
    assert!(whole.wait().unwrap().success());
    local.settle();
}

#[test]
fn standby_governor_sleeps_until_the_leader_ends() {
    let local = Local::new("t4-2");
    let mut first = local.tenant(&["--card", "0", "--memory", "1Gi"], &["fill", "256"]);
    let leader_lock =
        || Some(std::fs::read_dir(local.state().join("governors")).ok()?.flatten().next()?.path());
    let is_held = || {
        let file = leader_lock().and_then(|path| std::fs::OpenOptions::new().write(true).open(path).ok());
        file.is_some_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
    };
    wait_for("a governor", is_held);
    let second = local.tenant(&["--card", "0", "--memory", "1Gi"], &["fill", "256"]);
    falls_silent("the supervisor that waits", second.child.id());
    // Its command goes on.
    let orphans_input = first.child.stdin.take();
    kill(first.child.id());
    first.child.wait().unwrap();
    wait_for("the next governor", is_held);
    second.end();
    wait_for("the end of the second", || !is_held());
    drop(orphans_input);
    let card = local.card();
    wait_for("the end of the orphan", || card.processes().is_empty());
    local.settle();
}
