//! Parts in use stay in use: live processes of local runs and prepared claims are found, and stray records do
//! no harm.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use aliquot_tests::local::{Local, aliquot, wait_for};
use aliquot_tests::simulated::{StoodAside, root, run};

const CARD: &str = "h200";

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn kill(signal: &str, pid: u32) {
    // A process that has exited needs no signal.
    let _ = Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// Whether a process has ended, reaped by its parent or not.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// A command of this program on the state, other than `run`.
fn on_state(local: &Local, words: &[&str]) -> Output {
    let mut command = Command::new(aliquot());
    command.args(words).args(["--node", CARD, "--state"]).arg(local.state()).output().unwrap()
}

/// The one thing in a directory.
fn only_in(dir: &Path) -> PathBuf {
    let mut found = fs::read_dir(dir).unwrap();
    let one = found.next().unwrap().unwrap().path();
    assert!(found.next().is_none(), "{}", dir.display());
    one
}

/// A run with a command that prints its process ID and waits for its input to end.
fn waits(local: &Local, memory: &str) -> (Child, u32) {
    let mut run = local.run(&["--memory", memory, "--", "sh", "-c", "echo $$; read line"]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    (child, line.parse().unwrap())
}

/// A run with a finished command that left a process without the grants in its environment; the ID of that
/// process. `before` is done first.
fn leaves_behind(local: &Local, before: &str) -> u32 {
    let file = local.dir().join("left");
    let script = format!(
        "{before} setsid env -i PATH=\"$PATH\" sh -c 'echo $$ > \"$0\"; exec sleep 600' \"$0\" \
         < /dev/null > /dev/null 2>&1 & while [ ! -s \"$0\" ]; do sleep 0.01; done; exit 6"
    );
    let mut run = local.run(&["--memory", "100Gi", "--", "sh", "-c", &script]);
    let output = run.arg(&file).output().unwrap();
    assert_eq!(code(&output), 6, "{output:?}");
    fs::read_to_string(&file).unwrap().trim().parse().unwrap()
}

#[test]
fn a_command_keeps_its_part_when_its_supervisor_is_killed() {
    let local = Local::new("h200");
    let (mut child, command) = waits(&local, "100Gi");
    let _open = child.stdin.take();
    kill("-KILL", child.id());
    child.wait().unwrap();
    let refused = local.run(&["--memory", "100Gi", "--", "true"]).output().unwrap();
    assert_eq!(code(&refused), 125, "its command still runs: {refused:?}");
    assert_eq!((local.claims(), local.records()), (1, 1));
    kill("-KILL", command);
    wait_for("its end", || has_ended(command));
    assert_eq!(code(&local.shell(&["--memory", "100Gi"], "exit 5")), 5);
    assert_eq!((local.claims(), local.records()), (0, 0));
}

#[test]
fn processes_left_by_a_command_keep_the_part() {
    let local = Local::new("h200");
    // Away from its parent, its session and its group: only its environment names the run.
    let script = "setsid sh -c 'echo $$ > \"$0\"; exec sleep 600' \"$0\" < /dev/null > /dev/null 2>&1 &
        while [ ! -s \"$0\" ]; do sleep 0.01; done; exit 6";
    let pid_file = local.dir().join("pid");
    let mut command = local.run(&["--memory", "100Gi", "--", "sh", "-c", script]);
    let output = command.arg(&pid_file).output().unwrap();
    assert_eq!(code(&output), 6, "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is still alive"), "{output:?}");
    assert_eq!((local.claims(), local.records()), (1, 1));
    let left: u32 = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    kill("-KILL", left);
    wait_for("its end", || has_ended(left));
    local.settle();
}

#[test]
fn part_used_by_a_run_is_not_released() {
    let local = Local::new(CARD);
    let (mut child, command) = waits(&local, "100Gi");
    let name = format!("found its `aliquot run` alive (process {})", child.id());
    let uid = only_in(&local.state().join("runs")).file_name().unwrap().to_str().unwrap().to_owned();
    for words in [&["release", "--all"][..], &["release", &uid], &["release", "--all", "--force"]] {
        let refused = on_state(&local, words);
        assert_eq!(code(&refused), 1, "{refused:?}");
        assert!(said(&refused).contains("not released") && said(&refused).contains(&name), "{refused:?}");
        assert_eq!((local.claims(), local.records()), (1, 1), "{words:?}");
    }
    // Nor under a command that is left alone.
    kill("-KILL", child.id());
    let input = child.stdin.take();
    child.wait().unwrap();
    let refused = on_state(&local, &["release", "--all"]);
    assert_eq!(code(&refused), 1, "{refused:?}");
    assert!(said(&refused).contains(&format!("process {command})")), "{refused:?}");
    assert_eq!(local.claims(), 1);
    drop(input);
    wait_for("its end", || has_ended(command));
    let released = on_state(&local, &["release", "--all"]);
    assert_eq!((code(&released), said(&released).contains("released")), (0, true), "{released:?}");
    assert_eq!((local.claims(), local.records()), (0, 0));
    assert_eq!(fs::read_dir(local.state().join("living")).unwrap().count(), 0);
}

/// Every command that changes the state gives back what is unused, not `run` alone.
#[test]
fn leftovers_of_a_killed_run_go_back_by_prepare_and_release() {
    let local = Local::new(CARD);
    let file = local.dir().join("claim.yaml");
    fs::write(&file, claim("next", "100Gi")).unwrap();
    for words in [&["prepare", "-f", file.to_str().unwrap()][..], &["release", "next"]] {
        let (mut child, command) = waits(&local, "20Gi");
        kill("-KILL", child.id());
        kill("-KILL", command);
        child.wait().unwrap();
        wait_for("its end", || has_ended(command));
        assert_eq!(local.records(), 1);
        let output = on_state(&local, words);
        assert_eq!(code(&output), 0, "{output:?}");
        assert_eq!(local.records(), 0, "{words:?} left the run's part promised");
        assert_eq!(fs::read_dir(local.state().join("living")).unwrap().count(), 0);
    }
    assert_eq!(local.claims(), 0);
}

/// If its lock cannot even be tried, no process is taken for its supervisor, and what it holds stays.
#[test]
fn unlockable_record_is_left_and_its_part_stays() {
    let local = Local::new(CARD);
    let library = local.dir().join("no_locks.so");
    let source = root().join("tests/programs/no_locks.c");
    let compile = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"];
    let compiled = run(Command::new("cc").args(compile).args([&library, &source]));
    if let Err(StoodAside(why)) = compiled {
        return println!("stood aside: {why}");
    }
    let (mut child, command) = waits(&local, "20Gi");
    let input = child.stdin.take();
    kill("-KILL", child.id());
    child.wait().unwrap();
    drop(input);
    wait_for("its end", || has_ended(command));
    let mut release = Command::new(aliquot());
    release.args(["release", "--all", "--node", CARD, "--state"]).arg(local.state());
    let refused = release.env("LD_PRELOAD", &library).output().unwrap();
    assert_eq!(code(&refused), 3, "{refused:?}");
    assert!(said(&refused).contains("cannot be read: No locks available"), "{refused:?}");
    assert_eq!((local.claims(), local.records()), (1, 1));
    local.settle();
}

#[test]
fn idle_part_is_released_beside_used_ones() {
    let local = Local::new(CARD);
    let (mut child, _) = waits(&local, "20Gi");
    let file = local.dir().join("claim.yaml");
    fs::write(&file, claim("idle", "4Gi")).unwrap();
    let prepared = on_state(&local, &["prepare", "-f", file.to_str().unwrap()]);
    assert_eq!(code(&prepared), 0, "{prepared:?}");
    assert_eq!(local.claims(), 2);
    let released = on_state(&local, &["release", "--all"]);
    assert_eq!(code(&released), 1, "{released:?}");
    assert!(said(&released).contains("default/idle: released"), "{released:?}");
    assert!(said(&released).contains("not released: found its `aliquot run` alive"), "{released:?}");
    assert_eq!(local.claims(), 1);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!((local.claims(), local.records()), (0, 0));
}

fn claim(name: &str, memory: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: {name}}}\nspec:\n  devices:\n    requests:\n    \
         - name: gpu\n      exactly:\n        deviceClassName: share.aliquot.dev\n        capacity:\n          requests: \
         {{memory: {memory}, cores: 25}}\n"
    )
}

