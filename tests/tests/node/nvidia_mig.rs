//! Partitions of this machine's own NVIDIA cards that are in MIG mode: taken through the one ledger, made by the vendor's
//! library, given back. What is judged is the card's side.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use aliquot_sim_device::{Card, GpuInstance, MigDevice, Placement};
use aliquot_tests::local::{aliquot, copy_program, opened_to_everybody, wait_for};
use aliquot_tests::machine::Machine;
use serde_json::Value;
use tempfile::TempDir;

/// One card in MIG mode; the user of the test may make instances.
const CARD: &str = "mig_access = \"anybody\"\n[[card]]\nmig = \"on\"\n";
/// Memory of 1g.10gb.
const SMALL: u64 = 9_984 << 20;

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn end(mut child: Child) -> Option<i32> {
    drop(child.stdin.take());
    child.wait().unwrap().code()
}

/// Instances of the card: profile, first slice, compute instances.
fn instances(card: &Card) -> Vec<(u32, u32, usize)> {
    let one =
        |gpu: &GpuInstance| (gpu.instance.profile, gpu.instance.placement.start, gpu.computes().count());
    card.gpu_instances().iter().map(one).collect()
}

/// An instance that an administrator made.
fn foreign(card: &Card, profile: u32, start: u32, size: u32, compute: u32) -> MigDevice {
    let gpu = card.create_gpu_instance(profile, Some(Placement { start, size })).unwrap();
    card.create_compute_instance(gpu.serial, compute).unwrap()
}

fn run(machine: &Machine, ask: &[&str], script: &str) -> Output {
    machine.aliquot("run", ask).args(["--", "sh", "-c", script]).output().unwrap()
}

#[test]
fn command_gets_an_instance_made_and_destroyed_for_it() {
    let machine = Machine::of(CARD);
    let card = machine.bench.card();
    let script = "echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES ${LD_PRELOAD##*/}; exit 7";
    let output = run(&machine, &["--template", "1g.10gb"], script);
    assert_eq!((output.status.code(), err(&output)), (Some(7), String::new()));
    let words: Vec<String> = said(&output).split_whitespace().map(str::to_owned).collect();
    assert!(words[0].starts_with("MIG-") && words[0] == words[1], "{words:?}");
    assert_eq!((words[2].as_str(), instances(&card), machine.claims()), ("libaliquot.so", vec![], 0));

    let (child, words) = machine.tenant(&["--template", "1g.10gb"], &["fill", "16384"]);
    assert_eq!((words[0].as_str(), words[4].as_str()), ("filled", "CUDA_ERROR_OUT_OF_MEMORY"), "{words:?}");
    assert_eq!(words[6].parse::<u64>().unwrap(), SMALL, "the instance is shown as the card: {words:?}");
    let [device] = card.mig_devices()[..] else { unreachable!("{:?}", card.mig_devices()) };
    let part = card.mig_card(device).unwrap();
    assert!(part.high_water() <= SMALL && part.high_water() > SMALL * 3 / 4, "{}", part.high_water());
    assert_eq!((card.high_water(), part.processes().len()), (0, 1), "no process is on the card itself");
    assert_eq!(end(child), Some(0));
    assert_eq!((instances(&card), machine.claims()), (vec![], 0));
}

#[test]
fn runs_share_a_card_and_what_does_not_fit_is_refused() {
    let machine = Machine::of(CARD);
    let card = machine.bench.card();
    let (half, _) = machine.tenant(&["--template", "4g.40gb"], &["fill", "1"]);
    let (quarter, _) = machine.tenant(&["--template", "2g.20gb"], &["fill", "1"]);
    let mut there = instances(&card);
    there.sort_unstable();
    assert_eq!(there, [(5, 0, 1), (14, 4, 1)], "each has its place");
    let refused = run(&machine, &["--template", "3g.40gb"], "true");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(err(&refused).contains("memory slice 4 is held by"), "{}", err(&refused));
    assert_eq!(run(&machine, &["--template", "1g.20gb"], "exit 6").status.code(), Some(6));
    // Two shares of one instance; it goes with the last of them.
    let share = ["--template", "1g.10gb", "--memory", "4Gi"];
    let (one, words) = machine.tenant(&share, &["fill", "8192"]);
    assert_eq!(words[6].parse::<u64>().unwrap(), 4 << 30, "{words:?}");
    let (two, _) = machine.tenant(&share, &["fill", "8192"]);
    assert_eq!(instances(&card).len(), 3);
    let device = card.mig_devices().into_iter().find(|device| device.gpu.profile == 19).unwrap();
    let part = card.mig_card(device).unwrap();
    assert!(part.high_water() <= 8 << 30 && part.processes().len() == 2, "{}", part.high_water());
    assert_eq!((end(one), instances(&card).len()), (Some(0), 3));
    assert_eq!((end(two), instances(&card).len()), (Some(0), 2));
    let devices = machine.devices();
    let in_use: Vec<&str> =
        devices[0]["inUse"].as_array().unwrap().iter().map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(in_use, ["2g.20gb at 4", "4g.40gb at 0"]);
    assert_eq!((end(half), end(quarter)), (Some(0), Some(0)));
    assert_eq!(instances(&card), []);
    // No run reaches the card itself.
    let whole = run(&machine, &["--memory", "1Gi"], "true");
    assert_eq!(whole.status.code(), Some(125), "{whole:?}");
    let unknown = run(&machine, &["--template", "5g.50gb"], "true");
    assert!(
        err(&unknown).contains("`5g.50gb` is neither a part nor a card nor a template"),
        "{}",
        err(&unknown)
    );
}

