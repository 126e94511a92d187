//! `aliquot run`: exit codes, signals, sharing; after a kill at any moment the accounting agrees and nothing
//! leaks.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use aliquot_tests::generate::Random;
use aliquot_tests::local::{Local, aliquot, copy_program, wait_for};
use aliquot_tests::seed::seed;

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn kill(signal: &str, pid: u32) {
    // A process that has exited needs no signal.
    let _ = Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// Whether a process has ended, reaped by its parent or not: an orphan may have no parent that reaps it.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// Starts a run with a script that prints `ready`, and what it printed before that. Signals have their
/// default action, even if the parent of this test ignores some, as `nohup` does: a shell cannot reset an
/// ignored signal.
fn start(local: &Local, arguments: &[&str], script: &str) -> (Child, Vec<String>) {
    let run = local.run(arguments);
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(run.get_program()).args(run.get_args());
    let mut child = command.args(["--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = lines.take_while(|line| line != "ready").collect();
    (child, said)
}

#[test]
fn the_exit_code_is_the_commands() {
    let local = Local::new("t4-2");
    for (script, expected) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
        let output = local.shell(&["--memory", "1Gi"], script);
        assert_eq!((code(&output), err(&output).as_str()), (expected, ""), "{script}");
    }
    for (arguments, expected, words) in [
        (vec!["--", "no-such-program"], 127, "cannot run no-such-program"),
        (vec!["--", "/etc/passwd"], 126, "cannot run /etc/passwd"),
        (vec!["--memory", "1000Gi", "--", "true"], 125, "too little `memory` left"),
        (vec!["--memory", "1000Gi", "--", "true"], 125, "ask for --memory "),
        (vec!["--memory", "none", "--", "true"], 125, "expected an amount of memory"),
        (vec!["--memory", "-5Gi", "--", "true"], 125, "expected an amount of memory"),
        (vec!["--memory", "1e30", "--", "true"], 125, "these are 4Ei or more, which no card has"),
        (vec!["--memory", "8", "--", "true"], 125, "found 8 bytes, less than 1Mi"),
        (vec!["--memory", "1023Ki", "--", "true"], 125, "write it with its unit, such as 8Gi"),
        (
            vec!["--card", "9", "--", "true"],
            125,
            "there is no such card; expected the index of one, its UUID or the beginning of that: 0 (GPU-",
        ),
        (
            vec!["--card", "", "--", "true"],
            125,
            "there is no such card; expected the index of one, its UUID or the beginning of that: 0 (GPU-",
        ),
        (
            vec!["--card", "GPU-", "--", "true"],
            125,
            "--card GPU-: 2 cards begin like this; expected the beginning of one: 0 (GPU-",
        ),
        (vec!["--template", "1g.10gb", "--", "true"], 125, "1g.10gb"),
        (vec!["--cores", "101", "--", "true"], 125, "0 to 100"),
        (vec!["--cores", "-1", "--", "true"], 125, "0 to 100"),
        (vec!["--policy", "best-effort", "--cores", "10", "--", "true"], 125, "leave --cores out"),
        (vec!["--no-such-option", "--", "true"], 125, "--no-such-option"),
        (vec![], 125, "COMMAND"),
    ] {
        let output = local.run(&arguments).output().unwrap();
        assert_eq!(code(&output), expected, "{arguments:?}: {output:?}");
        assert!(err(&output).contains(words), "{arguments:?}: {}", err(&output));
    }
    assert_eq!((local.claims(), local.records()), (0, 0));
}

#[test]
fn unwritable_message_keeps_the_exit_code() {
    let local = Local::new("t4-2");
    let full = || Stdio::from(fs::File::create("/dev/full").unwrap());
    for (arguments, expected) in [
        (vec!["--", "no-such-program"], 127),
        (vec!["--", "/etc/passwd"], 126),
        (vec!["--memory", "1000Gi", "--", "true"], 125),
        (vec!["--card", "9", "--", "true"], 125),
        (vec!["--memory", "8", "--", "true"], 125),
        (vec!["--", "sh", "-c", "exit 7"], 7),
    ] {
        let status = local.run(&arguments).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{arguments:?}");
    }
    for (arguments, expected) in [(["plan", "--no-such-option"], 2), (["devices", "--node=no-such-node"], 2)]
    {
        let status = Command::new(aliquot()).args(arguments).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{arguments:?}");
    }
    let answer = Command::new(aliquot()).arg("--version").stdout(full()).output().unwrap();
    assert_eq!(answer.status.code(), Some(3), "the answer itself is lost");
    assert!(err(&answer).starts_with("error: cannot write the answer: No space left"), "{answer:?}");
    assert_eq!((local.claims(), local.records()), (0, 0));
}

#[test]
fn a_part_without_room_for_a_context_is_given_with_a_warning() {
    let local = Local::new("t4-2");
    let small = local.shell(&["--memory", "480Mi"], "exit 7");
    let warning = "the part has 480Mi of memory, and a context of this card alone takes 480Mi";
    assert_eq!(code(&small), 7);
    assert!(err(&small).contains(warning), "{small:?}");
    assert_eq!(err(&local.shell(&["--memory", "481Mi"], "exit 0")), "");
}

#[test]
fn the_command_gets_its_words_its_input_and_its_part() {
    let local = Local::new("h100-8");
    let script = r#"cat; echo "$1|$2"; ls $ALIQUOT_GRANTS/*; echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER
        ls $ALIQUOT_SIM_DIR | grep node
        echo "preload ${LD_PRELOAD##*/}"; ls ${LD_LIBRARY_PATH%%:*}"#;
    let mut command =
        local.run(&["--memory", "8Gi", "--cores", "25", "--card", "3", "sh", "-c", script, "sh"]);
    command.args(["-x", "a b"]).env("LD_PRELOAD", "").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"input\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let node = local.open();
    assert_eq!(node.inventory().unwrap().cards[3].index, 3);
    let expected = "input\n-x|a b\ngrant.json\nlimits\nusage\n3 PCI_BUS_ID\nnode.toml\npreload libaliquot.so\nlibcuda.so.1\nlibnvidia-ml.so.1\n";
    assert_eq!(said, expected, "{output:?}");
}

/// A batch system gives a job cards by `CUDA_VISIBLE_DEVICES`, and a run gives its command one.
#[test]
fn a_run_gets_no_card_that_its_caller_does_not_see() {
    let local = Local::new("t4-2");
    assert_eq!(code(&local.shell(&["--memory", "1Gi"], "exit 0")), 0);
    let cards = local.open().inventory().unwrap().cards;
    let [first, second] = [0, 1].map(|index: usize| cards[index].uuid.to_string());
    let show = ["--", "sh", "-c", "printf $CUDA_VISIBLE_DEVICES"];
    let seen = |visible: &str, arguments: &[&str]| {
        local.run(&[arguments, &show[..]].concat()).env("CUDA_VISIBLE_DEVICES", visible).output().unwrap()
    };
    let (beginning, both) = (&second[..8], format!("{second}, {first}"));
    for (visible, expected) in [("1", "1"), ("0", "0"), (beginning, "1"), ("1,GPU-nope,0", "1")] {
        let output = seen(visible, &["--memory", "1Gi"]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{visible}: {output:?}");
    }
    // The second one is full, and the caller sees the other as well, or does not.
    let holds = "echo $$; echo ready; exec sleep 600";
    let (mut holder, told) = start(&local, &["--card", "1", "--memory", "10Gi"], holds);
    assert_eq!(seen(&both, &["--memory", "10Gi"]).stdout, b"0");
    assert_eq!(seen("1", &["--memory", "10Gi"]).status.code(), Some(125));
    // A run that names its card keeps that choice.
    assert_eq!(seen("1", &["--memory", "10Gi", "--card", "0"]).stdout, b"0");
    for (visible, words) in [
        ("", "shows no card; there are 0 (GPU-"),
        ("-1,0", "shows no card"),
        ("GPU-", "shows no card"),
        ("1,1", "shows no card"),
        ("2", "choose one with --card, or unset the variable"),
        ("MIG-GPU-5/1/0", "MIG-GPU-5/1/0 is an instance of a card in MIG mode"),
    ] {
        let output = seen(visible, &["--memory", "1Gi"]);
        assert_eq!(code(&output), 125, "{visible}: {output:?}");
        assert!(err(&output).contains(words), "{visible}: {output:?}");
    }
    // A run in a run gets its part of the same card.
    let inner = local.run(&[&["--memory", "1Gi"][..], &show[..]].concat());
    let mut outer = local.run(&["--card", "1", "--memory", "1Gi", "--"]);
    outer.args(["sh", "-c", "unset LD_PRELOAD LD_LIBRARY_PATH; exec \"$@\"", "sh"]);
    let output = outer.arg(inner.get_program()).args(inner.get_args()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1", "{output:?}");
    kill("-KILL", told.first().unwrap().parse().unwrap());
    holder.wait().unwrap();
    assert_eq!((local.claims(), local.records()), (0, 0));
}

#[test]
fn a_command_is_told_what_a_context_takes_on_a_simulated_card() {
    let local = Local::new("t4-2");
    let told = |copy: &Path| {
        let script = "cp $ALIQUOT_GRANTS/*/limits \"$1\" && echo $ALIQUOT_SIM_DIR";
        let mut command = local.run(&["--memory", "1Gi", "sh", "-c", script, "sh"]);
        let output = command.arg(copy).output().unwrap();
        let cards = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (aliquot_driver::region::read(copy).unwrap().context_bytes, cards)
    };
    let place = tempfile::tempdir().unwrap();
    let (bytes, cards) = told(&place.path().join("first"));
    assert_eq!(bytes, 480 << 20);
    let file = Path::new(&cards).join("node.toml");
    let node = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("context_bytes = 7340032\n{node}")).unwrap();
    assert_eq!(told(&place.path().join("second")), (7_340_032, cards));
}

#[test]
fn signals_reach_the_command_and_it_decides() {
    let local = Local::new("t4-2");
    // By number: TERM, INT, HUP, USR1, TSTP, XCPU, IO, PWR, VTALRM, PROF, URG, real-time ones.
    for number in [15, 2, 1, 10, 20, 24, 29, 30, 26, 27, 23, 34, 37, 64] {
        let script =
            format!("trap 'exit {}' {number}; echo ready; while :; do sleep 0.01; done", 20 + number);
        let (mut child, _) = start(&local, &["--memory", "1Gi"], &script);
        kill(&format!("-{number}"), child.id());
        assert_eq!(child.wait().unwrap().code(), Some(20 + number), "{number}");
    }
    // A command that minds nothing ends by the signal.
    let (mut child, _) = start(&local, &["--memory", "1Gi"], "echo ready; exec sleep 60");
    kill("-TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!((local.claims(), local.records()), (0, 0));
}

/// The command has it as it was: bit 16 of what is ignored.
#[test]
fn end_of_command_is_seen_if_child_signals_are_ignored() {
    let local = Local::new("t4-2");
    for (before, ignored) in [("--ignore-signal=CHLD", 1), ("--default-signal=CHLD", 0)] {
        let mut starter = Command::new("env");
        starter.arg(before).arg(aliquot());
        let run = local.run(&["--memory", "1Gi"]);
        // A shell does about it as it likes.
        let command = ["--", "sed", "-n", "s/^SigIgn:.*\\(.\\)....$/\\1/p; $q7", "/proc/self/status"];
        let output = starter.args(run.get_args()).args(command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let digit = u32::from_str_radix(said.trim(), 16).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!((code(&output), digit & 1, err(&output).as_str()), (7, ignored, ""), "{before}");
    }
}

#[test]
fn runs_share_a_card_and_excess_is_refused_until_it_fits() {
    let local = Local::new("h200");
    let waits = "echo ready; read line < $0.go";
    let fifo = |name: &str| {
        let path = local.dir().join(name).with_extension("go");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    };
    let start_at = |name: &str, memory: &str, cores: &str| {
        let go = fifo(name);
        let mut command = local.run(&["--memory", memory, "--cores", cores, "--", "sh", "-c", waits]);
        command.arg(local.dir().join(name)).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        (child, go)
    };
    let (mut one, one_go) = start_at("one", "60Gi", "50");
    let (mut two, two_go) = start_at("two", "60Gi", "50");
    assert_eq!(local.claims(), 2);
    for refused in [["--memory", "60Gi"], ["--cores", "10"]] {
        let output = local.run(&refused).args(["--", "true"]).output().unwrap();
        assert_eq!(code(&output), 125, "{refused:?}: {output:?}");
        assert!(err(&output).contains("left"), "{}", err(&output));
    }
    // Idle compute time is available to runs without a request for cores.
    assert_eq!(code(&local.shell(&["--memory", "1Gi"], "exit 3")), 3);
    fs::write(one_go, "go\n").unwrap();
    assert_eq!(one.wait().unwrap().code(), Some(0));
    assert_eq!(code(&local.shell(&["--memory", "60Gi"], "exit 4")), 4);
    fs::write(two_go, "go\n").unwrap();
    assert_eq!(two.wait().unwrap().code(), Some(0));
    assert_eq!((local.claims(), local.records()), (0, 0));
}

#[test]
fn run_failing_after_its_claim_releases_the_part_at_once() {
    let local = Local::new("h200");
    // Cards of another node, without a claim on them.
    let cards = local.state().join("cards");
    fs::create_dir_all(&cards).unwrap();
    fs::write(cards.join("node.toml"), "[[card]]\nname = \"other\"\n").unwrap();
    for _ in 0..2 {
        let output = local.run(&["--memory", "1Gi", "--", "true"]).output().unwrap();
        let said = err(&output);
        assert_eq!(code(&output), 125, "{output:?}");
        assert!(said.contains(&format!("remove {}", cards.display())), "{said}");
        assert_eq!((local.claims(), local.records()), (0, 0), "{said}");
    }
    fs::remove_dir_all(&cards).unwrap();
    assert_eq!(code(&local.shell(&["--memory", "1Gi"], "exit 6")), 6);
}

#[test]
fn a_partition_is_made_for_a_run_and_goes_with_it() {
    let local = Local::new("h100-8");
    // It ends once there is a leader lock: its governor may come late to a busy machine.
    let governed = format!(
        "n=0; until ls {}/governors/MIG-* || [ $n = 3000 ]; do sleep 0.01; n=$((n+1)); done >&2",
        local.state().display()
    );
    let output = local.shell(
        &["--template", "1g.10gb"],
        &format!("echo $CUDA_VISIBLE_DEVICES; cat $ALIQUOT_SIM_DIR/node.toml; {governed}"),
    );
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(said.starts_with("MIG-") && said.contains("MIG 1g.10gb") && said.contains("sms = 16"), "{said}");
    assert_eq!((local.claims(), local.records()), (0, 0));
    assert_eq!(local.open().partitions().count(), 0);
    let left = fs::read_dir(local.state()).unwrap().flatten();
    let left: Vec<_> =
        left.map(|entry| entry.file_name()).filter(|n| n.to_string_lossy().contains("cards-")).collect();
    assert!(left.is_empty(), "{left:?}");
    let leader_locks = fs::read_dir(local.state().join("governors")).unwrap().flatten();
    let leader_locks: Vec<_> = leader_locks.map(|entry| entry.file_name()).collect();
    assert!(leader_locks.is_empty(), "{leader_locks:?}");
    // A quarter of an H100 is a partition as well.
    let output = local.shell(&["--fraction", "1/4"], "echo $CUDA_VISIBLE_DEVICES");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("MIG-"), "{output:?}");
}

/// The process ID of a command, after it has printed it.
fn command_of(pid_file: &PathBuf) -> Option<u32> {
    fs::read_to_string(pid_file).ok()?.trim().parse().ok()
}

#[test]
fn killed_at_random_the_next_call_cleans_up() {
    let local = Local::new("h200");
    let mut random = Random::new(seed());
    let (mut inputs, mut left) = (Vec::new(), Vec::new());
    // The first run to be killed may not have made it.
    fs::create_dir_all(local.state()).unwrap();
    for round in 0..24 {
        // It has a context and memory of the card until its input ends.
        let script = "echo $$ > \"$0\"; exec \"$1\" demo-tenant fill 256";
        let pid_file = local.dir().join(format!("pid-{round}"));
        let part = *random.pick(&["--memory=20Gi", "--template=1g.18gb", "--cores=30"]);
        inputs.truncate(2);
        // One without a process ID yet may still start.
        let before = left.iter().filter(|file| command_of(file).is_none_or(|pid| !has_ended(pid))).count();
        let mut command = local.run(&[part, "--", "sh", "-c", script]);
        command.arg(&pid_file).arg(aliquot()).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        inputs.insert(0, child.stdin.take());
        let victim = random.below(3);
        std::thread::sleep(Duration::from_millis(u64::try_from(random.below(400)).unwrap()));
        let command = command_of(&pid_file);
        if victim != 0 {
            command.into_iter().for_each(|pid| kill("-KILL", pid));
        }
        if victim == 1 {
            // One that starts only now ends as well.
            drop(inputs.remove(0));
        } else {
            left.push(pid_file);
        }
        if victim != 1 {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        // After every kill the node can be opened and agrees. A run that reached its command released unused
        // claims before.
        let claims = local.claims();
        assert!(
            command.is_none() || claims <= before + 1,
            "round {round}: {claims} claims, {before} commands ran"
        );
    }
    drop(inputs);
    local.settle();
    let card = local.card();
    card.reap();
    assert_eq!((card.in_use(), card.processes().len()), (0, 0));
    let node = local.open();
    assert_eq!(node.partitions().count(), 0);
    assert_eq!(fs::read_dir(node.grants_dir()).unwrap().count(), 0);
}

#[test]
fn a_command_that_spoils_its_usage_file_harms_only_itself() {
    let local = Local::new("t4-2");
    for spoil in [
        ": > $f",
        "head -c 300000 /dev/urandom > $f",
        "head -c 100 /dev/zero > $f",
        "rm -f $f",
        "mv $f $f.away",
    ] {
        let script = format!("f=$(ls $ALIQUOT_GRANTS/*/usage); {spoil}; sleep 0.2; exit 3");
        let output = local.shell(&["--memory", "1Gi", "--cores", "10"], &script);
        assert_eq!(code(&output), 3, "{spoil}: {output:?}");
        assert_eq!((local.claims(), local.records()), (0, 0), "{spoil}");
    }
}

#[test]
fn an_ordinary_user_runs_with_state_of_its_own() {
    let local = Local::new("t4-2");
    // The build directory may be closed to others.
    let program = local.dir().join("aliquot");
    copy_program(aliquot(), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let home = local.dir().join("home");
    fs::create_dir(&home).unwrap();
    let mut command = Command::new(&program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &home);
    if is_root() {
        std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
        command.uid(65534).gid(65534);
    }
    command.current_dir(&home);
    // It allocates four times its grant, and gets all of the grant and no more.
    let script =
        "test \"$(id -u)\" != 0 && test -w $ALIQUOT_GRANTS/*/usage && \"$0\" demo-tenant fill 4096 && exit 9";
    command.args(["run", "--node", "t4-2", "--memory", "1Gi", "--", "sh", "-c", script]);
    let output = command.arg(&program).stdin(Stdio::null()).output().unwrap();
    assert_eq!(code(&output), 9, "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = told.split_whitespace().collect();
    assert_eq!((words[0], words[3], words[6]), ("filled", "2", "1073741824"), "{told}");
    assert!(words[5].parse::<u64>().unwrap() < 64 << 20, "{told}");
    assert!(home.join(".local/state/aliquot/simulated/t4-2/journal").exists());
    assert!(home.join(".local/state/aliquot/lib").exists());
}

/// A loader that takes the path of the shim apart would run the command without its limits, and say so in passing at most.
#[test]
fn state_from_which_no_loader_finds_the_shim_is_refused() {
    let local = Local::new("t4-2");
    for name in ["a b", "a:b", "a;b", "a$LIB", "a\tb", "a\nb"] {
        let state = local.dir().join(name);
        let mut command = Command::new(aliquot());
        command.args(["run", "--node", "t4-2", "--memory", "1Gi", "--state"]).arg(&state);
        let output = command.args(["--", "echo", "ran"]).output().unwrap();
        assert_eq!((code(&output), output.stdout.as_slice()), (125, b"".as_slice()), "{name:?}: {output:?}");
        assert!(err(&output).contains("--state"), "{name:?}: {output:?}");
        assert!(!state.join("journal").exists(), "{name:?}");
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

/// How often the thread of a supervisor that watches limits has gone to sleep; `None`: there is none.
fn looks_at_limits(pid: u32) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let thread = tasks
        .map(|task| task.path())
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "limits\n"))?;
    let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok())
}

/// A launcher that sets `LD_PRELOAD` for a library of its own takes the shim from its program.
#[test]
fn process_without_the_shim_is_reported_by_its_run() {
    let local = Local::new("h200");
    let tenant = "\"$0\" demo-tenant fill 9216 <&3";
    let cleared = "env -i LD_LIBRARY_PATH=\"$LD_LIBRARY_PATH\" ALIQUOT_SIM_DIR=\"$ALIQUOT_SIM_DIR\"";
    let limit = ["--memory", "8Gi"];
    for (script, limit, reported) in [
        (format!("export LD_PRELOAD=/nowhere/liballocator.so; exec {tenant}"), &limit[..], true),
        (format!("{cleared} {tenant} & wait"), &limit, true),
        (format!("exec {tenant}"), &limit, false),
        (format!("unset LD_PRELOAD; exec {tenant}"), &[], false),
    ] {
        let file = local.dir().join("told");
        let mut run = local.run(limit);
        let run = run.args(["--", "sh", "-c", &format!("exec 3<&0; {script}")]).arg(aliquot());
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&file).unwrap());
        let mut child = run.spawn().unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let told = || fs::read_to_string(&file).unwrap();
        let expected = "uses the card without the shim: found ";
        if reported {
            wait_for(&format!("a warning: {script}"), || told().contains(expected));
        } else if !limit.is_empty() {
            wait_for("three looks", || looks_at_limits(child.id()).is_some_and(|looks| looks > 3));
        } else {
            assert_eq!(looks_at_limits(child.id()), None);
        }
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{line}: {}", told());
        assert_eq!(told().matches(expected).count(), usize::from(reported), "{script}: {}", told());
        assert_eq!(local.claims(), 0);
    }
}

/// Exit code and output of a run on a terminal that the Python program makes; `None`: there is no Python.
fn on_terminal(scene: &[&str], run: &Command) -> Option<Output> {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("stood aside: no python3 to make a terminal with");
        return None;
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/terminal.py");
    let mut python = Command::new("python3");
    python.arg(program).args(scene).arg(run.get_program()).args(run.get_args());
    Some(python.output().unwrap())
}

#[test]
fn command_owns_the_terminal_and_stops_and_continues_as_one_job() {
    let local = Local::new("t4-2");
    let script = "test -t 0 && echo ready; while read line; do echo \"got $line\"; done; exit 4";
    let command = local.run(&["--memory", "1Gi", "--", "sh", "-c", script]);
    let Some(output) = on_terminal(&[], &command) else { return };
    assert_eq!(code(&output), 0, "{}{}", String::from_utf8_lossy(&output.stdout), err(&output));
    assert_eq!((local.claims(), local.records()), (0, 0));
}

/// The kernel sends the hang-up to the leader of the session alone, and that is the supervisor.
#[test]
fn closed_terminal_ends_the_run_and_releases_its_part() {
    let local = Local::new("t4-2");
    for (script, ended) in [
        ("echo ready; exec sleep 600", "ended 129\n"),
        ("trap 'exit 7' HUP; echo ready; while :; do sleep 0.01; done", "ended 7\n"),
        ("trap 'exit 8' HUP; echo ready; kill -STOP $$; while :; do sleep 0.01; done", "ended 8\n"),
    ] {
        let command = local.run(&["--memory", "1Gi", "--", "sh", "-c", script]);
        let Some(output) = on_terminal(&["hang-up"], &command) else { return };
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!((said.as_ref(), code(&output)), (ended, 0), "{script}: {output:?}");
        assert_eq!((local.claims(), local.records()), (0, 0), "{script}");
    }
}

/// As `timeout` does: it leads a process group of its own, which a terminal does not signal.
#[test]
fn interrupt_reaches_a_command_in_its_own_group() {
    let local = Local::new("t4-2");
    let command = ["timeout", "600", "sh", "-c", "echo ready; exec sleep 600"];
    let command = local.run(&[&["--memory", "1Gi", "--"][..], &command].concat());
    let Some(output) = on_terminal(&["group"], &command) else { return };
    assert_eq!(code(&output), 0, "{}{}", String::from_utf8_lossy(&output.stdout), err(&output));
    assert_eq!((local.claims(), local.records()), (0, 0));
}

/// A timer that a process sets before it becomes `aliquot run` is the supervisor's alone. The command alone minds it.
#[test]
fn timer_set_before_the_run_reaches_the_command() {
    let local = Local::new("t4-2");
    let minds =
        "import os, signal, time; signal.signal(signal.SIGALRM, lambda *_: os._exit(9)); time.sleep(600)";
    let run = local.run(&["--memory", "1Gi", "--", "python3", "-c", minds]);
    let starter = "import os, signal, sys; signal.signal(signal.SIGALRM, signal.SIG_IGN); \
                   signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1); os.execv(sys.argv[1], sys.argv[1:])";
    let mut python = Command::new("python3");
    let output = python.args(["-c", starter]).arg(run.get_program()).args(run.get_args()).output();
    let Ok(output) = output else { return println!("stood aside: no python3 to set a timer with") };
    assert_eq!(code(&output), 9, "{output:?}");
    assert_eq!((local.claims(), local.records()), (0, 0));
}