#[test]
fn claim_with_processes_is_released_by_force_only() {
    let local = Local::new(CARD);
    let file = local.dir().join("claim.yaml");
    fs::write(&file, claim("used", "4Gi")).unwrap();
    assert_eq!(code(&on_state(&local, &["prepare", "-f", file.to_str().unwrap()])), 0);
    let grants = only_in(&local.state().join("grants"));
    // A process that starts with the grants in its environment counts, with or without a slot in the
    // accounting.
    let mut tenant = Command::new("sleep").arg("600").env("ALIQUOT_GRANTS", &grants).spawn().unwrap();
    let uses = format!("process {})", tenant.id());
    wait_for("its environment", || {
        fs::read(format!("/proc/{}/environ", tenant.id()))
            .is_ok_and(|bytes| bytes.windows(15).any(|word| word == b"ALIQUOT_GRANTS="))
    });
    for words in [&["release", "used"][..], &["release", "--all"]] {
        let refused = on_state(&local, words);
        assert_eq!(code(&refused), 1, "{refused:?}");
        assert!(said(&refused).contains(&uses) && said(&refused).contains("--force"), "{refused:?}");
        assert_eq!(local.claims(), 1);
    }
    let released = on_state(&local, &["release", "used", "--force"]);
    assert_eq!(code(&released), 0, "{released:?}");
    assert_eq!(local.claims(), 0);
    tenant.kill().unwrap();
    tenant.wait().unwrap();
}