#[test]
fn instances_that_others_made_are_taken_and_stay() {
    let machine = Machine::of(CARD);
    let card = machine.bench.card();
    let theirs = foreign(&card, 19, 0, 1, 0);
    // One that is not finished counts as well.
    card.create_gpu_instance(9, Some(Placement { start: 4, size: 4 })).unwrap();
    let (child, words) = machine.tenant(&["--template", "1g.10gb"], &["fill", "1"]);
    assert_eq!(words[0], "filled", "{words:?}");
    let mut there = instances(&card);
    there.sort_unstable();
    assert_eq!((there[0], there.len()), ((9, 4, 0), 3), "{there:?}");
    let refused = run(&machine, &["--template", "3g.40gb"], "true");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    let text = machine.aliquot("devices", &[]).output().unwrap();
    assert!(said(&text).contains("found on the card"), "{}", said(&text));
    assert_eq!(end(child), Some(0));
    let mut left = instances(&card);
    left.sort_unstable();
    assert_eq!(left, [(9, 4, 0), (19, 0, 1)]);
    assert_eq!(card.mig_devices(), [theirs], "the very one that was there");
}

#[test]
fn partition_made_first_by_another_program_is_left_to_it() {
    let machine = Machine::of(CARD);
    let card = machine.bench.card();
    // Another user's ledger knows nothing of this one: both want the first place.
    let (other, mine) = (TempDir::new().unwrap(), ["--template", "7g.80gb"]);
    let mut command = machine.bench.command(aliquot());
    command.arg("run").arg("--state").arg(other.path()).args(mine).args([
        "--",
        "sh",
        "-c",
        "echo ready; read line",
    ]);
    let mut theirs = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(theirs.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let before = card.mig_devices();
    let refused = run(&machine, &mine, "true");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert_eq!((card.mig_devices(), machine.claims()), (before, 0));
    assert_eq!((end(theirs).is_some(), instances(&card)), (true, vec![]));
}

#[test]
fn two_ledgers_at_once_never_have_one_instance() {
    let machine = Machine::of(CARD);
    let card = machine.bench.card();
    let (states, held) = ([TempDir::new().unwrap(), TempDir::new().unwrap()], TempDir::new().unwrap());
    // Each command marks its instance while it runs: a present mark belongs to another run.
    let script = format!(
        "cd {}; mkdir $CUDA_VISIBLE_DEVICES || exit 9; rmdir $CUDA_VISIBLE_DEVICES",
        held.path().display()
    );
    let one = |state: &TempDir| {
        let mut command = machine.bench.command(aliquot());
        command.arg("run").arg("--state").arg(state.path()).args([
            "--template",
            "1g.10gb",
            "--",
            "sh",
            "-c",
            &script,
        ]);
        let output = command.output().unwrap();
        (output.status.code(), err(&output))
    };
    let ended: Vec<(Option<i32>, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = states
            .iter()
            .chain(&states)
            .map(|state| scope.spawn(|| (0..5).map(|_| one(state)).collect::<Vec<_>>()))
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    // A run that is late at a place gets another: there are seven.
    assert!(ended.iter().all(|(code, _)| *code == Some(0)), "{ended:?}");
    assert_eq!(instances(&card), [], "{ended:?}");
}

#[test]
fn a_kill_at_any_moment_leaves_nothing_behind_the_next_call() {
    let machine = Machine::of(CARD);
    let card = machine.bench.card();
    let theirs = foreign(&card, 19, 6, 1, 0);
    // Reproducible steps; what is hit depends on the machine.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..10 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut killed = machine.aliquot("run", &["--template", "2g.20gb"]);
        let mut killed = killed.args(["--", "sleep", "0.05"]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(random % 120_000));
        killed.kill().unwrap();
        killed.wait().unwrap();
        // The command may live on for a moment.
        wait_for("the next call", || {
            let next = run(&machine, &["--template", "4g.40gb"], "exit 4");
            next.status.code() == Some(4)
        });
        wait_for("what was left", || {
            assert_eq!(run(&machine, &["--template", "1g.10gb"], "exit 3").status.code(), Some(3));
            instances(&card) == [(19, 6, 1)]
        });
        assert_eq!((card.mig_devices(), machine.claims()), (vec![theirs], 0), "round {round}");
    }
}

#[test]
fn half_failed_calls_leave_nothing_and_lost_answers_are_found() {
    for (symbol, action, code) in [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "{ error = 999 }", 125),
        ("nvmlGpuInstanceCreateComputeInstance", "{ error = 999 }", 125),
        ("nvmlGpuInstanceCreateComputeInstance", "\"kill\"", 9),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "\"kill\"", 9),
        ("nvmlComputeInstanceDestroy", "\"kill\"", 9),
        ("nvmlGpuInstanceDestroy", "\"kill\"", 9),
    ] {
        let machine = Machine::of(CARD);
        let card = machine.bench.card();
        let theirs = foreign(&card, 19, 6, 1, 0);
        let fault = format!("[[fault]]\nsymbol = \"{symbol}\"\naction = {action}\n");
        machine.bench.write("faults.toml", &fault);
        let failed = run(&machine, &["--template", "3g.40gb"], "true");
        let ended = failed.status.code().unwrap_or(9);
        assert_eq!(ended, code, "{symbol} {action}: {failed:?}");
        std::fs::remove_file(machine.bench.cards().join("faults.toml")).unwrap();
        let next = run(&machine, &["--template", "3g.40gb"], "exit 5");
        assert_eq!(next.status.code(), Some(5), "{symbol} {action}: {next:?}");
        assert_eq!((card.mig_devices(), instances(&card).len()), (vec![theirs], 1), "{symbol} {action}");
        assert_eq!(machine.claims(), 0, "{symbol} {action}");
    }
}

/// Neither what programs reach in an instance can be made, nor the instance destroyed: it is ours, and goes with the next call.
#[test]
fn a_half_made_instance_stays_ours_until_it_is_gone() {
    for code in [23, 999] {
        let machine = Machine::of(CARD);
        let card = machine.bench.card();
        let theirs = foreign(&card, 19, 6, 1, 0);
        let fault = |symbol: &str, code: u32| {
            format!("[[fault]]\nsymbol = \"{symbol}\"\naction = {{ error = {code} }}\n")
        };
        let faults =
            fault("nvmlGpuInstanceCreateComputeInstance", code) + &fault("nvmlGpuInstanceDestroy", 999);
        machine.bench.write("faults.toml", &faults);
        let failed = run(&machine, &["--template", "3g.40gb"], "true");
        assert_eq!(failed.status.code(), Some(125), "{code}: {failed:?}");
        let mut there = instances(&card);
        there.sort_unstable();
        assert_eq!((there.len(), there[0].2), (2, 0), "{code}: one of them is half made: {there:?}");
        std::fs::remove_file(machine.bench.cards().join("faults.toml")).unwrap();
        let next = run(&machine, &["--template", "3g.40gb"], "exit 5");
        assert_eq!(next.status.code(), Some(5), "{code}: {next:?}");
        assert_eq!((card.mig_devices(), instances(&card).len()), (vec![theirs], 1), "{code}");
        assert_eq!(machine.claims(), 0, "{code}");
    }
}