#[test]
fn process_without_its_environment_keeps_the_part() {
    let local = Local::new(CARD);
    let left = leaves_behind(&local, "");
    assert_eq!((local.claims(), local.records()), (1, 1));
    let refused = on_state(&local, &["release", "--all"]);
    assert!(said(&refused).contains(&format!("process {left})")), "{refused:?}");
    let refused = local.run(&["--memory", "100Gi", "--", "true"]).output().unwrap();
    assert_eq!(code(&refused), 125, "{refused:?}");
    kill("-KILL", left);
    wait_for("its end", || has_ended(left));
    local.settle();
}

/// Process IDs of another pid namespace mean nothing here: there the lock decides, and without one no process
/// is known to have exited.
#[test]
fn a_command_of_another_pid_namespace_keeps_its_part() {
    let local = Local::new(CARD);
    let (mut child, command) = waits(&local, "100Gi");
    let input = child.stdin.take();
    let record = only_in(&local.state().join("runs"));
    // The command speaks before its supervisor has written it down.
    wait_for("its line", || fs::read_to_string(&record).unwrap().contains("command"));
    kill("-KILL", child.id());
    child.wait().unwrap();
    let text = fs::read_to_string(&record).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!((words[0], words[3]), ("where", "command"), "{text}");
    // As if it had been written there: here the ID belongs to another process or to none.
    let elsewhere = format!("where {} 1\ncommand {} 1\n", words[1], command);
    fs::write(&record, &elsewhere).unwrap();
    assert_eq!(code(&local.shell(&["--memory", "100Gi"], "true")), 125);
    kill("-KILL", command);
    wait_for("its end", || has_ended(command));
    fs::rename(only_in(&local.state().join("living")), local.dir().join("living")).unwrap();
    let kept = local.shell(&["--memory", "100Gi"], "true");
    assert_eq!(code(&kept), 125, "liveness is unknown: {kept:?}");
    // After a restart of the machine no process of it is live.
    fs::write(&record, elsewhere.replace(words[1], "another")).unwrap();
    assert_eq!(code(&local.shell(&["--memory", "100Gi"], "exit 5")), 5);
    assert_eq!((local.claims(), local.records()), (0, 0));
    drop(input);
}

/// Ours is gone as soon as the command is there: what a command sees beside its own three is this one.
#[test]
fn the_command_has_one_descriptor_more_and_its_number_is_high() {
    let local = Local::new(CARD);
    let listed = |limit: &str, words: &[&OsStr]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -S -n \"$0\"; exec \"$@\"", limit]).args(words);
        let output = shell.args(["ls", "/proc/self/fd"]).stdin(Stdio::null()).output().unwrap();
        said(&output).lines().map(|line| line.parse().unwrap()).collect::<BTreeSet<u32>>()
    };
    let run = local.run(&["--memory", "1Gi", "--"]);
    let words: Vec<&OsStr> = [run.get_program()].into_iter().chain(run.get_args()).collect();
    for (limit, number) in [("1024", 960), ("256", 240)] {
        // The parent of this test may have left it some.
        let (bare, ours) = (listed(limit, &[]), listed(limit, &words));
        assert_eq!(&ours - &bare, BTreeSet::from([number]), "{bare:?} {ours:?}");
        assert!(bare.is_subset(&ours), "{bare:?} {ours:?}");
    }
}

#[test]
fn foreign_objects_among_records_block_nothing() {
    let local = Local::new(CARD);
    assert_eq!(code(&local.shell(&["--memory", "1Gi"], "exit 3")), 3);
    let runs = local.state().join("runs");
    let noise = runs.join("run-1-2-0");
    // A binary record says nothing, and no process is live.
    fs::write(&noise, [0xFF, 0xFE, 0x00]).unwrap();
    let output = local.shell(&["--memory", "1Gi"], "exit 4");
    assert_eq!((code(&output), output.stderr.as_slice()), (4, &b""[..]), "{output:?}");
    assert!(!noise.exists());
    // What is no plain file is passed over, by name.
    fs::create_dir(runs.join("run-1-2-1")).unwrap();
    std::os::unix::fs::symlink("/nowhere", runs.join("run-1-2-2")).unwrap();
    assert!(Command::new("mkfifo").arg(runs.join("run-1-2-3")).status().unwrap().success());
    let output = local.shell(&["--memory", "1Gi"], "exit 5");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(code(&output), 5, "{err}");
    for number in 1..=3 {
        let warning = format!("runs/run-1-2-{number}: found no usable record of a run");
        assert!(err.contains(&warning), "{warning}: {err}");
    }
    assert_eq!((local.claims(), local.records()), (0, 3));
}

/// A record that a machine left which lost power: its line of the command is not whole.
#[test]
fn torn_record_leaves_the_part_to_live_processes() {
    let local = Local::new(CARD);
    let (mut child, command) = waits(&local, "100Gi");
    let input = child.stdin.take();
    kill("-KILL", child.id());
    child.wait().unwrap();
    let record = only_in(&local.state().join("runs"));
    let whole = fs::read(&record).unwrap();
    for length in [0, 10, whole.len() - 1] {
        fs::write(&record, &whole[..length]).unwrap();
        assert_eq!(code(&local.shell(&["--memory", "100Gi"], "true")), 125, "{length}");
    }
    drop(input);
    wait_for("its end", || has_ended(command));
    local.settle();
}