#[test]
fn card_without_mig_mode_gives_no_partition_and_keeps_its_mode() {
    let second = "[[card]]\nuuid = \"GPU-00000000-0000-0000-0000-000000000001\"\nbus = 17\n";
    let machine = Machine::of(&format!("{CARD}{second}"));
    let log = machine.dir().join("log");
    let aliquot = |command: &str, arguments: &[&str]| {
        let mut aliquot = machine.aliquot(command, arguments);
        aliquot.env("ALIQUOT_SIM_LOG", &log).output().unwrap()
    };
    let visible = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
    // Shares are of the card out of the mode, partitions of the one in it.
    let share = aliquot("run", &[&["--memory", "1Gi"][..], &visible].concat());
    assert_eq!(said(&share), "GPU-00000000-0000-0000-0000-000000000001\n", "{share:?}");
    let part = aliquot("run", &[&["--template", "1g.10gb"][..], &visible].concat());
    assert!(said(&part).starts_with("MIG-"), "{part:?}");
    let refused = aliquot("run", &["--card", "1", "--template", "1g.10gb", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    // Calls that the simulated library has no behaviour for are on its log: a switch of the mode is one.
    assert_eq!(std::fs::read_to_string(&log).unwrap_or_default(), "");

    let off = Machine::of(&format!("[[card]]\n{second}"));
    let refused = run(&off, &["--template", "1g.10gb"], "true");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    for words in [
        "--template 1g.10gb: found no card that gives partitions",
        "card 0 (NVIDIA H100 80GB HBM3): its MIG mode is off, and Aliquot does not switch it",
        "its administrator may (nvidia-smi -i 1 -mig 1)",
        "ask for a share with --memory and --cores",
    ] {
        assert!(err(&refused).contains(words), "{words}: {}", err(&refused));
    }
}

#[test]
fn missing_permission_for_instances_names_the_remedy() {
    let machine = Machine::of("[[card]]\nmig = \"on\"\n");
    let program = machine.dir().join("aliquot");
    copy_program(aliquot(), &program);
    drop(machine.bench.card());
    let cards = machine.bench.cards();
    let place = cards.parent().unwrap();
    let state = machine.state();
    opened_to_everybody(&[machine.dir(), place, &machine.bench.libraries(), &cards, &program]);
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
    if root {
        std::os::unix::fs::chown(&state, Some(65534), Some(65534)).unwrap();
    }
    let said = |command: &str, rest: &[&str]| {
        let mut command_line = machine.bench.command(&program);
        command_line.arg(command).arg("--state").arg(&state).args(rest).current_dir(machine.dir());
        if root {
            command_line.uid(65534).gid(65534);
        }
        command_line.output().unwrap()
    };
    let refused = said("run", &["--template", "1g.10gb", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    for words in [
        "this user may not create MIG instances, expected a user with that right: run as root",
        "nvidia-cap1",
    ] {
        assert!(err(&refused).contains(words), "{words}: {}", err(&refused));
    }
    // The card is shown all the same, with the size that its model has.
    let shown = said("devices", &["-o", "json"]);
    let value: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let card = &value["nodes"][0]["cards"][0];
    assert_eq!(
        (card["memory"].as_str(), card["health"]["state"].as_str()),
        (Some("81152Mi"), Some("unhealthy"))
    );
}

#[test]
fn top_shows_instances_with_their_processes() {
    let machine = Machine::of(CARD);
    let card = machine.bench.card();
    let theirs = foreign(&card, 9, 4, 4, 2);
    let (child, words) = machine.tenant(&["--template", "1g.10gb"], &["fill", "1024"]);
    let uuid = |device: MigDevice| card.mig_uuid(device.compute);
    let ours = card.mig_devices().into_iter().find(|device| *device != theirs).unwrap();
    let top = machine.top(&["-n", "0"]);
    let shown = &top["cards"][0];
    let partition = &shown["partitions"][0];
    assert_eq!(
        (partition["template"].as_str(), partition["uuid"].as_str()),
        (Some("1g.10gb"), Some(uuid(ours).as_str())),
        "{shown}"
    );
    assert_eq!(partition["driver"]["usedBytes"], card.mig_card(ours).unwrap().in_use(), "{shown}");
    assert_eq!(partition["shares"][0]["visibleUuid"], uuid(ours), "{shown}");
    // The process is in its instance; nothing of it is outside.
    let names =
        |list: &Value| list.as_array().unwrap().iter().map(|p| p["pid"].to_string()).collect::<Vec<_>>();
    assert_eq!(names(&shown["outside"]), Vec::<String>::new(), "{shown}");
    assert_eq!(names(&partition["shares"][0]["processes"]), [words[1].clone()], "{shown}");
    assert_eq!(end(child), Some(0));
}

#[test]
fn a_machine_of_other_cards_has_no_templates() {
    let machine = Machine::of("[[card]]\nname = \"Tesla T4\"\npci_id = 0x1eb810de\nmig = \"none\"\n");
    let refused = run(&machine, &["--template", "1g.10gb"], "true");
    assert!(err(&refused).contains("card 0 (Tesla T4): has no MIG"), "{}", err(&refused));
}
